"""The depth engine against other people's: torchdiffeq, diffrax and scipy on shared problems."""

import json
import math
import subprocess
import sys
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from continua.flow import (
    Adaptive,
    Bosh3,
    Direct,
    Dopri5,
    Euler,
    ExplicitMidpoint,
    Fixed,
    Heun,
    Recompute,
    ReversibleHeun,
    ReversibleSolver,
    SaveAt,
    Tsit5,
    solve,
)
from continua.flow.runge_kutta import RungeKutta, Tableau
from tests.flows import learning, pulled, towards
from tests.measure import gap, random

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it says while it is imported is not ours
    from torchdiffeq import odeint

SAME = 1e-12  # the same formulas in another order of operations
TIGHT = Adaptive(rtol=1e-10, atol=1e-10)


def lotka_volterra(z: float, x: Tensor, a: Any) -> Tensor:
    return torch.stack([x[0] * (1.1 - 0.4 * x[1]), x[1] * (0.1 * x[0] - 0.4)])


def van_der_pol(z: float, x: Tensor, a: Any) -> Tensor:
    return torch.stack([x[1], 2.0 * (1 - x[0] ** 2) * x[1] - x[0] + 0.5 * math.cos(z)])


WEIGHTS = (0.7 * random(8, 2, seed=1), 0.7 * random(2, 8, seed=2))


def neural(z: float, x: Tensor, a: Any) -> Tensor:
    return torch.tanh(x @ a[0].T + z) @ a[1].T


PROBLEMS = {
    "Lotka–Volterra": (lotka_volterra, [2.0, 1.0], 6.0, None),
    "van der Pol": (van_der_pol, [1.0, 0.5], 4.0, None),
    "neural": (neural, [0.3, -0.6], 2.0, WEIGHTS),
}
EACH = pytest.mark.parametrize("name", PROBLEMS)


def problem(name: str) -> tuple[Any, Tensor, tuple[float, float], Any]:
    f, x0, end, args = PROBLEMS[name]
    return f, torch.tensor(x0, dtype=torch.float64), (0.0, end), args


# --- scipy -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("D1")
@EACH
@pytest.mark.parametrize("solver", [Dopri5(), Tsit5(), ReversibleSolver(Dopri5())], ids=str)
def test_tight_solves_agree_with_scipy(name, solver) -> None:
    f, x0, span, args = problem(name)
    points = numpy.linspace(span[0], span[1], 7)
    oracle = solve_ivp(
        lambda z, x: f(z, torch.from_numpy(x), args).numpy(), span, x0.numpy(), method="DOP853", rtol=1e-12,
        atol=1e-12, t_eval=points,
    )  # fmt: skip
    path = solve(f, x0, span, args=args, solver=solver, control=TIGHT, save=SaveAt(points=tuple(points)))
    assert gap(torch.stack(path.x), torch.from_numpy(oracle.y.T.copy())) < 1e-7
    assert gap(path.final, torch.from_numpy(oracle.y[:, -1].copy())) < 1e-8


@pytest.mark.spec("D1")
@EACH
@pytest.mark.parametrize(("solver", "method"), [(Dopri5(), "RK45"), (Bosh3(), "RK23")], ids=str)
def test_about_as_many_evaluations_are_needed_as_in_scipy(name, solver, method) -> None:
    f, x0, span, args = problem(name)
    oracle = solve_ivp(
        lambda z, x: f(z, torch.from_numpy(x), args).numpy(), span, x0.numpy(), method=method, rtol=1e-5, atol=1e-5
    )
    path = solve(f, x0, span, args=args, solver=solver, control=Adaptive(rtol=1e-5, atol=1e-5))
    assert 0.7 * oracle.nfev < path.stats["evaluations"] < 1.3 * oracle.nfev


# --- torchdiffeq -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThreeEighths(RungeKutta):
    """Kutta's 3/8 rule: what torchdiffeq calls rk4. A method of one's own is a table."""

    order: ClassVar[int] = 4
    tableau: ClassVar[Tableau] = Tableau(
        c=(0.0, 1 / 3, 2 / 3, 1.0),
        a=((), (1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0)),
        b=(1 / 8, 3 / 8, 3 / 8, 1 / 8),
    )


FIXED = {"euler": Euler(), "midpoint": ExplicitMidpoint(), "heun2": Heun(), "rk4": ThreeEighths()}


@pytest.mark.spec("D1", "D4")
@EACH
@pytest.mark.parametrize("method", FIXED)
def test_fixed_steps_and_their_gradients_are_those_of_torchdiffeq(name, method) -> None:
    f, start, span, given = problem(name)
    found = []
    for ours in (True, False):
        x0, args = learning(start), learning(given)
        if ours:
            save = SaveAt(1)
            path = solve(f, x0, span, args=args, solver=FIXED[method], control=Fixed(16), save=save)
            states = torch.stack(path.x)
        else:
            grid = torch.linspace(*span, 17, dtype=torch.float64)
            states = odeint(lambda z, x, args=args: f(float(z), x, args), x0, grid, method=method)
        found.append([states, *pulled(towards(states), x0, args)])
    assert all(gap(a, b) < SAME for a, b in zip(*found, strict=True))


