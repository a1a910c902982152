"""A model opened for the probes: which parts its layers have, what their weights are at a depth, and where it steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from continua.axes import Discretisation, Grid, Grids
from continua.axes.grid import counting
from continua.errors import ConfigError
from continua.fields import Expansion
from continua.flow import Euler, Fixed, LieTrotter
from continua.models import EncoderDecoder, Transformer, View
from continua.operators import (
    Attention,
    Constraint,
    Context,
    Drop,
    LayerNorm,
    Operator,
    Pointwise,
    PreNorm,
    Project,
    RMSNorm,
    Skip,
    SphereProjection,
)
from continua.operators.operator import Operands
from continua.typing import Args, Tensor

ATTENTION = "attention"
FEED = "feed-forward"
NORM = "norm"
NORMS = (LayerNorm, RMSNorm, Constraint, SphereProjection)
KNOWN = "Known are blocks of one self-attention, feed-forward maps and norms; look at others with model.states(batch)."


@dataclass(frozen=True)
class Sublayer:
    """One part of a block: γx + f(N(x)) of a branch f, where N is its norm if it has one inside, or x ← N(x)."""

    kind: str
    operator: Any  # the attention, the feed-forward map or the norm itself
    norm: Operator | None = None  # inside the branch: pre-norm
    gamma: float = 0.0


@dataclass(frozen=True)
class Stack:
    """A model on one discretisation, its parts by name, and its weights read where its steps need them."""

    model: Transformer
    at: Discretisation
    parts: tuple[Sublayer, ...]
    grids: Grids
    field: Any  # the bound parts, for those who step with the model's own functions
    args: list[Args]

    @property
    def steps(self) -> tuple[tuple[float, float], ...]:
        """(z, dz) of each layer. Discrete case: layers 0…L−1 of length one."""
        return tuple(self.at.z.walk((self.model.axes.z.start, self.model.axes.z.end)))

    @property
    def attention(self) -> Sublayer:
        """The part that lets tokens meet."""
        return self.parts[0]

    @property
    def is_post_norm(self) -> bool:
        """Whether layers end on a set: the state is projected."""
        return any(part.kind == NORM for part in self.parts)

    @property
    def is_shared(self) -> bool:
        """Whether all layers are one: no weight changes along depth, and all steps have one length."""
        fields = [module for module in self.model.block.modules() if isinstance(module, Expansion)]
        lengths = {round(dz, 12) for _, dz in self.steps}
        return not any("z" in one.letters for one in fields) and len(lengths) == 1

    def weights(self, place: int, z: float) -> dict[str, Tensor]:
        """The weights of a branch or a projection at one depth, in float64, quadrature weights folded in."""
        return _read(self.args[place].inner if self.parts[place].norm is not None else self.args[place], z)

    def norm_weights(self, place: int, z: float) -> dict[str, Tensor]:
        """The weights of the norm inside a branch."""
        return _read(self.args[place].norm, z) if self.parts[place].norm is not None else {}

    @property
    def root(self) -> Tensor:
        """√w(d): values times this have the Euclidean products of the measure. Discrete case: ones."""
        return self.grids.d.weights.sqrt()

    def advance(self, z: float, dz: float, x: Tensor) -> Tensor:
        """One layer with the model's own solver."""
        moved: Tensor = self.at.z.solver.step(self.field, z, dz, x, self.args)
        return moved

    def answer(self, x: Tensor) -> Tensor | None:
        """What the model's own readout says of states at the end of depth; None without one."""
        if self.model.readout is None:
            return None
        answer: Tensor = self.model.readout(x, self.grids, self.model.embed.tied_table)
        return answer


def _read(args: Args, z: float) -> dict[str, Tensor]:
    """What applies at depth z; nothing of an operator without weights."""
    found = args.weights.at(z) if isinstance(args, Operands) else {}
    return {name: value.detach().double().cpu() for name, value in found.items()}


def opened(model: nn.Module | View, t: Grid | None = None, at: Discretisation | None = None) -> Stack:
    """Open a model on the token grid ``t`` (one token if none is given); what the probes cannot follow is refused.

    Of an encoder–decoder its encoder is opened: the one stack of tokens that knows of no other.
    """
    if isinstance(model, View):
        return opened(model.model, t, model.discretisation if at is None else at)
    if isinstance(model, EncoderDecoder):
        return opened(model.encoder, t, at)
    if not isinstance(model, Transformer):
        remedy = "Pass a Transformer, for example continua.from_hf(folder)."
        raise ConfigError("the probes look at models of Continua", got=type(model).__name__, remedy=remedy)
    chosen = model.settle(at)
    if not (isinstance(chosen.z, Fixed) and chosen.z.solver == LieTrotter(Euler())):
        remedy = "Look at model.at(z=Fixed(n, LieTrotter()))."
        raise ConfigError("the probes look at layers, which are Lie–Trotter Euler steps", got=chosen.z, remedy=remedy)
    parts = _parts(model)
    t = counting(1, next(model.parameters())) if t is None else t
    structure = model.structure(at)
    grids = replace(structure.grids, t=t, z=structure.behind)
    with evaluating(model):
        field, args = model.bind(grids, structure, Context())
    return Stack(model, chosen, parts, grids, field, args)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """No dropout while somebody looks."""
    inner = model.model if isinstance(model, View) else model
    was = inner.training
    inner.eval()
    try:
        yield
    finally:
        inner.train(was)


def _parts(model: Transformer) -> tuple[Sublayer, ...]:
    if model.bank is not None:
        raise ConfigError("the probes do not know this block", got="one with a memory bank", remedy=KNOWN)
    parts = tuple(_part(part) for part in model.block)
    kinds = [part.kind for part in parts]
    if kinds[:1] != [ATTENTION] or kinds.count(ATTENTION) > 1:
        raise ConfigError("the probes do not know this block", got=", ".join(kinds) or "an empty one", remedy=KNOWN)
    return parts


def _part(operator: Operator) -> Sublayer:
    """Take wrappers off until a branch or a projection is found."""
    if isinstance(operator, Skip):
        inner = _part(operator.inner)
        return replace(inner, gamma=inner.gamma + operator.gamma)
    if isinstance(operator, Drop):
        return _part(operator.inner)
    if isinstance(operator, PreNorm):
        inner = _part(operator.inner)
        if inner.norm is None and inner.gamma == 0.0 and isinstance(operator.norm, NORMS):
            return replace(inner, norm=operator.norm)
    if isinstance(operator, Project) and isinstance(operator.norm, NORMS):
        return Sublayer(NORM, operator.norm)
    if isinstance(operator, Pointwise):
        return Sublayer(FEED, operator)
    if isinstance(operator, Attention) and not operator.cross and operator.kernel.is_dot:
        return Sublayer(ATTENTION, operator)
    got = type(operator).__name__
    if isinstance(operator, Attention):
        got = "attention to another state" if operator.cross else f"attention with {type(operator.kernel).__name__}"
    raise ConfigError("the probes do not know this part of a block", got=got, remedy=KNOWN)
