"""Speech to text: the tokens of a Whisper, what it may write, windows of sound, folders and files, and bad input."""

import base64
import json
import shutil
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import continua as ct
from continua.convert import Transcriber
from continua.convert.byte_ranks import read_byte_ranks
from continua.convert.speech_tokens import LANGUAGES, folder_tokens, usual_tokens, with_silences
from continua.convert.transcription import cuts
from continua.convert.whisper import names
from continua.data import Sound, log_mel
from continua.errors import CheckpointError, ConfigError
from tests.cli.test_cli_generate import words
from tests.commands import typed
from tests.convert.test_encoder_decoders import SPELT
from tests.exact import stirred
from tests.lazy import Lazily
from tests.packages import folder_of
from tests.refusals import refused
from tools.packages import MLX_WHISPER, MOONSHINE, MOONSHINE_VOICE, WHISPER

transformers = Lazily("transformers")
pytestmark = pytest.mark.spec("B14")

VOCAB, FRAMES, CONTEXT = 32, 10, 20
WINDOW = FRAMES * 2 * 160
START, END, ENGLISH, GERMAN, TASK, NO_TIMES = 20, 19, 21, 22, 23, 25
SAYS = {
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "no_timestamps_token_id": NO_TIMES,
    "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN},
    "task_to_id": {"transcribe": TASK, "translate": 24},
    "suppress_tokens": [3, 20, 21, 22, 23, 24],
    "begin_suppress_tokens": [END, 7],
}


def tiny(vocab: int = VOCAB, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"channels": 8, "d": 16, "heads": 2, "depth": 1, "frames": FRAMES, "context": CONTEXT, **options}
    return stirred(ct.zoo.whisper(vocab, **sizes).eval(), torch.float32)


def tone(n: int, height: float = 440.0) -> Tensor:
    t = torch.arange(n) / 16000
    return 0.3 * torch.sin(2 * torch.pi * height * t) * (1 + torch.sin(30 * t))


def as_wav(path: Path, samples: Tensor, rate: int = 16000) -> Path:
    data = (samples * 2**15).round().short().numpy().tobytes()
    header = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    parts = b"fmt " + struct.pack("<I", 16) + header + b"data" + struct.pack("<I", len(data)) + data
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WAVE" + parts)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = words(ct.to_hf(tiny(), tmp_path_factory.mktemp("whisper")), VOCAB)
    (place / "generation_config.json").write_text(json.dumps(SAYS))
    return place


