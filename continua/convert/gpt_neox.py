"""GPT-NeoX and Pythia in Hugging Face's files."""

from typing import Any

from continua.convert.activations import activation, activation_described
from continua.convert.architecture import Architecture, Settings
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.convert.rotations import rotations, rotations_described
from continua.flow import Euler
from continua.models import Transformer, zoo
from continua.settings import Positive, Share

A, F = "block.parts.0", "block.parts.1"
HEAD = "embed_out.weight"
LAYER = "layers.{z}"


def names(model: Transformer) -> NameMap:
    """Queries, keys and values of each head stand together in one matrix [h·3·e, d]."""
    own = f"{A}.inner"
    heads: Any = model.axes.h.n  # type: ignore[union-attr]
    attention: Any = model.block.parts[0].inner
    readout: Any = model.readout
    fused = f"{LAYER}.attention.query_key_value"
    maps = [
        Entry(f"{own}.{k}.coefficients", f"{fused}.weight", Layout(2, part=(i, 3), heads=heads))
        for i, k in enumerate("qkv")
    ]
    biases = [
        Entry(f"{own}.b{k}.coefficients", f"{fused}.bias", Layout(part=(i, 3), heads=heads), flat=True)
        for i, k in enumerate("qkv")
    ]
    biases.append(Entry(f"{own}.bo.coefficients", f"{LAYER}.attention.dense.bias", flat=True))
    return NameMap(
        prefix="gpt_neox.",
        ignored=("layers.*.attention.bias", "layers.*.attention.masked_bias", "layers.*.attention.rotary_emb.inv_freq"),
        bare=(HEAD,),
        entries=(
            Entry("embed.table.coefficients", "embed_in.weight"),
            *norm(f"{A}.norm", f"{LAYER}.input_layernorm"),
            *maps,
            *(biases if attention.bq is not None else ()),
            Entry(f"{own}.o.coefficients", f"{LAYER}.attention.dense.weight"),
            *norm(f"{F}.norm", f"{LAYER}.post_attention_layernorm"),
            Entry(f"{F}.inner.w1.coefficients", f"{LAYER}.mlp.dense_h_to_4h.weight"),
            Entry(f"{F}.inner.b1.coefficients", f"{LAYER}.mlp.dense_h_to_4h.bias", flat=True),
            Entry(f"{F}.inner.w2.coefficients", f"{LAYER}.mlp.dense_4h_to_h.weight"),
            Entry(f"{F}.inner.b2.coefficients", f"{LAYER}.mlp.dense_4h_to_h.bias", flat=True),
            *norm("readout.before.0", "final_layer_norm"),
            *(() if readout.tied else (Entry("readout.head.coefficients", HEAD),)),
        ),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's GPT-NeoX; old files spell the rotations ``rotary_pct`` and ``rotary_emb_base``."""
    old = {"rope_theta": config.take("rotary_emb_base", Positive, 10000.0)}
    turned = rotations(Settings({**old, **config}), config.take("rotary_pct", Share, 0.25))
    style = zoo.NeoXStyle(
        base=turned.base,
        share=turned.share,
        stretch=turned.stretch,
        parallel=config.take("use_parallel_residual", bool, True),
        phi=activation(config, "hidden_act", "gelu"),
        eps=config["layer_norm_eps"],
        tied=config.take("tie_word_embeddings", bool, False) and HEAD not in stored,
        bias=config.take("attention_bias", bool, True),
        pad=config.get("pad_token_id"),
    )
    return zoo.gpt_neox(
        vocab=config["vocab_size"],
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        m=config["intermediate_size"],
        style=style,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a GPT-NeoX as ``config.json`` spells them, for new and old readers."""
    embed: Any = model.embed
    readout: Any = model.readout
    first: Any = model.block.parts[0]
    feed: Any = model.block.parts[1]
    position = first.inner.position
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_act": activation_described(feed.inner.phi1),
        "vocab_size": embed.vocab,
        "hidden_size": model.axes.d.n,  # type: ignore[union-attr]
        "num_attention_heads": model.axes.h.n,  # type: ignore[union-attr]
        "num_hidden_layers": model.native.z.steps,
        "intermediate_size": model.axes.m.n,  # type: ignore[union-attr]
        "layer_norm_eps": first.norm.eps,
        "use_parallel_residual": isinstance(model.native.z.solver, Euler),
        "attention_bias": first.inner.bq is not None,
        **rotations_described(position),
        "rotary_pct": position.share,
        "rotary_emb_base": position.base,
        "tie_word_embeddings": readout.tied,
        "pad_token_id": embed.pad,
        "bos_token_id": None,
        "eos_token_id": None,
    }


GPT_NEOX = Architecture("gpt_neox", build, names, describe)
