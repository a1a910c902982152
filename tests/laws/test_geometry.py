"""Laws of the manifolds that weights live on."""

import pytest
import torch

from continua.geometry import simplex, stiefel
from tests.measure import EXACT, gap, random, slope

SHAPES = [(1, 6, 6), (3, 8, 4), (2, 5, 1)]
RETRACTIONS = {"qr": (stiefel.retract_qr, 2), "polar": (lambda q, v: stiefel.polar(q + v), 3)}


def point(shape: tuple[int, int, int]) -> torch.Tensor:
    return stiefel.polar(random(*shape))


@pytest.mark.spec("T6")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_projection_is_tangent_and_idempotent(shape: tuple[int, int, int]) -> None:
    q, v = point(shape), random(*shape, seed=1)
    t = stiefel.project(q, v)
    assert (q.mT @ t + t.mT @ q).abs().max() < EXACT
    assert gap(stiefel.project(q, t), t) < EXACT
    w = stiefel.project(q, random(*shape, seed=2))
    assert ((v - t) * w).sum((1, 2)).abs().max() < EXACT  # what is dropped is orthogonal to every tangent vector


@pytest.mark.spec("T6")
@pytest.mark.parametrize("name", RETRACTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_retractions_stay_and_start_along_the_vector(name: str, shape: tuple[int, int, int]) -> None:
    """R(tv) = exp(tv) + O(t^p): p = 2 for QR, 3 for polar; the exponential map is Edelman's (1998), metric of QQᵀ."""
    retract, order = RETRACTIONS[name]
    q = point(shape)
    v = stiefel.project(q, random(*shape, seed=1))
    steps = (0.1, 0.05, 0.025)
    assert stiefel.defect(retract(q, v)) < EXACT
    assert gap(retract(q, 0 * v), q) < EXACT
    errors = [(retract(q, t * v) - geodesic(q, t * v)).norm().item() for t in steps]
    if shape[-1] > 1 or name == "polar":  # on the sphere QR is polar
        assert abs(-slope(steps, errors) - order) < 0.25
    assert errors[-1] < 1e-2


def geodesic(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[Q, v] exp([[A, −S], [I, A]]) [I; 0] exp(−A) with A = Qᵀv, S = vᵀv."""
    a, s, eye = q.mT @ v, v.mT @ v, torch.eye(q.shape[-1], dtype=q.dtype).expand(len(q), -1, -1)
    grown = torch.linalg.matrix_exp(torch.cat([torch.cat([a, -s], 2), torch.cat([eye, a], 2)], 1))
    return torch.cat([q, v], 2) @ grown[..., : q.shape[-1]] @ torch.linalg.matrix_exp(-a)


@pytest.mark.spec("T6")
def test_transport_ends_tangent() -> None:
    q, v = point((2, 8, 4)), random(2, 8, 4, seed=1)
    v = stiefel.project(q, v)
    moved = stiefel.retract_qr(q, 0.1 * v)
    carried = stiefel.transport(moved, v)
    assert (moved.mT @ carried + carried.mT @ moved).abs().max() < EXACT


@pytest.mark.spec("T6")
def test_polar_is_the_nearest_point() -> None:
    w = random(1, 6, 4)
    nearest = (w - stiefel.polar(w)).norm()
    assert all(nearest <= (w - stiefel.polar(random(1, 6, 4, seed=seed))).norm() for seed in range(20))


@pytest.mark.spec("T6")
def test_the_gradient_by_shares_from_that_by_logits() -> None:
    """∂J/∂p of a function of p alone, up to a constant, recovered from what autograd says of the logits."""
    logits, weights, target = random(3, 5), random(5, low=0.2), random(3, 5, seed=1)
    logits.requires_grad_()
    p = simplex.shares(logits, weights)
    p.retain_grad()
    ((p - target) ** 2).sum().backward()
    got = simplex.ascent(logits.grad, p.detach())
    difference = got - p.grad
    assert gap(difference, difference.mean(-1, keepdim=True).expand_as(difference)) < EXACT
    assert gap(p.sum(-1), torch.ones(3, dtype=torch.float64)) < EXACT
