"""Classifying images."""

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from continua.errors import ConfigError
from continua.models import Batch
from continua.tasks.task import Example, Score, divergence, generator_for
from continua.typing import Tensor


@dataclass(frozen=True)
class Images:
    """Images [n, channels, height, width] with a class each; the last share ``held_out`` of them is measured.

    ``shift`` moves training images by up to so many pixels, at random.
    """

    pixels: Tensor
    labels: Tensor
    batch: int = 64
    held_out: float = 0.2
    shift: int = 0

    def __post_init__(self) -> None:
        if self.pixels.dim() != 4 or len(self.pixels) != len(self.labels):
            got, remedy = list(self.pixels.shape), "Give [n, channels, height, width] and n labels."
            raise ConfigError("images and labels do not fit", got=got, remedy=remedy)
        if not 0 < self.held_out < 1 or self._cut < 1:
            raise ConfigError("some images are held out, not all", got=self.held_out, remedy="Use 0.2.")

    @property
    def _cut(self) -> int:
        return round(len(self.pixels) * (1 - self.held_out))

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return int(self.labels.max()) + 1

    def example(self, seed: int, step: int) -> Example:
        """Random images of the training part."""
        generator = generator_for("images", seed, step)
        chosen = torch.randint(self._cut, (self.batch,), generator=generator)
        pixels = self.pixels[chosen]
        if self.shift:
            moves = torch.randint(-self.shift, self.shift + 1, (self.batch, 2), generator=generator).tolist()
            pixels = torch.stack([_moved(image, *move) for image, move in zip(pixels, moves, strict=True)])
        return Example(Batch(pixels), self.labels[chosen])

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """The sum of −log p of the right classes."""
        return cross_entropy(answer.float() if answer.dtype.itemsize < 4 else answer, example.target, reduction="sum")

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        """Σ KL(teacher ‖ answer)."""
        return divergence(answer, teacher).sum()

    @torch.no_grad()
    def evaluate(self, model: Any) -> Score:
        """Mean loss and accuracy of the held-out images."""
        pixels, labels = self.pixels[self._cut :], self.labels[self._cut :]
        device = next(getattr(model, "model", model).parameters()).device
        total, right = 0.0, 0
        for start in range(0, len(labels), 256):
            example = Example(Batch(pixels[start : start + 256]), labels[start : start + 256]).to(device)
            answer = model(example.batch)
            total += float(self.loss(answer, example))
            right += int((answer.argmax(-1) == example.target).sum())
        return Score({"loss": total / len(labels), "accuracy": right / len(labels)})


def _moved(image: Tensor, down: int, right: int) -> Tensor:
    """The image moved, zeros coming in."""
    high, wide = image.shape[-2:]
    room = torch.nn.functional.pad(image, (abs(right), abs(right), abs(down), abs(down)))
    top, left = abs(down) - down, abs(right) - right
    return room[..., top : top + high, left : left + wide]


def digits(batch: int = 64, shift: int = 0) -> Images:
    """The 1,797 handwritten digits of 8×8 pixels that come with scikit-learn (Alpaydin and Kaynak 1998), shuffled."""
    if importlib.util.find_spec("sklearn") is None:
        remedy = "Install the extra: pip install 'continua[series]'."
        raise ConfigError("the digits come with scikit-learn", got="it is not installed", remedy=remedy)
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=generator_for("digits"))
    pixels = torch.from_numpy(found.images).float()[order, None] / 8.0 - 1.0
    return Images(pixels, torch.from_numpy(found.target).long()[order], batch, shift=shift)
