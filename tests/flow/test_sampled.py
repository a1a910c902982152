"""Running costs at random nodes of the path: an unbiased sum whose solve keeps its adjoint."""

import pytest
import torch

from continua.axes import at
from continua.errors import ConfigError
from continua.flow import RK4, Adaptive, Checkpoint, Direct, Dopri5, Fixed, Lean, Trajectory
from continua.models import Batch, EncoderDecoder
from continua.training import (
    HeadEntropy,
    JacobianNorm,
    KineticEnergy,
    Objective,
    Penalties,
    Sampled,
    SpectralNorm,
    Whole,
    hamiltonian,
)
from continua.training.penalty import Seen, penalties
from tests import cases
from tests.measure import EXACT, gap, random, stirred
from tests.refusals import refused
from tests.runs import tiny_model, tiny_task


def seen(seed: int = 0) -> Seen:
    return Seen(None, None, torch.Generator().manual_seed(seed))


def bent() -> Trajectory:
    """Uneven nodes, and a state at each."""
    z = (0.0, 0.1, 0.5, 0.7, 2.0)
    states = tuple((1 + i) * random(3, 2, 4, seed=i) for i in range(len(z)))
    return Trajectory(z, states, states[-1])


def trapezoid(path: Trajectory) -> torch.Tensor:
    """Of ⟨v²⟩ with v = (1 + z) x."""
    values = [((1 + z) * x).square().mean((-1, -2)) for z, x in zip(path.z, path.x, strict=True)]
    return sum((b - a) / 2 * (u + v) for a, b, u, v in zip(path.z, path.z[1:], values, values[1:], strict=False))


@pytest.mark.spec("T5")
def test_the_mean_over_draws_is_the_trapezoidal_sum() -> None:
    path = bent()
    many = Sampled(KineticEnergy(), 20_000).along(path, lambda z, x: (1 + z) * x, seen())
    assert gap(many, trapezoid(path)) < 1e-3
    ones = [Sampled(0.5 * KineticEnergy()).along(path, lambda z, x: (1 + z) * x, seen(i)) for i in range(4000)]
    assert gap(torch.stack(ones).mean(0).detach(), 0.5 * trapezoid(path)) < 0.06


@pytest.mark.spec("T5")
def test_the_velocity_of_a_model_is_the_slope_of_its_path() -> None:
    model, batch = stirred(tiny_model()), tiny_task().example(0, 0).batch
    with torch.no_grad():
        path = model.states(batch, at(z=Fixed(128, RK4())))
        slope = (path.x[65] - path.x[63]) / (path.z[65] - path.z[63])
        assert gap(model.velocity(batch, path.z[64], path.x[64]), slope) < 1e-3
        small = at(d=6, z=4)
        there = model.states(batch, small)
        assert model.velocity(batch, 0.0, there.x[0], small).shape == there.x[0].shape


def test_a_decoder_has_a_velocity_beside_its_source() -> None:
    name = next(n for n in cases.MODELS if isinstance(cases.made(n)[0], EncoderDecoder))
    model, batch, _ = cases.made(name)
    assert isinstance(batch, Batch)
    with torch.no_grad():
        path = model.states(batch)
        assert model.velocity(batch, path.z[0], path.x[0]).shape == path.x[0].shape


def share(model, adjoint, terms, place=None) -> tuple[torch.Tensor, list[torch.Tensor]]:
    task = tiny_task()
    objective, example = Objective(model, task, penalties(terms)), task.example(0, 0)
    objective.places, objective.generator, model.adjoint = ((place, 1.0),), seen().generator, adjoint
    value, said = objective(example, Whole.of(example))
    return said["running"], list(torch.autograd.grad(value, list(model.parameters())))


@pytest.mark.spec("T5", "D4")
@pytest.mark.parametrize("term", [KineticEnergy(), JacobianNorm(), SpectralNorm()], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("adjoint", [Checkpoint(2), Lean()], ids=str)
def test_gradients_do_not_depend_on_the_adjoint(term, adjoint) -> None:
    model = stirred(tiny_model(solver=RK4(), steps=4))
    value, got = share(model, adjoint, 0.3 * Sampled(term, 2))
    wanted, plain = share(model, Direct(), 0.3 * Sampled(term, 2))
    assert gap(value, wanted) < EXACT
    assert all(gap(a, b) < 1e-10 for a, b in zip(got, plain, strict=True))


@pytest.mark.spec("T5", "D4")
def test_the_solve_keeps_its_adjoint_where_a_penalty_takes_derivatives() -> None:
    model, example = tiny_model(), tiny_task().example(0, 0)
    model.adjoint = Checkpoint(0.1)
    seen_paths = []
    run = model.run
    model.run = lambda *given, **options: seen_paths.append(run(*given, **options)) or seen_paths[-1]
    for terms in (Sampled(SpectralNorm()), SpectralNorm()):
        objective = Objective(model, tiny_task(), penalties(terms))
        objective.places = ((at(z=Adaptive(Dopri5(), rtol=1e-3)), 1.0),)
        objective(example, Whole.of(example))
    sampled, integrated = (found[1] for found in seen_paths)
    assert "path" not in sampled.stats
    assert "plain" in integrated.stats["path"]


@pytest.mark.spec("T5")
def test_a_fine_sample_is_near_the_integral() -> None:
    model, fine = stirred(tiny_model()), at(z=Fixed(32, RK4()))
    many, _ = share(model, Direct(), Sampled(KineticEnergy(), 64), fine)
    whole, _ = share(model, Direct(), KineticEnergy(), fine)
    assert abs(float(many) / float(whole) - 1) < 0.05


def test_the_hamiltonian_takes_the_whole_integral() -> None:
    terms = 2.0 * Sampled(0.5 * KineticEnergy()) + HeadEntropy()
    assert terms.integrated == Penalties((KineticEnergy(), HeadEntropy()))
    model = stirred(tiny_model(solver=RK4(), steps=2))
    task = tiny_task()
    found = [hamiltonian(model, Objective(model, task, penalties(t)), task.example(0, 0)).objective
             for t in (Sampled(KineticEnergy()), KineticEnergy())]  # fmt: skip
    assert found[0] == found[1]


def test_only_running_costs_are_sampled() -> None:
    with refused(ConfigError, "got HeadEntropy", "Sampled(SpectralNorm())"):
        Sampled(HeadEntropy())
    with refused(ConfigError, "got 0", "count ≥ 1"):
        Sampled(KineticEnergy(), 0)
