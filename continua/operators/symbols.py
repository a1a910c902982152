"""The right-hand side of an equation, learned: products of fields behind operators that are functions of the wave."""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import nn

from continua import constants
from continua.axes import Circle, Grids, Points, factors
from continua.config import register
from continua.constants import constant_result
from continua.errors import ConfigError, GridError
from continua.fields import Parametrisation, Role
from continua.fields.role import TABLE
from continua.flow.vectorfield import Bound
from continua.operators.operator import Context, Operator
from continua.settings import Size, Whole
from continua.typing import Args, Float, Tensor


@dataclass(frozen=True)
class Spectrum:
    """The waves |k_i| ≤ modes_i of real fields around circles; along the last direction those with k ≥ 0 are kept."""

    modes: tuple[int, ...]
    periods: tuple[float, ...]

    @constant_result
    def vectors(self) -> tuple[float, ...]:
        """2π k/P of each wave, one after the other."""
        *first, last = self.modes
        lines = [[*range(m + 1), *range(-m, 0)] for m in first]
        numbers = itertools.product(*lines, range(last + 1))
        return tuple(2 * math.pi * k / p for wave in numbers for k, p in zip(wave, self.periods, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """How many waves lie along each direction."""
        return (*(2 * m + 1 for m in self.modes[:-1]), self.modes[-1] + 1)

    @property
    def wave(self) -> float:
        """κ, the wave at which the functions of ``basis`` are about one."""
        return max(1.0, min(self.modes) / 4) * 2 * math.pi / max(self.periods)

    def scaled(self, like: Tensor) -> Float[Tensor, "a w"]:
        """k_a/κ of all waves."""
        k = constants.numbers(self.vectors(), like.device, like.dtype).view(-1, len(self.modes))
        return k.mT / self.wave

    def basis(self, like: Tensor) -> Float[Tensor, "i w"]:
        """φ_i(k) at all waves: those of order one and less, then those of order two."""
        k = self.scaled(like)
        square = k.square().sum(0)
        inverse = torch.where(square > 0, 1 / square.clamp_min(1e-12), 0.0)
        none = torch.zeros_like(square)
        low = torch.stack([torch.complex(none + 1, none), *(torch.complex(none, a) for a in k)])
        pairs = [(a, b) for a in range(len(k)) for b in range(a, len(k))]
        high = torch.stack([torch.complex(-k[a] * k[b], none) for a, b in pairs])
        return torch.cat([low, low * inverse, high, high * inverse])

    @property
    def fine(self) -> tuple[int, ...]:
        """Nodes on which a product of two fields is told apart from its aliases: more than three times the waves."""
        return tuple(quick_length(3 * m + 1) for m in self.modes)

    def analyse(self, fields: Tensor) -> Tensor:
        """Fields [*b, *nodes] to the coefficients of the waves [*b, *waves]."""
        dim = len(self.modes)
        w = torch.fft.rfftn(fields, dim=tuple(range(-dim, 0)), norm="forward")
        for place, m in enumerate(self.modes[:-1]):
            along = place - dim
            w = torch.cat([w.narrow(along, 0, m + 1), w.narrow(along, w.shape[along] - m, m)], along)
        return w[..., : self.modes[-1] + 1]

    def synthesise(self, w: Tensor, nodes: tuple[int, ...]) -> Tensor:
        """Coefficients [*b, *waves] to fields on so many equal nodes."""
        dim = len(self.modes)
        for place, m in enumerate(self.modes[:-1]):
            along = place - dim
            gap = list(w.shape)
            gap[along] = nodes[place] - 2 * m - 1
            low = w.narrow(along, 0, m + 1)
            w = torch.cat([low, w.new_zeros(gap), w.narrow(along, m + 1, m)], along)
        return torch.fft.irfftn(w, s=nodes, dim=tuple(range(-dim, 0)), norm="forward")


def quick_length(least: int) -> int:
    """The next even number without prime factors beyond five."""
    n = least + least % 2
    while True:
        rest = n
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 2


def around_circles(weights: Parametrisation, modes: int | tuple[int, ...]) -> Spectrum:
    """The waves of a domain made of circles."""
    lines = factors(weights.axes.t)
    if not all(isinstance(line, Circle) for line in lines):
        remedy = "Use t=Circle() or a Product of circles, or zoo.function_map."
        raise ConfigError("symbols act around circles", got=weights.axes.t, remedy=remedy)
    each = (modes,) * len(lines) if isinstance(modes, int) else tuple(modes)
    return Spectrum(each, tuple(line.length for line in lines))


def moving_channels(weights: Parametrisation, held: int) -> int:
    """How many channels a state has; the last ``held`` of them stay, at least one moves."""
    channels = weights.axes.d.n if isinstance(weights.axes.d, Points) else None
    if channels is None or held >= channels:
        remedy = "Use d=Points(channels), of which at least one moves."
        raise ConfigError("the state of an equation has counted channels", got=weights.axes.d, remedy=remedy)
    return channels


def lattice_of(grids: Grids, spectrum: Spectrum) -> tuple[int, ...]:
    """The nodes along each direction; refused where they do not show all waves."""
    tokens = grids.tokens
    tokens.require_whole("a product of fields")
    lines = (tokens,) if tokens.lines is None and tokens.nodes.shape[-1] == 1 and tokens.is_uniform else tokens.lines
    modes = spectrum.modes
    if lines is None or any(len(line) <= 2 * m for line, m in zip(lines, modes, strict=True)):
        remedy = f"Use a lattice of more than {2 * max(modes)} nodes a side, or fewer modes."
        raise GridError("symbols need a lattice that shows their waves", got=f"{len(tokens)} nodes", remedy=remedy)
    return tuple(len(line) for line in lines)


@dataclass(frozen=True)
class SymbolOperands:
    """Symbols at the waves: of both factors [j, c, *waves], of what stands before products, of the linear part.

    The last dimension holds real and imaginary parts: what is differentiated through is a real tensor.
    """

    left: Tensor
    right: Tensor
    before: Tensor  # [d, j, *waves]
    linear: Tensor  # [d, c, *waves]


@dataclass(frozen=True)
class Producing:
    """Σ_j P_j[(A_j x)(B_j x)] + L x on a lattice of equal nodes; the last ``held`` channels do not move."""

    spectrum: Spectrum
    nodes: tuple[int, ...]
    held: int

    def __call__(self, z: float, x: Tensor, args: SymbolOperands) -> Tensor:
        """To the waves, through the products on the finer lattice, and back."""
        w = self.spectrum.analyse(x.mT.unflatten(-1, self.nodes))  # [b, c, *waves]
        letters = "klm"[: len(self.nodes)]
        symbols = [torch.view_as_complex(part) for part in (args.left, args.right, args.before, args.linear)]
        left_of, right_of, before, linear = symbols
        mixing = f"bc{letters},jc{letters}->bj{letters}"
        fine = self.spectrum.fine
        left, right = (
            self.spectrum.synthesise(torch.einsum(mixing, w, symbol), fine) for symbol in (left_of, right_of)
        )
        turned = self.spectrum.analyse(left * right)
        slope = torch.einsum(mixing, turned, before) + torch.einsum(mixing, w, linear)
        made = self.spectrum.synthesise(slope, self.nodes).flatten(2).mT
        return made if self.held == 0 else torch.cat([made, torch.zeros_like(x[..., : self.held])], -1)


@register
class SymbolProducts(Operator):
    """F[x] = Σ_j P_j(∂)[ (A_j(∂) x) · (B_j(∂) x) ] + L(∂) x around circles, of waves |k| ≤ ``modes`` in each direction.

    Every operator is a symbol, a learned function of the wave: Σ_i a_i φ_i(k) with φ = 1, ik_a/κ and the same divided
    by |k|²/κ² for products, and −k_a k_b/κ² too for L: derivatives, and those of the inverse Laplacian. Burgers'
    equation and that of fluids in two dimensions are members, and a shifted state has a shifted slope. (A_j x)(t) is
    a gate that depends on content, as the weights of attention do, but at linear cost. ``products`` is the number of j;
    the last ``held`` channels (a force, a coefficient) are read and stay. Products are taken on a lattice fine enough
    for no aliases. P and L are zero at first, so a new model changes nothing.
    Discrete case: on n equal nodes of a circle each symbol is ``irfft(a · rfft(x))``.
    """

    def __init__(
        self, weights: Parametrisation, modes: Size | tuple[Size, ...], products: Size = 4, held: Whole = 0
    ) -> None:
        super().__init__()
        self.spectrum = around_circles(weights, modes)
        channels = moving_channels(weights, held)
        self.held = held
        lines = self.spectrum.modes
        first = 2 * (1 + len(lines))
        second = first + len(lines) * (len(lines) + 1)
        spread = (first * channels) ** -0.5
        self.left = nn.Parameter(spread * torch.randn(products, channels, first))
        self.right = nn.Parameter(spread * torch.randn(products, channels, first))
        self.before = nn.Parameter(torch.zeros(channels - held, products, first))
        self.linear = nn.Parameter(torch.zeros(channels - held, channels, second))

    def parameter_roles(self) -> dict[str, Role | None]:
        """All are amplitudes of symbols."""
        return dict.fromkeys(("left", "right", "before", "linear"), TABLE)

    def read(self, grids: Grids, late: bool = False) -> SymbolOperands:
        """The symbols at the waves."""
        phi = self.spectrum.basis(self.left)

        def symbol(amplitudes: Tensor) -> Tensor:
            made = amplitudes.to(phi) @ phi[: amplitudes.shape[-1]]
            return torch.view_as_real(made.unflatten(-1, self.spectrum.shape))

        return SymbolOperands(symbol(self.left), symbol(self.right), symbol(self.before), symbol(self.linear))

    def place(self, read: SymbolOperands, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Bind to a lattice."""
        return Bound(Producing(self.spectrum, lattice_of(grids, self.spectrum), self.held)), read
