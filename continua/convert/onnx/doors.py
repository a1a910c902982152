"""Doors of a model that is traced: what its inputs are called, examples of them, and the batch that they make."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from continua.axes import Grid, Points
from continua.errors import ConfigError
from continua.models import Batch, Observations, Patches, Tokens, Transformer, View, Widened
from continua.models.latent import Latent
from continua.operators import Attention
from continua.session.about import ENCODER, MAP
from continua.typing import Tensor

SHAPES = ((2, 5), (3, 7), (1, 4), (4, 2))  # samples and tokens; the first is the example: no zero, no one
SEED = 0


@dataclass(frozen=True)
class Doors:
    """``kind`` of the file, ``names`` of inputs, how many leading axes of each are open, and how they are drawn."""

    kind: str
    names: tuple[str, ...]
    opened: tuple[tuple[int, ...], ...]
    draw: Callable[[int, int, torch.Generator], tuple[Tensor, ...]]
    batch: Callable[..., Batch | Tensor]

    @property
    def answer(self) -> str:
        """What the output is called."""
        return "states" if self.kind == ENCODER else "answer"

    def example(self, shape: tuple[int, int]) -> tuple[Tensor, ...]:
        """Inputs of some samples and tokens."""
        return self.draw(*shape, torch.Generator().manual_seed(SEED))

    @property
    def dynamic(self) -> tuple[dict[int, Any], ...]:
        """What is left open, as ``torch.export`` takes it."""
        return tuple(dict.fromkeys(axes, Dim.AUTO) for axes in self.opened)


def doors_of(model: Any) -> Doors:
    """The doors of a model; one that has none is refused."""
    embed = model.embed if isinstance(model, Transformer) else None
    found = None
    if isinstance(embed, Tokens | Widened):
        found = _of_tokens(model, embed.vocab or 1, embed.room)
    elif isinstance(embed, Patches):
        pixels = embed.pixels
        shape = (pixels.channels, pixels.height, pixels.width)
        found = Doors(
            MAP, ("images",), ((0,),), lambda b, t, g: (torch.randn(b, *shape, generator=g),), lambda images: images
        )
    elif isinstance(embed, Latent):
        nodes = embed.rule.n
        channels = embed.channels
        found = Doors(MAP, ("values",), ((0,),), lambda b, t, g: (torch.randn(b, nodes, channels, generator=g),), Batch)
    elif isinstance(embed, Observations):
        found = _of_observations(model, embed.channels)
    if found is None or model.bank is not None:
        got = type(model).__name__ if embed is None else f"{type(embed).__name__} in a {type(model).__name__}"
        remedy = "Save it with model.save, or write a Hugging Face folder."
        raise ConfigError("models of tokens, images and functions can be traced", got=got, remedy=remedy)
    return found


def _of_tokens(model: Any, vocab: int, room: int | None) -> Doors:
    def ids(b: int, t: int, g: torch.Generator) -> Tensor:
        return torch.randint(vocab, (b, min(t, room or t)), generator=g)

    masks = [part.mask for part in model.block.modules() if isinstance(part, Attention)]
    if masks and all(mask is not None and mask.is_causal for mask in masks):
        return Doors(MAP, ("ids",), ((0, 1),), lambda b, t, g: (ids(b, t, g),), lambda given: given)

    def padded(b: int, t: int, g: torch.Generator) -> tuple[Tensor, ...]:
        given = ids(b, t, g)
        there = torch.ones(given.shape, dtype=torch.bool)
        there[0, -1] = given.shape[1] == 1
        return given, there

    kind = ENCODER if model.readout is None else MAP
    both = ((0, 1), (0, 1))
    return Doors(kind, ("ids", "observed"), both, padded, lambda given, there: Batch(given, observed=there))


def _of_observations(model: Any, channels: int) -> Doors:
    """Values at tokens that are counted, or at nodes with weights, which are inputs too."""

    def values(b: int, t: int, g: torch.Generator) -> Tensor:
        return torch.randn(b, t, channels, generator=g)

    if isinstance(model.axes.t, Points):
        return Doors(MAP, ("values",), ((0, 1),), lambda b, t, g: (values(b, t, g),), lambda given: given)
    dim = model.axes.t.dim

    def placed(b: int, t: int, g: torch.Generator) -> tuple[Tensor, ...]:
        nodes = torch.rand(t, dim, generator=g).sort(0).values
        weights = torch.rand(t, generator=g) + 0.5
        return values(b, t, g), nodes, weights / weights.sum()

    opened = ((0, 1), (0,), (0,))
    names = ("values", "nodes", "weights")
    return Doors(MAP, names, opened, placed, lambda given, nodes, weights: Batch(given, grid=Grid(nodes, weights)))


class Traced(nn.Module):
    """A view as a function of tensors alone: nothing of it looks at values."""

    def __init__(self, view: View, doors: Doors) -> None:
        super().__init__()
        self.inner = view.model
        self.at = view.discretisation
        self.doors = doors

    def forward(self, *given: Tensor) -> Tensor:
        """The answer."""
        answer: Tensor = self.inner(self.doors.batch(*given), self.at)
        return answer
