"""Whisper tiny.en with its real weights, from OpenAI's own file to the logits."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.convert import from_whisper
from tests.exact import gap, numbers
from tests.lazy import Lazily
from tests.packages import folder_of, unpickled
from tools.packages import WHISPER

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = Lazily("transformers")

D, HEADS, DEPTH, VOCAB, FRAMES, CONTEXT = 384, 6, 4, 51864, 1500, 448
IDS = torch.tensor([[50257, 50362, 383, 3290, 318, 845, 922, 11]])

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


@pytest.mark.slow(reason="thirty-nine million weights, read and run by two libraries")
@pytest.mark.spec("B14", "M9", "A4")
def test_whisper_from_openai(tmp_path: Path) -> None:
    file = folder_of(WHISPER) / "tiny.en.pt"
    stored = {name: tensor.float() for name, tensor in unpickled(file)["model_state_dict"].items()}
    theirs = hugging_face(stored)
    model = from_whisper(file, dtype=torch.float32)
    mel = numbers(1, 80, 2 * FRAMES, dtype=torch.float32, seed=2).cumsum(-1).sin()
    with torch.no_grad():
        wanted = theirs(mel, decoder_input_ids=IDS)
        heard = model.encoder(mel)
        got = model(ct.Batch(IDS, source=ct.Batch(mel)))
        theirs.set_attn_implementation("eager")  # with sdpa both sides call the same kernels
        eager = theirs(mel, decoder_input_ids=IDS)
    assert gap(got, eager.logits) <= 1e-5
    assert gap(heard, wanted.encoder_last_hidden_state) <= 1e-5
    assert gap(got, wanted.logits) <= 1e-5
    assert torch.equal(got.argmax(-1), wanted.logits.argmax(-1))
    again = ct.from_hf(ct.to_hf(model, tmp_path))
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in again.state_dict().items())
