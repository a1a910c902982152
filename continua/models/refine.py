"""Refinement studies: refine one axis at a time and measure how fast the answer settles."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from continua.axes import Axes, Axis, Discretisation, GaussLegendre, Interval, Samples
from continua.fields import ByBasis, Legendre
from continua.flow import Fixed, LieTrotter, Solver
from continua.models.batch import Batch
from continua.models.build import pre_norm
from continua.models.embed import Observations
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import Attention, LayerNorm, Mask, Pointwise, Tanh
from continua.typing import Letter, Tensor

WIDTH = 24  # native Gauss nodes of each width: spectral, so that the refined axis is the only error left
FLOOR = 1e-12  # below this, rounding hides the slope


@dataclass(frozen=True)
class Refinement:
    """Errors of one axis on growing grids, against the finest one."""

    letter: Letter
    name: str
    declared: float
    sizes: tuple[int, ...]
    errors: tuple[float, ...]

    @property
    def slope(self) -> float:
        """The power p in error ≈ C n^(−p), fitted over all sizes; ``inf`` where the errors reach rounding at once."""
        points = [(math.log(n), math.log(e)) for n, e in zip(self.sizes, self.errors, strict=True) if e > FLOOR]
        if len(points) < 3:
            return math.inf
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        top = sum((x - mean_x) * (y - mean_y) for x, y in points)
        return -top / sum((x - mean_x) ** 2 for x, _ in points)


def smooth_model(t: Axis, mask: Mask | None = None, channels: int = 2, seed: int = 0) -> Transformer:
    """A small Transformer with smooth fields on every axis and mass one: a few polynomials along each.

    Its answer is one number for each channel, an integral over t and d, so answers on any two grids can be compared.
    """
    unit = Interval(mass=1.0)
    axes = Axes(t=t, d=unit, h=unit, e=unit, m=unit, z=Interval(0.0, 1.0))
    weights = ByBasis(axes, {**{letter: Legendre(4) for letter in "dhem"}, "z": Legendre(3)})
    fixed = weights.autonomous()
    block = pre_norm((Attention(weights, mask=mask), Pointwise(weights, Tanh())), lambda: LayerNorm(weights))
    native = Discretisation(**{k: GaussLegendre(WIDTH) for k in "dhem"}, z=Fixed(2, LieTrotter()))
    readout = Readout(fixed, channels, before=(LayerNorm(fixed),), pool=True)
    model = Transformer(axes, native, Observations(fixed, channels), block, readout).double()
    _draw_smooth(model, torch.Generator().manual_seed(seed))
    return model


@torch.no_grad()
def _draw_smooth(model: Transformer, generator: torch.Generator) -> None:
    """Random coefficients that fall off with the degree along every axis, norms around one."""
    for name, parameter in model.named_parameters():
        falling = torch.ones((), dtype=torch.float64)
        for size in parameter.shape:
            falling = falling[..., None] / (1.0 + torch.arange(size))
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_((0.2 if ".w1." in name else 0.6) * falling * noise)
        if name.endswith("scale.coefficients"):
            parameter[(0,) * parameter.dim()] += 1.0
        if name == "embed.bias.coefficients":  # keeps the norms of all tokens well away from zero, where they bend
            parameter.copy_(2.0 * falling.expand_as(parameter))


def smooth_input(nodes: Tensor) -> Tensor:
    """Two smooth, non-periodic functions of a point in 1-D, 2-D or 3-D."""
    along = nodes @ (1.0 / torch.arange(1.0, nodes.shape[-1] + 1, dtype=nodes.dtype, device=nodes.device))
    values = torch.stack([torch.sin(2 * along + 0.5), torch.exp(-along) * (1 + along)], -1)
    return values if values.dim() == 3 else values[None]


def refine_width(model: Transformer, letter: Letter, rules: Sequence[Any], batch: Batch, t: Any) -> Refinement:
    """Refine d, h, e or m with ``rules`` of growing size; the native Gauss grid is the reference."""
    native = model.native.replace(t=t)  # named in full: at(d=…) alone would scale m along
    exact = model(batch, at=native)
    errors = [_distance(model(batch, at=native.replace(**{letter: rule})), exact) for rule in rules]
    return _report(letter, rules, errors)


def refine_time(model: Transformer, rules: Sequence[Any], exact: Tensor, batch: Batch) -> Refinement:
    """Refine t with ``rules`` of growing size against a given answer."""
    return _report("t", rules, [_distance(model(batch, at=Discretisation(t=rule)), exact) for rule in rules])


def refine_samples(
    model: Transformer,
    stamps: Callable[[int], Tensor],
    sizes: Sequence[int],
    exact: Tensor,
    at: Discretisation | None = None,
) -> Refinement:
    """Refine irregular nodes: ``stamps(n)`` returns one draw [n, …] or many [draws, n, …]; errors are means."""
    errors = [_distance(model(Batch(smooth_input, times=stamps(n)), at=at), exact) for n in sizes]
    return Refinement("t", "Samples", Samples.order, tuple(sizes), tuple(errors))


def refine_depth(model: Transformer, solver: Solver, steps: Sequence[int], batch: Batch, t: Any) -> Refinement:
    """Refine z: the same solver with growing numbers of steps, against eight times the finest."""
    exact = model(batch, at=Discretisation(t=t, z=Fixed(8 * max(steps), solver)))
    errors = [_distance(model(batch, at=Discretisation(t=t, z=Fixed(n, solver))), exact) for n in steps]
    return Refinement("z", str(solver), float(solver.order), tuple(steps), tuple(errors))


def _distance(answer: Tensor, exact: Tensor) -> float:
    """Mean over draws of the largest difference."""
    return (answer - exact).abs().amax(-1).mean().item()


def _report(letter: Letter, rules: Sequence[Any], errors: list[float]) -> Refinement:
    return Refinement(letter, type(rules[0]).__name__, rules[0].order, tuple(r.n for r in rules), tuple(errors))