def by_hand(model: Any, samples: Tensor, language: int | None) -> list[int]:
    """The likeliest tokens, without a cache and one forward pass for each."""
    mel = log_mel(torch.nn.functional.pad(samples, (0, WINDOW - len(samples))), 8)[None]

    def logits(ids: list[int]) -> Tensor:
        with torch.no_grad():
            return model(ct.Batch(torch.tensor([ids]), source=ct.Batch(mel)))[0, -1]

    if language is None:
        said = logits([START])
        language = max((ENGLISH, GERMAN), key=lambda token: float(said[token]))
    ids = [START, language, TASK, NO_TIMES]
    for step in range(CONTEXT // 2):
        said = logits(ids)
        said[[3, *range(20, 25), *range(NO_TIMES, VOCAB)]] = -torch.inf
        if step == 0:
            said[[END, 7]] = -torch.inf
        ids.append(int(said.argmax()))
        if ids[-1] == END:
            break
    return [token for token in ids[4:] if token != END]


def spelt(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


@pytest.mark.parametrize("language", [None, "en", "de"])
def test_greedy_tokens_are_those_by_hand(folder: Path, language: str | None) -> None:
    model = ct.from_hf(folder)
    samples = tone(WINDOW - 500)
    number = {None: None, "en": ENGLISH, "de": GERMAN}[language]
    wanted = by_hand(model, samples, number)
    assert len(wanted) > 2
    heard = ct.transcribe(folder, Sound(samples, 16000), language=language)
    assert heard.text == spelt(wanted)
    assert str(heard) == heard.text
    assert [(piece.start, piece.end) for piece in heard.pieces] == [(0.0, (WINDOW - 500) / 16000)]


def test_long_sounds_are_cut_where_they_are_quiet(folder: Path) -> None:
    samples = tone(3 * WINDOW)
    samples[WINDOW - 350 : WINDOW - 150] = 0.0
    found = list(cuts(samples, WINDOW))
    assert WINDOW - 350 <= found[0][1] <= WINDOW - 150
    assert found[0][0] == 0
    assert found[-1][1] == len(samples)
    assert all(0 < end - start <= WINDOW for start, end in found)
    assert all(one[1] == next_one[0] for one, next_one in pairwise(found))
    seen = []
    heard = ct.transcribe(
        folder, Sound(samples, 16000), language="en", watch=lambda piece, of: seen.append((piece, of))
    )
    model = ct.from_hf(folder)
    assert [piece.text for piece in heard.pieces] == [
        spelt(by_hand(model, samples[start:end], ENGLISH)) for start, end in found
    ]
    assert [piece for piece, _ in seen] == list(heard.pieces)
    assert seen[0][1] == 3 * WINDOW / 16000


def test_the_command_prints_windows_and_progress(folder: Path, tmp_path: Path) -> None:
    file = as_wav(tmp_path / "a.wav", tone(2 * WINDOW), rate=16000)
    wanted = ct.transcribe(folder, file, language="de")
    done = typed("transcribe", str(folder), str(file), "--language", "de")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(piece.text for piece in wanted.pieces) + "\n"
    assert "00:00.4 heard" in done.stderr
    timed = typed("transcribe", str(folder), str(file), "--language", "de", "--times").stdout.splitlines()
    assert len(timed) == len(wanted.pieces)
    assert timed[0].startswith("[00:00.0 – 00:00.")
    other = typed("transcribe", str(folder), str(file), "--language", "de", "--at", "h=1")
    assert other.returncode == 0, other.stderr
    assert other.stdout != done.stdout


def test_other_rates_are_heard_alike(folder: Path, tmp_path: Path) -> None:
    plain = ct.transcribe(folder, Sound(tone(WINDOW), 16000), language="en")
    t = torch.arange(3 * WINDOW) / 48000
    quick = 0.3 * torch.sin(2 * torch.pi * 440 * t) * (1 + torch.sin(30 * t))
    assert ct.transcribe(folder, as_wav(tmp_path / "a.wav", quick, 48000), language="en").text == plain.text


def test_silence_has_no_words(folder: Path, tmp_path: Path) -> None:
    file = as_wav(tmp_path / "a.wav", torch.zeros(WINDOW))
    assert ct.transcribe(folder, file).text == ""
    done = typed("transcribe", str(folder), str(file))
    assert done.returncode == 0
    assert done.stdout == "\n"
    assert "no speech in it" in done.stderr


def test_a_window_without_speech_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is sure that nobody speaks, and unsure of what it writes."""
    from continua.convert import transcription

    ear = Transcriber.open(folder)
    said = ear.hear(tone(WINDOW))
    monkeypatch.setattr(transcription, "NO_SPEECH", -1.0)
    monkeypatch.setattr(transcription, "UNSURE", 0.0)
    assert said
    assert ear.hear(tone(WINDOW)) == ""
    monkeypatch.setattr(transcription, "UNSURE", -1e9)
    assert ear.hear(tone(WINDOW)) == said


# --- OpenAI's files --------------------------------------------------------------------------------------------------


def ranks(path: Path, count: int = 50256) -> Path:
    """A list of byte pairs: all bytes, then three of them each."""
    tokens = [bytes([i]) for i in range(256)]
    tokens += [bytes([65 + i // 10000 % 20, 40 + i // 100 % 100, 30 + i % 100]) for i in range(count - 256)]
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    return path


def as_openai(model: Any, path: Path, vocab: int) -> Path:
    stored = names(model).store(model.state_dict())
    state = {}
    for name, tensor in stored.items():
        for before, after in SPELT:
            name = name.replace(before, after)
        state[name] = tensor
    sizes = {"n_mels": 8, "n_audio_ctx": FRAMES, "n_audio_state": 16, "n_audio_head": 2, "n_audio_layer": 1}
    sizes |= {"n_vocab": vocab, "n_text_ctx": CONTEXT, "n_text_state": 16, "n_text_head": 2, "n_text_layer": 1}
    torch.save({"dims": sizes, "model_state_dict": state}, path)
    return path


@pytest.fixture(scope="module")
def openai(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_openai(tiny(51864), tmp_path_factory.mktemp("openai") / "tiny.en.pt", 51864)


def test_files_of_openai_are_heard_with_byte_pairs(openai: Path, tmp_path: Path) -> None:
    with refused(CheckpointError, "no tokenizer.json and no gpt2.tiktoken", "--tokenizer FILE"):
        ct.transcribe(openai, Sound(tone(WINDOW), 16000))
    list_of = ranks(tmp_path / "gpt2.tiktoken")
    said = ct.transcribe(openai, Sound(tone(WINDOW), 16000), tokenizer=list_of).text
    beside = tmp_path / "beside"
    beside.mkdir()
    shutil.copy(openai, beside / "tiny.en.pt")
    shutil.copy(list_of, beside / "gpt2.tiktoken")
    assert ct.transcribe(beside / "tiny.en.pt", Sound(tone(WINDOW), 16000)).text == said
    assert said
    ear = Transcriber.open(openai, tokenizer=list_of)
    assert {*range(50257, 51864), ord("["), ord("#")} <= {*ear.tokens.never}
    assert ear.tokens.never_first == (ord(" "), 50256)
    (tmp_path / "config.json").write_text(json.dumps({"decoder_start_token_id": 50257, "eos_token_id": 50256}))
    assert folder_tokens(tmp_path, 51864).no_timestamps == 50362  # OpenAI's number, where the folder says none


def test_other_lists_are_refused(openai: Path, tmp_path: Path) -> None:
    sound = Sound(tone(WINDOW), 16000)
    short = ranks(tmp_path / "short.tiktoken", 50257)
    with refused(CheckpointError, "50257 tokens where the model has 50256", "gpt2.tiktoken"):
        ct.transcribe(openai, sound, tokenizer=short)
    for name, content, got in (
        ("gaps", b"YQ== 0\nYg== 2\n", "gaps between ranks"),
        ("words", b"no such thing here\n", "ValueError"),
        ("base", b"!!! 0\n", "Error"),
        ("empty", b"", "0 lines"),
    ):
        (tmp_path / f"{name}.tiktoken").write_bytes(content)
        with refused(CheckpointError, got, "openai-whisper"):
            ct.transcribe(openai, sound, tokenizer=tmp_path / f"{name}.tiktoken")
    with refused(CheckpointError, "no file", "--tokenizer FILE"):
        ct.transcribe(openai, sound, tokenizer=tmp_path / "none")
    (tmp_path / "tokenizer.json").write_text("{}")
    with refused(CheckpointError, "", "Fetch the file again"):
        ct.transcribe(openai, sound, tokenizer=tmp_path / "tokenizer.json")
    other = as_openai(tiny(40), tmp_path / "other.pt", 40)
    with refused(CheckpointError, "40 in", "Hugging Face folder"):
        ct.transcribe(other, sound, tokenizer=ranks(tmp_path / "gpt2.tiktoken"))


def test_numbers_of_openai_are_those_of_hugging_face() -> None:
    """Languages in their order, and the places of the special tokens."""
    known = pytest.importorskip("transformers.models.whisper.tokenization_whisper").LANGUAGES
    assert list(known) == LANGUAGES
    english = usual_tokens(51864)
    several = usual_tokens(51865)
    third = usual_tokens(51866)
    assert english is not None
    assert several is not None
    assert third is not None
    assert (english.start, english.end, english.no_timestamps, english.no_speech) == (50257, 50256, 50362, 50361)
    assert (several.start, several.transcribe, several.no_timestamps) == (50258, 50359, 50363)
    assert (third.transcribe, third.no_timestamps, several.languages["de"]) == (50360, 50364, 50261)
    assert usual_tokens(50000) is None


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input_is_answered_with_a_sentence(folder: Path, tmp_path: Path) -> None:
    good = as_wav(tmp_path / "good.wav", tone(WINDOW))
    cut = tmp_path / "cut.wav"
    cut.write_bytes(good.read_bytes()[:-10])
    empty = as_wav(tmp_path / "empty.wav", torch.zeros(0))
    text = tmp_path / "text.wav"
    text.write_text("no sound")
    writer = words(ct.to_hf(ct.zoo.gpt2(vocab=8, d=8, heads=2, depth=1, context=8), tmp_path / "gpt2"), 8)
    mute = ct.to_hf(tiny(), tmp_path / "mute")
    (mute / "generation_config.json").write_text(json.dumps(SAYS))
    silent = words(ct.to_hf(tiny(), tmp_path / "silent"), VOCAB)
    config = json.loads((silent / "config.json").read_text())
    (silent / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(b"no weights")
    for words_of, said in (
        ((folder, text), "begins with RIFF"),
        ((folder, cut), "the samples of a WAV file are all there"),
        ((folder, empty), "a sound has samples"),
        ((folder, tmp_path / "none.wav"), "where no plain file is"),
        ((writer, good), "speech is heard by a Whisper"),
        ((mute, good), "a text needs a tokeniser"),
        ((silent, good), "eos_token_id"),
        ((damaged, good), "holds no weights that can be read"),
        ((tmp_path / "none.pt", good), "there is no such file"),
        ((Path("nobody/whisper"), good), "hf download nobody/whisper"),
        ((folder, good, "--language", "xx"), "this language is not known"),
        ((folder, good, "--tokenizer", tmp_path / "none.json"), "no file"),
    ):
        done = typed("transcribe", *map(str, words_of))
        assert done.returncode == 2, (words_of, done.stderr)
        assert said in " ".join(done.stderr.split()), done.stderr
        assert "Traceback" not in done.stderr
    with refused(ConfigError, "none", "Give some sound"):
        ct.transcribe(folder, Sound(torch.zeros(0), 16000))
    for wrong in ({"language": 5}, {"device": 3}, {"at": "z=1"}):
        with refused(ConfigError, "", ""):
            ct.transcribe(folder, Sound(torch.zeros(9), 16000), **wrong)


# --- real weights, real speech ---------------------------------------------------------------------------------------

BECKETT = "ever tried ever failed no matter try again fail again fail better"
DICKENS = (
    "it was the best of times it was the worst of times it was the age of wisdom it was the age of foolishness it was "
    "the epoch of belief it was the epoch of incredulity it was the season of light it was the season of darkness it "
    "was the spring of hope it was the winter of despair we had everything before us we had nothing before us we were "
    "all going direct to heaven we were all going direct the other way in short the period was so far like the present "
    "period that some of its noisiest authorities insisted on its being received for good or for evil in the "
    "superlative degree of comparison only"
)


def plain(text: str) -> str:
    return " ".join("".join(c if c.isalpha() else " " for c in text.lower()).split())


@pytest.mark.slow(reason="thirty-nine million weights listen to ten and to forty-four seconds")
def test_whisper_tiny_writes_down_what_is_said() -> None:
    model = folder_of(WHISPER) / "tiny.en.pt"
    spelling = folder_of(MLX_WHISPER) / "gpt2.tiktoken"
    short = ct.transcribe(model, folder_of(MOONSHINE) / "beckett.wav", tokenizer=spelling)
    assert plain(short.text) == BECKETT
    long = ct.transcribe(model, folder_of(MOONSHINE_VOICE) / "two_cities.wav", tokenizer=spelling)
    assert len(long.pieces) == 2
    assert plain(long.text) == DICKENS


@pytest.mark.slow(reason="fetches a package of a megabyte")
def test_what_is_never_written_is_the_published_list() -> None:
    lists = folder_of(MLX_WHISPER)
    found = pytest.importorskip("transformers.models.whisper.configuration_whisper")
    bands = np.load(lists / "mel_filters.npz")["mel_80"]
    from continua.data.spectrogram import mel_bands

    assert np.abs(mel_bands(80).numpy() - bands).max() <= 1e-8  # float32, by librosa
    for name, vocab, wanted in (
        ("gpt2", 51864, found.NON_SPEECH_TOKENS),
        ("multilingual", 51865, found.NON_SPEECH_TOKENS_MULTI),
    ):
        tokens = usual_tokens(vocab)
        assert tokens is not None
        made = with_silences(tokens, read_byte_ranks(lists / f"{name}.tiktoken"))
        assert {i for i in made.never if i < tokens.end} == {i for i in wanted if i < tokens.end}
        assert made.never_first == (220, tokens.end)
