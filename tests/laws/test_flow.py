"""Laws of the depth engine: orders, exact steps, dense output, statistics, projections, dry runs, discrete blocks."""

import collections
import itertools

import pytest
import torch

from continua.errors import SolveError
from continua.flow import (
    Adaptive,
    Direct,
    Euler,
    Fixed,
    Flow,
    Heun,
    LieTrotter,
    Projection,
    Recompute,
    SaveAt,
    Strang,
    Sum,
    Trajectory,
    depths,
    solve,
)
from tests.cases import ALL_SOLVERS, ON_SPHERES, SOLVERS, SPLITTINGS
from tests.flows import (
    BOTH,
    MATRICES,
    SPAN,
    START,
    Counted,
    allowed,
    learning,
    reference,
    start,
    swirl,
    tilt,
)
from tests.measure import EXACT, gap, random, slope

SIZES = [50, 72, 100]  # far enough for the leading term, above round-off even for order 5
PLAIN = [solver for solver in ALL_SOLVERS if allowed(solver, tilt)]


def final(solver, n: int, field, args) -> torch.Tensor:
    return solve(field, start(solver), SPAN, args=args, solver=solver, control=Fixed(n)).final


def order_of(solver, field, args) -> float:
    exact = reference(field, args, solver in ON_SPHERES).final
    return slope(SIZES, [(final(solver, n, field, args) - exact).norm().item() for n in SIZES])


@pytest.mark.spec("D1", "D3")
@pytest.mark.parametrize("solver", PLAIN, ids=str)
def test_every_solver_has_its_declared_order(solver) -> None:
    assert order_of(solver, tilt, MATRICES[0]) == pytest.approx(solver.order, abs=0.15)


@pytest.mark.spec("M7", "D1", "D2", "D3")
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_every_solver_has_its_declared_order_on_a_sum_of_two_parts(solver) -> None:
    assert order_of(solver, BOTH, MATRICES) == pytest.approx(solver.order, abs=0.15)


@pytest.mark.spec("M7", "D2")
@pytest.mark.parametrize("solver", SPLITTINGS, ids=str)
def test_splitting_keeps_its_order_with_three_parts(solver) -> None:
    third = Flow(lambda z, x, a: torch.tanh(a @ x.flip(0)))
    assert order_of(solver, BOTH + third, (*MATRICES, random(3, 3, seed=2))) == pytest.approx(solver.order, abs=0.15)


