"""Penalties: their algebra, their values against formulas written out, and their gradients under every adjoint."""

import itertools
from typing import Any

import pytest
import torch

from continua.axes import at
from continua.errors import ConfigError
from continua.flow import RK4, Checkpoint, Direct, Lean, LieTrotter, Recompute, Reversible, ReversibleSolver
from continua.models import Batch, Transformer
from continua.models.build import continuous_parts
from continua.operators import Attention, Context, Parts, PreNorm
from continua.tasks import Example
from continua.training import (
    HeadEntropy,
    JacobianNorm,
    KineticEnergy,
    Objective,
    Penalties,
    Smoothness,
    SpectralNorm,
    SquaredWeights,
    Whole,
)
from continua.training.penalty import Seen, native_grids, penalties
from tests.measure import EXACT, gap, random, stirred
from tests.refusals import refused
from tests.runs import tiny_model, tiny_task

PLAIN = Seen(None, None)


def drawn(seed: int) -> Seen:
    return Seen(None, None, torch.Generator().manual_seed(seed))


# --- algebra ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("T1")
def test_penalties_add_and_scale() -> None:
    both = 1e-3 * KineticEnergy() + 1e-2 * HeadEntropy()
    assert both == Penalties((KineticEnergy(weight=1e-3), HeadEntropy(weight=1e-2)))
    assert (2.0 * both + Smoothness()).terms == (KineticEnergy(weight=2e-3), HeadEntropy(weight=2e-2), Smoothness())
    assert KineticEnergy() + both == Penalties((KineticEnergy(), *both.terms))
    assert both.running_terms == (KineticEnergy(weight=1e-3),)
    assert penalties(None) == Penalties()
    assert penalties([KineticEnergy(weight=1e-3), 1e-2 * HeadEntropy()]) == both == penalties(both)
    assert penalties([both, Smoothness("d")]).terms == (*both.terms, Smoothness(axis="d"))
    assert penalties(HeadEntropy()) == Penalties((HeadEntropy(),))
    with refused(ConfigError, "got 3.0", "Write 1e-3 * KineticEnergy()"):
        penalties(3.0)
    with refused(ConfigError, "got t", "Choose one of them"):
        Smoothness(axis="t")


# --- kinetic energy ---------------------------------------------------------------------------------------------------


def example(samples: int = 2, observed: Any = None) -> Example:
    made = tiny_task(batch=samples).example(0, 0)
    return Example(Batch(made.batch.values, observed=observed), made.target)


def energy(model: Any, batch: Batch) -> torch.Tensor:
    """∫⟨v²⟩ dz of each sample, by the model's own run."""
    cost = Objective(model, tiny_task(), penalties(KineticEnergy()))._cost
    return model.run(batch, cost=cost)[1].cost


@pytest.mark.spec("T1", "T5")
def test_kinetic_energy_of_layers_is_the_mean_square_of_their_steps() -> None:
    model, batch = stirred(tiny_model(steps=3)), example().batch
    path = model.states(batch).x
    wanted = sum((b - a).square().mean((-1, -2)) for a, b in itertools.pairwise(path))
    assert gap(energy(model, batch), wanted) < EXACT


@pytest.mark.spec("T1")
def test_kinetic_energy_of_a_flow_is_the_integral_of_its_speed() -> None:
    """RK4 integrates the cost beside the state: the same stages and weights, written out."""
    model, batch = stirred(tiny_model(solver=RK4(), steps=2)), example().batch
    structure = model.structure()
    placed, grids = model.prepare(batch, structure)
    field, args = model.bind(grids, structure, Context())
    x, wanted, dz = model.embed(placed, grids), 0.0, 1.0
    for z in (0.0, 1.0):
        k1 = field(z, x, args)
        k2 = field(z + dz / 2, x + dz / 2 * k1, args)
        k3 = field(z + dz / 2, x + dz / 2 * k2, args)
        k4 = field(z + dz, x + dz * k3, args)
        speeds = [k.square().mean((-1, -2)) for k in (k1, k2, k3, k4)]
        wanted = wanted + dz / 6 * (speeds[0] + 2 * speeds[1] + 2 * speeds[2] + speeds[3])
        x = x + dz / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    assert gap(energy(model, batch), wanted) < EXACT


def test_kinetic_energy_does_not_see_padding() -> None:
    model = stirred(tiny_model())
    ids = tiny_task(batch=2).example(0, 0).batch.values
    observed = torch.ones_like(ids, dtype=torch.bool)
    observed[1, 5:] = False
    short = energy(model, Batch(ids[1:, :5]))
    assert gap(energy(model, Batch(ids, observed=observed))[1:], short) < EXACT


