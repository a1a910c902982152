"""One elastic training against separately trained models of the same sizes, on the embedded text.

    python benchmarks/elastic.py                        # 3 seeds, two hours of CPU time; two processes by --jobs 2
    python benchmarks/elastic.py --adamw --seeds 1      # AdamW for everything, elastic and separate, without growth
    python benchmarks/elastic.py --equal                # 800 steps for the elastic training too
    python benchmarks/elastic.py --quick                # a smoke run of a few steps

Every run is one thread, the same data and the same kind of optimiser; losses are nats a character on 600 windows spread
over the held-out text. A separate model has exactly the d, h, e, m, z of the size it is compared with, 800 steps, and
the better of two learning rates, chosen on the first seed. Finished runs are kept in ``results/elastic-runs.jsonl`` and
not repeated; delete the file to start anew.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from common import RESULTS, Row, cpu_seconds, environment, interleaved, ratio, row, write

from continua.axes import at
from continua.convert import elastic
from continua.fields import counted
from continua.flow import Fixed
from continua.lab.cost.beside import Beside, Line, line_through, write_beside
from continua.lab.cost.complexity import predict
from continua.lab.cost.tolerance import depth_front
from continua.models import Transformer
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import Tokens
from continua.models.init import GPT2Init, initialise
from continua.models.readout import Readout
from continua.operators import GELU, Attention, Causal, LayerNorm, Learned, Pointwise
from continua.optim import AdamW, ByRole, Muon
from continua.recipes.elastic import ElasticSettings, afterwards, corrected, growth, lessons
from continua.tasks import Characters, Text, python_source
from continua.training import Afterwards, Elastic, Growth, fit
from continua.training.sizes import native_sizes, never_joined

D, H, E, Z, CONTEXT, BATCH = 128, 4, 32, 4, 128, 16
STEPS, LONGER, WINDOWS = 800, 1300, 600
USUAL = ElasticSettings()
LR, MUON_LR = USUAL.lr, USUAL.matrix_lr
FACTORS = (1.0, 2.0)  # of both learning rates; what follows was found with the first
SIZES = {  # d, h, z; m = 4d and e = 32 always
    "native": (128, 4, 4),
    "half width": (64, 4, 4),
    "half heads": (128, 2, 4),
    "half depth": (128, 4, 2),
    "half of all": (64, 2, 2),
    "a quarter of all": (32, 1, 1),
    "5/8 width": (80, 4, 4),
    "3 steps": (128, 4, 3),
    "3 heads": (128, 3, 4),
    "one step": (128, 4, 1),
}
MORE = {"half width and heads": (64, 2, 4), "half width and depth": (64, 4, 2), "half heads and depth": (128, 2, 2),
        "5/8 width, 3 heads, 3 steps": (80, 3, 3)}  # fmt: skip
CORNERS = {"quarter width": (32, 4, 4), "one head": (128, 1, 4), "one head and one step": (128, 1, 1)}  # one seed
EVERY = {**SIZES, **MORE, **CORNERS}
TWELVE = [*(name for name in SIZES if name not in ("a quarter of all", "one step")), *MORE]  # what is timed
FINER = {"twice the steps": {"z": 8}, "twice the width": {"d": 256}}
JOINED = {f"steps {'+'.join(map(str, lengths))}": lengths for lengths in ((2, 1, 1), never_joined(4), (1, 3), (3, 1))}
BOUNDS = {"native": 2.0, "half width": 0.0, "5/8 width": 1.0, "half of all": 1.0, "a quarter of all": 3.0,
          "half heads": 2.0, "3 heads": 3.0, "half depth": 4.0, "3 steps": 5.0}  # fmt: skip
FINER_BOUNDS = {"twice the steps": 1.0, "twice the width": 1e-4}
UNSEEN = ("5/8 width", "3 heads")
GRID = {"d": (32, 48, 64, 80, 96, 128, 192, 256), "h": (1, 2, 3, 4, 8), "z": (1, 2, 3, 4, 8)}  # 200 sizes
NEW, OLD, EQUAL = "growth", "adamw", "equal"
NAMES = {NEW: "elastic", OLD: "elastic_adamw", EQUAL: "elastic_equal"}


@dataclass(frozen=True)
class Job:
    """One training: ``kind`` is separate, elastic, grown (without lessons) or longer (plain, as many steps)."""

    kind: str
    size: str
    seed: int
    steps: int
    muon: bool = True  # for the kernels
    factor: float = 1.0  # of the learning rates


def optimiser_of(muon: bool, factor: float = 1.0) -> ByRole:
    """Muon for the kernels and AdamW for the rest, or AdamW alone."""
    rest = AdamW(factor * LR, decay=USUAL.decay)
    return ByRole(rest, kernel=Muon(factor * MUON_LR)) if muon else ByRole(rest)


def task_of() -> Text:
    """Python's own source."""
    corpus = python_source()
    return Text(corpus, Characters.of(corpus.train + corpus.validation), CONTEXT, BATCH)


