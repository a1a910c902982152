"""Laws of the depth engine: orders of solvers and splittings, exact steps, projections, dry runs, discrete blocks."""

import itertools
import math

import pytest
import torch

from continua.errors import SolveError
from continua.flow import Euler, Fixed, Flow, LieTrotter, Projection, SaveAt, Strang, Sum, Trajectory, depths, solve
from tests.cases import SOLVERS, SPLITTINGS
from tests.measure import EXACT, gap, random, slope

ALL = [*SOLVERS, *SPLITTINGS]
START = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
SPAN = (0.2, 1.7)


def tilt(z: float, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Non-autonomous and nonlinear: the order conditions in z and in x are both felt."""
    return (a @ x).sin() * (1 + math.cos(3 * z)) + 0.3 * math.sin(2 * z)


def swirl(z: float, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Does not commute with ``tilt``."""
    return a @ (x * x.roll(1)) - z * x


MATRICES = (random(3, 3), random(3, 3, seed=1))


def final(solver, n: int, field, args) -> torch.Tensor:
    return solve(field, START, SPAN, args=args, solver=solver, control=Fixed(n)).final


def order_of(solver, field, args) -> float:
    exact = final(SOLVERS[-1], 512, lambda z, x, a: field(z, x, a), args)
    sizes = [32, 64, 128]
    return slope(sizes, [(final(solver, n, field, args) - exact).norm().item() for n in sizes])


@pytest.mark.spec("M7", "D2")
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_every_solver_has_its_declared_order(solver) -> None:
    assert order_of(solver, tilt, MATRICES[0]) == pytest.approx(solver.order, abs=0.15)


@pytest.mark.spec("M7", "D2")
@pytest.mark.parametrize("solver", ALL, ids=str)
def test_every_solver_has_its_declared_order_on_a_sum_of_two_parts(solver) -> None:
    assert order_of(solver, Flow(tilt) + Flow(swirl), MATRICES) == pytest.approx(solver.order, abs=0.15)


@pytest.mark.spec("M7", "D2")
@pytest.mark.parametrize("solver", SPLITTINGS, ids=str)
def test_splitting_keeps_its_order_with_three_parts(solver) -> None:
    third = Flow(lambda z, x, a: torch.tanh(a @ x.flip(0)))
    field = Flow(tilt) + Flow(swirl) + third
    assert order_of(solver, field, (*MATRICES, random(3, 3, seed=2))) == pytest.approx(solver.order, abs=0.15)


@pytest.mark.spec("M1")
def test_parts_add_up_and_stay_in_order() -> None:
    a, b, p = Flow(tilt), Flow(swirl), Projection(lambda z, x, args: x)
    field = a + b + p
    assert field.parts == (a, b, p)
    assert ((a + p) + (b + p)).parts == (a, p, b, p)
    value = field(0.3, START, (*MATRICES, None))
    assert gap(value, tilt(0.3, START, MATRICES[0]) + swirl(0.3, START, MATRICES[1])) < EXACT


@pytest.mark.spec("M1")
@pytest.mark.parametrize("span", [(0.0, 1.0), (0.0, 12.0), (-0.3, 0.7), (0.1, 1e3)], ids=str)
def test_fixed_takes_exactly_its_steps_and_ends_exactly_at_the_end(span) -> None:
    for n in [*range(1, 300), 1000, 4095]:
        walked = list(Fixed(n).walk(span))
        assert len(walked) == n
        assert walked[0][0] == span[0]
        z, dz = walked[-1]
        assert z + dz == span[1]
        assert all(dz > 0 for _, dz in walked)
        for (z, dz), (after, _) in itertools.pairwise(walked):
            assert abs(z + dz - after) <= 2e-16 * max(1.0, abs(after))


@pytest.mark.spec("M1")
def test_unit_steps_are_exactly_one() -> None:
    for n in range(1, 200):
        assert list(Fixed(n).walk((0.0, float(n)))) == [(float(i), 1.0) for i in range(n)]


@pytest.mark.spec("M1")
def test_save_keeps_the_start_the_asked_steps_and_the_end() -> None:
    def run(save: SaveAt) -> Trajectory:
        return solve(tilt, START, (0.0, 7.0), args=MATRICES[0], solver=Euler(), control=Fixed(7), save=save)

    every = run(SaveAt(1))
    assert every.z == tuple(float(i) for i in range(8))
    assert every.x[0] is START
    assert run(SaveAt(3)).z == (0.0, 3.0, 6.0, 7.0)
    assert run(SaveAt(7)).z == (0.0, 7.0)
    end = run(SaveAt())
    assert end.z == (7.0,)
    for path in (run(SaveAt(3)), end):
        assert torch.equal(path.final, every.final)
        assert path.stats["steps"] == 7
        assert all(torch.equal(x, every.x[int(z)]) for z, x in zip(path.z, path.x, strict=True))


@pytest.mark.spec("M1")
def test_a_solve_that_cannot_be_says_why_and_what_to_do() -> None:
    def attempt(**changes) -> None:
        given = {"span": (0.0, 1.0), "x0": START, "solver": Euler(), "control": Fixed(2), **changes}
        span, x0 = given.pop("span"), given.pop("x0")
        solve(tilt, x0, span, args=MATRICES[0], **given)

    with pytest.raises(SolveError, match=r"span must go forward, got \(1.0, 0.0\)\. Write span=\(start, end\)"):
        attempt(span=(1.0, 0.0))
    with pytest.raises(SolveError, match="span must go forward"):
        attempt(span=(0.0, math.inf))
    with pytest.raises(SolveError, match=r"floating-point tensor, got torch.int64\. Convert it"):
        attempt(x0=torch.arange(3))
    with pytest.raises(SolveError, match=r"LieTrotter needs a field made of parts, got tilt\. Write Flow\(f\) \+"):
        attempt(solver=LieTrotter())
    with pytest.raises(SolveError, match="Strang needs a field made of parts, got tilt"):
        attempt(solver=Strang())
    with pytest.raises(SolveError, match="at least one step, got 0"):
        attempt(control=Fixed(0))
    with pytest.raises(SolveError, match="counts steps, got -1"):
        attempt(save=SaveAt(-1))


class Diary:
    """Parts that write down when they are called: ``A`` and ``B`` flow, ``p`` and ``q`` project."""

    def __init__(self, names: str) -> None:
        self.calls: list[tuple[str, float]] = []
        self.field = Sum(tuple((Flow if name.isupper() else Projection)(self._part(name)) for name in names))
        self.args = tuple(torch.tensor(float(i + 1)) for i in range(len(names)))

    def _part(self, name: str):
        def f(z: float, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
            self.calls.append((name, z))
            return x * a if name.islower() else a + 0 * x

        return f

    def walk(self, solver, steps: int, span=(0.0, 1.0)) -> "Diary":
        solve(self.field, torch.ones(2), span, args=self.args, solver=solver, control=Fixed(steps))
        return self


@pytest.mark.spec("M7", "D2")
def test_lie_trotter_projects_once_after_the_flow_it_follows() -> None:
    calls = Diary("ApBq").walk(LieTrotter(), 2).calls
    assert calls == [(name, z) for z in (0.0, 0.5) for name in "ApBq"]


@pytest.mark.spec("M7", "D2")
def test_strang_projects_after_every_sub_step() -> None:
    calls = Diary("ApBq").walk(Strang(Euler()), 1).calls
    assert calls == [("A", 0.0), ("p", 0.5), ("B", 0.0), ("q", 1.0), ("A", 0.5), ("p", 1.0)]


@pytest.mark.spec("M7", "D2")
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_runge_kutta_projects_once_after_the_full_step(solver) -> None:
    calls = Diary("ApBq").walk(solver, 3).calls
    stages = len(solver.tableau.b)
    one = [name for name, _ in calls[: 2 * stages + 2]]
    assert "".join(one) == "AB" * stages + "pq"
    assert len(calls) == 3 * (2 * stages + 2)
    ends = [1 / 3, 2 / 3, 1.0]
    assert [z for name, z in calls if name == "p"] == pytest.approx(ends)
    assert [z for name, z in calls if name == "q"] == pytest.approx(ends)


@pytest.mark.spec("M7", "M10")
@pytest.mark.parametrize("solver", ALL, ids=str)
@pytest.mark.parametrize("names", ["A", "AB", "ApBq", "ABC", "Ap"])
@pytest.mark.parametrize("span", [(0.0, 1.0), (0.1, 7.3)], ids=str)
def test_the_dry_run_names_exactly_the_depths_that_are_asked(solver, names, span) -> None:
    for steps in (1, 3, 7):
        diary = Diary(names).walk(solver, steps, span)
        asked = [tuple(dict.fromkeys(z for name, z in diary.calls if name == one)) for one in names]
        assert depths(tuple(name.isupper() for name in names), span, solver, Fixed(steps)) == tuple(asked)


# --- the discrete blocks, written by hand ----------------------------------------------------------------------------


def attention(z, x, w):
    return (x @ w.T).softmax(-1) * (1 + z)


def feed_forward(z, x, w):
    return torch.tanh(x @ w.T) - 0.1 * z


def normed(z, x, g):
    return g * (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


W = (random(5, 5), random(5, 5, seed=1))
G = (random(5, seed=2), random(5, seed=3))
X = random(4, 5, seed=4)


def blocks(field, args, solver, steps: int = 3) -> torch.Tensor:
    return solve(field, X, (0.0, float(steps)), args=args, solver=solver, control=Fixed(steps)).final


@pytest.mark.spec("M7", "D2")
def test_the_parallel_block_is_euler_on_the_sum() -> None:
    x = X
    for z in range(3):
        x = x + attention(z, x, W[0]) + feed_forward(z, x, W[1])
    assert gap(blocks(Flow(attention) + Flow(feed_forward), W, Euler()), x) < EXACT


@pytest.mark.spec("M7", "D2")
def test_the_sequential_block_is_lie_trotter_with_unit_euler_steps() -> None:
    x = X
    for z in range(3):
        x = x + attention(z, x, W[0])
        x = x + feed_forward(z, x, W[1])
    assert torch.equal(blocks(Flow(attention) + Flow(feed_forward), W, LieTrotter(Euler())), x)


@pytest.mark.spec("M7", "D2")
def test_attention_projection_feed_forward_projection_is_a_field_of_four_parts() -> None:
    x = X
    for z in range(3):
        x = normed(z, x + attention(z, x, W[0]), G[0])
        x = normed(z, x + feed_forward(z, x, W[1]), G[1])
    field = Flow(attention) + Projection(normed) + Flow(feed_forward) + Projection(normed)
    assert torch.equal(blocks(field, (W[0], G[0], W[1], G[1]), LieTrotter()), x)


@pytest.mark.spec("M1")
def test_gamma_minus_one_drops_the_residual() -> None:
    x = X
    for z in range(3):
        x = attention(z, x, W[0])
    residual_free = Flow(lambda z, x, w: -x + attention(z, x, w))
    assert gap(blocks(residual_free + Projection(lambda z, x, a: x), (W[0], None), LieTrotter()), x) < EXACT


@pytest.mark.spec("M1")
def test_gradients_reach_the_start_and_every_argument() -> None:
    x0, args = START.clone().requires_grad_(), tuple(m.clone().requires_grad_() for m in MATRICES)
    field = Flow(tilt) + Flow(swirl)
    for solver in ALL:
        assert torch.autograd.gradcheck(
            lambda x, *a, s=solver: solve(field, x, SPAN, args=a, solver=s, control=Fixed(2)).final, (x0, *args)
        )
