"""The norm without a mean on a processor: torch's own, with its derivatives, wherever it may go another way."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from continua.operators import rms
from continua.operators.rms import FusedRMS, rms_norm

EPS = 1e-6


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones go the same way here."""
    monkeypatch.setattr(rms, "LARGE", 0)


def _drawn(*shape: int) -> torch.Tensor:
    made = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))
    return made.requires_grad_()


@pytest.mark.spec("B14")
@pytest.mark.parametrize("learns", [(True, True), (True, False), (False, True)])
def test_values_and_gradients_are_those_of_torch(learns: tuple[bool, bool]) -> None:
    x, scale = _drawn(2, 5, 8), _drawn(8)
    with torch.no_grad():
        x[0, 0] = 0.0  # an absent token
    wanted = [own for own, one in zip((x, scale), learns, strict=True) if own.requires_grad_(one).requires_grad]
    towards = _drawn(2, 5, 8).detach()
    y, reference = rms_norm(x, scale, EPS), functional.rms_norm(x, (8,), scale, EPS)
    assert isinstance(y.grad_fn, FusedRMS._backward_cls)
    assert torch.equal(y, reference)
    found = torch.autograd.grad(y, wanted, towards)
    for got, right in zip(found, torch.autograd.grad(reference, wanted, towards), strict=True):
        assert (got - right).abs().max() <= 1e-12 * right.abs().max()


@pytest.mark.spec("B14")
def test_it_has_second_derivatives() -> None:
    x, scale = _drawn(2, 3, 4), _drawn(4)
    assert torch.autograd.gradcheck(lambda x, scale: rms_norm(x, scale, EPS), (x, scale))
    assert torch.autograd.gradgradcheck(lambda x, scale: rms_norm(x, scale, EPS), (x, scale))


@pytest.mark.spec("B14")
def test_transforms_of_functions_go_through_it() -> None:
    x, scale = _drawn(3, 4), _drawn(4).detach()
    plain = torch.func.vmap(torch.func.jacrev(lambda row: rms_norm(row, scale, EPS)))(x.detach())
    forward = torch.func.vmap(torch.func.jacfwd(lambda row: rms_norm(row, scale, EPS)))(x.detach())
    assert torch.allclose(plain, forward, rtol=1e-12, atol=1e-12)


@pytest.mark.spec("B14")
def test_second_derivatives_count_a_scale_that_serves_twice_as_often_as_it_serves() -> None:
    x, scale = _drawn(2, 3, 4), _drawn(4)

    def twice(norm: Any) -> tuple[torch.Tensor, ...]:
        y = norm(norm(x, scale).sin(), scale)
        first = torch.autograd.grad(y.square().sum(), (x, scale), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, scale))

    found = twice(lambda x, scale: rms_norm(x, scale, EPS))
    right = twice(lambda x, scale: functional.rms_norm(x, (4,), scale, EPS))
    for got, one in zip(found, right, strict=True):
        assert (got - one).abs().max() <= 1e-12 * one.abs().max()
