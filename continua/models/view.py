"""Views: a model on one discretisation. They look; they own nothing."""

from dataclasses import dataclass, field
from typing import Any

import torch

from continua.axes import Discretisation
from continua.compiling import compiled_with_constants
from continua.flow import Trajectory
from continua.models.batch import Batch
from continua.models.generate import generate, stream
from continua.models.model import Pass, Reads, constant_weight
from continua.tree import mapped
from continua.typing import Callable, Tensor


@dataclass(frozen=True)
class View:
    """A model on one discretisation. Not a module: nothing to train or to save here, it only looks."""

    model: Any  # a Transformer or an EncoderDecoder
    discretisation: Discretisation

    def __call__(self, batch: Batch | Tensor) -> Tensor:
        """Run the model here. It goes through the module's own call, so hooks fire."""
        answer: Tensor = self.model(batch, self.discretisation)
        return answer

    def held(self) -> "FrozenView":
        """A view that reads the weights now and keeps them: for serving, while they do not change."""
        with torch.no_grad():
            reads = mapped(self.model.read(self.discretisation), constant_weight)
        return FrozenView(self.model, self.discretisation, reads)

    def states(self, batch: Batch | Tensor, every: int = 1) -> Trajectory:
        """Return the path X_z on this discretisation."""
        path: Trajectory = self.model.states(batch, at=self.discretisation, every=every)
        return path

    # functions whose first argument is the model are its methods
    generate = generate
    stream = stream

    def __str__(self) -> str:
        settled: Discretisation = self.model.settle(self.discretisation)
        return settled.describe(self.model.axes)


@dataclass(frozen=True)
class FrozenView(View):
    """A view whose weights were read when it was made: quicker, without gradients, deaf to later changes."""

    reads: Reads
    programs: dict[Any, Any] = field(default_factory=dict)

    def compiled(self, dynamic: bool = False) -> Callable[[Tensor], Tensor]:
        """The same compiled whole, for values [b, t] alone: quicker than ``torch.compile(view)``.

        The weights are constants of the program, so a call checks its argument and nothing else. ``dynamic`` leaves
        numbers of samples and tokens open; otherwise each shape is compiled once.
        """
        view = self

        def run(values: Tensor) -> Tensor:
            return view(values)

        return compiled_with_constants(run, dynamic)

    @torch.no_grad()
    def __call__(self, batch: Batch | Tensor) -> Tensor:
        """Run the model with the weights as they were."""
        answer: Tensor = self.model(batch, self.discretisation, Pass(reads=self.reads, programs=self.programs))
        return answer
