"""Convolution over the domain by a few waves: the operator of Fourier neural operators, against any measure."""

import torch

from continua.axes import Counting, Grid, Points, grid_on
from continua.config import register
from continua.fields import Parametrisation, Role, Use, kernel_std
from continua.fields import kernel as make_kernel
from continua.fields.role import SHIFT
from continua.flow.vectorfield import Bound
from continua.operators.activation import Activation, Identity
from continua.operators.linear import linear
from continua.operators.operator import Context, Operator, weights_of
from continua.operators.waves import Waves
from continua.operators.weights import Grids, Weight, at_depth, local
from continua.typing import Args, Tensor


@register
class SpectralConvolution(Operator):
    """φ( ∫∫ κ(t−s, d, c) x(s, c) dμ(s) dμ(c) + ∫ W(d, c) x(t, c) dμ(c) + b(d) ), κ = Σ_k R_k(d, c) exp(2πi k·(t−s)/P).

    The kernel depends on displacement alone and has few waves, so it costs n·modes operations on any nodes: uniform,
    warped or scattered ones, whose weights are corrected to integrate its waves exactly (``Waves.exact_weights``).
    ``beside`` adds the pointwise map W (and b).
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
    ) -> None:
        super().__init__()
        axis = weights.axes.t
        self.waves = Waves(axis, (modes,) * axis.dim if isinstance(modes, int) else tuple(modes), stretch)
        self.phi, self.count = phi, len(self.waves.numbers)
        share = 0.5**0.5 if beside else 1.0  # two maps of equal variance add up to one
        std = gain * share * kernel_std(weights, "c") * 0.5**0.5
        self.kernel = weights.table(2 * self.count, "zdc", std, role=Role(Use.TABLE, inputs="c"))
        self.beside = make_kernel(weights, "zdc", inputs="c", gain=gain * share) if beside else None
        self.bias = weights.field("zd", role=SHIFT) if beside else None

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Read R_k as real blocks, and bind the transform to the nodes."""
        transform, matrices = self.waves.bind(grids["t"])
        phi, count = self.phi, self.count
        weights = {
            "kernel": Weight(self.kernel, "c", self._blocks, {"n": _rows(2 * count)}),
            "beside": Weight(self.beside, "c"),
            "bias": Weight(self.bias),
        }
        args, reader = weights_of(self, grids, context, weights)

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            w, (there, back) = at_depth(args, z), args["waves"]
            v = transform.analyse(x, there).movedim(2, 0).flatten(2)  # [w, b, 2c]
            mixed = torch.bmm(v, w["kernel"]).unflatten(-1, (2, -1)).movedim(0, 2)  # [b, 2, w, d]
            y = transform.synthesise(mixed, back)
            return phi(y + linear(x, w["beside"], w["bias"]) if "beside" in w else y)

        return Bound(f, reader, local), {**args, "waves": matrices}

    def _blocks(self, values: Tensor) -> Tensor:
        """[z?, 2w, d, c] → [z?, w, 2c, 2d]: multiplication by a complex matrix, in real numbers."""
        real, imaginary = (part.mT for part in values.unflatten(-3, (2, self.count)).unbind(-4))
        return torch.cat([torch.cat([real, imaginary], -1), torch.cat([-imaginary, real], -1)], -2)


def _rows(count: int) -> Grid:
    return grid_on(Points(count), Counting(count))
