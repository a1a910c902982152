"""Classifying images: functions on the square, sampled at the centres of their pixels, whole or with gaps."""

import gzip
import importlib.util
import math
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, interpolate

from continua.axes import Grid, Interval, Midpoint, Product, ProductRule, grid_on
from continua.data.generation import generator_for
from continua.errors import ConfigError, ShapeError
from continua.models import Batch
from continua.tasks.task import Example, Score, divergence
from continua.typing import Tensor

SQUARE = Product((Interval(), Interval()))  # rows run along the first coordinate, columns along the second
FASHION = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package dataset-fashion-mnist puts its files


@dataclass(frozen=True)
class Images:
    """Images [n, channels, height, width] with a class each; the last share ``held_out`` of them is measured.

    Training images are changed at random: ``shift`` moves each by up to so many pixels; ``warp`` is the largest change
    of an entry of an affine map of the square (turns, stretches, moves by parts of a pixel); a share of the pixels, up
    to ``missing``, is not observed: the same ones in all images of a batch, or, ``apart``, others in each.
    """

    pixels: Tensor
    labels: Tensor
    batch: int = 64
    held_out: float = 0.2
    shift: int = 0
    warp: float = 0.0
    missing: float = 0.0
    apart: bool = False

    def __post_init__(self) -> None:
        if self.pixels.dim() != 4 or len(self.pixels) != len(self.labels):
            got, remedy = list(self.pixels.shape), "Give [n, channels, height, width] and n labels."
            raise ConfigError("images and labels do not fit", got=got, remedy=remedy)
        if not 0 < self.held_out < 1 or self._cut < 1:
            raise ConfigError("some images are held out, not all", got=self.held_out, remedy="Use 0.2.")
        if not 0 <= self.missing < 1 or not 0 <= self.warp < 1:
            said, remedy = f"missing={self.missing:g}, warp={self.warp:g}", "Use shares from 0 to below 1."
            raise ConfigError("a part of an image is missing or moved, not all", got=said, remedy=remedy)
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
            pixels = torch.stack([_moved(image, *move) for image, move in zip(pixels, moves, strict=True)])
        if self.warp:
            pixels = _warped(pixels, self.warp, generator)
        observed = None
        if self.missing:
            share = self.missing * torch.rand(self.batch if self.apart else 1, generator=generator)
            observed = observed_pixels(len(share), self.pixels.shape[2:].numel(), share, generator)
            observed = observed if self.apart else observed[0]
        return Example(Batch(pixels, observed=observed), self.labels[chosen])

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
            got, remedy = f"{int(labels.min())} to {int(labels.max())}", "Train on all classes that are asked for."
            raise ConfigError(f"the model knows the classes 0 to {self.classes - 1}", got=got, remedy=remedy)
        device = next(getattr(model, "model", model).parameters()).device
        total, right = 0.0, 0
        for start in range(0, len(labels), 256):
            part = slice(start, start + 256)
            batch = Batch(pixels[part], observed=None if observed is None else observed[part])
            example = Example(batch, labels[part]).to(device)
            answer = model(example.batch)
            total += float(self.loss(answer, example))
            right += int((answer.argmax(-1) == example.target).sum())
        return Score({"loss": total / len(labels), "accuracy": right / len(labels)})


def resampled(images: Tensor, side: int) -> Tensor:
    """Images of ``side`` × ``side`` pixels over the same square.

    Growing interpolates bilinearly between the centres of the pixels; shrinking averages under the triangle of the
    new pixel's width, so nothing is aliased.
    """
    _check(images)
    shrinks = side < min(images.shape[-2:])
    return interpolate(images, (side, side), mode="bilinear", align_corners=False, antialias=shrinks)


def observed_pixels(count: int, pixels: int, share: float | Tensor, generator: torch.Generator) -> Tensor:
    """Flags [count, pixels]: of each image another random ``share`` of the pixels is missing, never all of them.

    ``share`` is one for all images, or one for each.
    """
    shares = torch.as_tensor(share).expand(count)
    if not bool(((shares >= 0) & (shares < 1)).all()):
        raise ConfigError("a share of the pixels is missing, not all", got=share, remedy="Use 0 ≤ share < 1.")
    kept = (pixels * (1 - shares)).round().clamp_min(1)
    return torch.rand(count, pixels, generator=generator).argsort(-1) < kept[:, None]


