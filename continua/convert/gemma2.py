"""Gemma 2 in Hugging Face's files."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.llama import HEAD, depth_of, sliding_layers, windows_described
from continua.convert.names import Entry, Layout, NameMap, scale
from continua.convert.rotations import rotations, rotations_described
from continua.models import Transformer, zoo
from continua.operators import Capped
from continua.settings import Positive, Size

A, F = "block.parts.0", "block.parts.1"
LAYER = "layers.{z}"
BOTH_WAYS = "use_bidirectional_attention"
GELU_TANH = "gelu_pytorch_tanh"


def names(model: Transformer) -> NameMap:
    """Matrices are [out, in]; a branch has a norm before it and one behind."""
    own, feed = f"{A}.norm.inner", f"{F}.norm.inner"
    attention: Any = model.block.parts[0].norm.inner
    heads = [Entry(f"{own}.{k}.coefficients", f"{LAYER}.self_attn.{k}_proj.weight", Layout(2)) for k in "qkv"]
    given = "qkvo" if attention.bq is not None else ""
    biases = [Entry(f"{own}.b{k}.coefficients", f"{LAYER}.self_attn.{k}_proj.bias", flat=True) for k in given]
    normed = "qk" if attention.norm is not None else ""
    norms = [Entry(f"{own}.norm.{k}.coefficients", f"{LAYER}.self_attn.{k}_norm.weight", flat=True) for k in normed]
    readout: Any = model.readout
    return NameMap(
        prefix="model.",
        bare=(HEAD,),
        entries=(
            Entry("embed.table.coefficients", "embed_tokens.weight"),
            scale(f"{A}.norm.norm", f"{LAYER}.input_layernorm"),
            *heads,
            Entry(f"{own}.o.coefficients", f"{LAYER}.self_attn.o_proj.weight"),
            *biases,
            *norms,
            scale(f"{A}.inner", f"{LAYER}.post_attention_layernorm"),
            scale(f"{F}.norm.norm", f"{LAYER}.pre_feedforward_layernorm"),
            Entry(f"{feed}.w1.coefficients", f"{LAYER}.mlp.gate_proj.weight"),
            Entry(f"{feed}.gate.coefficients", f"{LAYER}.mlp.up_proj.weight"),
            Entry(f"{feed}.w2.coefficients", f"{LAYER}.mlp.down_proj.weight"),
            scale(f"{F}.inner", f"{LAYER}.post_feedforward_layernorm"),
            scale("readout.before.0", "norm"),
            *(() if readout.tied else (Entry("readout.head.coefficients", HEAD),)),
        ),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's Gemma 2; layers slide in turn unless ``layer_types`` says otherwise."""
    turned = rotations(config)
    sliding = sliding_layers(config, stored, lambda layer: layer % 2 == 0)
    return built(config, stored, base=turned.base, stretch=turned.stretch, sliding=sliding)


def built(config: Settings, stored: set[str], **own: Any) -> Transformer:
    """What models built like Gemma 2 say in the same words, and what is ``own`` to one of them."""
    expect(config, hidden_activation=GELU_TANH)
    expect({"use_bidirectional_attention": bool(config.get(BOTH_WAYS))}, use_bidirectional_attention=False)
    depth = depth_of(config, stored)
    style = zoo.Gemma2Style(
        eps=config["rms_norm_eps"],
        tied=config.take("tie_word_embeddings", bool, True) and HEAD not in stored,
        bias=config.take("attention_bias", bool, False),
        pad=config.get("pad_token_id", 0),
        window=config.take("sliding_window", Size, None),
        query_scale=config.take("query_pre_attn_scalar", Positive, 256.0),
        score_cap=config.take("attn_logit_softcapping", Positive, None),
        answer_cap=config.take("final_logit_softcapping", Positive, None),
        **own,
    )
    return zoo.gemma2(
        vocab=config["vocab_size"],
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=depth,
        m=config["intermediate_size"],
        groups=config.get("num_key_value_heads"),
        e=config.take("head_dim", Size, 256),
        style=style,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a Gemma 2 as ``config.json`` spells them."""
    attention: Any = model.block.parts[0].norm.inner
    return {**described(model, "Gemma2ForCausalLM"), **rotations_described(attention.position)}


def described(model: Transformer, name: str) -> dict[str, Any]:
    """The sizes as ``config.json`` spells them for all models built like Gemma 2, without rotations."""
    embed: Any = model.embed
    readout: Any = model.readout
    inner: Any = model.block.parts[0].norm
    attention = inner.inner
    kernel = attention.kernel
    heads = model.axes.h.n  # type: ignore[union-attr]
    depth = model.native.z.steps
    return {
        "architectures": [name],
        "hidden_activation": GELU_TANH,
        "vocab_size": embed.vocab,
        "hidden_size": model.axes.d.n,  # type: ignore[union-attr]
        "num_attention_heads": heads,
        "num_key_value_heads": attention.groups or heads,
        "head_dim": model.axes.e.n,  # type: ignore[union-attr]
        "num_hidden_layers": depth,
        "intermediate_size": model.axes.m.n,  # type: ignore[union-attr]
        "rms_norm_eps": inner.norm.eps,
        "query_pre_attn_scalar": _scalar(kernel.temperature),
        "attn_logit_softcapping": kernel.cap if isinstance(kernel, Capped) else None,
        "final_logit_softcapping": readout.cap,
        **windows_described(attention.mask, depth),
        "attention_bias": attention.bq is not None,
        "tie_word_embeddings": readout.tied,
        "pad_token_id": embed.pad,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _scalar(temperature: float) -> float:
    """The number whose power −½ is exactly this: a whole one where there is."""
    found = temperature**-2
    for candidate in (round(found), found):
        if candidate**-0.5 == temperature:
            return candidate
    return found


GEMMA2 = Architecture("gemma2", build, names, describe)
