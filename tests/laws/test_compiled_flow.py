"""A solve with fixed steps is one graph: compiled and exported, forward and backward, it is the eager solve.

What cannot be in a graph (steps searched for by value, backward passes written by hand) is refused with a remedy where
one graph is asked for, and runs beside the graphs where it is not.
"""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from continua.errors import SolveError
from continua.flow import (
    RK4,
    Adaptive,
    Backsolve,
    Bosh3,
    Bound,
    Checkpoint,
    Direct,
    Dopri5,
    Euler,
    Fixed,
    Flow,
    Heun,
    LieTrotter,
    OnSphere,
    Projection,
    Recompute,
    Reversible,
    ReversibleHeun,
    ReversibleSolver,
    SaveAt,
    Strang,
    solve,
)
from continua.flow.uncompiled import BACKWARD, SEARCH
from tests.cases import ALL_SOLVERS, EXACT_ADJOINTS
from tests.flows import MATRICES, SPAN, START, Woven, allowed, learning, pulled, start, towards
from tests.measure import gap, random
from tests.slow import slow_but

pytestmark = [pytest.mark.unshaped, pytest.mark.spec("B9")]  # checked functions do not compile
FEW = [RK4(), Strang(), ReversibleSolver(), OnSphere()]  # one of a kind
# the running costs below trace a step on the sphere, a reversible one is one of Heun's here: many stages take long
QUICK = [RK4(), Strang(), Euler(), ReversibleHeun(), LieTrotter()]
CLOSE = 1e-12  # the same operations in the same order, but for what a backend may fuse
TORCHS_OWN = pytest.mark.filterwarnings(  # what the compiler itself does while it traces
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
)
HAND_WRITTEN = [*EXACT_ADJOINTS, Backsolve()]


def turn(z: float, x: Tensor, a: Tensor) -> Tensor:
    """Few operations: they are traced at every evaluation."""
    return torch.tanh(x @ a.T) * (1 + z)


def push(z: float, x: Tensor, a: Tensor) -> Tensor:
    """Does not commute with ``turn``."""
    return x @ a.T - z * x


PAIR = Flow(turn) + Flow(push)


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch.compiler.reset()


def compiled(f: Any, **choices: Any) -> Any:
    return torch.compile(f, **{"fullgraph": True, "backend": "aot_eager", **choices})


def apart(run: Any, *given: Any, **choices: Any) -> float:
    """How far a compiled run and its gradients are from the eager ones."""
    found = []
    for call in (run, compiled(run, **choices)):
        trees = [learning(tree) for tree in given]
        states = call(*trees)
        found.append([*states, *pulled(towards(states), *trees)])
    eager, graph = found
    assert any(g.abs().max() > 1e-3 for g in eager[-len(given) :]), "gradients arrive"
    return max(gap(a, b) for a, b in zip(eager, graph, strict=True))


# --- one graph -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("D7")
@pytest.mark.parametrize("solver", slow_but(QUICK, ALL_SOLVERS, "half a minute of tracing for all of them"), ids=str)
def test_a_fixed_step_solve_is_one_graph_for_every_solver(solver) -> None:
    save = SaveAt(points=(0.3, 1.0)) if solver.order < 4 else SaveAt(1)  # more stages only take longer to trace

    def run(x0: Tensor, args: Any) -> tuple[Tensor, ...]:
        path = solve(PAIR, x0, SPAN, args=args, solver=solver, control=Fixed(2), save=save)
        if not allowed(solver, turn):
            return path.final, path.x[1]
        return path.final, path.x[1], solve(turn, x0, SPAN, args=args[0], solver=solver, control=Fixed(1)).final

    assert apart(run, start(solver), MATRICES) < CLOSE


SAVES = {
    "every": SaveAt(2),
    "points": SaveAt(points=(0.2, 0.5, 0.9, 1.7)),
    "dense": SaveAt(dense=True),
    "dense points": SaveAt(points=(0.3, 1.2), dense=True),
}


@pytest.mark.parametrize(
    "save", slow_but([SAVES["every"], SAVES["dense points"]], SAVES.values(), "traced one by one"), ids=SAVES
)
def test_what_is_kept_of_a_compiled_path_is_what_is_kept_of_an_eager_one(save) -> None:
    def run(x0: Tensor, args: Any) -> tuple[Tensor, ...]:
        path = solve(PAIR, x0, SPAN, args=args, solver=Heun(), control=Fixed(3, nested=4), save=save)
        return (*path.x, path.final, *([path(0.7)] if save.dense else []))

    assert apart(run, START, MATRICES) < CLOSE


def energy(z: float, x: Any, velocity: Any, args: Any) -> Tensor:
    return velocity.square().sum() * (1 + z) + x.sum() ** 2


COSTLY = [RK4(), Strang(), OnSphere(), ReversibleSolver(LieTrotter())]


@pytest.mark.parametrize("solver", slow_but([Strang(), OnSphere()], COSTLY, "traced one by one"), ids=str)
def test_running_costs_are_in_the_graph(solver) -> None:
    def run(x0: Tensor, args: Any) -> tuple[Tensor, ...]:
        path = solve(PAIR, x0, SPAN, args=args, solver=solver, control=Fixed(2), cost=energy)
        return path.final, path.cost

    assert apart(run, start(solver), MATRICES) < CLOSE


