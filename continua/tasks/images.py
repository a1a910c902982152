"""Classifying images: functions on the square, sampled at the centres of their pixels, whole or with gaps."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import avg_pool2d, cross_entropy

from continua.data.generation import generator_for
from continua.data.images import FASHION, digit_images, fashion_images, moved, observed_pixels, resampled, warped
from continua.errors import ConfigError
from continua.models import Batch
from continua.tasks.task import Example, Score, device_of, divergence
from continua.typing import Float, Tensor


@dataclass(frozen=True)
class Images:
    """Images [n, channels, height, width] with a class each; the last share ``held_out`` of them is measured.

    Training images are changed at random: ``shift`` moves each by up to so many pixels; ``warp`` is the largest change
    of an entry of an affine map of the square (turns, stretches, moves by parts of a pixel); a share of the pixels, up
    to ``missing``, is not observed: the same ones in all images of a batch, or, ``apart``, others in each. Every other
    batch, at random, comes at one of other ``sizes``, so many pixels in each direction.
    """

    pixels: Tensor
    labels: Tensor
    batch: int = 64
    held_out: float = 0.2
    shift: int = 0
    warp: float = 0.0
    missing: float = 0.0
    apart: bool = False
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.pixels.dim() != 4 or len(self.pixels) != len(self.labels):
            got = list(self.pixels.shape)
            remedy = "Give [n, channels, height, width] and n labels."
            raise ConfigError("images and labels do not fit", got=got, remedy=remedy)
        if not 0 < self.held_out < 1 or self._cut < 1:
            raise ConfigError("some images are held out, not all", got=self.held_out, remedy="Use 0.2.")
        if not 0 <= self.missing < 1 or not 0 <= self.warp < 1:
            said = f"missing={self.missing:g}, warp={self.warp:g}"
            remedy = "Use shares from 0 to below 1."
            raise ConfigError("a part of an image is missing or moved, not all", got=said, remedy=remedy)
        if self.sizes and min(self.sizes) < 1:
            raise ConfigError("an image has a pixel or more", got=self.sizes, remedy="Use sizes=(14, 20).")
        strange = sorted(set(self.labels[self._cut :].tolist()) - set(self.labels[: self._cut].tolist()))
        if strange:
            remedy = "Shuffle the images, or leave these classes out."
            raise ConfigError("held-out images have classes that training never sees", got=strange, remedy=remedy)

    @property
    def _cut(self) -> int:
        return round(len(self.pixels) * (1 - self.held_out))

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return int(self.labels.max()) + 1

    @property
    def held(self) -> tuple[Tensor, Tensor]:
        """The held-out images and their classes."""
        return self.pixels[self._cut :], self.labels[self._cut :]

    def validation(self, share: float = 0.2) -> "Images":
        """The training part alone, with a share of it held out: for choices that must not see the held-out part."""
        return replace(self, pixels=self.pixels[: self._cut], labels=self.labels[: self._cut], held_out=share)

    def example(self, seed: int, step: int) -> Example:
        """Random images of the training part."""
        generator = generator_for("images", seed, step)
        chosen = torch.randint(self._cut, (self.batch,), generator=generator)
        pixels = self.pixels[chosen]
        if self.shift:
            moves = torch.randint(-self.shift, self.shift + 1, (self.batch, 2), generator=generator).tolist()
            pixels = torch.stack([moved(image, *move) for image, move in zip(pixels, moves, strict=True)])
        if self.warp:
            pixels = warped(pixels, self.warp, generator)
        if self.sizes:
            places = torch.randint(2 * len(self.sizes), (1,), generator=generator)
            pixels = resampled(pixels, self.sizes[int(places)]) if int(places) < len(self.sizes) else pixels
        observed = None
        if self.missing:
            share = self.missing * torch.rand(self.batch if self.apart else 1, generator=generator)
            observed = observed_pixels(len(share), pixels.shape[2:].numel(), share, generator)
            observed = observed if self.apart else observed[0]
        return Example(Batch(pixels, observed=observed), self.labels[chosen])

    def coarsened(self, example: Example, count: int) -> Example:
        """Images of ``count`` × ``count`` pixels, each the mean of those it covers that were observed."""
        pixels = example.batch.values
        high, wide = self.pixels.shape[2:]
        if high % count or wide % count or not isinstance(pixels, Tensor):
            remedy = f"Use a divisor of both sides, or leave t out of the stages: {high} × {wide} pixels are whole."
            raise ConfigError(f"{high} × {wide} pixels have no such means", got=f"{count} × {count}", remedy=remedy)
        observed = example.batch.observed
        if observed is None:
            return replace(example, batch=replace(example.batch, values=_means(pixels, count)))
        seen = observed.unflatten(-1, (high, wide)).to(pixels).expand(len(pixels), high, wide)[:, None]
        share = _means(seen, count)
        values = _means(pixels * seen, count) / share.clamp_min(torch.finfo(pixels.dtype).tiny)
        flags = share.flatten(1) > 0
        flags = flags if observed.dim() > 1 else flags[0]
        return replace(example, batch=replace(example.batch, values=values, observed=flags))

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """The sum of −log p of the right classes."""
        return cross_entropy(answer.float() if answer.dtype.itemsize < 4 else answer, example.target, reduction="sum")

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        """Σ KL(teacher ‖ answer)."""
        return divergence(answer, teacher).sum()

    def evaluate(self, model: Any) -> Score:
        """Mean loss and accuracy of the held-out images."""
        return self.measure(model, *self.held)

    @torch.no_grad()
    def measure(self, model: Any, pixels: Tensor, labels: Tensor, observed: Tensor | None = None) -> Score:
        """Mean loss and accuracy of any images, of any size that the model reads, where ``observed`` [n, h·w] says."""
        if labels.min() < 0 or labels.max() >= self.classes or len(labels) != len(pixels):
            got = f"{int(labels.min())} to {int(labels.max())}"
            remedy = "Train on all classes that are asked for."
            raise ConfigError(f"the model knows the classes 0 to {self.classes - 1}", got=got, remedy=remedy)
        device = device_of(model)
        total = 0.0
        right = 0
        for start in range(0, len(labels), 256):
            part = slice(start, start + 256)
            batch = Batch(pixels[part], observed=None if observed is None else observed[part])
            example = Example(batch, labels[part]).to(device)
            answer = model(example.batch)
            total += float(self.loss(answer, example))
            right += int((answer.argmax(-1) == example.target).sum())
        return Score({"loss": total / len(labels), "accuracy": right / len(labels)})


def _means(pixels: Float[Tensor, "b c h w"], count: int) -> Float[Tensor, "b c n n"]:
    """The means of equal blocks."""
    tall, broad = (side // count for side in pixels.shape[2:])
    return avg_pool2d(pixels, (tall, broad))


def digits(
    batch: int = 64,
    *,
    held_out: float | None = None,
    shift: int = 0,
    warp: float = 0.0,
    missing: float = 0.0,
    apart: bool = False,
    sizes: tuple[int, ...] = (),
) -> Images:
    """The handwritten digits of scikit-learn as a task; the changes of training images are those of ``Images``."""
    found = digit_images()
    share = found.held_out if held_out is None else held_out
    return Images(found.pixels, found.labels, batch, share, shift, warp, missing, apart, sizes)


def fashion_mnist(
    folder: str | Path = FASHION,
    batch: int = 64,
    images: int | None = None,
    *,
    shift: int = 0,
    warp: float = 0.0,
    missing: float = 0.0,
    apart: bool = False,
    sizes: tuple[int, ...] = (),
) -> Images:
    """Fashion-MNIST as a task (see ``fashion_images``); the changes of training images are those of ``Images``."""
    found = fashion_images(folder, images)
    return Images(found.pixels, found.labels, batch, found.held_out, shift, warp, missing, apart, sizes)
