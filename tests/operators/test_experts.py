"""A mixture of experts: three ways to the same numbers, and what the gate is."""

import pytest
import torch

from continua.errors import ConfigError
from continua.operators import Experts, SiLU
from continua.operators.experts import Gate, Mixing, can_group
from tests.bound import COUNTED, apply, counted_grids, double
from tests.exact import gradients, worst
from tests.measure import gap, random
from tests.refusals import refused

pytestmark = pytest.mark.spec("B14")
WAYS = ("one_by_one", "in_groups", "through_all")


def mixed(way: str, dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The answer of one way, and all its gradients."""
    mixing = Mixing(SiLU(), Gate(2, normalised=True))
    sizes = {"choice": (3, 8), "w1": (3, 12, 8), "gate": (3, 12, 8), "w2": (3, 8, 12)}
    w = {name: random(*size, seed=i).to(dtype).requires_grad_() for i, (name, size) in enumerate(sizes.items())}
    rows = random(7, 8, seed=9).to(dtype).requires_grad_()
    shares, chosen = mixing.gate(rows @ w["choice"].mT)
    if way == "through_all":
        found = mixing.through_all(rows, shares, chosen, w)
    else:
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=3)
        made = getattr(mixing, way)(rows[order // 2], counts, w) * shares.flatten()[order][:, None]
        found = torch.zeros_like(rows).index_add(0, order // 2, made)
    return found, gradients(found.square().sum(), {**w, "rows": rows})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-13), (torch.float32, 1e-5)], ids=str)
def test_all_ways_give_the_same(way: str, dtype: torch.dtype, close: float) -> None:
    if way == "in_groups" and dtype == torch.float64:
        assert not can_group(torch.zeros(2, 8, dtype=dtype), torch.zeros(3, 12, 8, dtype=dtype))
        return
    found, slopes = mixed(way, dtype)
    wanted, expected = mixed("one_by_one", torch.float64)
    assert gap(found.double(), wanted) < close
    assert worst({name: g.double() for name, g in slopes.items()}, expected) < close


def test_the_gate_is_a_sparse_measure() -> None:
    scores = random(5, 6)
    shares, chosen = Gate(2, normalised=True)(scores)
    assert gap(shares.sum(-1), torch.ones(5, dtype=shares.dtype)) < 1e-15
    plain, same = Gate(2, normalised=False)(scores)
    assert torch.equal(same, chosen)
    assert gap(plain, scores.softmax(-1).gather(1, chosen)) < 1e-15
    assert (plain.sum(-1) < 1).all()


def test_all_experts_with_equal_maps_are_one() -> None:
    """Where all experts compute the same, their shares do not matter."""
    one = double(Experts(COUNTED, 3, 2))
    with torch.no_grad():
        for field in (one.w1, one.gate, one.w2):
            field.coefficients.copy_(field.coefficients[:1].expand_as(field.coefficients))
    x = random(2, 5, 8)
    before = apply(one, counted_grids(), x)
    with torch.no_grad():
        one.choice.coefficients.mul_(-3.0)
    assert gap(apply(one, counted_grids(), x), before) < 1e-13


def test_more_experts_for_a_token_than_there_are() -> None:
    with refused(ConfigError, "at most 3 experts, got 4", "top ≤ experts"):
        Experts(COUNTED, 3, 4)
