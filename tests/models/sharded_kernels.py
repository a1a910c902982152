"""Models whose tokens mix in less than all pairs, for tests and benchmarks of tokens in parts."""

from collections.abc import Iterator
from typing import Any

import torch

from continua.axes import Circle, GaussLegendre, Grid, Interval, LeftEnd, Product, Times, at
from continua.fields import ByBasis, Nodal
from continua.models import Batch, Transformer, zoo
from continua.models.build import continuous_axes, smooth_bases
from continua.models.embed import Observations
from continua.models.readout import Readout
from continua.operators import (
    Attention,
    Causal,
    Comb,
    FewSources,
    Local,
    Nystrom,
    Parts,
    PositiveFeatures,
    SpectralConvolution,
)

Case = tuple[str, Any, Batch, Any]  # a name, a model, a batch, and weights of tokens that are differentiated by
TOKENS = 29
CHANNELS = 9  # more than a head is wide: a map that makes queries small is well determined
FEW = at(d=16, h=2, z=2)
NAMES = (
    "local",
    "causal local",
    "comb",
    "features",
    "causal features",
    "causal gaps",
    "nystrom",
    "few sources",
    "scattered waves",
    "waves",
    "waves on a square",
)
CORE = ("local", "features", "causal features", "nystrom", "scattered waves")  # on four processes


def with_kernel(model: Any, kernel: Any) -> Any:
    """The same model with other attention."""
    for part in model.modules():
        if isinstance(part, Attention):
            part.kernel = kernel
    return model


def waves_on(axis: Any) -> Transformer:
    """Convolutions by a few waves on any nodes."""
    axes, native = continuous_axes(FEW, t=axis)
    weights = ByBasis(axes, {**smooth_bases(axes, native, 2), "z": Nodal(LeftEnd(2))})
    fixed = weights.autonomous()
    flow = Parts((SpectralConvolution(weights, 3),))
    return Transformer(axes, native, Observations(fixed, CHANNELS), flow, Readout(fixed, 2, bias=True))


def kernels(dtype: torch.dtype) -> Iterator[Case]:
    """29 tokens divide among no number of processes."""
    torch.manual_seed(0)
    stamps = torch.rand(2, TOKENS, dtype=torch.float64).sort(-1).values * 4
    equal = stamps.clone()
    equal[:, 6:10] = equal[:, 6:7]  # across the ends of chunks
    equal[:, 14:18] = equal[:, 14:15]
    values = torch.randn(2, TOKENS, CHANNELS, dtype=dtype)
    ids = torch.randint(0, 11, (2, TOKENS))
    observed = torch.ones(2, TOKENS, dtype=torch.bool)
    observed[0, 4:9] = False
    observed[1, 20:] = False

    def series(kernel: Any, mask: Any = None) -> Any:
        return with_kernel(Transformer.continuous(channels=CHANNELS, t=Times(), mask=mask, at=FEW), kernel)

    def language(kernel: Any) -> Any:
        return with_kernel(Transformer.continuous(vocab=11, context=TOKENS, at=FEW), kernel)  # causal

    def weighted() -> tuple[Batch, Any]:
        weights = torch.rand(2, TOKENS, dtype=dtype).add(0.1).requires_grad_()
        return Batch(values, grid=Grid(stamps[..., None], weights)), weights

    timed = Batch(values, times=stamps)
    yield "local", series(Local(0.4)), *weighted()
    yield "causal local", series(Local(0.4), Causal()), timed, None
    yield "comb", language(Comb(5.0, 2.0)), Batch(ids, observed=observed), None
    yield "features", series(PositiveFeatures(24)), *weighted()
    yield "causal features", series(PositiveFeatures(24), Causal()), Batch(values, times=equal), None
    yield "causal gaps", language(PositiveFeatures(24)), Batch(ids, observed=observed), None
    yield "nystrom", series(Nystrom(GaussLegendre(3))), *weighted()
    yield "few sources", series(FewSources(GaussLegendre(4))), *weighted()
    weights = torch.rand(TOKENS, dtype=dtype).add(0.1).requires_grad_()
    scattered = Grid((stamps[0] / 4)[:, None].to(dtype), weights)
    yield "scattered waves", waves_on(Interval()), Batch(values, grid=scattered), weights
    small = at(d=16, h=2, m=16, z=2)
    on_circle = zoo.function_map(Circle(), TOKENS, at=small, modes=4)
    yield "waves", on_circle, Batch(torch.randn(2, TOKENS, 1, dtype=dtype)), None
    on_square = zoo.function_map(Product((Interval(), Interval())), 5, at=small, modes=3)
    yield "waves on a square", on_square, Batch(torch.randn(2, 25, 1, dtype=dtype)), None
