"""Sound as Whisper hears it: the logarithm of the energy in bands that are spaced as pitches are heard."""

import functools
import math

import torch

from continua.errors import ShapeError
from continua.settings import Size
from continua.typing import Float, Tensor

RATE = 16_000  # samples a second
WINDOW = 400  # samples of a frame: 25 ms
HOP = 160  # samples from one frame to the next: 10 ms
QUIETEST = 1e-10
RANGE = 8.0  # decades below the loudest that are kept
LINEAR = 1000.0  # hertz up to which pitch is linear (Slaney 1998) …
PER_MEL = 200.0 / 3  # … with so many hertz a mel
STEP = math.log(6.4) / 27  # above it a mel multiplies the frequency by exp of this


def log_mel(samples: Float[Tensor, "n"], channels: Size = 80) -> Float[Tensor, "channels frames"]:
    """log₁₀ of ∫ |S(t, f)|² w_c(f) df, cut eight decades below its maximum and scaled to about −1 … 1 (Radford 2023).

    S is the Fourier transform of 25 ms under a Hann window every 10 ms, at 16 kHz; beyond both ends the sound is
    mirrored. w_c are triangles between neighbouring mels, of equal area. As many frames as whole hops.

    >>> log_mel(torch.zeros(1600)).shape
    torch.Size([80, 10])
    """
    if samples.dim() != 1 or len(samples) <= WINDOW // 2 or not samples.is_floating_point():
        got = f"{samples.dtype} {list(samples.shape)}"
        remedy = f"Give one channel of floats at {RATE} Hz, at least {WINDOW // 2 + 1} of them."
        raise ShapeError("a spectrogram is made of samples [n]", got=got, remedy=remedy)
    window = torch.hann_window(WINDOW, dtype=samples.dtype, device=samples.device)
    waves = torch.stft(samples, WINDOW, HOP, window=window, return_complex=True)[:, :-1]
    energy = mel_bands(channels).to(samples) @ waves.abs().square()
    logs = energy.clamp_min(QUIETEST).log10()
    return (torch.maximum(logs, logs.max() - RANGE) + 4.0) / 4.0


@functools.cache
def mel_bands(channels: int) -> Float[Tensor, "channels f"]:
    """The weights w_c(f) at the frequencies of a frame, in float64: triangles over three neighbouring mels."""
    f = torch.linspace(0.0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)
    top = _mel(RATE / 2)
    corners = torch.tensor([_hertz(top * i / (channels + 1)) for i in range(channels + 2)], dtype=torch.float64)
    gaps = corners.diff()
    slopes = corners[:, None] - f
    rising = -slopes[:-2] / gaps[:-1, None]
    falling = slopes[2:] / gaps[1:, None]
    area = 2.0 / (corners[2:] - corners[:-2])
    return torch.minimum(rising, falling).clamp_min(0) * area[:, None]


def _mel(hertz: float) -> float:
    if hertz < LINEAR:
        return hertz / PER_MEL
    return LINEAR / PER_MEL + math.log(hertz / LINEAR) / STEP


def _hertz(mel: float) -> float:
    """The inverse of ``_mel``.

    >>> round(_hertz(_mel(440.0)), 9), round(_hertz(_mel(4400.0)), 9)
    (440.0, 4400.0)
    """
    linear = LINEAR / PER_MEL
    return mel * PER_MEL if mel < linear else LINEAR * math.exp(STEP * (mel - linear))
