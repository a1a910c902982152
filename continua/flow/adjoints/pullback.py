"""A walk that can be pulled back, and the solve as one operation of autograd: the stuff of memory-saving adjoints."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from continua.errors import SolveError
from continua.flow.adjoints.direct import ONCE, ONCE_REMEDY, clipped
from continua.flow.adjoints.tape import Tape
from continua.flow.cost import plain
from continua.flow.stepping import StepPlan
from continua.tree import mapped, tensors, with_tensors
from continua.typing import Args, Tensor

CHUNK = 4  # steps replayed at once: bounds the stage states that are alive on the way back


class Chunk(NamedTuple):
    """A run of steps that was recorded: where it began, what its evaluations left, and whose weights it shares."""

    part: range
    start: Any
    tape: Tape
    block: range


@dataclass
class Pullback:
    """A walk that can be pulled back. Adjoints differ in what they keep between ``out`` and ``back``."""

    plan: StepPlan
    keep: bool  # what lean fields need of each evaluation, or the slopes alone
    args: Args = None
    sink: dict[int, Tensor] = field(default_factory=dict)  # gradients by the place of a leaf in args
    made: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # leaves that stand for weights that were read
    block: range | None = None  # whose weights are read now
    weights: Args = None
    gathered: Tape = field(default_factory=Tape)  # what these weights have got so far

    def record(self, x: Any, args: Args, part: range) -> tuple[Any, list[Any], list[Chunk]]:
        """Walk, keeping what ``pull`` needs."""
        kept, chunks = [], []
        for block in self.plan.blocks_of(part):
            read = self.plan.weights(args, block)
            for start in range(block.start, block.stop, CHUNK):
                steps = range(start, min(start + CHUNK, block.stop))
                tape = Tape(self.keep)
                chunks.append(Chunk(steps, x, tape, block))
                x, more = self.plan.run(x, read, steps, tape.through(self.plan.field))
                kept += more
        return x, kept, chunks

    def pull(self, chunk: Chunk, to_carried: Any, to_kept: list[Any]) -> Any:
        """From gradients by what a chunk gave to gradients by where it began; those by arguments go to the sink."""
        if chunk.block != self.block:
            self.finish_block()
            self.block, self.weights = chunk.block, self.read(chunk.block)
        return self.replay(chunk, chunk.tape.replay(self.gathered), self.weights, to_carried, to_kept)

    def finish_block(self) -> None:
        """Backpropagate ∂L/∂(block weights) into args, one autograd call for all chunks of the block."""
        if self.block is not None:
            self.collect(self.gathered)
        self.block, self.weights, self.gathered = None, None, Tape()

    def read(self, part: range) -> Args:
        """The weights of a block, cut from what they were made of: no evaluation's gradient runs on into the making."""
        with torch.enable_grad():
            return self.cut(self.plan.weights(self.args, part))

    def cut(self, read: Args) -> Args:
        """The same weights as the start of new graphs."""
        self.made = {}
        return mapped(read, self._cut)

    def _cut(self, weight: Tensor) -> Tensor:
        if weight.grad_fn is None:
            return weight
        leaf = weight.detach().requires_grad_()
        self.made[id(leaf)] = (leaf, weight)
        return leaf

    def replay(self, chunk: Chunk, tape: Tape, read: Args, to_carried: Any, to_kept: list[Any]) -> Any:
        """Walk a chunk with its slopes in their places and go back through it; the tape gathers what weights get."""
        with torch.enable_grad():
            start = mapped(chunk.start, lambda t: t.detach().requires_grad_())
            carried, kept = self.plan.run(start, read, chunk.part, tape.through(self.plan.field))
            outputs, gradients = _paired((carried, kept), (to_carried, to_kept))
            if not outputs:
                return mapped(chunk.start, torch.zeros_like)
            # evaluations pull their weights back by themselves; a cost paid for chords uses weights in the open
            open_costs = plain(self.plan.solver) is not self.plan.solver
            weights = [leaf for leaf in tensors(read) if leaf.requires_grad] if open_costs else []
            given = tensors(start)
            found = torch.autograd.grad(outputs, [*given, *weights], gradients, allow_unused=True)
        tape.add([(leaf, g) for leaf, g in zip(weights, found[len(given) :], strict=True) if g is not None])
        zero = (torch.zeros_like(t) if g is None else g for t, g in zip(given, found, strict=False))
        return with_tensors(chunk.start, list(zero))

    def collect(self, tape: Tape) -> None:
        """Backpropagate ∂L/∂(block weights) into args, one autograd call."""
        given = tensors(self.args)
        places = {id(leaf): i for i, leaf in enumerate(given)}
        read = []
        for leaf, g, own in tape.found.values():
            if id(leaf) in places:
                self.add(places[id(leaf)], g if own else g.clone())
            elif id(leaf) in self.made:
                read.append((self.made[id(leaf)][1], g))
        if not read:
            return
        wanted = [leaf for leaf in given if leaf.requires_grad]
        found = torch.autograd.grad([leaf for leaf, _ in read], wanted, [g for _, g in read], allow_unused=True)
        for leaf, g in zip(wanted, found, strict=True):
            if g is not None:
                self.add(places[id(leaf)], g)

    def add(self, place: int, gradient: Tensor) -> None:
        """Add up what several chunks give the same argument."""
        known = self.sink.get(place)
        self.sink[place] = gradient if known is None else known.add_(gradient)


