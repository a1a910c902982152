"""What a low-rank addition saves of a training step: time, and bytes of the optimiser, beside training all weights.

    python benchmarks/finetune.py                # about five minutes on one core
    python benchmarks/finetune.py --only Llama   # shapes whose names begin so; their rows are replaced
    python benchmarks/finetune.py --split        # where the time of a step goes; nothing is written
    python benchmarks/finetune.py --split --mkl  # the same with every product by MKL, as torch does by itself

Three shapes of about five million parameters with random weights, eight texts of 256 tokens: a BERT that classifies,
a GPT-2 and a Llama that predict tokens. A step is what ``ct.fit`` does: forward, loss, backward, clipping, AdamW;
float32, one thread, CPU time in interleaved rounds. ``attention`` adds rank 8 to the maps of attention, as
``with_lora`` does by itself, ``all maps`` also to those of the feed-forward functional. ``gains alone`` adds nothing
and lets the scales of the norms learn: what is left of a step without the gradient of any map, below which no addition
can come.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import Row, cpu_seconds, environment, interleaved, pinned, ratio, row, write
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy

import continua as ct
from continua.models import save_lora
from continua.operators import Attention, Pointwise, products
from continua.optim import ByRole, Optimisers, clip

RANK = 8
TIME = "≤ 0.75"
BYTES = "≤ 0.5"
LEAST = "gains alone"
SPLIT_ROUNDS = 5
WHERE = {"attention": (Attention,), "all maps": (Attention, Pointwise)}


@dataclass(frozen=True)
class Shape:
    """A model, what learns beside its addition, and the loss of its answers."""

    name: str
    make: Callable[[], Any]
    loss: Callable[[Tensor, Tensor], Tensor]
    also: tuple[str, ...] = ()


def _next_token(answer: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(answer[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _class(answer: Tensor, ids: Tensor) -> Tensor:
    return cross_entropy(answer, ids[:, 0] % 2)


SIZES = {"vocab": 1024, "d": 256, "heads": 8, "depth": 6}
SHAPES = [
    Shape("BERT, classes", lambda: ct.zoo.bert(**SIZES, context=512, labels=2), _class, ("readout",)),
    Shape("GPT-2, text", lambda: ct.zoo.gpt2(**SIZES, context=512), _next_token),
    Shape("Llama, text", lambda: ct.zoo.llama(**SIZES, m=688, groups=2), _next_token),
]


def made(shape: Shape, where: tuple[Any, ...] | None) -> Any:
    """The model whole, or with an addition beside it; the weights are the same."""
    torch.manual_seed(0)
    base = shape.make().train()
    return base if where is None else ct.with_lora(base, rank=RANK, where=where, also=shape.also)


def gains_alone(shape: Shape) -> Any:
    """The model of which the scales of norms learn and nothing else."""
    model = made(shape, None)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("block") and name.endswith("scale.coefficients"))
    return model


def step_of(shape: Shape, model: Any, optimisers: Optimisers, ids: Tensor) -> Callable[[], None]:
    """One step of training."""

    def step() -> None:
        optimisers.zero_grad()
        shape.loss(model(ids), ids).backward()
        clip(model.parameters(), 1.0)
        optimisers.step(1.0)

    return step


def bytes_of(optimisers: Optimisers) -> int:
    """What an optimiser keeps."""
    return sum(tensor.numel() * tensor.element_size() for tensor in optimisers.state()[0].values())


def merge_error(shape: Shape, where: tuple[Any, ...]) -> float:
    """The largest difference between a trained addition and the merged model, in float64."""
    model = made(shape, where).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0.0, 0.05, generator=torch.Generator().manual_seed(1))
        ids = _ids(1, 32)
        return float((model(ids) - ct.merged(model)(ids)).abs().max())


def _ids(batch: int, tokens: int) -> Tensor:
    return torch.randint(1, 1024, (batch, tokens), generator=torch.Generator().manual_seed(0))


def shorter(shape: Shape, rounds: int) -> list[Row]:
    """A step on as many tokens in shorter texts, the usual ones of ``continua finetune``."""
    ids = _ids(16, 128)
    models = {"full": made(shape, None), "attention": made(shape, WHERE["attention"])}
    steps = {name: step_of(shape, model, ByRole().make(model), ids) for name, model in models.items()}
    seen = interleaved({name: (lambda work=work: cpu_seconds(work)) for name, work in steps.items()}, rounds, 2)
    got = ratio(seen["attention"], seen["full"])
    name = f"{shape.name}: step, attention, 16 texts of 128 tokens"
    return [row(name, got, target=TIME, held=got.median <= 0.75)]


def measure(shape: Shape, rounds: int) -> list[Row]:
    """The rows of one shape."""
    ids = _ids(8, 256)
    models = {"full": made(shape, None), **{name: made(shape, where) for name, where in WHERE.items()}}
    models[LEAST] = gains_alone(shape)
    optimisers = {name: ByRole().make(model) for name, model in models.items()}
    steps = {name: step_of(shape, model, optimisers[name], ids) for name, model in models.items()}
    cases = {name: (lambda work=work: cpu_seconds(work)) for name, work in steps.items()}
    seen = interleaved(cases, rounds, 2)
    learning = sum(p.numel() for p in models["full"].parameters())
    rows = []
    for name in WHERE:
        few = sum(p.numel() for p in models[name].parameters() if p.requires_grad)
        got = ratio(seen[name], seen["full"])
        note = f"{few:,} of {learning:,} numbers learn"
        rows.append(row(f"{shape.name}: step, {name}", got, target=TIME, held=got.median <= 0.75, note=note))
        share = bytes_of(optimisers[name]) / bytes_of(optimisers["full"])
        rows.append(Row(f"{shape.name}: bytes of the optimiser, {name}", share, target=BYTES, held=share <= 0.5))
    rows.append(row(f"{shape.name}: step, {LEAST}", ratio(seen[LEAST], seen["full"]), note="the least of any addition"))
    error = max(merge_error(shape, where) for where in WHERE.values())
    rows.append(Row(f"{shape.name}: merged, float64", error, target="≤ 1e-12", held=error <= 1e-12))
    with tempfile.TemporaryDirectory() as folder:
        size = save_lora(models["attention"], Path(folder) / "few.safetensors").stat().st_size
    whole = sum(p.numel() * p.element_size() for p in models["full"].parameters())
    rows.append(Row(f"{shape.name}: file, attention", size / whole, note="of the bytes of all weights"))
    return rows


def parts_of(shape: Shape, model: Any, ids: Tensor) -> dict[str, float]:
    """CPU milliseconds of the parts of one step."""
    optimisers = ByRole().make(model)
    seen: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        found = work()
        seen.setdefault(name, []).append(1e3 * (time.process_time() - start))
        return found

    for _ in range(2 + SPLIT_ROUNDS):
        optimisers.zero_grad()
        answer = timed("forward", lambda: model(ids))
        loss = timed("loss", lambda answer=answer: shape.loss(answer, ids))
        timed("backward", loss.backward)
        timed("clipping", lambda: clip(model.parameters(), 1.0))
        timed("optimiser", lambda: optimisers.step(1.0))
    return {name: statistics.median(values[2:]) for name, values in seen.items()}


def split(shape: Shape) -> Table:
    """The parts of a step side by side."""
    models = {"full": made(shape, None), **{name: made(shape, where) for name, where in WHERE.items()}}
    models[LEAST] = gains_alone(shape)
    found = {name: parts_of(shape, model, _ids(8, 256)) for name, model in models.items()}
    table = Table(f"{shape.name}, CPU ms", *found)
    for part in next(iter(found.values())):
        table.add_row(part, *(f"{each[part]:.1f}" for each in found.values()))
    table.add_row("step", *(f"{sum(each.values()):.1f}" for each in found.values()))
    return table


def kept(rows: list[Row], rounds: int) -> Path:
    """Write the rows so far; those of other parts stay."""
    columns = ("a low-rank addition / all weights", "median [95 % interval]", "promised", "")
    return write("finetune", rows, part=True, environment=environment(), rounds=rounds, rank=RANK, columns=columns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=17, help="interleaved rounds for each shape")
    parser.add_argument("--only", nargs="*", default=[""], help="the shapes whose names begin so")
    parser.add_argument("--split", action="store_true", help="print where the time of a step goes, and write nothing")
    parser.add_argument("--mkl", action="store_true", help="with --split: products never go through oneDNN")
    parser.add_argument("--shorter", action="store_true", help="the rows of 16 texts of 128 tokens alone")
    parser.add_argument("--quick", action="store_true", help="two rounds; the result stays as it is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pinned()
    console = Console(width=120)
    chosen = [shape for shape in SHAPES if shape.name.startswith(tuple(options.only))]
    if options.split:
        products.TOKENS = 2**62 if options.mkl else products.TOKENS
        for shape in chosen:
            console.print(split(shape))
        return 0
    rounds = 2 if options.quick else options.rounds
    rows: list[Row] = []
    for work in (shorter,) if options.shorter else (measure, shorter):
        for shape in chosen:
            rows += work(shape, rounds)
            if not options.quick:
                path = kept(rows, options.rounds)  # at once: whoever stops this has what was measured
    table = Table("a low-rank addition / all weights", "median [95 % interval]", "target", "", "")
    for each in rows:
        table.add_row(each.name, each.shown, each.target, each.verdict, each.note)
    console.print(table)
    if not options.quick:
        console.print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return 0 if all(each.held is not False for each in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
