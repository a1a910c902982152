"""Nyström attention in float32: what its landmark matrix multiplies is summed finely, where the device can."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from continua import constants
from continua.axes import GaussLegendre, counting
from continua.operators import Attention, Nystrom
from tests.bound import COUNTED, apply, counted_grids
from tests.measure import random

TOKENS = 41
SINGLE = torch.finfo(torch.float32).eps


class NoDoubles(TorchFunctionMode):
    """A device that knows no float64."""

    def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = f(*args, **(kwargs or {}))
        assert not any(isinstance(one, torch.Tensor) and one.dtype == torch.float64 for one in tree_leaves(made)), f
        return made


def attention() -> Attention:
    torch.manual_seed(0)
    return Attention(COUNTED, kernel=Nystrom(GaussLegendre(6)))


def gradient(operator: Attention, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Of the answers at the tokens, which are given in some order."""
    x = x.clone().requires_grad_()
    answer = apply(operator, counted_grids(TOKENS), x[:, order])
    weights = random(*answer.shape).to(x.dtype)
    (answer * weights[:, order]).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.spec("A5", "B15")
def test_the_order_of_a_sum_over_tokens_does_not_show_in_float32(monkeypatch) -> None:
    operator = attention()
    x = random(2, TOKENS, COUNTED.axes.d.n).float()
    forward = torch.arange(TOKENS)
    backward = forward.flip(0)  # the nodes of the rule are symmetric: the landmarks are the same tokens
    ours = gap_of(operator, x, forward, backward)
    monkeypatch.setattr(constants, "summed_in", lambda dtype, device: dtype)
    plain = gap_of(operator, x, forward, backward)
    assert ours < 4 * SINGLE
    assert plain > 4 * ours  # what a device without fine sums loses


def gap_of(operator: Attention, x: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> float:
    """Between the gradients of tokens in one order and in another, relative to them."""
    wanted = gradient(operator, x, one)
    return float((gradient(operator, x, other) - wanted).norm() / wanted.norm())


@pytest.mark.spec("A5", "B15")
def test_sums_are_fine_where_the_device_is_fine() -> None:
    processor = torch.device("cpu")
    assert constants.widest(processor) == torch.float64
    assert constants.widest(torch.device("mps")) == torch.float32
    assert constants.summed_in(torch.float32, processor) == torch.float64
    assert constants.summed_in(torch.bfloat16, processor) == torch.bfloat16
    for name in ("cuda", "mps"):
        assert constants.summed_in(torch.float32, torch.device(name)) == torch.float32


@pytest.mark.spec("A5")
def test_landmarks_need_no_float64(monkeypatch) -> None:
    operator = attention()
    x = random(1, TOKENS, COUNTED.axes.d.n).float()
    grids = replace(counted_grids(TOKENS), t=counting(TOKENS, x))
    wanted = apply(operator, grids, x)
    monkeypatch.setattr(constants, "WITHOUT_DOUBLES", ("cpu",))
    monkeypatch.setattr(constants, "summed_in", lambda dtype, device: dtype)
    with NoDoubles():
        found = apply(operator, grids, x)
    assert float((found - wanted).detach().norm() / wanted.detach().norm()) < SINGLE**0.5
