"""Half precision: bfloat16 autocast with softmax and state in float32, and models that are bfloat16 throughout."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import continua as ct
from continua.operators.attention.fused import attend_blocked, attend_fused, attend_plain
from tests.cases import MODELS
from tests.exact import gap, numbers

# 8 bits of mantissa through a few layers, relative to the largest entry
ANSWER, GRADIENT = 0.03, 0.08
NAMES = [
    "gpt2", "bert, masked LM", "encoder-decoder", "continuous words", "continuous series", "spectral", "pooled",
    "grouped heads, ALiBi", "position relative", "mask Window(radius=2.0)", "graph attention", "additive scores",
    "forecaster", "memory of keys and values", "cross-modal",
]  # fmt: skip


def case(name: str) -> tuple[Any, ct.Batch]:
    return MODELS[name].model().float(), MODELS[name].batch()


def answered(model: Any, batch: ct.Batch, **cast: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The answer and every gradient, forward under autocast if ``cast`` says so."""
    model.zero_grad()
    with torch.autocast("cpu", **cast):
        answer = model(batch)
        loss = (answer.float() * numbers(*answer.shape, dtype=torch.float32, seed=9)).sum()
    loss.backward()
    return answer.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.spec("A10", "D7")
@pytest.mark.parametrize("name", NAMES)
def test_autocast_runs_forward_and_backward_near_float32(name) -> None:
    model, batch = case(name)
    wanted, exact = answered(model, batch, enabled=False)
    got, grads = answered(model, batch, dtype=torch.bfloat16)
    assert got.dtype in (torch.float32, torch.bfloat16)
    assert gap(got.float(), wanted) < ANSWER
    off = sum((grads[path] - grad).square().sum() for path, grad in exact.items()) ** 0.5
    assert off < GRADIENT * sum(grad.square().sum() for grad in exact.values()) ** 0.5
    for path, grad in grads.items():
        assert grad.dtype == torch.float32, path
        assert torch.isfinite(grad).all(), path


class Seen(TorchDispatchMode):
    """Which dtypes softmaxes and matrix products ran in."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax: set[torch.dtype] = set()
        self.products: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "_softmax":
            self.softmax.add(args[0].dtype)
        if name in ("mm", "addmm", "bmm"):
            self.products.add(args[-1].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.spec("A10")
@pytest.mark.parametrize("name", ["gpt2", "graph attention", "continuous words", "continuous series"])
def test_products_are_half_and_states_and_softmax_are_single(name) -> None:
    model, batch = case(name)
    with torch.autocast("cpu", dtype=torch.bfloat16), Seen() as seen:
        path = model.states(batch)
    assert {x.dtype for x in path.x} == {torch.float32}
    assert torch.bfloat16 in seen.products
    assert seen.softmax <= {torch.float32}
    assert bool(seen.softmax) == (name == "graph attention"), "others keep the fused kernel, which adds up in float32"


@pytest.mark.spec("A10")
@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_bfloat16_runs(name) -> None:
    model, batch = case(name)
    with torch.no_grad():
        wanted = model(batch)
    model.bfloat16()
    got = model(batch)
    assert got.dtype == torch.bfloat16
    assert gap(got.float(), wanted) < 0.1
    got.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.dtype == torch.bfloat16 for p in model.parameters())


@pytest.mark.spec("A10", "A7")
@pytest.mark.parametrize("path", ["fused", "fused, causal", "blocked", "custom", "plain"])
def test_a_row_of_many_keys_adds_up_to_one(path) -> None:
    """4,096 equal keys and values one: a sum in bfloat16 would stop at 256. The log-weights cover ten decades."""
    n = 4096
    q, k = torch.zeros(1, 1, 8, 4).bfloat16(), torch.zeros(1, 1, n, 4).bfloat16()
    v = torch.ones(1, 1, n, 4).bfloat16()
    bias = torch.linspace(-20.0, 3.0, n)
    out = {
        "fused": lambda: attend_fused(q, k, v, 0.5, False, bias[None]),
        "fused, causal": lambda: attend_fused(k, k, v, 0.5, True, bias[None]),
        "blocked": lambda: attend_blocked(q, k, v, 0.5, lambda rows: bias.expand(1, 1, 8, n)),
        "custom": lambda: attend_blocked(
            q, k, v, 0.5, lambda rows: bias.expand(1, 1, 8, n), lambda q, k: 0.5 * q @ k.mT
        ),
        "plain": lambda: attend_plain(q, k, v, 0.5, bias),
    }[path]()
    assert out.dtype == torch.bfloat16
    assert (out.float() - 1).abs().max() <= 2**-8


@pytest.mark.spec("A10")
@pytest.mark.parametrize("blocked", [False, True], ids=["fused", "blocked"])
def test_weights_of_a_measure_keep_their_digits(blocked) -> None:
    """log w rides beside bfloat16 keys without being rounded to 8 bits: ratios of weights stay right to 0.5 %."""
    n = 64
    q, k = torch.zeros(1, 1, 1, 4).bfloat16(), torch.zeros(1, 1, n, 4).bfloat16()
    log_w = -10 - 3 * torch.rand(n, generator=torch.Generator().manual_seed(0))
    v = torch.linspace(0.0, 1.0, n)[None, None, :, None].expand(1, 1, n, 4).bfloat16()
    wanted = log_w.softmax(-1) @ v[0, 0, :, 0].float()
    got = (
        attend_blocked(q, k, v, 0.5, lambda rows: log_w.expand(1, 1, 1, n))
        if blocked
        else attend_fused(q, k, v, 0.5, False, log_w[None])
    )
    assert (got.float() - wanted).abs().max() < 0.005


@pytest.mark.spec("A10")
def test_a_measure_keeps_its_digits_in_a_whole_model_under_autocast() -> None:
    """A causal series takes the blocked path with log-weights of each pair: autocast must not round those."""
    model, batch = case("continuous series")
    seen: list[Tensor] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(*args: Any, **choices: Any) -> Tensor:
        seen.append(choices["attn_mask"])
        return attend(*args, **choices)

    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", dtype=torch.bfloat16):
        patch.setattr("continua.operators.attention.fused.scaled_dot_product_attention", watched)
        model(batch)
    assert seen
    assert {mask.dtype for mask in seen} == {torch.float32}
