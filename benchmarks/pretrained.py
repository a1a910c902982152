"""A pretrained model at other sizes: ours beside the peers, on the same sentences; then taught by its native size.

    python benchmarks/pretrained.py                 # MiniLM without training; writes results/pretrained.json
    python benchmarks/pretrained.py --part pruned   # peers that prune alone; also: sliced, dropped, ours, spent
    python benchmarks/pretrained.py --part distil   # three sizes of MiniLM taught in one run; --run FOLDER goes on
    python benchmarks/pretrained.py --part smollm   # perplexity of SmolLM2-135M at half of its feed-forward
    python benchmarks/pretrained.py --part rxnfp    # masked tokens of reactions, by rxnfp
    python benchmarks/pretrained.py --quick         # few sentences, to see that it runs; writes nothing

Everybody calibrates with the same sentences and is measured on the same others, of other files: the cosine of
embeddings to those of the full model (mean over tokens, length one), and how many docstrings are found by a summary.
Peers that run the model anew for every size (SliceGPT, dropped layers) take every eighth batch of the sentences.
The cost of a size is its share of the numbers in the maps of the layers; peers get as much as ours, or more.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from common import RESULTS, Row, cpu_seconds, environment, interleaved, ratio, row, write
from pretrained_distil import LESSON, Lessons, distilled, texts_to_learn
from pretrained_language import perplexities
from pretrained_peers import METHODS, Calibrated, dropped, loaded, pruned, shuffled, states_of
from pretrained_reactions import accuracies
from pretrained_sizes import BOTH, SIZES, D, Size, cost, same_cost, width_of
from pretrained_slices import sliced
from pretrained_texts import Reader, Sentences, States, Tokens, chosen, embedded, likeness
from rich.console import Console
from torch import Tensor

import continua as ct
from continua.convert import best_profile
from continua.data import sentences
from continua.fields import RefitRanks
from continua.tasks import Retrieval
from tools import real_models

CONSOLE = Console()
CALIBRATION = 2048
FEW = 8  # of so many batches one, for peers that run the model anew at every size
HELD_OUT = 384
BODIES = 374  # docstrings to be found, all that are held out
QUICK = (128, 32, 24)
ROUNDS = 12  # of the timing
PATIENCE = 90  # CPU seconds of calibration
KEPT = 0.97  # of native retrieval
SOUGHT = ("Wanda + refit", "SliceGPT + refit", "layers dropped + refit")  # peers that look for docstrings too


# --- ours: the one place that calls the library -----------------------------------------------------------------------


def batch_of(tokens: Tokens) -> ct.Batch:
    """Token numbers as the library reads them."""
    return ct.Batch(tokens.ids, observed=tokens.there)


def elastic(folder: Path, batches: Sequence[Tokens], ranks: RefitRanks | None = None) -> Any:
    """Ours: any pretrained model, calibrated."""
    return ct.elastic(ct.from_hf(folder), calibrate=[batch_of(one) for one in batches], ranks=ranks)


def our_states(model: Any, **sizes: int) -> States:
    """Ours at a size, its weights held."""
    view = model.at(**sizes).held()
    return lambda ids, there: view(ct.Batch(ids, observed=there))  # type: ignore[no-any-return]


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """The held-out texts and what the full model makes of them."""

    reader: Reader
    batches: list[Tokens]
    full: Tensor
    retrieval: Retrieval

    @classmethod
    def of(cls, reader: Reader, texts: Sentences, states: States, bodies: int) -> "Measure":
        """The full model once."""
        batches = reader.read(texts.held_out)
        docs = texts.docs.validation
        step = max(1, len(docs) // bodies)
        return cls(reader, batches, embedded(states, batches), Retrieval(docs[::step][:bodies]))

    def cosine(self, states: States) -> float:
        """To the full model's embeddings."""
        return likeness(embedded(states, self.batches), self.full)

    def found(self, states: States) -> float:
        """Docstrings found by their summary, accuracy@1."""
        score = self.retrieval.evaluate(lambda texts: embedded(states, self.reader.read(texts)))
        return score.values["accuracy"]


def shown(line: Row) -> Row:
    """Print a line."""
    CONSOLE.print(f"{line.name:<52} {line.shown:<24} {line.verdict:<5} {line.note}", highlight=False, soft_wrap=True)
    return line


