"""φ(u) v as one function: torch's own values and derivatives."""

from typing import Any

import pytest
import torch

from continua.operators import gated as module
from continua.operators.activation import GELU, SiLU, Tanh
from continua.operators.gated import Gated, gated


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones go the same way here."""
    monkeypatch.setattr(module, "LARGE", 0)


def _drawn(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))
    return made[0].requires_grad_(), made[1].clone().requires_grad_()


@pytest.mark.spec("B14")
@pytest.mark.parametrize("phi", [SiLU(), GELU(), GELU(tanh=True)], ids=str)
@pytest.mark.parametrize("learns", [(True, True), (True, False), (False, True)])
def test_values_and_gradients_are_those_of_torch(phi: SiLU | GELU, learns: tuple[bool, bool]) -> None:
    made = [own.detach().requires_grad_(one) for own, one in zip(_drawn(2, 5, 8), learns, strict=True)]
    u, v = made
    wanted = [own for own in made if own.requires_grad]
    y, reference = gated(phi, u, v), phi(u) * v
    assert isinstance(y.grad_fn, Gated._backward_cls)
    assert torch.equal(y, reference)
    towards = torch.linspace(-1.0, 1.0, y.numel(), dtype=y.dtype).view(y.shape)
    found = torch.autograd.grad(y, wanted, towards)
    for got, right in zip(found, torch.autograd.grad(reference, wanted, towards), strict=True):
        assert (got - right).abs().max() <= 1e-14


@pytest.mark.spec("B14")
@pytest.mark.parametrize("phi", [SiLU(), GELU()], ids=str)
def test_it_has_second_derivatives(phi: SiLU | GELU) -> None:
    u, v = _drawn(3, 4)
    assert torch.autograd.gradcheck(lambda u, v: gated(phi, u, v), (u, v))
    assert torch.autograd.gradgradcheck(lambda u, v: gated(phi, u, v), (u, v))


@pytest.mark.spec("B14")
def test_it_keeps_what_it_is_given_and_nothing_else() -> None:
    u, v = _drawn(3, 4)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        gated(SiLU(), u, v)
    assert kept == [u.data_ptr(), v.data_ptr()]


@pytest.mark.spec("B14")
def test_others_and_transforms_of_functions_go_the_plain_way() -> None:
    u, v = _drawn(3, 4)
    assert not isinstance(gated(Tanh(), u, v).grad_fn, Gated._backward_cls)
    backward = torch.func.jacrev(lambda u: gated(SiLU(), u, v.detach()))(u.detach())
    forward = torch.func.jacfwd(lambda u: gated(SiLU(), u, v.detach()))(u.detach())
    assert torch.allclose(backward, forward, rtol=1e-12, atol=1e-14)


@pytest.mark.spec("B14")
def test_second_derivatives_of_a_gate_that_is_made_of_what_it_gates() -> None:
    u, _ = _drawn(3, 4)

    def twice(way: Any) -> torch.Tensor:
        (first,) = torch.autograd.grad(way(u, u.sin()).square().sum(), u, create_graph=True)
        return torch.autograd.grad(first.square().sum(), u)[0]

    right = twice(lambda u, v: SiLU()(u) * v)
    found = twice(lambda u, v: gated(SiLU(), u, v))
    assert (found - right).abs().max() <= 1e-12 * right.abs().max()
