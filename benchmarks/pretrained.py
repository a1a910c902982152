"""A pretrained model at other sizes, without training: ours beside the peers, on the same sentences.

    python benchmarks/pretrained.py              # MiniLM; writes results/pretrained.json
    python benchmarks/pretrained.py --smollm     # perplexity of SmolLM2-135M at half of its feed-forward
    python benchmarks/pretrained.py --rxnfp      # masked tokens of reactions, by rxnfp
    python benchmarks/pretrained.py --quick      # few sentences, to see that it runs; writes nothing
    python benchmarks/pretrained.py --peers      # without ours; writes nothing

Everybody calibrates with the same 256 sentences and is measured on the same others, of other files: the cosine of
embeddings to those of the full model (mean over tokens, length one), and how many docstrings are found by a summary.
The cost of a size is its share of the numbers in the maps of the layers; peers get as much as ours, or more.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from common import Row, cpu_seconds, environment, interleaved, ratio, row, write
from pretrained_language import perplexities
from pretrained_peers import METHODS, Calibrated, dropped, loaded, pruned, states_of
from pretrained_reactions import accuracies
from pretrained_slices import sliced
from pretrained_texts import Reader, Sentences, States, Tokens, chosen, embedded, likeness
from rich.console import Console
from torch import Tensor

import continua as ct
from continua.tasks import Retrieval
from tools import real_models

CONSOLE = Console()
CALIBRATION = 256
HELD_OUT = 384
BODIES = 374  # docstrings to be found, all that are held out
QUICK = (48, 32, 24)
ROUNDS = 12  # of the timing
PATIENCE = 90  # CPU seconds of calibration
KEPT = 0.97  # of native retrieval


@dataclass(frozen=True)
class Size:
    """A size of MiniLM: nodes of feed-forward, heads, the cosine that is promised, and peers of the same cost."""

    name: str
    m: int | None
    h: int | None
    promised: float
    layers: int  # of 6, of the same cost

    @property
    def settings(self) -> dict[str, int]:
        """As ``at`` takes them."""
        return {key: value for key, value in (("m", self.m), ("h", self.h)) if value is not None}


D = 384
M = 1536
H = 12
SIZES = (
    Size("½ feed-forward", M // 2, None, 0.94, 4),
    Size("¼ feed-forward", M // 4, None, 0.86, 3),
    Size("½ heads", None, H // 2, 0.90, 5),
    Size("½ + ½", M // 2, H // 2, 0.86, 3),
)
BOTH = SIZES[-1]


def cost(size: Size) -> float:
    """The share of the numbers in the maps of a layer: 4 d² of attention and 2 d m of feed-forward."""
    heads = 4 * D * D * (size.h or H) / H
    return (heads + 2 * D * (size.m or M)) / (4 * D * D + 2 * D * M)


def width_of(size: Size) -> int:
    """The width of a sliced stream with at least the cost of a size: (4 d + 2 m) d' and 2 d'² of the residuals."""
    budget = cost(size) * (4 * D * D + 2 * D * M)
    linear = 4 * D + 2 * M
    return math.ceil((math.sqrt(linear**2 + 8 * budget) - linear) / 4)


# --- ours: the one place that calls the library -----------------------------------------------------------------------


def batch_of(tokens: Tokens) -> ct.Batch:
    """Token numbers as the library reads them."""
    return ct.Batch(tokens.ids, observed=tokens.there)


def elastic(folder: Path, batches: Sequence[Tokens]) -> Any:
    """Ours: any pretrained model, calibrated."""
    return ct.elastic(ct.from_hf(folder), calibrate=[batch_of(one) for one in batches])


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


@dataclass(frozen=True)
class Peer:
    """One line of the table before it is measured."""

    name: str
    note: str
    make: Callable[[], States]


@dataclass
class Peers:
    """Everybody else; those that cut all layers alike, or the stream, serve every size of their cost."""

    full: Calibrated
    wanted: Tensor  # embeddings of the calibration sentences
    made: dict[tuple[str, int], States] = field(default_factory=dict)

    def at(self, size: Size) -> Iterator[Peer]:
        """At a size, or at one of the same cost."""
        full = self.full
        for method in METHODS:
            yield Peer(method.name, "", lambda method=method: states_of(pruned(full, method, size.m, size.h)))
        width = width_of(size)
        for name in ("SliceGPT", "SliceGPT + refit"):
            note = f"{width} of {D} principal axes of the stream"
            yield Peer(name, note, lambda name=name: self.kept(name, width))
        for name in ("layers dropped", "layers dropped + refit"):
            note = f"{size.layers} of 6 layers, the best ones in a row dropped"
            yield Peer(name, note, lambda name=name: self.kept(name, size.layers))

    def kept(self, name: str, number: int) -> States:
        """Made once."""
        if (name, number) not in self.made:
            refit = name.endswith("refit")
            if name.startswith("SliceGPT"):
                self.made[name, number] = sliced(self.full.model, self.full.batches, number, refit)
            else:
                self.made[name, number] = states_of(dropped(self.full, number, refit, self.wanted).model)
        return self.made[name, number]


def shown(rows: list[Row], line: Row) -> None:
    """Keep a line and print it."""
    rows.append(line)
    CONSOLE.print(f"{line.name:<52} {line.shown:<24} {line.verdict:<5} {line.note}", highlight=False, soft_wrap=True)


def minilm(quick: bool, with_ours: bool) -> list[Row]:
    """All rows of MiniLM."""
    calibration, held_out, bodies = QUICK if quick else (CALIBRATION, HELD_OUT, BODIES)
    folder = real_models.minilm()
    texts = chosen(calibration, held_out)
    reader = Reader(folder)
    batches = reader.read(texts.calibration)
    model = loaded(folder)
    measure = Measure.of(reader, texts, states_of(model), bodies)
    wanted = embedded(states_of(model), batches)
    peers = Peers(Calibrated.of(model, batches), wanted)
    rows: list[Row] = []
    native = measure.found(states_of(model))
    shown(rows, Row("retrieval@1, native", native, note=f"{len(measure.retrieval.docs)} docstrings"))
    made = None
    if with_ours:
        start = time.process_time()
        made = elastic(folder, batches)
        spent = time.process_time() - start
        shown(rows, Row("calibration, ours", spent, unit="CPU s", target=f"≤ {PATIENCE}", held=spent <= PATIENCE))
        shown(rows, exactness(made, folder, measure))
    for size in SIZES:
        theirs = [(peer.name, compared(rows, measure, size, peer, native)) for peer in peers.at(size)]
        if made is not None:
            ours(rows, measure, size, made, theirs, native)
    if made is not None:
        shown(rows, timing(made))
    return rows


def compared(rows: list[Row], measure: Measure, size: Size, peer: Peer, native: float) -> float:
    """A peer's rows at a size; its cosine."""
    states = peer.make()
    cosine = measure.cosine(states)
    shown(rows, Row(f"cosine, {size.name}: {peer.name}", cosine, note=peer.note))
    if size is BOTH:
        share = measure.found(states) / native
        shown(rows, Row(f"retrieval / native, {size.name}: {peer.name}", share))
    return cosine


