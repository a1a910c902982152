"""Weights that are stored as they are used: read without a copy, decided once, and noticed when they change."""

import copy

import pytest
import torch
from torch import nn

import continua as ct
from continua.axes import Counting, Depths
from continua.fields import Expansion
from continua.fields.nodal import Nodal
from continua.operators import Attention
from continua.operators.linear import Moments, show

NEW = 1237  # of no other test: as many nodes are new to the process


def _model(depth: int = 3) -> ct.Transformer:
    torch.manual_seed(0)
    return ct.zoo.bert(vocab=16, d=8, heads=2, depth=depth, context=8).double()


def _attention(model: ct.Transformer) -> Attention:
    return next(part for part in model.block.modules() if isinstance(part, Attention))


def _gradients(model: ct.Transformer) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(torch.arange(6)[None]).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _read(model: ct.Transformer) -> dict[str, torch.Tensor]:
    structure = model.structure()
    where = next(z for z in structure.depths if z is not None)
    return _attention(model).read(structure.grids.with_depths(where)).weights.depth[0.0]


@pytest.mark.spec("B14")
def test_nodes_that_are_new_to_the_process_are_where_numbers_are_stored() -> None:
    field = Expansion({"z": ct.Points(NEW)}, {"z": Nodal(Counting(NEW))})
    assert field.is_stored_on("z", Depths(tuple(float(layer) for layer in range(NEW))))


@pytest.mark.spec("B14")
def test_a_weight_is_the_parameter_and_no_copy() -> None:
    model = _model()
    for _ in range(2):
        model(torch.arange(6)[None])
        assert _read(model)["q"].data_ptr() == _attention(model).q.coefficients.data_ptr()


@pytest.mark.spec("B14")
def test_what_is_known_reads_what_was_read_before() -> None:
    model = _model()
    first, second = _gradients(model), _gradients(model)
    assert _attention(model)._stored._known
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.spec("B14")
@pytest.mark.parametrize("change", ["field", "parameter", "watched", "copy"])
def test_a_change_is_noticed(change: str) -> None:
    model, other = _model(), _model()
    _gradients(model)
    attention = _attention(model)
    if change == "copy":
        model = copy.deepcopy(model)
        attention = _attention(model)
    q = copy.deepcopy(attention.q)
    with torch.no_grad():
        q.coefficients.mul_(3.0)
        _attention(other).q.coefficients.mul_(3.0)
    if change == "field":
        attention.q = q
    else:
        attention.q.coefficients = nn.Parameter(q.coefficients.detach().clone())
    if change == "watched":
        show(attention.q.coefficients, Moments(leading=1, rows=2))
    got, wanted = _gradients(model), _gradients(other)
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    if change == "watched":
        assert attention.q.coefficients.moments.count is not None
