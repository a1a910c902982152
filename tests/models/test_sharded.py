"""Tokens in parts on 2 and 4 processes: answers and gradients of whole models are those of one process."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from continua import errors
from continua.axes import Circle, GaussLegendre, Grid, Sharded, Times, at, counting
from continua.axes.grid import counted as counted_axis
from continua.axes.sharded import Layout
from continua.flow import Adaptive, Recompute
from continua.models import Batch, Transformer, zoo
from continua.models.readout import Readout
from continua.models.zoo.series import _Weights
from continua.operators import (
    Attention,
    Causal,
    DynamicStretch,
    FewSources,
    Nystrom,
    PositiveFeatures,
    Rotary,
    Window,
)
from continua.operators.attention import ring
from continua.operators.attention.parts import surroundings
from continua.training.distributed import joined
from tests.forked import together
from tests.house.test_docs import plain_blocks
from tests.models import sharded_kernels
from tests.models.sharded_cases import Case, cases
from tests.models.sharded_kernels import kernels, with_kernel

CLOSE = {"float32": 1e-6, "float64": 1e-12}
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "cluster.md"
NAMES = (
    "gpt2",
    "gaps",
    "llama",
    "roberta",
    "series",
    "full series",
    "window",
    "function",
    "weighted",
    "pooled",
    "first",
)
CORE = ("gpt2", "gaps", "series", "function")  # on four processes, and without torch's template
WALKED = ("gpt2", "gaps", "llama", "weighted")  # round the ring, where keys are many


def named(processes: int, precision: str) -> tuple[str, ...]:
    """The cases that so many processes are tried with; ``benchmarks/scale.py`` tries all."""
    if processes == 2:
        return (*NAMES, *sharded_kernels.NAMES)
    return (*CORE, *(sharded_kernels.CORE if precision == "float64" else ()))


def gradients(model: Any, more: Any, shared: Any = None) -> dict[str, torch.Tensor]:
    """Those of all parameters and of the weights, added up over the processes."""
    leaves = dict(model.named_parameters()) | ({} if more is None else {"weights": more})
    found = {}
    for name, leaf in leaves.items():
        found[name] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone()
        if shared is not None:
            dist.all_reduce(found[name], group=shared)
    if more is not None:
        more.grad = None
    return found


def compared(case: Case, sharded: Sharded, dtype: torch.dtype) -> float:
    """The larger of the relative gaps of answers and of all gradients, of one process and of parts."""
    _, model, batch, more = case
    whole = copy.deepcopy(model).to(dtype)
    parts = copy.deepcopy(whole)
    wanted = whole(batch)
    each = wanted.dim() == 3  # or one answer for all tokens, which all processes have
    loss = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(3), dtype=dtype)
    (wanted * loss).sum().backward()
    exact = gradients(whole, more)
    answer = parts.at(t=sharded)(batch)
    (answer * (sharded.part(loss) if each else loss / sharded.mesh.size())).sum().backward()
    found = gradients(parts, more, sharded.mesh.get_group())
    back = sharded.gather(answer, wanted.shape[1]) if each else answer
    return max(relative(flat(found), flat(exact)), relative(back, wanted))


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖."""
    return float((found - wanted).detach().norm() / wanted.detach().norm())


def flat(values: dict[str, torch.Tensor]) -> torch.Tensor:
    """All of them in one vector."""
    return torch.cat([value.flatten() for value in values.values()])


def refusal(call: Callable[[], Any]) -> str:
    """What is said; every process must say the same."""
    try:
        call()
        said = "nothing"
    except errors.ContinuaError as refused:
        said = f"{type(refused).__name__}: {refused}"
    return said


