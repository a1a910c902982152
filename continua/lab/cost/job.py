"""What is trained, and on which mesh of devices."""

from dataclasses import dataclass, replace
from typing import Any

from continua.errors import ConfigError
from continua.lab.cost.complexity import Complexity, predict
from continua.models import EncoderDecoder

OPTIMISERS = {"adamw": 8, "muon": 4, "sgd": 0}  # bytes of state for each parameter
HALF = 2  # bytes of a number in half precision


@dataclass(frozen=True)
class Mesh:
    """``data`` groups that read different samples; in each, ``tokens`` devices that share a sample's tokens.

    ``sharded``: weights, gradients and the optimiser's states are cut among all devices.
    """

    data: int = 1
    tokens: int = 1
    sharded: bool = False

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.data * self.tokens

    def __str__(self) -> str:
        parts = [f"data {self.data}"]
        if self.tokens > 1:
            parts.append(f"tokens {self.tokens}")
        return " × ".join(parts) + (", sharded" if self.sharded else "")


@dataclass(frozen=True)
class Job:
    """What is trained: a model, the samples of a step over all devices, and their tokens.

    ``half``: products in half precision, with the state and the weights in full, as ``precision="bfloat16"`` trains.
    """

    model: Any
    batch: int
    context: int
    optimiser: str = "adamw"
    half: bool = False

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            remedy = f"Use one of {', '.join(OPTIMISERS)}."
            raise ConfigError("the bytes of this optimiser are not known", got=self.optimiser, remedy=remedy)
        if self.batch < 1 or self.context < 1:
            got = f"{self.batch} samples of {self.context} tokens"
            raise ConfigError("a step has samples with tokens", got=got, remedy="Use 1 or more of both.")

    def cost(self, batch: int) -> Complexity:
        """What ``batch`` samples cost on one device."""
        return predict(self.model, batch, self.context)

    @property
    def answering(self) -> Any:
        """The part of the model that answers."""
        return self.model.decoder if isinstance(self.model, EncoderDecoder) else self.model

    def with_context(self, context: int) -> "Job":
        """The same with longer samples."""
        return replace(self, context=context)

    def early_parameters(self) -> int:
        """Parameters of the readout alone: their gradients are there before the way back through the blocks."""
        readout = self.answering.readout
        if readout is None:
            return 0
        own = {id(parameter): parameter.numel() for parameter in readout.parameters()}
        inside = {id(module) for module in readout.modules()}
        for module in self.model.modules():
            if id(module) not in inside:
                for parameter in module.parameters(recurse=False):
                    own.pop(id(parameter), None)
        return sum(own.values())
