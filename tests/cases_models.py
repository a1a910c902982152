"""Small models and what they read: width 8, 2 heads of 4, 12 hidden, 2 steps; 11 words or 2 channels."""

from collections.abc import Callable
from typing import Any

import torch

from continua import axes as ax
from continua import fields as fd
from continua import flow as fl
from continua import operators as op
from continua.axes import Axes, Circle, Discretisation, Grid, Interval, Product, Times, at
from continua.fields import ByBasis, Parametrisation, counted
from continua.flow import Fixed
from continua.models import (
    Bank,
    Batch,
    Cells,
    Convolution,
    EncoderDecoder,
    FromCells,
    LocalStem,
    Observations,
    Pixels,
    Readout,
    States,
    Tiling,
    Tokens,
    Transformer,
    TwoTowers,
    zoo,
)
from continua.models.build import continuous_axes, discrete_axes, post_norm, pre_norm, smooth_bases
from continua.operators import Attention, Causal, Drop, LayerNorm, Parts, Pointwise
from tests.measure import random

WORDS, CHANNELS, STEPS = 11, 2, 2
COUNTED = discrete_axes(8, 2, 12, STEPS)
SMOOTH = at(d=8, h=2, e=4, m=12, z=STEPS)
SMALL: dict[str, Any] = {"d": 8, "heads": 2, "depth": STEPS, "m": 12}
SIZES = {"vocab": WORDS, "context": 16, **SMALL}
LINE, RING, SQUARE = Interval(-1.0, 2.0), Circle(3.0), Product((Interval(), Circle()))


def words(count: int = 6, seed: int = 0) -> Batch:
    """Token numbers, the second sample padded."""
    ids = torch.randint(WORDS, (2, count), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, observed=torch.arange(count) < torch.tensor([[count], [count - 2]]))


def series(count: int = 6, seed: int = 0) -> Batch:
    """Observations at irregular times, one of them missing."""
    times = random(2, count, seed=seed, low=0.0).cumsum(-1) / count * 3
    observed = torch.ones(2, count, dtype=torch.bool)
    observed[1, 2] = False
    return Batch(random(2, count, CHANNELS, seed=seed), times=times, observed=observed)


def scattered(count: int = 12, seed: int = 0) -> Batch:
    """Observations at scattered points of a square."""
    return Batch(random(2, count, CHANNELS, seed=seed), times=random(2, count, 2, seed=seed, low=0.0))


def on_mesh(count: int = 12, seed: int = 0) -> Batch:
    """Functions at the nodes of two meshes, with the measure of each node."""
    grid = Grid(random(2, count, 2, seed=seed, low=0.0), 0.1 * random(2, count, seed=seed + 1, low=0.2))
    return Batch(random(2, count, CHANNELS, seed=seed), grid=grid)


def on_ring(count: int = 9, seed: int = 0) -> Batch:
    """Functions observed at scattered points of a circle."""
    return Batch(random(2, count, CHANNELS, seed=seed), times=random(2, count, seed=seed, low=0.0))


def paired() -> Batch:
    """Words beside other words."""
    return Batch(words().values, source=words(count=5, seed=1))


def heard() -> Batch:
    """Words beside a spectrogram of three channels, already laid out as two frames a token."""
    return Batch(words().values, source=Batch(random(2, 5, 6)))


PIXELS = Pixels(4, 6, channels=2, patch=(2, 2))


def patches() -> Batch:
    """Images, already laid out as patch vectors behind the class token."""
    return Batch(PIXELS.cut(random(2, 2, 4, 6), first=1))


def features() -> Batch:
    """Features of counted nodes."""
    return Batch(random(2, 6, CHANNELS))


def described() -> Batch:
    """Words beside observations."""
    return Batch(words().values, source=Batch(random(2, 5, CHANNELS)))


def asked() -> Batch:
    """Questions in time beside a history; the zeros stand for nothing."""
    return Batch(torch.zeros(2, 4), times=random(2, 4, seed=5, low=0.0), source=series())


def states() -> Batch:
    """A state as it is."""
    return Batch(random(2, 6, 8))


def learned(w: Parametrisation) -> op.Encoding:
    """A table of places."""
    return op.Learned(w, 16)


def discrete(
    *,
    branches: Callable[[Parametrisation], tuple[op.Operator, ...]] | None = None,
    encoding: Callable[[Parametrisation], op.Encoding] | None = learned,
    norm: Callable[[Parametrisation], op.Operator] = LayerNorm,
    place: Callable[..., Parts] = pre_norm,
    solver: fl.Solver | None = None,
    **attention: Any,
) -> Transformer:
    """A word model on counting axes; ``attention`` goes to the attention operator."""
    axes, native = COUNTED
    native = native if solver is None else native.replace(z=Fixed(STEPS, solver))
    w = counted(axes, STEPS)
    if callable(attention.get("position")):
        attention["position"] = attention["position"](w)
    made = (Attention(w, **attention), Pointwise(w)) if branches is None else branches(w)
    embed = Tokens(w.autonomous(), WORDS, encoding and encoding(w.autonomous()))
    readout = Readout(w.autonomous(), WORDS, before=(LayerNorm(w.autonomous()),))
    return Transformer(axes, native, embed, place(made, lambda: norm(w)), readout)


