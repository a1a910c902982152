"""The continuous Transformer: where operators meet solvers."""

from bisect import bisect_right
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from continua.axes import Axes, Discretisation, Grid, at
from continua.config import register
from continua.errors import ConfigError, ShapeError
from continua.fields.field import unchanged
from continua.flow import (
    Adaptive,
    Adjoint,
    Direct,
    Fixed,
    Flow,
    LieTrotter,
    Projection,
    SaveAt,
    Solver,
    Sum,
    Trajectory,
    Tsit5,
    depths,
    solve,
)
from continua.flow.vectorfield import Cost, read_at
from continua.models.bank import Bank
from continua.models.batch import Batch, place
from continua.models.build import continuous_parts
from continua.models.embed import START
from continua.models.generate import generate
from continua.models.store import save
from continua.operators import Context, Grids, Parts, depth_grid
from continua.operators.calibration import FINEST
from continua.typing import Args, Callable, Tensor


@register
class Transformer(nn.Module):
    """∂X/∂z = γX + A[X] + F[X] from X(0) = embed(data) to X(Z), then a readout.

    ``block`` holds the parts of the field, ``native`` the discretisation the model was made for. The grid is chosen
    at the call: ``model(batch)`` uses the native one, ``model.at(d=64, h=2, z=3)(batch)`` another. ``bank`` adds
    memory slots to what cross-attention sees. ``model.adjoint = Checkpoint(4)`` changes how gradients are computed,
    ``model.check = False`` does not look for NaN, ``model.generator`` draws dropout: they are no part of what the
    model is and are not saved.

    Discrete case: counting axes, nodal weights and unit ``LieTrotter(Euler())`` steps are GPT-2, BERT and their kin.
    """

    def __init__(
        self,
        axes: Axes,
        native: Discretisation,
        embed: nn.Module,
        block: Parts,
        readout: nn.Module | None = None,
        bank: Bank | None = None,
    ) -> None:
        super().__init__()
        self.axes, self.embed, self.block, self.readout, self.bank = axes, embed, block, readout, bank
        self.adjoint: Adjoint = Direct()
        self.check, self.generator = True, None
        self.native = native.over(native, axes)

    def forward(self, batch: Batch | Tensor, at: Discretisation | None = None) -> Tensor:
        """Return the answer of the readout, or X(Z) without one. This is the one entry; views call it."""
        return self.run(batch, at)[0]

    def at(self, discretisation: Discretisation | None = None, **sizes: Any) -> "View":
        """Return a frozen view of this model on another discretisation: shared weights, gradients flow."""
        if discretisation is not None and sizes:
            raise ConfigError("at takes a discretisation or sizes", got="both", remedy="Use discretisation.replace(…).")
        return View(self, self.settle(discretisation if discretisation is not None else at(**sizes)))

    def states(self, batch: Batch | Tensor, at: Discretisation | None = None, every: int = 1) -> Trajectory:
        """Return the path X_z, kept at every ``every``-th step."""
        return self.run(batch, at, keep=SaveAt(every))[1]

    def generate(self, prompt: Batch | Tensor, **choices: Any) -> Tensor:
        """Write on behind ``prompt``; the choices (tokens, sampling, stop, …) are those of ``models.generate``."""
        return generate(self, prompt, **choices)

    def settle(self, wish: Discretisation | None) -> Discretisation:
        """Fill what ``wish`` leaves open with the native choice; a bare number of steps keeps the solver."""
        if wish is None:
            return self.native
        settled = wish.over(self.native, self.axes)
        own: Solver | None = self.native.z.solver
        if isinstance(settled.z, int):
            kind = self.native.z if isinstance(self.native.z, Fixed) else Fixed(1, own)
            settled = settled.replace(z=replace(kind, steps=settled.z))
        if settled.z.solver is None:
            usual = Tsit5() if isinstance(settled.z, Adaptive) else own or LieTrotter()
            settled = settled.replace(z=replace(settled.z, solver=usual))
        return settled

    def run(
        self,
        batch: Batch | Tensor,
        at: Discretisation | None = None,
        context: Context | None = None,
        keep: SaveAt = SaveAt(),  # noqa: B008  (frozen)
        cost: Callable[[Grid, Grid], Cost | None] | None = None,
    ) -> tuple[Tensor, Trajectory, Grid]:
        """Walk a batch through the model: grids → embed → bind → solve → readout.

        ``cost`` makes a running cost from the grids of t and d; its integral is the path's.
        """
        chosen = self.settle(at)
        batch, grids = self._laid(batch, chosen)
        t, context = grids["t"], context or Context()
        if context.state is not None and len(context.state) != len(batch.values):  # type: ignore[arg-type]
            got, remedy = f"{len(context.state)} of the source", "Give every sample its own source."
            raise ShapeError(f"the batch has {len(batch.values)} samples", got=got, remedy=remedy)  # type: ignore[arg-type]
        if batch.pairs is not None:
            context = replace(context, pairs=batch.pairs)
        x0 = self.embed(batch, grids)
        # what a context collects along the way is collected once, so nothing is walked again then
        once = context.cache is not None or context.record is not None
        adjoint = Direct() if once else self.adjoint
        context = replace(context, late=adjoint.reads_late and torch.is_grad_enabled(), generator=self.generator)
        field, args = self.bind(grids, chosen.z, context)
        span = (self.axes.z.start, self.axes.z.end)
        observed = t.observed[..., None] if t.has_gaps else None
        path = solve(
            field,
            x0,
            span,
            args=args,
            solver=chosen.z.solver,
            control=chosen.z,
            adjoint=adjoint,
            save=keep,
            observed=observed,
            check=self.check and context.cache is None,
            cost=None if cost is None else cost(t, grids["d"]),
        )
        table = getattr(self.embed, "table", None)
        if context.cache is not None:
            context.cache.append(t)
        if self.readout is not None:
            return self.readout(path.final, {**grids, "steps": self.mean_step(chosen.z)}, table), path, t
        return path.final.masked_fill(~t.observed[..., None], 0.0) if t.has_gaps else path.final, path, t

    def _laid(self, batch: Batch | Tensor, chosen: Discretisation) -> tuple[Batch, dict[str, Grid]]:
        """The batch as tokens, and the grids of all axes but depth."""
        batch, lay = Batch.of(batch), getattr(self.embed, "lay", None)  # images are cut into tokens first
        like = next(self.parameters())
        batch, t = place(batch if lay is None else lay(batch), self.axes.t, chosen.t, like)  # type: ignore[arg-type]
        grids = {**chosen.grids(self.axes), "t": t}
        asked = batch.asked
        if isinstance(asked, Tensor):  # answers elsewhere: points without a measure
            asked = Grid(asked, torch.ones_like(asked[..., 0]))
        if asked is not None:
            grids["asked"] = asked.to(t.nodes)
        return batch, grids

    def velocity(
        self,
        batch: Batch | Tensor,
        z: float,
        x: Tensor,
        at: Discretisation | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """Return F(z, x), the sum of the flows at one depth of a batch's path; the weights of that depth are read."""
        batch, grids = self._laid(batch, self.settle(at))
        context = replace(context or Context(), generator=self.generator)
        if batch.pairs is not None:
            context = replace(context, pairs=batch.pairs)
        field, args = self.bind(grids, Adaptive(), context)
        value: Tensor = field(z, x, read_at(field, [(z,)] * len(field.parts), args))
        return value

    def bind(self, grids: Grids, depth: Fixed | Adaptive, context: Context | None = None) -> tuple[Sum, list[Args]]:
        """Read every weight field once, at the depths where each part will be asked.

        Where these are found on the way (adaptive steps), or memory counts, the field is returned unread.
        """
        span = (self.axes.z.start, self.axes.z.end)
        if self.bank is not None:
            context = self.bank(grids, context or Context())
        where: Any = [None] * len(self.block.kinds)
        if isinstance(depth, Fixed):
            where = depths(self.block.kinds, span, depth.solver, depth)
        parts: list[Flow | Projection] = []
        args: list[Args] = []
        for operator, nodes in zip(self.block, where, strict=True):
            f, own = operator.bind(grids if nodes is None else {**grids, "z": self._steps(nodes, depth)}, context)
            parts.append(Flow(f) if operator.is_flow else Projection(f))
            args.append(own)
        return Sum(tuple(parts)), args

    def _steps(self, nodes: tuple[float, ...], depth: Any) -> Grid:
        """The grid of some depths, which carries the lengths of the steps they are read in, the native one being 1."""
        span, native = (self.axes.z.start, self.axes.z.end), self.native.z
        if not isinstance(native, Fixed) or (depth.steps, depth.nested) == (native.steps, native.nested):
            return depth_grid(nodes)
        walked, unit = list(depth.walk(span)), (span[1] - span[0]) / native.steps
        starts = [z for z, _ in walked]
        return depth_grid(nodes, tuple(walked[max(0, bisect_right(starts, z) - 1)][1] / unit for z in nodes))

    def mean_step(self, depth: Any) -> Grid:
        """What an operator behind the flow may know of its steps: their mean length, the native one being 1."""
        native = self.native.z
        if not isinstance(native, Fixed) or depth == native:
            return depth_grid((START,))
        return depth_grid((START,), (native.steps / depth.steps if isinstance(depth, Fixed) else 2.0**FINEST,))

    def save(self, folder: str | Path) -> Path:
        """Write ``model.safetensors`` and ``config.json`` into ``folder``."""
        return save(self, folder)

    @classmethod
    def continuous(cls, **choices: Any) -> "Transformer":
        """Return a Transformer whose axes are continuous; the choices are those of ``build.continuous_parts``.

        >>> model = Transformer.continuous(vocab=32, at=at(d=16, h=2, z=4))
        >>> print(model.at(d=8, z=2).discretisation)
        at(d=Trapezoid(8), h=Midpoint(2), e=Midpoint(8), m=Trapezoid(32), z=2 steps of LieTrotter(Euler))
        """
        return cls(**continuous_parts(**choices))


@dataclass(frozen=True)
class View:
    """A model on one discretisation. Not a module: nothing to train or to save here, it only looks."""

    model: Any  # a Transformer or an EncoderDecoder
    discretisation: Discretisation

    def __call__(self, batch: Batch | Tensor) -> Tensor:
        """Run the model here. It goes through the module's own call, so hooks fire."""
        answer: Tensor = self.model(batch, at=self.discretisation)
        return answer

    def held(self) -> "FrozenView":
        """A view that reads the weights once and keeps them: for serving, while they do not change."""
        return FrozenView(self.model, self.discretisation, {})

    def states(self, batch: Batch | Tensor, every: int = 1) -> Trajectory:
        """Return the path X_z on this discretisation."""
        path: Trajectory = self.model.states(batch, at=self.discretisation, every=every)
        return path

    def generate(self, prompt: Batch | Tensor, **choices: Any) -> Tensor:
        """Write on behind ``prompt`` on this discretisation."""
        return generate(self, prompt, **choices)

    def __str__(self) -> str:
        settled: Discretisation = self.model.settle(self.discretisation)
        return settled.describe(self.model.axes)


@dataclass(frozen=True)
class FrozenView(View):
    """A view whose weights were read once, at its first call: quicker, without gradients, deaf to later changes."""

    memo: dict[int, Any]

    @torch.no_grad()
    def __call__(self, batch: Batch | Tensor) -> Tensor:
        """Run the model with the weights as they were."""
        with unchanged() if self.memo else nullcontext():  # the first call reads what is there now
            answer: Tensor = self.model.run(batch, at=self.discretisation, context=Context(memo=self.memo))[0]
        return answer
