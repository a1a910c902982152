"""Graph attention: additive scores over neighbours equal a dense GAT layer written by hand (Veličković et al. 2018)."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import elu, leaky_relu

import continua as ct
from continua.errors import MaskError
from continua.fields import counted
from continua.models import States
from continua.models.build import discrete_axes
from continua.operators import ELU, Additive, Apply, Attention, Neighbours, Parts, Project, Skip
from continua.operators.attention import fused
from tests.exact import gap, gradients, numbers, worst
from tests.refusals import refused

N, D, HEADS, E = 7, 6, 2, 3
EXACT = 1e-12  # float64 round-off
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 6, 6, 0]])  # source → target


def adjacency(edges: Tensor = EDGES, count: int = N) -> Tensor:
    """True where t looks at s; every node sees itself."""
    allowed = torch.eye(count, dtype=torch.bool)
    allowed[edges[1], edges[0]] = True
    return allowed


def dense(x: Tensor, w: Tensor, a1: Tensor, a2: Tensor, allowed: Tensor) -> Tensor:
    """x'_i = ELU ‖_h Σ_j softmax_j(LeakyReLU(aᵀ[W x_i ‖ W x_j])) W x_j, every head and node at once."""
    wx = torch.einsum("hec,btc->bhte", w, x)
    scores = (wx * a1[:, None]).sum(-1)[..., :, None] + (wx * a2[:, None]).sum(-1)[..., None, :]
    alpha = leaky_relu(scores, 0.2).masked_fill(~allowed, -torch.inf).softmax(-1)
    return elu((alpha @ wx).transpose(1, 2).flatten(2))


def layer(mask: Neighbours | None) -> ct.Transformer:
    """One layer of zoo.gat on its own: a state in, a state out."""
    axes, native = discrete_axes(D, HEADS, 4 * D, 1)
    attention = Attention(counted(axes, 1), mask=mask, kernel=Additive(), bias=())
    return ct.Transformer(axes, native, States(), Parts((Skip(attention, -1.0), Project(Apply(ELU()))))).double()


def as_ours(w: Tensor, a1: Tensor, a2: Tensor) -> dict[str, Tensor]:
    """Q = a₁ ⊙ W, K = a₂ ⊙ W, V = W, O = the concatenation of heads."""
    name = "block.parts.0.inner.{}.coefficients"
    values = {"q": a1[..., None] * w, "k": a2[..., None] * w, "v": w, "o": torch.eye(D).double().reshape(D, HEADS, E)}
    return {name.format(key): value[None] for key, value in values.items()}


@pytest.mark.spec("A8")
@pytest.mark.parametrize("said", ["edges", "pairs"])
@pytest.mark.parametrize("block", [1024, 3], ids=["one block", "blocks of 3 rows"])
def test_a_layer_is_the_dense_gat_layer_with_all_gradients(said, block, monkeypatch) -> None:
    monkeypatch.setattr(fused, "BLOCK", block)
    x = numbers(2, N, D).requires_grad_()
    leaves = {
        name: numbers(*shape, seed=seed).requires_grad_()
        for seed, (name, shape) in enumerate({"w": (HEADS, E, D), "a1": (HEADS, E), "a2": (HEADS, E)}.items(), start=1)
    }
    model = layer(Neighbours.of(EDGES) if said == "edges" else None)
    batch = ct.Batch(x, pairs=None if said == "edges" else adjacency())
    ours = functional_call(model, as_ours(**leaves), (batch,))
    theirs = dense(x, **leaves, allowed=adjacency())
    assert gap(ours, theirs) <= EXACT
    towards, every = numbers(*theirs.shape, seed=9), {"x": x, **leaves}
    assert worst(gradients((ours * towards).sum(), every), gradients((theirs * towards).sum(), every)) <= EXACT


