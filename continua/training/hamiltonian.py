"""The Hamiltonian view of training: state, adjoint and ∂H/∂θ along depth, by hand, to look at."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from continua.axes import Discretisation
from continua.errors import ConfigError
from continua.flow import Direct, Fixed, Solver
from continua.flow.cost import Chord
from continua.flow.solvers.solver import OneStep, Wrapper, velocity_of
from continua.flow.stepping import StepPlan
from continua.flow.vectorfield import Cost, Costed
from continua.models import Transformer
from continua.tasks import Example, Task
from continua.training.objective import Objective, Whole
from continua.tree import mapped, tensors
from continua.typing import Args, Tensor

Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class HamiltonianPath:
    """H = ⟨a, F⟩ + R at the nodes ``z``, and what leads to it.

    ``adjoint[i]`` is a(z_i) = ∂(J from z_i on)/∂X(z_i), the covector that autograd returns (⟨·,·⟩ is the plain sum;
    divide by w_t w_d for the function); ``each`` is H of every sample and ``h`` their sum. ``share`` says of every
    parameter how much each step adds to its gradient: ‖∂H/∂θ‖ in the middle of the step. ``gradient`` is dJ/dθ added
    up over the steps, exactly that of the discrete solve; ``continuous`` is ∫ ∂H/∂θ dz by Simpson's rule (trapezoids
    for an odd number of steps), which differs from it by the error of the discretisation. Both contain what the ends
    and the penalties of the weights add.
    """

    z: Tensor
    each: Tensor
    states: tuple[Tensor, ...]
    adjoint: tuple[Tensor, ...]
    share: Mapping[str, Tensor]
    gradient: Gradients
    continuous: Gradients
    objective: float

    @property
    def h(self) -> Tensor:
        """H of all samples together, at each node."""
        return self.each.sum(1)

    @property
    def drift(self) -> float:
        """max |H(z) − H(0)|: zero for autonomous fields, up to the order of the solver."""
        return float((self.h - self.h[0]).abs().max())

    @property
    def adjoint_norm(self) -> Tensor:
        """‖a(z)‖ at each node."""
        return torch.stack([a.norm() for a in self.adjoint])

    @property
    def density(self) -> Tensor:
        """‖∂H/∂θ‖ of all parameters together, in the middle of each step."""
        return torch.stack(list(self.share.values())).norm(dim=0)

    def plot(self, path: str | Path) -> Path:
        """Three panels over depth: H, the norm of the adjoint, and where the gradient comes from."""
        return _plot(self, Path(path))


def hamiltonian(model: nn.Module, goal: Objective | Task, example: Example) -> HamiltonianPath:
    """Walk the model's native fixed steps forward, then the adjoint back, and return what was met on the way.

    The discrete adjoint: a_n = ∂J/∂X_n, a_i = (∂X_{i+1}/∂X_i)ᵀ a_{i+1} + ∂c_{i+1}/∂X_i for the running cost c, and
    dJ/dθ = Σ_i ∂⟨a_{i+1}, X_{i+1}⟩/∂θ + ∂c_{i+1}/∂θ + what the ends add. The steps are kept, so memory grows with them.
    """
    given = goal if isinstance(goal, Objective) else Objective(model, goal)
    penalties = given.penalties.integrated
    plain = any(term.twice for term in penalties.running_terms)  # fused attention has no second derivative
    with _watched(model) as (at, watch), sdpa_kernel(SDPBackend.MATH) if plain else nullcontext():
        objective = Objective(model, given.task, penalties)
        objective.generator = given.generator
        objective.places = ((at, 1.0),)
        value, _ = objective(example, Whole.of(example))
        back = _Back(watch.walks[0], {name: p for name, p in model.named_parameters() if p.requires_grad})
        return back.path(value)


@dataclass(frozen=True)
class _Walk:
    """The steps of a solve, each with a graph of its own."""

    route: StepPlan
    x0: Any
    args: Args
    leaves: Args
    steps: list[tuple[Any, Any]]
    final: Any


@dataclass(frozen=True)
class _Watch(Direct):
    """Cuts the graph at every step, and keeps the pieces."""

    walks: list[_Walk] = field(default_factory=list)

    def run(self, route: StepPlan, x0: Any, args: Args) -> list[Any]:
        args = route.weights(args, range(len(route.steps)))
        leaves = mapped(args, lambda t: t.detach().requires_grad_(t.requires_grad))
        x = x0
        steps = []
        with torch.enable_grad():
            for z, dz in route.steps:
                start = _cut(x)
                x = route.solver.step(route.field, z, dz, start, leaves)
                steps.append((start, x))
        self.walks.append(_Walk(route, x0, args, leaves, steps, _cut(x)))
        return [self.walks[-1].final]


@dataclass(frozen=True)
class _Ends(OneStep, Wrapper):
    """The same steps; in the dry run it also asks for the weights at both ends, where H is evaluated."""

    inner: Solver

    @property
    def order(self) -> int:
        return self.inner.order

    def step(self, field: Any, z: float, dz: float, x: Any, args: Args) -> Any:
        if not isinstance(x, Tensor | tuple):
            field(z, x, args)
            field(z + dz, x, args)
        return self.inner.step(field, z, dz, x, args)


@contextmanager
def _watched(model: nn.Module) -> Iterator[tuple[Discretisation, _Watch]]:
    """Keep the pieces of the model's solve for a while; it is to be run on the discretisation that is returned."""
    if not isinstance(model, Transformer):
        remedy = "Give the Transformer itself, for instance model.decoder."
        raise ConfigError("the Hamiltonian is that of one flow", got=type(model).__name__, remedy=remedy)
    adjoint = model.adjoint
    depth = model.native.z
    if not isinstance(depth, Fixed) or not isinstance(depth.solver, OneStep):
        remedy = "Set model.native to fixed steps of a one-step solver, for instance Fixed(8, RK4())."
        raise ConfigError("the adjoint is walked along fixed steps of the state alone", got=depth, remedy=remedy)
    watch = _Watch()
    try:
        model.adjoint = watch
        yield model.native.replace(z=replace(depth, solver=_Ends(depth.solver))), watch
    finally:
        model.adjoint = adjoint


