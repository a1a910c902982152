"""Densities stay on the simplex: mirror descent and dual averaging."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from continua.axes import Grids
from continua.errors import ConfigError
from continua.fields import Cosine
from continua.geometry import simplex
from continua.operators import Attention
from continua.optim import (
    AdamW,
    ByRole,
    DualAveraging,
    Mirror,
    Optimiser,
)
from tests import cases
from tests.measure import EXACT, gap, random
from tests.optim.test_optimisers import SIMPLEX, named
from tests.refusals import refused


def rho_model(chosen: Optimiser) -> tuple[Any, Attention, Any, Grids]:
    model = cases.MODELS["pooled"].build().double()
    attention = next(part for part in model.modules() if isinstance(part, Attention))
    with torch.no_grad():
        attention.density.coefficients.normal_(generator=torch.Generator().manual_seed(0))
    grids = model.native.grids(model.axes)
    return model, attention, ByRole(AdamW(1e-2), density=chosen).make(model), grids


@pytest.mark.spec("T6")
@pytest.mark.parametrize("chosen", SIMPLEX, ids=named)
def test_rho_keeps_its_mass_and_sign_at_every_step(chosen: Any) -> None:
    model, attention, made, grids = rho_model(chosen)
    h = grids.h
    for _ in range(20):
        made.zero_grad()
        (1e3 * model(cases.series()).square().mean()).backward()
        made.step(1.0)
        rho = attention._normalised(attention.density.coefficients.detach(), h)
        assert (rho >= 0).all()
        assert gap((rho * h.weights).sum(-1), torch.full((len(rho),), float(h.mass), dtype=torch.float64)) < EXACT


@pytest.mark.spec("T6")
@pytest.mark.parametrize("weights", [None, (0.2, 0.5, 0.3, 1.0)])
def test_mirror_and_dual_averaging_are_their_closed_forms(weights: tuple[float, ...] | None) -> None:
    """For J = ⟨g, p⟩ the iterates are p_0 exp(−lr t g)/Z, and p_0 exp(−lr √t g)/Z by dual averaging."""
    from dataclasses import replace

    from continua.optim import ParameterInfo

    own = ParameterInfo("ρ", measure=weights) if weights else ParameterInfo()
    w = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    g, start = random(2, 4, seed=5), random(2, 4)
    for chosen, grown in ((Mirror(0.3), lambda t: t), (DualAveraging(0.3), math.sqrt)):
        logits = nn.Parameter(start.clone())
        made = chosen.make([logits], [replace(own)])
        for t in range(1, 30):
            logits.grad = None
            (simplex.shares(logits, w) * g).sum().backward()
            made.step()
            wanted = simplex.tilted(simplex.shares(start, w), g, 0.3 * grown(t))
            assert gap(simplex.shares(logits.detach(), w), wanted) < EXACT


@pytest.mark.spec("T6")
def test_one_step_of_mirror_is_multiplicative_in_rho_of_a_model() -> None:
    """ρ' = ρ exp(−lr δJ/δρ)/Z with δJ/δρ measured by differences of the model itself."""
    model, attention, made, grids = rho_model(Mirror(0.7))
    field, h = attention.density, grids.h
    batch, p = cases.series(), simplex.shares(field.coefficients.detach(), h.weights)

    def loss() -> torch.Tensor:
        return model(batch).square().mean()

    slopes = torch.zeros_like(p)
    for place in range(p.numel()):  # ∂J/∂p, p free: logits log p reach the loss through their softmax alone
        ends = []
        for sign in (1, -1):
            moved = p.flatten().clone()
            moved[place] += sign * 1e-5
            with torch.no_grad():
                kept = field.coefficients.clone()
                field.coefficients.copy_(moved.reshape(p.shape).log() - h.weights.log())
                ends.append(loss().item())
                field.coefficients.copy_(kept)
        slopes.view(-1)[place] = (ends[0] - ends[1]) / 2e-5
    made.zero_grad()
    loss().backward()
    made.step(1.0)
    got = simplex.shares(field.coefficients.detach(), h.weights)
    assert gap(got, simplex.tilted(p, slopes, 0.7)) < 1e-8
    assert (got - p).abs().max() > 1e-6


@pytest.mark.spec("T6")
def test_rho_that_is_not_stored_at_nodes_is_refused() -> None:
    model = cases.of_fields(cases.with_bases(h=Cosine(2)))
    with refused(ConfigError, "density", "AdamW"):
        ByRole(AdamW(), density=Mirror()).make(model)
