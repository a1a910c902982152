"""Tiny random BARTs, mBARTs, Marians and Whispers of Hugging Face: logits, all gradients, folders, tokens (M9, B14).

None but Marian, whose sines are lifted, computes a part in float32. ``final_logits_bias`` is a buffer there and a
parameter here; Whisper's encoder positions are frozen there: their gradients are ours alone.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import continua as ct
from continua.config import to_plain
from continua.convert import from_whisper
from continua.convert.huggingface import hf_names
from continua.errors import CheckpointError, ConfigError, GridError, ShapeError
from continua.fields import counted
from continua.models import zoo
from continua.models.build import discrete_axes
from tests.exact import EXACT, aligned, gap, gradients, numbers, stirred, worst
from tests.islands import ISLANDS, lifted
from tests.lazy import Lazily
from tests.refusals import refused

transformers = Lazily("transformers")

VOCAB, CONTEXT, B, N, S, MELS = 23, 14, 2, 7, 6, 5
IDS = torch.randint(4, VOCAB, (B, N), generator=torch.Generator().manual_seed(4))
IDS[1, 2] = 1  # the padding token, observed: looking it up sends no gradient to its row
SOURCE = torch.randint(4, VOCAB, (B, S), generator=torch.Generator().manual_seed(5))
SIDES = {
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
}
STYLES: dict[str, dict[str, Any]] = {
    "bart": {},
    "bart, scaled": {"scale_embedding": True, "activation_function": "relu"},
    "bart, states": {},
    "mbart": {"scale_embedding": True},
    "mbart, states": {},
    "marian": {"scale_embedding": True, "activation_function": "swish"},
    "whisper": {},
}
FAMILIES = {
    "bart": ("Bart", "BartForConditionalGeneration"),
    "mbart": ("MBart", "MBartForConditionalGeneration"),
    "marian": ("Marian", "MarianMTModel"),
}
EACH = pytest.mark.parametrize("style", STYLES)

pytestmark = [pytest.mark.usefixtures("quiet_hugging_face", "_lifted"), pytest.mark.spec("B14", "M9")]


@pytest.fixture
def _lifted() -> Iterator[None]:
    with lifted(tuple(island for island in ISLANDS if island.module.startswith("marian"))):
        yield


def hugging(style: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    sizes = SIDES | {"vocab_size": VOCAB} | STYLES[style] | options
    if style == "whisper":
        sizes |= {"num_mel_bins": MELS, "max_source_positions": S, "max_target_positions": CONTEXT, "pad_token_id": 1}
        sizes |= {"bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 2, "begin_suppress_tokens": None}
        return stirred(transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**sizes)).eval(), dtype)
    family, *states = style.split(", ")
    kind, words = FAMILIES[family]
    if family != "bart":
        sizes |= {"pad_token_id": 1, "decoder_start_token_id": 2, "forced_eos_token_id": None, "eos_token_id": 2}
    config = getattr(transformers, f"{kind}Config")(**sizes, max_position_embeddings=CONTEXT)
    if states == ["states"]:
        return stirred(getattr(transformers, f"{kind}Model")(config).eval(), dtype)
    theirs = getattr(transformers, words)(config).eval()
    theirs.final_logits_bias = numbers(1, VOCAB, dtype=torch.float32, seed=3)
    return stirred(theirs, dtype)


def source(style: str, dtype: torch.dtype = torch.float64) -> Tensor:
    return numbers(B, MELS, 2 * S, dtype=dtype, seed=8) if style == "whisper" else SOURCE


def right(n: int) -> Tensor:
    return torch.arange(n) < torch.tensor([[n - 3], [n]])


PADDINGS: dict[str, tuple[Tensor | None, Tensor | None]] = {
    "full": (None, None),
    "right": (right(S), right(N)),
    "left": (right(S).flip(1), right(N).flip(1)),
}


def masks(style: str, padding: str) -> tuple[Tensor | None, Tensor | None]:
    """Of the source and of the target; Whisper hears silence as well as speech."""
    heard, written = PADDINGS[padding]
    return (None if style == "whisper" else heard), written


def answer(theirs: Any, style: str, padding: str = "full") -> Tensor:
    heard, written = masks(style, padding)
    dtype = next(theirs.parameters()).dtype
    out = theirs(
        source(style, dtype),
        attention_mask=None if heard is None else heard.long(),
        decoder_input_ids=IDS,
        decoder_attention_mask=None if written is None else written.long(),
    )
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def seen(style: str, padding: str = "full", dtype: torch.dtype = torch.float64) -> ct.Batch:
    heard, written = masks(style, padding)
    return ct.Batch(IDS, observed=written, source=ct.Batch(source(style, dtype), observed=heard))


def compare(theirs: Any, folder: Path, style: str, padding: str) -> float:
    theirs.save_pretrained(folder)
    model = ct.from_hf(folder)
    names = hf_names(folder)
    wanted = answer(theirs, style, padding)
    ours = model(seen(style, padding, wanted.dtype))
    rows = masks(style, padding)[1]
    rows = torch.ones(B, N, dtype=torch.bool) if rows is None else rows
    assert not ours[~rows].any()
    towards = numbers(*wanted.shape, dtype=wanted.dtype, seed=9)[rows]
    got = gradients((ours[rows] * towards).sum(), dict(model.named_parameters()))
    got = names.store(got, not style.endswith(", states"))
    named = {n: p for n, p in theirs.named_parameters() if p.requires_grad}
    expected = gradients((wanted[rows] * towards).sum(), named)
    alone = set(got) - set(expected)
    assert alone <= {"final_logits_bias", "model.encoder.embed_positions.weight"}
    return max(gap(ours[rows], wanted[rows]), worst({n: g for n, g in got.items() if n not in alone}, expected))


@EACH
@pytest.mark.parametrize("padding", PADDINGS)
def test_answers_and_gradients(tmp_path: Path, style: str, padding: str) -> None:
    assert compare(hugging(style), tmp_path, style, padding) <= 1e-12


@pytest.mark.parametrize("style", ["bart", "whisper", "mbart", "marian"])
def test_float32_and_eager_attention(tmp_path: Path, style: str) -> None:
    theirs = hugging(style, torch.float32, attn_implementation="eager")
    assert compare(theirs, tmp_path, style, "right") <= EXACT[torch.float32]


@EACH
def test_folders_go_both_ways(tmp_path: Path, style: str) -> None:
    theirs = hugging(style)
    theirs.save_pretrained(tmp_path / "theirs")
    model = ct.from_hf(tmp_path / "theirs")
    folder = ct.to_hf(model, tmp_path / "ours")
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    plain = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    back = {name.removeprefix("model."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    assert set(back) == set(plain)
    assert all(torch.equal(tensor, plain[name]) for name, tensor in back.items())
    again = aligned(type(theirs).from_pretrained(folder, dtype=torch.float64).eval())
    assert torch.equal(answer(again, style), answer(theirs, style))
    assert to_plain(ct.from_hf(folder)) == to_plain(model)


@pytest.mark.parametrize("style", ["bart", "bart, scaled", "mbart", "marian", "whisper"])
def test_cached_generation_writes_the_same_tokens(style: str) -> None:
    theirs = hugging(style)
    model = ct.from_hf(theirs)
    start = IDS[:, :1]
    ours = model.generate(ct.Batch(start, source=ct.Batch(source(style))), tokens=8)
    written = start
    kept = None
    with torch.no_grad():
        for _ in range(8):
            out = theirs(source(style), decoder_input_ids=written[:, -1:], past_key_values=kept, use_cache=True)
            kept = out.past_key_values
            written = torch.cat([written, out.logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(ours, written)


@pytest.mark.parametrize("style", ["bart", "whisper", "mbart", "marian"])
@pytest.mark.parametrize("sizes", [{"d": 8}, {"h": 1}, {"e": 2}, {"m": 12}, {"z": 1}], ids=str)
def test_another_discretisation(style: str, sizes: dict[str, int]) -> None:
    model = ct.from_hf(hugging(style))
    got = model.at(**sizes)(seen(style))
    assert got.shape == (B, N, VOCAB)
    assert gap(got, model(seen(style))) > 1e-6
    assert all(g.isfinite().all() for g in gradients(got.sum(), dict(model.named_parameters())).values())


# --- OpenAI's files --------------------------------------------------------------------------------------------------

SPELT = (  # Hugging Face's names → OpenAI's
    ("model.", ""),
    ("layers", "blocks"),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("self_attn_layer_norm", "attn_ln"),
    ("final_layer_norm", "mlp_ln"),
    ("encoder_attn", "cross_attn"),
    ("self_attn", "attn"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("embed_positions.weight", "positional_embedding"),
    ("embed_tokens", "token_embedding"),
)


@pytest.fixture(scope="module")
def openai(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A file as OpenAI writes it, and the model whose weights are in it."""
    same = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    theirs = hugging("whisper", **same)
    state = {}
    for name, tensor in theirs.state_dict().items():
        for before, after in SPELT:
            name = name.replace(before, after)
        state[name] = tensor
    del state["proj_out.weight"]
    sizes = {"n_mels": MELS, "n_audio_ctx": S, "n_audio_state": 16, "n_audio_head": 4, "n_audio_layer": 3}
    sizes |= {"n_vocab": VOCAB, "n_text_ctx": CONTEXT, "n_text_state": 16, "n_text_head": 4, "n_text_layer": 2}
    file = tmp_path_factory.mktemp("openai") / "tiny.pt"
    torch.save({"dims": sizes, "model_state_dict": state}, file)
    return file, theirs


