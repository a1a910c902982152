"""Local kernels of relative position: convolutions of what was observed near nodes, wherever an image was observed."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import conv2d, gelu, layer_norm
from torch.profiler import ProfilerActivity, profile

from continua.axes import Grid
from continua.data.images import observed_pixels, point_sets, resampled
from continua.errors import ConfigError, GridError, ShapeError
from continua.fields import counted
from continua.models import Batch, ImageStem, zoo
from continua.models.build import discrete_axes
from continua.models.zoo.images import SQUARE
from continua.optim.parameters import parameter_info
from continua.tasks.images import Images
from tests.measure import random


def stemmed(side: int = 8, **settings):
    return zoo.image_classifier(3, d=8, heads=2, depth=1, side=side, stem=(2, 2), **settings).double().eval()


@pytest.fixture(scope="module")
def model():
    return stemmed()


def laid(model, batch: Batch) -> torch.Tensor:
    """What the kernels read at the nodes [b, channels, side, side]."""
    side = model.embed.side
    tokens = model.embed.lay(batch).values
    few = model.embed.few
    x = tokens.unflatten(2, (4, 4, -1)).unflatten(1, (few, few)).permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)
    return x[..., :side, :side]


@pytest.mark.spec("B6", "M5")
@pytest.mark.parametrize("side", [7, 8])
def test_it_is_two_convolutions_a_map_and_a_norm(side: int) -> None:
    model = stemmed(side)
    with torch.no_grad():
        for p in model.embed.norm.parameters():
            p.copy_(random(*p.shape))
    batch, grids = model.prepare(Batch(random(2, 1, 8, 8)), model.structure())
    tables = model.embed.read(grids)
    x = laid(model, Batch(random(2, 1, 8, 8)))
    assert x.shape == (2, 3, side, side)
    x = gelu(conv2d(x, tables.kernels[0], tables.biases[0], stride=2, padding=2))
    x = gelu(conv2d(x, tables.kernels[1], tables.biases[1], stride=2, padding=1)).flatten(2).mT
    x = layer_norm(x @ tables.mix.mT + tables.place, (8,), *model.embed.norm.parameters(), model.embed.norm.eps)
    assert torch.allclose(model.embed(batch, grids), x, atol=1e-12)


@pytest.mark.spec("B6")
def test_no_layer_moves_channels_in_memory() -> None:
    """Inputs, kernels and tokens have channels innermost: mixed orders cost copies at every layer, both ways."""
    model = stemmed().float()
    batch, grids = model.prepare(Batch(random(2, 1, 8, 8).float()), model.structure())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        model.embed(batch, grids).sum().backward()
    moved = [event for event in seen.events() if event.name == "aten::copy_" and event.input_shapes[0] == [2, 8, 4, 4]]
    assert not moved


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


@pytest.mark.spec("B6", "M5")
def test_pixels_at_the_nodes_are_filled_images_and_flags(model) -> None:
    """The input of a ViT whose gaps are filled by a Gaussian mean of a pixel's width."""
    images = random(3, 1, 8, 8)
    flags = observed_pixels(3, 64, 0.6, torch.Generator().manual_seed(0))
    there = flags.view(3, 1, 8, 8)
    filled, integral, mass = laid(model, Batch(images, observed=flags)).split(1, 1)
    assert torch.allclose(mass, there.double(), atol=1e-12)
    assert torch.allclose(integral, torch.where(there, images, 0.0), atol=1e-12)
    place = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0)).double()
    near = (-0.5 * torch.cdist(place, place).square()).exp() * flags[:, None]  # [b, node, pixel]
    mean = (near @ images.flatten(2).mT).mT / near.sum(-1)[:, None]
    assert torch.allclose(filled, torch.where(there, images, mean.view_as(images)), atol=1e-9)  # far points weigh 1e-12


