"""Laws of solvers that stay on the sphere; their orders are measured with all the others."""

import pytest
import torch

from continua.flow import Fixed, Projection, SaveAt, solve
from tests.cases import ON_SPHERES
from tests.flows import BOTH, MATRICES, SPAN, start
from tests.measure import random


@pytest.mark.spec("D1", "L1")
@pytest.mark.parametrize("solver", ON_SPHERES, ids=str)
@pytest.mark.parametrize("radius", [1.0, 2.5])
def test_states_stay_on_the_sphere(solver, radius) -> None:
    solver = type(solver)(solver.inner, radius)
    x0 = radius * torch.nn.functional.normalize(random(4, 3), dim=-1)
    path = solve(BOTH, x0, SPAN, args=MATRICES, solver=solver, control=Fixed(7), save=SaveAt(1))
    assert all((x.norm(dim=-1) / radius - 1).abs().max() < 1e-12 for x in path.x)
    assert (path.final - x0).norm() > 0.1


@pytest.mark.spec("D1")
@pytest.mark.parametrize("solver", ON_SPHERES, ids=str)
def test_projections_are_applied_on_the_sphere_too(solver) -> None:
    field = BOTH + Projection(lambda z, x, a: x * a)
    squeeze = torch.tensor([1.0, 1.0, 0.1], dtype=torch.float64)
    args = (*MATRICES, squeeze)
    path = solve(field, start(solver), SPAN, args=args, solver=solver, control=Fixed(9))
    bare = solve(BOTH, start(solver), SPAN, args=MATRICES, solver=solver, control=Fixed(9))
    assert path.final[2].abs() < 0.3 * bare.final[2].abs()
    assert path.final.norm().item() == pytest.approx(1, abs=1e-12)
