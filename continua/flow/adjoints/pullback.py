"""Steps that are pulled back by hand, and the solve as one operation of autograd: what memory-saving adjoints share."""

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
    """Records steps, and turns gradients by what they gave into gradients by x0 and by the leaves of args."""

    plan: StepPlan
    keep: bool  # what lean fields need of each evaluation, or the slopes alone
    args: Args = None
    gradients: dict[int, Tensor] = field(default_factory=dict)  # gradients by the place of a leaf in args
    made: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # leaves that stand for weights that were read
    block: range | None = None  # whose weights are read now
    weights: Args = None
    gathered: Tape = field(default_factory=Tape)  # what these weights have got so far

    def record(self, x: Any, args: Args, part: range) -> tuple[Any, list[Any], list[Chunk]]:
        """Step, keeping what ``pull`` needs."""
        kept = []
        chunks = []
        for block in self.plan.blocks_of(part):
            read = self.plan.weights(args, block)
            for start in range(block.start, block.stop, CHUNK):
                steps = range(start, min(start + CHUNK, block.stop))
                tape = Tape(self.keep)
                chunks.append(Chunk(steps, x, tape, block))
                x, more = self.plan.run(x, read, steps, tape.through(self.plan.field))
                kept += more
        return x, kept, chunks

    def pull(self, chunk: Chunk, grad_carried: Any, grad_kept: list[Any]) -> Any:
        """From gradients by what a chunk gave to gradients by where it began; those by args are added up."""
        if chunk.block != self.block:
            self.finish_block()
            self.block = chunk.block
            self.weights = self.read(chunk.block)
        return self.replay(chunk, chunk.tape.replay(self.gathered), self.weights, grad_carried, grad_kept)

    def finish_block(self) -> None:
        """Backpropagate ∂L/∂(block weights) into args, one autograd call for all chunks of the block."""
        if self.block is not None:
            self.backpropagate(self.gathered)
        self.block = None
        self.weights = None
        self.gathered = Tape()

    def read(self, part: range) -> Args:
        """The weights of a block, cut from what they were made of: no evaluation's gradient runs on into the making."""
        with torch.enable_grad():
            return self.detached(self.plan.weights(self.args, part))

    def detached(self, read: Args) -> Args:
        """The same weights as the start of new graphs."""
        self.made = {}
        return mapped(read, self._cut)

    def _cut(self, weight: Tensor) -> Tensor:
        if weight.grad_fn is None:
            return weight
        leaf = weight.detach().requires_grad_()
        self.made[id(leaf)] = (leaf, weight)
        return leaf

    def replay(self, chunk: Chunk, tape: Tape, read: Args, grad_carried: Any, grad_kept: list[Any]) -> Any:
        """Take the steps of a chunk with the recorded slopes and go back through them; the tape gathers ∂L/∂weights."""
        with torch.enable_grad():
            start = mapped(chunk.start, lambda t: t.detach().requires_grad_())
            carried, kept = self.plan.run(start, read, chunk.part, tape.through(self.plan.field))
            outputs, gradients = _paired(carried, grad_carried, kept, grad_kept)
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

    def backpropagate(self, tape: Tape) -> None:
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
        known = self.gradients.get(place)
        self.gradients[place] = gradient if known is None else known.add_(gradient)


