"""One evaluation of a field, remembered by its value and pulled back by hand: what every memory-saving adjoint uses.

A walk is *recorded* without gradients: of each evaluation the slope is kept (and, if asked, what the matrix products
of a lean field need). It is *replayed* with the slopes in their places: nothing is evaluated, autograd sees only the
solver's sums, and the pull-back of each evaluation runs when autograd arrives there. So any solver is differentiated
stage by stage with one evaluation's graph alive at a time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from continua.flow.state import axpy, scaled
from continua.flow.vectorfield import Bound, Costed, Flow, Gradients, Projection, Sum, VectorField, base_of, is_quiet
from continua.tree import mapped, tensors, with_tensors
from continua.typing import Args, Tensor


class Entry(NamedTuple):
    """One evaluation: its value, what its backward was given to keep, and the state of the random numbers before."""

    slope: Any
    kept: Any
    noise: Any


@dataclass
class Tape:
    """The evaluations of a walk in order, and the gradients of arguments that pulling them back gives."""

    keep: bool = False
    entries: list[Entry] = field(default_factory=list)
    at: int | None = None  # None: recording
    found: dict[int, tuple[Tensor, Tensor, bool]] = field(default_factory=dict)

    def replay(self, gathered: "Tape") -> "Tape":
        """The same evaluations, to be walked again; gradients go to those that were gathered before."""
        return Tape(self.keep, self.entries, at=0, found=gathered.found)

    def through(self, given: VectorField) -> VectorField:
        """The field whose every evaluation goes through this tape."""
        base = base_of(given)
        parts = base.parts if isinstance(base, Sum) else ()
        if isinstance(given, Costed | Sum):
            return _Whole(tuple(type(part)(self._taped(part.bound)) for part in parts), given, self)
        return self._taped(given)

    def _taped(self, f: Any) -> Callable[[float, Any, Args], Any]:
        return lambda z, x, args: self.evaluate(f, z, x, args)

    def evaluate(self, f: Any, z: float, x: Any, args: Args) -> Any:
        """Record the value, or hand out the recorded one with its pull-back."""
        if self.at is None:
            noise = None if is_quiet(f) else noise_now()
            slope, kept = value_of(f, z, x, args, self.keep)
            self.entries.append(Entry(slope, kept, noise))
            return slope
        entry = self.entries[self.at]
        self.at += 1
        out = _Stage.apply(_Call(self, f, z, x, args, entry), *tensors(x))
        return with_tensors(entry.slope, out)

    def add(self, gradients: Gradients) -> None:
        """Add up the gradients of the same leaf."""
        for leaf, gradient in gradients:
            known = self.found.get(id(leaf))
            if known is None:
                self.found[id(leaf)] = (leaf, gradient, False)
            elif known[2]:
                known[1].add_(gradient)
            else:  # the first one may be shared with others: never changed in place
                self.found[id(leaf)] = (leaf, known[1] + gradient, True)


@dataclass(frozen=True)
class _Whole(Sum):
    """A sum that is taped as one evaluation when it is called whole, part by part when it is split."""

    given: Any
    tape: Tape

    def __call__(self, z: float, x: Any, args: Args) -> Any:
        return self.tape.evaluate(self.given, z, x, args)

    def project(self, z: float, x: Any, args: Args) -> Any:
        if isinstance(self.given, Costed):
            return super().project(z, x[0], args), x[1]
        return super().project(z, x, args)


class _Call(NamedTuple):
    tape: Tape
    f: Any
    z: float
    x: Any
    args: Args
    entry: Entry


class _Stage(torch.autograd.Function):
    """An evaluation whose value is known already."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *x: Tensor) -> Any:
        ctx.call = call
        return tuple(slope.detach() for slope in tensors(call.entry.slope))

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> Any:
        call: _Call = ctx.call
        x = mapped(call.x, torch.Tensor.detach)
        with replayed(call.entry.noise):
            gx, gradients = pull_back(call.f, call.z, x, call.entry, call.args, with_tensors(call.entry.slope, g))
        call.tape.add(gradients)
        return (None, *tensors(gx))


# --- values and pull-backs -------------------------------------------------------------------------------------------


