"""T5 in Hugging Face's files: v1.0, v1.1 and what is between them."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.names import Entry, Layout, NameMap, scale
from continua.errors import CheckpointError, nearest
from continua.models import EncoderDecoder, zoo
from continua.settings import Positive, Size

HEAD = "lm_head.weight"
FEEDS = {"relu": False, "gated-gelu": True}  # with a gate or without


def names(model: EncoderDecoder) -> NameMap:
    """Matrices are [out, in]; the first layer of each stack keeps the bias of all, ``shared`` the table of both."""
    readout: Any = model.decoder.readout
    head = () if readout.tied else (Entry("decoder.readout.head.coefficients", HEAD),)
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"  # old files have it
    return NameMap(
        ignored=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", unused),
        entries=(
            Entry("encoder.embed.table.coefficients", "shared.weight"),
            *_stack("encoder", ("SelfAttention",), model),
            *_stack("decoder", ("SelfAttention", "EncDecAttention"), model),
            *head,
        ),
    )


def _stack(side: str, attentions: tuple[str, ...], model: EncoderDecoder) -> list[Entry]:
    """All layers of one side: attention, once more across in the decoder, and the feed-forward part."""
    bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    entries = [
        Entry(f"{side}.block.parts.0.inner.position.table.coefficients", bias),
        scale(f"{side}.readout.before.0", f"{side}.final_layer_norm"),
    ]
    for i, name in enumerate(attentions):
        ours, theirs = f"{side}.block.parts.{i}", f"{side}.block.{{z}}.layer.{i}"
        entries.append(scale(f"{ours}.norm", f"{theirs}.layer_norm"))
        entries += [Entry(f"{ours}.inner.{k}.coefficients", f"{theirs}.{name}.{k}.weight", Layout(2)) for k in "qkv"]
        entries.append(Entry(f"{ours}.inner.o.coefficients", f"{theirs}.{name}.o.weight"))
    i = len(attentions)
    ours, theirs = f"{side}.block.parts.{i}", f"{side}.block.{{z}}.layer.{i}"
    gated = getattr(model, side).block.parts[i].inner.gate is not None
    maps = {"w1": "wi_0", "gate": "wi_1", "w2": "wo"} if gated else {"w1": "wi", "w2": "wo"}
    entries.append(scale(f"{ours}.norm", f"{theirs}.layer_norm"))
    entries += [Entry(f"{ours}.inner.{w}.coefficients", f"{theirs}.DenseReluDense.{n}.weight") for w, n in maps.items()]
    return entries


def build(config: Settings, stored: set[str]) -> EncoderDecoder:
    """The zoo's T5 with the sizes of ``config.json``; a head in the file is used, otherwise it is tied.

    Old files say by ``tie_word_embeddings`` whether the head is scaled, new ones by ``scale_decoder_outputs``.
    """
    expect(config, is_encoder_decoder=True)
    feed = config.take("feed_forward_proj", str, "relu")
    if feed not in FEEDS:
        raise CheckpointError("this feed-forward part is not known", got=feed, remedy=nearest(feed, list(FEEDS)))
    style = zoo.T5Style(
        gated=FEEDS[feed],
        tied=HEAD not in stored,
        scaled=config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True)),
        buckets=config.get("relative_attention_num_buckets", 32),
        reach=float(config.take("relative_attention_max_distance", Positive, 128)),
        eps=config["layer_norm_epsilon"],
    )
    return zoo.t5(
        vocab=config["vocab_size"],
        d=config["d_model"],
        heads=config["num_heads"],
        depth=config["num_layers"],
        decoder_depth=config.take("num_decoder_layers", Size, config["num_layers"]),
        m=config["d_ff"],
        e=config["d_kv"],
        style=style,
    )


def describe(model: EncoderDecoder) -> dict[str, Any]:
    """The sizes of a T5 as ``config.json`` spells them, for new and old readers."""
    readout: Any = model.decoder.readout
    first: Any = model.encoder.block.parts[0]
    last: Any = model.encoder.block.parts[1]
    embed: Any = model.encoder.embed
    axes, position = model.encoder.axes, first.inner.position
    scaled = readout.scale != 1.0
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "feed_forward_proj": "gated-gelu" if last.inner.gate is not None else "relu",
        "vocab_size": embed.vocab,
        "d_model": axes.d.n,  # type: ignore[union-attr]
        "d_kv": axes.e.n,  # type: ignore[union-attr]
        "d_ff": axes.m.n,  # type: ignore[union-attr]
        "num_heads": axes.h.n,  # type: ignore[union-attr]
        "num_layers": model.encoder.native.z.steps,
        "num_decoder_layers": model.decoder.native.z.steps,
        "relative_attention_num_buckets": position.buckets,
        "relative_attention_max_distance": int(position.reach),
        "layer_norm_epsilon": first.norm.eps,
        "tie_word_embeddings": readout.tied or scaled,
        "scale_decoder_outputs": scaled,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


T5 = Architecture("t5", build, names, describe)
