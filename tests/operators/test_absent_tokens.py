"""Absent tokens answer exactly zero, and whatever was written in them reaches no answer, average or gradient."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import continua as ct
from continua.fields import counted
from continua.models import Observations, Readout, States
from continua.models.build import discrete_axes, post_norm, pre_norm
from continua.operators import Operator
from tests.exact import gap, gradients, numbers, stirred

B, N, D = 2, 5, 8
GONE = torch.tensor([[False, False, True, True, True], [False, True, False, False, False]])
HERE = ~GONE
TIMES = torch.tensor([0.0, 0.3, 0.4, 1.0, 1.5], dtype=torch.float64)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def discrete(norm: str, mask: Any = None, **readout: Any) -> ct.Transformer:
    """Two unit steps on handed-over states, with the norm in one of its places."""
    axes, native = discrete_axes(D, 2, 12, 2)
    weights = counted(axes, 2)
    branches: tuple[Operator, ...] = (ct.Attention(weights, mask=mask), ct.Pointwise(weights))
    block = {
        "pre-norm": lambda: pre_norm(branches, lambda: ct.LayerNorm(weights)),
        "post-norm": lambda: post_norm(branches, lambda: ct.RMSNorm(weights)),
        "constraint": lambda: post_norm(branches, lambda: ct.Constraint(weights)),
        "sphere": lambda: post_norm(branches, ct.operators.SphereProjection),
    }[norm]()
    answer = Readout(weights.autonomous(), **readout) if readout else None
    return ct.Transformer(axes, native, States(), block, answer)


def series(mask: Any = None) -> ct.Transformer:
    model = ct.Transformer.continuous(channels=3, t=ct.Times(), at=ct.at(d=D, h=2, z=2), mask=mask)
    assert isinstance(model.embed, Observations)
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "pre-norm": lambda: stirred(discrete("pre-norm")),
    "pre-norm, causal": lambda: stirred(discrete("pre-norm", ct.Causal())),
    "pre-norm, window": lambda: stirred(discrete("pre-norm", ct.Window(1.0))),
    "post-norm": lambda: stirred(discrete("post-norm")),
    "constraint": lambda: stirred(discrete("constraint")),
    "sphere": lambda: stirred(discrete("sphere")),
    "sphere, zero biases": lambda: discrete("sphere").double(),  # absent tokens stay at zero: there is no direction
    "head": lambda: stirred(discrete("pre-norm", out=3, bias=True)),
    "pooled": lambda: stirred(discrete("pre-norm", out=3, bias=True, pool=True)),
    "RK4": lambda: stirred(discrete("pre-norm")).at(z=ct.Fixed(2, ct.RK4())),
    "Strang": lambda: stirred(discrete("pre-norm")).at(z=ct.Fixed(2, ct.Strang())),
    "real time": lambda: stirred(series()),
    "real time, causal": lambda: stirred(series(ct.Causal())),
}


def answered(model: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The answer, and the gradients of a loss over all of it."""
    module = model if isinstance(model, nn.Module) else model.model
    real = isinstance(module.axes.t, ct.Times)
    x = (x[..., :3] if real else x).clone().requires_grad_()
    y = model(ct.Batch(x, times=TIMES if real else None, observed=HERE))
    towards = numbers(*y.shape, seed=9)
    return y, gradients((y * towards).sum(), {"x": x, **dict(module.named_parameters())})


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e300], ids=["NaN", "infinity", "huge"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.spec("A2", "M4")
def test_what_is_absent_reaches_nobody(name: str, junk: float) -> None:
    model, x = MODELS[name](), numbers(B, N, D)
    clean, clean_grads = answered(model, x)
    dirty, dirty_grads = answered(model, x.masked_fill(GONE[..., None], junk))
    assert clean.isfinite().all()
    assert torch.equal(dirty, clean)
    for key, grad in clean_grads.items():
        assert grad.isfinite().all(), key
        assert torch.equal(dirty_grads[key], grad), key
    assert not dirty_grads["x"][GONE].any()
    assert dirty_grads["x"][HERE].any(-1).all()
    if name != "pooled":
        assert not dirty[GONE].any()  # exactly zero
        assert dirty[HERE].any(-1).all()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "pooled"])
@pytest.mark.spec("A2", "M4")
def test_an_absent_token_is_as_good_as_none(name: str) -> None:
    """Padding at the end: the same answer as the sequence cut off before it."""
    model, x, kept = MODELS[name](), numbers(1, N, D), 3
    real = name.startswith("real time")
    values, stamps = (x[..., :3], TIMES) if real else (x, None)
    padded = model(ct.Batch(values, times=stamps, observed=torch.arange(N) < kept))
    alone = model(ct.Batch(values[:, :kept], times=stamps if stamps is None else stamps[:kept]))
    assert gap(padded[:, :kept], alone) <= 1e-12


@pytest.mark.spec("A2", "M4")
def test_absent_tokens_enter_no_average() -> None:
    model = stirred(discrete("pre-norm", out=3, bias=True, pool=True))
    x = numbers(B, N, D)
    pooled = model(ct.Batch(x, observed=HERE))
    for b in range(B):
        assert gap(pooled[b : b + 1], model(x[b : b + 1, HERE[b]])) <= 1e-12


@pytest.mark.spec("A2", "A4")
def test_absent_sources_reach_no_decoder() -> None:
    theirs = nn.Transformer(D, 2, 2, 2, 12, dropout=0.0, batch_first=True)
    model, x, source = ct.from_torch(stirred(theirs)), numbers(B, N, D), numbers(B, N, D, seed=1)
    answers = []
    for junk in (0.0, math.nan):
        given = source.masked_fill(GONE.flip(0)[..., None], junk), x.masked_fill(GONE[..., None], junk)
        batch = ct.Batch(given[1], observed=HERE, source=ct.Batch(given[0], observed=HERE.flip(0)))
        y = model(batch)
        answers.append((y, gradients(y.square().sum(), dict(model.named_parameters()))))
    (clean, wanted), (dirty, got) = answers
    assert not dirty[GONE].any()
    assert clean[HERE].any(-1).all()
    assert torch.equal(dirty, clean)
    assert all(torch.equal(got[name], grad) and grad.isfinite().all() for name, grad in wanted.items())


@pytest.mark.parametrize("junk", [-100, 10**6])
@pytest.mark.spec("A2", "A4")
def test_absent_tokens_need_no_valid_number(junk: int) -> None:
    ids = torch.randint(16, (B, N), generator=torch.Generator().manual_seed(1))
    for make in (ct.zoo.gpt2, ct.zoo.bert):
        model = stirred(make(vocab=16, d=D, heads=2, depth=2, context=8))
        clean = model(ct.Batch(ids, observed=HERE))
        dirty = model(ct.Batch(ids.masked_fill(GONE, junk), observed=HERE))
        assert torch.equal(clean, dirty)
        assert not dirty[GONE].any()
