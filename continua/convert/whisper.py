"""Whisper in Hugging Face's files, and in those of OpenAI."""

import re
from pathlib import Path
from typing import Any

import torch

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.bart import described_side
from continua.convert.names import Entry, Layout, NameMap, norm, widest
from continua.convert.sides import BOTH, SELF, side_entries
from continua.errors import CheckpointError
from continua.models import EncoderDecoder, zoo
from continua.settings import Whole
from continua.typing import Tensor

OPENAI = (  # names of OpenAI → those of Hugging Face
    (r"\.blocks\.", ".layers."),
    (r"\.cross_attn_ln\.", ".encoder_attn_layer_norm."),
    (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.cross_attn\.", ".encoder_attn."),
    (r"\.attn\.", ".self_attn."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
    (r"\.query\.", ".q_proj."),
    (r"\.key\.", ".k_proj."),
    (r"\.value\.", ".v_proj."),
    (r"\.out\.", ".out_proj."),
    (r"^encoder\.ln_post\.", "encoder.layer_norm."),
    (r"^decoder\.ln\.", "decoder.layer_norm."),
    (r"\.positional_embedding$", ".embed_positions.weight"),
    (r"\.token_embedding\.", ".embed_tokens."),
)
DIMS = {  # sizes in OpenAI's files → those of config.json
    "n_vocab": ("vocab_size",),
    "n_mels": ("num_mel_bins",),
    "n_audio_state": ("d_model",),
    "n_audio_ctx": ("max_source_positions",),
    "n_text_ctx": ("max_target_positions",),
    "n_audio_head": ("encoder_attention_heads",),
    "n_text_head": ("decoder_attention_heads",),
    "n_audio_layer": ("encoder_layers",),
    "n_text_layer": ("decoder_layers",),
}


def names(model: EncoderDecoder) -> NameMap:
    """The stem, both sides, and the words of the decoder, which are the head too."""
    stem: Any = model.encoder.embed
    width: Any = model.encoder.axes.d.n  # type: ignore[union-attr]
    first = Layout(1, True, shape=(width, stem.channels, 3))
    return NameMap(
        prefix="model.",
        ignored=("proj_out.weight",),
        entries=(
            Entry("encoder.embed.first.coefficients", "encoder.conv1.weight", first),
            Entry("encoder.embed.first_bias.coefficients", "encoder.conv1.bias", flat=True),
            Entry("encoder.embed.second.coefficients", "encoder.conv2.weight", Layout(taps=True)),
            Entry("encoder.embed.second_bias.coefficients", "encoder.conv2.bias", flat=True),
            Entry("encoder.embed.position.table.coefficients", "encoder.embed_positions.weight"),
            *side_entries("encoder", SELF, pre=True, biased="qvo"),
            *norm("encoder.readout.before.0", "encoder.layer_norm"),
            Entry("decoder.embed.table.coefficients", "decoder.embed_tokens.weight"),
            Entry("decoder.embed.position.table.coefficients", "decoder.embed_positions.weight"),
            *side_entries("decoder", BOTH, pre=True, biased="qvo"),
            *norm("decoder.readout.before.0", "decoder.layer_norm"),
        ),
    )


def build(config: Settings, stored: set[str]) -> EncoderDecoder:
    """The zoo's Whisper with the sizes of ``config.json``."""
    expect(config, is_encoder_decoder=True, tie_word_embeddings=True, activation_function="gelu")
    expect(config, scale_embedding=False)
    return zoo.whisper(
        vocab=config["vocab_size"],
        channels=config["num_mel_bins"],
        d=config["d_model"],
        heads=config["encoder_attention_heads"],
        depth=config["encoder_layers"],
        m=config["encoder_ffn_dim"],
        frames=config["max_source_positions"],
        context=config["max_target_positions"],
        decoder_heads=config["decoder_attention_heads"],
        decoder_depth=config["decoder_layers"],
        decoder_m=config["decoder_ffn_dim"],
        pad=config.take("pad_token_id", Whole, None),
    )


def describe(model: EncoderDecoder) -> dict[str, Any]:
    """The sizes of a Whisper as ``config.json`` spells them."""
    stem: Any = model.encoder.embed
    words: Any = model.decoder.embed
    end = words.vocab - 1 if words.pad is None else words.pad
    found = {
        "architectures": ["WhisperForConditionalGeneration"],
        "is_encoder_decoder": True,
        "activation_function": "gelu",
        "vocab_size": words.vocab,
        "num_mel_bins": stem.channels,
        "d_model": model.axes.d.n,  # type: ignore[union-attr]
        "max_source_positions": stem.position.count,
        "max_target_positions": words.position.count,
        "pad_token_id": words.pad,
        "bos_token_id": end,
        "eos_token_id": end,
        "decoder_start_token_id": min(end + 1, words.vocab - 1),
    }
    for name, side in (("encoder", model.encoder), ("decoder", model.decoder)):
        found |= described_side(name, side)
    return found


WHISPER = Architecture("whisper", build, names, describe)


def from_whisper(file: str | Path, dtype: torch.dtype | None = None) -> EncoderDecoder:
    """Return the model of one of OpenAI's files (``tiny.en.pt``): sizes and tensors, under names of their own.

    The file is a pickle; torch reads tensors and numbers out of it and executes nothing (``weights_only``).
    """
    sizes, stored = _unpacked(Path(file))
    described: dict[str, Any] = {}
    for theirs, ours in DIMS.items():
        if theirs not in sizes:
            remedy = "Give a file of OpenAI's whisper package."
            raise CheckpointError(
                f"the sizes of a Whisper have {theirs}", got=", ".join(sorted(sizes)[:4]), remedy=remedy
            )
        described |= dict.fromkeys(ours, sizes[theirs])
    width = described["d_model"]
    config = Settings(described | {"encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width})
    with torch.device("meta"):
        model = build(config, set(stored))
    state = names(model).load({_spelt(name): tensor for name, tensor in stored.items()}, model.state_dict())
    wanted = widest(state.values()) if dtype is None else dtype
    model.load_state_dict({name: tensor.to(wanted) for name, tensor in state.items()}, assign=True)
    return model


def _spelt(name: str) -> str:
    for pattern, spelt in OPENAI:
        name = re.sub(pattern, spelt, name)
    return name


def _unpacked(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    remedy = "Give a file of OpenAI's whisper package, such as tiny.en.pt."
    if not file.is_file():
        raise CheckpointError("there is no such file", got=file, remedy=remedy)
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as unreadable:  # damaged archives raise whatever their bytes lead to
        got = f"{type(unreadable).__name__} in {file.name}"
        raise CheckpointError("this file holds no weights that can be read", got=got, remedy=remedy) from unreadable
    if not isinstance(found, dict) or not {"dims", "model_state_dict"} <= found.keys():
        got = ", ".join(map(str, list(found)[:4])) if isinstance(found, dict) else type(found).__name__
        raise CheckpointError("a Whisper has dims and model_state_dict", got=got, remedy=remedy)
    sizes = found["dims"]
    tensors = found["model_state_dict"]
    if not isinstance(sizes, dict) or not isinstance(tensors, dict):
        raise CheckpointError("dims and model_state_dict are tables", got=type(sizes).__name__, remedy=remedy)
    return sizes, {str(name): tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
