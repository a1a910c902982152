"""Local kernels of relative position: convolutions of local means, wherever an image was observed."""

import pytest
import torch
from torch.nn.functional import conv2d, gelu

from continua.data.images import observed_pixels, point_sets
from continua.errors import ConfigError, GridError, ShapeError
from continua.models import Batch, zoo
from continua.models.image_stem import PRIOR
from continua.tasks.images import Images
from tests.measure import random


@pytest.fixture(scope="module")
def model():
    return zoo.image_classifier(3, d=8, heads=2, depth=1, side=8, stem=(2, 2)).double().eval()


def laid(model, batch: Batch) -> torch.Tensor:
    """Means, integrals and masses at the nodes [b, 3, 8, 8]."""
    tokens = model.embed.lay(batch).values
    return tokens.unflatten(2, (4, 4, 3)).unflatten(1, (2, 2)).permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


@pytest.mark.spec("B6", "M5")
def test_it_is_two_convolutions_of_the_means_and_a_map(model) -> None:
    batch, grids = model.prepare(Batch(random(2, 1, 8, 8)), model.structure())
    tables = model.embed.read(grids)
    x = laid(model, Batch(random(2, 1, 8, 8)))
    x = gelu(conv2d(x, tables.kernels[0], tables.biases[0], stride=2, padding=2))
    x = gelu(conv2d(x, tables.kernels[1], tables.biases[1], stride=2, padding=1)).flatten(2).mT
    assert torch.allclose(model.embed(batch, grids), x @ tables.mix.mT + tables.place, atol=1e-12)


@pytest.mark.spec("B6")
def test_pixels_with_flags_are_the_points_that_are_there(model) -> None:
    """Flags of a batch, of each image, and points alone say the same; absent pixels may hold anything."""
    images = random(3, 1, 8, 8)
    flags = observed_pixels(3, 64, 0.6, torch.Generator().manual_seed(0))
    answer = model(Batch(images, observed=flags))
    assert torch.allclose(model(point_sets(images, flags)), answer, atol=1e-6)  # weights of points are float32
    filled = torch.where(flags.view(3, 1, 8, 8), images, torch.nan)
    assert torch.equal(model(Batch(filled, observed=flags)), answer)
    shared = model(Batch(images, observed=flags[0]))
    assert torch.allclose(shared[:1], answer[:1], atol=1e-12)


@pytest.mark.spec("B6", "M10")
def test_constant_images_are_constant_at_every_size(model) -> None:
    """Where all is there the mass is about one and means are that constant; where half is, these hang on masses."""
    flags = observed_pixels(1, 256, 0.7, torch.Generator().manual_seed(1))
    for side, observed in ((4, None), (8, None), (16, None), (16, flags)):
        found = laid(model, Batch(torch.full((1, 1, side, side), 0.7, dtype=torch.float64), observed=observed))
        mean, integral, mass = found.unbind(1)
        assert torch.allclose(mean, 0.7 * mass * (1 + PRIOR) / (mass + PRIOR), atol=1e-9)
        assert torch.allclose(integral, 0.7 * mass.clamp(max=1.0), atol=1e-9)
        inner = mass[0, 2:6, 2:6]
        assert bool(((inner - 1).abs() < 0.2).all()) == (observed is None)
        if observed is None:
            assert float((mean[0, 2:6, 2:6] / 0.7 - 1).abs().max()) < 0.06  # where masses are off by up to 0.2


@pytest.mark.spec("B6")
def test_a_mean_fades_far_from_what_was_observed(model) -> None:
    """One pixel says nothing about the other end of the image, and nearly all about its own place."""
    flags = torch.zeros(64, dtype=torch.bool)
    flags[0] = True
    mean = laid(model, Batch(torch.full((1, 1, 8, 8), 0.7, dtype=torch.float64), observed=flags))[0, 0]
    assert torch.allclose(mean[0, 0], torch.tensor(0.7, dtype=torch.float64), rtol=0.1)
    assert float(mean[4:, 4:].abs().max()) < 1e-6


@pytest.mark.spec("B6", "U5")
def test_what_does_not_fit_is_refused(model) -> None:
    with pytest.raises(ShapeError, match="channels"):
        model(Batch(random(1, 2, 8, 8)))
    with pytest.raises(GridError, match="observed point"):
        model(Batch(random(1, 1, 8, 8), observed=torch.zeros(64, dtype=torch.bool)))
    with pytest.raises(GridError, match="where values"):
        model(Batch(random(1, 5, 1), times=torch.arange(5.0)))
    with pytest.raises(ConfigError, match="divide"):
        zoo.image_classifier(3, side=9, stem=(2,))


@pytest.mark.spec("B6")
def test_half_of_the_batches_come_at_other_sizes() -> None:
    task = Images(random(10, 1, 8, 8).float(), torch.zeros(10).long(), batch=2, missing=0.5, sizes=(6, 12))
    found = [task.example(0, step).batch for step in range(60)]
    sides = [one.values.shape[-1] for one in found]
    assert set(sides) == {6, 8, 12}
    assert 20 < sides.count(8) < 40
    assert all(one.observed.shape[-1] == side**2 for one, side in zip(found, sides, strict=True))
    with pytest.raises(ConfigError, match="a pixel or more"):
        Images(random(4, 1, 8, 8), torch.zeros(4).long(), sizes=(0,))