@pytest.mark.spec("D1", "D6")
def test_the_largest_error_of_euler_steps_falls_like_their_size() -> None:
    exact, sizes, found = reference(tilt, MATRICES[0]), [32, 64, 128], []
    for n in sizes:
        path = solve(tilt, START, SPAN, args=MATRICES[0], solver=Euler(), control=Fixed(n), save=SaveAt(1))
        pairs = zip(path.x, exact.x[:: 256 // n], strict=True)
        found.append(max((x - y).norm().item() for x, y in pairs))
    assert slope(sizes, found) == pytest.approx(1, abs=0.15)


# --- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("M1")
def test_parts_add_up_and_stay_in_order() -> None:
    a, b, p = Flow(tilt), Flow(swirl), Projection(lambda z, x, args: x)
    field = a + b + p
    assert field.parts == (a, b, p)
    assert ((a + p) + (b + p)).parts == (a, p, b, p)
    value = field(0.3, START, (*MATRICES, None))
    assert gap(value, tilt(0.3, START, MATRICES[0]) + swirl(0.3, START, MATRICES[1])) < EXACT


def check_walk(n: int, span: tuple[float, float]) -> None:
    walked = list(Fixed(n).walk(span))
    assert len(walked) == n
    assert walked[0][0] == span[0]
    z, dz = walked[-1]
    assert z + dz == span[1]
    assert min(dz for _, dz in walked) > 0
    for (z, dz), (after, _) in itertools.pairwise(walked):
        assert abs(z + dz - after) <= 2e-16 * max(1.0, abs(after))


SPANS = pytest.mark.parametrize("span", [(0.0, 1.0), (0.0, 12.0), (-0.3, 0.7), (0.1, 1e3)], ids=str)


@pytest.mark.spec("M1", "D1")
@SPANS
def test_fixed_takes_exactly_its_steps_and_ends_exactly_at_the_end(span) -> None:
    for n in [*range(1, 300), 1000, 4095, 10_000]:
        check_walk(n, span)


@pytest.mark.slow(reason="half a minute of counting; the quick one takes a few of these numbers")
@pytest.mark.spec("M1", "D1")
@SPANS
def test_fixed_takes_exactly_its_steps_for_every_number_up_to_ten_thousand(span) -> None:
    for n in range(1, 10_001):
        walk = Fixed(n).walk(span)
        assert next(walk)[0] == span[0]
        rest = collections.deque(enumerate(walk, start=2), maxlen=1)
        if n > 1:
            count, (z, dz) = rest[0]
            assert count == n
            assert z + dz == span[1]


@pytest.mark.spec("D1")
@pytest.mark.parametrize("native", [1, 2, 3, 4, 6, 7, 12])
def test_nested_steps_are_native_ones_joined_or_halved(native) -> None:
    span = (0.5, 0.5 + native)
    before: set[float] = set()
    for n in range(1, 4 * native):
        walked = list(Fixed(n, nested=native).walk(span))
        assert len(walked) == n
        assert walked[0][0] == span[0]
        assert walked[-1][0] + walked[-1][1] == pytest.approx(span[1], abs=1e-12)
        nodes = {round(z, 9) for z, _ in walked}
        assert before <= nodes, "coarse nodes are fine ones too"
        before = nodes
        if n == native:
            assert walked == list(Fixed(n).walk(span))


@pytest.mark.spec("M1")
def test_unit_steps_are_exactly_one() -> None:
    for n in range(1, 200):
        assert list(Fixed(n).walk((0.0, float(n)))) == [(float(i), 1.0) for i in range(n)]


@pytest.mark.spec("D1", "D2", "D3")
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_no_evaluation_lies_outside_the_span(solver) -> None:
    for span, n in itertools.product([(0.1, 0.8), (-1.0, 2.0 / 3)], [1, 3, 7, 25]):
        counted = Counted(lambda z, x, a: -x)
        field = Flow(counted) + Flow(counted)
        path = solve(field, start(solver), span, args=(None, None), solver=solver, control=Fixed(n))
        rounding = 2.3e-16 * max(abs(z) for z in span)
        assert min(counted.depths) >= span[0] - rounding
        assert max(counted.depths) <= span[1] + rounding
        assert path.stats["steps"] == n
        assert path.z == (span[1],)


# --- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("D1", "D2", "D3")
@pytest.mark.parametrize("dense", [False, True], ids=["points", "dense"])
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_between_steps_the_path_has_the_order_of_the_solver(solver, dense) -> None:
    exact, sizes, errors = reference(BOTH, MATRICES, solver in ON_SPHERES), [8, 16, 32], []
    for n in sizes:
        nodes = [(256 // n) * i + (64 // n) * quarter for i in range(0, n, n // 8) for quarter in (1, 2, 3)]
        points = tuple(exact.z[i] for i in nodes)
        save = SaveAt(dense=True) if dense else SaveAt(points=points)
        path = solve(BOTH, start(solver), SPAN, args=MATRICES, solver=solver, control=Fixed(n), save=save)
        found = [path(z) for z in points] if dense else path.x
        errors.append(max((x - exact.x[i]).norm().item() for x, i in zip(found, nodes, strict=True)))
    assert slope(sizes, errors) >= solver.order - 0.2
    assert errors[-1] < 0.1


def kept(save: SaveAt, solver=None, control=None, x0=START, **options) -> Trajectory:
    solver, control = solver or Euler(), control or Fixed(7)
    return solve(BOTH, x0, (0.0, 7.0), args=MATRICES, solver=solver, control=control, save=save, **options)


@pytest.mark.spec("D1")
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_the_dense_path_passes_through_the_steps(solver) -> None:
    x0 = start(solver)
    steps, whole = kept(SaveAt(1), solver, Fixed(14), x0), kept(SaveAt(dense=True), solver, Fixed(14), x0)
    assert all(gap(whole(z), x) < EXACT for z, x in zip(steps.z, steps.x, strict=True))
    assert torch.equal(whole.final, steps.final)
    assert whole.z == (7.0,)


@pytest.mark.spec("M1")
def test_save_keeps_the_start_the_asked_steps_and_the_end() -> None:
    every = kept(SaveAt(1))
    assert every.z == tuple(float(i) for i in range(8))
    assert every.x[0] is START
    assert kept(SaveAt(3)).z == (0.0, 3.0, 6.0, 7.0)
    assert kept(SaveAt(7)).z == (0.0, 7.0)
    end = kept(SaveAt())
    assert end.z == (7.0,)
    for path in (kept(SaveAt(3)), end):
        assert torch.equal(path.final, every.final)
        assert path.stats["steps"] == 7
        assert all(torch.equal(x, every.x[int(z)]) for z, x in zip(path.z, path.x, strict=True))


CONTROLS = {"fixed": Fixed(7), "adaptive": Adaptive(rtol=0.03, atol=0.03)}
ADJOINTS = {"no gradient": None, "direct": Direct(), "recompute": Recompute()}


@pytest.mark.spec("D1")
@pytest.mark.parametrize("adjoint", ADJOINTS.values(), ids=ADJOINTS)
@pytest.mark.parametrize("control", CONTROLS.values(), ids=CONTROLS)
@pytest.mark.parametrize("points", [(0.0, 0.4, 7.0), (0.4, 1.0, 6.999), (0.0,)], ids=str)
def test_points_may_come_with_a_dense_path_and_agree_with_it(points, control, adjoint) -> None:
    x0, options = (START, {}) if adjoint is None else (learning(START), {"adjoint": adjoint})
    alone = kept(SaveAt(points=points), Heun(), control, x0, **options)
    both = kept(SaveAt(points=points, dense=True), Heun(), control, x0, **options)
    for path in (alone, both):
        assert path.z == points
        assert len(path.x) == len(points)
        assert torch.equal(path.final, alone.final)
        assert all(gap(x, both(z)) < EXACT for z, x in zip(points, path.x, strict=True))


@pytest.mark.spec("D1")
@pytest.mark.parametrize("adjoint", ADJOINTS.values(), ids=ADJOINTS)
@pytest.mark.parametrize("every", [1, 3, 7])
@pytest.mark.parametrize("control", CONTROLS.values(), ids=CONTROLS)
def test_steps_may_come_with_a_dense_path(every, control, adjoint) -> None:
    x0, options = (START, {}) if adjoint is None else (learning(START), {"adjoint": adjoint})
    alone = kept(SaveAt(every), Heun(), control, x0, **options)
    both = kept(SaveAt(every, dense=True), Heun(), control, x0, **options)
    assert both.z == alone.z
    assert len(both.z) == len(both.x) == len(alone.x)
    assert all(gap(x, y) < EXACT for x, y in zip(both.x, alone.x, strict=True))
    assert all(gap(both(z), x) < EXACT for z, x in zip(alone.z, alone.x, strict=True))


@pytest.mark.spec("D1")
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
@pytest.mark.parametrize(
    "save", [SaveAt(), SaveAt(2), SaveAt(points=(0.4, 2.0, 2.2, 7.0)), SaveAt(dense=True)], ids=str
)
def test_the_evaluations_that_are_told_are_those_that_were_made(solver, save) -> None:
    for control in (Fixed(3), Adaptive(rtol=0.1, atol=0.1)):
        for x0 in (start(solver), learning(start(solver))):
            parts = Counted(tilt), Counted(swirl)
            path = solve(
                Flow(parts[0]) + Flow(parts[1]), x0, SPAN, args=MATRICES, solver=solver, control=control,
                save=SaveAt(save.every, tuple(SPAN[0] + z * 1.5 / 7 for z in save.points), save.dense),
            )  # fmt: skip
            assert path.stats["evaluations"] == max(part.calls for part in parts)


@pytest.mark.spec("D1", "D3")
@pytest.mark.parametrize("solver", [s for s in ALL_SOLVERS if s not in ON_SPHERES], ids=str)
@pytest.mark.parametrize("control", [Fixed(4), Adaptive(rtol=1e-2, atol=1e-2)], ids=str)
def test_a_state_of_two_tensors_moves_like_one_of_both(solver, control) -> None:
    def pair(z, x, a):
        return tuple(tilt(z, torch.cat(x), a).split([1, 2]))

    def swirled(z, x, a):
        return tuple(swirl(z, torch.cat(x), a).split([1, 2]))

    save = SaveAt(points=(0.5, 1.0, 1.7))
    together = solve(BOTH, START, SPAN, args=MATRICES, solver=solver, control=control, save=save)
    parts = Flow(pair) + Flow(swirled)
    path = solve(parts, tuple(START.split([1, 2])), SPAN, args=MATRICES, solver=solver, control=control, save=save)
    assert all(gap(torch.cat(x), y) < EXACT for x, y in zip(path.x, together.x, strict=True))
    assert gap(torch.cat(path.final), together.final) < EXACT
    assert path.stats == together.stats


# --- projections and depths ------------------------------------------------------------------------------------------


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
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
@pytest.mark.parametrize("names", ["A", "AB", "ApBq", "ABC", "Ap"])
@pytest.mark.parametrize("span", [(0.0, 1.0), (0.1, 7.3)], ids=str)
def test_the_dry_run_names_exactly_the_depths_that_are_asked(solver, names, span) -> None:
    if not names.isupper() and hasattr(solver, "undo"):
        with pytest.raises(SolveError, match="a projection cannot be undone"):
            Diary(names).walk(solver, 1, span)
        return
    for steps in (1, 4):
        diary = Diary(names).walk(solver, steps, span)
        asked = [tuple(dict.fromkeys(z for name, z in diary.calls if name == one)) for one in names]
        assert depths(tuple(name.isupper() for name in names), span, solver, Fixed(steps)) == tuple(asked)
