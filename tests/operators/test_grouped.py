"""Grouped and multi-query heads: keys and values shared by groups of heads (A1)."""

from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.fields import counted
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import States
from continua.operators import ALiBi, Mask, Position
from tests.exact import gap, gradients, numbers, stirred, worst

B, N, D, HEADS, DEPTH = 2, 6, 16, 4, 2
PRESENT = torch.arange(N) < torch.tensor([[N - 2], [N]])
SHARED = ("k", "v", "bk", "bv")  # what a group has once
GROUPS = pytest.mark.parametrize("groups", [1, 2, 4], ids=["multi-query", "grouped", "one for each head"])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def model_of(groups: int | None, mask: Mask | None, alibi: bool) -> ct.Transformer:
    axes, native = discrete_axes(D, HEADS, 24, DEPTH)
    weights = counted(axes, DEPTH)
    position: Position | None = ALiBi(axes) if alibi else None
    branches = (ct.Attention(weights, mask=mask, groups=groups, position=position), ct.Pointwise(weights))
    return stirred(ct.Transformer(axes, native, States(), pre_norm(branches, lambda: ct.LayerNorm(weights))))


def is_shared(name: str) -> bool:
    return name.split(".")[-2] in SHARED


def spread(state: dict[str, Tensor], groups: int) -> dict[str, Tensor]:
    """The weights of full heads that say the same: each group's keys and values repeated for its heads."""
    return {k: v.repeat_interleave(HEADS // groups, 1) if is_shared(k) else v for k, v in state.items()}


def gathered(grads: dict[str, Tensor], groups: int) -> dict[str, Tensor]:
    """The chain rule of ``spread``: a group's gradient is the sum over its heads."""
    per = HEADS // groups
    return {k: v.unflatten(1, (groups, per)).sum(2) if is_shared(k) else v for k, v in grads.items()}


@GROUPS
@pytest.mark.parametrize("mask", [None, ct.Causal(), ct.Window(2.0)], ids=["all", "causal", "window"])
@pytest.mark.parametrize("observed", [None, PRESENT], ids=["full", "padded"])
@pytest.mark.parametrize("alibi", [False, True], ids=["", "ALiBi"])
@pytest.mark.spec("A1", "A2")
def test_groups_are_repeated_heads(groups: int, mask: Any, observed: Any, alibi: bool) -> None:
    few, full = model_of(groups, mask, alibi), model_of(None, mask, alibi)
    full.load_state_dict(spread(few.state_dict(), groups))
    assert few.block.parts[0].inner.k.coefficients.shape[1] == groups
    x = numbers(B, N, D).requires_grad_()
    batch = ct.Batch(x, observed=observed)
    got, wanted = few(batch), full(batch)
    assert gap(got, wanted) <= 1e-12
    towards = numbers(B, N, D, seed=9)
    ours = gradients((got * towards).sum(), {"x": x, **dict(few.named_parameters())})
    theirs = gradients((wanted * towards).sum(), {"x": x, **dict(full.named_parameters())})
    inputs, parameters = theirs.pop("x"), gathered(theirs, groups)
    assert worst(ours, {"x": inputs, **parameters}) <= 1e-12


@GROUPS
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.spec("A1", "M10")
def test_fewer_heads_read_their_own_groups(groups: int, heads: int) -> None:
    """``at(h=…)`` picks heads; each keeps the keys and values of the group that it belongs to."""
    few, full = model_of(groups, ct.Causal(), False), model_of(None, ct.Causal(), False)
    full.load_state_dict(spread(few.state_dict(), groups))
    x = numbers(B, N, D).requires_grad_()
    got, wanted = few.at(h=heads)(x), full.at(h=heads)(x)
    assert gap(got, wanted) <= 1e-12
    assert gap(got, few(x)) > 1e-3  # another discretisation is another function
    grads = gradients(got.square().sum(), dict(few.named_parameters()))
    expected = gathered(gradients(wanted.square().sum(), dict(full.named_parameters())), groups)
    assert worst(grads, expected) <= 1e-12
