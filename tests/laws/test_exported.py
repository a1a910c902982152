"""One law of all models: exported with open numbers of samples and tokens, they answer other batches alike."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim, ShapesCollection

import continua as ct
from continua.models import Batch
from tests.cases import MODELS, made
from tests.measure import EXACT, gap
from tests.shallow import one_layer
from tests.slow import slow_but

pytestmark = pytest.mark.unshaped  # checked functions do not compile
SCATTERED = ("points of a plane", "functions on a square")  # the weights of scattered points come with the data
# one number of tokens is part of what these are: their position in a lattice, a graph, or the number of sources drawn
TOKENS_ARE_GIVEN = ("vit", "graph attention", "functions on a circle", "kernel ")
FREE = [name for name in MODELS if name not in SCATTERED]
QUICK = ("gpt2", "bert", "t5", "llama", "vit", "albert", "continuous words", "continuous series")  # one of a kind
# the first has another width, fewer heads and more steps, the others one of these; solvers: test_compiled_flow.py
VIEWS = [ct.at(d=4, h=1, z=3), ct.at(d=4), ct.at(h=1), ct.at(z=3), ct.at(z=ct.Fixed(2, ct.RK4()))]


def opened(batch: Any, shapes: ShapesCollection, tokens: bool) -> None:
    """Leave samples and tokens of every tensor open."""
    for tensor in tensors(batch):
        if tensor.dim() > 1:
            shapes[tensor] = {0: Dim.AUTO, 1: Dim.AUTO} if tokens else {0: Dim.AUTO}


def tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if is_dataclass(batch):
        return [tensor for f in fields(batch) for tensor in tensors(getattr(batch, f.name))]
    return []


def other(batch: Batch, samples: int, tokens: int | None) -> Batch:
    """The samples again and again, and the first tokens of each."""
    changed = {}
    for f in fields(batch):
        value = getattr(batch, f.name)
        if isinstance(value, Tensor) and value.dim() > 1:
            more = torch.cat([value] * (samples // len(value) + 1))[:samples]
            changed[f.name] = more if tokens is None else more[:, :tokens]
        elif isinstance(value, Batch):
            changed[f.name] = other(value, samples, tokens)
    return replace(batch, **changed)


@pytest.mark.spec("B9", "B2")
@pytest.mark.parametrize("name", QUICK)
def test_an_exported_model_answers_other_shapes(name: str) -> None:
    with one_layer():
        model = MODELS[name].model()
    exported_agrees(model, name)


@pytest.mark.slow(reason="two minutes of tracing for all of them")
@pytest.mark.spec("B9", "B2")
@pytest.mark.parametrize("name", FREE)
def test_an_exported_model_of_two_layers_answers_other_shapes(name: str) -> None:
    exported_agrees(made(name)[0], name)


def exported_agrees(model: Any, name: str) -> None:
    batch = MODELS[name].batch()
    free = not name.startswith(TOKENS_ARE_GIVEN)
    shapes = ShapesCollection()
    opened(batch, shapes, free)
    program = torch.export.export(model, (batch,), dynamic_shapes=shapes)
    for samples, tokens in ((2, None), (3, 4 if free else None), (5, 3 if free else None)):
        given = other(batch, samples, tokens)
        assert gap(program.module()(given), model(given)) < EXACT


@pytest.mark.spec("B9", "B2", "M10")
@pytest.mark.parametrize("at", slow_but(VIEWS[:1], VIEWS, "a second of tracing each, like the first one"), ids=str)
def test_another_grid_is_exported_as_well(at: ct.Discretisation) -> None:
    model, batch, _ = made("continuous words")
    ids = batch.values
    shapes = ShapesCollection()
    opened(ids, shapes, True)
    program = torch.export.export(model, (ids, at), dynamic_shapes=shapes)
    for given in (ids, ids[:1, :4], torch.cat([ids, ids])[:, :3]):
        assert gap(program.module()(given, at), model(given, at)) < EXACT