@pytest.mark.spec("D1", "D4")
@EACH
@pytest.mark.parametrize(("solver", "method"), [(Dopri5(), "dopri5"), (Bosh3(), "bosh3")], ids=str)
@pytest.mark.parametrize("adjoint", [Direct(), Recompute()], ids=str)
def test_tight_adaptive_gradients_are_those_of_torchdiffeq(name, solver, method, adjoint) -> None:
    f, start, span, given = problem(name)
    tolerance = 1e-9 if solver.order > 4 else 1e-7
    span, found = (0.0, span[1] / 4), []
    for ours in (True, False):
        x0, args = learning(start), learning(given)
        if ours:
            control = Adaptive(rtol=tolerance, atol=tolerance)
            final = solve(f, x0, span, args=args, solver=solver, control=control, adjoint=adjoint).final
        else:
            ends = torch.tensor(span, dtype=torch.float64)
            final = odeint(
                lambda z, x, args=args: f(float(z), x, args), x0, ends, method=method, rtol=tolerance, atol=tolerance
            )[-1]
        found.append([final, *pulled(towards(final), x0, args)])
    assert all(gap(a, b) < 100 * tolerance for a, b in zip(*found, strict=True))


# --- diffrax ---------------------------------------------------------------------------------------------------------

DIFFRAX = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
os.environ["JAX_ENABLE_X64"], os.environ["JAX_PLATFORMS"] = "1", "cpu"
import jax, jax.numpy as np, diffrax as dx

given = json.load(sys.stdin)
w = [np.array(one) for one in given["weights"]]
fields = {
    "Lotka–Volterra": lambda z, x, a: np.stack([x[0] * (1.1 - 0.4 * x[1]), x[1] * (0.1 * x[0] - 0.4)]),
    "van der Pol": lambda z, x, a: np.stack([x[1], 2.0 * (1 - x[0] ** 2) * x[1] - x[0] + 0.5 * np.cos(z)]),
    "neural": lambda z, x, a: np.tanh(x @ w[0].T + z) @ w[1].T,
}
solvers = {"Dopri5": dx.Dopri5(), "Tsit5": dx.Tsit5(), "Bosh3": dx.Bosh3(), "ReversibleHeun": dx.ReversibleHeun(),
           "Heun": dx.Heun(), "ExplicitMidpoint": dx.Midpoint(), "Euler": dx.Euler()}
found = {}
for name, (x0, end) in given["problems"].items():
    term, x0 = dx.ODETerm(fields[name]), np.array(x0)
    for kind, solver in solvers.items():
        states = []
        for steps in given["steps"]:
            grid = dx.StepTo(ts=np.array([end * i / given["per"] for i in range(steps + 1)]))
            def run(x):
                last = end * steps / given["per"]
                return dx.diffeqsolve(term, solver, 0.0, last, None, x, stepsize_controller=grid).ys[-1]
            states.append(run(x0).tolist())
        found[f"{name}, {kind}"] = states + [jax.grad(lambda x: (run(x) ** 2).sum())(x0).tolist()]
    for kind in ("Dopri5", "Tsit5"):
        sol = dx.diffeqsolve(term, solvers[kind], 0.0, end, None, x0, max_steps=100000,
                             stepsize_controller=dx.PIDController(rtol=1e-10, atol=1e-10))
        found[f"{name}, {kind}, adaptive"] = sol.ys[-1].tolist()
print(json.dumps(found))
"""
STEPS, PER = [1, 12], 24


@pytest.fixture(scope="module")
def diffrax() -> dict[str, Any]:
    """What diffrax says, in a process of its own: jax keeps its settings to itself."""
    given = {
        "problems": {name: (x0, end) for name, (_, x0, end, _) in PROBLEMS.items()},
        "weights": [w.tolist() for w in WEIGHTS],
        "steps": STEPS,
        "per": PER,
    }
    done = subprocess.run(
        [sys.executable, "-c", DIFFRAX], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


ORACLES = [Euler(), ExplicitMidpoint(), Heun(), Bosh3(), Dopri5(), Tsit5(), ReversibleHeun()]


@pytest.mark.spec("D1", "D3", "D4")
def test_steps_and_gradients_are_those_of_diffrax(diffrax) -> None:
    for name in PROBLEMS:
        f, start, (_, end), args = problem(name)
        for solver in ORACLES:
            *states, gradient = diffrax[f"{name}, {solver}"]
            for steps, wanted in zip(STEPS, states, strict=True):
                x0 = learning(start)
                path = solve(f, x0, (0.0, end * steps / PER), args=args, solver=solver, control=Fixed(steps))
                assert gap(path.final, torch.tensor(wanted, dtype=torch.float64)) < SAME, (name, solver, steps)
            (found,) = pulled((path.final**2).sum(), x0)
            assert gap(found, torch.tensor(gradient, dtype=torch.float64)) < 1e-11, (name, solver)


@pytest.mark.spec("D1")
def test_tight_solves_agree_with_diffrax(diffrax) -> None:
    for name in PROBLEMS:
        f, x0, span, args = problem(name)
        for solver in (Dopri5(), Tsit5()):
            wanted = torch.tensor(diffrax[f"{name}, {solver}, adaptive"], dtype=torch.float64)
            assert gap(solve(f, x0, span, args=args, solver=solver, control=TIGHT).final, wanted) < 1e-8
