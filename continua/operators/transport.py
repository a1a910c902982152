"""The right-hand side of an equation, learned, that cannot make a state grow: transport, waves, damping and sources."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import softplus

from continua import constants
from continua.axes import Grids
from continua.config import register
from continua.fields import Parametrisation, Role
from continua.fields.role import TABLE
from continua.flow.vectorfield import Bound
from continua.operators.operator import Context, Operator
from continua.operators.symbols import Spectrum, around_circles, lattice_of, moving_channels
from continua.settings import Size, Whole
from continua.typing import Args, Float, Tensor

SLIGHT = -3.0  # softplus of it, 0.05, is the first damping


@dataclass(frozen=True)
class TransportOperands:
    """Symbols at the waves, real and imaginary parts in the last dimension.

    ``velocity`` [a, c, *waves] of all channels, ``slope`` [a, *waves] is that of ∂/∂t_a, ``linear`` [d, c, *waves].
    """

    velocity: Tensor
    slope: Tensor
    linear: Tensor


@dataclass(frozen=True)
class Transporting:
    """−½[v·∇x + ∇·(v x)] + L x on a lattice of equal nodes; the last ``held`` channels do not move."""

    spectrum: Spectrum
    nodes: tuple[int, ...]
    held: int

    def __call__(self, z: float, x: Tensor, args: TransportOperands) -> Tensor:
        """To the waves, through the products on the finer lattice, and back."""
        w = self.spectrum.analyse(x.mT.unflatten(-1, self.nodes))  # [b, c, *waves]
        letters = "klm"[: len(self.nodes)]
        velocity, slope, linear = (torch.view_as_complex(part) for part in (args.velocity, args.slope, args.linear))
        own = w[:, : w.shape[1] - self.held]  # [b, d, *waves]
        fine = self.spectrum.fine
        v = self.spectrum.synthesise(torch.einsum(f"bc{letters},ac{letters}->ba{letters}", w, velocity), fine)
        u = self.spectrum.synthesise(own, fine)  # [b, d, *fine]
        gradient = self.spectrum.synthesise(own[:, None] * slope[:, None], fine)  # [b, a, d, *fine]
        along = self.spectrum.analyse((v[:, :, None] * gradient).sum(1))
        flux = self.spectrum.analyse(v[:, :, None] * u[:, None])  # [b, a, d, *waves]
        moved = -0.5 * (along + (flux * slope[:, None]).sum(1))
        moved = moved + torch.einsum(f"bc{letters},dc{letters}->bd{letters}", w, linear)
        made = self.spectrum.synthesise(moved, self.nodes).flatten(2).mT
        return made if self.held == 0 else torch.cat([made, torch.zeros_like(x[..., : self.held])], -1)


@register
class SymbolTransport(Operator):
    """F[x] = −½[v·∇x + ∇·(v x)] + S(∂)x − R(∂)x + B(∂)y around circles, v = A(∂)(x, y), of waves |k| ≤ ``modes``.

    ∫ x·F = −∫ x·R(∂)x + ∫ x·B(∂)y for every v, since ½[v·∇ + ∇·v] is skew, and so is S: its imaginary symbols are
    symmetric in the channels, its real ones antisymmetric. R is ρ₀ + Σ_a ρ_a k_a²/κ² + ρ₄ |k|⁴/κ²K², all ρ > 0, by
    channel; K is the greatest |k|. So no state grows unless y feeds it, and with a steady y it stays bounded, if steps
    in time are short enough for the fastest wave. Symbols A, B and S are sums of those of ``SymbolProducts``. Fluids in
    two dimensions and Burgers' equation are members; a reaction that feeds itself is none.
    y, the last ``held`` channels (a force, a coefficient), is read and stays. At first nothing moves, and R is slight.
    Discrete case: on n equal nodes of a circle each symbol is ``irfft(a · rfft(x))``.
    """

    def __init__(self, weights: Parametrisation, modes: Size | tuple[Size, ...], held: Whole = 0) -> None:
        super().__init__()
        self.spectrum = around_circles(weights, modes)
        channels = moving_channels(weights, held)
        self.held = held
        directions = len(self.spectrum.modes)
        first = 2 * (1 + directions)
        second = first + directions * (directions + 1)
        own = channels - held
        self.velocity = nn.Parameter(torch.zeros(directions, channels, first))
        self.skew = nn.Parameter(torch.zeros(own, own, first))
        self.damping = nn.Parameter(torch.full((own, 2 + directions), SLIGHT))
        self.source = nn.Parameter(torch.zeros(own, held, second)) if held else None

    def parameter_roles(self) -> dict[str, Role | None]:
        """All are amplitudes of symbols."""
        return dict.fromkeys((name for name, _ in self.named_parameters()), TABLE)

    def read(self, grids: Grids, late: bool = False) -> TransportOperands:
        """The symbols at the waves."""
        phi = self.spectrum.basis(self.velocity)  # [i, w]
        first = self.velocity.shape[-1]
        k = self.spectrum.scaled(self.velocity)
        linear = self._skew() @ phi[:first] - torch.diag_embed(self._damped(k).mT).permute(1, 2, 0)
        if self.source is not None:
            linear = torch.cat([linear, self.source.to(phi) @ phi], 1)
        symbols = (self.velocity.to(phi) @ phi[:first], torch.complex(torch.zeros_like(k), k), linear)
        return TransportOperands(*(torch.view_as_real(s.unflatten(-1, self.spectrum.shape)) for s in symbols))

    def _skew(self) -> Float[Tensor, "d c i"]:
        """Amplitudes of an operator that is minus its own adjoint, as complex numbers."""
        turned = self.skew.transpose(0, 1)
        signs = 2 * (-1.0, *(1.0 for _ in self.spectrum.modes))  # of 1, ik_a and these by |k|²
        skew = 0.5 * (self.skew + constants.numbers(signs, self.skew.device, self.skew.dtype) * turned)
        return torch.complex(skew, torch.zeros_like(skew))

    def _damped(self, k: Float[Tensor, "a w"]) -> Float[Tensor, "d w"]:
        """R at the waves."""
        squares = k.square()
        all_ = squares.sum(0)
        powers = torch.stack([torch.ones_like(all_), *squares, all_.square() / all_.amax()])
        return softplus(self.damping) @ powers

    def place(self, read: TransportOperands, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Bind to a lattice."""
        return Bound(Transporting(self.spectrum, lattice_of(grids, self.spectrum), self.held)), read