def test_means_are_against_the_measure_of_d() -> None:
    values, share = random(2, 3, 4), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    assert gap(Seen(None, share).mean(values), (values * share).sum(-1).mean(-1)) < EXACT
    assert gap(PLAIN.mean(values), values.mean((-1, -2))) < EXACT
    model, batch = stirred(tiny_model()), example().batch
    from continua.axes import ClenshawCurtis, Interval

    parts = continuous_parts(vocab=15, at=at(d=ClenshawCurtis(9), h=2, e=4, m=16, z=2), d=Interval())
    model = stirred(Transformer(**parts))
    grid = model.native.grids(model.axes).d
    path = model.states(batch).x
    share = grid.weights / grid.mass
    wanted = sum(((b - a).square() * share).sum(-1).mean(-1) for a, b in itertools.pairwise(path))
    assert share.max() > 2 * share.min()
    assert gap(energy(model, batch), wanted) < EXACT


# --- Jacobians --------------------------------------------------------------------------------------------------------

WEIGHT = 0.7 * random(6, 6, seed=3)


def bent(x: torch.Tensor) -> torch.Tensor:
    """A map of fields [b, 2, 3] that mixes tokens."""
    return torch.tanh(x.flatten(1) @ WEIGHT).view_as(x) * 2


def jacobian(x: torch.Tensor) -> torch.Tensor:
    found = torch.autograd.functional.jacobian(bent, x)
    return torch.stack([found[i, :, :, i].reshape(6, 6) for i in range(len(x))])


@pytest.mark.spec("T5")
def test_hutchinsons_estimate_has_no_bias() -> None:
    x = random(2, 2, 3, seed=1).requires_grad_()
    wanted = jacobian(x.detach()).square().sum((1, 2)) / 6
    many = JacobianNorm(directions=4000).running(0.0, x, bent(x), drawn(0)).detach()
    few = torch.stack([JacobianNorm().running(0.0, x, bent(x), drawn(i)).detach() for i in range(400)])
    deviation = few.std(0) / 4000**0.5
    assert ((many - wanted).abs() < 4 * deviation).all(), "within four standard errors"
    assert (few.std(0) > 0.05 * wanted).all(), "it is a random estimate"


@pytest.mark.spec("T5")
def test_the_power_iteration_finds_the_spectral_norm() -> None:
    x = random(2, 2, 3, seed=1).requires_grad_()
    wanted = torch.linalg.matrix_norm(jacobian(x.detach()), ord=2).square()
    found = SpectralNorm(iterations=60).running(0.0, x, bent(x), drawn(0))
    assert gap(found.detach(), wanted) < 1e-9
    rough = SpectralNorm(iterations=1).running(0.0, x, bent(x), drawn(0))
    assert (rough <= wanted * (1 + EXACT)).all(), "from below"
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert gap(gradient, differences(lambda y: torch.linalg.matrix_norm(jacobian(y), ord=2).square().sum(), x)) < 1e-6


def differences(f: Any, x: torch.Tensor, h: float = 1e-5) -> torch.Tensor:
    x, flat = x.detach(), torch.zeros(x.numel(), dtype=x.dtype)
    for i in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[i] = h
        step = step.view_as(x)
        flat[i] = (f(x + step) - f(x - step)).detach() / (2 * h)
    return flat.view_as(x)


# --- functionals of the weights ---------------------------------------------------------------------------------------


def with_density() -> Transformer:
    parts = continuous_parts(vocab=15, at=at(d=8, h=3, e=2, m=8, z=2))
    (attention, pointwise) = parts["block"]
    weights = __import__("continua.fields", fromlist=["ByBasis"]).ByBasis
    from continua.models.build import smooth_bases

    made = weights(parts["axes"], smooth_bases(parts["axes"], parts["native"], 2))
    inner = Attention(made, mask=attention.inner.mask, density=True)
    return Transformer(**{**parts, "block": Parts((PreNorm(attention.norm, inner), pointwise))})


@pytest.mark.spec("T5")
def test_head_entropy_is_zero_for_even_heads_and_descending_it_spreads_them() -> None:
    model = with_density().double()
    density = next(m for m in model.modules() if isinstance(m, Attention)).density.coefficients
    with torch.no_grad():
        density.zero_()
    assert abs(float(HeadEntropy().of_weights(model).detach())) < EXACT
    with torch.no_grad():
        density.copy_(random(*density.shape))
    found = []
    for _ in range(300):
        value = HeadEntropy().of_weights(model)
        (gradient,) = torch.autograd.grad(value, density)
        with torch.no_grad():
            density.sub_(1.0 * gradient)
        found.append(float(value.detach()))
    assert found[0] > 0.05, "uneven heads cost"
    assert found[-1] < 0.05 * found[0]
    assert HeadEntropy().of_weights(tiny_model()) is None, "without a density there is nothing to spread"


@pytest.mark.spec("T1")
@pytest.mark.parametrize("axis", ["z", "d", "h", "e", "m"])
def test_smoothness_is_zero_for_constant_fields_only(axis) -> None:
    model = tiny_model(steps=3, double=True)
    assert float(Smoothness(axis=axis).of_weights(model).detach()) > 0
    with torch.no_grad():
        for name, parameter in model.block.named_parameters():
            parameter.zero_()
            if name.endswith("coefficients"):
                parameter[0] = 1.0  # the first Legendre function is constant
    assert float(Smoothness(axis=axis).of_weights(model).detach()) < 1e-20


