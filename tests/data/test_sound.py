"""Sound: WAV files of every common kind, other rates, and the spectrogram that a Whisper hears."""

import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from continua.data import Sound, log_mel, read_wav
from continua.data.sound import resampled_sound
from continua.data.spectrogram import mel_bands
from continua.errors import ConfigError, ShapeError
from tests.lazy import Lazily
from tests.refusals import refused

transformers = Lazily("transformers")
pytestmark = pytest.mark.spec("B14")

RATE = 8000
TONE = 0.5 * np.sin(2 * np.pi * 440 * np.arange(400) / RATE)
OTHER = 0.25 * np.cos(2 * np.pi * 150 * np.arange(400) / RATE)


def written(path: Path, data: bytes, *, kind: int, channels: int = 1, bits: int = 16, more: bytes = b"") -> Path:
    """A WAV file by the format's own words, with a part between header and samples that nobody asks for."""
    width = channels * bits // 8
    header = struct.pack("<HHIIHH", kind, channels, RATE, RATE * width, width, bits) + more
    parts = b"".join(
        name + struct.pack("<I", len(own)) + own + b"\0" * (len(own) % 2)
        for name, own in ((b"fmt ", header), (b"LIST", b"odd"), (b"data", data))
    )
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WAVE" + parts)
    return path