def _paired(
    carried: Any, grad_carried: Any, kept: list[Any], grad_kept: list[Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs that have a gradient, with it."""
    pairs = list(zip(tensors(carried), tensors(grad_carried), strict=True)) if grad_carried is not None else []
    for state, grad_state in zip(kept, grad_kept, strict=True):
        if grad_state is not None:
            pairs += zip(tensors(state), tensors(grad_state), strict=True)
    pairs = [(x, g) for x, g in pairs if x.requires_grad]
    return [x for x, _ in pairs], [g for _, g in pairs]


def count_kept(plan: StepPlan, part: range) -> int:
    """How many states the steps of ``part`` keep."""
    return sum(len(plan.moments[i]) for i in part)


def pull_back_chunks(pullback: Pullback, chunks: list[Chunk], grad_carried: Any, grad_kept: list[Any]) -> Any:
    """Pull back chunk after chunk, the last one first."""
    end = len(grad_kept)
    for chunk in reversed(chunks):
        start = end - count_kept(pullback.plan, chunk.part)
        grad_carried = pullback.pull(chunk, grad_carried, grad_kept[start:end])
        end = start
    pullback.finish_block()
    return grad_carried


class SolveFunction(torch.autograd.Function):
    """The whole solve as one operation, whose backward the adjoint writes."""

    @staticmethod
    def forward(ctx: Any, state: "SolveState", count: int, *leaves: Tensor) -> Any:
        """Solve without gradients; the first ``count`` leaves are those of x0, the others those of args."""
        ctx.state = state
        ctx.count = count
        ctx.set_materialize_grads(False)
        kept = state.forward(with_tensors(state.x0, leaves[:count]), with_tensors(state.args, leaves[count:]))
        state.x0 = _shell(state.x0)
        state.args = _shell(state.args)
        state.shape = [_shell(x) for x in kept]
        ctx.save_for_backward(*leaves)
        inputs = {id(leaf) for leaf in leaves}
        return tuple(t.clone() if id(t) in inputs else t for t in tensors(kept))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """∂L/∂x0 and ∂L/∂args, from the gradients by the kept states."""
        state: SolveState = ctx.state
        leaves = ctx.saved_tensors
        if torch.is_grad_enabled():
            raise SolveError(ONCE, got=f"a second derivative through {state.name}", remedy=ONCE_REMEDY)
        x0 = with_tensors(state.x0, leaves[: ctx.count])
        args = with_tensors(state.args, [_leaf(leaf) for leaf in leaves[ctx.count :]])
        rest = iter(gradients)
        grad_kept = []
        for shape in state.shape:
            given = [next(rest) for _ in tensors(shape)]
            grad_kept.append(None if all(g is None for g in given) else _filled(shape, given))
        with state.precision():
            grad_x0, by_args = state.backward(x0, args, grad_kept)
        return (None, None, *tensors(grad_x0), *(by_args.get(i) for i in range(len(leaves) - ctx.count)))


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
    """What one solve leaves for its backward: subclasses say what ``forward`` keeps and how ``backward`` uses it."""

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
        """The autocast of the forward pass, for the backward pass."""
        kind, dtype, on = self.casts[0]
        return torch.autocast(kind, dtype=dtype, enabled=on)

    def forward(self, x0: Any, args: Args) -> list[Any]:
        """Solve without gradients and return the kept states."""
        raise NotImplementedError

    def backward(self, x0: Any, args: Args, grad_kept: list[Any]) -> tuple[Any, dict[int, Tensor]]:
        """Return ∂L/∂x0, and ∂L/∂args by the place of each leaf."""
        raise NotImplementedError

    def run(self) -> list[Any]:
        """Return the kept states, as outputs of one operation of autograd."""
        if torch.compiler.is_dynamo_compiling():
            from continua.flow.uncompiled import backward

            states: list[Any] = backward(self._run)
            return states
        if torch.compiler.is_compiling():
            remedy = "Use Direct() in exported code."
            raise SolveError("a backward pass written by hand is in no graph", got=self.name, remedy=remedy)
        return self._run()

    def _run(self) -> list[Any]:
        leaves = [*tensors(self.x0), *tensors(self.args)]
        out = iter(SolveFunction.apply(self, len(tensors(self.x0)), *leaves))
        return [mapped(state, lambda _: next(out)) for state in self.shape]

    def pullback(self, args: Args = None, keep: bool = False, clip: float | None = None) -> Pullback:
        """The steps of the plan, to be pulled back."""
        return Pullback(clipped(self.plan, clip), keep, args)
