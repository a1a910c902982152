"""Sets of images: functions on the square, sampled at the centres of their pixels; and what can be done to them."""

import gzip
import importlib.util
import math
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.functional import affine_grid, grid_sample, interpolate, pad

from continua.axes import Grid, Midpoint, ProductRule, grid_on
from continua.data.generation import generator_for
from continua.errors import ConfigError, ShapeError, install
from continua.models import Batch
from continua.models.zoo.images import SQUARE
from continua.typing import Tensor

FASHION = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package dataset-fashion-mnist puts its files


class LabelledImages(NamedTuple):
    """Pixels [n, channels, height, width] from −1 to 1, a class each, and the share at the end that is held out."""

    pixels: Tensor
    labels: Tensor
    held_out: float


def digit_images() -> LabelledImages:
    """The 1,797 handwritten digits of 8×8 pixels that come with scikit-learn (Alpaydin and Kaynak 1998), shuffled."""
    if importlib.util.find_spec("sklearn") is None:
        remedy = f"Install the extra: {install('series')}."
        raise ConfigError("the digits come with scikit-learn", got="it is not installed", remedy=remedy)
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=generator_for("digits"))
    pixels = torch.from_numpy(found.images).float()[order, None] / 8.0 - 1.0
    labels = torch.from_numpy(found.target).long()[order]
    return LabelledImages(pixels, labels, held_out=0.2)


def fashion_images(folder: str | Path = FASHION, images: int | None = None) -> LabelledImages:
    """Fashion-MNIST (Xiao et al. 2017): 28×28 pictures of ten kinds of clothes, 60,000 to train, 10,000 held out.

    ``folder`` has its four idx files; ``images`` takes the first so many of the training images only.
    """
    parts = []
    for part in ("train", "t10k"):
        pictures, kinds = (
            read_idx(_packed(Path(folder), f"{part}-{name}-ubyte")) for name in ("images-idx3", "labels-idx1")
        )
        if pictures.dim() != 3 or kinds.dim() != 1 or len(pictures) != len(kinds):
            got = f"{list(pictures.shape)} and {list(kinds.shape)}"
            remedy = "Give the four files of one set."
            raise ConfigError(f"{part} needs pictures [n, 28, 28] and n labels", got=got, remedy=remedy)
        few = images if part == "train" else None
        parts.append((pictures[:few, None].float() / 127.5 - 1.0, kinds[:few].long()))
    (train, known), (test, wanted) = parts
    share = len(test) / (len(train) + len(test))
    return LabelledImages(torch.cat([train, test]), torch.cat([known, wanted]), share)


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
        got = f"{path.name} beginning with {content[:4].hex() or 'nothing'}"
        remedy = "Give an idx file of bytes."
        raise ConfigError("this is no idx file of bytes", got=got, remedy=remedy)
    start = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:start]) if len(content) >= start else ()
    if not shape or len(content) - start != math.prod(shape):
        got = f"{max(len(content) - start, 0)} bytes for {list(shape)} in {path.name}"
        raise ConfigError("this idx file is cut short or too long", got=got, remedy="Fetch it again.")
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).view(shape)


def _packed(folder: Path, name: str) -> Path:
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"


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


def moved(image: Tensor, down: int, right: int) -> Tensor:
    """The image moved, zeros coming in."""
    high, wide = image.shape[-2:]
    room = pad(image, (abs(right), abs(right), abs(down), abs(down)))
    top = abs(down) - down
    left = abs(right) - right
    return room[..., top : top + high, left : left + wide]


def warped(images: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """Each image seen through its own affine map; beyond the rim the rim goes on."""
    change = (2 * torch.rand(len(images), 2, 3, generator=generator) - 1) * size
    maps = torch.eye(2, 3) + change
    return grid_sample(
        images, affine_grid(maps, list(images.shape), align_corners=False), padding_mode="border", align_corners=False
    )
