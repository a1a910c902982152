"""Fields band-limited in z: the FFT on equal depths is the dense product, and is taken where it is faster."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from continua.axes import (
    Axis,
    Circle,
    Counting,
    Depths,
    GaussLegendre,
    Interval,
    LeftEnd,
    Midpoint,
    Points,
    Rule,
    Sites,
    Trapezoid,
    coordinates,
    grid_on,
)
from continua.fields import Cosine, Expansion, Fourier, Legendre, Nodal, spectral
from continua.flow import RK4, Euler, Fixed, Heun, depths
from tests.measure import gap, random

FFT = 1e-12  # float64, relative to the largest value
LINE, RING = Interval(-1.0, 2.0), Circle(3.0)


def field(axis: Axis, basis: Any) -> Expansion:
    made = Expansion({"z": axis, "d": Points(5)}, {"z": basis, "d": Nodal(Counting(5))}, std=1.0).double()
    with torch.no_grad():
        made.coefficients.copy_(random(basis.size, 5))
    return made


def both(axis: Axis, basis: Any, where: Sites) -> tuple[torch.Tensor, torch.Tensor]:
    """The values by FFT and by the matrix."""
    made = field(axis, basis)
    at = basis.equal(axis, coordinates(where, made.coefficients))
    assert at is not None
    return basis.by_fft(made.coefficients, 0, at), made.matrix("z", where) @ made.coefficients


def by_transform(made: Expansion, where: Sites) -> bool:
    """Whether depth is read here by an inverse FFT."""
    with pytest.MonkeyPatch.context() as patch:
        seen = Mock(wraps=spectral.inverse_fft)
        patch.setattr(spectral, "inverse_fft", seen)
        made.on(z=where)
    return seen.called


@pytest.mark.spec("T3")
@pytest.mark.parametrize("rule", [LeftEnd(24), Midpoint(24), Trapezoid(25)], ids=str)
@pytest.mark.parametrize("axis", [LINE, RING], ids=["line", "ring"])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 11, 22, 23])
@pytest.mark.parametrize("kind", [Fourier, Cosine])
def test_fft_is_the_dense_product(kind: Any, size: int, axis: Axis, rule: Rule) -> None:
    fast, dense = both(axis, kind(size), grid_on(axis, rule))
    assert gap(fast, dense) < FFT


@pytest.mark.spec("T3")
@pytest.mark.parametrize("solver", [Euler(), Heun(), RK4()], ids=str)
@pytest.mark.parametrize("kind", [Fourier, Cosine])
def test_the_depths_of_solvers_are_equal_nodes(kind: Any, solver: Any) -> None:
    """Steps with ends and middles: the end of the span is a node too."""
    where = depths((True,), (-1.0, 2.0), solver, Fixed(20))[0]
    fast, dense = both(LINE, kind(15), Depths(tuple(sorted(where))))
    assert gap(fast, dense) < FFT


@pytest.mark.spec("T3")
@pytest.mark.parametrize("kind", [Fourier, Cosine])
def test_gradients_pass(kind: Any) -> None:
    basis, grid = kind(9), grid_on(LINE, Midpoint(16))
    made, given = field(LINE, basis), random(16, 5, seed=2)
    (wanted,) = torch.autograd.grad((made.matrix("z", grid) @ made.coefficients * given).sum(), made.coefficients)
    fast = basis.by_fft(made.coefficients, 0, basis.equal(LINE, grid.nodes))
    (got,) = torch.autograd.grad((fast * given).sum(), made.coefficients)
    assert gap(got, wanted) < FFT


@pytest.mark.spec("T3")
def test_unequal_and_too_few_nodes_are_left_to_the_matrix() -> None:
    assert Fourier(9).equal(LINE, grid_on(LINE, GaussLegendre(32)).nodes) is None
    assert Fourier(9).equal(LINE, grid_on(LINE, Midpoint(8)).nodes) is None  # wave 4 has no sine at 8 nodes
    assert Fourier(9).equal(LINE, grid_on(LINE, Midpoint(9)).nodes) is not None
    assert Cosine(9).equal(LINE, grid_on(LINE, Midpoint(8)).nodes) is None
    assert Cosine(9).equal(LINE, grid_on(LINE, Midpoint(9)).nodes) is not None
    assert Cosine(3).equal(LINE, grid_on(LINE, Midpoint(1)).nodes) is None
    assert Cosine(3).equal(LINE, torch.tensor([[-1.0], [0.0], [0.4]], dtype=torch.float64)) is None
    part = Depths(tuple(-1.0 + 3.0 * i / 16 for i in range(3, 9)))  # some of the depths of 16 steps
    assert gap(*both(LINE, Cosine(9), part)) < FFT


@pytest.mark.spec("T3")
@pytest.mark.parametrize(("basis", "count"), [(Fourier(Fourier.fft_from + 1), 1200), (Cosine(Cosine.fft_from), 2100)])
def test_a_field_takes_the_fft_where_it_is_faster(basis: Any, count: int) -> None:
    made, grid = field(LINE, basis), grid_on(LINE, Midpoint(count))
    d = grid_on(Points(5), Counting(5))
    assert by_transform(made, grid)
    assert gap(made.on(z=grid, d=d).detach(), (made.matrix("z", grid) @ made.coefficients).detach()) < FFT
    assert not by_transform(made, grid_on(LINE, GaussLegendre(16)))
    few = field(LINE, type(basis)(8))
    assert not by_transform(few, grid)  # a small product is faster than a transform
    assert not by_transform(field(LINE, Legendre(8)), grid)
    assert not by_transform(made.bfloat16(), grid)
