"""Counting axes, nodal weights and unit steps are ``torch.nn``: outputs, input and parameter gradients (M9).

Modules are compared in training mode with dropout 0, since in eval mode torch takes other kernels of its own.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import continua as ct
from continua.axes import Depths, counting
from continua.convert.torch_nn import torch_names
from continua.fields import counted
from continua.operators import Context, Mask
from tests.exact import EXACT, gap, gradients, numbers, stirred, worst

B, N, S, D, HEADS = 2, 6, 5, 8, 2
DTYPES = [torch.float64, torch.float32]
PAST = torch.arange(N)[:, None] >= torch.arange(N)
GAP = torch.arange(N)[:, None] - torch.arange(N)
PRESENT = torch.arange(N) < torch.tensor([[N - 2], [N]])  # the first sample ends two tokens early


@dataclass(frozen=True)
class Case:
    """One mask, said to torch (True or −inf = hidden) and to Continua (True = allowed)."""

    hidden: Tensor | None = None
    absent: Tensor | None = None
    pairs: Tensor | None = None
    observed: Tensor | None = None
    mask: Mask | None = None

    def theirs(self, dtype: torch.dtype, attn: str, padding: str) -> dict[str, Tensor]:
        """Keyword arguments of the module."""
        given = {attn: self.hidden, padding: self.absent}
        return {k: v.to(dtype) if v.is_floating_point() else v for k, v in given.items() if v is not None}

    def added(self, dtype: torch.dtype) -> Tensor | None:
        """Pairs in the model's precision."""
        return self.pairs.to(dtype) if self.pairs is not None and self.pairs.is_floating_point() else self.pairs


def some(*shape: int) -> Tensor:
    """A fixed boolean mask; every row keeps the key of its own number."""
    allowed = torch.rand(*shape, generator=torch.Generator().manual_seed(5)) < 0.5
    return allowed | torch.eye(shape[-2], dtype=torch.bool)[:, : shape[-1]] | (torch.arange(shape[-1]) == 0)


def minus_inf(allowed: Tensor) -> Tensor:
    return torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, -torch.inf)


