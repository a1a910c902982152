"""Steps behind all others, in which corrections alone learn: sizes that read none stay as they are, to the bit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from continua.axes import Discretisation
from continua.config import register, to_plain
from continua.errors import ConfigError, RunError
from continua.fields.corrected import CorrectedTable
from continua.operators import Correction
from continua.operators.correction import corrections_of
from continua.optim import AdamW, ByRole, Optimisers
from continua.settings import Positive
from continua.tasks import generator_for


@register
@dataclass(frozen=True)
class Afterwards:
    """More steps, each on one of ``sizes``, in which nothing learns but corrections: ``share`` times as many as before.

    A size learns from the data, as if it were the model: no native answers are needed, so that a step costs what its
    size costs. Each is drawn once before one is drawn again; one that is listed twice is drawn twice as often.
    ``optimiser`` has the corrections to itself, and the schedule begins again. The model needs corrections
    (``with_corrections``) that every listed size reads.

    >>> from continua.axes import at
    >>> Afterwards(0.5, (at(d=32, h=1, z=1), at(z=1))).steps(800)
    400
    """

    share: Positive
    sizes: tuple[Discretisation, ...]
    optimiser: ByRole = ByRole(AdamW(4e-3, decay=0.0))  # noqa: RUF009  (frozen)

    def __post_init__(self) -> None:
        if not self.sizes:
            remedy = "Write Afterwards(0.5, (at(d=32, h=1, z=1), at(z=1)))."
            raise ConfigError("some size learns afterwards", got="none", remedy=remedy)

    def steps(self, before: int) -> int:
        """How many steps these are after so many others."""
        return max(1, round(self.share * before))

    def over(self, model: Any, begins: int) -> "Correcting":
        """The same for one model, after so many steps; refuses what nothing would learn from."""
        for size in self.sizes:
            if not _reads_corrections(model, size):
                remedy = "Name sizes beyond those that the model serves by itself, or make it by with_corrections."
                raise ConfigError("this size reads no correction, so that nothing would learn", got=size, remedy=remedy)
        return Correcting(self, model, begins)


@dataclass
class Correcting:
    """Where the steps afterwards are: they begin once, with an optimiser of their own, and end with the run."""

    law: Afterwards
    model: Any
    begins: int
    begun: bool = False
    before: dict[str, bool] = field(default_factory=dict)  # which parameters learned until then

    @property
    def steps(self) -> int:
        """How many they are."""
        return self.law.steps(self.begins)

    def is_due(self, step: int) -> bool:
        """Whether a step is one of these."""
        return step >= self.begins

    def begin(self) -> Optimisers:
        """Freeze all but corrections, and make the optimiser of these."""
        self.before = {name: own.requires_grad for name, own in self.model.named_parameters()}
        self.model.requires_grad_(False)
        self.model.zero_grad(set_to_none=True)  # what the last step left would count for the norm of the gradient
        for own in corrections_of(self.model):
            own.requires_grad_(True)
        self.begun = True
        return self.law.optimiser.make(self.model)

    def end(self) -> None:
        """Let everything learn again that did before."""
        for name, own in self.model.named_parameters():
            own.requires_grad_(self.before.get(name, own.requires_grad))
        self.begun = False

    def place(self, seed: int, step: int) -> Discretisation:
        """The size that learns at a step: a function of both, equal on all processes."""
        sizes = self.law.sizes
        turn, place = divmod(step - self.begins, len(sizes))
        order = torch.randperm(len(sizes), generator=generator_for("afterwards", seed, turn))
        return sizes[int(order[place])]

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"law": to_plain(self.law), "begins": self.begins, "begun": self.begun}


def _reads_corrections(model: Any, size: Discretisation) -> bool:
    """Whether something of a model is corrected at a size."""
    for flow in model.flows:
        structure = flow.structure(size)
        grids = structure.grids.with_depths(structure.behind)
        for module in flow.modules():
            if isinstance(module, Correction) and module.sizes(grids):
                return True
            if isinstance(module, CorrectedTable) and module.size(grids.d):
                return True
    return False


def refuse_other_ending(own: Correcting | None, kept: Any) -> None:
    """A run whose corrections have begun to learn goes on as it was planned: others would learn from another model."""
    begun = isinstance(kept, Mapping) and kept.get("begun") is True
    if not begun:
        return
    asked = None if own is None else own.plain()
    if asked is None or {**asked, "begun": True} != dict(kept):
        remedy = "Leave steps and afterwards as they were, or start a new run."
        raise RunError("the corrections of this run have begun to learn", got="another schedule", remedy=remedy)
