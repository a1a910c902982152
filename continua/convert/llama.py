"""Llama and its kin (SmolLM2) in Hugging Face's files."""

from collections.abc import Callable
from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.names import Entry, Layout, NameMap, scale
from continua.convert.rotations import rotations, rotations_described
from continua.errors import CheckpointError
from continua.models import Transformer, zoo
from continua.operators import Attention, ByDepth, Causal, Mask, Stretch
from continua.settings import Count

A, F = "block.parts.0", "block.parts.1"
HEAD = "lm_head.weight"
LAYER = "layers.{z}"
FULL = "full_attention"
SLIDING = "sliding_attention"


def names(model: Transformer) -> NameMap:
    """Matrices are [out, in]; the gate that SiLU bends is our W1, ``up_proj`` our second map."""
    return NameMap(
        prefix="model.",
        ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
        bare=(HEAD,),
        entries=(
            *attention_entries(model),
            Entry(f"{F}.inner.w1.coefficients", f"{LAYER}.mlp.gate_proj.weight"),
            Entry(f"{F}.inner.gate.coefficients", f"{LAYER}.mlp.up_proj.weight"),
            *common_entries(model),
        ),
    )


def attention_entries(model: Transformer) -> tuple[Entry, ...]:
    """Queries, keys and values, each with a matrix of its own; biases and norms where there are some."""
    own = f"{A}.inner"
    attention: Any = model.block.parts[0].inner
    heads = [Entry(f"{own}.{k}.coefficients", f"{LAYER}.self_attn.{k}_proj.weight", Layout(2)) for k in "qkv"]
    given = [k for k in "qkvo" if getattr(attention, f"b{k}") is not None]
    biases = [Entry(f"{own}.b{k}.coefficients", f"{LAYER}.self_attn.{k}_proj.bias", flat=True) for k in given]
    normed = "qk" if attention.norm is not None else ""
    norms = [Entry(f"{own}.norm.{k}.coefficients", f"{LAYER}.self_attn.{k}_norm.weight", flat=True) for k in normed]
    return *heads, *biases, *norms


def common_entries(model: Transformer) -> tuple[Entry, ...]:
    """What all models built like Llama name the same: words, norms and output maps."""
    readout: Any = model.readout
    return (
        *trunk_entries(model),
        Entry(f"{F}.inner.w2.coefficients", f"{LAYER}.mlp.down_proj.weight"),
        *(() if readout.tied else (Entry("readout.head.coefficients", HEAD),)),
    )


def trunk_entries(model: Transformer) -> tuple[Entry, ...]:
    """Words, norms and the output map of attention."""
    return (
        Entry("embed.table.coefficients", "embed_tokens.weight"),
        scale(f"{A}.norm", f"{LAYER}.input_layernorm"),
        Entry(f"{A}.inner.o.coefficients", f"{LAYER}.self_attn.o_proj.weight"),
        scale(f"{F}.norm", f"{LAYER}.post_attention_layernorm"),
        scale("readout.before.0", "norm"),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's Llama with the sizes of ``config.json``; a head in the file is used, otherwise it must be tied."""
    return built(config, style_of(config, stored, bias=config.take("attention_bias", bool, False)))


def style_of(
    config: Settings, stored: set[str], given_stretch: Stretch | None = None, partial: bool = False, **own: Any
) -> zoo.LlamaStyle:
    """What models built like Llama say in the same words, and what is ``own`` to one of them.

    ``partial`` ones turn a part of each head (Phi-3); Hugging Face's Llama itself cannot.
    """
    expect(config, hidden_act="silu", mlp_bias=False)
    turned = rotations(config)
    if not partial:
        expect({"partial_rotary_factor": turned.share}, partial_rotary_factor=1.0)
    return zoo.LlamaStyle(
        base=turned.base,
        stretch=given_stretch or turned.stretch,
        share=turned.share,
        eps=config["rms_norm_eps"],
        tied=config.take("tie_word_embeddings", bool, True) and HEAD not in stored,
        pad=config.get("pad_token_id"),
        **own,
    )


def built(config: Settings, style: zoo.LlamaStyle) -> Transformer:
    """The model with the sizes of ``config.json``."""
    return zoo.llama(
        vocab=config["vocab_size"],
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        m=config["intermediate_size"],
        groups=config.get("num_key_value_heads"),
        e=config.get("head_dim"),
        style=style,
    )


def depth_of(config: Settings, stored: set[str]) -> int:
    """The number of layers; more of them than tensors in the file are refused before anything is made for each."""
    depth: int = config.take("num_hidden_layers", Count)
    if depth > len(stored):
        remedy = "config.json and the weights do not belong together."
        raise CheckpointError("every layer has tensors", got=f"{depth} layers, {len(stored)} tensors", remedy=remedy)
    return depth


def sliding_layers(config: Settings, stored: set[str], by_default: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers have a window: as ``layer_types`` says, or those that ``by_default`` names."""
    kinds = config.take("layer_types", tuple[str, ...], None)
    if kinds is None:
        return tuple(by_default(layer) for layer in range(depth_of(config, stored)))
    for kind in kinds:
        expect({"layer_types": kind}, layer_types=SLIDING if kind == SLIDING else FULL)
    return tuple(kind == SLIDING for kind in kinds)


def windows_described(mask: Mask | None, depth: int) -> dict[str, Any]:
    """``sliding_window`` and ``layer_types`` of a mask that ``zoo.windowed`` made."""
    masks: tuple[Any, ...] = mask.masks if isinstance(mask, ByDepth) else (mask,) * depth
    near = next((one for one in masks if not isinstance(one, Causal)), None)
    return {
        "sliding_window": None if near is None else round(near.second.radius) + 1,
        "layer_types": [FULL if isinstance(one, Causal) else SLIDING for one in masks],
    }


def described(model: Transformer, name: str) -> dict[str, Any]:
    """The sizes as ``config.json`` spells them for all models built like Llama with rotations in all layers."""
    attention: Any = model.block.parts[0].inner
    return {**described_without_positions(model, name), **rotations_described(attention.position)}


def described_without_positions(model: Transformer, name: str) -> dict[str, Any]:
    """The sizes as ``config.json`` spells them for all models built like Llama."""
    embed: Any = model.embed
    readout: Any = model.readout
    first: Any = model.block.parts[0]
    attention: Attention = first.inner
    heads = model.axes.h.n  # type: ignore[union-attr]
    return {
        "architectures": [name],
        "hidden_act": "silu",
        "vocab_size": embed.vocab,
        "hidden_size": model.axes.d.n,  # type: ignore[union-attr]
        "num_attention_heads": heads,
        "num_key_value_heads": attention.groups or heads,
        "head_dim": model.axes.e.n,  # type: ignore[union-attr]
        "num_hidden_layers": model.native.z.steps,
        "intermediate_size": model.axes.m.n,  # type: ignore[union-attr]
        "rms_norm_eps": first.norm.eps,
        "tie_word_embeddings": readout.tied,
        "pad_token_id": embed.pad,
    }


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a Llama as ``config.json`` spells them, for new and old readers."""
    attention: Any = model.block.parts[0].inner
    return {**described(model, "LlamaForCausalLM"), "attention_bias": attention.bq is not None}


LLAMA = Architecture("llama", build, names, describe)
