"""Attention through latent tokens: the discrete cases, the measure, and a cost that is linear in the nodes."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

from continua.axes import Grid, at
from continua.data.mesh_features import SQUARE
from continua.lab.cost.memory import peak_bytes
from continua.models import Batch
from continua.models.zoo import LatentAttention, mesh_map
from continua.operators import Gates, Slices
from tests.bound import COUNTED, apply, counted_grids, double
from tests.measure import EXACT, gap, random, stirred

pytestmark = pytest.mark.spec("B16")
KINDS = [kind for kind in LatentAttention if kind is not LatentAttention.NONE]


def small(kind: LatentAttention, modes: int = 2):
    torch.default_generator.manual_seed(0)
    model = mesh_map(SQUARE, channels=3, at=at(d=8, h=2, e=4, m=8, z=2), modes=modes, attention=kind, tokens=3)
    return stirred(model)


def batch(count: int = 20, samples: int = 2) -> Batch:
    grid = Grid(random(samples, count, 2, low=0.0), 0.05 * random(samples, count, low=0.1))
    return Batch(random(samples, count, 3, seed=1), grid=grid)


def test_gates_on_equal_weights_are_flare() -> None:
    """Latent queries gather by one softmax attention, and nodes ask what was gathered by another."""
    operator = double(Gates(COUNTED, 5))
    x = random(2, 7, 8)
    w = {name: getattr(operator, name).coefficients for name in ("latent", "k", "v", "o", "bk", "bv", "bo")}
    k = torch.einsum("bnc,hec->bhne", x, w["k"]) + w["bk"][:, None]
    v = torch.einsum("bnc,hec->bhne", x, w["v"]) + w["bv"][:, None]
    latent = w["latent"].transpose(0, 1).expand(2, -1, -1, -1)
    gathered = attend(latent, k, v)
    wanted = torch.einsum("bhne,dhe->bnd", attend(k, latent, gathered), w["o"]) + w["bo"]
    assert gap(apply(operator, counted_grids(7), x), wanted) < EXACT


def test_slices_on_equal_weights_are_physics_attention() -> None:
    """Node by node and slice by slice, as the formula has it."""
    operator = double(Slices(COUNTED, 5))
    x = random(1, 7, 8)
    w = {name: getattr(operator, name).coefficients for name in ("slice", "offset", "q", "k", "v", "o", "bo")}
    b = {name: getattr(operator, f"b{name}").coefficients for name in "qkv"}
    share = torch.softmax(x[0] @ w["slice"].mT + w["offset"], -1)
    mass = share.mean(0)
    tokens = torch.stack([(share[:, l : l + 1] * x[0]).mean(0) / mass[l] for l in range(5)])
    q, k, v = (torch.einsum("lc,hec->hle", tokens, w[name]) + b[name][:, None] for name in "qkv")
    alpha = torch.softmax(q @ k.mT / 2**0.5 + mass.log(), -1)
    after = torch.einsum("hle,dhe->ld", alpha @ v, w["o"]) + w["bo"]
    assert gap(apply(operator, counted_grids(7), x)[0], share @ after) < EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_in_two_halves_changes_nothing(kind: LatentAttention) -> None:
    model = small(kind)
    given = batch()
    halves = Grid(given.grid.nodes.repeat_interleave(2, 1), given.grid.weights.repeat_interleave(2, 1) / 2)
    answer = model(Batch(given.values.repeat_interleave(2, 1), grid=halves))
    assert gap(answer[:, ::2], model(given)) < EXACT
    unequal = Grid(given.grid.nodes, torch.ones_like(given.grid.weights))
    assert gap(model(Batch(given.values, grid=unequal)), model(given)) > 1e-3  # the measure matters


@pytest.mark.parametrize("kind", KINDS)
def test_an_absent_node_is_not_there(kind: LatentAttention) -> None:
    model = small(kind)
    given = batch()
    weights = given.grid.weights.clone()
    weights[:, 13:] = 0.0
    whole = model(Batch(given.values, grid=Grid(given.grid.nodes, weights, has_gaps=True)))
    cut = model(Batch(given.values[:, :13], grid=Grid(given.grid.nodes[:, :13], weights[:, :13])))
    assert gap(whole[:, :13], cut) < EXACT
    assert float(whole[:, 13:].detach().abs().max()) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_nodes_does_not_matter(kind: LatentAttention) -> None:
    model = small(kind)
    given = batch()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    moved = Grid(given.grid.nodes[:, order], given.grid.weights[:, order])
    assert gap(model(Batch(given.values[:, order], grid=moved)), model(given)[:, order]) < EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_linear_in_the_nodes(kind: LatentAttention) -> None:
    model = small(kind, modes=2)
    few, many = (peak_bytes(lambda n=n: model(batch(n, 1)).sum().backward()) for n in (200, 800))
    assert many < 4.2 * few


def test_a_map_on_meshes_has_waves_or_not() -> None:
    with_waves = small(LatentAttention.SLICES, modes=2)
    without = small(LatentAttention.NONE, modes=0)
    given = batch()
    moved = Grid(given.grid.nodes.flip(1), given.grid.weights)
    assert gap(without(Batch(given.values, grid=moved)), without(given)) == 0.0  # pointwise: it asks nobody where
    assert gap(with_waves(Batch(given.values, grid=moved)), with_waves(given)) > 1e-3
