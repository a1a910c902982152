"""Equations that are learned and cannot make a state grow."""

import math

import pytest
import torch

from continua.axes import Circle
from continua.data.burgers import burgers
from continua.data.navier_stokes import TORUS
from continua.errors import SolveFailed
from continua.models import Batch, Transformer, load
from continua.models.zoo import evolution
from continua.tasks.rollouts import rollout
from tests.refusals import refused

N = 16
ROUNDING = 1e-12


def drawn(out: int, spreads: tuple[float, ...], size: float = 0.3, steps: int = 4) -> Transformer:
    """A conserving equation on the torus with random weights."""
    model = evolution(TORUS, N, spreads=spreads, out=out, modes=5, steps=steps, conserving=True).double()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(size * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return model


def smooth(channels: int, seed: int = 0) -> torch.Tensor:
    """Fields of the waves that the equation has."""
    noise = torch.randn(2, N, N, channels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    w = torch.fft.rfft2(noise, dim=(1, 2))
    k = torch.fft.fftfreq(N, 1 / N).abs()
    kept = (k[:, None] <= 5) & (torch.arange(N // 2 + 1) <= 5)
    return torch.fft.irfft2(w * kept[..., None], s=(N, N), dim=(1, 2)).flatten(1, 2)


def slope_of(model: Transformer, x: torch.Tensor) -> torch.Tensor:
    """F(x), in the units of the state."""
    part = model.block.parts[0]
    grids = model.structure().grids.with_tokens(model.embed.grid)
    f, args = part.bind(grids)
    return f(0.0, x, args)


@pytest.mark.spec("B16")
def test_only_damping_changes_the_size_of_a_state() -> None:
    model = drawn(out=2, spreads=(1.0, 1.0))
    part = model.block.parts[0]
    x = smooth(2)
    assert (x * slope_of(model, x)).sum() < -1.0
    part.damping.data.fill_(-60.0)  # e⁻⁶⁰
    f = slope_of(model, x)
    assert f.norm() > 1.0
    assert (x * f).sum((1, 2)).abs().max() < ROUNDING * x.norm() * f.norm()


@pytest.mark.slow(reason="long roll-outs; what is conserved is tested to round-off beside it")
@pytest.mark.spec("B16")
def test_roll_outs_stay_bounded_under_a_steady_force_where_free_products_do_not() -> None:
    force = smooth(1, seed=3)
    start = Batch(torch.cat([3.0 * smooth(1), force], -1))
    model = drawn(out=1, spreads=(1.0, 1.0), steps=32)
    sizes = rollout(model, start, 40).states.square().mean((-1, -2)).sqrt()
    assert sizes.max() < 3.0 * start.values[..., 0].square().mean().sqrt()
    free = evolution(TORUS, N, spreads=(1.0, 1.0), modes=5, products=2, steps=32).double()
    with torch.no_grad():
        for place, weight in enumerate(free.parameters()):
            weight.copy_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(place)))
    with refused(SolveFailed, "no longer a number", "smaller steps"):
        rollout(free, start, 40)


@pytest.mark.spec("B16")
def test_the_equation_of_burgers_conserves_and_is_a_member() -> None:
    viscosity, time = 0.05, 0.1
    model = evolution(Circle(), 64, steps=40, modes=16, conserving=True).double()
    part = model.block.parts[0]
    wave = part.spectrum.wave
    with torch.no_grad():
        part.velocity[0, 0, 0] = 2 / 3 * time * wave  # −½[v u_x + (v u)_x] with v = ⅔u is −u u_x
        part.damping.fill_(-60.0)
        part.damping[0, 1] = math.log(math.expm1(viscosity * time * wave**2))
    x = torch.arange(64, dtype=torch.float64) / 64
    u = torch.sin(2 * math.pi * x) + 0.3 * torch.cos(4 * math.pi * x)
    wanted = burgers(u[None], viscosity, time, steps=256)
    assert (model(u[None, :, None])[..., 0] - wanted).abs().max() < 1e-6


@pytest.mark.spec("B16")
def test_transport_commutes_with_shifts_holds_channels_and_reaches_every_weight(tmp_path) -> None:
    model = drawn(out=2, spreads=(2.0, 3.0, 1.0), size=0.1)
    u = torch.randn(2, N, N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    answer = model(u.flatten(1, 2)).unflatten(1, (N, N))
    moved = model(u.roll((3, 5), (1, 2)).flatten(1, 2)).unflatten(1, (N, N))
    assert (moved - answer.roll((3, 5), (1, 2))).abs().max() < 1e-10
    answer.square().sum().backward()
    assert all(bool((weight.grad != 0).any()) for weight in model.parameters())
    assert torch.equal(load(model.save(tmp_path))(u.flatten(1, 2)), answer.flatten(1, 2))
