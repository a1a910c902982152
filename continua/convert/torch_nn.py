"""``torch.nn`` layers as points of the continuous family."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import nn

from continua.convert.names import Entry, Layout, NameMap, norm
from continua.errors import CheckpointError
from continua.fields import Parametrisation, counted
from continua.models import Given, Transformer
from continua.models.build import discrete_axes, post_norm, pre_norm
from continua.operators import GELU, Activation, Attention, LayerNorm, Operator, Parts, Pointwise, ReLU


def from_torch(module: nn.Module) -> Transformer:
    """Return one layer of ``torch.nn`` as a Transformer with one unit step, equal to round-off.

    Takes ``MultiheadAttention`` (as the map x ↦ x + MHA(x), the step of its flow), ``TransformerEncoderLayer`` and
    ``TransformerDecoderLayer``. Masks go into ``Batch.pairs`` and ``observed``; dropout is not carried over.
    """
    if isinstance(module, nn.MultiheadAttention):
        return _build(module, module, cross=False, ffn=None)
    if isinstance(module, nn.TransformerEncoderLayer):
        return _build(module, module.self_attn, cross=False, ffn=module)
    if isinstance(module, nn.TransformerDecoderLayer):
        return _build(module, module.self_attn, cross=True, ffn=module)
    remedy = "Known: MultiheadAttention, TransformerEncoderLayer, TransformerDecoderLayer."
    raise CheckpointError("this module has no continuous form here", got=type(module).__name__, remedy=remedy)


def _build(module: nn.Module, attention: nn.MultiheadAttention, cross: bool, ffn: Any) -> Transformer:
    d, heads, bias = attention.embed_dim, attention.num_heads, attention.in_proj_bias is not None
    if not attention._qkv_same_embed_dim or attention.bias_k is not None:
        raise CheckpointError("queries, keys and values need one width", got="kdim, vdim or bias_kv", remedy="Use one.")
    axes, native = discrete_axes(d, heads, ffn.linear1.out_features if ffn else 1, 1)
    weights = counted(axes, 1)
    letters = ("q", "k", "v", "o") if bias else ()
    branches: list[Operator] = [Attention(weights, bias=letters)]
    if cross:
        branches.append(Attention(weights, bias=letters, cross=True))
    if ffn:
        branches.append(Pointwise(weights, _activation(ffn.activation), bias=ffn.linear1.bias is not None))
    block, first = _block(weights, branches, ffn)
    model = Transformer(axes, native, Given(), block)
    names = _map(first, cross, ffn, bias)
    stored = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    model.to(attention.out_proj.weight.dtype)
    model.load_state_dict(names.load(stored, model.state_dict(), 1))
    return model


def _block(weights: Parametrisation, branches: list[Operator], ffn: Any) -> tuple[Parts, list[tuple[str, str]]]:
    """Return the parts and, for each branch, the names of its operator and its norm."""
    if ffn is None:
        return Parts(tuple(branches)), [("block.parts.0", "")]
    make: Callable[[], Operator] = lambda: LayerNorm(weights, ffn.norm1.eps)  # noqa: E731
    if ffn.norm_first:
        named = [(f"block.parts.{i}.inner", f"block.parts.{i}.norm") for i in range(len(branches))]
        return pre_norm(tuple(branches), make), named
    named = [(f"block.parts.{2 * i}", f"block.parts.{2 * i + 1}.norm") for i in range(len(branches))]
    return post_norm(tuple(branches), make), named


def _map(named: list[tuple[str, str]], cross: bool, ffn: Any, bias: bool) -> NameMap:
    sources = [("self_attn." if ffn else "")] + (["multihead_attn."] if cross else [])
    entries: list[Entry] = []
    for (ours, _), theirs in zip(named, sources, strict=False):
        entries += _attention(ours, theirs, bias)
    if ffn:
        ours = named[-1][0]
        entries += [
            Entry(f"{ours}.{a}.coefficients", b, flat=flat)
            for a, b, flat in (
                ("w1", "linear1.weight", False),
                ("w2", "linear2.weight", False),
                *((("b1", "linear1.bias", True), ("b2", "linear2.bias", True)) if ffn.linear1.bias is not None else ()),
            )
        ]
        entries += [entry for i, (_, place) in enumerate(named) for entry in norm(place, f"norm{i + 1}")]
    return NameMap(tuple(entries))


def _attention(ours: str, theirs: str, bias: bool) -> list[Entry]:
    entries = [Entry(f"{ours}.o.coefficients", f"{theirs}out_proj.weight")]
    if bias:
        entries.append(Entry(f"{ours}.bo.coefficients", f"{theirs}out_proj.bias", flat=True))
    for i, letter in enumerate("qkv"):
        entries.append(Entry(f"{ours}.{letter}.coefficients", f"{theirs}in_proj_weight", Layout(2, part=(i, 3))))
        if bias:
            name = f"{theirs}in_proj_bias"
            entries.append(Entry(f"{ours}.b{letter}.coefficients", name, Layout(part=(i, 3)), flat=True))
    return entries


def _activation(function: Any) -> Activation:
    if function is F.relu or isinstance(function, nn.ReLU):
        return ReLU()
    if function is F.gelu or isinstance(function, nn.GELU):
        return GELU()
    raise CheckpointError("this activation is not known", got=function, remedy="Use relu or gelu.")
