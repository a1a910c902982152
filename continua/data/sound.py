"""Sound from WAV files: plain and floating samples, one channel of any rate.

The header is read here, since the standard library's ``wave`` knows whole numbers alone.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from continua import memory
from continua.errors import ConfigError, ShapeError
from continua.typing import Float, Tensor

PLAIN, FLOATING, EXTENSIBLE = 1, 3, 0xFFFE  # how samples are written
UNKNOWN = 0xFFFFFFFF  # bytes of a sound that was written into a pipe
SLOWEST, QUICKEST = 1000, 768_000  # samples a second
MOST_CHANNELS = 64
ZEROS = 32  # zero crossings of the interpolating sine on each side
KAISER = 12.0  # its window: what folds back is below −100 dB
ROLL_OFF = 0.97  # share of the band that is kept
CONVERT = "Convert it: ffmpeg -i FILE -ac 1 -ar 16000 FILE.wav."
AGAIN = "The file is damaged or cut short: copy or convert it again."


@dataclass(frozen=True)
class Sound:
    """Samples [n] of one channel between −1 and 1, and how many there are in a second."""

    samples: Float[Tensor, "n"]
    rate: int

    def __post_init__(self) -> None:
        heard = self.samples
        if not isinstance(heard, Tensor) or heard.dim() != 1 or not heard.is_floating_point():
            got = f"{heard.dtype} {list(heard.shape)}" if isinstance(heard, Tensor) else type(heard).__name__
            raise ShapeError("a sound is one channel of floats [n]", got=got, remedy="Average the channels first.")
        if not SLOWEST <= self.rate <= QUICKEST:
            remedy = "Give samples a second, such as 16000."
            raise ConfigError(f"a rate is between {SLOWEST} and {QUICKEST}", got=self.rate, remedy=remedy)
        if not bool(torch.isfinite(heard).all()):
            raise ConfigError("samples are numbers", got="NaN or infinity", remedy=AGAIN)

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / self.rate

    def at_rate(self, rate: int) -> "Sound":
        """The same sound with another number of samples a second; what is too high for it is filtered out."""
        Sound(self.samples[:0], rate)  # refuses what is no rate
        return self if rate == self.rate else Sound(resampled_sound(self.samples, self.rate, rate), rate)


@dataclass(frozen=True)
class _Header:
    """How the samples of a file are written."""

    kind: int
    channels: int
    rate: int
    bits: int

    @property
    def width(self) -> int:
        """Bytes of a sample of all channels."""
        return self.channels * self.bits // 8


def read_wav(path: str | Path) -> Sound:
    """The sound of a WAV file: 8, 16, 24 or 32 bits, or 32 and 64 of floating point; channels are averaged."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError("a sound is a WAV file", got=f"{path}, where no plain file is", remedy="Check the path.")
    try:
        header, data = _chunks(path)
    except OSError as problem:
        remedy = "Check the path and its rights."
        raise ConfigError(f"{path} cannot be read", got=problem.strerror or str(problem), remedy=remedy) from problem
    _check(header, path)
    count = len(data) // header.width
    if count == 0:
        raise ConfigError("a sound has samples", got=f"none in {path}", remedy="Give a file with some sound.")
    memory.require(8 * header.channels * count, f"the sound of {path.name}", "Cut it into shorter files.")
    heard = _numbers(data[: count * header.width], header)
    one = heard.reshape(count, header.channels).mean(1, dtype=np.float64).astype(np.float32)
    return Sound(torch.from_numpy(one), header.rate)


def _chunks(path: Path) -> tuple[_Header, bytes]:
    """The header and the bytes of the samples."""
    size = path.stat().st_size
    header: _Header | None = None
    with path.open("rb") as file:
        head = file.read(12)
        if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
            raise ConfigError("a WAV file begins with RIFF and WAVE", got=f"{head[:12]!r} in {path}", remedy=CONVERT)
        for name, length in _chunk_heads(file):
            left = size - file.tell()
            if name == b"data":
                if header is None:
                    raise ConfigError("a WAV file says how it is written", got="samples before that", remedy=AGAIN)
                if length > left and length != UNKNOWN:
                    got = f"{left} of {length} bytes in {path}"
                    raise ConfigError("the samples of a WAV file are all there", got=got, remedy=AGAIN)
                return header, file.read(min(length, left))
            if length > left:
                got = f"{left} of {length} bytes in {path}"
                raise ConfigError("the parts of a WAV file are all there", got=got, remedy=AGAIN)
            if name == b"fmt ":
                header = _header(file.read(length), path)
                file.seek(length % 2, 1)
            else:
                file.seek(length + length % 2, 1)
    raise ConfigError("a WAV file has samples", got=f"no part of it in {path}", remedy=AGAIN)