def ours(
    rows: list[Row], measure: Measure, size: Size, made: Any, theirs: Sequence[tuple[str, float]], native: float
) -> None:
    """Our rows at a size: what is promised, and ahead of everybody."""
    states = our_states(made, **size.settings)
    cosine = measure.cosine(states)
    name, best = max(theirs, key=lambda one: one[1])
    held = cosine >= size.promised and cosine > best
    note = f"best peer {best:.3f}, {name}; cost {cost(size):.0%}"
    target = f"≥ {size.promised:.2f}, ahead of all"
    shown(rows, Row(f"cosine, {size.name}: ours", cosine, target=target, held=held, note=note))
    if size is BOTH:
        share = measure.found(states) / native
        name = f"retrieval / native, {size.name}: ours"
        shown(rows, Row(name, share, target=f"≥ {KEPT}", held=share >= KEPT))


@torch.no_grad()
def exactness(made: Any, folder: Path, measure: Measure) -> Row:
    """The native size before and after."""
    before = ct.from_hf(folder)
    gap = 0.0
    for tokens in measure.batches:
        batch = batch_of(tokens)
        gap = max(gap, float((made(batch) - before(batch))[tokens.there].abs().max()))
    return Row("native size, before and after: largest difference", gap, target="≤ 1e-6", held=gap <= 1e-6)


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


def main(options: argparse.Namespace) -> None:
    with_ours = not options.peers
    if with_ours and not hasattr(ct, "elastic"):
        sys.exit("This version of the library has no ct.elastic yet. Run with --peers.")
    texts = chosen(*QUICK[:2] if options.quick else (CALIBRATION, HELD_OUT))
    sha = {"docstrings": texts.docs.sha256}
    rows: list[Row] = []
    if options.smollm:
        perplexities(texts.docs, elastic if with_ours else None, options.quick, lambda line: shown(rows, line))
    elif options.rxnfp:
        accuracies(elastic if with_ours else None, options.quick, lambda line: shown(rows, line))
    else:
        rows = minilm(options.quick, with_ours)
    if options.quick or options.peers:
        CONSOLE.print("Nothing is written: " + ("quick" if options.quick else "without ours") + ".")
        return
    path = write("pretrained", rows, part=True, environment=environment(), sha256=sha)
    CONSOLE.print(f"Written: {path}", soft_wrap=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A pretrained model at other sizes, without training.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--smollm", action="store_true", help="perplexity of SmolLM2-135M instead")
    which.add_argument("--rxnfp", action="store_true", help="masked tokens of reactions instead")
    parser.add_argument("--quick", action="store_true", help="few texts; writes nothing")
    parser.add_argument("--peers", action="store_true", help="without ours; writes nothing")
    main(parser.parse_args())