def whole(values: np.ndarray, bits: int) -> bytes:
    numbers = np.round(values * 2 ** (bits - 1)).astype(np.int64)
    if bits == 8:
        return (numbers + 128).astype(np.uint8).tobytes()
    return b"".join(int(n).to_bytes(bits // 8, "little", signed=True) for n in numbers)


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_whole_numbers_are_read(tmp_path: Path, bits: int) -> None:
    sound = read_wav(written(tmp_path / "a.wav", whole(TONE, bits), kind=1, bits=bits))
    assert sound.rate == RATE
    assert sound.seconds == 0.05
    assert np.abs(sound.samples.numpy() - TONE).max() <= 2.0**-bits + 1e-7


@pytest.mark.parametrize("bits", [32, 64])
def test_floats_and_the_longer_header_are_read(tmp_path: Path, bits: int) -> None:
    data = TONE.astype(f"<f{bits // 8}").tobytes()
    assert np.abs(read_wav(written(tmp_path / "a.wav", data, kind=3, bits=bits)).samples.numpy() - TONE).max() < 1e-7
    guid = struct.pack("<HHIH", 22, bits, 4, 3) + b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    longer = written(tmp_path / "b.wav", data, kind=0xFFFE, bits=bits, more=guid)
    assert np.abs(read_wav(longer).samples.numpy() - TONE).max() < 1e-7


def test_channels_are_averaged_as_the_standard_library_writes_them(tmp_path: Path) -> None:
    both = np.stack([TONE, OTHER], 1)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.round(both * 2**15).astype("<i2").tobytes())
    (tmp_path / "link.wav").symlink_to(tmp_path / "a.wav")
    for name in ("a.wav", "link.wav"):
        assert np.abs(read_wav(tmp_path / name).samples.numpy() - both.mean(1)).max() < 2.0**-15


def test_a_sound_from_a_pipe_ends_with_its_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.wav", whole(TONE, 16), kind=1)
    content = path.read_bytes()
    place = content.index(b"data") + 4
    path.write_bytes(content[:place] + b"\xff\xff\xff\xff" + content[place + 4 :])
    assert len(read_wav(path).samples) == len(TONE)


def test_other_files_are_refused_with_a_remedy(tmp_path: Path) -> None:
    good = written(tmp_path / "good.wav", whole(TONE, 16), kind=1).read_bytes()
    place = good.index(b"fmt ") + 8
    lost = written(tmp_path / "x", np.full(9, np.nan, "<f4").tobytes(), kind=3, bits=32).read_bytes()
    for name, content, got, remedy in (
        ("empty", b"", "b''", "ffmpeg"),
        ("song", b"ID3\x04" + bytes(100), "ID3", "ffmpeg"),
        ("cut", good[:-100], "700 of 800 bytes", "cut short"),
        ("headless", good[:30], "of 16 bytes", "cut short"),
        ("no samples", good[: good.index(b"data")], "no part of it", "cut short"),
        ("silent", written(tmp_path / "x", b"", kind=1).read_bytes(), "none in", "some sound"),
        ("mu-law", good[:place] + struct.pack("<H", 7) + good[place + 2 :], "kind 7", "ffmpeg"),
        ("no rate", good[: place + 4] + bytes(4) + good[place + 8 :], "0 a second", "cut short"),
        ("no channel", good[: place + 2] + bytes(2) + good[place + 4 :], "0 channels", "cut short"),
        ("samples first", good[:12] + good[good.index(b"data") :], "samples before that", "cut short"),
        ("NaN", lost, "NaN", "again"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        with refused(ConfigError, got, remedy):
            read_wav(tmp_path / name)
    for path in (tmp_path / "none", tmp_path):
        with refused(ConfigError, "where no plain file is", "Check the path"):
            read_wav(path)


@pytest.mark.parametrize(("before", "after"), [(44100, 16000), (8000, 16000), (48000, 16000), (11025, 16000)])
def test_other_rates_are_the_same_sound(before: int, after: int) -> None:
    """A tone sampled at another rate; away from the ends, where the sound is cut."""
    t = torch.arange(before // 4, dtype=torch.float64) / before
    made = Sound(torch.sin(2 * torch.pi * 1000 * t), before).at_rate(after)
    u = torch.arange(len(made.samples), dtype=torch.float64) / after
    assert len(made.samples) == -(-len(t) * after // before)
    assert (made.samples - torch.sin(2 * torch.pi * 1000 * u))[200:-200].abs().max() < 1e-5


def test_what_is_too_high_does_not_fold_back() -> None:
    t = torch.arange(12000, dtype=torch.float64) / 48000
    assert resampled_sound(torch.sin(2 * torch.pi * 9000 * t), 48000, 16000)[200:-200].abs().max() < 1e-5


def test_what_is_no_sound_is_refused() -> None:
    for wrong in (torch.zeros(2, 9), torch.zeros(9, dtype=torch.int16), [0.0]):
        with refused(ShapeError, "", "Average the channels"):
            Sound(wrong, 16000)
    for rate in (0, -1, 10**7):
        with refused(ConfigError, str(rate), "samples a second"):
            Sound(torch.zeros(9), rate)
        with refused(ConfigError, str(rate), "samples a second"):
            Sound(torch.zeros(9), 16000).at_rate(rate)
    with refused(ConfigError, "NaN or infinity", "again"):
        Sound(torch.tensor([0.0, torch.inf]), 16000)


def by_hand(samples: np.ndarray, channels: int) -> np.ndarray:
    """The spectrogram by its formulas, frame by frame in float64."""
    mirrored = np.concatenate([samples[200:0:-1], samples, samples[-2:-202:-1]])
    n = np.arange(400)
    window = np.sin(np.pi * n / 400) ** 2
    waves = np.exp(-2j * np.pi * np.outer(np.arange(201), n) / 400)
    frames = np.stack([mirrored[i * 160 : i * 160 + 400] * window for i in range(len(samples) // 160)], 1)
    energy = np.abs(waves @ frames) ** 2
    mels = np.linspace(0, 15 + 27 * np.log(8) / np.log(6.4), channels + 2)
    hertz = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (mels - 15)))
    f = np.arange(201) * 40.0
    bands = np.stack(
        [
            2 / (high - low) * np.interp(f, [low, middle, high], [0, 1, 0])
            for low, middle, high in zip(hertz, hertz[1:], hertz[2:], strict=False)
        ]
    )
    logs = np.log10(np.maximum(bands @ energy, 1e-10))
    return (np.maximum(logs, logs.max() - 8) + 4) / 4


@pytest.mark.parametrize("channels", [80, 128])
def test_the_spectrogram_is_its_formula(channels: int) -> None:
    drawn = np.random.default_rng(0).standard_normal(3200) * np.linspace(0, 0.3, 3200)
    assert np.abs(log_mel(torch.from_numpy(drawn), channels).numpy() - by_hand(drawn, channels)).max() <= 1e-12


def test_the_spectrogram_is_that_of_hugging_face() -> None:
    theirs = transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=2)
    assert np.abs(theirs.mel_filters.T - mel_bands(80).numpy()).max() <= 1e-15
    samples = torch.randn(32000, generator=torch.Generator().manual_seed(0)) * torch.linspace(0, 0.3, 32000)
    wanted = theirs(samples.numpy(), sampling_rate=16000, return_tensors="pt").input_features[0]
    assert (log_mel(samples) - wanted).abs().max() <= 1e-5


def test_a_spectrogram_needs_samples() -> None:
    for wrong in (torch.zeros(100), torch.zeros(2, 1600), torch.zeros(1600, dtype=torch.int16)):
        with refused(ShapeError, str(list(wrong.shape)), "16000 Hz"):
            log_mel(wrong)
