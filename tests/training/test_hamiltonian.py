"""Training as optimal control: the adjoint by hand is that of autograd, and H behaves as the theory says."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from continua.errors import ConfigError
from continua.fields import counted
from continua.flow import RK4, Adaptive, Euler, Fixed, Heun, OnSphere, ReversibleHeun, Solver, Tsit5
from continua.models import States, Transformer
from continua.models.build import pre_norm
from continua.operators import Attention, Context, LayerNorm, Pointwise
from continua.tasks import Example
from continua.training import (
    HeadEntropy,
    JacobianNorm,
    KineticEnergy,
    Objective,
    Penalties,
    SquaredWeights,
    Whole,
)
from continua.training.hamiltonian import HamiltonianPath, hamiltonian
from tests import cases, cases_models
from tests.measure import gap, random, slope, stirred


class Squares:
    """A task whose loss is a sum of squares of all answers."""

    def example(self, seed: int, step: int) -> Example:
        raise NotImplementedError

    def evaluate(self, model: Any) -> Any:
        raise NotImplementedError

    def loss(self, answer: torch.Tensor, example: Example) -> torch.Tensor:
        return (answer - 0.3).square().sum()


def example_of(batch: Any) -> Example:
    return Example(batch, torch.zeros(2, 6))


def autonomous(solver: Solver, steps: int) -> Transformer:
    """One set of smooth weights for all depths."""
    torch.manual_seed(0)
    axes, native = cases_models.COUNTED
    w = counted(axes)
    block = pre_norm((Attention(w), Pointwise(w)), lambda: LayerNorm(w))
    model = stirred(Transformer(axes, native.replace(z=Fixed(steps, solver)), States(), block))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)  # gentle enough for a few steps to show the order
    return model


def autograd(objective: Objective, example: Example) -> dict[str, torch.Tensor]:
    objective.zero_grad()
    objective(example, Whole.of(example))[0].backward()
    return {name: p.grad.clone() for name, p in objective.model.named_parameters() if p.grad is not None}


def norm(gradient: dict[str, torch.Tensor]) -> float:
    return torch.cat([g.flatten() for g in gradient.values()]).norm().item()


def off(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """The relative error of a whole gradient."""
    return norm({name: got[name] - wanted[name] for name in wanted}) / norm(wanted)


PENALTIES: dict[str, Callable[[], Penalties]] = {
    "no penalty": lambda: Penalties(),
    "kinetic energy, entropy and decay": lambda: 0.3 * KineticEnergy() + 0.1 * HeadEntropy() + 1e-2 * SquaredWeights(),
}
KINDS = [
    "gpt2",
    "continuous words",
    "generated",
    "density",
    "stepped by RK4",
    "parallel",
]


@pytest.mark.spec("T1", "T2", "T7")
@pytest.mark.parametrize("terms", PENALTIES)
@pytest.mark.parametrize("name", KINDS)
def test_the_sum_over_steps_is_the_gradient_of_autograd(name: str, terms: str) -> None:
    case = cases.MODELS[name]
    objective = Objective(case.model(), Squares(), PENALTIES[terms]())
    example = example_of(case.batch())
    before = objective.model.native, objective.model.adjoint
    path = hamiltonian(objective.model, objective, example)
    assert (objective.model.native, objective.model.adjoint) == before
    wanted = autograd(objective, example)
    for key, gradient in wanted.items():
        assert gap(path.gradient[key], gradient) < 1e-10, key
    assert len(path.states) == len(path.adjoint) == len(path.z) == cases.STEPS + 1
    assert path.density.shape == (cases.STEPS,)


@pytest.mark.spec("T2")
def test_a_cost_that_takes_derivatives_itself() -> None:
    """The same random directions in both walks."""
    objective = Objective(autonomous(RK4(), 3), Squares(), Penalties((0.1 * JacobianNorm(),)))
    example = example_of(cases.states())
    objective.generator = torch.Generator().manual_seed(3)
    path = hamiltonian(objective.model, objective, example)
    objective.generator = torch.Generator().manual_seed(3)
    assert off(path.gradient, autograd(objective, example)) < 1e-10


@pytest.mark.spec("T2")
def test_the_adjoint_is_what_autograd_returns_at_every_step() -> None:
    model, example = autonomous(Heun(), 4), example_of(cases.states())
    path = hamiltonian(model, Squares(), example)
    for i, state in enumerate(path.states[:-1]):
        x = state.clone().requires_grad_()
        rest = Transformer(model.axes, model.native, States(), model.block)
        rest.native = model.native
        walked = x
        grids = replace(model.native.grids(model.axes), t=_times(model, example))
        bound, args = model.bind(grids, model.structure(), Context())
        for z, dz in list(Fixed(4).walk((0.0, model.axes.z.end)))[i:]:
            walked = Heun().step(bound, z, dz, walked, args)
        (wanted,) = torch.autograd.grad((walked - 0.3).square().sum() / example.count, x)
        assert gap(path.adjoint[i], wanted) < 1e-12


def _times(model: Transformer, example: Example) -> Any:
    return model.run(example.batch)[2]


@pytest.mark.spec("T2")
@pytest.mark.parametrize("solver", [Euler(), Heun(), RK4()], ids=str)
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_h_is_constant_along_autonomous_flows_to_the_order_of_the_solver(solver: Any, weight: float) -> None:
    sizes = (6, 12, 24)
    terms = Penalties((weight * KineticEnergy(),)) if weight else Penalties()
    drifts = []
    for steps in sizes:
        model = autonomous(solver, steps)
        drifts.append(hamiltonian(model, Objective(model, Squares(), terms), example_of(cases.states())).drift)
    assert abs(slope(sizes, drifts) - solver.order) < 0.15, drifts


@pytest.mark.spec("T2")
def test_h_moves_where_the_field_changes_with_depth() -> None:
    case = cases.MODELS["stepped by RK4"]
    path = hamiltonian(case.model(), Squares(), example_of(case.batch()))
    assert path.drift > 0.01 * path.h.abs().max()


@pytest.mark.spec("T2")
@pytest.mark.parametrize("solver", [Heun(), RK4()], ids=str)
def test_the_integral_of_the_density_converges_to_the_gradient(solver: Any) -> None:
    """∫ ∂H/∂θ dz with ∂H/∂θ = ⟨a + 2λF, ∂F/∂θ⟩, to the order of the solver."""
    sizes, errors = (6, 12, 24), []
    for steps in sizes:
        model = autonomous(solver, steps)
        objective = Objective(model, Squares(), 0.5 * KineticEnergy() + 1e-2 * SquaredWeights())
        path = hamiltonian(model, objective, example_of(cases.states()))
        errors.append(off(path.continuous, path.gradient))
    assert abs(slope(sizes, errors) - solver.order) < 0.15, errors


@pytest.mark.spec("T1", "T2")
def test_the_gradient_without_the_running_cost_is_wrong() -> None:
    """The right form is exact, ∫⟨a, ∂F/∂θ⟩ dz alone is far off, and so is H with the other sign of the cost."""
    model, example, weight = autonomous(RK4(), 16), example_of(cases.states()), 20.0
    objective = Objective(model, Squares(), Penalties((weight * KineticEnergy(),)))
    path = hamiltonian(model, objective, example)
    grids = replace(model.native.grids(model.axes), t=_times(model, example))
    bound, args = model.bind(grids, model.structure(), Context())
    named = dict(model.named_parameters())
    dz, energies, slopes = float(path.z[1]), [], []
    wrong = {name: torch.zeros_like(p) for name, p in named.items()}
    for i, (z, x, a) in enumerate(zip(path.z.tolist(), path.states, path.adjoint, strict=True)):
        velocity = bound(z, x, args)
        found = torch.autograd.grad((a * velocity).sum(), list(named.values()), retain_graph=True, allow_unused=True)
        factor = dz / 3 * (1 if i in (0, 16) else 4 if i % 2 else 2)
        for name, one in zip(named, found, strict=True):
            wrong[name] += 0 if one is None else factor * one
        slopes.append((a * velocity).sum().item())
        energies.append(weight * velocity.square().mean((1, 2)).mean().item())
    right = autograd(objective, example)
    assert off(path.gradient, right) < 1e-10
    assert off(path.continuous, right) < 1e-6
    assert off(wrong, right) > 0.15, off(wrong, right)
    other = torch.tensor(slopes) - torch.tensor(energies)
    assert gap(torch.tensor(slopes) + torch.tensor(energies), path.h.float()) < 1e-5
    assert (other - other[0]).abs().max() > 100 * path.drift  # the sign with which H is not conserved


@pytest.mark.spec("T2")
def test_on_the_sphere_the_velocity_is_the_tangent_one() -> None:
    axes, native = cases_models.COUNTED
    torch.manual_seed(0)
    w = counted(axes)
    block = pre_norm((Attention(w), Pointwise(w)), lambda: LayerNorm(w))
    drifts = []
    for steps in (8, 16, 32):
        model = stirred(Transformer(axes, native.replace(z=Fixed(steps, OnSphere(RK4()))), States(), block), amount=0.0)
        unit = random(2, 6, 8) / random(2, 6, 8).norm(dim=-1, keepdim=True)
        drifts.append(hamiltonian(model, Squares(), example_of(cases.Batch(unit))).drift)
    assert slope((8, 16, 32), drifts) > 3.5


@pytest.mark.spec("T2")
@pytest.mark.parametrize("depth", [Adaptive(solver=Tsit5()), Fixed(2, ReversibleHeun())], ids=["adaptive", "pair"])
def test_other_walks_are_refused(depth: Any) -> None:
    model = autonomous(RK4(), 2)
    model.native = model.native.replace(z=depth)
    with pytest.raises(ConfigError, match=r"fixed steps of the state alone, got .*Fixed\(8, RK4\(\)\)"):
        hamiltonian(model, Squares(), example_of(cases.states()))


@pytest.mark.spec("T2")
def test_two_flows_are_refused() -> None:
    case = cases.MODELS["encoder-decoder"]
    with pytest.raises(ConfigError, match=r"one flow, got EncoderDecoder.*decoder"):
        hamiltonian(case.model(), Squares(), example_of(case.batch()))


@pytest.mark.spec("T2")
def test_the_picture_is_drawn(tmp_path: Path) -> None:
    path: HamiltonianPath = hamiltonian(autonomous(RK4(), 6), Squares(), example_of(cases.states()))
    assert path.plot(tmp_path / "inner" / "h.png").stat().st_size > 10_000
