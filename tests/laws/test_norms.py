"""Laws of norms: the measure of d, ``torch.nn`` on points, projections onto sets, near-identity for small steps."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from continua.axes import GaussLegendre, Grid, Grids, Interval, Midpoint, at, counted, grid_on
from continua.errors import ContinuaError
from continua.models import Transformer
from continua.operators import Constraint, LayerNorm, Project, RMSNorm, SphereProjection
from tests.bound import COUNTED, DEPTHS, UNEVEN, apply, counted_grids, double, uneven_grids
from tests.cases import NORMS
from tests.measure import EXACT, gap, random, slope

X = random(2, 5, 6)


def read(one, name: str, grids: Grids, layer: int = 1) -> torch.Tensor:
    return getattr(one, name).on(z=grids.z, d=grids.d)[layer]


def share(grids: Grids) -> torch.Tensor:
    return grids.d.weights / grids.d.weights.sum()


@pytest.mark.spec("M6")
@pytest.mark.parametrize("layer", [0, 1])
def test_norms_average_against_the_measure_of_the_width(layer) -> None:
    grids, z = uneven_grids(), DEPTHS[layer]
    p = share(grids)
    one = double(LayerNorm(UNEVEN, eps=1e-3))
    mean = (X * p).sum(-1, keepdim=True)
    variance = ((X - mean) ** 2 * p).sum(-1, keepdim=True)
    wanted = read(one, "scale", grids, layer) * (X - mean) / (variance + 1e-3).sqrt() + read(one, "shift", grids, layer)
    assert gap(apply(one, grids, X, z), wanted) < EXACT
    rms = double(RMSNorm(UNEVEN, eps=1e-3))
    wanted = read(rms, "scale", grids, layer) * X / ((X**2 * p).sum(-1, keepdim=True) + 1e-3).sqrt()
    assert gap(apply(rms, grids, X, z), wanted) < EXACT


@pytest.mark.spec("M6")
def test_on_points_norms_are_those_of_torch() -> None:
    x, grids = random(2, 5, 8), counted_grids()
    ours, theirs = double(LayerNorm(COUNTED, eps=1e-4)), nn.LayerNorm(8, eps=1e-4).double()
    theirs.load_state_dict({"weight": ours.scale.coefficients, "bias": ours.shift.coefficients})
    assert torch.equal(apply(ours, grids, x), theirs(x))
    ours, theirs = double(RMSNorm(COUNTED, eps=1e-4)), nn.RMSNorm(8, eps=1e-4).double()
    theirs.load_state_dict({"weight": ours.scale.coefficients})
    assert torch.equal(apply(ours, grids, x), theirs(x))
    plain = nn.LayerNorm(8, elementwise_affine=False).double()
    assert torch.equal(apply(double(LayerNorm(COUNTED, affine=False)), grids, x), plain(x))


@pytest.mark.spec("M6")
@pytest.mark.parametrize("name", NORMS)
def test_equal_weights_take_the_same_value_by_the_fused_and_the_weighted_path(name) -> None:
    one, grids = double(NORMS[name](UNEVEN)), uneven_grids()
    even = grid_on(Interval(mass=3.0), GaussLegendre(1)).nodes.expand(6, 1) + torch.linspace(0, 0.4, 6)[:, None]
    weights = torch.full((6,), 0.5, dtype=torch.float64)
    fused, weighted = (Grid(even, weights, is_uniform=flag) for flag in (True, False))
    first, second = (apply(one, replace(grids, d=d), X) for d in (fused, weighted))
    assert gap(first, second) < EXACT


@pytest.mark.spec("M6")
@pytest.mark.parametrize("name", NORMS)
def test_the_size_of_the_weights_does_not_matter_only_their_ratio(name) -> None:
    one, grids = double(NORMS[name](UNEVEN)), uneven_grids()
    d = grids.d
    other = replace(grids, d=Grid(d.nodes, d.weights * 7))
    assert gap(apply(one, other, X), apply(one, grids, X)) < EXACT
    doubled = Grid(torch.cat([d.nodes, d.nodes]), torch.cat([d.weights, d.weights]) / 2)
    twice = apply(one, replace(grids, d=doubled), torch.cat([X, X], -1))
    assert gap(twice[..., :6], apply(one, grids, X)) < EXACT


@pytest.mark.spec("M6")
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("grids", [counted_grids(), uneven_grids()], ids=["counted", "uneven"])
def test_norms_keep_the_precision_of_the_state(name, grids) -> None:
    one = NORMS[name](COUNTED if grids.d.is_counting else UNEVEN).float()
    x = random(2, 5, len(grids.d)).float()
    assert apply(one, grids, x).dtype == torch.float32


@pytest.mark.spec("M6")
@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_norms_are_right(name) -> None:
    one, grids = double(NORMS[name](UNEVEN)), uneven_grids()
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: apply(one, grids, x), x)


@pytest.mark.spec("M6")
def test_a_projection_is_the_norm_without_dz() -> None:
    inner = double(LayerNorm(UNEVEN))
    assert not Project(inner).is_flow
    assert torch.equal(apply(Project(inner), uneven_grids(), X), apply(inner, uneven_grids(), X))


# --- the constraint projection ---------------------------------------------------------------------------------------


def constraint(centred: bool = True) -> tuple[Constraint, Grids]:
    one = double(Constraint(UNEVEN, centred=centred))
    grids = uneven_grids()
    with torch.no_grad():
        one.scale.coefficients[0, 0] += 2.0  # keep γ away from zero
    return one, grids


@pytest.mark.spec("M6")
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("layer", [0, 1])
def test_the_constraint_projects_onto_its_set(centred, layer) -> None:
    one, grids = constraint(centred)
    p, scale, shift = share(grids), read(one, "scale", grids, layer), read(one, "shift", grids, layer)
    y = (apply(one, grids, X, DEPTHS[layer]) - shift) / scale
    assert gap((y * y * p).sum(-1), torch.ones(2, 5, dtype=torch.float64)) < 1e-10  # its eps is 1e-12
    if centred:
        assert (y * p).sum(-1).abs().max() < EXACT


@pytest.mark.spec("M6")
@pytest.mark.parametrize("centred", [True, False])
def test_the_constraint_is_idempotent_and_the_identity_on_its_set(centred) -> None:
    one, grids = constraint(centred)
    once = apply(one, grids, X)
    assert gap(once, X) > 0.1
    assert gap(apply(one, grids, once), once) < 1e-10  # up to eps


@pytest.mark.spec("M6")
def test_the_constraint_is_near_the_identity_for_small_steps_and_post_norm_is_not() -> None:
    one, grids = constraint()
    plain = double(LayerNorm(UNEVEN))
    plain.load_state_dict(one.state_dict())
    steps, push = [0.1, 0.05, 0.025, 0.0125], random(2, 5, 6, seed=5)
    moved = {}
    for norm in (one, plain):
        on_set = apply(one, grids, X)
        moved[norm] = [(apply(norm, grids, on_set + dz * push) - on_set).abs().max().item() for dz in steps]
    assert slope(steps, moved[one]) == pytest.approx(-1.0, abs=0.15)  # O(dz)
    assert moved[one][-1] < 0.1
    assert min(moved[plain]) > 0.3, "plain post-norm moves the state by O(1) however small the step"


@pytest.mark.spec("M6")
def test_the_constraint_follows_depth() -> None:
    one, grids = constraint()
    first, second = (apply(one, grids, X, z) for z in DEPTHS)
    assert gap(first, second) > 1e-2


@pytest.mark.spec("M6")
def test_a_vanishing_scale_is_refused() -> None:
    one = double(Constraint(COUNTED))
    with torch.no_grad():
        one.scale.coefficients[3] = 0.0
    with pytest.raises(ContinuaError, match=r"γ\(z\) ≠ 0, got a zero in γ\. Start γ at one"):
        apply(one, counted_grids(), random(2, 5, 8))


@pytest.mark.spec("M6")
def test_unit_scale_and_no_shift_make_the_constraint_a_layer_norm() -> None:
    one = Constraint(COUNTED, eps=1e-5).double()
    x = random(2, 5, 8)
    assert gap(apply(one, counted_grids(), x), nn.LayerNorm(8, eps=1e-5).double()(x)) < EXACT


# --- the sphere ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("M6")
def test_the_sphere_projection_keeps_directions_and_sets_the_radius() -> None:
    one, grids = SphereProjection(radius=1.5), uneven_grids()
    y = apply(one, grids, X)
    p = share(grids)
    assert gap((y * y * p).sum(-1).sqrt(), torch.full((2, 5), 1.5, dtype=torch.float64)) < EXACT
    ratio = y / X
    assert gap(ratio, ratio[..., :1].expand_as(ratio)) < EXACT
    assert (ratio > 0).all()
    assert gap(apply(one, grids, y), y) < EXACT
    assert gap(apply(one, grids, 5 * X), y) < EXACT


@pytest.mark.finding("S11")
def test_a_width_of_one_is_refused_where_its_mean_is_taken_off() -> None:
    """A single coordinate is its own mean: every state would be zero, whatever the data."""
    grids = counted_grids()
    one = replace(grids, d=counted(1, grids.d.weights))
    for norm in (LayerNorm(COUNTED, affine=False), Project(LayerNorm(COUNTED, affine=False))):
        with pytest.raises(ContinuaError, match=r"nothing of a width of one, got one node of d. Use at\(d=2\)"):
            norm.bind(one)
    model = Transformer.continuous(vocab=11, at=at(d=8, h=2, z=2))
    for d in (1, Midpoint(1)):
        with pytest.raises(ContinuaError, match=r"Use at\(d=2\) or more, or a model with RMSNorm"):
            model.at(d=d)(torch.zeros(1, 3, dtype=torch.long))
    assert model.at(d=2)(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 11)
    assert apply(double(RMSNorm(COUNTED, affine=False)), one, random(1, 2, 1), DEPTHS[0]).abs().min() > 0.9
