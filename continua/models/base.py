"""What both kinds of models share: how they are executed, and what is sugar for their one entry."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from continua.axes import Discretisation, Grid
from continua.flow import Adjoint, SaveAt, Trajectory
from continua.flow.vectorfield import Cost
from continua.models.batch import Batch
from continua.models.generate import generate, stream
from continua.models.model import Execution, Pass
from continua.models.store import save
from continua.operators import Context
from continua.typing import Callable, Tensor


class ModelBase(nn.Module):
    """A model whose ``forward(batch, at, told)`` is the one entry; ``execution`` says how it is run."""

    execution: Execution

    def run(
        self,
        batch: Batch | Tensor,
        at: Discretisation | None = None,
        context: Context | None = None,
        *,
        keep: SaveAt = SaveAt(),  # noqa: B008  (frozen)
        cost: Callable[[Grid, Grid], Cost | None] | None = None,
    ) -> tuple[Tensor, Trajectory, Grid]:
        """Return the answer, the path through depth (of the flow that answers) and its token grid.

        ``cost`` makes a running cost from the grids of t and d; its integral is the path's.
        """
        told = Pass(context, keep, cost, whole=True)
        answer: Tensor = self(batch, at, told)
        return answer, told.path, told.t  # type: ignore[return-value]

    def states(self, batch: Batch | Tensor, at: Discretisation | None = None, every: int = 1) -> Trajectory:
        """Return the path X_z, kept at every ``every``-th step."""
        return self.run(batch, at, keep=SaveAt(every))[1]

    def velocity(
        self,
        batch: Batch | Tensor,
        z: float,
        x: Tensor,
        at: Discretisation | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """Return F(z, x), the sum of the flows at one depth of a batch's path; the weights of that depth are read."""
        value: Tensor = self(batch, at, Pass(context, velocity_at=(z, x)))
        return value

    # functions whose first argument is the model are its methods
    generate = generate
    stream = stream

    def save(self, folder: str | Path) -> Path:
        """Write ``model.safetensors`` and ``config.json`` into ``folder``."""
        return save(self, folder)

    @property
    def adjoint(self) -> Adjoint:
        """How gradients are computed."""
        return self.execution.adjoint

    @adjoint.setter
    def adjoint(self, adjoint: Adjoint) -> None:
        self.execution.adjoint = adjoint

    @property
    def check(self) -> bool:
        """Whether values are looked at: NaN, stamps, masks."""
        return self.execution.check

    @check.setter
    def check(self, check: bool) -> None:
        self.execution.check = check

    @property
    def generator(self) -> Any:
        """What draws dropout: a ``torch.Generator``, or None for torch's own."""
        return self.execution.generator

    @generator.setter
    def generator(self, generator: torch.Generator | None) -> None:
        self.execution.generator = generator
