"""Penalties: functionals of path or weights that add and scale, ``1e-3 * KineticEnergy() + HeadEntropy()``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import torch

from continua.axes import Axes, Depths, Grids, Sites, coordinates
from continua.config import register
from continua.errors import ConfigError
from continua.fields import Expansion
from continua.flow import Trajectory
from continua.operators import Attention
from continua.settings import Count
from continua.typing import Args, Tensor


@dataclass(frozen=True)
class Penalty:
    """A term of the objective. It speaks of the path (``running``) or of the weights (``of_weights``)."""

    weight: float = field(default=1.0, kw_only=True)
    twice: ClassVar[bool] = False  # whether it takes derivatives of the field itself

    def __rmul__(self, factor: float) -> Any:
        return replace(self, weight=self.weight * factor)

    def __add__(self, other: "Penalty | Penalties") -> "Penalties":
        return Penalties((self,)) + other

    def running(self, z: float, x: Tensor, v: Tensor, seen: "Seen") -> Tensor | None:
        """The running cost of each sample at one depth, or None."""
        return None

    def of_weights(self, model: Any) -> Tensor | None:
        """A functional of the model alone, or None."""
        return None


@dataclass(frozen=True)
class Seen:
    """What a running cost may know of the tokens: which are there, and the measure of d."""

    observed: Tensor | None
    share: Tensor | None
    generator: torch.Generator | None = None

    def mean(self, values: Tensor) -> Tensor:
        """Of values [b, t, d]: the mean over d against its measure, and over the tokens that are there."""
        over_d = values.mean(-1) if self.share is None else (values * self.share.to(values)).sum(-1)
        if self.observed is None:
            return over_d.mean(-1)
        there = self.observed.to(over_d.dtype)
        return (over_d * there).sum(-1) / there.sum(-1).clamp_min(1)


@dataclass(frozen=True)
class Penalties:
    """A sum of penalties."""

    terms: tuple[Penalty, ...] = ()

    def __add__(self, other: "Penalty | Penalties") -> "Penalties":
        return Penalties(self.terms + (other.terms if isinstance(other, Penalties) else (other,)))

    def __rmul__(self, factor: float) -> "Penalties":
        return Penalties(tuple(factor * term for term in self.terms))

    def __iter__(self) -> Iterator[Penalty]:
        return iter(self.terms)

    @property
    def running_terms(self) -> tuple[Penalty, ...]:
        """Those that are integrated along depth."""
        return tuple(term for term in self.terms if type(term).running is not Penalty.running)

    @property
    def sampled_terms(self) -> "tuple[Sampled, ...]":
        """Those of the path that are looked at outside of the solve."""
        return tuple(term for term in self.terms if isinstance(term, Sampled))

    @property
    def integrated(self) -> "Penalties":
        """The same with every sampled integral taken along the whole path."""
        return Penalties(tuple(t.weight * t.term if isinstance(t, Sampled) else t for t in self.terms))

    def cost(self, seen: Seen) -> "Cost | None":
        """The running cost of all terms together, for ``solve``."""
        return Cost(self.running_terms, seen) if self.running_terms else None


def penalties(given: Any) -> Penalties:
    """One penalty, a sum of them, a list, or nothing."""
    if given is None:
        return Penalties()
    if isinstance(given, Penalties):
        return given
    if isinstance(given, Penalty):
        return Penalties((given,))
    if isinstance(given, list | tuple) and all(isinstance(term, Penalty | Penalties) for term in given):
        return sum((penalties(term) for term in given), Penalties())
    raise ConfigError("penalties add and scale", got=given, remedy="Write 1e-3 * KineticEnergy() + HeadEntropy().")


@dataclass(frozen=True)
class Cost:
    """R(z, x, v) = Σ weight · term, one number a sample."""

    terms: tuple[Penalty, ...]
    seen: Seen

    @property
    def twice(self) -> bool:
        """Whether some term takes derivatives itself."""
        return any(term.twice for term in self.terms)

    def __call__(self, z: float, x: Tensor, v: Tensor, args: Args) -> Tensor:
        """Add them up."""
        total = None
        for term in self.terms:
            value = term.running(z, x, v, self.seen)
            if value is not None:
                total = term.weight * value if total is None else total + term.weight * value
        return x.new_zeros(len(x)) if total is None else total


@register
@dataclass(frozen=True)
class KineticEnergy(Penalty):
    """∫ ⟨F[X]²⟩ dz: the mean square of the velocity over d and the tokens. Discrete case: Σ ⟨(x_{l+1} − x_l)²⟩."""

    def running(self, z: float, x: Tensor, v: Tensor, seen: Seen) -> Tensor:
        """⟨v²⟩."""
        return seen.mean(v * v)


@register
@dataclass(frozen=True)
class JacobianNorm(Penalty):
    """∫ ‖∂F/∂X‖²_F / (t·d) dz, estimated without bias by random directions: E‖Jᵀε‖² (Hutchinson 1990)."""

    directions: Count = 1
    twice: ClassVar[bool] = True

    def running(self, z: float, x: Tensor, v: Tensor, seen: Seen) -> Tensor:
        """‖Jᵀε‖² / (t·d), averaged over directions."""
        total = x.new_zeros(len(x))
        for _ in range(self.directions):
            direction = torch.randn(v.shape, generator=seen.generator, dtype=v.dtype, device=v.device)
            (pulled,) = torch.autograd.grad(v, x, direction, create_graph=True, retain_graph=True)
            total = total + seen.mean(pulled * pulled)
        return total / self.directions


@register
@dataclass(frozen=True)
class SpectralNorm(Penalty):
    """∫ ‖∂F/∂X‖₂² dz of each sample, estimated by ``iterations`` of the power method on JᵀJ."""

    iterations: Count = 3
    twice: ClassVar[bool] = True

    def running(self, z: float, x: Tensor, v: Tensor, seen: Seen) -> Tensor:
        """‖Jᵀu‖² for the left singular vector u that the iteration settles on."""
        u = torch.randn(v.shape, generator=seen.generator, dtype=v.dtype, device=v.device)
        dummy = torch.zeros_like(v, requires_grad=True)
        for _ in range(self.iterations):
            u = _unit(u)
            (back,) = torch.autograd.grad(v, x, u, create_graph=False, retain_graph=True)
            (adjoint,) = torch.autograd.grad(v, x, dummy, create_graph=True, retain_graph=True)
            (u,) = torch.autograd.grad(adjoint, dummy, _unit(back), retain_graph=True)  # J·(Jᵀu): the double-vjp trick
        u = _unit(u.detach())
        (pulled,) = torch.autograd.grad(v, x, u, create_graph=True, retain_graph=True)
        return pulled.flatten(1).square().sum(1)


def _unit(u: Tensor) -> Tensor:
    norm = u.flatten(1).norm(dim=1).clamp_min(torch.finfo(u.dtype).tiny)
    return u / norm.view(-1, *[1] * (u.dim() - 1))


@register
@dataclass(frozen=True)
class Sampled(Penalty):
    """∫ R dz of a running ``term`` by its values at ``count`` random nodes of the path, outside of the solve.

    Node i is drawn with the weight of the trapezoidal rule, so its expectation is that rule's sum. The solve does not
    know of it: whatever adjoint was chosen stays in use, where a term that takes derivatives itself would make every
    evaluation of the solve keep its whole graph; and the term is computed ``count`` times, not once an evaluation.
    """

    term: Penalty
    count: int = 1

    def __post_init__(self) -> None:
        if type(self.term).running is Penalty.running:
            remedy = "Give it as it is; only running costs are sampled, for instance Sampled(SpectralNorm())."
            raise ConfigError("this penalty is none of the path", got=self.term, remedy=remedy)
        if self.count < 1:
            raise ConfigError("a sample has at least one node", got=self.count, remedy="Use count ≥ 1.")

    @property
    def twice(self) -> bool:  # type: ignore[override]
        """Whether the term takes derivatives itself."""
        return self.term.twice

    def along(self, path: Trajectory, velocity: Callable[[float, Tensor], Tensor], seen: Seen) -> Tensor:
        """The estimate for each sample of a path that was kept at its steps."""
        gaps = torch.tensor(path.z, dtype=torch.float64).diff()
        ends = torch.cat([gaps[:1] / 2, (gaps[1:] + gaps[:-1]) / 2, gaps[-1:] / 2]).cumsum(0)
        device = None if seen.generator is None else seen.generator.device
        drawn = torch.rand(self.count, generator=seen.generator, dtype=torch.float64, device=device).cpu()
        strata = (torch.arange(self.count) + drawn) / self.count * ends[-1]
        total = path.final.new_zeros(len(path.final))
        for i in torch.searchsorted(ends, strata, right=True).clamp_max(len(ends) - 1).tolist():
            x = path.x[i] if path.x[i].requires_grad else path.x[i].detach().requires_grad_()
            value = self.term.running(path.z[i], x, velocity(path.z[i], x), seen)
            total = total if value is None else total + self.term.weight * value
        return float(ends[-1]) / self.count * total


@register
@dataclass(frozen=True)
class HeadEntropy(Penalty):
    """+∫∫ ρ log ρ dμ(h)/mass(h) dz, averaged over depth: smallest (zero) for ρ = 1, so minimising it spreads heads."""

    def of_weights(self, model: Any) -> Tensor | None:
        """The mean over attention operators that have a density."""
        found = []
        for flow in model.flows:
            grids = native_grids(flow)
            for operator in flow.modules():
                if isinstance(operator, Attention) and (rho := operator.rho(grids)) is not None:
                    share = (grids.h.weights / grids.h.mass).to(rho)
                    found.append((torch.special.xlogy(rho, rho) * share).sum(-1).mean())
        return torch.stack(found).mean() if found else None


@register
@dataclass(frozen=True)
class Smoothness(Penalty):
    """The mean square of ∂θ/∂axis over all kernels, by differences between neighbouring native nodes."""

    axis: str = "z"

    def __post_init__(self) -> None:
        if self.axis not in ("z", "d", "h", "m", "e"):
            raise ConfigError("weights are functions of z, d, h, e and m", got=self.axis, remedy="Choose one of them.")

    def of_weights(self, model: Any) -> Tensor | None:
        """The mean over the fields that have this axis."""
        found = []
        for flow in model.flows:
            grids = native_grids(flow)
            kernels = [field for field in flow.block.modules() if isinstance(field, Expansion)]
            slopes = [self._of(kernel, grids, flow.axes) for kernel in kernels if self.axis in kernel.letters]
            found += [slope for slope in slopes if slope is not None]
        return torch.stack(found).mean() if found else None

    def _of(self, kernel: Expansion, grids: Grids, axes: Axes) -> Tensor | None:
        """The mean square slope of one field; None where it has one node along the axis."""
        if kernel.axes[self.axis] != axes[self.axis]:  # heads that share keys: their own few
            return None
        where = cast(Sites, grids.z if self.axis == "z" else grids[self.axis])
        if len(where) < 2:
            return None
        own = [k for k in kernel.letters if k not in ("z", "n") and kernel.axes[k] == axes[k]]
        read: dict[str, Sites] = {letter: grids[letter] for letter in own}
        if "z" in kernel.letters:
            read["z"] = cast(Sites, grids.z)
        values = kernel.on(**read)
        place = kernel.letters.index(self.axis)
        gaps = coordinates(where, values)[:, 0].diff().view(-1, *[1] * (values.dim() - 1 - place))
        return (values.diff(dim=place) / gaps).square().mean()


@register
@dataclass(frozen=True)
class SquaredWeights(Penalty):
    """‖θ‖², the β‖θ‖² of the objective; decoupled decay by role is the optimiser's (``AdamW.decay``)."""

    def of_weights(self, model: Any) -> Tensor:
        """The sum of squares of all parameters."""
        return torch.stack([p.square().sum() for p in model.parameters()]).sum()


def native_grids(flow: Any) -> Grids:
    """The native grids of a Transformer, with all depths at which a part is read."""
    structure = flow.structure()
    where = [part.nodes for part in structure.depths if part is not None]
    return replace(structure.grids, z=Depths(tuple(sorted({z for nodes in where for z in nodes}))))
