"""How a model is trained: numbers that are written into the run."""

from dataclasses import dataclass

import torch

from continua.axes import Discretisation
from continua.config import register
from continua.errors import ConfigError, nearest
from continua.flow import Adjoint
from continua.settings import Count, Positive, Seed
from continua.training.afterwards import Afterwards
from continua.training.discretisations import Discretisations, discretisations
from continua.training.elastic import Elastic
from continua.training.growth import Growth

PRECISIONS = {"float32": None, "float64": None, "bfloat16": torch.bfloat16}


@register
@dataclass(frozen=True)
class Training:
    """``steps`` of one batch each, cut into ``accumulate`` micro-batches.

    ``seed`` decides all that is drawn: batches, dropout, sizes. ``clip`` bounds the norm of the gradient. ``precision``
    "bfloat16" computes fields in half precision with the state and the weights in full, "float64" makes the weights
    double, "float32" takes the model as it is. Every ``evaluate_every`` steps the held-out data are measured, every
    ``save_every`` steps a checkpoint is written. ``patience`` ends the run after so many evaluations without a better
    one. ``adjoint`` says how gradients are computed. ``at`` is the discretisation on which the loss, its running costs
    and held-out data are computed, a tolerance instead of steps among them (None: the native one); one that is drawn
    anew at every step (``Discretisations``) serves the loss alone, and held-out data are measured on the native one.
    ``elastic`` lets other sizes learn beside the native one. ``grow`` begins on coarse grids: the loss and held-out
    data are computed on those of its stage, and other sizes learn when the native one is reached. ``afterwards`` are
    more steps, in which corrections alone learn. ``compile`` runs the
    model through ``torch.compile``, forward and backward; where steps are searched for, the field alone. ``sharded``
    shards weights among processes instead of copying them. ``shard_tokens`` processes share the tokens of each sample,
    beside those that have other samples; held-out data are measured with all tokens on each. ``tensorboard`` draws the
    history as curves, into the run's folder ``curves``. ``time_limit`` is how many seconds processes wait for one of
    them that does not answer any more.
    """

    steps: Count = 2000
    seed: Seed = 0
    accumulate: Count = 1
    clip: Positive | None = 1.0
    precision: str = "float32"
    evaluate_every: Count = 200
    save_every: Count = 50
    patience: Count | None = None
    adjoint: Adjoint | None = None
    at: Discretisation | Discretisations | None = None
    elastic: Elastic | None = None
    grow: Growth | None = None
    afterwards: Afterwards | None = None
    compile: bool = False
    sharded: bool = False
    shard_tokens: Count = 1
    tensorboard: bool = False
    time_limit: Positive = 600.0

    def __post_init__(self) -> None:
        discretisations(self.at)  # refuses what is none
        if self.grow is not None and self.at is not None:
            remedy = "Leave at out, or say it as the sizes of a stage."
            raise ConfigError("grow says where the loss is computed", got=f"at={self.at} too", remedy=remedy)
        if self.afterwards is not None and (self.patience is not None or self.sharded):
            remedy = "Leave patience out, and weights whole (sharded=False)."
            raise ConfigError("corrections learn after all steps, on whole weights", got=self, remedy=remedy)
        if self.shard_tokens > 1 and self.compile:
            remedy = "Leave it out, or shard_tokens."
            raise ConfigError("tokens in parts are not compiled", got="compile=True", remedy=remedy)
        if self.precision not in PRECISIONS:
            remedy = nearest(self.precision, list(PRECISIONS))
            raise ConfigError("this precision is not known", got=self.precision, remedy=remedy)

    @property
    def total(self) -> int:
        """All steps, those afterwards among them."""
        return self.steps if self.afterwards is None else self.steps + self.afterwards.steps(self.steps)

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of fields under autocast."""
        return PRECISIONS[self.precision]

    def autocast_on(self, device: torch.device) -> torch.autocast:
        """The context in which losses and held-out data are computed."""
        dtype = self.autocast
        return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)
