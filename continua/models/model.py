"""What a model is to those who use it: the protocol, how it is executed, and one pass through it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from continua.axes import Axes, Discretisation, Grid
from continua.flow import Adjoint, Direct, SaveAt, Trajectory
from continua.flow.vectorfield import Bound, Cost
from continua.models.batch import Batch
from continua.operators import Context
from continua.typing import Callable, Iterator, Tensor


@dataclass
class Execution:
    """How a model is run. It is no part of what the model is, and it is not saved.

    ``adjoint`` says how gradients are computed. ``check=False`` reads no value on the way: nothing is refused for its
    numbers, NaN is not looked for, and no device is waited for. ``generator`` draws dropout. ``search`` changes every
    part of the field where steps are searched for; training compiles it there.
    """

    adjoint: Adjoint = field(default_factory=Direct)
    check: bool = True
    generator: torch.Generator | None = None
    search: Callable[[Bound], Bound] | None = None


@dataclass(frozen=True)
class Reads:
    """The weights of a whole model, read on one discretisation: those of the embedding, the parts and the readout."""

    embed: Any
    parts: tuple[Any, ...]
    readout: Any
    bank: Any = None
    source: "Reads | None" = None  # of the flow that encodes the source


def constant_weight(weight: Tensor) -> Tensor:
    """The same numbers as a parameter without gradient: of parameters a compiler takes the shapes as given."""
    return nn.Parameter(weight.detach(), requires_grad=False)


@dataclass
class Pass:
    """One pass through a model: what it is told beside the batch, and what it leaves beside the answer.

    ``context`` is another field to look at; ``keep`` and ``cost`` are the solver's; ``tokens`` places the batch;
    ``reads`` are weights that were read before and ``programs`` what was bound with them; ``last`` answers behind the
    last token of each sample alone. ``velocity_at=(z, x)`` asks for F(z, x) in place of the answer. ``whole`` asks for
    the path: after the pass ``path`` is the trajectory, ``t`` the token grid.
    """

    context: Context | None = None
    keep: SaveAt | None = None
    cost: Callable[[Grid, Grid], Cost | None] | None = None
    tokens: Grid | None = None
    reads: Reads | None = None
    programs: dict[Any, Any] | None = None
    last: bool = False
    velocity_at: tuple[float, Tensor] | None = None
    whole: bool = False
    path: Trajectory | None = None
    t: Grid | None = None


@runtime_checkable
class Model(Protocol):
    """A flow from data to answers, or several of which the last one answers.

    Every instrument (training, penalties, elastic sizes, generation, probes, storing) asks for no more than this.
    """

    execution: Execution
    axes: Axes
    native: Discretisation

    @property
    def flows(self) -> tuple[Any, ...]:
        """The Transformers it is made of, the one that answers last."""
        ...

    def __call__(self, batch: Batch | Tensor, at: Discretisation | None = None, told: Pass | None = None) -> Tensor:
        """Return the answer; the one entry, through which hooks fire."""
        ...

    def run(
        self,
        batch: Batch | Tensor,
        at: Discretisation | None = None,
        *,
        keep: SaveAt = ...,
        cost: Callable[[Grid, Grid], Cost | None] | None = None,
    ) -> tuple[Tensor, Trajectory, Grid]:
        """Return the answer, the path of the last flow and its token grid."""
        ...

    def velocity(self, batch: Batch | Tensor, z: float, x: Tensor, at: Discretisation | None = None) -> Tensor:
        """Return F(z, x) of the last flow."""
        ...

    def settle(self, wish: Discretisation | None) -> Discretisation:
        """Fill what ``wish`` leaves open with the native choice."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters."""
        ...

    def save(self, folder: str | Path) -> Path:
        """Write the model into a folder."""
        ...
