"""The ViT of ``vision.py``, and how images with gaps are filled for it."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu

from continua.data.images import resampled
from continua.fields import counted
from continua.models import Batch, Pixels, Scaled, initialise, zoo
from continua.models.image_stem import START
from continua.operators import LayerNorm
from continua.recipes.vision import VisionSettings
from continua.tasks.images import Images
from continua.tasks.task import Example

MEANS = {  # widths of Gaussian means that fill gaps, in pixels, and the mass of the zero that is in every mean
    "weighted": ((1.0,), 0.0),
    "beside": ((1.0, 0.0), 0.0),  # the background is another channel
    "faded": ((0.4, 0.0), 0.3),
    "background": ((0.0,), 0.0),
}


def filled(images: torch.Tensor, there: torch.Tensor, how: str) -> list[torch.Tensor]:
    """Missing pixels take the nearest observed one, Gaussian means, or the background (a mean of no width)."""
    if how == "nearest":
        return [nearest(images, there)]
    widths, prior = MEANS[how]
    return [torch.where(there, images, mean(images, there, width, prior) if width else -1.0) for width in widths]


def mean(images: torch.Tensor, there: torch.Tensor, width: float, prior: float) -> torch.Tensor:
    """A Gaussian mean of the observed pixels around each pixel, direction by direction; far ones weigh a little."""
    place = torch.arange(images.shape[-1], dtype=images.dtype)
    near = (-0.5 * ((place - place[:, None]) / width).square()).exp() / (math.sqrt(2 * math.pi) * width)
    known = torch.where(there, images, 0.0)
    sums, mass = (near @ x @ near + 1e-12 * x.sum((2, 3), keepdim=True) for x in (known, there.to(images)))
    return (1 + prior) * sums / (prior + mass)


def nearest(images: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """The nearest observed pixel; one search serves a batch with the same gaps."""
    side = images.shape[-1]
    line = torch.arange(side, dtype=torch.float32)
    place = torch.cartesian_prod(line, line)
    square = torch.cdist(place, place).square()
    index = torch.cat([torch.where(one.flatten(), square, torch.inf).argmin(-1)[None] for one in there[:, 0]])
    return images.flatten(2).gather(2, index[:, None].expand(len(images), images.shape[1], -1)).view_as(images)


def told(images: torch.Tensor, observed: torch.Tensor | None, how: str, side: int) -> torch.Tensor:
    """What the ViT reads: filled images, and which pixels were observed."""
    high, wide = images.shape[-2:]
    if observed is None:
        observed = torch.ones(high * wide, dtype=torch.bool)
    there = observed.view(-1, 1, high, wide)
    both = torch.cat([*filled(images, there, how), there.to(images).expand_as(images)], 1)
    return both if both.shape[-1] == side else resampled(both, side)


@dataclass(frozen=True)
class Filled:
    """The same task for a model that needs whole images of one size: gaps are filled, then images are resized."""

    task: Images
    how: str

    def example(self, seed: int, step: int) -> Example:
        """The images of the task, filled."""
        found = self.task.example(seed, step)
        seen = told(found.batch.values, found.batch.observed, self.how, self.task.pixels.shape[-1])
        return Example(Batch(seen), found.target)

    def loss(self, answer: torch.Tensor, example: Example) -> torch.Tensor:
        """As the task has it."""
        return self.task.loss(answer, example)


class StemViT(nn.Module):
    """A ViT behind strided convolutions of 5×5 and 3×3 with GELU in place of patches (Xiao et al. 2021).

    Convolutions start as narrow as those of ``ImageStem`` and have channels innermost in memory, and what they make is
    normalised, as there.
    """

    def __init__(
        self, side: int, channels: int, strides: tuple[int, ...], classes: int, chosen: VisionSettings
    ) -> None:
        super().__init__()
        first = nn.Conv2d(channels, chosen.d, 5, strides[0], 2)
        self.stem = nn.ModuleList([first, *(nn.Conv2d(chosen.d, chosen.d, 3, stride, 1) for stride in strides[1:])])
        for layer in self.stem:
            nn.init.normal_(layer.weight, std=START * layer.weight[0].numel() ** -0.5)
            nn.init.zeros_(layer.bias)
        self.stem.to(memory_format=torch.channels_last)
        few = side
        for stride in strides:
            few = -(-few // stride)
        pixels = Pixels(few, few, chosen.d, (1, 1))
        self.vit = zoo.vit(pixels, d=chosen.d, heads=chosen.heads, depth=chosen.depth, labels=classes)
        self.vit.embed.norm = LayerNorm(counted(self.vit.axes, chosen.depth).autonomous())
        initialise(self.vit, Scaled(), torch.Generator().manual_seed(chosen.weights))

    def forward(self, batch: Batch) -> torch.Tensor:
        """Convolve, then attend."""
        x: Any = batch.values
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in self.stem:
            x = gelu(layer(x))
        return self.vit(Batch(x))


def wide(model: nn.Module) -> None:
    """Kernels of the stem start where they keep variance, those of the ViT as ``nn.Conv2d`` does."""
    if hasattr(model, "stem"):
        for layer in model.stem:
            layer.reset_parameters()
        return
    for field in (model.embed.first, *model.embed.later):
        field.coefficients.data.div_(START)


def bare(model: nn.Module) -> None:
    """No norm behind the stem."""
    (model.vit if hasattr(model, "vit") else model).embed.norm = None
