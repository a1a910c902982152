"""Convolution over the domain by a few waves: the operator of Fourier neural operators, against any measure."""

from dataclasses import dataclass
from typing import Any

import torch

from continua.axes import Grids
from continua.config import register
from continua.fields import Parametrisation, Role, Use, kernel_std
from continua.fields import kernel as make_kernel
from continua.fields.role import SHIFT
from continua.flow.vectorfield import Bound
from continua.operators.activation import Activation, Identity
from continua.operators.linear import linear
from continua.operators.operator import Context, Operands, Operator, local, read_late
from continua.operators.waves import Transform, Waves
from continua.operators.weights import Sampled, Weight, sample
from continua.typing import Args, Float, Tensor


@dataclass(frozen=True)
class WaveOperands(Operands):
    """The weights, and the matrices to the coefficients of waves and back."""

    there: Any
    back: Any


@dataclass(frozen=True)
class Convolving:
    """φ(κ∗x + Wx + b) with the weights of one depth."""

    transform: Transform
    phi: Activation

    def __call__(self, z: float, x: Tensor, args: WaveOperands) -> Tensor:
        """To the waves, mixed there, and back."""
        w = args.weights.at(z)
        mixed = multiplied(self.transform.analyse(x, args.there), w["kernel"])
        y = self.transform.synthesise(mixed, args.back)  # [b, t, d]
        return self.phi(y + linear(x, w["beside"], w["bias"]) if "beside" in w else y)


def multiplied(v: Float[Tensor, "b 2 w c"], kernel: Float[Tensor, "2 w c d"]) -> Float[Tensor, "b 2 w d"]:
    """v_k R_k for each wave, in real numbers: both parts of v by the real and by the imaginary part of R."""
    count = len(v)
    both = v.permute(2, 1, 0, 3).flatten(1, 2)  # [w, (2 b), c]
    by_real = torch.bmm(both, kernel[0])
    by_imaginary = torch.bmm(both, kernel[1])
    real = by_real[:, :count] - by_imaginary[:, count:]
    imaginary = by_imaginary[:, :count] + by_real[:, count:]
    return torch.stack([real, imaginary]).permute(2, 0, 1, 3)


@register
class SpectralConvolution(Operator):
    """φ( ∫∫ κ(t−s, d, c) x(s, c) dμ(s) dμ(c) + ∫ W(d, c) x(t, c) dμ(c) + b(d) ), κ = Σ_k R_k(d, c) exp(2πi k·(t−s)/P).

    The kernel depends on displacement alone and has few waves, so it costs n·modes operations on any nodes: uniform,
    warped or scattered ones, whose weights are corrected to integrate its waves exactly (``Waves.exact_weights``).
    ``beside`` adds the pointwise map W (and b). Nodes that fill a part of the domain alone, such as those of a polygon
    in a square, are not ``whole``: their weights stay as they are.
    Discrete case: on n equal nodes of a circle this is ``irfft(R · rfft(x))``, the layer of Li et al. (2021).
    """

    def __init__(
        self,
        weights: Parametrisation,
        modes: int | tuple[int, ...],
        beside: bool = True,
        phi: Activation = Identity(),  # noqa: B008  (frozen and stateless)
        stretch: float = 1.0,
        gain: float = 1.0,
        whole: bool = True,
    ) -> None:
        super().__init__()
        axis = weights.axes.t
        self.whole = whole
        self.waves = Waves(axis, (modes,) * axis.dim if isinstance(modes, int) else tuple(modes), stretch)
        self.phi, self.count = phi, len(self.waves.numbers)
        share = 0.5**0.5 if beside else 1.0  # two maps of equal variance add up to one
        std = gain * share * kernel_std(weights, "c") * 0.5**0.5
        self.kernel = weights.table(2 * self.count, "zdc", std, role=Role(Use.TABLE, inputs="c"))
        self.beside = make_kernel(weights, "zdc", inputs="c", gain=gain * share) if beside else None
        self.bias = weights.field("zd", role=SHIFT) if beside else None

    def read(self, grids: Grids, late: bool = False) -> Sampled:
        """R_k in its two parts, the map beside and its bias."""
        weights = {
            "kernel": Weight(self.kernel, "c", self._parts),
            "beside": Weight(self.beside, "c"),
            "bias": Weight(self.bias),
        }
        return sample(grids, weights, late)

    def place(self, read: Sampled, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Bind the transform to the nodes."""
        transform, (there, back) = self.waves.bind(grids.tokens, whole=self.whole)
        f = Convolving(transform, self.phi)
        return Bound(f, read_late(read.reading), local), WaveOperands(read.weights, there, back)

    def _parts(self, values: Tensor) -> Tensor:
        """[z?, 2w, d, c] → [z?, 2, w, c, d]: the real and the imaginary part of each R_k."""
        return values.unflatten(-3, (2, self.count)).mT
