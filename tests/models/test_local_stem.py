"""Local kernels of relative time: a convolution on whole numbers, lines between points anywhere else."""

import pytest
import torch
from torch.nn.functional import conv1d, gelu

from continua.errors import ConfigError, GridError, ShapeError
from continua.fields import counted
from continua.models import Batch, LocalStem, zoo
from continua.models.local_stem import BESIDE, straight
from tests.cases_models import CHANNELS, COUNTED, STEPS, local_stem, series
from tests.measure import random


@pytest.fixture(scope="module")
def model():
    return zoo.series_classifier(2, 3, d=8, heads=2, depth=1, stem=(2, 2), position=True).double().eval()


@pytest.mark.spec("B4", "M5")
def test_on_whole_numbers_it_is_two_convolutions(model) -> None:
    """Points 0 … 11: every node is observed, so the stem is Conv1d behind Conv1d."""
    values = random(2, 12, 2)
    stem: LocalStem = model.embed
    batch, grids = model.prepare(Batch(values, times=torch.arange(12.0)), model.structure())
    first, second = stem.read(grids).kernels
    a, b = stem.read(grids).biases
    beside = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(2, 12, BESIDE)
    x = torch.cat([values, beside], -1).mT
    x = gelu(conv1d(gelu(conv1d(x, first, a, stride=2, padding=2)), second, b, stride=2, padding=1)).mT
    position = stem.position(grids.tokens, grids.d, x, None)
    assert torch.allclose(stem(batch, grids), x + position, atol=1e-12)
    assert grids.tokens.nodes[:, 0].tolist() == [0.0, 4.0, 8.0]
    assert grids.tokens.weights.tolist() == [[4.0, 4.0, 4.0]] * 2


@pytest.mark.spec("B4", "M10")
def test_lines_are_exact_wherever_the_points_lie() -> None:
    """A line through irregular points, unsorted and with one absent, is that line; distances are those to points."""
    times = torch.tensor([[0.5, 3.25, 9.0, 1.75, 6.0]], dtype=torch.float64)
    there = torch.tensor([[True, True, True, True, False]])
    values = torch.where(there, 2 * times - 1, 100.0)[..., None]
    nodes = torch.arange(10, dtype=torch.float64)
    found = straight(values, times, there, nodes)[0]
    assert torch.allclose(found[:, 0], (2 * nodes - 1).clamp_min(0.0), atol=1e-12)
    near = (nodes[:, None] - times[there]).abs().amin(-1)
    assert torch.allclose(found[:, 1].expm1(), (near - 0.5).clamp_min(0.0), atol=1e-12)


@pytest.mark.spec("B4")
def test_a_series_answers_the_same_beside_a_longer_one(model) -> None:
    values, times = random(2, 9, 2), torch.arange(9.0).expand(2, 9) * torch.tensor([[0.4], [3.0]])
    both = model(Batch(values, times=times))
    for i in range(2):
        assert torch.allclose(model(Batch(values[i : i + 1], times=times[i : i + 1])), both[i : i + 1], atol=1e-12)
    assert (both[0] - both[1]).abs().max() > 1e-6


@pytest.mark.spec("B4")
def test_absent_points_count_for_nothing_and_gradients_reach_all() -> None:
    model, batch = local_stem().double(), series()
    answer = model(batch)
    changed = batch.values.clone()
    changed[1, 2] = 1e6
    assert torch.equal(model(Batch(changed, times=batch.times, observed=batch.observed)), answer)
    answer.square().sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in model.embed.parameters())


@pytest.mark.spec("B4")
def test_what_has_no_place_is_refused() -> None:
    model = local_stem(span=8).double()
    values = random(1, 3, CHANNELS)
    with pytest.raises(GridError, match="from zero on"):
        model(Batch(values, times=torch.tensor([-1.0, 0.0, 1.0])))
    with pytest.raises(GridError, match="8 units"):
        model(Batch(values, times=torch.tensor([0.0, 1.0, 8.5])))
    with pytest.raises(GridError, match="finite time"):
        model(Batch(values, times=torch.arange(3.0), observed=torch.zeros(1, 3, dtype=torch.bool)))
    with pytest.raises(ShapeError, match="observations"):
        model(Batch(random(1, 3, CHANNELS + 1), times=torch.arange(3.0)))
    with pytest.raises(ConfigError, match="a layer"):
        LocalStem(counted(COUNTED[0], STEPS), 2, strides=())
