"""Elastic text: one checkpoint for every width, number of heads and depth."""

from dataclasses import dataclass, fields, replace

import torch

from continua.axes import Discretisation, at
from continua.models import GPT2Init, initialise
from continua.models import elastic as made_elastic
from continua.optim import AdamW, ByRole, Muon
from continua.recipes.recipe import Bundle, shipped
from continua.recipes.text import TextSettings, text
from continua.settings import Count, NonNegative, PartialShare, Share, checked
from continua.training import Elastic, Growth, Stage


@checked
@dataclass(frozen=True)
class ElasticSettings(TextSettings):
    """The settings of ``text``, how the model grows, and how other sizes are drawn and taught.

    ``matrix_lr`` is the learning rate of Muon, which trains the kernels; 0 leaves them to AdamW. ``coarse`` and
    ``half`` are shares of all steps: until the first half of everything is trained, until the second half of the
    width or half of the depth in turn, then the native size with lessons for others; 0 and 0 do not grow. ``draws``,
    ``parts``, ``start``, ``deep``, ``joined`` and ``share`` (there ``weight``) are those of ``training.Elastic``.
    """

    lr: NonNegative = 4e-3
    matrix_lr: NonNegative = 0.02
    coarse: PartialShare = 0.2
    half: PartialShare = 1 / 3
    draws: Count = 1
    parts: Count = Elastic.parts
    start: Share = 0.0
    share: Share = 0.8
    deep: Share = 0.3
    joined: Share = 0.45


@shipped
def elastic(settings: ElasticSettings) -> Bundle:
    """A language model on a text that serves many sizes: ``continua pareto`` shows them."""
    own = {f.name: getattr(settings, f.name) for f in fields(TextSettings)}
    bundle = text(TextSettings(**{**own, "discrete": True}))
    initialise(bundle.model, GPT2Init(), torch.Generator().manual_seed(settings.weights))
    model = made_elastic(bundle.model)
    grow = growth(model.native, settings.coarse, settings.half)
    training = replace(bundle.training, steps=1200, elastic=lessons(settings), grow=grow)
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
    )


def growth(native: Discretisation, coarse: float, half: float) -> Growth | None:
    """Half of everything, then half of the width and half of the depth in turn, then the native size."""
    d, h = (max(1, rule.n // 2) for rule in (native.d, native.h))  # type: ignore[union-attr]
    z = max(1, native.z.steps // 2)
    plan = ((coarse, (at(d=d, h=h, z=z),)), (half, (at(d=d), at(d=d), at(z=z))))
    stages = tuple(Stage(sizes, until) for until, sizes in plan if until > 0)
    return Growth(stages) if stages else None
