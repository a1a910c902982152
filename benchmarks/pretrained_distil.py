"""Short distillation for ``pretrained.py``: MiniLM's native size teaches three smaller ones in one run."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import Row
from pretrained_texts import States, Tokens, embedded, likeness
from torch import Tensor
from torch.nn.functional import normalize

import continua as ct
from continua.convert import best_left_out
from continua.convert.distil import sizes_of as taught_sizes
from continua.data import Docstrings, library_sentences, package_docstrings, sentences, spread
from continua.tasks.sentences import shared_coordinates

PACKAGES = (  # of the library and of its development: their docstrings are on every machine that runs this
    "torch", "numpy", "scipy", "sklearn", "sympy", "matplotlib", "networkx", "transformers", "jax",
    "mypy", "rich", "PIL", "pydantic", "huggingface_hub", "setuptools", "pip", "werkzeug", "click", "hypothesis",
)  # fmt: skip
WORDS = 22  # of the longest sentence that is learned from
LAYERS = 4
STEPS = 3_000
LESSON = 32  # texts in a batch that is learned from
TEXTS = STEPS * LESSON
ROUNDS = 3  # in which texts of the kind that is measured on are met; others once
LONGEST = 30  # CPU minutes
QUICK = 2  # steps
MINUTES = "cpu-minutes.txt"


def texts_to_learn(docs: Docstrings) -> tuple[str, ...]:
    """Sentences and bodies of Python's library, in rounds, then sentences of packages, spread; none is measured on."""
    near = (*sentences(docs.train), *(one.body for one in docs.train), *short(library_sentences()))
    far = short(sentences(package_docstrings(PACKAGES), without=near))
    unseen = {words(text) for text in sentences(docs.validation)}
    own, others = ([text for text in dict.fromkeys(part) if words(text) not in unseen] for part in (near, far))
    rounds = ROUNDS * own
    return (*rounds, *spread(others, min(TEXTS - len(rounds), len(others))))


def words(text: str) -> str:
    """What two texts share that differ in their signs alone."""
    return " ".join(re.findall(r"\w+", text.lower()))


def short(texts: Sequence[str]) -> list[str]:
    """Those of not too many words."""
    return [text for text in texts if len(text.split()) <= WORDS]


@dataclass(frozen=True)
class Taught:
    """A size that is taught: what it is called, what it is, the cosine that is promised, and how often it learns."""

    name: str
    at: ct.Discretisation
    promised: float
    share: float  # of the steps, at which it learns


def sizes_of(model: Any, run: ct.Run | None, batches: Sequence[Tokens]) -> tuple[Taught, ...]:
    """Both halves, half of the state too, and four of six layers: those left out that some sentences miss least."""
    native = model.native
    maps = {"m": native.m.n // 2, "h": native.h.n // 2}
    some = [ct.Batch(one.ids, observed=one.there) for one in batches]
    joined = taught_sizes(run)[-1].z if run is not None else best_left_out(model, some, LAYERS)
    return (
        Taught("½ + ½", ct.at(**maps), 0.95, 1.0),
        Taught("½ of m, h and d", ct.at(d=native.d.n // 2, **maps), 0.92, 2 / 3),
        Taught("4 of 6 layers", ct.at(z=joined), 0.95, 0.4),
    )


def cosine(model: Any, size: ct.Discretisation, held_out: Sequence[Tokens], full: Tensor) -> float:
    """To the full model's embeddings, at the coordinates that the size has."""
    known = normalize(shared_coordinates(model, model.settle(size), full))
    return likeness(embedded(states_at(model, size), held_out), known)


def states_at(model: Any, size: ct.Discretisation) -> States:
    """The states of a size, its weights held."""
    view = model.at(size).held()
    return lambda ids, there: view(ct.Batch(ids, observed=there))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Lessons:
    """What is learned from, and what is measured on with what the full model says there."""

    train: Sequence[ct.Batch]
    seen: Sequence[Tokens]  # some of them, by which layers are joined
    held_out: Sequence[Tokens]
    full: Tensor
    found: Callable[[States], float]  # docstrings found by their summary, over those that the full model finds


def distilled(model: Any, lessons: Lessons, quick: bool, run: Path | None) -> Iterator[Row]:
    """Rows of one run for all three sizes, before and after; none after where it was stopped before its end."""
    going_on = ct.Run.open(run) if run is not None and (run / "run.json").is_file() else None
    sizes = sizes_of(model, going_on, lessons.seen)
    for one in sizes if going_on is None else ():
        before = cosine(model, one.at, lessons.held_out, lessons.full)
        yield Row(f"cosine without training, {one.name}: ours", before, note=str(one.at))
    steps = QUICK if quick else STEPS
    start = time.process_time()
    fitted = ct.distil(model, lessons.train, sizes=[one.at for one in sizes], shares=[one.share for one in sizes],
                       steps=steps, precision="bfloat16", run=going_on or run,
                       watch=lambda progress: None)  # fmt: skip
    spent = (time.process_time() - start) / 60 + kept_minutes(run)
    if run is not None:
        (run / MINUTES).write_text(f"{spent}", encoding="utf-8")
    if fitted.ended == "interrupted":
        return
    taught = fitted.model.eval()
    note = f"{steps} steps, {len(lessons.train)} batches; sizes learn at {shares_of(sizes)} of the steps"
    yield Row("distillation, one run for three sizes", spent, unit="CPU min", target=f"≤ {LONGEST}",
              held=spent <= LONGEST, note=note)  # fmt: skip
    for one in sizes:
        after = cosine(taught, one.at, lessons.held_out, lessons.full)
        target = f"≥ {one.promised:.2f}"
        yield Row(f"cosine after distillation, {one.name}: ours", after, target=target, held=after >= one.promised)
    share = lessons.found(states_at(taught, sizes[0].at))
    yield Row("retrieval / native after distillation, ½ + ½: ours", share, target="≥ 0.97", held=share >= 0.97)
    yield unchanged(model, taught, lessons)


def shares_of(sizes: Sequence[Taught]) -> str:
    """How often each learns."""
    return ", ".join(f"{one.share:.2f}" for one in sizes)


def kept_minutes(run: Path | None) -> float:
    """CPU minutes of the parts of a run that went before."""
    kept = None if run is None else run / MINUTES
    return float(kept.read_text(encoding="utf-8")) if kept is not None and kept.is_file() else 0.0


@torch.no_grad()
def unchanged(model: Any, taught: Any, lessons: Lessons) -> Row:
    """The native size before and after its lessons."""
    gap = max(float((taught(batch) - model(batch)).abs().max()) for batch in lessons.train[:4])
    return Row("native size, before and after distillation: largest difference", gap, target="0", held=gap == 0)
