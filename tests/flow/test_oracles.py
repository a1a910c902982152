"""The depth engine against other people's: torchdiffeq, diffrax and scipy on shared problems."""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy
import pytest
import torch
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
from continua.flow.solvers.runge_kutta import RungeKutta, Tableau
from tests.flows import learning, pulled, towards
from tests.lazy import Lazily
from tests.measure import gap, random

integrate = Lazily("scipy.integrate")
torchdiffeq = Lazily("torchdiffeq")
SAME = 1e-12  # the same formulas in another order of operations
TIGHT = Adaptive(rtol=1e-10, atol=1e-10)


def lotka_volterra(z: float, x: Tensor, a: Any) -> Tensor:
    return torch.stack([x[0] * (1.1 - 0.4 * x[1]), x[1] * (0.1 * x[0] - 0.4)])


def van_der_pol(z: float, x: Tensor, a: Any) -> Tensor:
    return torch.stack(
        [x[1], 2.0 * (1 - x[0] ** 2) * x[1] - x[0] + 0.5 * torch.as_tensor(z, dtype=torch.float64).cos()]
    )


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
    oracle = integrate.solve_ivp(
        lambda z, x: f(z, torch.from_numpy(x), args).numpy(), span, x0.numpy(), method="DOP853", rtol=1e-12,
        atol=1e-12, t_eval=points,
    )  # fmt: skip
    path = solve(f, x0, span, args=args, solver=solver, control=TIGHT, save=SaveAt(points=tuple(points)))
    close = 1e-6 if isinstance(solver, ReversibleSolver) else 1e-8  # its steps are chosen for the inner method
    assert gap(torch.stack(path.x), torch.from_numpy(oracle.y.T.copy())) < close


@pytest.mark.spec("D1")
@EACH
@pytest.mark.parametrize(("solver", "method"), [(Dopri5(), "RK45"), (Bosh3(), "RK23")], ids=str)
def test_about_as_many_evaluations_are_needed_as_in_scipy(name, solver, method) -> None:
    f, x0, span, args = problem(name)
    oracle = integrate.solve_ivp(
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
            states = torchdiffeq.odeint(lambda z, x, args=args: f(z, x, args), x0, grid, method=method)
        found.append([states, *pulled(towards(states), x0, args)])
    assert all(gap(a, b) < SAME for a, b in zip(*found, strict=True))


@pytest.mark.spec("D1", "D4")
@EACH
@pytest.mark.parametrize(("solver", "method"), [(Dopri5(), "dopri5"), (Bosh3(), "bosh3")], ids=str)
@pytest.mark.parametrize("adjoint", [Direct(), Recompute()], ids=str)
def test_tight_adaptive_gradients_are_those_of_torchdiffeq(name, solver, method, adjoint) -> None:
    f, start, span, given = problem(name)
    tolerance, close = (1e-9, 1e-7) if solver.order > 4 else (1e-7, 1e-4)  # its own bosh3 is off by hundreds of rtol
    span, found = (0.0, span[1] / 4), []
    for ours in (True, False):
        x0, args = learning(start), learning(given)
        if ours:
            control = Adaptive(rtol=tolerance, atol=tolerance)
            final = solve(f, x0, span, args=args, solver=solver, control=control, adjoint=adjoint).final
        else:
            ends = torch.tensor(span, dtype=torch.float64)
            final = torchdiffeq.odeint(
                lambda z, x, args=args: f(z, x, args), x0, ends, method=method, rtol=tolerance, atol=tolerance
            )[-1]
        found.append([final, *pulled(towards(final), x0, args)])
    assert all(gap(a, b) < close for a, b in zip(*found, strict=True))


# --- diffrax ---------------------------------------------------------------------------------------------------------

DIFFRAX = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
os.environ.update(JAX_ENABLE_X64="1", JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_backend_optimization_level=0")
import jax, jax.numpy as np, diffrax as dx

given = json.load(sys.stdin)
def f(z, x, a):
    return np.stack([x[1], 2.0 * (1 - x[0] ** 2) * x[1] - x[0] + 0.5 * np.cos(z)])

term, x0, nodes = dx.ODETerm(f), np.array(given["x0"]), np.array(given["nodes"])
solvers = {"Dopri5": dx.Dopri5(), "Tsit5": dx.Tsit5(), "Bosh3": dx.Bosh3(), "ReversibleHeun": dx.ReversibleHeun(),
           "Heun": dx.Heun()}
found = {}
for kind, solver in solvers.items():
    def run(x):
        states = dx.diffeqsolve(term, solver, nodes[0], nodes[-1], None, x, saveat=dx.SaveAt(steps=True),
                                stepsize_controller=dx.StepTo(ts=nodes), max_steps=len(nodes) - 1,
                                adjoint=dx.DirectAdjoint()).ys
        return (states[-1] ** 2).sum(), states
    if kind in given["gradients"]:
        (_, states), gradient = jax.value_and_grad(run, has_aux=True)(x0)
        found[kind] = (states.tolist(), gradient.tolist())
    else:
        found[kind] = (run(x0)[1].tolist(), None)
found["adaptive"] = dx.diffeqsolve(term, solvers["Tsit5"], nodes[0], nodes[-1], None, x0, max_steps=100000,
                                   stepsize_controller=dx.PIDController(rtol=1e-10, atol=1e-10)).ys[-1].tolist()
print(json.dumps(found))
"""
ORACLES = [Heun(), Bosh3(), Dopri5(), Tsit5(), ReversibleHeun()]
DIFFERENTIATED = [Dopri5(), ReversibleHeun()]  # each takes jax seconds to compile


@pytest.mark.slow(reason="jax compiles each solver; scipy and torchdiffeq are the oracles of the quick tests")
@pytest.mark.spec("D1", "D3", "D4")
def test_every_step_its_gradients_and_tight_solves_are_those_of_diffrax() -> None:
    f, start, _, _ = problem("van der Pol")
    span, steps = (0.0, 2.0), 12
    given = {
        "x0": start.tolist(),
        "nodes": [z for z, _ in Fixed(steps).walk(span)] + [span[1]],
        "gradients": [str(s) for s in DIFFERENTIATED],
    }
    done = subprocess.run(  # in a process of its own: jax keeps its settings to itself
        [sys.executable, "-c", DIFFRAX], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for solver in ORACLES:
        states, gradient = said[str(solver)]
        x0 = learning(start)
        path = solve(f, x0, span, solver=solver, control=Fixed(steps), save=SaveAt(1))
        assert gap(torch.stack(path.x[1:]), torch.tensor(states, dtype=torch.float64)) < SAME, solver
        if solver in DIFFERENTIATED:
            (found,) = pulled((path.final**2).sum(), x0)
            assert gap(found, torch.tensor(gradient, dtype=torch.float64)) < SAME, solver
    tight = solve(f, start, span, solver=Tsit5(), control=TIGHT).final
    assert gap(tight, torch.tensor(said["adaptive"], dtype=torch.float64)) < 1e-8
