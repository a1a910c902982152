"""What elastic training is made of: each choice left out or changed, at equal CPU time, against the default.

    python benchmarks/elastic_trials.py                   # every trial, 3 seeds: about two hours of CPU time
    python benchmarks/elastic_trials.py --only default weight --seeds 1
    python benchmarks/elastic_trials.py --quick           # a smoke run

The model, data and sizes are those of ``elastic.py``. Every run has the CPU time of ``--units`` steps of plain
training: what its own step costs is measured first, beside a plain one in interleaved rounds, so a busy machine favours
nobody. Losses are nats a character; the value of a trial is the mean over the sizes of its loss over that of the
default. Finished runs are kept in ``results/elastic-trials.jsonl``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from common import RESULTS, Row, environment, interleaved, write
from elastic_jobs import FINER, LR, OLD_DEEP, SIZES, USUAL, WINDOWS, model_of, task_of
from torch.nn.functional import normalize

from continua.axes import Interval, LeftEnd, Nested, at
from continua.config import register
from continua.convert import elastic
from continua.fields import BSpline, Cosine, Legendre, Nodal
from continua.flow import Fixed, LieTrotter, SaveAt
from continua.models import Transformer
from continua.models.build import continuous_parts
from continua.models.init import GPT2Init, initialise
from continua.optim import SOAP, AdamW, ByRole, Muon
from continua.recipes.elastic import lessons
from continua.training import (
    ByGap,
    Copied,
    Diagonal,
    Elastic,
    Growth,
    KineticEnergy,
    Lesson,
    LessonPlan,
    Progress,
    SizeLaw,
    SmallerSizes,
    Smoothness,
    Stage,
    Study,
    fit,
)


@dataclass(frozen=True)
class Moved(Nested):
    """Nested nodes, moved around the interval."""

    share: float = 0.0

    def reference(self, periodic: bool) -> tuple[Any, Any]:
        """The same weights."""
        nodes, weights = super().reference(periodic)
        return np.sort((nodes + self.share) % 1.0), weights


@register
@dataclass(frozen=True)
class NoisySizes:
    """The usual law, with nodes along d that are moved by a random share of a turn."""

    def over(self, model: Transformer) -> LessonPlan:
        """The law for one model."""
        return NoisyPlan(SmallerSizes(deep=OLD_DEEP).over(model), model.native.d.n)


@dataclass(frozen=True)
class NoisyPlan:
    """Lessons at moved nodes."""

    inner: LessonPlan
    width: int

    def draw(self, progress: float, generator: torch.Generator) -> list[Lesson]:
        """The usual lessons, moved where they are narrower than the model."""
        found = []
        for lesson in self.inner.draw(progress, generator):
            share = float(torch.rand(1, generator=generator))
            n = int(lesson.at.d)
            found.append(lesson._replace(at=replace(lesson.at, d=Moved(n, share))) if n < self.width else lesson)
        return found

    def drew(self, sizes: Mapping[str, int]) -> bool:
        """As the usual law has it."""
        return self.inner.drew(sizes)


@register
@dataclass(frozen=True)
class PathImitation:
    """Imitate the answers, and on native widths the normalised states after half and all of the depth."""

    def loss(self, study: Study) -> torch.Tensor:
        """KL(native ‖ size) + Σ ‖x/|x| − native x/|x|‖²."""
        batch = study.example.batch
        with torch.no_grad():
            known = study.model.run(batch, keep=SaveAt(every=1))[1].x
        answer, path, _ = study.model.run(batch, study.at, keep=SaveAt(every=1))
        total = study.task.imitation(answer, study.teacher, study.example)
        if answer.shape != study.teacher.shape or path.final.shape[-1] != known[0].shape[-1]:
            return total
        for share in (0.5, 1.0):
            mine, theirs = (normalize(kept[round(share * (len(kept) - 1))], dim=-1) for kept in (path.x, known))
            total = total + (mine - theirs).square().sum()
        return total


taught = partial(Elastic, deep=OLD_DEEP)


@dataclass(frozen=True)
class Trial:
    """A change of the default: of the law, of the model, of the penalties or of the optimiser.

    ``sorted`` puts the channels of greatest variance where narrow sizes read, once, when lessons begin: the part of a
    rotation to principal directions that LayerNorm allows without changing the model.
    """

    law: Elastic | None = taught()  # noqa: RUF009  (frozen)
    model: str = "elastic"
    penalties: Any = None
    grow: Growth | None = None
    optimiser: ByRole = field(default_factory=lambda: ByRole(AdamW(LR, decay=USUAL.decay)))
    sorted: bool = False


MUON = ByRole(AdamW(LR, decay=USUAL.decay), kernel=Muon(0.02))
HALF = Stage((at(d=64, h=2, z=2),), 0.2)
THEN = {"width": Stage((at(d=64),), 1 / 3), "depth": Stage((at(z=2),), 1 / 3)}
THEN["both"] = Stage((at(d=64), at(d=64), at(z=2)), 1 / 3)
GROWN = Growth((HALF, THEN["both"]))
LESSONS = lessons(USUAL)


def listed(law: SizeLaw) -> Elastic:
    """Lessons by another law of sizes, with the weight that the recipe gives them."""
    return Elastic(law=law, weight=USUAL.share)


PLAIN = "plain training, only read at other sizes"
TRIALS = {
    "default": Trial(),
    PLAIN: Trial(law=None),
    "own loss instead of imitation": Trial(taught(distil=0.0)),
    "half loss, half imitation": Trial(taught(distil=0.5)),
    "states along depth too": Trial(taught(imitation=PathImitation())),
    "weight 1": Trial(taught(weight=1.0)),
    "weight 0.3": Trial(taught(weight=0.3)),
    "from the first step": Trial(taught(start=0.0)),
    "from 70 % on": Trial(taught(start=0.7)),
    "from the first step, weight 1": Trial(taught(start=0.0, weight=1.0)),
    "one size on the whole batch": Trial(taught(draws=1, parts=1)),
    "four sizes on quarters": Trial(taught(draws=4, parts=4)),
    "few widths": Trial(taught(d=(64, 96, 128))),
    "never twice the steps": Trial(Elastic(deep=0.0)),
    "no calibration": Trial(model="bare"),
    "channels sorted by variance": Trial(sorted=True),
    "noise on the nodes of d": Trial(Elastic(law=NoisySizes())),
    "Fourier resampling along widths": Trial(model="fourier"),
    "cosine resampling along widths": Trial(model="cosine"),
    "Legendre functions of depth": Trial(model="legendre"),
    "B-splines of depth": Trial(model="spline"),
    "a shared base and one slope over depth": Trial(model="base"),
    "kinetic energy": Trial(penalties=1e-3 * KineticEnergy()),
    "smoothness over depth": Trial(penalties=1e-4 * Smoothness("z")),
    "Muon for kernels": Trial(optimiser=ByRole(AdamW(LR), kernel=Muon(0.02))),
    "Muon, grown as the recipe does": Trial(LESSONS, grow=GROWN, optimiser=MUON),
    "Muon, grown by half widths": Trial(LESSONS, grow=Growth((HALF, THEN["width"])), optimiser=MUON),
    "Muon, grown by half depths": Trial(LESSONS, grow=Growth((HALF, THEN["depth"])), optimiser=MUON),
    "Muon, new nodes as copies": Trial(LESSONS, grow=Growth((HALF, THEN["width"]), Copied()), optimiser=MUON),
    "Muon, new layers as copies": Trial(LESSONS, grow=Growth((HALF, THEN["width"]), Copied("z")), optimiser=MUON),
    "Muon, sizes of a diagonal": Trial(listed(Diagonal((0.25, 0.5, 0.75))), grow=GROWN, optimiser=MUON),
    "Muon, sizes by their gap": Trial(listed(ByGap()), grow=GROWN, optimiser=MUON),
    "Muon, sizes by the root of their gap": Trial(listed(ByGap(power=0.5)), grow=GROWN, optimiser=MUON),
    "Muon, the same sizes evenly": Trial(listed(ByGap(power=0.0)), grow=GROWN, optimiser=MUON),
    "SOAP for kernels": Trial(optimiser=ByRole(AdamW(LR), kernel=SOAP(LR))),
}


def made(kind: str, vocabulary: int, seed: int) -> Transformer:
    """The model of a trial."""
    if kind in ("elastic", "bare"):
        model = elastic(model_of(SIZES["native"], vocabulary, seed))
        for part in model.modules() if kind == "bare" else ():
            if getattr(part, "calibration", None) is not None:
                part.calibration = None
        return model
    d, h, z = SIZES["native"]
    bases: dict[str, Any] = {"legendre": Legendre(z), "spline": BSpline(z, 2), "base": Legendre(2)}
    chosen, axes = {"z": bases.get(kind, Nodal(LeftEnd(z)))}, {}
    if kind == "cosine":
        axes = {"d": Interval(mass=d), "m": Interval(mass=4 * d)}
        chosen |= {"d": Cosine(d), "c": Cosine(d), "m": Cosine(4 * d)}
    native = at(d=d, h=h, z=Fixed(z, LieTrotter()))
    model = Transformer(**continuous_parts(vocab=vocabulary, at=native, context=128, bases=chosen, **axes))
    initialise(model, GPT2Init(), torch.Generator().manual_seed(seed))
    return model


def train(name: str, seed: int, steps: int) -> tuple[Transformer, float]:
    """One run, and its CPU seconds."""
    torch.set_num_threads(1)
    trial, task = TRIALS[name], replace(task_of(), limit=1)
    model = made(trial.model, task.tokens.size, seed)
    begins = round(Elastic().start * steps)

    def watch(progress: Progress) -> None:
        if trial.sorted and progress.step == begins:
            sort_channels(model, task)

    start = time.process_time()
    fit(model, task, optimiser=trial.optimiser, penalties=trial.penalties, steps=steps, seed=seed,
        evaluate_every=steps, elastic=trial.law, grow=trial.grow, watch=watch)  # fmt: skip
    return model.eval(), time.process_time() - start


@torch.no_grad()
def sort_channels(model: Transformer, task: Any) -> None:
    """Move the channels of greatest variance to the nodes that narrow sizes read; the answers stay."""
    path = model.run(task.example(10**6, 0).batch)[1]
    order = path.final.flatten(0, -2).var(0).argsort(descending=True)
    width = len(order)
    inverse = [int(f"{i:0{width.bit_length() - 1}b}"[::-1], 2) for i in range(width)]  # van der Corput, in cells
    moved = torch.empty_like(order)
    moved[inverse] = order
    for part in model.modules():
        letters = getattr(part, "letters", ())
        for axis, letter in enumerate(letters):
            if letter in "dc" and part.coefficients.shape[axis] == width:
                part.coefficients.copy_(part.coefficients.index_select(axis, moved))


def work(name: str, seed: int, units: int) -> dict[str, Any]:
    """Find the number of steps, train, and measure every size."""
    few, rounds = 19, 3  # of 19 steps eight are alone: 42 %, as in a whole run
    seen = interleaved({n: lambda n=n: train(n, seed, few)[1] for n in dict.fromkeys((PLAIN, name))}, rounds, 1)
    cost = 1.0 if name == PLAIN else statistics.median(b / a for a, b in zip(seen[PLAIN], seen[name], strict=True))
    steps = max(few, round(units / cost))
    model, cpu = train(name, seed, steps)
    task, losses = replace(task_of(), limit=WINDOWS), {}
    wishes = {
        **{n: dict(zip("dhz", size, strict=True)) for n, size in SIZES.items()},
        "twice the steps": FINER["twice the steps"],
    }
    for size, wish in wishes.items():
        losses[size] = task.evaluate(model.at(**wish)).main
    return {"trial": name, "seed": seed, "units": units, "steps": steps, "cost": cost, "cpu": cpu, "losses": losses}


def run_all(names: list[str], seeds: int, units: int, path: Path) -> list[dict[str, Any]]:
    """Each run in a process of its own; finished ones are kept."""

    def known() -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    done = {(line["trial"], line["seed"], line["units"]) for line in known()}
    waiting = [(n, s) for s in range(seeds) for n in names if (n, s, units) not in done]
    for number, (name, seed) in enumerate(waiting, 1):
        command = [sys.executable, __file__, "--job", json.dumps([name, seed, units])]
        found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        line = found.stdout.strip().splitlines()[-1]
        with path.open("a") as kept:
            kept.write(line + "\n")
        said = json.loads(line)
        print(f"{number}/{len(waiting)}  {name}, seed {seed}: native {said['losses']['native']:.4f}, "
              f"half of all {said['losses']['half of all']:.4f}  {said['steps']} steps", flush=True)  # fmt: skip
    return [line for line in known() if line["units"] == units and line["seed"] < seeds]


def rows_of(lines: list[dict[str, Any]]) -> list[Row]:
    """One line a trial: its native loss, and the other sizes in the note."""
    by = {(line["trial"], line["seed"]): line for line in lines}
    seeds = sorted({line["seed"] for line in lines})
    rows = []
    for name in TRIALS:
        mine = [by[name, s] for s in seeds if (name, s) in by and ("default", s) in by]
        if not mine:
            continue
        ratios = [statistics.mean(line["losses"][k] / by["default", line["seed"]]["losses"][k] for k in line["losses"])
                  for line in mine]  # fmt: skip
        each = {k: statistics.mean(line["losses"][k] for line in mine) for k in mine[0]["losses"]}
        base = {k: statistics.mean(by["default", line["seed"]]["losses"][k] for line in mine) for k in each}
        note = "; ".join(f"{k} {v:.3f} (perplexity × {np.exp(v - base[k]):.3f})" for k, v in each.items())
        steps = round(statistics.mean(line["steps"] for line in mine))
        mean = 100 * (statistics.mean(ratios) - 1)
        rows.append(Row(name, mean, 100 * (min(ratios) - 1), 100 * (max(ratios) - 1), "%",
                        note=f"{note}; {steps} steps, {len(mine)} seeds"))  # fmt: skip
    return rows


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=400, help="CPU time of a run, in steps of plain training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="trials whose name begins with one of these")
    parser.add_argument("--quick", action="store_true", help="a few steps each, nothing is written")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        print(json.dumps(work(*json.loads(chosen.job))))
        return
    names = [n for n in TRIALS if n == "default" or not chosen.only or n.startswith(tuple(chosen.only))]
    path = RESULTS / ("elastic-trials-quick.jsonl" if chosen.quick else "elastic-trials.jsonl")
    seeds, units = (1, 12) if chosen.quick else (chosen.seeds, chosen.units)
    rows = rows_of(run_all(names, seeds, units, path))
    for line in rows:
        print(f"{line.name}: {line.shown}  {line.note}")
    if chosen.quick:
        path.unlink()
    else:
        print(write("elastic_trials", rows, environment=environment(), units=units, seeds=seeds))


if __name__ == "__main__":
    main()