@dataclass
class Bench:
    """What the parts share, each made when it is first asked for."""

    quick: bool
    saved: Path | None  # where the calibrated model is kept from part to part
    run: Path | None  # where lessons are kept, to go on with them
    sizes: Sequence[Size] = SIZES

    @cached_property
    def counts(self) -> tuple[int, int, int]:
        """Sentences to calibrate with, held-out ones, docstrings to be found."""
        return QUICK if self.quick else (CALIBRATION, HELD_OUT, BODIES)

    @cached_property
    def folder(self) -> Path:
        """MiniLM."""
        return real_models.minilm()

    @cached_property
    def texts(self) -> Sentences:
        """The sentences."""
        return chosen(*self.counts[:2])

    @cached_property
    def reader(self) -> Reader:
        """Its tokeniser."""
        return Reader(self.folder)

    @cached_property
    def batches(self) -> list[Tokens]:
        """What is calibrated with."""
        return self.reader.read(self.texts.calibration)

    @cached_property
    def few(self) -> list[Tokens]:
        """Some of it."""
        return self.batches[:: 1 if self.quick else FEW]

    @cached_property
    def model(self) -> Any:
        """The full model of Hugging Face."""
        return loaded(self.folder)

    @cached_property
    def measure(self) -> Measure:
        """Held-out sentences, and what the full model makes of them."""
        return Measure.of(self.reader, self.texts, states_of(self.model), self.counts[2])

    @cached_property
    def native(self) -> float:
        """Docstrings that the full model finds."""
        return self.measure.found(states_of(self.model))

    def made(self) -> tuple[Any, float | None]:
        """Ours, and the CPU seconds of its calibration unless it was kept."""
        if self.saved is not None and (self.saved / "config.json").is_file():
            return ct.load(self.saved), None
        start = time.process_time()
        made = elastic(self.folder, self.batches)
        spent = time.process_time() - start
        if self.saved is not None:
            made.save(self.saved)
        return made, spent


# --- parts, each a few minutes or less --------------------------------------------------------------------------------


def by_pruning(bench: Bench) -> Iterator[Row]:
    """Peers that prune nodes and heads."""
    full = Calibrated.of(bench.model, bench.batches)
    for size in bench.sizes:
        for method in METHODS:
            states = states_of(pruned(full, method, size.m, size.h))
            yield from compared(bench, size, method.name, states)


def by_slicing(bench: Bench) -> Iterator[Row]:
    """SliceGPT, and what it is with a refit."""
    for size in bench.sizes:
        width = width_of(size)
        for name in ("SliceGPT", "SliceGPT + refit"):
            states = sliced(bench.model, bench.few, width, refit=name.endswith("refit"))
            yield from compared(bench, size, name, states, f"{width} of {D} principal axes of the stream")


def by_dropping(bench: Bench) -> Iterator[Row]:
    """Layers left out."""
    full = Calibrated(bench.model, [], [], bench.few)
    wanted = embedded(states_of(bench.model), bench.few)
    for size in bench.sizes:
        for name in ("layers dropped", "layers dropped + refit"):
            small = dropped(full, size.layers, name.endswith("refit"), wanted)
            note = f"{size.layers} of 6 layers, the best ones in a row dropped"
            yield from compared(bench, size, name, states_of(small.model), note)


def compared(bench: Bench, size: Size, name: str, states: States, note: str = "") -> Iterator[Row]:
    """A peer's rows at a size."""
    yield Row(f"cosine, {size.name}: {name}", bench.measure.cosine(states), note=note)
    if size.name == BOTH.name and name in SOUGHT:
        share = bench.measure.found(states) / bench.native
        yield Row(f"retrieval / native, {size.name}: {name}", share)


def ours(bench: Bench) -> Iterator[Row]:
    """Our rows: what is promised, and ahead of everybody."""
    yield Row("retrieval@1, native", bench.native, note=f"{len(bench.measure.retrieval.docs)} docstrings")
    made, spent = bench.made()
    if spent is not None:
        note = f"{len(bench.texts.calibration)} sentences"
        yield Row("calibration, ours", spent, unit="CPU s", target=f"≤ {PATIENCE}", held=spent <= PATIENCE, note=note)
    yield from exactness(made, bench)
    for size in bench.sizes:
        states = our_states(made, **size.settings)
        cosine = bench.measure.cosine(states)
        best, name = best_peer(size)
        note = f"best peer {best:.3f}, {name}; cost {cost(size):.0%}"
        target = f"≥ {size.promised:.2f}, ahead of all"
        held = cosine >= size.promised and cosine > best
        yield Row(f"cosine, {size.name}: ours", cosine, target=target, held=held, note=note)
    share = bench.measure.found(our_states(made, **BOTH.settings)) / bench.native
    yield Row(f"retrieval / native, {BOTH.name}: ours", share, target=f"≥ {KEPT}", held=share >= KEPT)
    yield timing(made)


def best_peer(size: Size) -> tuple[float, str]:
    """The best of the rows that are written."""
    written = RESULTS / "pretrained.json"
    rows = json.loads(written.read_text(encoding="utf-8"))["rows"] if written.is_file() else []
    start = f"cosine, {size.name}: "
    found = [(line["value"], line["name"].removeprefix(start)) for line in rows if line["name"].startswith(start)]
    return max((one for one in found if one[1] != "ours"), default=(0.0, "none measured"))


