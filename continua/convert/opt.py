"""OPT in Hugging Face's files."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.models import Transformer, zoo
from continua.models.factored import Widened
from continua.models.readout import Readout
from continua.operators import PreNorm
from continua.settings import Size

LAYER = "decoder.layers.{z}"
HEAD = "lm_head.weight"


def names(model: Transformer) -> NameMap:
    """Matrices are [out, in]; the norms stand inside the branches, or behind them as parts of their own."""
    pre = isinstance(model.block.parts[0], PreNorm)
    attention, feed = ("block.parts.0.inner", "block.parts.1.inner") if pre else ("block.parts.0", "block.parts.2")
    first, second = (
        ("block.parts.0.norm", "block.parts.1.norm") if pre else ("block.parts.1.norm", "block.parts.3.norm")
    )
    wide = isinstance(model.embed, Widened)
    maps = [
        entry
        for k, name in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}.items()
        for entry in (
            Entry(f"{attention}.{k}.coefficients", f"{LAYER}.self_attn.{name}.weight", Layout(1 if k == "o" else 2)),
            Entry(f"{attention}.b{k}.coefficients", f"{LAYER}.self_attn.{name}.bias", flat=True),
        )
    ]
    readout: Any = model.readout
    last = isinstance(readout, Readout) and len(readout.before) > 0
    projections = (
        Entry("embed.map.coefficients", "decoder.project_in.weight", Layout(transpose=True)),
        Entry("readout.map.coefficients", "decoder.project_out.weight"),
    )
    return NameMap(
        prefix="model.",
        ignored=(HEAD,),
        entries=(
            Entry(
                "embed.embed.table.coefficients" if wide else "embed.table.coefficients", "decoder.embed_tokens.weight"
            ),
            Entry("embed.position.table.coefficients", "decoder.embed_positions.weight"),
            *(projections if wide else ()),
            *norm(first, f"{LAYER}.self_attn_layer_norm"),
            *maps,
            *norm(second, f"{LAYER}.final_layer_norm"),
            Entry(f"{feed}.w1.coefficients", f"{LAYER}.fc1.weight"),
            Entry(f"{feed}.b1.coefficients", f"{LAYER}.fc1.bias", flat=True),
            Entry(f"{feed}.w2.coefficients", f"{LAYER}.fc2.weight"),
            Entry(f"{feed}.b2.coefficients", f"{LAYER}.fc2.bias", flat=True),
            *(norm("readout.before.0", "decoder.final_layer_norm") if last else ()),
        ),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's OPT with the sizes of ``config.json``."""
    expect(config, activation_function="relu", enable_bias=True, layer_norm_elementwise_affine=True)
    expect(config, tie_word_embeddings=True, _remove_final_layer_norm=False)
    width = config.take("word_embed_proj_dim", Size, None)
    style = zoo.OPTStyle(
        pre=config.take("do_layer_norm_before", bool, True),
        table_width=None if width == config["hidden_size"] else width,
        pad=config.get("pad_token_id", 1),
    )
    return zoo.opt(
        vocab=config["vocab_size"],
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        context=config["max_position_embeddings"],
        m=config["ffn_dim"],
        style=style,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of an OPT as ``config.json`` spells them."""
    embed: Any = model.embed
    wide = isinstance(embed, Widened)
    return {
        "architectures": ["OPTForCausalLM"],
        "activation_function": "relu",
        "vocab_size": embed.vocab,
        "hidden_size": model.axes.d.n,  # type: ignore[union-attr]
        "word_embed_proj_dim": embed.size if wide else model.axes.d.n,  # type: ignore[union-attr]
        "num_attention_heads": model.axes.h.n,  # type: ignore[union-attr]
        "num_hidden_layers": model.native.z.steps,
        "max_position_embeddings": embed.position.room,
        "ffn_dim": model.axes.m.n,  # type: ignore[union-attr]
        "do_layer_norm_before": isinstance(model.block.parts[0], PreNorm),
        "pad_token_id": (embed.embed if wide else embed).pad,
        "bos_token_id": None,
        "eos_token_id": None,
    }


OPT = Architecture("opt", build, names, describe)