@pytest.mark.spec("B6", "M10")
@pytest.mark.parametrize("side", [3, 5, 8])
def test_smaller_images_are_interpolated_between_their_centres(model, side: int) -> None:
    images = random(2, 1, side, side)
    for channel in laid(model, Batch(images)).split(1, 1)[:2]:
        assert torch.allclose(channel, resampled(images, 8), atol=1e-12)


@pytest.mark.spec("B6", "M10")
def test_constant_images_are_constant_at_every_size(model) -> None:
    """Where all is there masses are one; where gaps are filled by means these are that constant."""
    flags = observed_pixels(1, 256, 0.7, torch.Generator().manual_seed(1))
    for side, observed in ((4, None), (5, None), (8, None), (16, None), (24, None), (16, flags)):
        found = laid(model, Batch(torch.full((1, 1, side, side), 0.7, dtype=torch.float64), observed=observed))
        filled, integral, mass = found.unbind(1)
        assert torch.allclose(filled, torch.full_like(filled, 0.7), atol=1e-9)
        assert torch.allclose(integral, 0.7 * mass.clamp(max=1.0), atol=1e-9)
        assert torch.allclose(mass, torch.ones_like(mass), atol=1e-9) == (observed is None)


@pytest.mark.spec("B6")
def test_a_mean_with_a_prior_fades_far_from_what_was_observed() -> None:
    """One pixel says nothing about the other end of the image, and all about its own place; without a prior it does."""
    flags = torch.zeros(64, dtype=torch.bool)
    flags[0] = True
    batch = Batch(torch.full((1, 1, 8, 8), 0.7, dtype=torch.float64), observed=flags)
    narrow, wide, *_ = laid(stemmed(windows=(0.4, 1.5, 0.0), prior=0.3), batch)[0]
    assert torch.allclose(narrow[0, 0], torch.tensor(0.7, dtype=torch.float64))
    assert float(narrow[4:, 4:].abs().max()) < 1e-6
    assert 1e-6 < float(wide[4, 4]) < 0.01
    filled = laid(stemmed(), batch)[0, 0]
    assert torch.allclose(filled, torch.full_like(filled, 0.7))


@pytest.mark.spec("B6")
def test_an_image_is_read_alike_in_any_batch(model) -> None:
    """Also where the points of another lie closer, or farther apart."""
    points = torch.rand(2, 6, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights = torch.tensor([[0.01] * 6, [0.16] * 6], dtype=torch.float64)
    values = random(2, 6, 1)
    both = model(Batch(values, grid=Grid(points, weights)))
    for one in range(2):
        part = slice(one, one + 1)
        alone = model(Batch(values[part], grid=Grid(points[part], weights[part])))
        assert torch.allclose(both[part], alone, atol=1e-12)


@pytest.mark.spec("B6", "B8")
def test_a_local_kernel_is_one_matrix_for_optimisers(model) -> None:
    """Outputs by (taps and inputs): the matrix whose norm bounds the convolution, one for each layer."""
    info = parameter_info(model)["embed.later.0.coefficients"]
    field = model.embed.later[0].coefficients
    assert info.matrices(field).shape == (1, 8, 9 * 8)
    assert info.scale == 1.0


@pytest.mark.spec("B6")
def test_what_does_not_fit_is_refused(model) -> None:
    with pytest.raises(ShapeError, match="channels"):
        model(Batch(random(1, 2, 8, 8)))
    with pytest.raises(GridError, match="observed point"):
        model(Batch(random(1, 1, 8, 8), observed=torch.zeros(64, dtype=torch.bool)))
    with pytest.raises(GridError, match="where values"):
        model(Batch(random(1, 5, 1), times=torch.arange(5.0)))
    with pytest.raises(ConfigError, match="windows"):
        stemmed(windows=(-1.0,))
    with pytest.raises(ConfigError, match="a layer and a window"):
        ImageStem(counted(replace(discrete_axes(8, 2, 32, 1)[0], t=SQUARE)), 8, strides=())


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