def test_files_of_openai_are_read(openai: tuple[Path, Any]) -> None:
    model = from_whisper(openai[0])
    assert gap(model(seen("whisper")), answer(openai[1], "whisper")) <= 1e-12
    assert from_whisper(openai[0], dtype=torch.float32).encoder.embed.first.coefficients.dtype == torch.float32


class Dangerous:
    """Whoever unpickles it, calls something."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("touched"),)


def test_other_files_are_refused(openai: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(CheckpointError, "there is no such file", "tiny.en.pt"):
        from_whisper(tmp_path / "none.pt")
    for name, thing, said in (
        ("dangerous", Dangerous(), "holds no weights that can be read"),
        ("other", {"a": torch.zeros(2)}, "a Whisper has dims and model_state_dict, got a"),
        ("no sizes", {"dims": {"n_mels": 80}, "model_state_dict": {}}, "the sizes of a Whisper have n_vocab"),
    ):
        torch.save(thing, tmp_path / f"{name}.pt")
        with refused(CheckpointError, said, ""):
            from_whisper(tmp_path / f"{name}.pt")
    (tmp_path / "cut.pt").write_bytes(openai[0].read_bytes()[:999])
    with refused(CheckpointError, "holds no weights that can be read", ""):
        from_whisper(tmp_path / "cut.pt")
    assert not (tmp_path / "touched").exists()
    whole = torch.load(openai[0], weights_only=True)
    del whole["model_state_dict"]["encoder.conv1.bias"]
    torch.save(whole, tmp_path / "less.pt")
    with refused(CheckpointError, "no encoder.conv1.bias", ""):
        from_whisper(tmp_path / "less.pt")


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "entries", "said"),
    [
        ("bart", {"normalize_before": True}, "normalize_before=False, got True"),
        ("bart", {"activation_function": "mish"}, "this activation_function is not read, got 'mish'"),
        ("marian", {"decoder_vocab_size": 9}, "decoder_vocab_size=23, got 9"),
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings=True, got False"),
        ("bart", {"decoder_layers": 0}, "decoder_layers takes a whole number ≥ 1, got 0"),
        ("bart", {"encoder_ffn_dim": 12}, "encoder.layers.0.fc1.weight needs shape [12, 16]"),
        ("whisper", {"scale_embedding": True}, "scale_embedding=False, got True"),
        ("whisper", {"num_mel_bins": 4}, "encoder.conv1.weight needs shape [16, 4, 3]"),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, style: str, entries: dict[str, Any], said: str) -> None:
    hugging(style).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))
    with refused(CheckpointError, said, ""):
        ct.from_hf(tmp_path)


def test_other_spectrograms_are_refused() -> None:
    model = zoo.whisper(VOCAB, channels=MELS, d=8, heads=2, depth=1, frames=S, context=CONTEXT)
    with refused(ShapeError, "[b, 5, frames], got [2, 4, 12]", "as many channels"):
        model(ct.Batch(IDS, source=ct.Batch(torch.zeros(2, 4, 12))))
    with refused(ShapeError, "an even number of frames, got 11", "silence"):
        model(ct.Batch(IDS, source=ct.Batch(torch.zeros(2, MELS, 11))))
    with refused(ShapeError, "the position table has 6 rows, got 7 tokens", ""):
        model(ct.Batch(IDS, source=ct.Batch(torch.zeros(2, MELS, 14))))
    with refused(GridError, "frames are counted", "Leave times and grid out"):
        times = torch.arange(S) / 2
        model(ct.Batch(IDS, source=ct.Batch(torch.zeros(2, MELS, 2 * S), times=times)))
    with refused(ConfigError, "a table of 2 rows skips fewer, got 2", "count > skip"):
        ct.Learned(counted(discrete_axes(8, 2, 12, 1)[0]), 2, skip=2)
