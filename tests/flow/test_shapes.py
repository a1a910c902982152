"""A field is a velocity of its state: one number for each number of the state, under every solver and control."""

from typing import Any

import pytest
import torch

from continua.errors import SolveError
from continua.flow import Adaptive, Euler, Fixed, Flow, LieTrotter, Projection, Recompute, Sum, solve
from tests.cases import ALL_SOLVERS
from tests.refusals import refused

X = torch.ones(3, 4, dtype=torch.float64)
WRONG = {
    "a number": lambda z, x, a: x.sum(),
    "a row": lambda z, x, a: x[:1],
    "a column": lambda z, x, a: x.mean(-1, keepdim=True),
    "without its first dimension": lambda z, x, a: x[0],
    "larger": lambda z, x, a: torch.stack([x, x]),
    "transposed and square of another": lambda z, x, a: x[:, :1] + torch.ones(2, 1, 1, dtype=x.dtype),
}
REMEDY = "one number for each number of the state"


@pytest.mark.finding("S11")
@pytest.mark.parametrize("control", [Fixed(3), Adaptive()], ids=str)
@pytest.mark.parametrize("field", WRONG.values(), ids=WRONG)
def test_fields_of_another_shape_are_refused(field: Any, control: Any) -> None:
    with refused(SolveError, "got [", REMEDY):
        solve(field, X, (0.0, 1.0), control=control)


@pytest.mark.finding("S11")
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_every_solver_refuses(solver: Any) -> None:
    for field in (WRONG["a row"], WRONG["larger"]):
        parts = Sum((Flow(field),))
        with refused(SolveError, "got [", REMEDY):
            solve(parts, X, (0.0, 1.0), args=(None,), solver=solver, control=Fixed(2))


@pytest.mark.finding("S11")
def test_states_of_one_number_projections_and_adjoints() -> None:
    with refused(SolveError, "got [3]", REMEDY):
        solve(
            lambda z, x, a: a * x, torch.tensor(1.0), (0.0, 1.0), args=torch.ones(3), solver=Euler(), control=Fixed(2)
        )
    larger = Sum((Flow(lambda z, x, a: -x), Projection(lambda z, x, a: torch.stack([x, x]))))
    with pytest.raises(SolveError):
        solve(larger, X, (0.0, 1.0), args=(None, None), solver=LieTrotter(Euler()), control=Fixed(2))
    learns = X.clone().requires_grad_()
    with refused(SolveError, "got [1, 4]", REMEDY):
        solve(WRONG["a row"], learns, (0.0, 1.0), control=Fixed(2), adjoint=Recompute())
    pair = (X, X[0])
    with refused(SolveError, "got [1]", REMEDY):
        solve(lambda z, x, a: (x[0], x[1][:1]), pair, (0.0, 1.0), control=Fixed(2))


@pytest.mark.finding("S11")
def test_costs_of_each_sample_still_add_up() -> None:
    path = solve(lambda z, x, a: -x, X, (0.0, 1.0), control=Fixed(4), cost=lambda z, x, v, a: x.square().sum(-1))
    assert path.cost is not None
    assert path.cost.shape == (3,)