FLOATS, EACH, ANY = numbers(N, N, seed=3), some(B, HEADS, N, N), some(N, N)
SELF = {
    "none": Case(),
    "causal pairs": Case(~PAST, pairs=PAST),
    "causal": Case(~PAST, mask=ct.Causal()),
    "causal, said by −inf": Case(minus_inf(PAST), pairs=minus_inf(PAST)),
    "bool": Case(~ANY, pairs=ANY),
    "bool for each sample and head": Case(~EACH.flatten(0, 1), pairs=EACH),
    "float": Case(FLOATS, pairs=FLOATS),
    "float and causal": Case(FLOATS + minus_inf(PAST), pairs=FLOATS, mask=ct.Causal()),
    "window": Case(GAP.abs() > 2, mask=ct.Window(2.0)),
    "strided": Case(GAP % 2 != 0, mask=ct.Strided(2.0)),
    "causal & window": Case((GAP < 0) | (GAP > 2), mask=ct.Causal() & ct.Window(2.0)),
    "causal & strided, pairs": Case((GAP % 2 != 0) | ~PAST | ~ANY, pairs=ANY, mask=ct.Causal() & ct.Strided(2.0)),
    "padding": Case(absent=~PRESENT, observed=PRESENT),
    "left padding": Case(absent=~PRESENT.flip(1), observed=PRESENT.flip(1)),
    "padding and causal": Case(~PAST, ~PRESENT, observed=PRESENT, mask=ct.Causal()),
    "padding and causal pairs": Case(~PAST, ~PRESENT, observed=PRESENT, pairs=PAST),
    "padding and bool": Case(~ANY, ~PRESENT, observed=PRESENT, pairs=ANY),
    "padding and float": Case(FLOATS, minus_inf(PRESENT), observed=PRESENT, pairs=FLOATS),
}
CROSS_FLOATS, CROSS_ANY = numbers(N, S, seed=4), some(N, S)
MEMORY = torch.arange(S) < torch.tensor([[S], [S - 2]])
CROSS = {
    "none": Case(),
    "bool": Case(~CROSS_ANY, pairs=CROSS_ANY),
    "float": Case(CROSS_FLOATS, pairs=CROSS_FLOATS),
    "padding": Case(absent=~MEMORY, observed=MEMORY),
    "padding and bool": Case(~CROSS_ANY, ~MEMORY, observed=MEMORY, pairs=CROSS_ANY),
}
SELF_CASES = pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in SELF.items()])
CROSS_CASES = pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CROSS.items()])
IN_BOTH = pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
PRE_AND_POST = pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def leaf(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return numbers(*shape, dtype=dtype, seed=seed).requires_grad_()


def their_names(module: Any, model: Any, grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our gradients under the names of the torch module."""
    if isinstance(module, nn.Transformer):
        found = {}
        for part in ("encoder", "decoder"):
            own = {k.removeprefix(f"{part}."): v for k, v in grads.items() if k.startswith(f"{part}.")}
            stored = their_names(getattr(module, part), getattr(model, part), own)
            found.update({f"{part}.{k}": v for k, v in stored.items()})
        return found
    return torch_names(module).store(grads)


def agree(ours: Tensor, theirs: Tensor, model: Any, module: nn.Module, rows: Tensor | None, **inputs: Tensor) -> None:
    """Outputs, gradients of the inputs and of all parameters. Absent rows: zero from us, whatever from torch."""
    exact = EXACT[theirs.dtype]
    theirs = theirs if rows is None else theirs.masked_fill(~rows[..., None], 0.0)
    assert gap(ours, theirs) <= exact
    towards = numbers(*theirs.shape, dtype=theirs.dtype, seed=9)
    wanted = gradients((theirs * towards).sum(), {**inputs, **dict(module.named_parameters())})
    got = gradients((ours * towards).sum(), {**inputs, **dict(model.named_parameters())})
    mapped = their_names(module, model, {k: v for k, v in got.items() if k not in inputs})
    assert worst({**{k: got[k] for k in inputs}, **mapped}, wanted) <= exact


def bound(operator: ct.Attention, model: ct.Transformer, x: Tensor, context: Context, observed: Any = None) -> Tensor:
    """The bare operator A[x]."""
    t = counting(x.shape[1], x)
    t = t if observed is None else t.only(observed)
    f, args = operator.bind(replace(model.native.grids(model.axes), t=t, z=Depths((0.0,))), context)
    return f(0.0, x, args)


# --- multi-head attention --------------------------------------------------------------------------------------------


@SELF_CASES
@IN_BOTH
@pytest.mark.spec("M9", "A1", "A2")
def test_self_attention_is_multihead_attention(case: Case, dtype: torch.dtype) -> None:
    mha = stirred(nn.MultiheadAttention(D, HEADS, batch_first=True), dtype)
    model = ct.from_torch(mha, mask=case.mask)
    x = leaf(B, N, D, dtype=dtype, seed=0)
    ours = model(ct.Batch(x, observed=case.observed, pairs=case.added(dtype)))
    theirs = x + mha(x, x, x, **case.theirs(dtype, "attn_mask", "key_padding_mask"))[0]
    agree(ours, theirs, model, mha, case.observed, x=x)


@CROSS_CASES
@IN_BOTH
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.spec("M9", "A1", "A2")
def test_bare_cross_attention_is_multihead_attention(case: Case, dtype: torch.dtype, bias: bool) -> None:
    mha = stirred(nn.MultiheadAttention(D, HEADS, bias=bias, batch_first=True), dtype)
    model = ct.from_torch(mha)
    letters = ("q", "k", "v", "o") if bias else ()
    model.block.parts[0] = _loaded(ct.Attention(counted(model.axes, 1), bias=letters, cross=True), model)
    x, memory = leaf(B, N, D, dtype=dtype, seed=0), leaf(B, S, D, dtype=dtype, seed=1)
    grid = counting(S, x) if case.observed is None else counting(S, x).only(case.observed)
    ours = bound(model.block.parts[0], model, x, Context(memory, grid, cross_pairs=case.added(dtype)))
    theirs = mha(x, memory, memory, **case.theirs(dtype, "attn_mask", "key_padding_mask"))[0]
    agree(ours, theirs, model, mha, None, x=x, memory=memory)


def _loaded(operator: ct.Attention, model: ct.Transformer) -> ct.Attention:
    like = next(model.parameters())
    operator.to(like.dtype).load_state_dict(model.block.parts[0].state_dict())
    return operator


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.spec("M9", "A1")
def test_bare_self_attention_is_multihead_attention(bias: bool) -> None:
    mha = stirred(nn.MultiheadAttention(D, HEADS, bias=bias))  # batch second: the weights are the same
    model = ct.from_torch(mha)
    x = leaf(B, N, D, dtype=torch.float64, seed=0)
    ours = bound(model.block.parts[0], model, x, Context(pairs=ANY))
    y = x.transpose(0, 1)
    theirs = mha(y, y, y, attn_mask=~ANY)[0].transpose(0, 1)
    agree(ours, theirs, model, mha, None, x=x)


@pytest.mark.spec("M9", "A2")
def test_an_added_mask_gets_its_gradient() -> None:
    mha = stirred(nn.MultiheadAttention(D, HEADS, batch_first=True))
    x, added = leaf(B, N, D, dtype=torch.float64, seed=0), leaf(N, N, dtype=torch.float64, seed=3)
    model = ct.from_torch(mha)
    theirs = x + mha(x, x, x, attn_mask=added)[0]
    agree(model(ct.Batch(x, pairs=added)), theirs, model, mha, None, x=x, added=added)


# --- layers ----------------------------------------------------------------------------------------------------------


def encoder_layer(dtype: torch.dtype = torch.float64, **options: Any) -> nn.TransformerEncoderLayer:
    return stirred(nn.TransformerEncoderLayer(D, HEADS, 12, dropout=0.0, batch_first=True, **options), dtype)


def decoder_layer(dtype: torch.dtype = torch.float64, **options: Any) -> nn.TransformerDecoderLayer:
    return stirred(nn.TransformerDecoderLayer(D, HEADS, 12, dropout=0.0, batch_first=True, **options), dtype)


@SELF_CASES
@IN_BOTH
@PRE_AND_POST
@pytest.mark.spec("M9", "A2", "A4")
def test_encoder_layer(case: Case, dtype: torch.dtype, norm_first: bool) -> None:
    layer = encoder_layer(dtype, norm_first=norm_first)
    model = ct.from_torch(layer, mask=case.mask)
    x = leaf(B, N, D, dtype=dtype, seed=0)
    ours = model(ct.Batch(x, observed=case.observed, pairs=case.added(dtype)))
    theirs = layer(x, **case.theirs(dtype, "src_mask", "src_key_padding_mask"))
    agree(ours, theirs, model, layer, case.observed, x=x)


@PRE_AND_POST
@pytest.mark.parametrize("activation", ["relu", "gelu", nn.GELU()], ids=["relu", "gelu", "GELU"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.spec("M9", "A4")
def test_layers_in_every_make(norm_first: bool, activation: Any, bias: bool) -> None:
    options = {"norm_first": norm_first, "activation": activation, "bias": bias, "layer_norm_eps": 1e-3}
    x, memory = (leaf(B, n, D, dtype=torch.float64, seed=n) for n in (N, S))
    encoder = encoder_layer(**options)
    model = ct.from_torch(encoder)
    agree(model(x), encoder(x), model, encoder, None, x=x)
    decoder = decoder_layer(**options)
    model = ct.from_torch(decoder, mask=ct.Causal())
    ours = model.run(x, context=Context(memory, counting(S, x)))[0]
    agree(ours, decoder(x, memory, tgt_mask=~PAST), model, decoder, None, x=x, memory=memory)


def decoded(model: ct.Transformer, x: Tensor, memory: Tensor, own: Case, cross: Case) -> Tensor:
    grid = counting(S, x) if cross.observed is None else counting(S, x).only(cross.observed)
    context = Context(memory, grid, cross_pairs=cross.added(x.dtype))
    return model.run(ct.Batch(x, observed=own.observed, pairs=own.added(x.dtype)), context=context)[0]


OWN = ["none", "causal", "bool", "float", "padding and causal", "padding and causal pairs"]
OWN_CASES = [*((name, torch.float64) for name in OWN), ("padding and causal", torch.float32)]


@CROSS_CASES
@PRE_AND_POST
@pytest.mark.parametrize(("name", "dtype"), OWN_CASES, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.spec("M9", "A1", "A2", "A4")
def test_decoder_layer(case: Case, norm_first: bool, name: str, dtype: torch.dtype) -> None:
    own, layer = SELF[name], decoder_layer(dtype, norm_first=norm_first)
    model = ct.from_torch(layer, mask=own.mask)
    x, memory = leaf(B, N, D, dtype=dtype, seed=0), leaf(B, S, D, dtype=dtype, seed=1)
    theirs = layer(
        x,
        memory,
        **own.theirs(dtype, "tgt_mask", "tgt_key_padding_mask"),
        **case.theirs(dtype, "memory_mask", "memory_key_padding_mask"),
    )
    agree(decoded(model, x, memory, own, case), theirs, model, layer, own.observed, x=x, memory=memory)


# --- stacks: one Transformer with several unit steps -----------------------------------------------------------------


@PRE_AND_POST
@pytest.mark.parametrize("final", [True, False], ids=["final norm", "no final norm"])
@pytest.mark.parametrize("name", ["none", "padding and causal"])
@pytest.mark.spec("M9", "A4", "M1")
def test_encoder_stack_is_several_unit_steps(norm_first: bool, final: bool, name: str) -> None:
    case, last = SELF[name], nn.LayerNorm(D) if final else None
    stack = nn.TransformerEncoder(encoder_layer(norm_first=norm_first), 4, last, enable_nested_tensor=False)
    stirred(stack, seed=2)  # the layers were copies of one
    model = ct.from_torch(stack, mask=case.mask)
    assert model.native.z.steps == 4
    x = leaf(B, N, D, dtype=torch.float64, seed=0)
    theirs = stack(x, **case.theirs(x.dtype, "mask", "src_key_padding_mask"))
    agree(model(ct.Batch(x, observed=case.observed)), theirs, model, stack, case.observed, x=x)
    first = stack.layers[0](x, **case.theirs(x.dtype, "src_mask", "src_key_padding_mask"))
    states = model.states(ct.Batch(x, observed=case.observed))
    rows = torch.ones(B, N, dtype=torch.bool) if case.observed is None else case.observed
    assert states.z == (0.0, 1.0, 2.0, 3.0, 4.0)
    assert gap(states.x[1][rows], first[rows]) <= 1e-12


@PRE_AND_POST
@pytest.mark.spec("M9", "A4")
def test_decoder_stack(norm_first: bool) -> None:
    stack = nn.TransformerDecoder(decoder_layer(norm_first=norm_first), 3, nn.LayerNorm(D))
    stirred(stack, seed=2)
    model = ct.from_torch(stack, mask=ct.Causal())
    x, memory = leaf(B, N, D, dtype=torch.float64, seed=0), leaf(B, S, D, dtype=torch.float64, seed=1)
    theirs = stack(x, memory, tgt_mask=~PAST, memory_key_padding_mask=~MEMORY)
    agree(decoded(model, x, memory, Case(), CROSS["padding"]), theirs, model, stack, None, x=x, memory=memory)


@PRE_AND_POST
@IN_BOTH
@pytest.mark.spec("M9", "A4")
def test_encoder_decoder_is_nn_transformer(norm_first: bool, dtype: torch.dtype) -> None:
    options = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
    theirs = stirred(nn.Transformer(D, HEADS, 2, 3, 12, **options), dtype)
    model = ct.from_torch(theirs, mask=ct.Causal())
    assert isinstance(model, ct.EncoderDecoder)
    x, source = leaf(B, N, D, dtype=dtype, seed=0), leaf(B, S, D, dtype=dtype, seed=1)
    batch = ct.Batch(x, observed=PRESENT, source=ct.Batch(source, observed=MEMORY), cross_pairs=CROSS_ANY)
    wanted = theirs(
        source,
        x,
        tgt_mask=~PAST,
        memory_mask=~CROSS_ANY,
        src_key_padding_mask=~MEMORY,
        tgt_key_padding_mask=~PRESENT,
        memory_key_padding_mask=~MEMORY,
    )
    agree(model(batch), wanted, model, theirs, PRESENT, x=x, source=source)


@pytest.mark.spec("M9", "A4")
def test_names_are_two_way() -> None:
    for module in (encoder_layer(), decoder_layer(norm_first=True, bias=False), nn.MultiheadAttention(D, HEADS)):
        stored = torch_names(module).store(ct.from_torch(module).state_dict())
        assert set(stored) == set(module.state_dict())
        assert all(torch.equal(stored[name], tensor) for name, tensor in module.state_dict().items())
