"""What a forward and a backward pass cost, from the discretisation alone: no batch is run.

FLOPs are those of matrix products (a multiplication and an addition count as two), bytes those that a forward pass
keeps for its backward pass. Norms, nonlinearities and softmax are O(width) a token and are left out of the FLOPs.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from continua.axes import Axes, Depths, Discretisation, Grids, Points, Sites, coordinates
from continua.errors import ConfigError, ShapeError
from continua.fields import Expansion, Nodal
from continua.flow import Fixed, VectorField, depths, solve
from continua.flow.stepping import rehearsed
from continua.models import (
    EncoderDecoder,
    Narrowed,
    Observations,
    Patches,
    Queries,
    Readout,
    Tokens,
    Transformer,
    View,
    Widened,
)
from continua.models.latent import Latent
from continua.operators import (
    Apply,
    Attention,
    Beside,
    Causal,
    Constraint,
    Drop,
    FromDepth,
    Integral,
    LayerNorm,
    LayerScale,
    Operator,
    Pointwise,
    Position,
    PreNorm,
    Project,
    RMSNorm,
    Skip,
    SpectralConvolution,
    SphereProjection,
    Subquadratic,
)
from continua.operators.attention.fused import BLOCK
from continua.settings import checked

DOUBLE = torch.empty((), dtype=torch.float64)


@dataclass(frozen=True)
class CostItem:
    """One kind of work: how often it is done, and the FLOPs and kept numbers of doing it once."""

    name: str
    forward: int = 0
    backward: int = 0
    kept: int = 0  # numbers, not bytes
    times: int = 1


@dataclass(frozen=True)
class Complexity:
    """Costs by part of the model. ``bytes`` is what stays alive between the forward and the backward pass."""

    costs: tuple[CostItem, ...]
    parameters: int
    width: int  # bytes of one number

    @property
    def forward(self) -> int:
        """FLOPs of the forward pass."""
        return sum(cost.times * cost.forward for cost in self.costs)

    @property
    def backward(self) -> int:
        """FLOPs of the backward pass, all parameters and the first state included."""
        return sum(cost.times * cost.backward for cost in self.costs)

    @property
    def flops(self) -> int:
        """FLOPs of both passes."""
        return self.forward + self.backward

    @property
    def bytes(self) -> int:
        """Bytes kept for the backward pass, parameters not counted."""
        return self.width * sum(cost.times * cost.kept for cost in self.costs)

    def of(self, name: str) -> int:
        """FLOPs of both passes in the costs whose name contains ``name``."""
        return sum(cost.times * (cost.forward + cost.backward) for cost in self.costs if name in cost.name)


@dataclass(frozen=True)
class Sizes:
    """How many nodes every axis has in a call; ``s`` are the sources of cross-attention, ``rows`` those of a batch."""

    b: int
    t: int
    s: int
    rows: int
    d: int
    h: int
    e: int
    m: int
    counted: bool  # tokens are counted, not stamped
    column: int = 0  # one where log-weights of irregular stamps ride beside the inner coordinate


@checked
def predict(
    model: Transformer | EncoderDecoder | View,
    batch_size: int,
    tokens: int,
    at: Discretisation | None = None,
    sources: int = 0,
) -> Complexity:
    """Return the costs of ``model`` for ``batch_size`` sequences of ``tokens`` tokens on the discretisation ``at``.

    Attention of n tokens costs 4bn²he FLOPs a map forward; the fused kernel computes the scores again on the way back
    (2.5 times the forward), a linear map costs twice its forward. ``sources`` are the tokens of an encoder.

    >>> from continua.models import zoo
    >>> model = zoo.gpt2(vocab=50, d=16, heads=2, depth=3, context=64)
    >>> predict(model, 2, 64).of("attention: scores") == 3 * 2 * (2 + 5) * 2 * 64 * 64 * 16
    True
    """
    if isinstance(model, View):
        return predict(model.model, batch_size, tokens, model.discretisation if at is None else at, sources)
    if isinstance(model, EncoderDecoder):
        return _both(model, batch_size, tokens, at, sources or tokens)
    if batch_size < 1 or tokens < 1:
        got = f"{batch_size} sequences of {tokens}"
        remedy = "Give whole numbers above zero."
        raise ShapeError("a batch needs sequences with tokens", got=got, remedy=remedy)
    chosen = model.settle(at)
    n = {letter: getattr(chosen, letter).n for letter in "dhem"}
    counted = isinstance(model.axes.t, Points)
    seen = _seen(model, batch_size, sources or tokens, bool(sources))
    sizes = Sizes(batch_size, tokens, *seen, **n, counted=counted, column=int(chosen.t is None and not counted))
    costs = [*_fields(model, chosen), *_embedding(model.embed, sizes)]
    for index, (part, times) in enumerate(zip(model.block, evaluations(model, chosen.z), strict=True)):
        costs += [replace(cost, name=f"{index} {cost.name}", times=times) for cost in work(part, sizes)]
    costs += _readout(model.readout, sizes)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Complexity(tuple(costs), parameters, next(model.parameters()).element_size())


def _seen(model: Transformer, b: int, sources: int, given: bool) -> tuple[int, int]:
    """What cross-attention sees: sources of a sample, and rows in all. A bank that is alone serves every sample."""
    if model.bank is None:
        return sources, b * sources
    slots = model.bank.slots
    return (slots + sources, b * (slots + sources)) if given else (slots, slots)


def _both(model: EncoderDecoder, b: int, tokens: int, at: Discretisation | None, sources: int) -> Complexity:
    sides = {
        "encoder": predict(model.encoder, b, sources, at),
        "decoder": predict(model.decoder, b, tokens, at, sources),
    }
    costs = [replace(cost, name=f"{side} {cost.name}") for side, found in sides.items() for cost in found.costs]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Complexity(tuple(costs), parameters, sides["decoder"].width)


def evaluations(model: Transformer, depth: Fixed) -> list[int]:
    """How often each part of the block is asked in one solve, found by a dry run on plain numbers."""
    span = (model.axes.z.start, model.axes.z.end)

    def walk(field: VectorField, args: Any) -> None:
        solve(field, 0.0, span, args=args, solver=depth.solver, control=depth)  # type: ignore[arg-type]

    return [len(log) for log in rehearsed(model.block.kinds, walk)]


@functools.singledispatch
def work(operator: Operator, n: Sizes) -> list[CostItem]:
    """The costs of one evaluation of an operator."""
    known = ", ".join(sorted(kind.__name__ for kind in work.registry if kind is not object))
    got = type(operator).__name__
    remedy = f"Known: {known}. Register its cost with complexity.work.register."
    raise ConfigError("the cost of this operator is not known", got=got, remedy=remedy)


def linear(name: str, rows: int, inputs: int, outputs: int, kept: int = 0) -> CostItem:
    """A matrix product of ``rows`` rows: as much again for each of its two gradients."""
    once = 2 * rows * inputs * outputs
    return CostItem(name, once, 2 * once, kept)


@work.register
def _convolution(operator: SpectralConvolution, n: Sizes) -> list[CostItem]:
    """To the waves and back, by dense matrices (less on a product of lines), the product for each wave, and beside."""
    rows = n.b * n.t
    waves = 2 * operator.count
    costs = [
        linear("to waves", n.b * n.d, n.t, waves, rows * n.d),
        linear("waves", n.b * operator.count, 2 * n.d, 2 * n.d, n.b * waves * n.d),
        linear("from waves", n.b * n.d, waves, n.t, n.b * waves * n.d),
    ]
    return [*costs, linear("beside", rows, n.d, n.d)] if operator.beside is not None else costs


@work.register
def _attention(operator: Attention, n: Sizes) -> list[CostItem]:
    """Projections of queries, keys, values and the output; scores and their integral.

    Kept: the input (once for the three projections), queries, keys, values, the answer and its normaliser.
    """
    if isinstance(operator.kernel, Subquadratic):
        got = type(operator.kernel).__name__
        remedy = "Measure it: benchmarks/long.py does."
        raise ConfigError("the cost of a kernel without all pairs depends on the nodes", got=got, remedy=remedy)
    tokens = n.b * n.t
    sources = n.rows if operator.cross else n.b * n.t
    groups = n.h if operator.groups is None else operator.groups
    inner = n.h * n.e
    biased = type(operator.position).pair_bias is not Position.pair_bias
    column = 0 if biased or operator.mask is not None else n.column
    pairs = tokens * n.h * (n.s if operator.cross else n.t)
    once = 2 * pairs * (n.e + column)
    products = 2 if operator.kernel.is_dot else 1  # of a sum of queries and keys only the values' is left
    learned = biased and any(True for _ in operator.position.parameters())
    again = products * once if n.t > BLOCK and _blocked(operator, n) else 0  # blocks are computed twice
    if operator.kernel.is_dot and not learned:
        scores = CostItem("attention: scores", 2 * once, 5 * once + again, tokens * (inner + n.h))
    else:  # a gradient of each pair is asked for: the weights are kept instead of computed again
        kept = tokens * inner + (0 if again else pairs * (3 - products))
        scores = CostItem("attention: scores", products * once, 2 * products * once + again, kept)
    return [
        linear("attention: queries", tokens, n.d, inner, kept=tokens * (n.d + inner)),
        linear("attention: keys and values", sources, n.d, 2 * groups * n.e, kept=2 * sources * groups * n.e),
        scores,
        linear("attention: output", tokens, inner, n.d),
    ]


def _blocked(operator: Attention, n: Sizes) -> bool:
    """Whether attention goes block by block: a bias of each pair that no bias of each key replaces."""
    position = type(operator.position)
    causal = isinstance(operator.mask, Causal) and n.counted and not operator.cross
    by_key = position.pair_bias is Position.pair_bias or (causal and position.key_bias is not Position.key_bias)
    return not (operator.kernel.is_dot and by_key and (operator.mask is None or causal))


@work.register
def _pointwise(operator: Pointwise, n: Sizes) -> list[CostItem]:
    """Kept: the input, the hidden values before and after the nonlinearity, and both factors of a gate."""
    tokens = n.b * n.t
    maps = 1 if operator.gate is None else 2
    kept = tokens * (n.d + n.m * (2 if operator.gate is None else 4))
    return [
        linear("feed-forward: hidden", tokens, n.d, maps * n.m, kept=kept),
        linear("feed-forward: output", tokens, n.m, n.d),
    ]


@work.register
def _integral(operator: Integral, n: Sizes) -> list[CostItem]:
    return [linear("integral", n.b * n.t, n.d, n.d, kept=n.b * n.t * n.d)]


@work.register(LayerNorm)
@work.register(LayerScale)
@work.register(RMSNorm)
@work.register(Constraint)
@work.register(SphereProjection)
def _norm(operator: Operator, n: Sizes) -> list[CostItem]:
    """Kept: the input and two numbers a token."""
    return [CostItem("norm", kept=n.b * n.t * (n.d + 2))]


@work.register
def _apply(operator: Apply, n: Sizes) -> list[CostItem]:
    return [CostItem("nonlinearity", kept=n.b * n.t * n.d)]


@work.register
def _pre_norm(operator: PreNorm, n: Sizes) -> list[CostItem]:
    return [*work(operator.norm, n), *work(operator.inner, n)]


@work.register
def _beside(operator: Beside, n: Sizes) -> list[CostItem]:
    return [*work(operator.first, n), *work(operator.second, n)]


@work.register
def _project(operator: Project, n: Sizes) -> list[CostItem]:
    return work(operator.norm, n)


@work.register(Skip)
@work.register(FromDepth)
def _inner(operator: Any, n: Sizes) -> list[CostItem]:
    return work(operator.inner, n)


@work.register
def _drop(operator: Drop, n: Sizes) -> list[CostItem]:
    """Kept: which entries stay, one byte each, counted as a quarter of a number; at rest nothing is dropped."""
    costs = work(operator.inner, n)
    drops = operator.training and operator.rate > 0.0
    return [*costs, CostItem("dropout", kept=-(-n.b * n.t * n.d // 4))] if drops else costs


def _embedding(embed: Any, n: Sizes) -> list[CostItem]:
    """Look-ups cost no product; observations and patches are a linear map whose input asks for no gradient."""
    if isinstance(embed, Widened):
        own = linear("embedding", n.b * n.t, embed.size, n.d, kept=n.b * n.t * embed.size)
        return [*_embedding(embed.embed, replace(n, d=embed.size)), own]
    if isinstance(embed, Latent):
        return _embedding(embed.inner, n)
    if isinstance(embed, Observations | Patches):
        entries = embed.channels if isinstance(embed, Observations) else embed.pixels.entries
        once = 2 * n.b * n.t * entries * n.d
        return [CostItem("embedding", once, once, n.b * n.t * entries)]
    if isinstance(embed, Queries):
        once = 2 * n.b * n.t * n.d * n.d
        return [CostItem("embedding", once, once, n.b * n.t * n.d)]
    norm = embed.norm if isinstance(embed, Tokens) else None
    return [] if norm is None else [replace(cost, name=f"embedding {cost.name}") for cost in work(norm, n)]


def _readout(readout: Any, n: Sizes) -> list[CostItem]:
    if readout is None:
        return []
    if isinstance(readout, Narrowed):
        own = linear("readout: narrow", n.b * n.t, n.d, readout.size, kept=n.b * n.t * n.d)
        return [own, *_readout(readout.readout, replace(n, d=readout.size))]
    costs = [replace(c, name=f"readout {c.name}") for operator in readout.before for c in work(operator, n)]
    if readout.out is not None:
        rows = n.b * n.t if readout.answers_each_token else n.b
        costs.append(linear("readout: head", rows, n.d, readout.out, kept=rows * n.d))
    return costs


def _fields(model: Transformer, chosen: Discretisation) -> list[CostItem]:
    """Reading weights where they are not stored: one contraction an axis, and as much for its gradient."""
    grids = chosen.grids(model.axes)
    span = (model.axes.z.start, model.axes.z.end)
    depth = chosen.z
    where = depths(model.block.kinds, span, depth.solver, depth)
    read: list[CostItem] = []
    for index, (part, nodes) in enumerate(zip(model.block, where, strict=True)):
        here = grids.with_depths(Depths(nodes))
        once = sum(_reading(field, here, model.axes) for field in part.modules())
        read.append(CostItem(f"{index} fields", once, once))
    outside = [
        module for side in (model.embed, model.readout, model.bank) if side is not None for module in side.modules()
    ]
    once = sum(_reading(field, grids, model.axes) for field in outside)
    if isinstance(model.readout, Readout) and model.readout.tied:  # a tied head reads the table once more
        once += _reading(model.embed.tied_table, grids, model.axes)
    return [cost for cost in [*read, CostItem("embedding and readout fields", once, once)] if cost.forward]


def _reading(field: Any, grids: Grids, axes: Axes) -> int:
    """FLOPs of the contractions of an ``Expansion``, axis after axis; shared heads are read as stored."""
    if not isinstance(field, Expansion):
        return 0
    shape = [basis.size for basis in field.bases.values()]
    flops = 0
    for position, letter in enumerate(field.letters):
        basis = field.bases[letter]
        axis = field.axes[letter]
        where: Sites | None = None if letter == "n" else grids.z if letter == "z" else grids[letter]
        if where is None or axis != axes[letter] or field.is_stored_on(letter, where):
            continue
        if not isinstance(basis, Nodal) or basis.rows(axis, coordinates(where, DOUBLE)) is None:
            flops += 2 * len(where) * math.prod(shape)
        shape[position] = len(where)
    return flops