def model_of(size: tuple[int, int, int], vocabulary: int, seed: int) -> Transformer:
    """A plain GPT of this size."""
    d, h, z = size
    axes, native = discrete_axes(d, h, 4 * d, z, E)
    weights = counted(axes, z)
    fixed = weights.autonomous()
    block = pre_norm(
        (Attention(weights, mask=Causal()), Pointwise(weights, GELU(tanh=True))), lambda: LayerNorm(weights)
    )
    readout = Readout(fixed, vocabulary, before=(LayerNorm(fixed),), tied=True)
    model = Transformer(axes, native, Tokens(fixed, vocabulary, Learned(fixed, CONTEXT)), block, readout)
    initialise(model, GPT2Init(), torch.Generator().manual_seed(seed))
    return model


@dataclass(frozen=True)
class Laws:
    """The lessons of a training, its growth, and what learns afterwards."""

    elastic: Elastic | None = None
    grow: Growth | None = None
    afterwards: Afterwards | None = None


def laws(job: Job, model: Transformer) -> Laws:
    """What a training teaches beside its own size."""
    if job.kind not in ("elastic", "grown"):
        return Laws()
    if not job.muon:
        return Laws(Elastic())
    grow = growth(model.native, USUAL)
    return (
        Laws(lessons(USUAL), grow, afterwards(native_sizes(model), USUAL)) if job.kind == "elastic" else Laws(grow=grow)
    )


def prepared(job: Job, vocabulary: int) -> Transformer:
    """The model of a training; Muon's elastic one has corrections for sizes below half."""
    model = model_of(EVERY[job.size], vocabulary, job.seed)
    if job.kind not in ("elastic", "grown"):
        return model
    made = elastic(model)
    return corrected(made, USUAL) if job.kind == "elastic" and job.muon else made


def work(job: Job) -> dict[str, Any]:
    """Train and measure."""
    torch.set_num_threads(1)
    task = replace(task_of(), limit=WINDOWS)
    model = prepared(job, task.tokens.size)
    own = laws(job, model)
    start = time.process_time()
    fit(
        model,
        replace(task, limit=1),
        optimiser=optimiser_of(job.muon, job.factor),
        steps=job.steps,
        seed=job.seed,
        evaluate_every=job.steps,
        elastic=own.elastic,
        grow=own.grow,
        afterwards=own.afterwards,
    )
    found: dict[str, Any] = {**asdict(job), "cpu": time.process_time() - start, "losses": {}}
    found["weights"] = sum(parameter.numel() for parameter in model.parameters())
    model.eval()
    views: dict[str, Any] = {job.size: model}
    if job.kind == "elastic":
        views = {name: model.at(**dict(zip("dhz", size, strict=True))) for name, size in EVERY.items()}
        views |= {name: model.at(**wish) for name, wish in FINER.items()}
        views |= {name: model.at(z=Fixed(len(own), lengths=own)) for name, own in JOINED.items()}
        few = replace(task, limit=64)
        found["depth"] = [asdict(each) for each in depth_front(model, few)] if job.seed == 0 else []
        found["grid"] = grid_of(model, few) if job.seed == 0 and job.steps >= STEPS else []
    for name, view in views.items():
        found["losses"][name] = task.evaluate(view).main
    return found


