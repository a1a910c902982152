"""Whisper tiny.en with its real weights, as far as the vocabulary reaches.

Its blocks are in the vocabulary: pre-norm attention whose keys have no bias, causal and cross attention, learned
positions, a tied head. Two things are missing for ``ct.from_hf``: the stem, two overlapping convolutions over mel
frames (an embedding of its own; ``Patches`` only cuts), and the mel frames themselves. Here the stem is torch's own,
and everything after it, from the stem's output to the logits, is a ``Transformer`` pair built from the usual parts.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, gelu

import continua as ct
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.fields import counted
from continua.models import EncoderDecoder, Readout, States, Tokens, Transformer
from continua.models.build import discrete_axes, pre_norm
from continua.operators import GELU, Attention, Causal, LayerNorm, Learned, Pointwise
from tests.exact import gap, numbers
from tests.lazy import Lazily
from tests.packages import folder_of, unpickled
from tools.packages import WHISPER

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = Lazily("transformers")

D, HEADS, DEPTH, VOCAB, FRAMES, CONTEXT = 384, 6, 4, 51864, 1500, 448
BIASED = ("q", "v", "o")
IDS = torch.tensor([[50257, 50362, 383, 3290, 318, 845, 922, 11]])


def whisper() -> EncoderDecoder:
    """Whisper behind its stem: counted axes, unit steps, no forward code."""
    axes, native = discrete_axes(D, HEADS, 4 * D, DEPTH)
    w = counted(axes, DEPTH)
    fixed = w.autonomous()

    def block(*attentions: Attention) -> Any:
        return pre_norm((*attentions, Pointwise(w, GELU())), lambda: LayerNorm(w))

    after = Readout(fixed, before=(LayerNorm(fixed),))
    encoder = Transformer(axes, native, States(), block(Attention(w, bias=BIASED)), after)
    attentions = Attention(w, mask=Causal(), bias=BIASED), Attention(w, cross=True, bias=BIASED)
    words = Tokens(fixed, VOCAB, Learned(fixed, CONTEXT))
    readout = Readout(fixed, VOCAB, before=(LayerNorm(fixed),), tied=True)
    return EncoderDecoder(encoder, Transformer(axes, native, words, block(*attentions), readout))


def side(name: str, attentions: tuple[str, ...], last: str) -> list[Entry]:
    """Our names and OpenAI's for all layers of one side."""
    theirs, entries = f"{name}.blocks.{{z}}", [*norm(f"{name}.readout.before.0", f"{name}.{last}")]
    for i, attention in enumerate(attentions):
        ours = f"{name}.block.parts.{i}"
        entries += norm(f"{ours}.norm", f"{theirs}.{attention}_ln")
        for letter, full in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out")):
            layout = Layout(1 if letter == "o" else 2)
            entries.append(Entry(f"{ours}.inner.{letter}.coefficients", f"{theirs}.{attention}.{full}.weight", layout))
            if letter in BIASED:
                bias = f"{theirs}.{attention}.{full}.bias"
                entries.append(Entry(f"{ours}.inner.b{letter}.coefficients", bias, flat=True))
    ours = f"{name}.block.parts.{len(attentions)}"
    entries += norm(f"{ours}.norm", f"{theirs}.mlp_ln")
    for i, place in ((1, 0), (2, 2)):
        entries.append(Entry(f"{ours}.inner.w{i}.coefficients", f"{theirs}.mlp.{place}.weight"))
        entries.append(Entry(f"{ours}.inner.b{i}.coefficients", f"{theirs}.mlp.{place}.bias", flat=True))
    return entries


NAMES = NameMap(
    entries=(
        *side("encoder", ("attn",), "ln_post"),
        *side("decoder", ("attn", "cross_attn"), "ln"),
        Entry("decoder.embed.table.coefficients", "decoder.token_embedding.weight"),
        Entry("decoder.embed.position.table.coefficients", "decoder.positional_embedding"),
    ),
    ignored=("encoder.conv*", "encoder.positional_embedding"),
)
SPELT = (  # OpenAI's names → Hugging Face's
    ("blocks", "layers"),
    ("cross_attn_ln", "encoder_attn_layer_norm"),
    ("cross_attn.", "encoder_attn."),
    ("attn_ln", "self_attn_layer_norm"),
    (".attn.", ".self_attn."),
    ("mlp_ln", "final_layer_norm"),
    ("mlp.0", "fc1"),
    ("mlp.2", "fc2"),
    ("query", "q_proj"),
    ("key", "k_proj"),
    ("value", "v_proj"),
    (".out.", ".out_proj."),
    ("ln_post", "layer_norm"),
    ("decoder.ln.", "decoder.layer_norm."),
    ("positional_embedding", "embed_positions.weight"),
    ("token_embedding", "embed_tokens"),
)


def hugging_face(stored: dict[str, Tensor]) -> Any:
    """The same weights in Hugging Face's module."""
    config = transformers.WhisperConfig(
        vocab_size=VOCAB,
        d_model=D,
        encoder_layers=DEPTH,
        decoder_layers=DEPTH,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=4 * D,
        decoder_ffn_dim=4 * D,
        max_target_positions=CONTEXT,
    )
    theirs = transformers.WhisperForConditionalGeneration(config)
    state = {}
    for name, tensor in stored.items():
        for ours, spelt in SPELT:
            name = name.replace(ours, spelt) if spelt not in name else name
        state[f"model.{name}"] = tensor
    state["proj_out.weight"] = stored["decoder.token_embedding.weight"]
    theirs.load_state_dict(state)
    return theirs.eval()


def stem(stored: dict[str, Tensor], mel: Tensor) -> Tensor:
    """Two convolutions over mel frames and the encoder's positions."""
    x = gelu(conv1d(mel, stored["encoder.conv1.weight"], stored["encoder.conv1.bias"], padding=1))
    x = gelu(conv1d(x, stored["encoder.conv2.weight"], stored["encoder.conv2.bias"], stride=2, padding=1))
    return x.mT + stored["encoder.positional_embedding"]


@pytest.mark.slow(reason="thirty-nine million weights, read and run by two libraries")
@pytest.mark.spec("M9", "A4")
def test_whisper_behind_its_stem() -> None:
    folder: Path = folder_of(WHISPER)
    stored = {name: tensor.float() for name, tensor in unpickled(folder / "tiny.en.pt")["model_state_dict"].items()}
    theirs, model = hugging_face(stored), whisper()
    model.load_state_dict(NAMES.load(stored, model.state_dict()))
    mel = numbers(1, 80, 2 * FRAMES, dtype=torch.float32, seed=2).cumsum(-1).sin()
    with torch.no_grad():
        wanted = theirs(mel, decoder_input_ids=IDS)
        source = stem(stored, mel)
        heard = model.encoder(source)
        got = model(ct.Batch(IDS, source=ct.Batch(source)))
        theirs.set_attn_implementation("eager")  # with sdpa both sides call the same kernels
        eager = theirs(mel, decoder_input_ids=IDS)
    assert gap(got, eager.logits) <= 1e-5
    assert gap(heard, wanted.encoder_last_hidden_state) <= 1e-5
    assert gap(got, wanted.logits) <= 1e-5
    assert torch.equal(got.argmax(-1), wanted.logits.argmax(-1))
