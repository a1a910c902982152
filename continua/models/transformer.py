"""The continuous Transformer: where operators meet solvers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from continua import constants
from continua.axes import Axes, Axis, Discretisation, Grid, Grids, Points, at
from continua.checks import looking, without_looking
from continua.config import register
from continua.constants import constant_result
from continua.errors import ConfigError, ShapeError
from continua.fields import Basis
from continua.flow import (
    Adjoint,
    Direct,
    Fixed,
    Flow,
    Projection,
    SaveAt,
    Sum,
    Trajectory,
    solve,
)
from continua.flow.finite import culprit
from continua.flow.stepping import StepPlan
from continua.flow.trajectory import Steps
from continua.flow.vectorfield import Cost, read_at
from continua.models.bank import Bank
from continua.models.base import ModelBase
from continua.models.batch import Batch, place
from continua.models.build import continuous_parts
from continua.models.embed import Embedding, States
from continua.models.finite import ScoreWeights
from continua.models.model import Execution, Pass, Reads
from continua.models.shards import agreed, in_parts, refuse_unshared, require_finite
from continua.models.structure import (
    Numbers,
    Program,
    Structure,
    behind_the_last,
    decided,
    numbers_of,
    refuse_by_value,
    settled,
)
from continua.models.view import View
from continua.operators import Context, Mask, Parts
from continua.settings import checked
from continua.typing import Args, Letter, Tensor

ONCE = Direct()  # what is collected along the way
NATIVE = at(d=128, h=4, z=6)  # of a continuous model, unless another is asked for


@register
class Transformer(ModelBase):
    """∂X/∂z = γX + A[X] + F[X] from X(0) = embed(data) to X(Z), then a readout.

    ``block`` holds the parts of the field, ``native`` the discretisation the model was made for. The grid is chosen
    at the call: ``model(batch)`` uses the native one, ``model.at(d=64, h=2, z=3)(batch)`` another. ``bank`` adds
    memory slots to what cross-attention sees. ``model.execution`` says how it is run: ``model.adjoint = Checkpoint(4)``
    changes how gradients are computed, ``model.check = False`` looks at no value.

    Discrete case: counting axes, nodal weights and unit ``LieTrotter(Euler())`` steps are GPT-2, BERT and their kin.
    """

    def __init__(
        self,
        axes: Axes,
        native: Discretisation,
        embed: Embedding,
        block: Parts,
        readout: Any = None,
        bank: Bank | None = None,
    ) -> None:
        super().__init__()
        self.axes = axes
        self.embed = embed
        self.block = block
        self.readout = readout
        self.bank = bank
        self.execution = Execution()
        self.native = native.native_on(axes)
        self._structures = constants.Cache(64)
        self._score_weights = ScoreWeights()

    # --- one forward: prepare → bind → solve → answer -----------------------------------------------------------------

    def forward(self, batch: Batch | Tensor, at: Discretisation | None = None, told: Pass | None = None) -> Tensor:
        """Return the answer of the readout, or X(Z) without one. This is the one entry; everything calls it.

        ``told`` is for instruments: what a pass is told beside the batch, and what it leaves.
        """
        if self.execution.check or torch.compiler.is_compiling():
            if told is None or told.reads is None:  # weights that were read before were looked at then
                self.look_for_nan()
            return self._pass(batch, at, told)
        with without_looking():
            return self._pass(batch, at, told)

    def _pass(self, batch: Batch | Tensor, at: Discretisation | None, told: Pass | None) -> Tensor:
        if told is not None and told.programs is not None:
            program = self._program(batch, at, told)
            if program is not None:
                return self._held(cast(Tensor, batch), at, program, told)
        structure = self.structure(at)
        if torch.compiler.is_compiling():
            refuse_by_value(structure, told)
        if structure.shards is not None:
            refuse_unshared(structure.shards, structure.steps, told)
        batch, grids = self.prepare(batch, structure, None if told is None else told.tokens)
        context = self._context(batch, None if told is None else told.context)
        if told is not None and told.velocity_at is not None:
            return self._velocity(grids, structure, context, *told.velocity_at)
        reads = None if told is None else told.reads
        with agreed(grids.tokens):
            x0 = self.embed(batch, grids, None if reads is None else reads.embed)  # [b, t, d]
            if isinstance(self.embed, States):
                self.embed.check_precision(x0, next(self.parameters()).dtype)
            field, args = self.bind(grids, structure, context, reads)
        if told is not None:
            told.t = grids.tokens
        if told is None or not told.whole:
            final = self._final(x0, field, args, structure, grids.tokens, self._adjoint(context))
        else:
            told.path = self._path(x0, field, args, structure, grids, told)
            final = told.path.final
        if context.cache is not None:
            context.cache.append(grids.tokens)
        return self._answer(final, grids, told)

    def _program(self, batch: Batch | Tensor, at: Discretisation | None, told: Pass) -> Program | None:
        """What was bound for as many counted tokens before; None where the batch says more than its values."""
        if not isinstance(batch, Tensor) or batch.dim() != 2 or self.training or torch.compiler.is_compiling():
            return None  # dropout is drawn anew at every call
        key = (batch.shape[1], batch.device)
        if key not in told.programs:  # type: ignore[operator]
            told.programs[key] = self._bound(batch, at, told)  # type: ignore[index]
        return cast("Program | None", told.programs[key])  # type: ignore[index]

    def _bound(self, ids: Tensor, at: Discretisation | None, told: Pass) -> Program | None:
        structure = self.structure(at)
        if structure.steps is None or structure.t is not None or not isinstance(self.axes.t, Points):
            return None
        batch, grids = self.prepare(ids, structure)
        if grids.tokens.has_gaps:  # which tokens are there is said by their values
            return None
        field, args = self.bind(grids, structure, self._context(batch, told.context), told.reads)
        return Program(grids, self._steps(field, structure), args)

    def _held(self, ids: Tensor, at: Discretisation | None, program: Program, told: Pass) -> Tensor:
        """One pass with everything bound before."""
        reads = cast(Reads, told.reads)
        x0 = self.embed(Batch(ids), program.grids, reads.embed)
        final = program.run(x0)
        if self.execution.check and looking() and culprit(final) is not None:
            return self._pass(ids, at, replace(told, programs=None))  # walked once more to say where
        return self._answer(final, program.grids, told)

    def structure(self, at: Discretisation | None = None) -> Structure:
        """All that is decided before data come."""
        if torch.compiler.is_compiling():  # a graph takes the numbers as constants, and makes its own objects
            return decided(self, at, self._numbers(at))
        like = next(self.parameters())
        key = (self.native if at is None else at, like.device, like.dtype)
        return self._structures.get(key, lambda: decided(self, at, self._numbers(at)))

    @constant_result
    def _numbers(self, at: Discretisation | None) -> Numbers:
        return numbers_of(self, at)

    def prepare(self, batch: Batch | Tensor, structure: Structure, t: Grid | None = None) -> tuple[Batch, Grids]:
        """The batch as tokens, and the grids of all axes; ``t`` places the tokens outright."""
        batch = Batch.of(batch)
        if t is None:
            batch = batch if batch.laid else self.embed.lay(batch)
            batch, t = place(batch, self.axes.t, structure.t, structure.grids.d.nodes)
            if structure.shards is not None:
                batch, t = in_parts(batch, t, structure.shards)
        structure.require_device(batch.values)
        asked = batch.asked
        if isinstance(asked, Tensor):  # answers elsewhere: points without a measure
            asked = Grid(asked, torch.ones_like(asked[..., 0]))
        asked = None if asked is None else asked.to(t.weights)
        return batch, structure.grids.placed(t, structure.behind, asked)

    def bind(
        self, grids: Grids, structure: Structure, context: Context, reads: Reads | None = None
    ) -> tuple[Sum, list[Args]]:
        """Read every weight field once, at the depths where each part will be asked, and place it beside the tokens.

        Where these are found on the way (adaptive steps), or memory counts, the field is returned unread.
        """
        if self.bank is not None:
            context = self.bank(grids, context, None if reads is None else reads.bank)
        kept = (None,) * len(structure.depths) if reads is None else reads.parts
        adjoint = self._adjoint(context)
        manual = not isinstance(adjoint, Direct) and not torch.compiler.is_compiling()
        parts: list[Flow | Projection] = []
        args: list[Args] = []
        for operator, where, read in zip(self.block, structure.depths, kept, strict=True):
            here = grids.with_depths(where)
            read = operator.read(here, context.late) if read is None else read
            bound, own = operator.place(read, here, context)
            if manual:
                from continua.operators.manual_backward import by_hand  # plain models never need it

                bound = replace(bound, lean=by_hand(bound, own))
            if structure.steps is None and self.execution.search is not None:
                bound = self.execution.search(bound)
            parts.append(Flow(bound) if operator.is_flow else Projection(bound))
            args.append(own)
        return Sum(tuple(parts)), args

    def _final(
        self, x0: Tensor, field: Sum, args: list[Args], structure: Structure, t: Grid, adjoint: Adjoint
    ) -> Tensor:
        """X(Z) alone, the quickest way: known steps under plain autograd."""
        if structure.steps is None or not (isinstance(adjoint, Direct) and adjoint.clip is None):
            return self._solved(x0, field, args, structure, t, None, None, adjoint).final
        plan = self._steps(field, structure)
        final: Tensor = plan.run(x0, args, plan.everything)[1][-1]
        if not (self.execution.check and looking()):
            return final
        if t.shard is not None:
            require_finite(final, t)
        elif culprit(final) is not None:  # walked once more to say where
            return self._solved(x0, field, args, structure, t, None, None, adjoint).final
        return final

    @staticmethod
    def _steps(field: Sum, structure: Structure) -> StepPlan:
        """The known steps, of which the last state is kept."""
        steps = cast(Steps, structure.steps)
        moments = ((),) * (len(steps) - 1) + ((1.0,),)
        return StepPlan(field, structure.solver, steps, moments)

    def _path(
        self, x0: Tensor, field: Sum, args: list[Args], structure: Structure, grids: Grids, told: Pass
    ) -> Trajectory:
        """The whole path, as far as it is to be kept."""
        cost = None if told.cost is None else told.cost(grids.tokens, grids.d)
        return self._solved(x0, field, args, structure, grids.tokens, told.keep, cost, self._adjoint(told.context))

    def _solved(
        self,
        x0: Tensor,
        field: Sum,
        args: list[Args],
        structure: Structure,
        t: Grid,
        keep: SaveAt | None,
        cost: Cost | None,
        adjoint: Adjoint,
    ) -> Trajectory:
        return solve(
            field,
            x0,
            structure.span,
            args=args,
            solver=structure.solver,
            control=structure.control,
            adjoint=adjoint,
            save=SaveAt() if keep is None else keep,
            observed=t.observed[..., None] if t.has_gaps else None,
            check=self.execution.check and t.shard is None,  # who stops on the way lets the others wait
            cost=cost,
        )

    def _velocity(self, grids: Grids, structure: Structure, context: Context, z: float, x: Tensor) -> Tensor:
        """F(z, x): the weights of that depth alone are read."""
        unread = replace(structure, depths=(None,) * len(structure.depths))
        field, args = self.bind(grids, unread, context)
        value: Tensor = field(z, x, read_at(field, [(z,)] * len(field.parts), args))
        return value

    def _answer(self, final: Tensor, grids: Grids, told: Pass | None) -> Tensor:
        t = grids.tokens
        if told is not None and told.last:
            final, grids = behind_the_last(final, grids)
        if self.readout is None:
            return final.masked_fill(~t.observed[..., None], 0.0) if t.has_gaps else final
        reads = None if told is None or told.reads is None else told.reads.readout
        answer: Tensor = self.readout(final, grids, self.embed.tied_table, reads)
        return answer

    # --- what a pass is made of ---------------------------------------------------------------------------------------

    def _adjoint(self, context: Context | None) -> Adjoint:
        """What a context collects along the way is collected once, so nothing is walked again then."""
        once = context is not None and (context.cache is not None or context.record is not None)
        return ONCE if once else self.execution.adjoint

    def _context(self, batch: Batch, context: Context | None) -> Context:
        late = self._adjoint(context).reads_late and torch.is_grad_enabled()
        if context is None:
            return Context(pairs=batch.pairs, late=late, generator=self.execution.generator)
        samples = batch.values.shape[0]  # type: ignore[union-attr]
        if context.state is not None and context.state.shape[0] != samples:
            remedy = "Give every sample its own source."
            raise ShapeError(
                f"the batch has {samples} samples", got=f"{context.state.shape[0]} of the source", remedy=remedy
            )
        pairs = context.pairs if batch.pairs is None else batch.pairs
        return replace(context, pairs=pairs, late=late, generator=self.execution.generator)

    def settle(self, wish: Discretisation | None) -> Discretisation:
        """Fill what ``wish`` leaves open with the native choice; a bare number of steps keeps the solver."""
        if wish is None:
            return self.native
        return settled(wish, self.native, self.axes)

    # --- what users call ----------------------------------------------------------------------------------------------

    def at(self, discretisation: Discretisation | None = None, **sizes: Any) -> View:
        """Return a frozen view of this model on another discretisation: shared weights, gradients flow.

        ``m`` may vary with depth: a size for each step, or a function of z.
        """
        if callable(sizes.get("m")):
            control = self.settle(at(z=sizes.get("z"))).z
            steps = control.walk((self.axes.z.start, self.axes.z.end)) if isinstance(control, Fixed) else ()
            sizes = {**sizes, "m": tuple(round(sizes["m"](z)) for z, _ in steps)}
        return View(self, self.settle(chosen_sizes(discretisation, sizes)))

    def laid(self, batch: Batch | Tensor, at: Discretisation | None = None) -> Batch:
        """Return the batch as tokens on their grid, all that depends on its stamps done: for data loaders and graphs.

        Weights of scattered points, moments of cells and functions on a latent grid are computed here once, where
        a forward pass would compute them each time, and a compiled one could not.
        """
        batch, grids = self.prepare(batch, self.structure(at))
        asked = batch.asked if grids.asked is None else grids.asked
        return replace(batch, grid=grids.tokens, times=None, observed=None, asked=asked, laid=True)

    def look_for_nan(self) -> None:
        """Refuse weights of scores that are no numbers: fused attention would hide them. Once for each version."""
        if self.execution.check and looking():
            self._score_weights.look(self.block)

    def read(self, at: Discretisation | None = None) -> Reads:
        """Read all weights on one discretisation, to be kept while they do not change."""
        self.look_for_nan()
        structure = self.structure(at)
        grids = structure.grids.with_depths(structure.behind)
        parts = zip(self.block, structure.depths, strict=True)
        return Reads(
            embed=self.embed.read(grids),
            parts=tuple(operator.read(grids.with_depths(where)) for operator, where in parts),
            readout=None if self.readout is None else self.readout.read(grids, self.embed.tied_table),
            bank=None if self.bank is None else self.bank.read(grids),
        )

    @property
    def flows(self) -> tuple["Transformer", ...]:
        """This one alone."""
        return (self,)

    @classmethod
    @checked
    def continuous(
        cls,
        *,
        vocab: int | None = None,
        channels: int | None = None,
        at: Discretisation = NATIVE,
        mask: Mask | None = None,
        bases: Mapping[Letter, Basis] | None = None,
        gamma: float = 0.0,
        context: int = 1024,
        t: Axis | None = None,
        d: Axis | None = None,
        h: Axis | None = None,
        e: Axis | None = None,
        m: Axis | None = None,
        z: Axis | None = None,
    ) -> "Transformer":
        """Return a Transformer whose axes are continuous: nothing here is a layer count, only a native grid.

        ``vocab`` makes a language model (causal unless ``mask`` says otherwise, tied head); ``channels`` a map between
        fields with that many values at each node of ``t``. ``at`` is the native discretisation; e defaults to d/h, m to
        4d. ``bases`` replaces the basis of some letters, for example ``{"z": BSpline(6)}``. ``gamma`` is the skip
        factor; ``context`` the rows of the position table of a language model. ``t … z`` replace the usual axes.

        >>> model = Transformer.continuous(vocab=32, at=at(d=16, h=2, z=4))
        >>> print(model.at(d=8, z=2).discretisation)
        at(d=Trapezoid(8), h=Midpoint(2), e=Midpoint(8), m=Trapezoid(32), z=2 steps of LieTrotter(Euler))
        """
        axes = {letter: axis for letter, axis in zip("tdhemz", (t, d, h, e, m, z), strict=True) if axis is not None}
        return cls(**continuous_parts(vocab, channels, at, mask, bases, gamma, context, **axes))


def chosen_sizes(discretisation: Discretisation | None, sizes: Mapping[str, Any]) -> Discretisation:
    """A discretisation as it was given, by name or by sizes."""
    if discretisation is not None and sizes:
        raise ConfigError("at takes a discretisation or sizes", got="both", remedy="Use discretisation.replace(…).")
    return discretisation if discretisation is not None else at(**sizes)
