"""Reference solutions: Burgers against Cole–Hopf, the order of the stepper, and the law of random fields."""

import math

import pytest
import torch

from continua.data.burgers import burgers, burgers_pairs, cole_hopf, gaussian_fields
from continua.data.darcy import darcy, darcy_pairs
from continua.data.etdrk4 import Stepper
from continua.errors import ConfigError
from tests.measure import gap, slope
from tests.refusals import refused


def fields(count: int, n: int) -> torch.Tensor:
    return gaussian_fields(count, n, torch.Generator().manual_seed(0))


@pytest.mark.spec("B3")
def test_burgers_is_what_cole_and_hopf_found() -> None:
    start = fields(3, 1024)
    found, exact = burgers(start, 0.01, 1.0, steps=800), cole_hopf(start, 0.01, 1.0)
    error = ((found - exact).norm(dim=-1) / exact.norm(dim=-1)).max()
    assert error < 1e-7  # of the steps: 4.6e-8, and a sixteenth of it with twice as many
    waves = torch.fft.rfft(start)
    k = 2 * math.pi * torch.arange(513, dtype=torch.float64)
    alone = torch.fft.irfft(waves * torch.exp(-0.01 * k * k), 1024)
    assert ((alone - exact).norm(dim=-1) / exact.norm(dim=-1)).min() > 0.1, "diffusion alone is something else"


@pytest.mark.spec("B3")
def test_the_stepper_is_of_fourth_order() -> None:
    start = fields(2, 256)
    exact = burgers(start, 0.05, 0.5, steps=640)
    counts = [20, 40, 80]
    errors = [gap(burgers(start, 0.05, 0.5, steps=count), exact) for count in counts]
    assert abs(slope(counts, errors) - 4) < 0.3, errors


@pytest.mark.spec("B3")
def test_linear_parts_are_exact() -> None:
    linear = torch.tensor([0.0, -1e-9, -3.0, -4000.0], dtype=torch.float64)
    v = torch.ones(4, dtype=torch.complex128)
    found = Stepper(linear, lambda v: torch.zeros_like(v), 0.1).run(v, 5)
    assert gap(found.real, (0.5 * linear).exp()) < 1e-14
    pushed = Stepper(linear, lambda v: torch.ones_like(v), 0.1).run(0 * v, 5)
    wanted = torch.where(linear < 0, torch.expm1(0.5 * linear) / linear.clamp_max(-1e-300), 0.5)
    assert gap(pushed.real, wanted) < 1e-13


@pytest.mark.spec("B3")
def test_mass_stays_and_energy_falls() -> None:
    start = fields(4, 256)
    found = burgers(start, 0.02, 0.5)
    assert gap(found.mean(-1), start.mean(-1)) < 1e-13
    assert (found.square().mean(-1) < start.square().mean(-1)).all()


@pytest.mark.spec("B3")
def test_random_fields_have_their_covariance_and_are_the_same_on_finer_grids() -> None:
    drawn = gaussian_fields(4000, 64, torch.Generator().manual_seed(0))
    waves = torch.fft.rfft(drawn) / 64
    k = 2 * math.pi * torch.arange(4, dtype=torch.float64)
    wanted = (25.0 / (k * k + 25.0)) ** 2
    found = waves[:, :4].abs().square().mean(0)
    assert ((found / wanted - 1).abs() < 0.1).all()  # four standard errors of 4,000 draws
    coarse, fine = (torch.fft.rfft(gaussian_fields(3, n, torch.Generator().manual_seed(1))) / n for n in (64, 256))
    assert gap(coarse[:, :30].abs(), fine[:, :30].abs()) < 1e-14
    with refused(ConfigError, "viscosity 0", "ν > 0"):
        burgers(drawn[0], 0.0)


@pytest.mark.spec("B17")
def test_times_and_materials_without_measure_are_refused() -> None:
    with refused(ConfigError, "until=1e+308", "a time up to 7812"):
        burgers_pairs(1, n=8, until=1e308)
    with refused(ConfigError, "got 1e+300", "high ≤ 1e+30"):
        darcy_pairs(1, n=9, high=1e300)


@pytest.mark.spec("B3")
def test_materials_keep_their_digits() -> None:
    pairs = darcy_pairs(2, n=9, high=0.7, low=0.1)
    wanted = darcy(torch.where(pairs.inputs[..., 0] > 0.5, 0.7, torch.full((2, 9, 9), 0.1, dtype=torch.float64)))
    assert gap(pairs.outputs[..., 0], wanted.float()) < 1e-7
