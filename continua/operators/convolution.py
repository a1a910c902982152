"""Convolution in real time: a local kernel of the displacement, integrated against the measure of the stamps."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from continua.axes import Grid, Grids
from continua.config import register
from continua.errors import ConfigError, GridError
from continua.fields import Parametrisation
from continua.fields.role import VECTOR
from continua.flow.vectorfield import Bound
from continua.operators.operator import Context, Operands, Operator, local, read_late
from continua.operators.weights import Sampled, Weight, sample
from continua.settings import Degree
from continua.typing import Args, Float, Tensor

RIDGE = 1e-3  # of the window's mass: where a window holds too few stamps, what they cannot tell is told as zero


@dataclass(frozen=True)
class FitOperands(Operands):
    """The coefficients of the polynomials, and the matrices of the fits [*b, t, (j s)]."""

    fits: Tensor


@dataclass(frozen=True)
class Fitting:
    """Σ_jr c_jr a_jr with the coefficients of one depth."""

    count: int

    def __call__(self, z: float, x: Tensor, args: FitOperands) -> Tensor:
        """One product for all kernels."""
        w = args.weights.at(z)
        spread = torch.cat([x * w[str(i)] for i in range(self.count)], -2)  # [b, (j s), d]
        return args.fits @ spread


@register
class Convolution(Operator):
    """(Kx)(t, d) = Σ_jr c_jr(z, d) a_jr(t, d), a_r(t) = argmin_a ∫ g((s−t)/r) (x(s) − Σ_j a_j p_j((s−t)/r))² dμ(s).

    g is a Gaussian window of each of the ``radii``, p_j are Hermite polynomials up to ``degree``: a_0 is the value of
    the field around t on the scale r, a_1 its slope, a_2 its curvature. On equal stamps, far from the ends, this is a
    convolution with a kernel of the displacement; on irregular ones and at the ends it is still the fit, so that a
    slope is a slope however the points lie (up to a small ridge for windows with few points). Nothing depends on a
    number of points.

    Discrete case: on ``Points()`` far from the ends this is a depthwise ``nn.Conv1d``.
    """

    def __init__(
        self, weights: Parametrisation, radii: tuple[float, ...] = (1.0, 2.0), degree: Degree = 2, gain: float = 1.0
    ) -> None:
        super().__init__()
        if not radii or min(radii) <= 0:
            raise ConfigError("a window has a positive radius", got=radii, remedy="Write radii=(1.0, 2.0).")
        self.radii = tuple(radii)
        self.degree = degree
        count = len(self.radii) * (degree + 1)
        std = gain * count**-0.5
        self.kernel = nn.ModuleList(weights.field("zd", std, role=VECTOR) for _ in range(count))  # type: ignore[misc]

    def read(self, grids: Grids, late: bool = False) -> Sampled:
        """The coefficients c."""
        named = {str(i): Weight(field) for i, field in enumerate(self.kernel)}  # type: ignore[arg-type]
        return sample(grids, named, late)

    def place(self, read: Sampled, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Make the matrices of the fits once for all depths."""
        grids.tokens.require_whole(type(self).__name__)
        like = next(self.parameters())
        fits = torch.cat([fit(grids.tokens.to(_exact(like)), r, self.degree) for r in self.radii], -2)
        # [*b, t, (j s)]: one product for all kernels
        operands = FitOperands(read.weights, fits.flatten(-2).to(like))
        return Bound(Fitting(len(self.kernel)), read_late(read.reading), local), operands


def fit(t: Grid, radius: float, degree: int) -> Float[Tensor, "*b t j s"]:
    """The matrices that take values at the stamps to the coefficients of local polynomials around each of them."""
    if t.nodes.shape[-1] != 1:
        got = f"{t.nodes.shape[-1]}-dimensional points"
        remedy = "Use attention with a window there."
        raise GridError("this convolution is along time", got=got, remedy=remedy)
    u = ((t.nodes.mT - t.nodes) / radius).to(t.weights)  # [*b, t, s]
    window = (-0.5 * u * u).exp() * t.weights[..., None, :]
    mass = window.sum(-1, keepdim=True)
    empty = mass <= torch.finfo(u.dtype).tiny  # around an absent point far from all others: its fit is zero
    window = window / mass.masked_fill(empty, 1.0)
    basis = _hermite(u, degree)  # [*b, t, j, s]
    weighted = basis * window[..., None, :]
    ridge = torch.full((degree + 1,), RIDGE, dtype=u.dtype, device=u.device)
    ridge[0] = 0.0  # a constant stays what it is
    gram = weighted @ basis.mT + ridge.diag() + empty[..., None] * torch.eye(degree + 1, dtype=u.dtype, device=u.device)
    made: Tensor = torch.linalg.solve(gram, weighted)
    return made


def _hermite(u: Tensor, degree: int) -> Tensor:
    """He_j(u)/√j!: orthonormal under the Gaussian, so that on many equal stamps the fit is a plain product."""
    found = [torch.ones_like(u), u]
    for j in range(1, degree):
        found.append(u * found[-1] - j * found[-2])
    return torch.stack([h / math.sqrt(math.factorial(j)) for j, h in enumerate(found[: degree + 1])], -2)


def _exact(like: Tensor) -> Any:
    """A tensor in float32 at least: half precision cannot solve."""
    return like.new_empty((), dtype=torch.promote_types(like.dtype, torch.float32))
