"""Vision: images as functions on the square, read by a continuous model through function patches."""

from dataclasses import dataclass
from typing import Any

import torch

from continua.data.images import FASHION
from continua.models import Scaled, Transformer, initialise, zoo
from continua.optim import AdamW, ByRole, Cosine, Muon
from continua.recipes.recipe import Bundle, shipped
from continua.settings import Count, NonNegative, PartialShare, Seed, Size, Whole, checked
from continua.tasks.images import Images, fashion_mnist
from continua.tasks.images import digits as images_of_digits
from continua.training import Training


@checked
@dataclass(frozen=True)
class VisionSettings:
    """``cells`` in each direction, polynomials up to ``degree``, windows of ``reach`` and a ``ridge`` (see ``Tiling``).

    ``d``, ``heads`` and ``depth`` are the native size. ``kernel_lr`` is Muon's, for kernels, ``lr`` AdamW's, for all
    else. ``decay`` is the weight decay of both. ``batch`` images make a step.
    ``warp``, ``missing``, ``apart`` and ``sizes`` change training images (see ``Images``). ``weights`` is the seed of
    the first weights. With a ``stem``, strides of local kernels, images are read at ``side`` × ``side`` nodes instead
    of in cells, their gaps filled by means of these ``windows`` and ``prior`` (see ``ImageStem``).
    """

    cells: Size = 2
    degree: Whole = 3
    reach: NonNegative = 0.0
    ridge: NonNegative = 1e-2
    d: Size = 64
    heads: Size = 4
    depth: Size = 3
    batch: Size = 64
    lr: NonNegative = 3e-3
    kernel_lr: NonNegative = 0.02
    decay: NonNegative = 0.05
    warp: NonNegative = 0.1
    missing: PartialShare = 0.75
    apart: bool = True
    sizes: tuple[Size, ...] = ()
    side: Size = 8
    stem: tuple[Size, ...] = ()
    windows: tuple[NonNegative, ...] = (1.0, 0.0)
    prior: NonNegative = 0.0
    weights: Seed = 0


@checked
@dataclass(frozen=True)
class FashionSettings(VisionSettings):
    """The same for Fashion-MNIST: ``folder`` has its files, ``images`` takes so many training images only."""

    cells: Size = 4
    degree: Whole = 5
    kernel_lr: NonNegative = 0.01
    warp: NonNegative = 0.05
    side: Size = 28
    apart: bool = False  # the fits of many cells are made once a batch then
    folder: str = str(FASHION)
    images: Count | None = None


@shipped
def digits(settings: VisionSettings) -> Bundle:
    """Handwritten digits of 8×8 pixels, read at any resolution and with pixels missing."""
    task = images_of_digits(
        settings.batch,
        warp=settings.warp,
        missing=settings.missing,
        apart=settings.apart,
        sizes=settings.sizes,
    )
    return bundle_of(settings, task, Training(steps=1200, evaluate_every=300))


@shipped
def fashion(settings: FashionSettings) -> Bundle:
    """Pictures of clothes of 28×28 pixels, read at any resolution and with pixels missing."""
    task = fashion_mnist(
        settings.folder,
        settings.batch,
        settings.images,
        warp=settings.warp,
        missing=settings.missing,
        apart=settings.apart,
        sizes=settings.sizes,
    )
    return bundle_of(settings, task, Training(steps=3000, evaluate_every=1000))


def bundle_of(settings: VisionSettings, task: Images, training: Training) -> Bundle:
    """A classifier of these images, ready to fit."""
    model = model_of(settings, task.classes, channels=task.pixels.shape[1])
    about: dict[str, Any] = {"images": list(task.pixels.shape), "classes": task.classes}
    return Bundle(model, task, optimiser_of(settings), Cosine(), training=training, about=about)


def optimiser_of(settings: VisionSettings) -> ByRole:
    """Muon for kernels, AdamW for all else."""
    return ByRole(AdamW(settings.lr, decay=settings.decay), kernel=Muon(settings.kernel_lr))


def model_of(settings: VisionSettings, classes: int, channels: int = 1) -> Transformer:
    """The model of these settings with fresh weights."""
    model = zoo.image_classifier(
        classes,
        channels=channels,
        cells=settings.cells,
        degree=settings.degree,
        reach=settings.reach,
        ridge=settings.ridge,
        d=settings.d,
        heads=settings.heads,
        depth=settings.depth,
        side=settings.side,
        stem=settings.stem,
        windows=settings.windows,
        prior=settings.prior,
    )
    initialise(model, Scaled(), torch.Generator().manual_seed(settings.weights))
    return model