def value_of(f: Any, z: float, x: Any, args: Args, keep: bool) -> tuple[Any, Any]:
    """f(z, x, args), and what a lean part keeps of it."""
    if isinstance(f, Costed):
        velocity, kept = value_of(f.base, z, x[0], args, keep)
        return (velocity, f.cost(z, x[0], velocity, args)), (velocity, kept)
    if isinstance(f, Sum):
        total = None
        all_kept = []
        for part, own in zip(f.parts, args, strict=True):
            if isinstance(part, Projection):
                continue
            value, kept = value_of(part.bound, z, x, own, keep)
            total = value if total is None else axpy(total, 1.0, value)
            all_kept.append(kept)
        return scaled(0.0, x) if total is None else total, all_kept
    bound = f.bound if isinstance(f, Flow) else Bound.of(f)
    lean = bound.lean
    if not keep or lean is None:
        return bound.f(z, x, args), None
    kept = lean.prepare(z, x, args)
    return lean.finish(z, x, kept, args), kept


def pull_back(f: Any, z: float, x: Any, entry: Entry, args: Args, g: Any) -> tuple[Any, Gradients]:
    """The gradients of ⟨g, f(z, x, args)⟩ by x and by the leaves of args that need one."""
    if isinstance(f, Costed):
        return _pull_cost(f, z, x, entry, args, g)
    if isinstance(f, Sum):
        total = None
        kept = iter(entry.kept or ())
        gradients: list[tuple[Tensor, Tensor]] = []
        for part, own in zip(f.parts, args, strict=True):
            if isinstance(part, Projection):
                continue
            gx, more = pull_back(part.bound, z, x, entry._replace(kept=next(kept, None)), own, g)
            total = gx if total is None else axpy(total, 1.0, gx)
            gradients += more
        return scaled(0.0, x) if total is None else total, gradients
    bound = f.bound if isinstance(f, Flow) else Bound.of(f)
    lean = bound.lean
    if lean is not None:
        kept = lean.prepare(z, x, args) if entry.kept is None else entry.kept
        return lean.pull(z, x, kept, args, g)
    local = args if bound.local is None else bound.local(z, args)
    return differentiate(lambda x: bound.f(z, x, args), x, local, g)


def differentiate(f: Callable[[Any], Any], x: Any, local: Args, g: Any) -> tuple[Any, Gradients]:
    """By autograd: evaluate once more with a graph and go back through it."""
    leaves = [leaf for leaf in tensors(local) if leaf.requires_grad]
    with torch.enable_grad():
        start = mapped(x, lambda t: t.detach().requires_grad_())
        value = tensors(f(start))
        used = [(y, gy) for y, gy in zip(value, tensors(g), strict=True) if y.requires_grad and gy is not None]
        given = [*tensors(start), *leaves]
        found = torch.autograd.grad([y for y, _ in used], given, [gy for _, gy in used], allow_unused=True)
    count = len(given) - len(leaves)
    by_x = [t.new_zeros(t.shape) if gx is None else gx for t, gx in zip(given[:count], found[:count], strict=True)]
    pairs = [(leaf, gradient) for leaf, gradient in zip(leaves, found[count:], strict=True) if gradient is not None]
    return with_tensors(x, by_x), pairs


def _pull_cost(f: Costed, z: float, x: Any, entry: Entry, args: Args, g: Any) -> tuple[Any, Gradients]:
    """First through R(z, x, F), then through F with what R adds to its gradient."""
    (state, paid), (to_velocity, to_cost) = x, g
    velocity, kept = entry.kept
    pair = (state, velocity)
    (by_state, by_velocity), gradients = differentiate(lambda p: f.cost(z, p[0], p[1], args), pair, args, to_cost)
    both = with_tensors(velocity, [a + b for a, b in zip(tensors(to_velocity), tensors(by_velocity), strict=True)])
    gx, more = pull_back(f.base, z, state, entry._replace(kept=kept), args, both)
    gx = with_tensors(gx, [a + b for a, b in zip(tensors(gx), tensors(by_state), strict=True)])
    return (gx, mapped(paid, torch.zeros_like)), [*gradients, *more]


# --- randomness ------------------------------------------------------------------------------------------------------


Noise = tuple[Tensor, list[Tensor]]


def noise_now() -> Noise:
    """The state of torch's own random numbers, on every device that has been used."""
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


@contextmanager
def replayed(noise: Noise | None) -> Iterator[None]:
    """Inside, random numbers come again as they came after ``noise`` was noted."""
    if noise is None:
        yield
        return
    before = noise_now()
    _set(noise)
    try:
        yield
    finally:
        _set(before)


def _set(noise: Noise) -> None:
    torch.set_rng_state(noise[0])
    if noise[1]:
        torch.cuda.set_rng_state_all(noise[1])
