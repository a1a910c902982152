"""Roll-outs: learned equations whose depth is time, adaptive steps, noise, and how long they stay with the truth."""

import math

import pytest
import torch

from continua.axes import Circle, Interval, Product, at
from continua.data.burgers import burgers
from continua.data.navier_stokes import TORUS
from continua.data.pairs import Pairs, lattice
from continua.data.turbulence import resampled, solved, turbulence_pairs, turbulence_paths
from continua.errors import ConfigError, GridError, ShapeError
from continua.flow import RK4, Adaptive
from continua.models import Batch, Transformer, load
from continua.models.zoo import evolution, function_map
from continua.tasks.ensembles import Ensemble, coverage, ensemble, spread_tells_error
from continua.tasks.functions import Functions, roll_out
from continua.tasks.rollouts import bounded, correlation, correlation_time, rollout, spectrum, spectrum_error
from tests.refusals import refused

N = 16


def of_burgers(viscosity: float = 0.05, time: float = 0.1) -> Transformer:
    """−(u²)_x/2 + ν u_xx by hand: A = B = 1, P = −∂/2, L = ν∂²."""
    model = evolution(Circle(), 64, products=1, steps=40, modes=16).double()
    part = model.block.parts[0]
    with torch.no_grad():
        for weight in part.parameters():
            weight.zero_()
        part.left[0, 0, 0] = 1.0
        part.right[0, 0, 0] = 1.0
        part.before[0, 0, 1] = -0.5 * time * part.spectrum.wave
        part.linear[0, 0, 4] = viscosity * time * part.spectrum.wave**2
    return model


def start(n: int = 64) -> torch.Tensor:
    x = torch.arange(n, dtype=torch.float64) / n
    return (torch.sin(2 * math.pi * x) + 0.3 * torch.cos(4 * math.pi * x))[None, :, None]


@pytest.mark.spec("B16")
def test_the_equation_of_burgers_is_a_member() -> None:
    wanted = burgers(start()[..., 0], 0.05, 0.1, steps=256)
    found = of_burgers()(start())
    assert (found[..., 0] - wanted).abs().max() < 1e-6


@pytest.mark.spec("B16")
def test_adaptive_time_steps_meet_the_truth_and_grow_with_the_tolerance() -> None:
    model = of_burgers()
    path = rollout(model, Batch(start()), 3, tolerance=1e-9)
    wanted = burgers(start()[..., 0], 0.05, 0.3, steps=512)
    assert (path.states[-1, ..., 0] - wanted).abs().max() < 1e-5
    loose = rollout(model, Batch(start()), 3, tolerance=1e-2)
    assert sum(loose.taken) < sum(path.taken)
    assert loose.evaluations < path.evaluations
    with refused(ConfigError, "depth is time", "zoo.evolution"):
        rollout(function_map(Circle(), N, at=at(d=4, h=1, m=4, z=1), modes=2), Batch(torch.zeros(1, N, 1)), 2, 1e-3)


@pytest.mark.spec("B16")
def test_slopes_commute_with_shifts_hold_channels_and_reach_every_weight(tmp_path) -> None:
    torch.manual_seed(0)
    model = evolution(TORUS, N, spreads=(2.0, 3.0), modes=5, products=2, steps=2).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_().mul_(0.05)
    u = torch.randn(2, N, N, 2, dtype=torch.float64)
    moved = u.roll((3, 5), (1, 2))
    answer = model(u.flatten(1, 2)).unflatten(1, (N, N))
    assert (model(moved.flatten(1, 2)).unflatten(1, (N, N)) - answer.roll((3, 5), (1, 2))).abs().max() < 1e-10
    answer.square().sum().backward()
    assert all(bool((weight.grad != 0).any()) for weight in model.parameters())
    states = roll_out(model, Batch(u.flatten(1, 2)), 2)
    again = model(torch.cat([states[0], u.flatten(1, 2)[..., 1:]], -1))
    assert torch.equal(states[1], again)
    close = model.at(z=Adaptive(RK4(), rtol=1e-5, atol=1e-5))(u.flatten(1, 2))
    fine = model.at(z=16)(u.flatten(1, 2))
    assert (close - fine).abs().max() < 1e-3 * fine.abs().max()
    assert torch.equal(load(model.save(tmp_path))(u.flatten(1, 2)), answer.flatten(1, 2))


@pytest.mark.spec("B16")
def test_a_roll_out_starts_anywhere() -> None:
    points = torch.arange(40, dtype=torch.float64)[:, None] / 40
    u = torch.sin(2 * math.pi * points)[None]
    found = rollout(of_burgers(), Batch(u, times=points), 2).states
    wanted = burgers(torch.sin(2 * math.pi * torch.arange(64, dtype=torch.float64) / 64)[None], 0.05, 0.2, steps=256)
    there = torch.fft.irfft(torch.fft.rfft(wanted, norm="forward")[..., :21], 40, norm="forward")
    assert (found[-1, ..., 0] - there).abs().max() < 1e-3
    with refused(ShapeError, "asked", "observed"):
        rollout(of_burgers(), Batch(start(), asked=torch.rand(3, 1, dtype=torch.float64)), 2)