class _Back:
    """The way back through a walk."""

    def __init__(self, walk: _Walk, parameters: Mapping[str, nn.Parameter]) -> None:
        self.walk = walk
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        pairs = zip(tensors(walk.args), tensors(walk.leaves), strict=True)
        self.sources, self.leaves = map(list, zip(*((s, t) for s, t in pairs if s.requires_grad), strict=True))
        self.nodes = [z for z, _ in walk.route.steps] + [sum(walk.route.steps[-1])]
        self.widths = [dz for _, dz in walk.route.steps]

    def path(self, value: Tensor) -> HamiltonianPath:
        """Everything, from the end to the start."""
        last = tensors(self.walk.final)
        found = torch.autograd.grad(value, [*last, *self.parameters], allow_unused=True, retain_graph=True)
        a = [_or_zero(g, t) for g, t in zip(found[: len(last)], last, strict=True)]
        gradient = [_or_zero(g, p) for g, p in zip(found[len(last) :], self.parameters, strict=True)]
        paid = a[1] if len(a) > 1 else None  # the weight of each sample's running cost in J
        continuous = [g.clone() for g in gradient]
        weights = _simpson(self.widths)
        states = [tensors(self.walk.final)[0].detach()]
        adjoints = [a[0]]
        each: list[Tensor] = []
        shares: list[list[Tensor]] = []
        for i in reversed(range(len(self.walk.steps) + 1)):
            one, slopes = self._at(i, states[0], a[0], paid)
            each.insert(0, one)
            continuous = [c + weights[i] * s for c, s in zip(continuous, slopes, strict=True)]
            if i == 0:
                break
            start, end = self.walk.steps[i - 1]
            a, share = self._pulled(tensors(end), tensors(start), a)
            gradient = [g + s for g, s in zip(gradient, share, strict=True)]
            shares.insert(0, [s.norm() / self.widths[i - 1] for s in share])
            states.insert(0, tensors(start)[0].detach())
            adjoints.insert(0, a[0])
        first = self._by_parameters(tensors(self.walk.x0)[:1], a[:1])
        return HamiltonianPath(
            torch.tensor(self.nodes, dtype=torch.float64),
            torch.stack(each),
            tuple(states),
            tuple(adjoints),
            dict(zip(self.names, torch.stack([torch.stack(row) for row in shares], 1), strict=True)),
            dict(zip(self.names, (g + s for g, s in zip(gradient, first, strict=True)), strict=True)),
            dict(zip(self.names, (g + s for g, s in zip(continuous, first, strict=True)), strict=True)),
            float(value.detach()),
        )

    def _at(self, i: int, x: Tensor, a: Tensor, paid: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """H of each sample at node i, and ∂H/∂θ."""
        field = _velocity(self.walk.route)
        cost = _cost(self.walk.route)
        z = self.nodes[i]
        with torch.enable_grad():
            x = x.requires_grad_()
            velocity = field(z, x, self.walk.leaves)
            each = (a * velocity).flatten(1).sum(1)
            if cost is not None and paid is not None:
                each = each + paid * cost(z, x, velocity, self.walk.leaves)
            found = torch.autograd.grad(each.sum(), self.leaves, allow_unused=True)
        return each.detach(), self._by_parameters(self.sources, found)

    def _pulled(self, end: Any, start: Any, a: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The adjoint one step earlier, and what the step adds to the gradient."""
        pairs = [(e, g) for e, g in zip(end, a, strict=True) if e.requires_grad]
        ends = [e for e, _ in pairs]
        given = [g for _, g in pairs]
        found = torch.autograd.grad(ends, [*start, *self.leaves], given, allow_unused=True)
        before = [_or_zero(g, t) for g, t in zip(found[: len(start)], start, strict=True)]
        return [before[0], *a[1:]], self._by_parameters(self.sources, found[len(start) :])

    def _by_parameters(self, sources: Sequence[Tensor], given: Sequence[Tensor | None]) -> list[Tensor]:
        """Gradients by what the flow was given, as gradients by the parameters."""
        used = [(s, g) for s, g in zip(sources, given, strict=True) if g is not None and s.requires_grad]
        if not used:
            return [torch.zeros_like(p) for p in self.parameters]
        found = torch.autograd.grad(
            [s for s, _ in used], self.parameters, [g for _, g in used], allow_unused=True, retain_graph=True
        )
        return [_or_zero(g, p) for g, p in zip(found, self.parameters, strict=True)]


def _velocity(route: StepPlan) -> Any:
    """The velocity of the state: the field, or what a solver on a manifold makes of it."""
    field = route.field.base if isinstance(route.field, Costed) else route.field
    return velocity_of(route.solver, field)


def _cost(route: StepPlan) -> Cost | None:
    if isinstance(route.field, Costed):
        return route.field.cost
    return route.solver.cost if isinstance(route.solver, Chord) else None


def _cut(x: Any) -> Any:
    return mapped(x, lambda t: t.detach().requires_grad_())


def _or_zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def _simpson(widths: Sequence[float]) -> list[float]:
    """Weights of the nodes of equal steps."""
    count = len(widths)
    dz = widths[0]
    if count % 2:
        return [dz / 2, *[dz] * (count - 1), dz / 2]
    return [dz / 3 * (1 if i in (0, count) else 4 if i % 2 else 2) for i in range(count + 1)]


def _plot(path: HamiltonianPath, where: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(3, 1, figsize=(8.4, 7.6), sharex=True, layout="constrained")
    z = path.z
    middle = (path.z[1:] + path.z[:-1]) / 2
    panels[0].plot(z, path.h.double(), "o-", color="#0072b2", ms=4)
    panels[0].set(ylabel="H = ⟨a, F⟩ + R", title="Training as optimal control, along depth")
    panels[1].plot(z, path.adjoint_norm.double(), "o-", color="#cc79a7", ms=4)
    panels[1].set(ylabel="‖a‖, adjoint", yscale="log")
    largest = sorted(path.share, key=lambda name: -float(path.share[name].sum()))[:5]
    for name in largest:
        panels[2].plot(middle, path.share[name].double(), "-", lw=1.1, label=name.removesuffix(".coefficients"))
    panels[2].plot(middle, path.density.double(), "k-", lw=2.2, label="all parameters")
    panels[2].set(ylabel="‖∂H/∂θ‖, gradient", xlabel="depth z", yscale="log")
    panels[2].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for panel in panels:
        panel.grid(alpha=0.3)
    figure.align_ylabels(panels)
    where.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(where, dpi=140)
    plt.close(figure)
    return where
