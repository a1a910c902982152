"""Laws of running costs: their value has the order that is declared, their gradients are those of Direct."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from continua.flow import (
    RK4,
    Backsolve,
    Checkpoint,
    Direct,
    Euler,
    Fixed,
    LieTrotter,
    Recompute,
    SaveAt,
    Trajectory,
    solve,
)
from continua.flow.solvers.splitting import splits
from tests.cases import ALL_SOLVERS, EXACT_ADJOINTS, ON_SPHERES, REVERSIBLE
from tests.flows import BOTH, MATRICES, SPAN, START, learning, pulled, reference, start, towards
from tests.laws.test_adjoints import CLOSE, UNDOING, each
from tests.measure import EXACT, gap, random, slope


def paid(z: float, x: Tensor, v: Tensor, args: Any) -> Tensor:
    """Looks at depth, state, velocity and weights; three numbers, so that errors seldom cross zero together."""
    return (1 + z) * v**2 + (args[0] @ x) * z


def run(solver, control, adjoint=None, cost=paid, x0=None, args=MATRICES, **options) -> Trajectory:
    x0 = start(solver) if x0 is None else x0
    adjoint = adjoint or Direct()
    return solve(BOTH, x0, SPAN, args=args, solver=solver, control=control, adjoint=adjoint, cost=cost, **options)


@functools.cache
def exact_cost(on_sphere: bool) -> Tensor:
    """By Simpson's rule on a fine path, with the velocity of the flow there."""
    path, total = reference(BOTH, MATRICES, on_sphere, 512), torch.zeros(3, dtype=torch.float64)
    for i, (z, x) in enumerate(zip(path.z, path.x, strict=True)):
        v = BOTH(z, x, MATRICES)
        v = v - x * (x @ v) / (x @ x) if on_sphere else v
        weight = 1 if i in (0, 512) else 4 if i % 2 else 2
        total = total + weight * paid(z, x, v, MATRICES)
    return total * (SPAN[1] - SPAN[0]) / (3 * 512)


@pytest.mark.spec("D4", "T1")
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_the_cost_has_the_order_of_the_solver_or_of_its_chords(solver) -> None:
    sizes = [16, 24, 32] if solver.order > 4 else [32, 64, 128]  # Simpson is right to 1e-11
    errors = [(run(solver, Fixed(n)).cost - exact_cost(solver in ON_SPHERES)).norm().item() for n in sizes]
    declared = min(solver.order, 2) if splits(solver) else solver.order
    assert slope(sizes, errors) > declared - 0.2
    assert errors[-1] < 0.1


@pytest.mark.spec("D4", "T1")
def test_kinetic_energy_of_a_sequential_block_is_the_sum_of_its_squared_jumps() -> None:
    def energy(z, x, v, args):
        return (v**2).sum()

    options = {"args": MATRICES, "solver": LieTrotter(Euler()), "control": Fixed(5), "save": SaveAt(1)}
    path = solve(BOTH, START, (0.0, 5.0), cost=energy, **options)
    jumps = sum((b - a).square().sum() for a, b in zip(path.x, path.x[1:], strict=False))
    assert gap(path.cost, jumps) < EXACT
    bare = solve(BOTH, START, (0.0, 5.0), **options)
    assert all(torch.equal(a, b) for a, b in zip(path.x, bare.x, strict=True))


@pytest.mark.spec("D4", "T1")
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_a_cost_does_not_change_the_path(solver) -> None:
    save = SaveAt(points=(0.4, 1.7))
    with_cost, bare = run(solver, Fixed(5), save=save), run(solver, Fixed(5), cost=None, save=save)
    assert bare.cost is None
    assert all(gap(a, b) < EXACT for a, b in zip(with_cost.x, bare.x, strict=True))
    assert gap(with_cost.final, bare.final) < EXACT


@functools.cache
def wanted(solver) -> list[Tensor]:
    x0, args = learning(start(solver)), learning(MATRICES)
    path = run(solver, Fixed(5), x0=x0, args=args, save=SaveAt(2))
    return pulled(towards(path.x, path.cost), x0, args)


@pytest.mark.spec("D4", "T1", "T7")
@each()
def test_gradients_of_the_cost_are_those_of_direct(solver, adjoint) -> None:
    x0, args = learning(start(solver)), learning(MATRICES)
    path = run(solver, Fixed(5), adjoint, x0=x0, args=args, save=SaveAt(2))
    found = pulled(towards(path.x, path.cost), x0, args)
    assert all(gap(a, b) < CLOSE for a, b in zip(found, wanted(solver), strict=True))
    assert "path" not in path.stats


@pytest.mark.spec("D4", "T1")
@pytest.mark.parametrize("adjoint", EXACT_ADJOINTS, ids=str)
def test_a_cost_a_sample_is_a_number_a_sample(adjoint) -> None:
    solver = REVERSIBLE[1] if adjoint in UNDOING else RK4()
    found = []
    for one in (Direct(), adjoint):
        x0, args = learning(random(4, 3)), learning(MATRICES)
        path = run(solver, Fixed(5), one, lambda z, x, v, a: (v**2).sum(-1), x0, args)
        assert path.cost.shape == (4,)
        alone = run(solver, Fixed(5), one, lambda z, x, v, a: (v**2).sum(-1), x0[2], args)
        assert gap(path.cost[2], alone.cost) < EXACT
        found.append(pulled(towards(path.cost), x0, args))
    assert all(gap(a, b) < CLOSE for a, b in zip(*found, strict=True))


@pytest.mark.spec("D4", "T1")
def test_backsolve_carries_the_cost_of_the_continuous_adjoint() -> None:
    errors = []
    for n in (8, 16, 32):
        x0, args = learning(START), learning(MATRICES)
        path = run(RK4(), Fixed(n), Backsolve(), x0=x0, args=args, save=SaveAt(n // 4))
        found = pulled(towards(path.x, path.cost), x0, args)
        x0, args = learning(START), learning(MATRICES)
        direct = run(RK4(), Fixed(n), x0=x0, args=args, save=SaveAt(n // 4))
        gradients = pulled(towards(direct.x, direct.cost), x0, args)
        errors.append(max(gap(a, b) for a, b in zip(found, gradients, strict=True)))
    assert slope([8, 16, 32], errors) > 3.5
    assert errors[-1] < 1e-5


@pytest.mark.spec("D4", "T5")
@pytest.mark.parametrize("adjoint", [Recompute(), Checkpoint(2)], ids=str)
def test_a_cost_that_takes_derivatives_itself_goes_the_plain_way_and_says_so(adjoint) -> None:
    class Rate:
        """‖∂f/∂x · x‖², with a graph of its own."""

        twice = True

        def __call__(self, z, x, v, args):
            x = x if x.requires_grad else x.detach().requires_grad_()
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(BOTH(z, x, args).sum(), x, create_graph=True)
            return (slope * slope).sum()

    found = []
    for one in (Direct(), adjoint):
        x0, args = learning(START), learning(MATRICES)
        path = run(RK4(), Fixed(3), one, Rate(), x0, args)
        found.append(pulled(path.cost, x0, args))
    assert path.stats["path"] == "plain, since the cost takes derivatives itself"
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert all(g.abs().max() > 1e-3 for g in found[0])