@pytest.mark.parametrize(
    "solver", slow_but([LieTrotter(Heun())], [Heun(), LieTrotter(Heun())], "the inner steps of the other"), ids=str
)
def test_weights_over_depth_are_read_in_the_graph(solver) -> None:
    woven = Woven()
    field = Flow(Bound(Woven.f, read=woven.read)) + Projection(lambda z, x, args: x / (1 + 0.1 * x.square().sum()))

    def run(x0: Tensor, args: Any) -> tuple[Tensor, ...]:
        return (solve(field, x0, SPAN, args=(args, None), solver=solver, control=Fixed(4)).final,)

    assert apart(run, START, woven.args) < CLOSE
    with torch.no_grad():  # weights are then read block by block
        assert gap(compiled(run)(START, woven.args)[0], run(START, woven.args)[0]) < CLOSE


def test_what_is_made_inside_a_graph_is_what_was_written() -> None:
    """The trace knows an object that is made inside it by its parts alone, and must not take defaults for them."""
    woven = Woven()

    def run(x0: Tensor, args: Any) -> tuple[Tensor, ...]:
        field = Flow(Bound(Woven.f, read=woven.read)) + Flow(push)
        solver = ReversibleSolver(LieTrotter(Heun()), coupling=0.9)
        control = Fixed(3, solver=solver, nested=2)
        save = SaveAt(points=(0.4, 1.7))
        path = solve(field, x0, SPAN, args=(args, MATRICES[1]), solver=control.solver, control=control, save=save)
        return path.x

    assert apart(run, START, woven.args) < CLOSE


@TORCHS_OWN
def test_a_state_of_several_tensors_and_a_clipped_adjoint_are_in_the_graph() -> None:
    def swing(z: float, x: Any, a: Tensor) -> Any:
        return x[1] * a, -x[0].sin() * a

    def run(x0: Any, a: Tensor) -> tuple[Tensor, ...]:
        path = solve(swing, x0, SPAN, args=a, solver=RK4(), control=Fixed(3), adjoint=Direct(clip=0.5), save=SaveAt(1))
        return tuple(t for pair in path.x for t in pair)

    assert apart(run, (START, random(3, seed=3)), random(3, seed=4)) < CLOSE


def test_a_compiled_path_says_what_an_eager_one_says() -> None:
    def run(x0: Tensor) -> Any:
        return solve(turn, x0, SPAN, args=MATRICES[0], solver=Dopri5(), control=Fixed(3), save=SaveAt(points=(0.3,)))

    eager, graph = run(START), compiled(run)(START)
    assert (dict(graph.stats), graph.z, graph.status) == (dict(eager.stats), eager.z, eager.status)
    assert eager.stats["evaluations"] > 18


def test_only_programs_that_compile_import_the_compiler() -> None:
    code = "import sys, continua.flow, continua.models, continua.training; sys.exit('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "torch._dynamo was imported, which takes seconds"


# --- when it is compiled again ---------------------------------------------------------------------------------------


def test_each_new_number_of_steps_compiles_once_and_a_new_batch_not_at_all() -> None:
    made = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    def run(x0: Tensor, a: Tensor, control: Fixed, until: float) -> Tensor:
        return solve(turn, x0, (0.2, until), args=a, solver=RK4(), control=control).final

    again = compiled(run, backend=backend)
    for count, (steps, until) in enumerate([(2, 1.7), (3, 1.7), (3, 1.9)], start=1):
        for batch in (4, 5, 7):
            x0 = random(batch, 3, seed=batch)
            torch._dynamo.mark_dynamic(x0, 0)
            given = (x0, MATRICES[0], Fixed(steps), until)
            assert gap(again(*given), run(*given)) < CLOSE
        assert len(made) == count


# --- nothing is read out of tensors ----------------------------------------------------------------------------------


