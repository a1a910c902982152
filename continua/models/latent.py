"""A latent grid: functions observed anywhere are laid on the model's own nodes, and answered anywhere."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from continua import constants
from continua.axes import Axis, Circle, Grid, Grids, Rule, Samples, exact, factor_rules, factors, grid_on
from continua.axes.grid import check_measure
from continua.checks import looking
from continua.config import register
from continua.errors import ConfigError, GridError, ShapeError
from continua.fields import Cubic, Field, Nodal, Parametrisation, Trigonometric
from continua.models.batch import Batch
from continua.models.embed import Channels, Embedding, Observations
from continua.models.readout import Readout, ReadoutWeights
from continua.models.reconstruct import WavePrior, applied, measured
from continua.operators import Operator, Waves
from continua.settings import Positive, Size
from continua.typing import Float, Tensor

NEAREST = 16  # observations that a node of the latent grid is told of, where functions have jumps
KEPT = 16  # grids whose way to the latent one is remembered


@register
class Latent(Embedding):
    """Values at any nodes → values on the grid of ``rule``, then ``inner``.

    The function is taken as Σ_k c_k exp(2πi k·t/P) with independent c_k of variance ``spectrum``_k; its conditional
    mean given the observations is read on the latent grid (a Wiener filter). ``prior`` sets the spectrum from functions
    on the latent grid. ``sharp`` functions have jumps, which waves would smear: each latent node takes what its
    nearest observations say (``kriged``). On the latent grid itself nothing is done. Where the domain has edges,
    ``inner`` reads the coordinates along these directions as further channels.
    """

    def __init__(
        self,
        inner: Observations | Channels,
        weights: Parametrisation,
        rule: Rule,
        modes: int | tuple[int, ...],
        sharp: bool = False,
    ) -> None:
        super().__init__()
        axis = weights.axes.t
        self.inner = inner
        self.rule = rule
        self.axis = axis
        self.sharp = sharp
        self.waves = Waves(axis, (modes,) * axis.dim if isinstance(modes, int) else tuple(modes), stretch=2.0)
        numbers = torch.tensor(self.waves.numbers, dtype=torch.float64)
        self._maps: dict[tuple[int, int, str], tuple[Tensor, ...]] = {}
        self.register_buffer("spectrum", (1 + numbers.square().sum(-1)).pow(-2.0).float())

    @property
    def channels(self) -> int:
        """How many values a point has."""
        return self.inner.channels - len(edged(self.axis))

    @property
    def tied_table(self) -> Field | None:
        """Of the inner embedding."""
        return self.inner.table

    @property
    def grid(self) -> Grid:
        """The latent grid."""
        return grid_on(self.axis, self.rule)

    def grid_like(self, like: Tensor) -> Grid:
        """The latent grid on the device of ``like``."""
        return grid_on(self.axis, self.rule, like)

    def read(self, grids: Grids) -> Any:
        """The tables of the inner embedding."""
        return self.inner.read(grids)

    def forward(self, batch: Batch, grids: Grids, read: Any = None) -> Tensor:
        """Embed what was laid on the latent grid."""
        edges = edged(self.axis)
        if edges and isinstance(batch.values, Tensor):
            mean, spread = self.inner.scale
            t = grids.tokens
            own = torch.stack([t.nodes[:, i] for i in edges], -1).to(batch.values)
            whole = own if t.shard is None else t.shard.before.nodes[:, list(edges)].to(own)
            own = mean + spread * (own - whole.mean(0)) / whole.std(0)  # as wide as the values
            batch = replace(batch, values=torch.cat([batch.values, own.expand(batch.values.shape[0], -1, -1)], -1))
        x: Tensor = self.inner(batch, grids, read)
        return x

    @property
    def shown(self) -> tuple[int, ...]:
        """How many waves the latent grid tells apart along each direction."""
        lines = zip(factors(self.axis), factor_rules(self.rule), strict=True)
        return tuple(resolved(line, rule.n) for line, rule in lines)

    @property
    def tells_all(self) -> bool:
        """Whether the waves are all that the latent grid tells apart, so that on it nothing is left out."""
        return all(m >= most for m, most in zip(self.waves.modes, self.shown, strict=True))

    @property
    def space(self) -> WavePrior:
        """The functions that were learned from, as a prior."""
        return WavePrior(self.waves, self.spectrum, self.shown)  # type: ignore[arg-type]

    @torch.no_grad()
    def prior(self, values: Float[Tensor, "b n c"], grid: Grid | None = None) -> None:
        """Take the spectrum from functions on a lattice, the latent grid unless told (``measured``)."""
        grid = self.grid_like(values) if grid is None else grid.to(values)
        shape = (grid.count,) if grid.lines is None else tuple(len(line) for line in grid.lines)
        transform, (there, _) = self.waves.bind(grid)
        power = transform.analyse(values, there).square().sum(1).mean((0, 2))
        self.spectrum.copy_(measured(self.waves, power, shape))  # type: ignore[operator]

    def lay(self, batch: Batch) -> Batch:
        """Bring the observations to the latent grid, and ask where they were made unless told otherwise."""
        values = batch.values
        if not isinstance(values, Tensor) or values.dim() != 3:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError("functions need shape [b, n, channels]", got=got, remedy="Give their values at points.")
        seen = self._seen(batch, values)
        own = self.grid_like(values)
        same = seen is None or (seen.key is not None and seen.key == own.key and not seen.has_gaps)
        if same and (self.sharp or self.tells_all):
            return replace(batch, grid=own, times=None, observed=None)
        seen = own if seen is None else seen
        if seen.has_gaps:
            values = values.masked_fill(~seen.observed[..., None], 0.0)
        laid = self.kriged(values, seen) if self.sharp else self.reconstruct(values, seen.to(values))
        asked = seen if batch.asked is None else batch.asked
        return replace(batch, values=laid, grid=own, times=None, observed=None, asked=asked)

    def seen(self, batch: Batch) -> Grid:
        """Where the observations of a batch were made."""
        if not isinstance(batch.values, Tensor):
            got = type(batch.values).__name__
            raise ShapeError("functions need shape [b, n, channels]", got=got, remedy="Give their values at points.")
        found = self._seen(batch, batch.values)
        return self.grid_like(batch.values) if found is None else found

    def _seen(self, batch: Batch, values: Tensor) -> Grid | None:
        """Where the observations were made; None where nothing is said: on the latent grid."""
        grid = batch.grid
        if grid is not None:
            check_measure(grid)
        if grid is None and batch.times is not None:
            stamps = batch.times if self.axis.dim > 1 or batch.times.shape[-1] == 1 else batch.times[..., None]
            inside(self.axis, stamps)
            stamps = exact(stamps, values) if self.axis.dim == 1 else stamps.to(values)
            grid = Samples().on(self.axis, stamps, batch.observed).to(values)
        elif grid is not None and batch.observed is not None:
            grid = grid.only(batch.observed)
        count = self.rule.n if grid is None else grid.count
        if count != values.shape[1]:
            remedy = "Give one value for each point, and the points with them."
            raise ShapeError(f"{count} points need as many values", got=values.shape[1], remedy=remedy)
        return grid

    def kriged(self, values: Float[Tensor, "b n c"], seen: Grid) -> Float[Tensor, "b m c"]:
        """E[u(latent) | u at the nearest nodes] of a function whose variance of u(t) − u(s) is |t − s|.

        Weights solve [[−|s_i − s_j|, 1], [1, 0]] (w, λ) = (−|t − s_i|, 1) (ordinary kriging): they sum to one, they are
        exact at a node, and along a line they are linear interpolation. No parameter, and linear cost.
        """
        near, rows = self._apart(self._exact_nodes(seen), seen.nodes.double(), seen)
        close = [x[..., None, :].expand(*rows.shape[:-1], -1).gather(-1, rows) for x in seen.nodes.double().unbind(-1)]
        between_them = self._length([x[..., :, None] - x[..., None, :] for x in close])
        count, twins = rows.shape[-1], 1e-9 * near.mean().clamp_min(1e-9)  # equal points share their weight
        system = pad(
            twins * torch.eye(count, dtype=near.dtype, device=near.device) - between_them, (0, 1, 0, 1), value=1.0
        )
        corner = torch.zeros(count + 1, dtype=near.dtype, device=near.device)
        corner = torch.cat([corner[:-1], corner[:1] + 1.0])
        system = system - corner[:, None] * corner
        right = pad(-near, (0, 1), value=1.0)[..., None]
        weights = torch.linalg.solve(system, right)[..., :count, 0].to(values)
        places = rows.expand(len(values), -1, -1).flatten(1)[..., None].expand(-1, -1, values.shape[-1])
        return (values.gather(1, places).unflatten(1, rows.shape[-2:]) * weights[..., None]).sum(-2)

    def _exact_nodes(self, like: Grid) -> Tensor:
        """The nodes of the latent grid in float64, on the device of another grid."""
        return grid_on(self.axis, self.rule, like.nodes.double()).nodes

    def _apart(self, own: Tensor, nodes: Tensor, seen: Grid) -> tuple[Tensor, Tensor]:
        """Distances [.., m, k] to the nearest observed nodes, and which they are."""
        gaps = [own[:, i : i + 1] - nodes[..., i][..., None, :] for i in range(nodes.shape[-1])]
        far = torch.where(seen.observed[..., None, :], self._length(gaps), torch.inf)
        many = min(NEAREST, seen.count)
        if seen.has_gaps:
            many = min(NEAREST, int(seen.observed.sum(-1).min()))
        found = far.topk(many, dim=-1, largest=False)
        return found.values, found.indices

    def _length(self, gaps: list[Tensor]) -> Tensor:
        """|gap|, around circles too."""
        square = torch.zeros_like(gaps[0])
        for gap, line in zip(gaps, factors(self.axis), strict=True):
            size = gap.abs()
            square = square + (torch.minimum(size, line.length - size) if isinstance(line, Circle) else size).square()
        return square.sqrt()

    def reconstruct(self, values: Float[Tensor, "b n c"], seen: Grid) -> Float[Tensor, "b m c"]:
        """E[u(latent) | u(nodes)] under the spectrum (``WavePrior``); grids with a key are solved for once."""
        shape = (seen.count,) if seen.lines is None else tuple(len(line) for line in seen.lines)
        own = grid_on(self.axis, self.rule, seen.nodes.double())
        prior = self.space
        if seen.key is None or torch.compiler.is_compiling():
            return applied(prior.maps(seen, own), values, shape)
        key = (seen.key, self.spectrum._version, str(values.device))
        if key not in self._maps:
            if len(self._maps) >= KEPT:
                self._maps.clear()
            self._maps[key] = prior.maps(seen, own)
        return applied(self._maps[key], values, shape)


@register
class AskedReadout(Readout):
    """A readout at the points that are asked for: the state is read there first, the head is pointwise.

    Between the nodes of the latent grid the state is a trigonometric polynomial along circles, a cubic spline along
    intervals; with ``smooth`` the answer is: nothing was learned of a state between the nodes of the training, and the
    head may bend it there.
    """

    def __init__(
        self,
        weights: Parametrisation,
        rule: Rule,
        out: Size,
        before: tuple[Operator, ...] = (),
        scale: float = 1.0,
        smooth: bool = False,
    ) -> None:
        super().__init__(weights, out, before, bias=True, scale=scale)
        self.axis = weights.axes.t
        self.rule = rule
        self.smooth = smooth

    def forward(self, x: Tensor, grids: Grids, table: Any, read: ReadoutWeights | None = None) -> Tensor:
        """Move to the asked points, then answer."""
        if grids.asked is None:
            return super().forward(x, grids, table, read)
        grids.tokens.require_whole("an answer elsewhere")
        way = between(self.axis, self.rule, grids.asked.nodes).to(x)
        if self.smooth:
            return way @ super().forward(x, replace(grids, asked=None), table, read)
        return super().forward(way @ x, grids.with_tokens(grids.asked), table, read)


@register
class ChannelReadout(nn.Module):
    """y(t, i) = s_i X(t, i) of the first channels, at the points that are asked for (see ``AskedReadout``)."""

    answers_each_token = True

    def __init__(self, axis: Axis, rule: Rule, spreads: tuple[Positive, ...]) -> None:
        super().__init__()
        self.axis = axis
        self.rule = rule
        self.spreads = spreads

    @property
    def out(self) -> Size:
        """How many channels are answered."""
        return len(self.spreads)

    def read(self, grids: Grids, table: Any) -> None:
        """Nothing is stored."""

    def forward(self, x: Tensor, grids: Grids, table: Any, read: None = None) -> Tensor:
        """Move to the asked points, then multiply."""
        answer = x[..., : self.out] * constants.numbers(self.spreads, x.device, x.dtype)
        if grids.asked is None:
            return answer
        return between(self.axis, self.rule, grids.asked.nodes).to(x) @ answer


def between(axis: Axis, rule: Rule, nodes: Float[Tensor, "*b n k"]) -> Float[Tensor, "*b n m"]:
    """The matrix that reads a function on the grid of ``rule`` at other nodes."""
    lines, rules = factors(axis), factor_rules(rule)
    if len(lines) != len(rules):
        raise ConfigError("a latent grid needs a rule for each direction", got=rule, remedy="Use ProductRule((…)).")
    made: Tensor | None = None
    for i, (line, each) in enumerate(zip(lines, rules, strict=True)):
        basis = Nodal(each, Trigonometric() if isinstance(line, Circle) else Cubic())
        part = basis.matrix(line, nodes[..., i : i + 1].double())
        made = part if made is None else (made[..., :, None] * part[..., None, :]).flatten(-2)
    if made is None:
        raise ConfigError("a domain has at least one direction", got=axis, remedy="Use Circle().")
    return made


def resolved(line: Axis, nodes: int) -> int:
    """How many waves so many nodes tell apart: of double period along an interval."""
    return max(1, nodes // 2 if isinstance(line, Circle) else nodes)


def edged(axis: Axis) -> tuple[int, ...]:
    """The directions in which a domain has edges."""
    return tuple(i for i, line in enumerate(factors(axis)) if not isinstance(line, Circle))


def inside(axis: Axis, nodes: Float[Tensor, "*b n k"]) -> None:
    """Refuse points outside the domain; a circle has no outside."""
    lines = factors(axis)
    if nodes.shape[-1] != len(lines):
        remedy = f"Give points of shape [n, {len(lines)}]."
        raise GridError(f"the domain has dimension {len(lines)}", got=list(nodes.shape), remedy=remedy)
    for i, line in enumerate(lines):
        if isinstance(line, Circle):
            continue
        off = (nodes[..., i] < line.start - 1e-9) | (nodes[..., i] > line.end + 1e-9)
        if looking() and bool(off.any()):
            worst = nodes[..., i][off][0].item()
            remedy = f"Coordinate {i} runs from {line.start:g} to {line.end:g}: rescale the points, or leave them out."
            raise GridError("points must lie in the domain", got=f"{worst:g}", remedy=remedy)