def grid_of(model: Transformer, task: Text) -> list[dict[str, Any]]:
    """Loss and FLOPs of many sizes."""
    found = []
    for sizes in itertools.product(*GRID.values()):
        wish = at(**dict(zip(GRID, sizes, strict=True)))
        flops = predict(model, 1, CONTEXT, wish).forward
        found.append({"sizes": sizes, "loss": task.evaluate(model.at(wish)).main, "flops": flops})
    return found


def jobs(variant: str, seeds: int, steps: int) -> list[Job]:
    """What does not wait for others, seed by seed."""
    muon = variant != OLD
    longer = steps if variant in (EQUAL, OLD) else round(LONGER / STEPS * steps)
    every = []
    for seed in range(seeds):
        every.append(Job("elastic", "native", seed, longer, muon))
        if variant == NEW and seed == 0:
            every += [Job("grown", "native", seed, longer, muon), Job("longer", "native", seed, longer, muon)]
            every += [Job("separate", name, seed, steps, muon, factor) for name in CORNERS for factor in FACTORS]
        factors = FACTORS if seed == 0 else FACTORS[:1]
        every += [Job("separate", name, seed, steps, muon, factor) for name in SIZES for factor in factors]
    return every


def best_factors(lines: Iterable[dict[str, Any]], steps: int, muon: bool) -> dict[str, float]:
    """The better learning rate of each size, on the first seed."""
    own = [line for line in lines if (line["kind"], line["seed"], line["steps"], line["muon"])
           == ("separate", 0, steps, muon)]  # fmt: skip
    by = {(line["size"], line["factor"]): line["losses"][line["size"]] for line in own}
    named = (*SIZES, *CORNERS)
    return {name: min(FACTORS, key=lambda factor: by.get((name, factor), float("inf"))) for name in named}