def of_fields(
    make: Callable[[Axes, Discretisation], Parametrisation], d: ax.Axis = RING, pool: bool = False, drop: float = 0.0
) -> Transformer:
    """A series model on continuous axes whose weights are fields of one kind."""
    axes, native = continuous_axes(SMOOTH, t=Times(), d=d)
    w = make(axes, native)
    fixed = w.autonomous()
    branches: tuple[op.Operator, ...] = (Attention(w, mask=Causal(), density=True), Pointwise(w, op.SiLU()))
    if drop:
        branches = tuple(Drop(branch, drop, constant=True) for branch in branches)
    block = pre_norm(branches, lambda: LayerNorm(w))
    readout = Readout(fixed, 3, before=(LayerNorm(fixed),), bias=True, pool=pool)
    return Transformer(axes, native, Observations(fixed, CHANNELS, op.Sinusoidal(axes)), block, readout)


def convolved() -> Transformer:
    """A series model with local fits instead of attention."""
    axes, native = continuous_axes(SMOOTH, t=Times())
    w = ByBasis(axes, smooth_bases(axes, native, 2))
    block = pre_norm((Convolution(w, radii=(0.7,)), Pointwise(w)), lambda: LayerNorm(w))
    embed = Observations(w.autonomous(), CHANNELS)
    return Transformer(axes, native, embed, block, Readout(w.autonomous(), 3, before=(LayerNorm(w.autonomous()),)))


def local_stem(span: int | None = None) -> Transformer:
    """A series model of a token for two units of time behind local kernels."""
    axes, native = continuous_axes(SMOOTH, t=Times())
    w = ByBasis(axes, smooth_bases(axes, native, 2))
    fixed = w.autonomous()
    block = pre_norm((Attention(w), Pointwise(w)), lambda: LayerNorm(w))
    return Transformer(axes, native, LocalStem(fixed, CHANNELS, (2, 1), span=span), block, Readout(fixed, 3, pool=True))


def image_stem() -> Transformer:
    """Images at four by four nodes, four tokens."""
    return zoo.image_classifier(3, d=8, heads=2, depth=STEPS, side=4, stem=(2, 1))


def in_cells() -> Transformer:
    """Functions of a square in cells; absent points are answered too, so the laws of tokens do not hold."""
    axes, native = continuous_axes(SMOOTH, t=SQUARE)
    w = ByBasis(axes, smooth_bases(axes, native, 2))
    fixed, tiling = w.autonomous(), Tiling(SQUARE, (2, 3))
    block = pre_norm((Attention(w), Pointwise(w)), lambda: LayerNorm(w))
    return Transformer(axes, native, Cells(fixed, tiling, CHANNELS), block, FromCells(fixed, tiling, 3))


def with_bases(**bases: fd.Basis) -> Callable[[Axes, Discretisation], ByBasis]:
    """Smooth nodal weights, some letters replaced."""
    return lambda axes, native: ByBasis(axes, {**smooth_bases(axes, native, 2), **bases})


def unnormed(branches: tuple[op.Operator, ...], norm: Callable[[], op.Operator]) -> Parts:
    """Neither pre- nor post-norm."""
    return Parts(branches)


def encoder_decoder() -> EncoderDecoder:
    """Two stacks; the second looks at the first."""
    axes, native = COUNTED
    w = counted(axes, STEPS)
    fixed = w.autonomous()
    encoder = zoo.bert(vocab=WORDS, d=8, heads=2, depth=STEPS, context=16, m=12)
    branches = (Attention(w, mask=Causal()), Attention(w, cross=True), Pointwise(w, op.ReLU()))
    embed = Tokens(fixed, WORDS, op.Learned(fixed, 16))
    readout = Readout(fixed, WORDS, before=(op.RMSNorm(fixed),), tied=True)
    return EncoderDecoder(encoder, Transformer(axes, native, embed, pre_norm(branches, lambda: op.RMSNorm(w)), readout))


def albert(masked_lm: bool = False) -> Transformer:
    """One autonomous field, a table that is narrower than the state."""
    return zoo.albert(WORDS, table_width=5, d=8, heads=2, depth=STEPS, context=16, m=12, masked_lm=masked_lm)


def with_memory(separate: bool, alone: bool = False) -> Any:
    """A decoder with a memory bank, beside an encoder or alone."""
    axes, native = COUNTED
    w = counted(axes, STEPS)
    branches = (Attention(w, mask=Causal()), Attention(w, cross=True), Pointwise(w))
    embed = Tokens(w.autonomous(), WORDS, op.Learned(w.autonomous(), 16))
    readout, bank = Readout(w.autonomous(), WORDS), Bank(w.autonomous(), 3, separate)
    decoder = Transformer(axes, native, embed, pre_norm(branches, lambda: LayerNorm(w)), readout, bank)
    return decoder if alone else EncoderDecoder(zoo.bert(**SIZES), decoder)


def clip() -> TwoTowers:
    """Texts and images beside each other."""
    side = zoo.ClipSide(**SMALL)
    return zoo.clip(WORDS, PIXELS, out=5, context=16, end=WORDS - 1, texts=side, images=side)


def captioned() -> Batch:
    """Words with their end beside images."""
    ids = words().values.clone()
    ids[0, 3] = WORDS - 1
    return Batch(ids, source=patches())


def equation(conserving: bool = False) -> Transformer:
    """An equation of two channels around a circle, whose products and linear part are not zero."""
    options: dict[str, Any] = {"modes": 3, "products": 2, "steps": STEPS, "conserving": conserving}
    model = zoo.evolution(Circle(), 8, spreads=(1.0, 2.0), out=2, **options)
    with torch.no_grad():
        for place, weight in enumerate(model.block.parameters()):
            weight.copy_(0.2 * random(*weight.shape, seed=place))
    return model


def layer() -> Transformer:
    """Layers on their own: a state in, a state out."""
    axes, native = COUNTED
    w = counted(axes)  # one set of weights for all depths
    return Transformer(axes, native, States(), post_norm((Attention(w), Pointwise(w)), lambda: LayerNorm(w)))