class Reads(TorchDispatchMode):
    """Counts the numbers that leave the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.spec("B10")
@pytest.mark.parametrize("solver", ALL_SOLVERS, ids=str)
def test_fixed_steps_without_the_check_wait_for_no_number(solver) -> None:
    counts = []
    for check in (False, True):
        with Reads() as reads:
            x0, args = learning(start(solver)), learning(MATRICES)
            path = solve(PAIR, x0, SPAN, args=args, solver=solver, control=Fixed(2), check=check, save=SaveAt(1))
            towards(path.x).backward()
        counts.append(reads.count)
    assert counts[0] == 0
    assert counts[1] > 0, "the check is what reads"


@pytest.mark.spec("B10")
def test_a_solve_runs_where_tensors_have_no_numbers() -> None:
    with FakeTensorMode():
        x0, args = torch.ones(4, 3), (torch.ones(3, 3), torch.ones(3, 3))
        path = solve(PAIR, x0, SPAN, args=args, solver=Strang(), control=Fixed(2), check=False)
    assert path.final.shape == (4, 3)


def test_the_check_for_nan_is_no_part_of_a_graph() -> None:
    def run(x0: Tensor, check: bool) -> Tensor:
        return solve(lambda z, x, a: x / 0.0, x0, SPAN, solver=RK4(), control=Fixed(2), check=check).final

    with pytest.raises(SolveError, match="no longer a number"):
        run(START, True)
    for check in (True, False):
        assert not compiled(run)(START, check).isfinite().any()


# --- export ----------------------------------------------------------------------------------------------------------


class Deep(nn.Module):
    """A field with weights, solved at every call."""

    def __init__(self, **choices: Any) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(m.clone()) for m in MATRICES)
        self.choices = {"solver": Strang(RK4()), "control": Fixed(3), **choices}

    def forward(self, x0: Tensor) -> Tensor:
        return solve(PAIR, x0, SPAN, args=(self.a, self.b), **self.choices).final


@pytest.mark.parametrize(("solver", "strict"), [*((one, False) for one in FEW), (Strang(), True)], ids=str)
def test_a_module_that_solves_can_be_exported_with_any_batch(solver, strict) -> None:
    model = Deep(solver=solver)
    dynamic = {"x0": {0: torch.export.Dim("batch", min=2)}}
    exported = torch.export.export(model, (random(4, 3, seed=0),), dynamic_shapes=dynamic, strict=strict).module()
    for batch in (4, 2, 9):
        x0 = random(batch, 3, seed=batch)
        assert gap(exported(x0), model(x0)) < CLOSE


@pytest.mark.parametrize(
    ("choices", "sentence", "remedy"),
    [
        ({"control": Adaptive(), "solver": Dopri5()}, "searched for by value", "use Fixed(n)"),
        ({"adjoint": Checkpoint(2)}, "backward pass written by hand is in no graph, got Checkpoint", "Use Direct()"),
    ],
    ids=["steps", "adjoint"],
)
def test_export_refuses_what_no_graph_contains(choices, sentence, remedy) -> None:
    with pytest.raises(SolveError) as caught:
        torch.export.export(Deep(**choices), (START,), strict=False)
    assert sentence in str(caught.value)
    assert remedy in str(caught.value)
    with pytest.raises(Exception, match=remedy.replace("Use", "use").replace("(", r"\(").replace(")", r"\)")):
        torch.export.export(Deep(**choices), (START,), strict=True)


# --- what no graph contains ------------------------------------------------------------------------------------------


def run_with(control: Any = Fixed(3), adjoint: Any = Direct()) -> Any:  # noqa: B008  (frozen)
    solver = ReversibleSolver() if isinstance(adjoint, Reversible) else Bosh3()

    def run(x0: Tensor, args: Any) -> tuple[Tensor, ...]:
        return (solve(PAIR, 2 * x0, SPAN, args=args, solver=solver, control=control, adjoint=adjoint).final * 3,)

    return run


def test_a_search_for_steps_is_refused_in_one_graph_with_its_remedy() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        compiled(run_with(Adaptive()))(START, MATRICES)
    assert SEARCH in str(caught.value)
    assert "compile the field, or use Fixed(n)" in SEARCH


@pytest.mark.parametrize("adjoint", HAND_WRITTEN, ids=str)
def test_a_backward_pass_written_by_hand_is_refused_in_one_graph_with_its_remedy(adjoint) -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        compiled(run_with(adjoint=adjoint))(learning(START), MATRICES)
    assert BACKWARD in str(caught.value)
    assert "use Direct()" in BACKWARD


def test_without_gradients_there_is_nothing_to_go_back_through() -> None:
    run = run_with(adjoint=Checkpoint(2))
    assert gap(compiled(run)(START, MATRICES)[0], run(START, MATRICES)[0]) < CLOSE


@TORCHS_OWN
@pytest.mark.parametrize(
    ("control", "adjoint"),
    [
        (Adaptive(), Checkpoint(2)),
        (Fixed(3), Reversible()),
        pytest.param(Adaptive(), Direct(), marks=pytest.mark.slow(reason="the search of the first")),
        pytest.param(Fixed(3), Recompute(), marks=pytest.mark.slow(reason="hand-written as the second")),
    ],
    ids=str,
)
def test_beside_graphs_everything_runs(control, adjoint) -> None:
    assert apart(run_with(control, adjoint), START, MATRICES, fullgraph=False) < 1e-10


@TORCHS_OWN
def test_a_search_beside_graphs_compiles_nothing_again() -> None:
    made = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    run = run_with(Adaptive())
    again = compiled(run, fullgraph=False, backend=backend)
    counts = []
    for seed in range(4):  # each takes other steps
        x0 = random(3, seed=seed)
        assert gap(again(x0, MATRICES)[0], run(x0, MATRICES)[0]) < CLOSE
        counts.append(len(made))
    assert counts == counts[:1] * 4


def test_the_search_for_steps_takes_a_compiled_field() -> None:
    field = compiled(turn)
    given = {"args": MATRICES[0], "solver": Dopri5(), "control": Adaptive(rtol=1e-6)}
    graph, eager = (solve(f, START, SPAN, **given) for f in (field, turn))
    assert gap(graph.final, eager.final) < CLOSE
    assert graph.stats == eager.stats