def finished(path: Path) -> list[dict[str, Any]]:
    """What was trained before."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def key(job: Job) -> tuple[Any, ...]:
    """What makes two trainings the same."""
    return tuple(asdict(job).values())


def run_all(every: list[Job], path: Path, parallel: int) -> list[dict[str, Any]]:
    """Each training in a process of its own, ``parallel`` at a time."""
    names = list(asdict(every[0]))
    done = {tuple(line[name] for name in names) for line in finished(path)}
    waiting = [job for job in every if key(job) not in done]
    running: list[tuple[Job, subprocess.Popen[str]]] = []
    total, began = len(waiting), time.monotonic()
    while waiting or running:
        while waiting and len(running) < parallel:
            job = waiting.pop(0)
            command = [sys.executable, __file__, "--job", json.dumps(asdict(job))]
            running.append(
                (job, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
            )
        for pair in [pair for pair in running if pair[1].poll() is not None]:
            running.remove(pair)
            job, process = pair
            lines = (process.stdout.read() if process.stdout else "").strip().splitlines()
            if process.returncode or not lines:
                raise SystemExit(f"{job} failed with code {process.returncode}")
            with path.open("a") as kept:
                kept.write(lines[-1] + "\n")
            said = json.loads(lines[-1])
            left = len(waiting) + len(running)
            print(f"{total - left}/{total}  {job.kind} {job.size} seed {job.seed} × {job.factor:g}: "
                  f"{said['losses'][job.size]:.4f}  {said['cpu']:.0f} CPU-s, {time.monotonic() - began:.0f} s in all",
                  flush=True)  # fmt: skip
        time.sleep(0.5)
    return finished(path)


class Table:
    """The rows of a variant."""

    def __init__(self, lines: list[dict[str, Any]], variant: str, seeds: int, steps: int) -> None:
        self.seeds = range(seeds)
        self.steps = steps
        self.muon = variant != OLD
        self.longer = steps if variant in (EQUAL, OLD) else round(LONGER / STEPS * steps)
        self.factors = best_factors(lines, steps, self.muon)
        self.by = {tuple(line[k] for k in ("kind", "size", "seed", "steps", "muon", "factor")): line for line in lines}

    def apart(self, size: str) -> list[float]:
        """The separate models of a size, seed by seed."""
        factor = self.factors[size]
        keys = [("separate", size, seed, self.steps, self.muon, factor) for seed in self.seeds]
        return [self.by[key]["losses"][size] for key in keys]

    def ours(self, size: str, kind: str = "elastic", seeds: int | None = None) -> list[float]:
        """The losses of one training at a size, for all seeds or the first ones that measured it."""
        keys = [(kind, "native", seed, self.longer, self.muon, 1.0) for seed in self.seeds[:seeds]]
        found = [self.by[key]["losses"] for key in keys]
        return [losses[size] for losses in itertools.takewhile(lambda losses: size in losses, found)]

    def seeds_of(self, ours: list[float]) -> str:
        """How many seeds, where these are not all."""
        return "" if len(ours) == len(self.seeds) else f"; {len(ours)} of {len(self.seeds)} seeds"

    def rows(self) -> list[Row]:
        """Ratios seed by seed, their means over the seeds."""
        rows = []
        for name in SIZES:
            ours = self.ours(name)
            apart = self.apart(name)[: len(ours)]
            note = against(ours, apart) + (", never drawn" if name in UNSEEN else "") + self.seeds_of(ours)
            rows.append(percent(f"{name}, against separately trained", ours, apart, BOUNDS.get(name), note))
        native, three = self.ours("native"), self.apart("3 steps")
        for name, own in JOINED.items():
            if len(own) == 3:
                ours = self.ours(name)
                note = against(ours, three) + (", never drawn" if own == never_joined(4) else "")
                rows.append(percent(f"{name}, against a separate model of 3 steps", ours, three, None, note))
        for name in FINER:
            finer = self.ours(name)
            same = native[: len(finer)]
            said = against(finer, same) + self.seeds_of(finer)
            rows.append(percent(f"{name}, against native", finer, same, FINER_BOUNDS[name], said))
        return rows + self.plain()

    def plain(self) -> list[Row]:
        """Beside plain training for as many steps, and growth without lessons: the first seed."""
        rows = []
        for kind, name in (("longer", "plain training for as many steps"), ("grown", "growth without lessons")):
            if (kind, "native", 0, self.longer, self.muon, 1.0) in self.by:
                native, other = self.ours("native", seeds=1), self.ours("native", kind, 1)
                note = f"{against(native, other)}; one seed"
                rows.append(percent(f"native, against {name}", native, other, None, note))
        return rows

    def separate(self) -> list[Beside]:
        """The separate models of the first seed, for ``continua pareto --beside``."""
        vocabulary = task_of().tokens.size
        flops = {name: predict(model_of(size, vocabulary, 0), 1, CONTEXT).forward for name, size in SIZES.items()}
        return [Beside(name, flops[name], self.apart(name)[0]) for name in SIZES]

    def corners(self) -> list[Row]:
        """Separate models far from the diagonal: how far above the line is what our worst sizes could be?"""
        line = line_through(self.separate())
        rows = []
        for name, size in CORNERS.items():
            known = self.by.get(("separate", name, 0, self.steps, self.muon, self.factors[name]))
            if known is None or line is None:
                continue
            loss = known["losses"][name]
            expected = line(predict(model_of(size, task_of().tokens.size, 0), 1, CONTEXT).forward)
            rates = sum(("separate", name, 0, self.steps, self.muon, factor) in self.by for factor in FACTORS)
            note = f"{loss:.4f} nats, {expected:.4f} on the line{self.on_grid(size, loss)}; one seed"
            note += "" if rates == len(FACTORS) else ", one learning rate"
            gap = 100 * (loss / expected - 1)
            rows.append(Row(f"{name}, a separate model against that line", gap, None, None, "%", note=note))
        return rows

    def on_grid(self, size: tuple[int, int, int], apart: float) -> str:
        """What the first seed of ours loses at a size, against a separate model."""
        kept = self.by.get(("elastic", "native", 0, self.longer, self.muon, 1.0), {})
        found = [each["loss"] for each in kept.get("grid", []) if tuple(each["sizes"]) == size]
        return f"; ours {found[0]:.4f}, {100 * (found[0] / apart - 1):+.1f} %, on 64 windows" if found else ""

    def stored(self) -> list[Row]:
        """What one checkpoint holds, against a plain model of the native size."""
        kept = self.by.get(("elastic", "native", 0, self.longer, self.muon, 1.0), {})
        if "weights" not in kept:
            return []
        plain = sum(each.numel() for each in model_of(SIZES["native"], task_of().tokens.size, 0).parameters())
        more = 100 * (kept["weights"] / plain - 1)
        return [Row("numbers in the checkpoint, against a plain model", more, None, None, "%", "", None, f"{plain:,}")]

    def worst(self) -> list[Row]:
        """The worst of many sizes, against the line through the separate models over FLOPs (in logarithms)."""
        kept = self.by.get(("elastic", "native", 0, self.longer, self.muon, 1.0), {})
        line = line_through(self.separate())
        if not kept.get("grid") or line is None:
            return []
        inside = [each for each in kept["grid"] if all(k <= n for k, n in zip(each["sizes"], (D, H, Z), strict=True))]
        upper = [each for each in inside if all(2 * k >= n for k, n in zip(each["sizes"], (D, H, Z), strict=True))]
        behind = "against the line through separate models over FLOPs"
        return [
            worst_of(f"worst of {len(inside)} sizes, {behind}", inside, line, 6.0),
            worst_of(f"worst of the {len(upper)} from half of every axis on, {behind}", upper, line, None),
        ]


def worst_of(name: str, sizes: list[dict[str, Any]], line: Line, bound: float | None) -> Row:
    """The size that is furthest above the line."""
    gaps = [100 * (each["loss"] / line(each["flops"]) - 1) for each in sizes]
    gap = max(gaps)
    size = sizes[gaps.index(gap)]
    more = np.exp(size["loss"] - line(size["flops"]))
    note = (
        "d={} h={} z={}".format(*size["sizes"]) + f", perplexity × {more:.3f}; median {np.median(gaps):.2f} %; 1 seed"
    )
    target, held = ("", None) if bound is None else (f"≤ +{bound:g}", gap <= bound)
    return Row(name, gap, None, None, "%", target, held, note)


def against(ours: list[float], theirs: list[float]) -> str:
    """Two means of losses, and the ratio of the perplexities."""
    a, b = statistics.mean(ours), statistics.mean(theirs)
    return f"{a:.4f} against {b:.4f} nats, perplexity × {np.exp(a - b):.3f}"


def times(variant: str, steps: int = 24, rounds: int = 6) -> list[Row]:
    """What a training costs: whole schedules of few steps, and plain ones at twelve sizes, interleaved."""
    muon = variant != OLD
    vocabulary = task_of().tokens.size
    fits = {name: trained(model_of(EVERY[name], vocabulary, 0), Laws(), steps, muon) for name in TWELVE}
    job = Job("elastic", "native", 0, steps, muon)
    own = prepared(job, vocabulary)
    fits["ours"] = trained(own, laws(job, own), steps, muon)
    seen = interleaved({name: lambda one=one: cpu_seconds(one) for name, one in fits.items()}, rounds, 1)
    longer = 1.0 if variant in (EQUAL, OLD) else LONGER / STEPS
    whole = [longer * value for value in seen["ours"]]
    found = ratio(whole, seen["native"])
    total = [sum(seen[name][i] for name in TWELVE) for i in range(rounds)]
    share = ratio(whole, total)
    note = f"the whole schedule in {steps} steps, {rounds} interleaved rounds, times {longer:g} for its steps"
    return [
        row("elastic / plain training, CPU time", found, target="≤ 1.5", held=found.median <= 1.5, note=note),
        row("elastic / 12 separate trainings, CPU time", share, target="≤ 0.21", held=share.median <= 0.21),
    ]


def trained(model: Transformer, own: Laws, steps: int, muon: bool) -> Callable[[], object]:
    """A short training, to be timed."""
    task = replace(task_of(), limit=1)
    optimiser, seeds = optimiser_of(muon), itertools.count()  # a new seed draws other sizes
    return lambda: fit(model, task, optimiser=optimiser, steps=steps, seed=next(seeds), evaluate_every=steps,
                       elastic=own.elastic, grow=own.grow, afterwards=own.afterwards,
                       watch=lambda at: None)  # fmt: skip


def percent(name: str, ours: list[float], theirs: list[float], bound: float | None, note: str) -> Row:
    """Mean of the ratios of each seed, in percent, between the least and the greatest."""
    each = [100 * (a / b - 1) for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.mean(each)
    target, held = ("", None) if bound is None else (f"≤ +{bound:g}", mean <= bound)
    return Row(name, mean, min(each), max(each), "%", target, held, note)


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--adamw", action="store_true", help="no Muon and no growth; written as elastic_adamw")
    parser.add_argument("--equal", action="store_true", help="as many steps as separate models have; elastic_equal")
    parser.add_argument("--separate", action="store_true", help="train the separate models only, write no table")
    parser.add_argument("--brief", action="store_true", help="train nothing for rows that promise nothing")
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is written")
    parser.add_argument("--timeless", action="store_true", help="keep the times measured before")
    parser.add_argument("--times", action="store_true", help="measure the times alone")
    parser.add_argument("--rounds", type=int, default=6, help="of times")
    parser.add_argument("--timed", type=int, default=24, help="steps of a schedule that is timed")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        print(json.dumps(work(Job(**json.loads(chosen.job)))))
        return
    variant = OLD if chosen.adamw else EQUAL if chosen.equal else NEW
    if chosen.times:
        rows = times(variant, chosen.timed, chosen.rounds)
        for line in rows:
            print(f"{line.name}: {line.shown}  {line.target} {line.verdict}  {line.note}")
        print(write(NAMES[variant], rows, part=True))
        return
    steps, seeds = (20, 1) if chosen.quick else (chosen.steps, chosen.seeds)
    path = RESULTS / f"elastic-{'quick' if chosen.quick else 'runs'}.jsonl"
    every = [job for job in jobs(variant, seeds, steps) if job.kind == "separate" or not chosen.separate]
    every = [job for job in every if not chosen.brief or (job.kind in ("separate", "elastic") and job.size in SIZES)]
    lines = run_all([job for job in every if job.seed == 0], path, chosen.jobs)
    better = best_factors(lines, steps, variant != OLD)
    rest = [replace(job, factor=better[job.size]) if job.kind == "separate" else job for job in every if job.seed]
    lines = run_all(rest, path, chosen.jobs) if rest else lines
    if chosen.separate:
        return
    table = Table(lines, variant, seeds, steps)
    rows = [*table.rows(), *table.worst(), *table.corners(), *table.stored()]
    rows += (
        times(variant, 6, 1) if chosen.quick else [] if chosen.timeless else times(variant, chosen.timed, chosen.rounds)
    )
    for line in rows:
        print(f"{line.name}: {line.shown}  {line.target} {line.verdict}  {line.note}")
    if chosen.quick:
        path.unlink()
        return
    print(write_beside(table.separate(), RESULTS / f"{NAMES[variant]}_separate.json"))
    first = table.by["elastic", "native", 0, table.longer, table.muon, 1.0]
    corpus = python_source()
    also = {"steps": steps, "seeds": seeds, "lr": LR, "corpus": {"name": corpus.name, "sha256": corpus.sha256}}
    print(
        write(
            NAMES[variant], rows, environment=environment(), part=chosen.timeless, depth=first.get("depth", []), **also
        )
    )


if __name__ == "__main__":
    main()