def refusals(sharded: Sharded, rank: int) -> dict[str, str]:
    """Bad input, some of it on one process alone."""
    torch.manual_seed(0)
    model = zoo.gpt2(vocab=11, d=16, heads=2, depth=2, context=13)
    view = model.at(t=sharded)
    ids = torch.zeros(2, 13, dtype=torch.long)
    beyond = ids.clone()
    beyond[0, 12] = 99  # a token that one process has
    series = zoo.series_classifier(features=3, classes=2, d=8, heads=2, depth=1)
    timed = Batch(torch.zeros(1, 6, 3), times=torch.arange(6.0))
    spoiled = copy.deepcopy(model)
    spoiled.embed.position.table.coefficients.data[12] = torch.nan
    return {
        "lengths": refusal(lambda: view(ids[:, : 13 - rank])),
        "numbers": refusal(lambda: view(ids + rank)),
        "word": refusal(lambda: view(beyond)),
        "room": refusal(lambda: view(torch.zeros(2, 14, dtype=torch.long))),
        "convolution": refusal(lambda: series.at(t=sharded)(timed)),
        "adaptive": refusal(lambda: model.at(t=sharded, z=Adaptive())(ids)),
        "pairs": refusal(lambda: view(Batch(ids, pairs=torch.ones(13, 13, dtype=torch.bool)))),
        "finite": refusal(lambda: spoiled.at(t=sharded)(ids)),
        "mesh": refusal(lambda: Sharded("two")),
        "generate": refusal(lambda: view.generate(ids[:1, :4], tokens=2)),
        **refused_kernels(sharded),
    }


def refused_kernels(sharded: Sharded) -> dict[str, str]:
    """What needs all tokens on one process."""
    values = torch.randn(1, 12, 2)
    timed = Batch(values, times=torch.arange(12.0))
    at_once = Batch(values, times=torch.tensor([0.0] * 10 + [1.0, 2.0]))
    field = zoo.function_map(Circle(), 12, at=at(d=8, h=2, m=8, z=1), modes=2)
    elsewhere = Batch(torch.randn(1, 12, 1), asked=torch.rand(3, 1))
    longer = zoo.llama(vocab=11, d=8, heads=2, depth=1, m=8)
    for part in longer.modules():
        if isinstance(part, Attention):
            part.position = Rotary(stretch=DynamicStretch(2.0, 8.0))

    def attend(kernel: Any, mask: Any = None, batch: Batch = timed) -> str:
        model = with_kernel(Transformer.continuous(channels=2, t=Times(), mask=mask, at=at(d=8, h=2, z=1)), kernel)
        return refusal(lambda: model.at(t=sharded)(batch))

    return {
        "controls": attend(FewSources(GaussLegendre(4), control=2)),
        "causal sources": attend(FewSources(GaussLegendre(4)), Causal()),
        "causal landmarks": attend(Nystrom(), Causal()),
        "one stamp": attend(PositiveFeatures(8), Causal(), at_once),
        "length": refusal(lambda: longer.at(t=sharded)(torch.zeros(1, 12, dtype=torch.long))),
        "elsewhere": refusal(lambda: field.at(t=sharded)(elsewhere)),
    }


def reductions(sharded: Sharded) -> list[int]:
    """How many sums over the processes a pooled answer takes, and how many a loss over tokens."""
    counted: list[int] = []
    values = torch.randn(1, 9, 3, dtype=torch.float64)
    layout = sharded.layout(9)
    grid = Grid(torch.arange(9.0)[:, None], torch.rand(9, dtype=torch.float64)).in_parts(layout)
    readout = Readout(_Weights.of(3, 1, 1, None).fixed, 3, pool=True, bias=True).double()
    with pytest.MonkeyPatch.context() as patch:
        plain = dist.all_reduce

        def noted(*given: Any, **more: Any) -> Any:
            counted.append(1)
            return plain(*given, **more)

        patch.setattr(dist, "all_reduce", noted)
        grids = SimpleNamespace(tokens=grid, d=counted_axis(3, values))
        readout(layout.part(values, 1), grids, None)
        pooled = len(counted)
        grid.norm(layout.part(values, 1))
        grid.mass.sum()
    return [pooled, len(counted) - pooled]


