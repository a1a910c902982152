"""Laws of the two ends of a model: embeddings and readouts, by formula on uneven grids, as ``torch.nn`` on points."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import embedding, linear

from continua.axes import Depths, Grids
from continua.models import Batch, Observations, Readout, States, Tokens
from continua.models.embed import START
from continua.operators import GELU, Apply, Integral, LayerNorm
from tests.bound import COUNTED, UNEVEN, apply, counted_grids, double, rows, uneven_grids
from tests.measure import EXACT, gap, random

FIXED = UNEVEN.autonomous()
IDS = torch.tensor([[0, 3, 1, 4, 2], [2, 2, 0, 1, 4]])


def at_an_end(grids: Grids) -> Grids:
    """What stands before or behind the flow is read at one depth, as ``Transformer.prepare`` has it."""
    return replace(grids, z=Depths((START,)))


@pytest.mark.spec("M1", "M10")
def test_words_are_read_on_any_width_grid() -> None:
    one, grids = double(Tokens(FIXED, 5, types=2)), at_an_end(uneven_grids())
    table, types = one.table.on(n=rows(5), d=grids.d), one.types.on(n=rows(2), d=grids.d)
    which = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 0, 1, 0]])
    assert gap(one(Batch(IDS, types=which), grids), table[IDS] + types[which]) < EXACT
    assert gap(one(Batch(IDS), grids), table[IDS] + types[0]) < EXACT
    normed = double(Tokens(FIXED, 5, norm=LayerNorm(FIXED)))
    plain = normed.table.on(n=rows(5), d=grids.d)[IDS]
    assert gap(normed(Batch(IDS), grids), apply(normed.norm, grids, plain, START)) < EXACT


@pytest.mark.spec("M1")
def test_on_points_words_are_an_embedding_and_observations_a_linear_layer() -> None:
    words, grids = double(Tokens(COUNTED, 5)), counted_grids()
    assert torch.equal(words(Batch(IDS), grids), embedding(IDS, words.table.coefficients))
    observed, values = double(Observations(COUNTED, 3)), random(2, 5, 3)
    wanted = linear(values, observed.table.coefficients.T, observed.bias.coefficients[0])
    assert gap(observed(Batch(values), grids), wanted) < EXACT


@pytest.mark.spec("M1", "M4")
def test_observations_are_lifted_on_any_width_grid_and_absent_ones_start_at_zero() -> None:
    one, grids, values = double(Observations(FIXED, 3)), uneven_grids(), random(2, 5, 3)
    table, bias = one.table.on(n=rows(3), d=grids.d), one.bias.on(n=rows(1), d=grids.d)[0]
    wanted = torch.einsum("bti,id->btd", values, table) + bias
    assert gap(one(Batch(values), grids), wanted) < EXACT
    there = random(2, 5) > -0.5
    missing = one(Batch(values), replace(grids, t=grids.t.only(there)))
    assert (missing[~there] == 0).all()
    assert gap(missing[there], wanted[there]) < EXACT


@pytest.mark.spec("M1")
def test_a_given_state_is_handed_over_untouched() -> None:
    x = random(2, 5, 8)
    assert States()(Batch(x), counted_grids()) is x


@pytest.mark.spec("M1", "M10")
@pytest.mark.parametrize("pool", [False, True])
def test_a_readout_integrates_over_the_width_and_averages_over_the_tokens(pool) -> None:
    one = double(Readout(FIXED, 4, before=(LayerNorm(FIXED), Apply(GELU()), Integral(FIXED)), bias=True, pool=pool))
    grids, x = at_an_end(uneven_grids()), random(2, 5, 6)
    y = x
    for operator in one.before:
        y = apply(operator, grids, y, START)
    if pool:
        w = grids.t.weights
        y = torch.einsum("bt,btd->bd", w, y) / w.sum(-1, keepdim=True)
    head = one.head.on(n=rows(4), d=grids.d)
    wanted = torch.einsum("vd,d,...d->...v", head, grids.d.weights, y) + one.bias
    assert gap(one(x, grids, None), wanted) < EXACT


@pytest.mark.spec("M1", "A4")
def test_a_tied_readout_uses_the_words_table() -> None:
    words, one = double(Tokens(FIXED, 5)), Readout(FIXED, 5, tied=True)
    grids, x = uneven_grids(), random(2, 5, 6)
    assert not list(one.parameters())
    table = words.table.on(n=rows(5), d=grids.d)
    wanted = torch.einsum("vd,d,btd->btv", table, grids.d.weights, x)
    assert gap(one(x, grids, words.table), wanted) < EXACT
    x, grids = random(2, 5, 8), counted_grids()
    words = double(Tokens(COUNTED, 5))
    assert torch.equal(one(x, grids, words.table), linear(x, words.table.coefficients))


@pytest.mark.spec("M1", "M4")
def test_a_readout_without_a_head_returns_the_field_and_absent_tokens_are_zero() -> None:
    grids, x = counted_grids(), random(2, 5, 8)
    one = Readout(COUNTED)
    assert one(x, grids, None) is x
    there = torch.tensor([True, True, False, True, False])
    gaps = replace(grids, t=grids.t.only(there))
    assert torch.equal(one(x, gaps, None), torch.where(there[:, None], x, 0.0))
    pooled = Readout(COUNTED, pool=True)
    assert gap(pooled(x, gaps, None), x[:, there].mean(1)) < EXACT
