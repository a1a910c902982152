"""GPT-J in Hugging Face's files."""

from typing import Any

from continua.convert.activations import activation, activation_described
from continua.convert.architecture import Architecture, Settings
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.errors import CheckpointError
from continua.models import Transformer, zoo
from continua.settings import Size

OWN = "block.parts.0.inner.first"
FEED = "block.parts.0.inner.second"
LAYER = "h.{z}"
HEAD = "lm_head.weight"


def names(model: Transformer) -> NameMap:
    """Matrices are [out, in]; the coordinates that are turned together are neighbours in the file."""
    readout: Any = model.readout
    pairs = _turned(model)
    heads = [
        Entry(
            f"{OWN}.{k}.coefficients",
            f"{LAYER}.attn.{k}_proj.weight",
            Layout(2, neighbours=0 if k == "v" else pairs),
        )
        for k in "qkv"
    ]
    return NameMap(
        prefix="transformer.",
        ignored=("h.*.attn.bias", "h.*.attn.masked_bias", "h.*.attn.embed_positions"),
        bare=("lm_head.*",),
        entries=(
            Entry("embed.table.coefficients", "wte.weight"),
            *norm("block.parts.0.norm", f"{LAYER}.ln_1"),
            *heads,
            Entry(f"{OWN}.o.coefficients", f"{LAYER}.attn.out_proj.weight"),
            Entry(f"{FEED}.w1.coefficients", f"{LAYER}.mlp.fc_in.weight"),
            Entry(f"{FEED}.b1.coefficients", f"{LAYER}.mlp.fc_in.bias", flat=True),
            Entry(f"{FEED}.w2.coefficients", f"{LAYER}.mlp.fc_out.weight"),
            Entry(f"{FEED}.b2.coefficients", f"{LAYER}.mlp.fc_out.bias", flat=True),
            *norm("readout.before.0", "ln_f"),
            *(() if readout.tied else (Entry("readout.head.coefficients", HEAD),)),
            Entry("readout.bias", "lm_head.bias", flat=True),
        ),
    )


def _turned(model: Transformer) -> int:
    """How many coordinates of each head are turned."""
    both: Any = model.block.parts[0].inner
    inner: int = model.axes.e.n  # type: ignore[union-attr, assignment]
    return round(inner * both.first.position.share)


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's GPT-J with the sizes of ``config.json``."""
    inner = config.take("n_embd", Size) // config.take("n_head", Size)
    turned = config.take("rotary_dim", Size)
    if turned > inner or turned % 2:
        remedy = "Write the folder again with save_pretrained."
        raise CheckpointError(f"rotary_dim is even and at most {inner}", got=turned, remedy=remedy)
    style = zoo.GPTJStyle(
        share=turned / inner,
        phi=activation(config, "activation_function", "gelu_new"),
        eps=config["layer_norm_epsilon"],
        tied=config.take("tie_word_embeddings", bool, False) and HEAD not in stored,
    )
    return zoo.gpt_j(
        vocab=config["vocab_size"],
        d=config["n_embd"],
        heads=config["n_head"],
        depth=config["n_layer"],
        m=config.get("n_inner"),
        style=style,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a GPT-J as ``config.json`` spells them."""
    embed: Any = model.embed
    readout: Any = model.readout
    both: Any = model.block.parts[0]
    return {
        "architectures": ["GPTJForCausalLM"],
        "activation_function": activation_described(both.inner.second.phi1),
        "vocab_size": embed.vocab,
        "n_embd": model.axes.d.n,  # type: ignore[union-attr]
        "n_head": model.axes.h.n,  # type: ignore[union-attr]
        "n_layer": model.native.z.steps,
        "n_inner": model.axes.m.n,  # type: ignore[union-attr]
        "rotary_dim": _turned(model),
        "layer_norm_epsilon": both.norm.eps,
        "tie_word_embeddings": readout.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }


GPT_J = Architecture("gptj", build, names, describe)
