"""The table of ``elastic.py``: every size against separate models, the worst of many, what a checkpoint holds."""

import itertools
import statistics
from typing import Any

import numpy as np
from common import Row
from elastic_jobs import (
    CONTEXT,
    CORNERS,
    EQUAL,
    FACTORS,
    FINER,
    JOINED,
    LONGER,
    OLD,
    PATIENT,
    SIZES,
    STEPS,
    D,
    H,
    Z,
    best_factors,
    model_of,
    task_of,
)  # fmt: skip

from continua.lab.cost.beside import Beside, Line, line_through
from continua.lab.cost.complexity import predict
from continua.training.sizes import never_joined

BOUNDS = {"native": 2.0, "half width": 0.0, "5/8 width": 1.0, "half of all": 1.0, "a quarter of all": 3.0,
          "half heads": 2.0, "3 heads": 3.0, "half depth": 4.0, "3 steps": 5.0}  # fmt: skip
FINER_BOUNDS = {"twice the steps": 1.0, "twice the width": 1e-4}
UNSEEN = ("5/8 width", "3 heads")


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
        if line is None:
            return []
        vocabulary = task_of().tokens.size
        models = {name: model_of(size, vocabulary, 0) for name, size in CORNERS.items()}
        expected = {name: line(predict(model, 1, CONTEXT).forward) for name, model in models.items()}
        rows = []
        for name, size in CORNERS.items():
            known = self.by.get(("separate", name, 0, self.steps, self.muon, self.factors[name]))
            if known is not None:
                loss = known["losses"][name]
                rates = sum(("separate", name, 0, self.steps, self.muon, factor) in self.by for factor in FACTORS)
                said = f"{self.on_grid(size, loss)}; one seed{'' if rates == len(FACTORS) else ', one learning rate'}"
                rows.append(above(f"{name}, a separate model against that line", loss, expected[name], said))
        corner, lengths = PATIENT  # how long the worst one has to be trained by itself to come near the line
        for steps in (own * self.steps // STEPS for own in lengths):
            known = self.by.get(("separate", corner, 0, steps, self.muon, FACTORS[-1]))
            if known is not None:
                name = f"{corner}, a separate model of {steps:,} steps against that line"
                rows.append(above(name, known["losses"][corner], expected[corner], "; one seed, one learning rate"))
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


def above(name: str, loss: float, expected: float, said: str) -> Row:
    """How far a loss lies above the line through separate models."""
    note = f"{loss:.4f} nats, {expected:.4f} on the line{said}"
    return Row(name, 100 * (loss / expected - 1), None, None, "%", note=note)


def against(ours: list[float], theirs: list[float]) -> str:
    """Two means of losses, and the ratio of the perplexities."""
    a, b = statistics.mean(ours), statistics.mean(theirs)
    return f"{a:.4f} against {b:.4f} nats, perplexity × {np.exp(a - b):.3f}"


def percent(name: str, ours: list[float], theirs: list[float], bound: float | None, note: str) -> Row:
    """Mean of the ratios of each seed, in percent, between the least and the greatest."""
    each = [100 * (a / b - 1) for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.mean(each)
    target, held = ("", None) if bound is None else (f"≤ +{bound:g}", mean <= bound)
    return Row(name, mean, min(each), max(each), "%", target, held, note)
