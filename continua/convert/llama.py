"""Llama and its kin (SmolLM2) in Hugging Face's files."""

from collections.abc import Mapping
from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.names import Entry, Layout, NameMap, scale
from continua.errors import CheckpointError
from continua.models import Transformer, zoo
from continua.settings import Positive

A, F = "block.parts.0", "block.parts.1"
HEAD = "lm_head.weight"


def names(model: Transformer) -> NameMap:
    """Matrices are [out, in]; the gate that SiLU bends is our W1, ``up_proj`` our second map."""
    layer, own = "layers.{z}", f"{A}.inner"
    attention: Any = model.block.parts[0].inner
    heads = [Entry(f"{own}.{k}.coefficients", f"{layer}.self_attn.{k}_proj.weight", Layout(2)) for k in "qkv"]
    biases = [Entry(f"{own}.b{k}.coefficients", f"{layer}.self_attn.{k}_proj.bias", flat=True) for k in "qkvo"]
    readout: Any = model.readout
    return NameMap(
        prefix="model.",
        ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
        bare=(HEAD,),
        entries=(
            Entry("embed.table.coefficients", "embed_tokens.weight"),
            scale(f"{A}.norm", f"{layer}.input_layernorm"),
            *heads,
            Entry(f"{own}.o.coefficients", f"{layer}.self_attn.o_proj.weight"),
            *(biases if attention.bq is not None else ()),
            scale(f"{F}.norm", f"{layer}.post_attention_layernorm"),
            Entry(f"{F}.inner.w1.coefficients", f"{layer}.mlp.gate_proj.weight"),
            Entry(f"{F}.inner.gate.coefficients", f"{layer}.mlp.up_proj.weight"),
            Entry(f"{F}.inner.w2.coefficients", f"{layer}.mlp.down_proj.weight"),
            scale("readout.before.0", "norm"),
            *(() if readout.tied else (Entry("readout.head.coefficients", HEAD),)),
        ),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's Llama with the sizes of ``config.json``; a head in the file is used, otherwise it must be tied."""
    expect(config, hidden_act="silu", mlp_bias=False)
    style = zoo.LlamaStyle(
        base=_base(config),
        eps=config["rms_norm_eps"],
        tied=config.take("tie_word_embeddings", bool, False) and HEAD not in stored,
        bias=config.take("attention_bias", bool, False),
        pad=config.get("pad_token_id"),
    )
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


def _base(config: Settings) -> float:
    """The base of the rotations, from new files (``rope_parameters``) and old ones (``rope_theta``)."""
    table = Mapping[str, Any]
    rope = Settings(config.take("rope_parameters", table, {}) or config.take("rope_scaling", table, {}))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" or config.take("rope_interleaved", bool, False):
        got = "interleaved pairs" if kind == "default" else repr(kind)
        remedy = "Stretched or interleaved rotations are not in the zoo yet."
        raise CheckpointError("Llama is read with plain rotary positions", got=got, remedy=remedy)
    return float(rope.take("rope_theta", Positive, config.take("rope_theta", Positive, 10000.0)))


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a Llama as ``config.json`` spells them, for new and old readers."""
    embed: Any = model.embed
    readout: Any = model.readout
    first: Any = model.block.parts[0]
    attention, heads = first.inner, model.axes.h.n  # type: ignore[union-attr]
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "vocab_size": embed.vocab,
        "hidden_size": model.axes.d.n,  # type: ignore[union-attr]
        "num_attention_heads": heads,
        "num_key_value_heads": attention.groups or heads,
        "head_dim": model.axes.e.n,  # type: ignore[union-attr]
        "num_hidden_layers": model.native.z.steps,
        "intermediate_size": model.axes.m.n,  # type: ignore[union-attr]
        "rms_norm_eps": first.norm.eps,
        "rope_theta": attention.position.base,
        "rope_parameters": {"rope_type": "default", "rope_theta": attention.position.base},
        "tie_word_embeddings": readout.tied,
        "attention_bias": attention.bq is not None,
        "pad_token_id": embed.pad,
    }


LLAMA = Architecture("llama", build, names, describe)
