"""Elastic text: one checkpoint for every width, number of heads and depth."""

from dataclasses import dataclass, fields, replace

import torch

from continua.models import GPT2Init, initialise
from continua.models import elastic as made_elastic
from continua.optim import AdamW, ByRole, Muon
from continua.recipes.recipe import Bundle, shipped
from continua.recipes.text import TextSettings, text
from continua.settings import Count, NonNegative, Share, checked
from continua.training import Elastic


@checked
@dataclass(frozen=True)
class ElasticSettings(TextSettings):
    """The settings of ``text``, and how other sizes are drawn and taught.

    ``draws``, ``parts``, ``start``, ``deep`` and ``share`` (there ``weight``) are those of ``training.Elastic``.
    ``matrix_lr`` > 0 trains the kernels by Muon at this rate: lower losses at every size, but the sizes lie farther
    apart (docs/benchmarks has the numbers).
    """

    lr: NonNegative = 4e-3
    matrix_lr: NonNegative = 0.0
    draws: Count = Elastic.draws
    parts: Count = Elastic.parts
    start: Share = Elastic.start
    share: Share = Elastic.weight
    deep: Share = Elastic.deep


@shipped
def elastic(settings: ElasticSettings) -> Bundle:
    """A language model on a text that serves many sizes: ``continua pareto`` shows them."""
    own = {f.name: getattr(settings, f.name) for f in fields(TextSettings)}
    bundle = text(TextSettings(**{**own, "discrete": True}))
    law = Elastic(
        draws=settings.draws,
        parts=settings.parts,
        start=settings.start,
        weight=settings.share,
        deep=settings.deep,
    )
    initialise(bundle.model, GPT2Init(), torch.Generator().manual_seed(settings.weights))
    training = replace(bundle.training, steps=1000, elastic=law)
    rest = AdamW(settings.lr, decay=settings.decay)
    optimiser = ByRole(rest, kernel=Muon(settings.matrix_lr)) if settings.matrix_lr else bundle.optimiser
    return replace(bundle, model=made_elastic(bundle.model), optimiser=optimiser, training=training)
