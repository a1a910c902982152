"""Elastic text: one checkpoint for every width, number of heads and depth."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from continua.axes import Discretisation, at
from continua.convert import elastic as made_elastic
from continua.convert import with_corrections
from continua.fields import Corrections
from continua.models import GPT2Init, initialise
from continua.optim import AdamW, ByRole, Muon
from continua.recipes.recipe import Bundle, shipped
from continua.recipes.text import TextSettings, text
from continua.settings import Count, NonNegative, PartialShare, Share, SomeShare, checked
from continua.training import Afterwards, Elastic, Growth, Stage
from continua.training.sizes import native_sizes

RANKS = {"d": 3 / 16, "h": 1 / 16, "z": 3 / 32, "a": 1 / 4}  # of corrections, as shares of the width
QUARTER, APART = 20, 58  # how often a quarter of everything is listed beside others, and where it has its own kernels
STEPS = 1250  # before those in which corrections learn
QUARTER_RATE = 0.5  # of the learning rates: a weight of a quarter of everything counts for many


@checked
@dataclass(frozen=True)
class ElasticSettings(TextSettings):
    """The settings of ``text``, how the model grows, and how other sizes are drawn and taught.

    ``matrix_lr`` is the learning rate of Muon, which trains the kernels; 0 leaves them to AdamW. ``quarter``,
    ``coarse``, ``half`` and ``most`` are shares of all steps: until the first a quarter of everything is trained,
    until the second half of everything, until the third half of the width or half of the depth in turn, until the
    fourth three quarters of either, then the native size with lessons for others; four zeros do not grow.
    ``examples`` is the share of each batch that coarse grids learn from, and the native size until the share ``few``
    of all steps. ``draws``, ``parts``, ``start``, ``deep``, ``joined``, ``quarters``, ``mix``, ``often`` and
    ``share`` (there ``weight``) are those of ``training.Elastic``.
    ``below`` times as many steps follow in which sizes below half learn by corrections that no other size reads; 0
    leaves them and the corrections out. ``apart`` gives a quarter of everything whole kernels of its own to learn
    instead of a part of every correction: its steps, which are most of those that follow, cost less.
    """

    lr: NonNegative = 3e-3
    matrix_lr: NonNegative = 0.015
    quarter: PartialShare = 0.0
    coarse: PartialShare = 0.2
    half: PartialShare = 0.4
    most: PartialShare = 0.55
    few: PartialShare = 0.0
    examples: SomeShare = 1.0
    draws: Count = 1
    parts: Count = 4
    start: Share = 0.0
    share: Share = 0.6
    deep: Share = 0.0
    joined: Share = 0.65
    quarters: Share = 0.0
    mix: str = "dddhzaarr"
    often: SomeShare = 0.75
    below: NonNegative = 0.575
    apart: bool = True


@shipped
def elastic(settings: ElasticSettings) -> Bundle:
    """A language model on a text that serves many sizes: ``continua pareto`` shows them."""
    own = {f.name: getattr(settings, f.name) for f in fields(TextSettings)}
    bundle = text(TextSettings(**{**own, "discrete": True}))
    initialise(bundle.model, GPT2Init(), torch.Generator().manual_seed(settings.weights))
    model = corrected(made_elastic(bundle.model), settings)
    grow = growth(model.native, settings)
    later = afterwards(native_sizes(model), settings)
    training = replace(bundle.training, steps=STEPS, elastic=lessons(settings), grow=grow, afterwards=later)
    return replace(bundle, model=model, optimiser=optimiser(settings), training=training)


def optimiser(settings: ElasticSettings) -> ByRole:
    """Muon for the kernels, AdamW for the rest."""
    rest = AdamW(settings.lr, decay=settings.decay)
    return ByRole(rest, kernel=Muon(settings.matrix_lr)) if settings.matrix_lr else ByRole(rest)


def lessons(settings: ElasticSettings) -> Elastic:
    """Which sizes learn from the native one."""
    return Elastic(
        draws=settings.draws,
        parts=settings.parts,
        start=settings.start,
        weight=settings.share,
        deep=settings.deep,
        joined=settings.joined,
        quarters=settings.quarters,
        mix=settings.mix,
        often=settings.often,
    )


def growth(native: Discretisation, settings: ElasticSettings) -> Growth | None:
    """A quarter of everything, half of everything, half and three quarters of the width and depth in turn, then all.

    The native size is a stage too where it begins with a part of its batches.
    """
    quarter, half, most = (
        {k: max(1, part * n // 4) for k, n in (("d", native.d.n), ("h", native.h.n), ("z", native.z.steps))}  # type: ignore[union-attr]
        for part in (1, 2, 3)
    )
    plan = (
        Stage((at(**quarter),), settings.quarter, rate=QUARTER_RATE, batch=settings.examples),
        Stage((at(**half),), settings.coarse, batch=settings.examples),
        Stage((at(d=half["d"]), at(z=half["z"])), settings.half, batch=settings.examples),
        Stage((at(d=most["d"]), at(z=most["z"])), settings.most, batch=settings.examples),
    )
    coarse = tuple(stage for stage in plan if stage.until > 0)
    early = Stage((at(),), settings.few, batch=settings.examples)
    grown = max((stage.until for stage in coarse), default=0.0)
    stages = (*coarse, early) if early.until > grown else coarse
    return Growth(stages) if stages else None


def corrected(model: Any, settings: ElasticSettings) -> Any:
    """The model with corrections of sizes below half; ranks are shares of the width."""
    full = native_sizes(model)
    along = "".join(k for k, n in full.items() if n > 2 * max(1, n // 4))
    if settings.below == 0 or not along:
        return model
    along += "a" if len(along) > 1 else ""
    apart = settings.apart and "a" in along
    ranks = tuple(None if apart and k == "a" else max(1, round(RANKS[k] * full["d"])) for k in along)
    return with_corrections(model, Corrections(ranks, along, beyond=1.0, apart=apart), settings.weights)


def afterwards(full: Mapping[str, int], settings: ElasticSettings) -> Afterwards | None:
    """Every size below half once, and more often those whose corrections many others read."""
    some = {k: sorted({max(1, n // 4), max(1, n // 2), n}) for k, n in full.items()}
    narrow = max(1, 3 * full["d"] // 8)
    some["d"] = sorted({*some["d"], narrow})
    every = [dict(zip(full, sizes, strict=True)) for sizes in itertools.product(*some.values())]
    below = [sizes for sizes in every if any(2 * sizes[k] < n for k, n in full.items())]
    if settings.below == 0 or not below:
        return None
    least = {k: sizes[0] for k, sizes in some.items()}
    more = (  # times beside the one of each; the shares were found by trial (decision 019)
        (least, APART if settings.apart else QUARTER),
        ({**full, "d": least["d"]}, 24),
        ({**full, "d": narrow}, 7),
        ({**least, "d": narrow}, 2),
        ({**full, "d": least["d"], "z": least["z"]}, 3),
        ({**full, "h": least["h"]}, 2),
        ({**full, "z": least["z"]}, 3),
        ({**least, "d": full["d"]}, 3),
    )
    drawn = [at(**sizes) for sizes in below]
    drawn += [at(**sizes) for sizes, times in more for _ in range(times) if sizes in below]
    table = Muon(2.0 * settings.matrix_lr) if settings.matrix_lr else None
    kernel = Muon(4.0 * settings.matrix_lr) if settings.matrix_lr else None
    own = ByRole(AdamW(4 / 3 * settings.lr, decay=0.0), table=table, kernel=kernel if settings.apart else None)
    return Afterwards(settings.below, tuple(drawn), own)
