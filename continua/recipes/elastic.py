"""Elastic text: one checkpoint for every width, number of heads and depth."""

from dataclasses import dataclass, fields, replace

import torch

from continua.models import GPT2Init, initialise
from continua.models import elastic as made_elastic
from continua.recipes.recipe import Bundle, shipped
from continua.recipes.text import TextSettings, text
from continua.training import Elastic


@dataclass(frozen=True)
class ElasticSettings(TextSettings):
    """The settings of ``text``, and how other sizes are drawn and taught (see ``training.Elastic``)."""

    lr: float = 4e-3
    draws: int = Elastic.draws
    parts: int = Elastic.parts
    start: float = Elastic.start
    share: float = Elastic.weight
    deep: float = Elastic.deep


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
    return replace(bundle, model=made_elastic(bundle.model), training=training)
