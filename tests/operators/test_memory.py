"""Bytes: exact attention in O(n), blocks computed again on the way back, and depth with checkpoints in O(√L).

The peak is read from the allocator's own record (torch.profiler), so it repeats exactly and knows of buffers that
kernels hold inside.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import continua as ct
from continua.axes import Depths, Grid, counting
from continua.errors import SolveError
from continua.fields import counted
from continua.flow import Checkpoint, Direct, Fixed, LieTrotter, SaveAt
from continua.lab.cost.memory import uncollected
from continua.models import States
from continua.models.build import discrete_axes, pre_norm
from continua.operators import Additive, Attention, Context, LayerNorm, Neighbours, Parts, Pointwise
from continua.operators.attention import fused
from tests.cases import MODELS
from tests.exact import gap, gradients, numbers, worst
from tests.measure import slope
from tests.refusals import refused

EXACT = 1e-12  # float64 round-off
LINEAR = 1.1  # the promised slope of log bytes over log n
D, HEADS = 4, 1


def peak(run: Callable[[], object]) -> int:
    """The most bytes that were alive at once during ``run``, beyond those alive before."""
    with uncollected(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        kept = run()
    del kept
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most


def test_the_counter_counts() -> None:
    def run() -> None:
        first = torch.zeros(1000)  # 4,000 bytes
        second = first + 1  # 8,000
        del first
        (second * 2).sum()  # 8,004

    assert 8000 <= peak(run) <= 8400
    assert peak(run) == peak(run)


# --- over n ----------------------------------------------------------------------------------------------------------


def plain(n: int) -> Grid:
    return counting(n, torch.empty(()))


def padded(n: int) -> Grid:
    return plain(n).only(torch.arange(n) < n - 3)


def lebesgue(n: int) -> Grid:
    stamps = torch.rand(n, generator=torch.Generator().manual_seed(0)).sort().values
    return ct.Samples().on(ct.Times(0.0, 1.0), stamps)


def ring(n: int) -> Neighbours:
    nodes = torch.arange(n)
    return Neighbours.of(torch.stack([nodes, (nodes + 1) % n]))


FUSED = {
    "plain": (plain, {}),
    "causal": (plain, {"mask": ct.Causal()}),
    "causal, ALiBi": (plain, {"mask": ct.Causal(), "position": lambda axes: ct.ALiBi(axes)}),
    "padded": (padded, {}),
    "Lebesgue": (lebesgue, {}),
}
BLOCKED = {
    "causal on Lebesgue measure": (lebesgue, {"mask": ct.Causal()}),
    "window": (plain, {"mask": ct.Window(100.0)}),
    "additive over a graph": (plain, {"mask": ring, "kernel": Additive()}),
}


def attention(grid: Grid, mask=None, position=None, **choices) -> Callable[[Tensor], Tensor]:
    """Attention of tokens on ``grid`` as a function of the state; the bias of a block is made when it runs."""
    axes, native = discrete_axes(D, HEADS, D, 1)
    torch.manual_seed(0)
    mask = mask(len(grid)) if mask is ring else mask
    operator = Attention(counted(axes), mask=mask, position=position and position(axes), **choices)
    f, args = operator.bind(replace(native.grids(axes), t=grid, z=Depths((0.0,))), Context())
    return lambda x: f(0.0, x, args)


def bytes_over(sizes: list[int], make: Callable[[int], Grid], choices: dict, train: bool) -> list[int]:
    found = []
    for n in sizes:
        attend, x = attention(make(n), **choices), numbers(1, n, D, dtype=torch.float32).requires_grad_(train)

        def run(attend=attend, x=x) -> Tensor:
            with torch.set_grad_enabled(train):
                y = attend(x)
            return torch.autograd.grad(y.sum(), x)[0] if train else y

        found.append(peak(run))
    return found


def check(sizes: list[int], case: tuple, train: bool) -> None:
    found = bytes_over(sizes, *case, train=train)
    growth = -slope(sizes, found)
    assert growth <= LINEAR, f"bytes {found} over n {sizes}: slope {growth:.2f}"
    assert found[-1] < 0.5 * 4 * sizes[-1] ** 2, "less than half of one score matrix"


SMALL, LARGE = [1024, 2048, 4096], [2048, 4096, 8192, 16384]
MODES = pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])


@pytest.mark.spec("A7")
@MODES
@pytest.mark.parametrize("name", FUSED)
def test_fused_attention_takes_bytes_in_proportion_to_n(name, train) -> None:
    check(SMALL if train else LARGE, FUSED[name], train)


@pytest.mark.spec("A7")
@MODES
@pytest.mark.parametrize("name", BLOCKED)
def test_blocked_attention_takes_bytes_in_proportion_to_n(name, train, monkeypatch) -> None:
    monkeypatch.setattr(fused, "BLOCK", 128)  # n / 8 and less, as 1,024 is of 16,384
    check(SMALL, BLOCKED[name], train)


@pytest.mark.slow(reason="quadratic work at 16,384 tokens; the quick ones above stop earlier")
@pytest.mark.spec("A7")
@MODES
@pytest.mark.parametrize("name", [*FUSED, *BLOCKED])
def test_up_to_sixteen_thousand_tokens(name, train) -> None:
    check(LARGE, {**FUSED, **BLOCKED}[name], train)


@pytest.mark.spec("A7")
@pytest.mark.parametrize("name", BLOCKED)
def test_blocks_that_are_computed_again_give_the_same_gradients(name, monkeypatch) -> None:
    make, choices = BLOCKED[name]
    grid, x = make(50).to(torch.empty((), dtype=torch.float64)), numbers(2, 50, D).requires_grad_()
    axes, native = discrete_axes(D, HEADS, D, 1)
    torch.manual_seed(0)
    mask = choices["mask"](50) if choices["mask"] is ring else choices["mask"]
    operator = Attention(counted(axes), **{**choices, "mask": mask}).double()
    leaves, found = {"x": x, **dict(operator.named_parameters())}, []
    for block in (1024, 7):
        monkeypatch.setattr(fused, "BLOCK", block)
        f, args = operator.bind(replace(native.grids(axes), t=grid, z=Depths((0.0,))))
        answer = f(0.0, x, args)
        found.append((answer, gradients((answer * numbers(2, 50, D, seed=9)).sum(), leaves)))
    (whole, wanted), (blocks, got) = found
    assert gap(blocks, whole) <= EXACT
    assert worst(got, wanted) <= EXACT


# --- over depth ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("A10", "D4")
@pytest.mark.parametrize("name", ["gpt2", "bert", "continuous series", "generated", "stepped by Strang(RK4)", "memory"])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_checkpoints_give_the_gradients_of_direct(name, every) -> None:
    model, batch = MODELS[name].model(), MODELS[name].batch()
    leaves = dict(model.named_parameters())
    finer = ct.at(z=5) if name != "memory" else None
    wanted = model(batch, at=finer)
    towards = numbers(*wanted.shape, seed=9)
    model.adjoint = Checkpoint(every)
    got = model(batch, at=finer)
    assert gap(got, wanted) <= EXACT  # weights over depth are made block by block: another order of rounding
    pair = (gradients((answer * towards).sum(), leaves) for answer in (got, wanted))
    assert worst(*pair) <= EXACT


@pytest.mark.spec("A10")
@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_the_kept_path_is_that_of_direct(keep) -> None:
    def path(adjoint) -> ct.flow.Trajectory:
        weight = torch.tensor(-0.3).double()
        return ct.solve(
            lambda z, x, a: a * x.sin() * (1 + z), numbers(3), (0.0, 1.0), args=weight, solver=ct.RK4(),
            control=Fixed(7), adjoint=adjoint, save=SaveAt(keep),
        )  # fmt: skip

    got, wanted = path(Checkpoint(3)), path(Direct())
    assert got.z == wanted.z
    assert got.stats == wanted.stats
    assert all(torch.equal(x, y) for x, y in zip(got.x, wanted.x, strict=True))


def deep(steps: int) -> ct.Transformer:
    """One autonomous field and ``steps`` layers of it, so that the gradients of the weights do not grow with depth."""
    axes, native = discrete_axes(8, 2, 16, steps)
    w = counted(axes)
    torch.manual_seed(0)
    block: Parts = pre_norm((Attention(w), Pointwise(w)), lambda: LayerNorm(w))
    return ct.Transformer(axes, native.replace(z=Fixed(steps, LieTrotter())), States(), block)


@pytest.mark.spec("A10", "A14", "T10")
def test_checkpoints_at_the_square_root_take_bytes_in_proportion_to_it() -> None:
    sizes, found = [16, 64, 256], {"direct": [], "checkpoint": []}
    for steps in sizes:
        model, x = deep(steps), numbers(4, 32, 8, dtype=torch.float32)
        for name, adjoint in (("direct", Direct()), ("checkpoint", Checkpoint(round(steps**0.5)))):
            model.adjoint = adjoint
            found[name].append(peak(lambda model=model, x=x: model(x).sum().backward()))
    growth = {name: -slope(sizes, taken) for name, taken in found.items()}
    assert 0.9 < growth["direct"] < 1.05, (found, growth)
    assert 0.35 < growth["checkpoint"] < 0.6, (found, growth)
    assert found["checkpoint"][-1] < found["direct"][-1] / 8


@pytest.mark.spec("A10")
def test_the_adjoint_is_no_part_of_a_saved_model(tmp_path) -> None:
    model = MODELS["encoder-decoder"].model()
    model.adjoint = Checkpoint(2)
    assert model.encoder.adjoint == model.decoder.adjoint == model.adjoint == Checkpoint(2)
    assert ct.load(model.save(tmp_path)).adjoint == Direct()


@pytest.mark.spec("A10")
def test_bad_checkpoints_are_refused() -> None:
    with refused(SolveError, "got 0", "n ≥ 1"):
        Checkpoint(0)
