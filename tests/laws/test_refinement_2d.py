"""M8 and M11: the same slopes on the square, with product rules and scattered points."""

import pytest
import torch

from continua.axes import Discretisation, GaussLegendre, Interval, Midpoint, Product, ProductRule, Trapezoid
from continua.models.batch import Batch
from continua.models.refine import refine_samples, refine_time, smooth_input, smooth_model
from tests.measure import settles

BATCH = Batch(smooth_input)
SQUARE = Product((Interval(), Interval()))


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def points(n):
    return torch.rand(48, n, 2, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@pytest.mark.spec("M8", "M11")
def test_two_dimensions_converge_at_the_order_of_the_product_rule():
    model = smooth_model(SQUARE)
    exact = model(BATCH, at=Discretisation(t=ProductRule((GaussLegendre(18), GaussLegendre(18)))))
    for rule in (Midpoint, Trapezoid):
        found = refine_time(model, [ProductRule((rule(n), rule(n))) for n in (16, 24, 36)], exact, BATCH)
        assert 2 * found.slope == pytest.approx(rule.order, abs=0.15), found  # in the nodes of each side
    found = refine_time(model, [ProductRule((GaussLegendre(n), GaussLegendre(n))) for n in (3, 5, 8, 12)], exact, BATCH)
    assert settles(found), found


@pytest.mark.slow(reason="two thousand points; test_samples.py refines fewer of them in an integral")
@pytest.mark.spec("M8", "M11", "M4")
def test_scattered_points_converge_with_order_two_in_the_spacing():
    model = smooth_model(SQUARE)
    # few nodes along the widths, the same for both sides: only the points are refined
    few = Discretisation(d=GaussLegendre(8), h=GaussLegendre(3), e=GaussLegendre(4), m=GaussLegendre(8))
    exact = model(BATCH, at=few.replace(t=ProductRule((GaussLegendre(18), GaussLegendre(18)))))
    found = refine_samples(model, lambda n: points(n), (256, 512, 1024, 2048), exact, at=few)
    assert 2 * found.slope == pytest.approx(2.0, abs=0.3), found  # spacing = n^(−1/2)