@pytest.mark.spec("A8")
def test_edges_and_pairs_say_the_same_graph_to_the_whole_network() -> None:
    torch.manual_seed(0)
    model = ct.zoo.gat(channels=3, out=4, d=8, heads=2, depth=3, edges=EDGES).double()
    free = ct.zoo.gat(channels=3, out=4, d=8, heads=2, depth=3).double()
    free.load_state_dict(model.state_dict())
    x = numbers(2, N, 3)
    assert gap(model(x), free(ct.Batch(x, pairs=adjacency()))) <= EXACT
    each = torch.stack([adjacency(), adjacency(EDGES.flip(0))])
    both = free(ct.Batch(x, pairs=each))
    assert gap(both[1:], free(ct.Batch(x[1:], pairs=each[1]))) <= EXACT
    assert gap(both[1:], model(x)[1:]) > 1e-3


@pytest.mark.spec("A8")
def test_only_neighbours_within_depth_steps_matter() -> None:
    model = ct.zoo.gat(channels=2, out=2, d=8, heads=2, depth=2, edges=torch.tensor([[0, 1, 2], [1, 2, 3]])).double()
    x = numbers(1, 5, 2)
    changed = x.clone()
    changed[:, 0] += 1.0  # reaches 1 and 2 in two layers, neither 3 nor the lonely 4
    moved = (model(changed) - model(x)).abs().amax(-1)[0]
    assert (moved[:3] > 1e-6).all()
    assert (moved[3:] == 0).all()


@pytest.mark.spec("A8")
def test_the_scores_are_integrals_so_the_inner_axis_can_be_refined() -> None:
    """Twice the nodes at half the weight: both Σ q and Σ k must carry the measure of e."""
    q, k = numbers(1, 2, 4, 3), numbers(1, 2, 5, 3, seed=1)
    twice = Additive().scores(*(x.repeat_interleave(2, -1) / 2 for x in (q, k)), 1.0)
    assert gap(twice, Additive().scores(q, k, 1.0)) <= EXACT


@pytest.mark.spec("A8")
def test_edges_are_looked_up_like_an_adjacency_matrix() -> None:
    torch.manual_seed(0)
    for edges in (torch.randint(20, (2, 60)), torch.zeros(2, 0, dtype=torch.long)):
        nodes = torch.randperm(25).double()[:, None]
        there = torch.zeros(25, 25, dtype=torch.bool)
        there[edges[1], edges[0]] = True
        index = nodes[:, 0].long()
        wanted = there[index][:, index]
        assert torch.equal(Neighbours.of(edges, itself=False).allowed(nodes, nodes), wanted)
        assert torch.equal(Neighbours.of(edges).allowed(nodes, nodes), wanted | torch.eye(25, dtype=torch.bool))
        assert not Neighbours.of(edges, itself=False).allowed(nodes + 0.5, nodes + 0.5).any()


@pytest.mark.spec("A8")
def test_bad_graphs_are_refused() -> None:
    x = numbers(2, N, 3)
    alone = adjacency()
    alone[2] = False
    model = ct.zoo.gat(channels=3, d=8, heads=2).double()
    with refused(MaskError, "query 2 of sample 0", "Allow it at least one key"):
        model(ct.Batch(x, pairs=alone))
    without = ct.zoo.gat(channels=3, d=8, heads=2, edges=Neighbours.of(EDGES[:, :4], itself=False)).double()
    with refused(MaskError, "query 0 of sample 0", "Allow it at least one key"):
        without(x)
    with refused(MaskError, "torch.float32 [2, 3]", "whole numbers"):
        Neighbours.of(torch.zeros(2, 3))
    with refused(MaskError, "[3, 2]", "a row of sources and a row of targets"):
        Neighbours.of(torch.zeros(3, 2, dtype=torch.long))
    with refused(MaskError, "2 and 1", "one source for each target"):
        Neighbours((0, 1), (1,))
    with refused(MaskError, "another number", "Number the nodes"):
        Neighbours((0, -1), (1, 2))
    with refused(MaskError, "points of a plane", "counted tokens"):
        Neighbours((0,), (1,)).allowed(torch.zeros(2, 2), torch.zeros(2, 2))