def test_smoothness_is_the_mean_square_of_the_slope() -> None:
    model = stirred(tiny_model(steps=3))
    from continua.fields import Expansion

    grids = native_grids(model)
    assert grids.z.nodes == (0.0, 1.0, 2.0)
    found = []
    for field in model.block.modules():
        if isinstance(field, Expansion) and "z" in field.letters:
            values = field.on(**{letter: grids[letter] for letter in field.letters})
            found.append((values[1:] - values[:-1]).square().mean())
    assert gap(Smoothness().of_weights(model), torch.stack(found).mean()) < EXACT


# --- gradients --------------------------------------------------------------------------------------------------------

ALL = 0.3 * KineticEnergy() + 0.1 * HeadEntropy() + 0.2 * Smoothness() + 0.01 * SquaredWeights()


def gradients(model: Any, terms: Any, adjoint: Any = None) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.adjoint = adjoint or Direct()
    given = example()
    value, said = Objective(model, tiny_task(batch=2), penalties(terms))(given, Whole.of(given))
    assert abs(float(value.detach()) - sum(map(float, said.values()))) < EXACT
    return value.detach(), list(torch.autograd.grad(value, list(model.parameters()), allow_unused=True))


@pytest.mark.spec("T1", "T2")
def test_the_gradient_of_the_objective_is_that_of_differences() -> None:
    model = stirred(with_density())
    _, found = gradients(model, ALL)
    for i, (name, parameter) in enumerate(model.named_parameters()):
        if "position" in name or i % 3:
            continue
        place = tuple(0 for _ in parameter.shape)
        values = []
        for h in (1e-5, -1e-5):
            with torch.no_grad():
                parameter[place] += h
            values.append(float(gradients(model, ALL)[0]))
            with torch.no_grad():
                parameter[place] -= h
        assert abs((values[0] - values[1]) / 2e-5 - float(found[i][place])) < 1e-8, name


EXACT_ONES = [Lean(), Recompute(), Checkpoint(1), Checkpoint(2, recursive=True)]


@pytest.mark.spec("T1", "D4")
@pytest.mark.parametrize("solver", [LieTrotter(), RK4()], ids=str)
@pytest.mark.parametrize("adjoint", EXACT_ONES, ids=str)
def test_the_running_cost_has_the_same_gradient_under_every_adjoint(adjoint, solver) -> None:
    model = stirred(tiny_model(solver=solver, steps=3))
    (value, wanted), (other, found) = gradients(model, ALL), gradients(model, ALL, adjoint)
    assert gap(other, value) < EXACT
    assert all(gap(b, a) < 1e-11 for a, b in zip(wanted, found, strict=True))


@pytest.mark.spec("T1", "D3")
def test_going_back_by_undoing_pays_the_running_cost_too() -> None:
    model = stirred(tiny_model(solver=ReversibleSolver(RK4()), steps=3), 0.05)
    (_, wanted), (_, found) = gradients(model, ALL), gradients(model, ALL, Reversible())
    assert all(gap(b, a) < 1e-8 for a, b in zip(wanted, found, strict=True))


@pytest.mark.spec("T5", "D4")
@pytest.mark.parametrize("term", [JacobianNorm(weight=0.1), SpectralNorm(weight=0.1)], ids=str)
@pytest.mark.parametrize("adjoint", [Direct(), Lean(), Checkpoint(2)], ids=str)
def test_a_penalty_that_differentiates_takes_the_plain_way_and_says_so(term, adjoint) -> None:
    found = []
    for one in (Direct(), adjoint):
        model = stirred(tiny_model(steps=2))
        model.adjoint = one
        objective, given = Objective(model, tiny_task(batch=2), penalties(term)), example()
        objective.generator = torch.Generator().manual_seed(5)
        value, said = objective(given, Whole.of(given))
        assert float(said["running"]) > 0
        found.append(torch.autograd.grad(value, list(model.parameters())))
    assert all(gap(b, a) < EXACT for a, b in zip(*found, strict=True))
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        path = model.run(given.batch, cost=objective._cost)[1]
    said = path.stats.get("path")
    assert said == (None if isinstance(adjoint, Direct) else "plain, since the cost takes derivatives itself")


@pytest.mark.spec("T5")
def test_descending_the_jacobian_norm_lowers_it() -> None:
    model = tiny_model(double=True)
    objective, given = Objective(model, tiny_task(batch=2), penalties(JacobianNorm(directions=8))), example()
    weights, found = list(model.block.parameters()), []
    for _ in range(6):
        objective.generator = torch.Generator().manual_seed(5)
        value, said = objective(given, Whole.of(given))
        found.append(float(said["running"]))
        slopes = torch.autograd.grad(value, weights)
        length = torch.stack([slope.norm() for slope in slopes]).norm()
        with torch.no_grad():
            for weight, slope in zip(weights, slopes, strict=True):
                weight.sub_(0.05 * slope / length)
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.9 * found[0]
