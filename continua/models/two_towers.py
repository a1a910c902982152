"""Two flows beside each other, and how alike their answers are."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from continua.axes import Axes, Discretisation
from continua.config import register
from continua.errors import ConfigError, ShapeError
from continua.fields.role import SHIFT, Role
from continua.models.base import ModelBase
from continua.models.batch import Batch
from continua.models.model import Pass, Reads
from continua.models.transformer import Transformer, chosen_sizes
from continua.models.view import View
from continua.typing import Tensor

LOG_SCALE = 2.6592  # log(1/0.07), where CLIP starts


@register
class TwoTowers(ModelBase):
    """y(i, j) = e^s ⟨f_i/|f_i|, g_j/|g_j|⟩ of all texts i and images j; s is learned.

    ``Batch(texts, source=Batch(images))``: each goes to its own flow, whose readout answers with one vector for each
    sample; there may be more of the one than of the other. One discretisation serves both; what it leaves open stays
    native to each. ``model.texts(…)`` and ``model.images(…)`` are the vectors f and g.
    Discrete case: CLIP, ``logits_per_text``.
    """

    def __init__(self, images: Transformer, texts: Transformer, log_scale: float = LOG_SCALE) -> None:
        super().__init__()
        for flow in (images, texts):
            if flow.readout is None or flow.readout.answers_each_token:
                remedy = "Give both flows a readout with first, last or pool."
                raise ConfigError("a tower answers with one vector", got="one for each token", remedy=remedy)
        self.images = images
        self.texts = texts
        self.log_scale = nn.Parameter(torch.tensor(log_scale))
        self.execution = texts.execution
        images.execution = texts.execution  # one way of running serves both

    def parameter_roles(self) -> dict[str, Role | None]:
        """The scale is a plain parameter."""
        return {"log_scale": SHIFT}

    @property
    def axes(self) -> Axes:
        """Those of the texts."""
        return self.texts.axes

    @property
    def native(self) -> Discretisation:
        """That of the texts."""
        return self.texts.native

    @property
    def flows(self) -> tuple[Transformer, ...]:
        """The images, and the texts whose path is kept."""
        return self.images, self.texts

    def forward(self, batch: Batch, at: Discretisation | None = None, told: Pass | None = None) -> Tensor:
        """Return [texts, images]."""
        if not isinstance(batch, Batch) or batch.source is None:
            remedy = "Pass Batch(texts, source=Batch(images)), or ask one tower: model.texts(…), model.images(…)."
            raise ShapeError("two towers compare texts with images", got="one of them", remedy=remedy)
        texts: Tensor = self.texts(batch, at, told)
        if told is not None and told.velocity_at is not None:
            return texts
        reads = None if told is None or told.reads is None else Pass(reads=told.reads.source)
        images: Tensor = self.images(batch.source, at, reads)
        return _unit(texts) @ _unit(images).mT * self.log_scale.exp()

    def read(self, at: Discretisation | None = None) -> Reads:
        """Read the weights of both flows, to be kept while they do not change."""
        return replace(self.texts.read(at), source=self.images.read(at))

    def laid(self, batch: Batch, at: Discretisation | None = None) -> Batch:
        """Return texts and images as tokens on their grids; see ``Transformer.laid``."""
        source = None if batch.source is None else self.images.laid(batch.source, at)
        return replace(self.texts.laid(batch, at), source=source)

    def at(self, discretisation: Discretisation | None = None, **sizes: Any) -> View:
        """Return a frozen view of both flows on another discretisation."""
        for flow in self.flows:
            flow.at(discretisation, **sizes)  # refuses what does not fit
        return View(self, chosen_sizes(discretisation, sizes))

    def settle(self, wish: Discretisation | None) -> Discretisation:
        """Fill what ``wish`` leaves open with the native choice of the texts."""
        return self.texts.settle(wish)


def _unit(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()
