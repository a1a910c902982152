"""Falcon in Hugging Face's files."""

from typing import Any

from continua.convert.activations import activation, activation_described
from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.convert.rotations import rotations, rotations_described
from continua.flow import LieTrotter
from continua.models import Transformer, zoo
from continua.operators import ALiBi, Beside
from continua.settings import Size

LAYER = "h.{z}"
HEAD = "lm_head.weight"


def names(model: Transformer) -> NameMap:
    """Queries of each group of heads, then its key and its value, in one matrix; group by group."""
    first: Any = model.block.parts[0]
    one_norm = isinstance(first.inner, Beside)
    own = "block.parts.0.inner.first" if one_norm else "block.parts.0.inner"
    feed = "block.parts.0.inner.second" if one_norm else "block.parts.1.inner"
    attention: Any = first.inner.first if one_norm else first.inner
    biased = attention.bq is not None
    readout: Any = model.readout
    maps = [("o", own, "self_attention.dense"), ("w1", feed, "mlp.dense_h_to_4h"), ("w2", feed, "mlp.dense_4h_to_h")]
    biases = [
        Entry(f"{ours}.b{k[-1]}.coefficients", f"{LAYER}.{theirs}.bias", flat=True)
        for k, ours, theirs in maps
        if biased
    ]
    return NameMap(
        prefix="transformer.",
        bare=(HEAD,),
        entries=(
            Entry("embed.table.coefficients", "word_embeddings.weight"),
            *_norms(model, one_norm),
            *_heads(model, own, attention.groups, biased),
            *(Entry(f"{ours}.{k}.coefficients", f"{LAYER}.{theirs}.weight") for k, ours, theirs in maps),
            *biases,
            *norm("readout.before.0", "ln_f"),
            *(() if readout.tied else (Entry("readout.head.coefficients", HEAD),)),
        ),
    )


def _norms(model: Transformer, one_norm: bool) -> tuple[Entry, ...]:
    if one_norm:
        return norm("block.parts.0.norm", f"{LAYER}.input_layernorm")
    spelt = ("ln_attn", "ln_mlp") if _in_parallel(model) else ("input_layernorm", "post_attention_layernorm")
    return (
        *norm("block.parts.0.norm", f"{LAYER}.{spelt[0]}"),
        *norm("block.parts.1.norm", f"{LAYER}.{spelt[1]}"),
    )


def _in_parallel(model: Transformer) -> bool:
    return not isinstance(model.native.z.solver, LieTrotter) or len(model.block.parts) == 1


def _heads(model: Transformer, own: str, groups: int | None, biased: bool) -> tuple[Entry, ...]:
    """Each of the groups has so many heads of queries, one of keys and one of values."""
    heads: int = model.axes.h.n  # type: ignore[union-attr, assignment]
    blocks = groups or heads
    each = heads // blocks
    theirs = f"{LAYER}.self_attention.query_key_value"
    found = []
    for letter, start, units in (("q", 0, each), ("k", each, 1), ("v", each + 1, 1)):
        part = (start, each + 2)
        found.append(
            Entry(f"{own}.{letter}.coefficients", f"{theirs}.weight", Layout(2, part=part, heads=blocks, units=units))
        )
        if biased:
            layout = Layout(part=part, heads=blocks, units=units)
            found.append(Entry(f"{own}.b{letter}.coefficients", f"{theirs}.bias", layout, flat=True))
    return tuple(found)


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's Falcon with the sizes of ``config.json``; positions are rotations or biases of distance."""
    new = config.take("new_decoder_architecture", bool, False)
    parallel = config.take("parallel_attn", bool, True)
    if new:
        expect(config, parallel_attn=True)
    heads = config.take("num_attention_heads", Size)
    one = config.take("multi_query", bool, True)
    turned = rotations(config)
    style = zoo.FalconStyle(
        base=turned.base,
        stretch=turned.stretch,
        parallel=parallel,
        two_norms=new and config.take("num_ln_in_parallel_attn", Size, 2) == 2,
        phi=activation(config, "activation", "gelu"),
        eps=config["layer_norm_epsilon"],
        tied=config.take("tie_word_embeddings", bool, True) and HEAD not in stored,
        bias=config.take("bias", bool, False),
        alibi=config.take("alibi", bool, False),
    )
    return zoo.falcon(
        vocab=config["vocab_size"],
        d=config["hidden_size"],
        heads=heads,
        depth=config["num_hidden_layers"],
        m=config.get("ffn_hidden_size"),
        groups=config.take("num_kv_heads", Size, heads) if new else 1 if one else heads,
        style=style,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a Falcon as ``config.json`` spells them."""
    embed: Any = model.embed
    readout: Any = model.readout
    first: Any = model.block.parts[0]
    one_norm = isinstance(first.inner, Beside)
    attention: Any = first.inner.first if one_norm else first.inner
    feed: Any = first.inner.second if one_norm else model.block.parts[1].inner
    heads = model.axes.h.n  # type: ignore[union-attr]
    groups = attention.groups or heads
    parallel = _in_parallel(model)
    new = parallel and (not one_norm or groups not in (1, heads))
    alibi = isinstance(attention.position, ALiBi)
    return {
        "architectures": ["FalconForCausalLM"],
        "activation": activation_described(feed.phi1),
        "vocab_size": embed.vocab,
        "hidden_size": model.axes.d.n,  # type: ignore[union-attr]
        "num_attention_heads": heads,
        "num_kv_heads": groups,
        "num_hidden_layers": model.native.z.steps,
        "ffn_hidden_size": model.axes.m.n,  # type: ignore[union-attr]
        "layer_norm_epsilon": first.norm.eps,
        "new_decoder_architecture": new,
        "num_ln_in_parallel_attn": (1 if one_norm else 2) if new else None,
        "multi_query": groups == 1,
        "parallel_attn": parallel,
        "alibi": alibi,
        "bias": attention.bq is not None,
        **({} if alibi else rotations_described(attention.position)),
        "tie_word_embeddings": readout.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }


FALCON = Architecture("falcon", build, names, describe)