def _paired(outputs: Any, gradients: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs that have a gradient, with it."""
    (carried, kept), (to_carried, to_kept) = outputs, gradients
    pairs = list(zip(tensors(carried), tensors(to_carried), strict=True)) if to_carried is not None else []
    for state, to_state in zip(kept, to_kept, strict=True):
        if to_state is not None:
            pairs += zip(tensors(state), tensors(to_state), strict=True)
    pairs = [(x, g) for x, g in pairs if x.requires_grad]
    return [x for x, _ in pairs], [g for _, g in pairs]


def counts(plan: StepPlan, part: range) -> int:
    """How many states the steps of ``part`` keep."""
    return sum(len(plan.moments[i]) for i in part)


def pull_back_chunks(pullback: Pullback, chunks: list[Chunk], to_carried: Any, to_kept: list[Any]) -> Any:
    """Pull back chunk after chunk, the last one first."""
    end = len(to_kept)
    for chunk in reversed(chunks):
        start = end - counts(pullback.plan, chunk.part)
        to_carried = pullback.pull(chunk, to_carried, to_kept[start:end])
        end = start
    pullback.finish_block()
    return to_carried


class SolveFunction(torch.autograd.Function):
    """The whole solve as one operation, whose backward the adjoint writes."""

    @staticmethod
    def forward(ctx: Any, work: Any, count: int, *leaves: Tensor) -> Any:
        """Walk out."""
        ctx.work, ctx.count = work, count
        ctx.set_materialize_grads(False)
        kept = work.out(with_tensors(work.x0, leaves[:count]), with_tensors(work.args, leaves[count:]))
        work.x0, work.args, work.shape = _shell(work.x0), _shell(work.args), [_shell(x) for x in kept]
        ctx.save_for_backward(*leaves)
        inputs = {id(leaf) for leaf in leaves}
        return tuple(t.clone() if id(t) in inputs else t for t in tensors(kept))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Walk back."""
        work, leaves = ctx.work, ctx.saved_tensors
        if torch.is_grad_enabled():
            raise SolveError(ONCE, got=f"a second derivative through {work.name}", remedy=ONCE_REMEDY)
        x0 = with_tensors(work.x0, leaves[: ctx.count])
        args = with_tensors(work.args, [_leaf(leaf) for leaf in leaves[ctx.count :]])
        rest, to_kept = iter(gradients), []
        for state in work.shape:
            given = [next(rest) for _ in tensors(state)]
            to_kept.append(None if all(g is None for g in given) else _filled(state, given))
        with work.precision():
            to_x0, by_args = work.back(x0, args, to_kept)
        return (None, None, *tensors(to_x0), *(by_args.get(i) for i in range(len(leaves) - ctx.count)))


def _shell(tree: Any) -> Any:
    """The structure of a pytree without its memory."""
    return mapped(tree, lambda t: torch.empty_like(t, device="meta"))


def _leaf(tensor: Tensor) -> Tensor:
    """The same numbers as the start of a new graph."""
    return tensor.detach().requires_grad_() if tensor.requires_grad else tensor


def _filled(state: Any, given: list[Tensor | None]) -> Any:
    like = next(g for g in given if g is not None)
    return with_tensors(
        state,
        [
            torch.zeros(t.shape, dtype=t.dtype, device=like.device) if g is None else g
            for t, g in zip(tensors(state), given, strict=True)
        ],
    )


@dataclass
class SolveState:
    """What one solve leaves for its backward. Subclasses say what ``out`` keeps and how ``back`` uses it."""

    adjoint: Any
    plan: StepPlan
    x0: Any
    args: Args
    shape: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        kinds = {t.device.type for t in tensors(self.x0)}
        self.casts = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds if kind != "meta"
        ]

    @property
    def name(self) -> str:
        """The adjoint, for messages."""
        return type(self.adjoint).__name__

    def precision(self) -> Any:
        """The autocast of the way out, for the way back."""
        kind, dtype, on = self.casts[0]
        return torch.autocast(kind, dtype=dtype, enabled=on)

    def out(self, x0: Any, args: Args) -> list[Any]:
        """Walk without gradients and return the kept states."""
        raise NotImplementedError

    def back(self, x0: Any, args: Args, to_kept: list[Any]) -> tuple[Any, dict[int, Tensor]]:
        """Return gradients by x0, and by the leaves of args by their place."""
        raise NotImplementedError

    def run(self) -> list[Any]:
        """Apply the operation."""
        if torch.compiler.is_dynamo_compiling():
            from continua.flow.uncompiled import backward

            states: list[Any] = backward(self._run)
            return states
        if torch.compiler.is_compiling():
            got, remedy = self.name, "Use Direct() in exported code."
            raise SolveError("a backward pass written by hand is in no graph", got=got, remedy=remedy)
        return self._run()

    def _run(self) -> list[Any]:
        leaves = [*tensors(self.x0), *tensors(self.args)]
        out = iter(SolveFunction.apply(self, len(tensors(self.x0)), *leaves))
        return [mapped(state, lambda _: next(out)) for state in self.shape]

    def pullback(self, args: Args = None, keep: bool = False, clip: float | None = None) -> Pullback:
        """A pullback along the plan."""
        return Pullback(clipped(self.plan, clip), keep, args)
