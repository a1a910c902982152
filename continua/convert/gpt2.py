"""GPT-2 in Hugging Face's files."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.models import Transformer, zoo

A, F = "block.parts.0", "block.parts.1"
END_OF_TEXT = 50256  # of the published vocabulary, and what is taken for it where config.json is silent


def names(model: Transformer) -> NameMap:
    """GPT-2 stores matrices as [in, out] and q, k, v in one."""
    attention = f"{A}.inner"
    thirds = [
        entry
        for i, letter in enumerate("qkv")
        for entry in (
            Entry(f"{attention}.{letter}.coefficients", "h.{z}.attn.c_attn.weight", Layout(2, True, (i, 3))),
            Entry(f"{attention}.b{letter}.coefficients", "h.{z}.attn.c_attn.bias", Layout(part=(i, 3)), flat=True),
        )
    ]
    return NameMap(
        prefix="transformer.",
        ignored=("h.*.attn.bias", "h.*.attn.masked_bias", "lm_head.weight"),
        entries=(
            Entry("embed.table.coefficients", "wte.weight"),
            Entry("embed.position.table.coefficients", "wpe.weight"),
            *norm(f"{A}.norm", "h.{z}.ln_1"),
            *thirds,
            Entry(f"{attention}.o.coefficients", "h.{z}.attn.c_proj.weight", Layout(1, True)),
            Entry(f"{attention}.bo.coefficients", "h.{z}.attn.c_proj.bias", flat=True),
            *norm(f"{F}.norm", "h.{z}.ln_2"),
            Entry(f"{F}.inner.w1.coefficients", "h.{z}.mlp.c_fc.weight", Layout(1, True)),
            Entry(f"{F}.inner.b1.coefficients", "h.{z}.mlp.c_fc.bias", flat=True),
            Entry(f"{F}.inner.w2.coefficients", "h.{z}.mlp.c_proj.weight", Layout(1, True)),
            Entry(f"{F}.inner.b2.coefficients", "h.{z}.mlp.c_proj.bias", flat=True),
            *norm("readout.before.0", "ln_f"),
        ),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's GPT-2 with the sizes of ``config.json``."""
    expect(config, activation_function="gelu_new", add_cross_attention=False, tie_word_embeddings=True)
    expect(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    return zoo.gpt2(
        vocab=config["vocab_size"],
        d=config["n_embd"],
        heads=config["n_head"],
        depth=config["n_layer"],
        context=config["n_positions"],
        m=config.get("n_inner"),
        eps=config["layer_norm_epsilon"],
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a GPT-2 as ``config.json`` spells them."""
    embed: Any = model.embed
    first: Any = model.block.parts[0]
    ends = {} if embed.vocab > END_OF_TEXT else {"bos_token_id": None, "eos_token_id": None}
    return {
        **ends,
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "vocab_size": embed.vocab,
        "n_embd": model.axes.d.n,  # type: ignore[union-attr]
        "n_head": model.axes.h.n,  # type: ignore[union-attr]
        "n_layer": model.native.z.steps,
        "n_positions": embed.position.count,
        "n_inner": model.axes.m.n,  # type: ignore[union-attr]
        "layer_norm_epsilon": first.norm.eps,
    }


GPT2 = Architecture("gpt2", build, names, describe)
