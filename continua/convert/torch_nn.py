"""``torch.nn`` layers and stacks as points of the continuous family."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import nn

from continua.convert.names import Entry, Layout, NameMap, norm
from continua.errors import CheckpointError
from continua.fields import Parametrisation, counted
from continua.models import EncoderDecoder, Readout, States, Transformer
from continua.models.build import discrete_axes, post_norm, pre_norm
from continua.operators import GELU, Activation, Attention, LayerNorm, Mask, Operator, Parts, Pointwise, ReLU

LAYERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
STACKS = (nn.TransformerEncoder, nn.TransformerDecoder)


def from_torch(module: nn.Module, mask: Mask | None = None) -> Transformer | EncoderDecoder:
    """Return a layer or stack of ``torch.nn`` as a Transformer with one unit step a layer, equal to round-off.

    Takes ``MultiheadAttention`` (as the map x ↦ x + MHA(x), the step of its flow), ``TransformerEncoderLayer``,
    ``TransformerDecoderLayer``, their stacks, and ``nn.Transformer`` (an ``EncoderDecoder``). ``mask`` is that of
    self-attention (of the decoder's, where there are two); others go into ``Batch.pairs``, ``cross_pairs`` and
    ``observed``. States are [b, t, d] whatever ``batch_first`` says; dropout is not carried over.
    """
    if isinstance(module, nn.Transformer):
        return EncoderDecoder(_transformer(module.encoder, None), _transformer(module.decoder, mask))
    return _transformer(module, mask)


def torch_names(module: Any) -> NameMap:
    """Return the map between the names of a layer or stack and ours."""
    layers = list(module.layers) if isinstance(module, STACKS) else [module]
    if not layers or not isinstance(layers[0], LAYERS):
        remedy = "Known: Transformer, " + ", ".join(kind.__name__ for kind in (*STACKS, *LAYERS)) + "."
        raise CheckpointError("this module has no continuous form here", got=type(module).__name__, remedy=remedy)
    layer: Any = layers[0]
    attention, ffn = _inside(layer)
    place = "layers.{z}." if isinstance(module, STACKS) else ""
    entries: list[Entry] = []
    for (ours, _), theirs in zip(_places(layer), _sources(layer), strict=False):
        entries += _attention(ours, place + theirs, attention.in_proj_bias is not None)
    if ffn is not None:
        ours = _places(layer)[-1][0]
        for n in (1, 2):
            entries.append(Entry(f"{ours}.w{n}.coefficients", f"{place}linear{n}.weight"))
            if ffn.linear1.bias is not None:
                entries.append(Entry(f"{ours}.b{n}.coefficients", f"{place}linear{n}.bias", flat=True))
        for n, (_, ours) in enumerate(_places(layer), start=1):
            entries += _norm(ours, f"{place}norm{n}", ffn.norm1)
    if getattr(module, "norm", None) is not None:
        entries += _norm("readout.before.0", "norm", module.norm)
    return NameMap(tuple(entries), single=not place)


def _transformer(module: Any, mask: Mask | None) -> Transformer:
    names = torch_names(module)
    depth = len(module.layers) if isinstance(module, STACKS) else 1
    layer = module.layers[0] if isinstance(module, STACKS) else module
    attention, ffn = _inside(layer)
    if not attention._qkv_same_embed_dim or attention.bias_k is not None or attention.add_zero_attn:
        got, remedy = "kdim, vdim, bias_kv or zero_attn", "Use one width and plain keys."
        raise CheckpointError("queries, keys and values need one width", got=got, remedy=remedy)
    hidden = ffn.linear1.out_features if ffn is not None else 1
    axes, native = discrete_axes(attention.embed_dim, attention.num_heads, hidden, depth)
    weights = counted(axes, depth)
    letters = ("q", "k", "v", "o") if attention.in_proj_bias is not None else ()
    branches: list[Operator] = [Attention(weights, mask=mask, bias=letters)]
    if isinstance(layer, nn.TransformerDecoderLayer):
        branches.append(Attention(weights, bias=letters, cross=True))
    if ffn is not None:
        branches.append(Pointwise(weights, _activation(ffn.activation), bias=ffn.linear1.bias is not None))
    readout = None
    if getattr(module, "norm", None) is not None:
        fixed = weights.autonomous()
        readout = Readout(fixed, before=(_like(fixed, module.norm),))
    model = Transformer(axes, native, States(), _block(weights, branches, ffn), readout)
    stored = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    model.to(attention.out_proj.weight.dtype)
    model.load_state_dict(names.load(stored, model.state_dict()))
    return model


def _inside(layer: Any) -> tuple[nn.MultiheadAttention, Any]:
    """The attention of a layer, and the layer itself where it has a feed-forward part."""
    return (layer, None) if isinstance(layer, nn.MultiheadAttention) else (layer.self_attn, layer)


def _sources(layer: Any) -> list[str]:
    """Where a layer keeps its attention weights."""
    if isinstance(layer, nn.MultiheadAttention):
        return [""]
    return ["self_attn.", "multihead_attn."] if isinstance(layer, nn.TransformerDecoderLayer) else ["self_attn."]


def _places(layer: Any) -> list[tuple[str, str]]:
    """For each branch, the names of our operator and of its norm."""
    if isinstance(layer, nn.MultiheadAttention):
        return [("block.parts.0", "")]
    count = len(_sources(layer)) + 1
    if layer.norm_first:
        return [(f"block.parts.{i}.inner", f"block.parts.{i}.norm") for i in range(count)]
    return [(f"block.parts.{2 * i}", f"block.parts.{2 * i + 1}.norm") for i in range(count)]


def _block(weights: Parametrisation, branches: list[Operator], ffn: Any) -> Parts:
    if ffn is None:
        return Parts(tuple(branches))
    make: Callable[[], Operator] = lambda: _like(weights, ffn.norm1)  # noqa: E731
    return pre_norm(tuple(branches), make) if ffn.norm_first else post_norm(tuple(branches), make)


def _like(weights: Parametrisation, theirs: nn.LayerNorm) -> LayerNorm:
    return LayerNorm(weights, theirs.eps, bias=theirs.bias is not None)


def _norm(ours: str, theirs: str, like: nn.LayerNorm) -> tuple[Entry, ...]:
    """Scale, and shift where the norm has one."""
    return norm(ours, theirs) if like.bias is not None else norm(ours, theirs)[:1]


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