def point_sets(images: Tensor, observed: Tensor) -> Batch:
    """Images as sets of points: coordinates and values of the observed pixels alone, each with the area of its pixel.

    Every image needs as many observed pixels (``observed_pixels`` gives such flags [n, h·w]).
    """
    _check(images)
    high, wide = images.shape[-2:]
    counts = observed.sum(-1)
    if observed.shape != (len(images), high * wide) or bool((counts != counts[0]).any()) or counts[0] == 0:
        remedy = "Use observed_pixels, or pad with Batch(images, observed=…)."
        raise ShapeError("every image needs the same number of observed pixels", got=counts.tolist()[:8], remedy=remedy)
    grid = grid_on(SQUARE, ProductRule((Midpoint(high), Midpoint(wide))))
    chosen = observed.nonzero()[:, 1].view(len(images), -1)
    values = images.flatten(2).mT.gather(1, chosen[..., None].expand(-1, -1, images.shape[1]))
    return Batch(values, grid=Grid(grid.nodes[chosen], grid.weights[chosen]))


def _check(images: Tensor) -> None:
    if images.dim() != 4:
        remedy = "Add the dimension of samples or channels."
        raise ShapeError("images have shape [n, channels, height, width]", got=list(images.shape), remedy=remedy)


def _moved(image: Tensor, down: int, right: int) -> Tensor:
    """The image moved, zeros coming in."""
    high, wide = image.shape[-2:]
    room = torch.nn.functional.pad(image, (abs(right), abs(right), abs(down), abs(down)))
    top, left = abs(down) - down, abs(right) - right
    return room[..., top : top + high, left : left + wide]


def _warped(images: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """Each image seen through its own affine map; beyond the rim the rim goes on."""
    change = (2 * torch.rand(len(images), 2, 3, generator=generator) - 1) * size
    maps = torch.eye(2, 3) + change
    return grid_sample(
        images, affine_grid(maps, list(images.shape), align_corners=False), padding_mode="border", align_corners=False
    )


def digits(batch: int = 64, shift: int = 0, **changes: Any) -> Images:
    """The 1,797 handwritten digits of 8×8 pixels that come with scikit-learn (Alpaydin and Kaynak 1998), shuffled."""
    if importlib.util.find_spec("sklearn") is None:
        remedy = "Install the extra: pip install 'continua[series]'."
        raise ConfigError("the digits come with scikit-learn", got="it is not installed", remedy=remedy)
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=generator_for("digits"))
    pixels = torch.from_numpy(found.images).float()[order, None] / 8.0 - 1.0
    labels = torch.from_numpy(found.target).long()[order]
    return Images(pixels, labels, batch, shift=shift, **changes)


def read_idx(path: str | Path) -> Tensor:
    """The numbers of an idx file (MNIST's format: bytes in any number of dimensions), packed by gzip or not."""
    path = Path(path)
    if not path.is_file():
        remedy = "Install Debian's dataset-fashion-mnist, or give the folder of its files."
        raise ConfigError("there is no such idx file", got=path.name, remedy=remedy)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, OSError, zlib.error) as broken:
        raise ConfigError("this file is damaged", got=path.name, remedy="Fetch it again.") from broken
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        got, remedy = f"{path.name} beginning with {content[:4].hex() or 'nothing'}", "Give an idx file of bytes."
        raise ConfigError("this is no idx file of bytes", got=got, remedy=remedy)
    start = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:start]) if len(content) >= start else ()
    if not shape or len(content) - start != math.prod(shape):
        got = f"{max(len(content) - start, 0)} bytes for {list(shape)} in {path.name}"
        raise ConfigError("this idx file is cut short or too long", got=got, remedy="Fetch it again.")
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).view(shape)


def fashion_mnist(folder: str | Path = FASHION, batch: int = 64, images: int | None = None, **changes: Any) -> Images:
    """Fashion-MNIST (Xiao et al. 2017): 28×28 pictures of ten kinds of clothes, 60,000 to train, 10,000 held out.

    ``folder`` has its four idx files; ``images`` takes the first so many of the training images only.
    """
    parts = []
    for part in ("train", "t10k"):
        pictures, kinds = (
            read_idx(_packed(Path(folder), f"{part}-{name}-ubyte")) for name in ("images-idx3", "labels-idx1")
        )
        if pictures.dim() != 3 or kinds.dim() != 1 or len(pictures) != len(kinds):
            got, remedy = f"{list(pictures.shape)} and {list(kinds.shape)}", "Give the four files of one set."
            raise ConfigError(f"{part} needs pictures [n, 28, 28] and n labels", got=got, remedy=remedy)
        few = images if part == "train" else None
        parts.append((pictures[:few, None].float() / 127.5 - 1.0, kinds[:few].long()))
    (train, known), (test, wanted) = parts
    share = len(test) / (len(train) + len(test))
    return Images(torch.cat([train, test]), torch.cat([known, wanted]), batch, share, **changes)


def _packed(folder: Path, name: str) -> Path:
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"