def beside_data(sharded: Sharded, mesh: Any) -> float:
    """Samples along one dimension of the mesh, tokens along the other, weights sharded over both."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    whole = zoo.gpt2(vocab=11, d=16, heads=2, depth=2, context=13).double()
    parts = copy.deepcopy(whole)
    ids = torch.randint(0, 11, (4, 13))
    loss = torch.randn(4, 13, 11, dtype=torch.float64)
    (whole(ids) * loss).sum().backward()
    fully_shard(parts, mesh=mesh)
    mine = slice(mesh.get_local_rank("data"), None, 2)
    answer = parts(ids[mine], at(t=sharded))
    (answer * sharded.part(loss[mine]) * mesh.size()).sum().backward()  # FSDP takes the mean
    exact = dict(whole.named_parameters())
    found: dict[str, Any] = {name: value.grad for name, value in parts.named_parameters()}
    return max(float((found[name].full_tensor() - value.grad).abs().max()) for name, value in exact.items())


def as_the_guide_has_it() -> float:
    """The block of the guide, and how far the sum of its losses is from that of one process."""
    (_, block), *_ = plain_blocks(GUIDE.read_text(encoding="utf-8"))
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(block, names)
    ids = names["ids"]
    whole = names["model"](ids[:, :-1])
    loss = torch.nn.functional.cross_entropy(whole.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    return float((names["tokens"].sum(names["loss"]) / loss - 1).abs())


def work(folder: Path) -> None:
    """All that the processes do, in one job."""
    with joined() as world, pytest.MonkeyPatch.context() as patch:
        from torch.distributed.device_mesh import init_device_mesh

        sharded = Sharded(init_device_mesh("cpu", (world.size,)))
        gaps: dict[str, Any] = {}
        for precision in CLOSE:
            dtype = getattr(torch, precision)
            names = named(world.size, precision)
            for case in (*cases(dtype), *kernels(dtype)):
                if case[0] in names:
                    gaps[f"{case[0]} {precision}"] = compared(case, sharded, dtype)
        patch.setattr(ring, "FEW", 0)
        for case in cases(torch.float64):
            if case[0] in WALKED:
                gaps[f"{case[0]} ring"] = compared(case, sharded, torch.float64)
        patch.setattr(ring, "template", lambda: None)
        for case in cases(torch.float64) if world.size == 2 else ():
            if case[0] in CORE:
                gaps[f"{case[0]} gathered"] = compared(case, sharded, torch.float64)
        patch.undo()
        lean = next(cases(torch.float64))
        lean[1].execution.adjoint = Recompute()
        gaps["recomputed"] = compared(lean, sharded, torch.float64)
        if world.size == 4:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tokens"))
            gaps["beside data"] = beside_data(Sharded(mesh["tokens"]), mesh)
            gaps["two dimensions"] = float("one dimension" not in refusal(lambda: Sharded(mesh)))
        else:
            gaps["guide"] = as_the_guide_has_it()
            gaps["reductions"] = reductions(sharded)
        said = refusals(sharded, world.rank)
        (folder / f"{world.rank}.json").write_text(json.dumps({"gaps": gaps, "said": said}))


@pytest.fixture(scope="module", params=[2, 4])
def done(request: Any, tmp_path_factory: Any) -> list[dict[str, Any]]:
    """What each process found."""
    folder = tmp_path_factory.mktemp("sharded")
    together(work, folder, folder=folder, count=request.param)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(request.param)]


@pytest.mark.spec("B8", "B15")
@pytest.mark.parametrize("precision", CLOSE)
def test_parts_answer_and_learn_as_the_whole(done: Any, precision: str) -> None:
    for own in done:
        for name in named(len(done), precision):
            assert own["gaps"][f"{name} {precision}"] < CLOSE[precision], name
        assert own["gaps"]["recomputed"] < CLOSE["float64"]


@pytest.mark.spec("B8", "B15")
def test_many_keys_walk_round_the_ring(done: Any) -> None:
    for own in done:
        for name in WALKED:
            assert own["gaps"][f"{name} ring"] < CLOSE["float64"], name


@pytest.mark.spec("B8", "B15")
def test_without_torchs_template_keys_are_gathered(done: Any) -> None:
    for own in done if len(done) == 2 else ():
        for name in CORE:
            assert own["gaps"][f"{name} gathered"] < CLOSE["float64"], name


@pytest.mark.spec("B8", "B15")
def test_the_guide_does_what_it_says(done: Any) -> None:
    if len(done) == 2:
        for own in done:
            assert own["gaps"]["guide"] < CLOSE["float32"]


@pytest.mark.spec("B8", "B15")
def test_means_and_norms_over_tokens_are_one_sum_over_the_processes(done: Any) -> None:
    if len(done) == 2:
        for own in done:
            assert own["gaps"]["reductions"] == [1, 1]


class Alone:
    """A mesh without processes: who has what is known from the layout."""

    ndim = 1

    def __init__(self, size: int, rank: int) -> None:
        self.count = size
        self.rank = rank

    def size(self) -> int:
        """How many there would be."""
        return self.count

    def get_local_rank(self) -> int:
        """Which one this is."""
        return self.rank


@pytest.mark.spec("B8", "B15")
def test_a_window_asks_neighbours_alone() -> None:
    for rank in range(4):
        layout = Layout(Alone(4, rank), 64)  # eight chunks of eight
        t = counting(64, torch.zeros((), dtype=torch.float64)).in_parts(layout)
        assert t.shard is not None
        near = surroundings(layout, t.shard.whole, Window(2.0))
        senders = {other for other, count in enumerate(near.received) if count and other != rank}
        assert senders == {other for other in (rank - 1, rank + 1) if 0 <= other < 4}
        assert near.travelling <= 8  # two on each side of each chunk
        wide = surroundings(layout, t.shard.whole, Window(20.0))  # wider than what a process has: others are asked too
        assert wide.travelling > near.travelling
        past = surroundings(layout, t.shard.whole, Causal() & Window(2.0))
        assert past.travelling < near.travelling
        everything = surroundings(layout, t.shard.whole, Window(64.0))
        assert len(everything.own) == 64


@pytest.mark.spec("B8", "B15")
def test_tokens_data_and_weights_are_sharded_in_one_mesh(done: Any) -> None:
    if len(done) == 4:
        for own in done:
            assert own["gaps"]["beside data"] < CLOSE["float64"]
            assert own["gaps"]["two dimensions"] == 0.0


SENTENCES = {
    "lengths": "GridError: processes that share tokens are given one batch, got [[2, 13]",
    "numbers": "other numbers on process 1",
    "word": "the table has the numbers 0 to 10",
    "room": "the position table",
    "convolution": "Convolution needs all tokens on one process",
    "adaptive": "steps that are searched for",
    "pairs": "tokens in parts have no given pairs",
    "finite": "SolveFailed: the state is not finite any more",
    "mesh": "a mesh of processes, got str",
    "generate": "generation counts its tokens",
    "controls": "FewSources needs all tokens on one process there, got control=2",
    "causal sources": "FewSources needs all tokens on one process there, got Causal()",
    "causal landmarks": "Nystrom takes no mask, got Causal()",
    "one stamp": "tokens of one stamp fit into one part, got ",
    "length": "Rotary, whose turns depend on the length, needs all tokens on one process",
    "elsewhere": "an answer elsewhere needs all tokens on one process",
}


@pytest.mark.spec("B8", "B15")
@pytest.mark.parametrize("wrong", SENTENCES)
def test_every_process_ends_with_the_same_sentence(done: Any, wrong: str) -> None:
    said = {own["said"][wrong] for own in done}
    assert len(said) == 1
    assert SENTENCES[wrong] in said.pop()
