"""Aliasing: inputs are functions of the waves that were seen, and an answer says how far it may be off."""

import math

import pytest
import torch

from continua.axes import Circle, Grid, Interval, Product, ProductRule, Samples, Trapezoid, at, grid_on
from continua.data.pairs import Pairs, lattice
from continua.errors import ConfigError
from continua.models import Batch, Transformer
from continua.models.reconstruct import WavePrior, measured
from continua.models.zoo import LatentAttention, function_map
from continua.operators import Waves
from continua.recipes.functions import FunctionSettings, optimiser_of
from continua.tasks import Functions, estimated
from continua.typing import Tensor
from tests.refusals import refused

pytestmark = pytest.mark.spec("B16")
SQUARE = Product((Interval(), Interval()))
SEEN = 4  # waves below the Nyquist frequency of eight nodes
STEPS = 80


def pairs(count: int, n: int, faster: float = 0.0, seed: int = 0) -> Pairs:
    """Random sums of three waves, u ↦ u² less its mean; ``faster`` is the size of a further wave of six turns."""
    draw = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(count, SEEN - 1, 1, generator=draw, dtype=torch.float64) for _ in range(2))
    x = torch.arange(n, dtype=torch.float64) / n
    angle = 2 * math.pi * torch.arange(1, SEEN, dtype=torch.float64)[:, None] * x
    u = (a * angle.cos() + b * angle.sin()).sum(1) + faster * torch.sin(12 * math.pi * x)
    y = u.square() - u.square().mean(1, keepdim=True)
    return Pairs("squares", Circle(), u[..., None], y[..., None], lattice(Circle(), x))


@pytest.fixture(scope="module")
def learned() -> tuple[Transformer, Functions]:
    """A map learned on eight nodes, whose state lives on 24."""
    task = Functions(pairs(64, 8), pairs(16, 8, seed=1), batch=16, order=0)
    torch.manual_seed(0)
    model = function_map(
        Circle(), 24, at=at(d=16, h=2, m=16, z=2), modes=9, attention=False, input_modes=SEEN, smooth=True
    )
    model.double()
    model.embed.prior(task.train.flat()[0], task.train.grid)
    made = optimiser_of(FunctionSettings(lr=5e-3, matrix_lr=2e-2)).make(model)
    for step in range(STEPS):
        example = task.example(0, step)
        made.zero_grad()
        (task.loss(model(example.batch), example) / example.count).backward()
        made.step(0.5 * (1 + math.cos(math.pi * step / STEPS)))
    return model.eval(), task


def test_where_the_waves_were_seen_the_grid_does_not_matter(learned) -> None:
    """Answers have waves above the Nyquist frequency of the training grid: shifts of the inputs teach them."""
    model, task = learned
    own = float(task.errors(model, pairs(24, 8, seed=2)).mean())
    assert own < 0.3
    for n in (16, 32, 64):
        assert float(task.errors(model, pairs(24, n, seed=2)).mean()) < 1.10 * own


def test_waves_that_were_not_seen_do_not_disturb_those_that_were(learned) -> None:
    model, _ = learned
    for n in (16, 64):
        clean = pairs(4, n, seed=3)
        noisy = pairs(4, n, faster=1.0, seed=3)
        one, other = (model.embed.lay(Batch(p.flat()[0], grid=p.grid)).values for p in (clean, noisy))
        assert float((one - other).abs().max()) < 1e-6
    folded = pairs(4, 8, faster=1.0, seed=3)  # six turns on eight nodes are two turns: nobody can tell
    plain = pairs(4, 8, seed=3)
    one, other = (model.embed.lay(Batch(p.flat()[0], grid=p.grid)).values for p in (plain, folded))
    assert float((one - other).abs().max()) > 0.5


def test_the_estimate_follows_the_error(learned) -> None:
    """Over grids and inputs, from what is seen whole to what is not: the same order, within a factor of six."""
    model, task = learned
    base = float(task.errors(model).mean())
    true, told = [], []
    for n, faster in ((64, 0.0), (16, 0.0), (64, 0.5), (64, 1.0), (64, 2.0), (5, 0.0)):
        test = pairs(24, n, faster, seed=4)
        found = estimated(model, Batch(test.flat()[0], grid=test.grid), base)
        true.append(float(task.errors(model, test).mean()))
        told.append(float(found.error.mean()))
    assert told[0] < told[2] < told[3] < told[4]
    assert true[0] < true[2] < true[3] < true[4]
    assert told[5] > 1.5 * told[1]  # five nodes leave a wave open
    logs = torch.tensor([true, told]).log()
    assert float(torch.corrcoef(logs)[0, 1]) > 0.8
    assert float((logs[0] - logs[1]).abs().max()) < math.log(6)


