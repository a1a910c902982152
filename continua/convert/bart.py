"""BART, mBART and Marian in Hugging Face's files, with their words or without."""

from typing import Any

from continua.convert.activations import activation, activation_described
from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.convert.sides import BOTH, SELF, side_entries
from continua.models import EncoderDecoder, zoo
from continua.operators import Learned, PreNorm
from continua.settings import Size, Whole

BIAS = "final_logits_bias"
STATES = ("BartModel", "MBartModel", "MarianModel")
ROOM = 512  # that Hugging Face makes sines for


def names(model: EncoderDecoder) -> NameMap:
    """``shared`` holds the words of both sides and of the head; positions that are not learned are not read."""
    readout: Any = model.decoder.readout
    vocab: Any = model.encoder.embed.vocab
    bias = (
        ()
        if readout is None or readout.bias is None
        else (Entry("decoder.readout.bias", BIAS, Layout(shape=(1, vocab))),)
    )
    again = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    places = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")
    embed: Any = model.encoder.embed
    return NameMap(
        prefix="model.",
        ignored=again if isinstance(embed.position, Learned) else (*again, *places),
        bare=(BIAS,),
        entries=(
            Entry("encoder.embed.table.coefficients", "shared.weight"),
            *_side("encoder", model.encoder, SELF),
            *_side("decoder", model.decoder, BOTH),
            *bias,
        ),
    )


def _side(name: str, side: Any, attentions: tuple[str, ...]) -> tuple[Entry, ...]:
    pre = isinstance(side.block.parts[0], PreNorm)
    place = Entry(f"{name}.embed.position.table.coefficients", f"{name}.embed_positions.weight")
    return (
        *((place,) if isinstance(side.embed.position, Learned) else ()),
        *(norm(f"{name}.embed.norm", f"{name}.layernorm_embedding") if side.embed.norm is not None else ()),
        *side_entries(name, attentions, pre=pre),
        *(norm(f"{name}.readout.before.0", f"{name}.layer_norm") if pre else ()),
    )


def build(config: Settings, stored: set[str]) -> EncoderDecoder:
    """The zoo's BART with the sizes of ``config.json``; states are answered where the folder holds a BartModel."""
    expect(config, normalize_before=False, add_final_layer_norm=False, normalize_embedding=True)
    expect(config, static_position_embeddings=False)
    return _built(config, stored)


def build_mbart(config: Settings, stored: set[str]) -> EncoderDecoder:
    """The same with norms before the branches."""
    return _built(config, stored, pre=True)


def build_marian(config: Settings, stored: set[str]) -> EncoderDecoder:
    """The same with sines and without a norm of words; both sides have the same words."""
    expect(config, share_encoder_decoder_embeddings=True)
    vocab = config["vocab_size"]
    expect({"decoder_vocab_size": config.get("decoder_vocab_size") or vocab}, decoder_vocab_size=vocab)
    return _built(config, stored, sines=True, normed=False)


def _built(config: Settings, stored: set[str], **own: bool) -> EncoderDecoder:
    expect(config, is_encoder_decoder=True, tie_word_embeddings=True)
    classes = list(config.take("architectures", list[str], []))
    style = zoo.BartStyle(
        phi=activation(config, "activation_function", "gelu"),
        scaled=config.take("scale_embedding", bool, False),
        pad=config.take("pad_token_id", Whole, 1),
        words=not (len(classes) == 1 and classes[0] in STATES),
        bias=BIAS in stored,
        **own,
    )
    return zoo.bart(
        vocab=config["vocab_size"],
        d=config["d_model"],
        heads=_both(config, "attention_heads"),
        depth=_both(config, "layers"),
        m=_both(config, "ffn_dim"),
        context=config["max_position_embeddings"],
        style=style,
    )


def _both(config: Settings, key: str) -> tuple[int, int]:
    return config.take(f"encoder_{key}", Size), config.take(f"decoder_{key}", Size)


def describe(model: EncoderDecoder) -> dict[str, Any]:
    """The sizes of a BART as ``config.json`` spells them."""
    return _described(model, "BartModel", "BartForConditionalGeneration") | {"decoder_start_token_id": 2}


def describe_mbart(model: EncoderDecoder) -> dict[str, Any]:
    """The sizes of an mBART as ``config.json`` spells them."""
    return _described(model, "MBartModel", "MBartForConditionalGeneration")


def describe_marian(model: EncoderDecoder) -> dict[str, Any]:
    """The sizes of a Marian as ``config.json`` spells them; a text ends with its first token."""
    found = _described(model, "MarianModel", "MarianMTModel")
    ends = {"bos_token_id": None, "eos_token_id": 0, "forced_eos_token_id": 0}
    start = {"decoder_start_token_id": found["pad_token_id"], "decoder_vocab_size": found["vocab_size"]}
    return {**found, **ends, **start, "share_encoder_decoder_embeddings": True}


def _described(model: EncoderDecoder, states: str, words: str) -> dict[str, Any]:
    embed: Any = model.encoder.embed
    readout: Any = model.decoder.readout
    pre = isinstance(model.encoder.block.parts[0], PreNorm)
    feed: Any = model.encoder.block.parts[1].inner if pre else model.encoder.block.parts[2]
    found = {
        "architectures": [states if readout is None or not readout.out else words],
        "is_encoder_decoder": True,
        "activation_function": activation_described(feed.phi1),
        "vocab_size": embed.vocab,
        "d_model": model.axes.d.n,  # type: ignore[union-attr]
        "max_position_embeddings": embed.position.room or ROOM,
        "scale_embedding": embed.scale != 1.0,
        "pad_token_id": embed.pad,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "forced_eos_token_id": 2,
    }
    for name, side in (("encoder", model.encoder), ("decoder", model.decoder)):
        found |= described_side(name, side)
    return found


def described_side(name: str, side: Any) -> dict[str, int]:
    """Heads, layers and hidden width of one side."""
    return {
        f"{name}_attention_heads": side.axes.h.n,
        f"{name}_layers": side.native.z.steps,
        f"{name}_ffn_dim": side.axes.m.n,
    }


BART = Architecture("bart", build, names, describe)
MBART = Architecture("mbart", build_mbart, names, describe_mbart)
MARIAN = Architecture("marian", build_marian, names, describe_marian)
