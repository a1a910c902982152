"""BART in Hugging Face's files, with its words or without."""

from typing import Any

from continua.convert.albert import ACTIVATIONS
from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.convert.sides import BOTH, SELF, side_entries
from continua.errors import CheckpointError, nearest
from continua.models import EncoderDecoder, zoo
from continua.settings import Size, Whole

BIAS = "final_logits_bias"


def names(model: EncoderDecoder) -> NameMap:
    """``shared`` holds the words of both sides and of the head."""
    readout: Any = model.decoder.readout
    vocab: Any = model.encoder.embed.vocab
    bias = (
        ()
        if readout is None or readout.bias is None
        else (Entry("decoder.readout.bias", BIAS, Layout(shape=(1, vocab))),)
    )
    return NameMap(
        prefix="model.",
        ignored=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
        bare=(BIAS,),
        entries=(
            Entry("encoder.embed.table.coefficients", "shared.weight"),
            *_side("encoder", SELF),
            *_side("decoder", BOTH),
            *bias,
        ),
    )


def _side(side: str, attentions: tuple[str, ...]) -> tuple[Entry, ...]:
    return (
        Entry(f"{side}.embed.position.table.coefficients", f"{side}.embed_positions.weight"),
        *norm(f"{side}.embed.norm", f"{side}.layernorm_embedding"),
        *side_entries(side, attentions, pre=False),
    )


def build(config: Settings, stored: set[str]) -> EncoderDecoder:
    """The zoo's BART with the sizes of ``config.json``; states are answered where the folder holds a BartModel."""
    expect(config, is_encoder_decoder=True, tie_word_embeddings=True, normalize_before=False)
    expect(config, add_final_layer_norm=False, normalize_embedding=True, static_position_embeddings=False)
    phi = config.take("activation_function", str, "gelu")
    if phi not in ACTIVATIONS:
        raise CheckpointError("this activation is not known", got=repr(phi), remedy=nearest(phi, list(ACTIVATIONS)))
    style = zoo.BartStyle(
        phi=ACTIVATIONS[phi],
        scaled=config.take("scale_embedding", bool, False),
        pad=config.take("pad_token_id", Whole, 1),
        words=list(config.take("architectures", list[str], [])) != ["BartModel"],
        bias=BIAS in stored,
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
    embed: Any = model.encoder.embed
    feed: Any = model.encoder.block.parts[2]
    spelt = {phi: name for name, phi in ACTIVATIONS.items()}
    found = {
        "architectures": ["BartModel" if model.decoder.readout is None else "BartForConditionalGeneration"],
        "is_encoder_decoder": True,
        "activation_function": spelt[feed.phi1],
        "vocab_size": embed.vocab,
        "d_model": model.axes.d.n,  # type: ignore[union-attr]
        "max_position_embeddings": embed.position.room,
        "scale_embedding": embed.scale != 1.0,
        "pad_token_id": embed.pad,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "forced_eos_token_id": 2,
        "decoder_start_token_id": 2,
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
