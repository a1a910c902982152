"""The discrete blocks of Transformers, written by hand, are steps of solvers."""

import pytest
import torch

from continua.flow import (
    Euler,
    Fixed,
    Flow,
    LieTrotter,
    Projection,
    solve,
)
from tests.measure import EXACT, gap, random


def attention(z, x, w):
    return (x @ w.T).softmax(-1) * (1 + z)


def feed_forward(z, x, w):
    return torch.tanh(x @ w.T) - 0.1 * z


def normed(z, x, g):
    return g * (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


W = (random(5, 5), random(5, 5, seed=1))
G = (random(5, seed=2), random(5, seed=3))
X = random(4, 5, seed=4)


def blocks(field, args, solver, steps: int = 3) -> torch.Tensor:
    return solve(field, X, (0.0, float(steps)), args=args, solver=solver, control=Fixed(steps)).final


@pytest.mark.spec("M7", "D2")
def test_the_parallel_block_is_euler_on_the_sum() -> None:
    x = X
    for z in range(3):
        x = x + attention(z, x, W[0]) + feed_forward(z, x, W[1])
    assert gap(blocks(Flow(attention) + Flow(feed_forward), W, Euler()), x) < EXACT


@pytest.mark.spec("M7", "D2")
def test_the_sequential_block_is_lie_trotter_with_unit_euler_steps() -> None:
    x = X
    for z in range(3):
        x = x + attention(z, x, W[0])
        x = x + feed_forward(z, x, W[1])
    assert torch.equal(blocks(Flow(attention) + Flow(feed_forward), W, LieTrotter(Euler())), x)


@pytest.mark.spec("M7", "D2")
def test_attention_projection_feed_forward_projection_is_a_field_of_four_parts() -> None:
    x = X
    for z in range(3):
        x = normed(z, x + attention(z, x, W[0]), G[0])
        x = normed(z, x + feed_forward(z, x, W[1]), G[1])
    field = Flow(attention) + Projection(normed) + Flow(feed_forward) + Projection(normed)
    assert torch.equal(blocks(field, (W[0], G[0], W[1], G[1]), LieTrotter()), x)


@pytest.mark.spec("M1")
def test_gamma_minus_one_drops_the_residual() -> None:
    x = X
    for z in range(3):
        x = attention(z, x, W[0])
    residual_free = Flow(lambda z, x, w: -x + attention(z, x, w))
    assert gap(blocks(residual_free + Projection(lambda z, x, a: x), (W[0], None), LieTrotter()), x) < EXACT