def test_the_unseen_share_is_that_of_the_energy(learned) -> None:
    model, _ = learned
    x = torch.arange(64, dtype=torch.float64) / 64
    slow = torch.sin(4 * math.pi * x)
    fast = torch.sin(2 * math.pi * 20 * x)
    batch = Batch((slow + 0.5 * fast)[None, :, None], times=x)
    assert abs(float(estimated(model, batch).unseen) - 0.2) < 1e-3
    assert float(estimated(model, Batch(slow[None, :, None], times=x)).unseen) < 1e-6


def test_few_points_are_kriged() -> None:
    """The conditional mean equals that of a Gaussian process with the kernel of the spectrum."""
    waves = Waves(Circle(), (48,))
    k = torch.arange(48, dtype=torch.float64)
    spectrum = (1 + k * k).pow(-2.0)
    x = torch.rand(9, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    asked = torch.arange(5, dtype=torch.float64)[:, None] / 5
    prior = WavePrior(waves, spectrum, (48,))
    seen = Grid(x, torch.full((9,), 1 / 9, dtype=torch.float64))

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (spectrum * torch.cos(2 * math.pi * k * (a - b.mT)[..., None])).sum(-1)

    wanted = kernel(asked, x) @ torch.linalg.inv(kernel(x, x))
    assert float((prior.matrix(seen, asked) - wanted).abs().max()) < 1e-4  # the noise of the prior
    variance = kernel(asked, asked).diagonal() - (wanted * kernel(asked, x)).sum(-1)
    open_ = float(prior.left_over(seen, Grid(asked, torch.ones(5, dtype=torch.float64))))
    assert abs(open_ - float(variance.sum() / kernel(asked, asked).diagonal().sum())) < 1e-5


def test_a_spectrum_goes_on_as_its_power_law() -> None:
    """From 32 nodes, which fold fast waves onto slow ones, to waves four times as fast."""
    waves = Waves(Circle(), (64,))
    k = torch.arange(64, dtype=torch.float64)
    true = torch.where(k > 0, k.clamp_min(1.0).pow(-4.0), 0.0)
    power = true.clone()
    power[0] = 2 * true[32]  # a turn a node looks like a mean
    found = measured(waves, power, (32,))
    assert float((found[1:] / true[1:]).log().abs().max()) < 0.05
    assert float(found[0]) <= 1e-9


def test_a_large_lattice_is_read_line_by_line() -> None:
    rule = ProductRule((Trapezoid(9), Trapezoid(9)))
    model = function_map(SQUARE, rule, at=at(d=8, h=2, m=8, z=2), modes=3, attention=LatentAttention.GATES, tokens=4)
    model.double()
    line = torch.linspace(0, 1, 65, dtype=torch.float64)
    u = torch.cos(3 * math.pi * lattice(SQUARE, line, line)).prod(-1)[None, ..., None]
    fine = Pairs("cosines", SQUARE, u, u, lattice(SQUARE, line, line))
    model.embed.prior(fine.every(8).flat()[0])
    laid = model.embed.lay(Batch(fine.flat()[0], grid=fine.grid)).values
    assert float((laid - fine.every(8).flat()[0]).abs().max()) < 1e-3
    told = estimated(model, Batch(fine.flat()[0], grid=fine.grid))
    assert float(told.unseen) < 1e-4
    assert told.answer.shape == (1, 65 * 65, 1)


def test_jumps_are_estimated_from_every_second_point() -> None:
    model = function_map(SQUARE, 5, at=at(d=8, h=2, m=8, z=2), modes=2, attention=False, sharp=True)
    points = torch.rand(60, 2, generator=torch.Generator().manual_seed(0))
    flat = Batch(torch.ones(1, 60, 1), grid=Samples().on(SQUARE, points))
    jump = Batch((points[:, :1] > 0.5).float()[None], grid=Samples().on(SQUARE, points))
    assert float(estimated(model, flat).error) < 1e-5
    assert float(estimated(model, jump).error) > 1e-3
    with refused(ConfigError, "Linear", "function_map"):
        estimated(torch.nn.Linear(1, 1), flat)
    own = grid_on(SQUARE, model.embed.rule)
    assert float(estimated(model, Batch(torch.ones(1, len(own), 1))).error) < 1e-5
