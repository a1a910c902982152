"""Sound as tokens: two overlapping convolutions over the frames of a spectrogram, the second with stride two."""

from dataclasses import replace
from typing import Any, NamedTuple

from torch.nn.functional import conv1d, gelu

from continua.axes import Grids
from continua.config import register
from continua.errors import GridError, ShapeError
from continua.fields import Parametrisation, Role, Use, kernel_std
from continua.fields.role import LIFT, SHIFT
from continua.models.batch import Batch
from continua.models.embed import Embedding, added, observed_only
from continua.operators import Encoding
from continua.settings import Size
from continua.typing import Tensor

TAPS = 3  # frames that a convolution sees
STRIDE = 2  # frames of a token


class FrameTables(NamedTuple):
    """Both kernels on the d grid, [d, channels, taps] and [d, c, taps] with the measure of c, and their biases."""

    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor
    position: Any


@register
class Frames(Embedding):
    """X(0, t, d) = φ(Σ_j ∫ K(j, d, c) y(2t + j, c) dμ(c) + b(d)) + p(t, d) of the frames y(s, c) behind a first one.

    That one is y(s, c) = φ(Σ_ij u_i(s + j) B(ij, c) + a(c)). j runs over −1, 0, 1, φ is GELU, and frames beyond both
    ends are zero. Values are spectrograms [b, channels, frames] with an even number of frames, or [b, t, 2·channels]
    already laid out, two frames a token.
    Discrete case: ``nn.Conv1d(channels, n, 3)``, ``nn.Conv1d(n, n, 3, stride=2)`` and a position table (Whisper).
    """

    def __init__(self, weights: Parametrisation, channels: Size = 80, position: Encoding | None = None) -> None:
        super().__init__()
        self.channels = channels
        self.position = position
        entries = channels * TAPS
        self.first = weights.table(entries, "d", std=entries**-0.5, role=LIFT)
        self.first_bias = weights.table(1, "d", std=0.02, role=SHIFT)
        std = kernel_std(weights, "c") * TAPS**-0.5
        self.second = weights.table(TAPS, "dc", std=std, role=Role(Use.KERNEL, "c"))
        self.second_bias = weights.table(1, "d", std=0.02, role=SHIFT)

    def lay(self, batch: Batch) -> Batch:
        """Two frames become one token."""
        heard = batch.values
        if not isinstance(heard, Tensor) or heard.dim() != 3:
            return batch
        if heard.shape[1] != self.channels:
            if heard.shape[2] == STRIDE * self.channels:
                return batch
            wanted = f"[b, {self.channels}, frames]"
            remedy = "Give a spectrogram with as many channels as the model was made for."
            raise ShapeError(f"a spectrogram needs shape {wanted}", got=list(heard.shape), remedy=remedy)
        if heard.shape[2] % STRIDE:
            remedy = "Pad it with a frame of silence."
            raise ShapeError("a spectrogram has an even number of frames", got=heard.shape[2], remedy=remedy)
        b, c, n = heard.shape
        return replace(batch, values=heard.mT.reshape(b, n // STRIDE, STRIDE * c))

    def read(self, grids: Grids) -> FrameTables:
        """Kernels, biases and positions."""
        d = grids.d
        first = self.first.on(d=d).mT  # [d, (channels taps)]
        second = self.second.on(d=d, c=d)  # [taps, d, c]
        second = second if d.is_unit else second * d.weights.to(second)
        return FrameTables(
            first=first.reshape(d.count, self.channels, TAPS),
            first_bias=self.first_bias.on(d=d)[0],
            second=second.permute(1, 2, 0),
            second_bias=self.second_bias.on(d=d)[0],
            position=None if self.position is None else self.position.read(d),
        )

    def forward(self, batch: Batch, grids: Grids, read: FrameTables | None = None) -> Tensor:
        """Convolve twice; absent tokens are silent and start at zero."""
        grids.tokens.require_whole(type(self).__name__)
        values = batch.values
        if not isinstance(values, Tensor) or values.dim() != 3 or values.shape[-1] != STRIDE * self.channels:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            remedy = f"Give a spectrogram [b, {self.channels}, frames]."
            raise ShapeError(f"a token holds {STRIDE} frames of {self.channels}", got=got, remedy=remedy)
        if not (grids.tokens.is_counting and grids.tokens.is_ordered):
            remedy = "Leave times and grid out: frames follow one another."
            raise GridError("frames are counted", got="tokens with stamps", remedy=remedy)
        tables = self.read(grids) if read is None else read
        heard = values.to(tables.first).reshape(values.shape[0], -1, self.channels).mT
        y = gelu(conv1d(heard, tables.first, tables.first_bias, padding=1))
        x = gelu(conv1d(y, tables.second, tables.second_bias, stride=STRIDE, padding=1)).mT
        return observed_only(added(self.position, x, grids, tables.position), grids.tokens)