def spent_best(bench: Bench) -> Iterator[Row]:
    """Ours at the cost of a size, spent where some calibration sentences lose least; then by layers."""
    made, _ = bench.made()
    seen = bench.few[len(bench.few) // 2 :][:1]
    full = embedded(our_states(made), seen)
    for size in bench.sizes:
        best = max(same_cost(size), key=lambda one: likeness(embedded(our_states(made, **one.settings), seen), full))
        cosine = bench.measure.cosine(our_states(made, **best.settings))
        peer, name = best_peer(size)
        note = f"h={best.h}, m={best.m}; best peer {peer:.3f}, {name}"
        line = f"cosine, at the cost of {size.name}: ours"
        yield Row(line, cosine, target="ahead of all", held=cosine > peer, note=note)
    profile = best_profile(made, [batch_of(one) for one in seen], 0.5, parts=4)
    view = made.at(m=profile).held()
    cosine = bench.measure.cosine(lambda ids, there: view(ct.Batch(ids, observed=there)))
    yield Row("cosine, ½ feed-forward, as a profile: ours", cosine, note=f"m = {profile}")


def distilling(bench: Bench) -> Iterator[Row]:
    """Three sizes, taught."""
    docs = bench.texts.docs
    learned = sentences(docs.train)[:64] if bench.quick else texts_to_learn(docs)
    kept = set(bench.texts.held_out)
    train = bench.reader.read([text for text in learned if text not in kept], LESSON)
    lessons = Lessons(
        train=[batch_of(one) for one in train],
        seen=train[len(train) // 2 :][:2],
        held_out=bench.measure.batches,
        full=bench.measure.full,
        found=lambda states: bench.measure.found(states) / bench.native,
    )
    yield from distilled(bench.made()[0], lessons, bench.quick, bench.run)


def furthest(one: States, other: States, batches: Sequence[Tokens]) -> float:
    """The largest difference of states, at tokens that are there."""
    return max(float((one(b.ids, b.there) - other(b.ids, b.there))[b.there].abs().max()) for b in batches)


@torch.no_grad()
def exactness(made: Any, bench: Bench) -> Iterator[Row]:
    """The native size before and after, beside what another order of sums alone changes."""
    plain = ct.from_hf(bench.folder)
    before = our_states(ct.lift(plain))
    held_out = bench.measure.batches
    start = "native size, before and after"
    note = "weights stay where they are"
    gap = furthest(our_states(made), before, held_out)
    yield Row(f"{start}, float32: largest difference", gap, target="≤ 1e-6", held=gap <= 1e-6, note=note)
    gap = furthest(states_of(shuffled(bench.model)), states_of(bench.model), held_out)
    yield Row("Hugging Face's own, hidden nodes shuffled, float32: largest difference", gap)
    gap = furthest(before, lambda ids, there: plain(ct.Batch(ids, observed=there)), held_out)
    yield Row("ct.lift, float32: largest difference", gap, target="≤ 1e-6", held=gap <= 1e-6)
    gap = furthest(our_states(made.double()), our_states(ct.lift(plain.double())), held_out[:1])
    made.float()
    yield Row(f"{start}, float64: largest difference", gap, target="≤ 1e-6", held=gap <= 1e-6)


@torch.no_grad()
def timing(made: Any) -> Row:
    """A held forward at ½ + ½ beside the native one."""
    batch = ct.Batch(torch.randint(1000, 20_000, (8, 64), generator=torch.Generator().manual_seed(0)))
    views = {"half": made.at(**BOTH.settings).held(), "native": made.at().held()}
    cases = {name: lambda view=view: cpu_seconds(lambda: view(batch)) for name, view in views.items()}
    times = interleaved(cases, ROUNDS, warmup=2)
    got = ratio(times["half"], times["native"])
    return row(f"time / native, {BOTH.name}: ours", got, target="≤ 0.62", held=got.median <= 0.62,
               note="held forward, 8 × 64 tokens, CPU time")  # fmt: skip


def smollm(bench: Bench) -> Iterator[Row]:
    """SmolLM2."""
    yield from perplexities(bench.texts.docs, elastic, bench.quick)


def rxnfp(bench: Bench) -> Iterator[Row]:
    """rxnfp."""
    yield from accuracies(elastic, bench.quick)


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "pruned": by_pruning,
    "sliced": by_slicing,
    "dropped": by_dropping,
    "ours": ours,
    "spent": spent_best,
    "distil": distilling,
    "smollm": smollm,
    "rxnfp": rxnfp,
}
USUAL = ("pruned", "sliced", "dropped", "ours", "spent")


def main(options: argparse.Namespace) -> None:
    sizes = SIZES if options.size is None else [SIZES[options.size]]
    bench = Bench(options.quick, options.calibrated, options.run, sizes)
    for name in USUAL if options.part is None else (options.part,):
        rows = [shown(line) for line in PARTS[name](bench)]
        if not options.quick:
            sha = {"docstrings": bench.texts.docs.sha256}
            path = write("pretrained", rows, part=True, environment=environment(), sha256=sha)
            CONSOLE.print(f"Written: {path}", soft_wrap=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A pretrained model at other sizes.")
    parser.add_argument("--part", choices=tuple(PARTS), help="these rows alone")
    parser.add_argument("--size", type=int, choices=range(len(SIZES)), help="one size alone, by its number")
    parser.add_argument("--quick", action="store_true", help="few texts; writes nothing")
    parser.add_argument("--calibrated", type=Path, help="a folder that keeps the calibrated model from part to part")
    parser.add_argument("--run", type=Path, help="a folder that keeps the lessons of --part distil, to go on with them")
    main(parser.parse_args())