@pytest.mark.spec("B16")
def test_measures_of_roll_outs() -> None:
    truth = torch.randn(6, 3, N * N, 1, generator=torch.Generator().manual_seed(0))
    states = truth.clone()
    states[3:, 0] = -truth[3:, 0]
    states[4, 1] = math.nan
    states[:, 2] = 10 * truth[:, 2]
    assert correlation_time(states, truth).tolist() == [3.0, 4.0, 6.0]
    assert correlation(states, truth)[4, 1] == 0.0
    assert bounded(states, truth).tolist() == [True, False, False]
    fields = truth[..., 0].unflatten(-1, (N, N))
    assert float(spectrum_error(fields, fields)) == 0.0
    assert abs(float(spectrum_error(10 * fields, fields)) - 2.0) < 1e-9
    wave = torch.cos(2 * math.pi * 3 * torch.arange(N) / N).expand(N, N)
    assert int(spectrum(wave).argmax()) == 2


@pytest.mark.spec("B16")
def test_noise_is_on_the_channels_that_move_and_a_function_of_seed_and_step() -> None:
    pairs = turbulence_pairs(4, n=16, times=3, viscosity=5e-3)
    task = Functions(pairs, pairs, batch=4, noise=0.1)
    first, again, later = (task.example(0, step).batch.values for step in (0, 0, 1))
    plain = Functions(pairs, pairs, batch=4).example(0, 0).batch.values
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert torch.equal(first[..., 1:], plain[..., 1:])
    share = (first - plain)[..., :1].std() / plain[..., :1].std()
    assert 0.08 < float(share) < 0.12
    with refused(ConfigError, "got 2", "noise=0.01"):
        Functions(pairs, pairs, batch=4, noise=2.0)
    x = torch.arange(8, dtype=torch.float64) / 8
    narrow = Pairs("narrow", Circle(), torch.ones(2, 8, 1), torch.ones(2, 8, 2), lattice(Circle(), x))
    with refused(ConfigError, "noise is for maps", "noise=0"):
        Functions(narrow, narrow, batch=2, noise=0.1).example(0, 0)


@pytest.mark.spec("B16")
def test_flows_are_functions_of_their_number_and_converge() -> None:
    paths, forces = turbulence_paths(2, n=16, times=3, viscosity=5e-3)
    last = turbulence_paths(1, n=16, times=3, viscosity=5e-3)
    assert torch.equal(paths[:1], last[0])
    assert torch.equal(forces[:1], last[1])
    fine = resampled(paths[:, 0, ..., 0].double(), 32)
    push = resampled(forces[..., 0].double(), 32)
    few, many = (solved(fine, push, 5e-3, 0.2, 1, parts) for parts in (4, 16))
    assert (few - many).abs().max() < 1e-3 * many.abs().max()
    assert (resampled(resampled(paths[..., 0], 24), 16) - paths[..., 0]).abs().max() < 1e-4
    with refused(ConfigError, "no path", "two times"):
        turbulence_paths(1, times=1)
    with refused(ShapeError, "same nodes", "Resample"):
        solved(fine, push[..., ::2], 5e-3, 0.2, 1, 4)


@pytest.mark.spec("B16")
def test_what_an_equation_cannot_be_is_refused() -> None:
    with refused(ConfigError, "around circles", "function_map"):
        evolution(Product((Circle(), Interval())), N)
    with refused(ConfigError, "1 channels", "spread"):
        evolution(Circle(), N, out=2)
    model = evolution(Circle(), N)
    with refused(ShapeError, "[b, t, 1]", "channels"):
        model(torch.zeros(1, N, 2))
    with refused(GridError, "lattice", "fewer modes"):
        model.block.parts[0].bind(
            evolution(Circle(), 8).structure().grids.with_tokens(evolution(Circle(), 8).embed.grid)
        )


@pytest.mark.spec("B16")
def test_an_ensemble_has_the_mean_and_spread_of_its_members() -> None:
    torch.manual_seed(0)
    model = function_map(Circle(), N, at=at(d=8, h=2, m=8, z=2), modes=4).double()
    batch = Batch(torch.randn(5, N, 1, dtype=torch.float64))
    answers = ensemble(model, [at(d=4), at(z=1)]).answer(batch)
    each = torch.stack([model(batch), model.at(d=4)(batch), model.at(z=1)(batch)]).detach()
    assert (answers.each - each).abs().max() < 1e-12
    assert torch.equal(answers.mean, answers.each.mean(0))
    assert torch.equal(answers.spread, answers.each.std(0))
    assert coverage(answers, answers.mean) == 1.0
    assert coverage(answers, answers.mean + 3 * answers.spread) == 0.0
    assert abs(spread_tells_error(answers, answers.mean + answers.spread) - 1.0) < 1e-12
    assert (Ensemble((model, model))(batch) - model(batch).detach()).abs().max() < 1e-12
    with refused(ConfigError, "two answers", "Name sizes"):
        ensemble(model)