def _chunk_heads(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Name and length of each part, until the file ends."""
    while True:
        head = file.read(8)
        if len(head) < 8:
            return
        yield head[:4], struct.unpack("<I", head[4:])[0]


def _header(said: bytes, path: Path) -> _Header:
    if len(said) < 16:
        got = f"{len(said)} bytes of header in {path}"
        raise ConfigError("a WAV file says how it is written in 16 bytes", got=got, remedy=AGAIN)
    kind, channels, rate, _, align, bits = struct.unpack("<HHIIHH", said[:16])
    if kind == EXTENSIBLE and len(said) >= 26:
        kind = struct.unpack("<H", said[24:26])[0]
    header = _Header(kind, channels, rate, bits)
    if bits % 8 or align != header.width or not 0 < channels <= MOST_CHANNELS or not SLOWEST <= rate <= QUICKEST:
        got = f"{channels} channels of {bits} bits, {rate} a second, in {path}"
        raise ConfigError("this header describes no sound", got=got, remedy=AGAIN)
    return header


def _check(header: _Header, path: Path) -> None:
    known = {PLAIN: (8, 16, 24, 32), FLOATING: (32, 64)}
    if header.bits not in known.get(header.kind, ()):
        got = f"kind {header.kind} of {header.bits} bits in {path}"
        raise ConfigError("samples are whole numbers of 8 to 32 bits or floats", got=got, remedy=CONVERT)


def _numbers(data: bytes, header: _Header) -> NDArray[np.float32]:
    """All samples of all channels between −1 and 1."""
    if header.kind == FLOATING:
        return np.frombuffer(data, f"<f{header.bits // 8}").astype(np.float32)
    if header.bits == 8:  # these alone have no sign
        return ((np.frombuffer(data, np.uint8) - 128.0) / 128.0).astype(np.float32)
    if header.bits == 24:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        data = wide.tobytes()
    bits = 32 if header.bits == 24 else header.bits
    return (np.frombuffer(data, f"<i{bits // 8}") / 2.0 ** (bits - 1)).astype(np.float32)


def resampled_sound(samples: Float[Tensor, "n"], before: int, after: int) -> Float[Tensor, "m"]:
    """The sound x(t) = Σ_k x_k h(t − k) at other times, h a sine cardinal in a Kaiser window.

    h passes what both rates can hold and nothing above. Times repeat their place between two samples after
    ``after`` / gcd of them, so each such place has its own few weights.
    """
    if not before > 0 or not after > 0:
        raise ConfigError("a rate is above zero", got=f"{before} and {after}", remedy="Give samples a second.")
    shared = math.gcd(before, after)
    step = before // shared
    places = after // shared
    count = -(-len(samples) * places // step)
    band = ROLL_OFF * min(1.0, places / step)  # of the frequencies that the given samples hold
    reach = math.ceil(ZEROS / band)
    padded = torch.nn.functional.pad(samples, (reach, reach + step))
    found = samples.new_zeros(count)
    taps = torch.arange(-reach, reach + 1, dtype=torch.float64)
    for place in range(min(places, count)):
        whole, rest = divmod(place * step, places)
        weights = _weights(taps - rest / places, band).to(samples)
        many = -(-(count - place) // places)
        windows = padded[whole : whole + (many - 1) * step + len(taps)].unfold(0, len(taps), step)
        found[place::places] = windows @ weights
    return found


def _weights(t: Tensor, band: float) -> Tensor:
    """h(t): a sine cardinal of the band, windowed to ``ZEROS`` of its zeros on each side."""
    inside = (t * band / ZEROS).clamp(-1, 1)
    window = torch.i0(KAISER * (1 - inside.square()).sqrt()) / torch.i0(torch.tensor(KAISER, dtype=t.dtype))
    return band * torch.sinc(t * band) * window
