"""Whole models whose tokens are cut into parts, and what they are given."""

from collections.abc import Iterator
from typing import Any

import torch

from continua.axes import GaussLegendre, Grid, Interval, Times, at
from continua.models import Batch, Transformer, zoo
from continua.models.embed import Observations
from continua.models.patches import Pixels
from continua.models.readout import Readout
from continua.models.zoo.series import _Weights
from continua.operators import ALiBi, Attention, Causal, LayerNorm, Window

FEW = at(d=16, h=2, z=2)

Case = tuple[str, Any, Batch, Any]  # a name, a model, a batch, and weights of tokens that are differentiated by


def cases(dtype: torch.dtype) -> Iterator[Case]:
    """Models and batches; neither thirteen tokens nor fifteen divide evenly."""
    torch.manual_seed(0)
    ids = torch.randint(0, 11, (2, 13))
    language = zoo.gpt2(vocab=11, d=16, heads=2, depth=2, context=13)
    yield "gpt2", language, Batch(ids), None
    observed = torch.ones(2, 13, dtype=torch.bool)
    observed[0, 4:9] = False
    observed[1, 10:] = False
    yield "gaps", language, Batch(ids, observed=observed), None
    yield "llama", zoo.llama(vocab=11, d=16, heads=4, depth=2, m=12, groups=2), Batch(ids), None
    absent = torch.ones(2, 13, dtype=torch.bool)
    absent[0, :3] = False
    absent[1, 6:8] = False
    # positions count the tokens that are there, and the first of these answers
    roberta = zoo.roberta(vocab=11, d=16, heads=2, depth=2, context=16, labels=3)
    yield "roberta", roberta, Batch(ids, observed=absent), None
    stamps = torch.rand(2, 15, dtype=torch.float64).sort(-1).values * 4
    values = torch.randn(2, 15, 3, dtype=dtype)
    for name, mask in (("series", Causal()), ("full series", None), ("window", Window(0.5))):
        series = Transformer.continuous(channels=3, t=Times(), mask=mask, at=FEW)
        yield name, series, Batch(values, times=stamps), None
    on_interval = Transformer.continuous(channels=1, t=Interval(), at=FEW.replace(t=GaussLegendre(14)))
    yield "function", on_interval, Batch(lambda x: torch.sin(3 * x)[None].to(dtype)), None
    weights = torch.rand(2, 15, dtype=dtype).add(0.1).requires_grad_()
    grid = Grid(stamps[..., None], weights)
    yield "weighted", Transformer.continuous(channels=3, t=Times(), at=FEW), Batch(values, grid=grid), weights
    yield "pooled", pooled(), Batch(values, times=stamps), None
    images = torch.randn(2, 1, 8, 8, dtype=dtype)
    vit = zoo.vit(Pixels(8, 8, channels=1, patch=(2, 4)), d=16, heads=2, depth=2, labels=3)
    yield "first", vit, Batch(images), None


def pooled() -> Transformer:
    """A classifier of series by attention alone, whose answer is a mean over time."""
    made = _Weights.of(16, 2, 2, None)
    readout = Readout(made.fixed, 4, before=(LayerNorm(made.fixed),), pool=True, bias=True)
    embed = Observations(made.fixed, 3)
    flow = made.flow(Attention(made.moving, position=ALiBi(made.axes)))
    return Transformer(made.axes, made.native, embed, flow, readout)
