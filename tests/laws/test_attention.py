"""Laws of attention: its formula on uneven grids, ``torch.nn`` on points, fast paths, masks, the density of heads."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from continua.axes import Counting, Grid, Grids, Interval, Nested, Points, Samples, Times, grid_on
from continua.operators import Attention, Causal, Softmax
from continua.operators.attention.fused import attend_blocked, attend_fused, attend_plain
from tests.bound import COUNTED, DEPTHS, UNEVEN, UNEVEN_AXES, apply, counted_grids, double, uneven_grid, uneven_grids
from tests.cases import MASKS, POSITIONS
from tests.measure import EXACT, gap, random


def formula(one: Attention, grids: Grids, x: Tensor, source: Tensor, weights: Tensor, z: int = 1) -> Tensor:
    """M2 with every integral written as a weighted sum. ``weights`` [b, t, s]: the measure of s that row t sees."""
    c, e, h = (grids[k].weights for k in "ceh")

    def read(name: str) -> Tensor:
        field = getattr(one, name)
        return field.on(**{k: grids[k] for k in field.letters})[z]

    q = torch.einsum("hec,c,btc->bhte", read("q"), c, x) + read("bq")[:, None]
    k = torch.einsum("hec,c,bsc->bhse", read("k"), c, source) + read("bk")[:, None]
    v = torch.einsum("hec,c,bsc->bhse", read("v"), c, source) + read("bv")[:, None]
    tau = 5.0**-0.5  # mass(e)
    a = tau * torch.einsum("bhte,e,bhse->bhts", q, e, k)
    raised = (a - a.amax(-1, keepdim=True)).exp() * weights[:, None]
    alpha = raised / raised.sum(-1, keepdim=True)
    value = torch.einsum("dhe,e,bhse->bhsd", read("o"), e, v)
    rho = one.rho(grids)[z]
    return torch.einsum("h,h,bhts,bhsd->btd", h, rho, alpha, value) + read("bo")


@pytest.mark.spec("M2")
@pytest.mark.parametrize("layer", [0, 1])
def test_attention_is_its_formula_on_uneven_grids(layer) -> None:
    one, grids, x = double(Attention(UNEVEN, density=True)), uneven_grids(), random(2, 5, 6)
    weights = grids.t.weights[:, None, :].expand(2, 5, 5)
    assert gap(apply(one, grids, x, DEPTHS[layer]), formula(one, grids, x, x, weights, layer)) < EXACT


@pytest.mark.spec("M2", "A1")
def test_cross_attention_integrates_over_the_other_field(generator) -> None:
    one, grids, x = double(Attention(UNEVEN, density=True, cross=True)), uneven_grids(), random(2, 5, 6)
    state, grid = random(2, 7, 6, seed=3), Grid(random(2, 7, 1), random(2, 7, seed=4, low=0.1))
    weights = grid.weights[:, None, :].expand(2, 5, 7)
    assert gap(apply(one, grids, x, state=state, grid=grid), formula(one, grids, x, state, weights)) < EXACT


@pytest.mark.spec("M2", "A2")
@pytest.mark.parametrize("axis", [Times(), Interval(0.0, 9.0)], ids=str)
def test_a_causal_row_takes_the_left_part_of_its_own_cell(axis) -> None:
    one, x = double(Attention(UNEVEN, mask=Causal(), density=True)), random(2, 6, 6)
    stamps = torch.tensor([[0.0, 0.4, 1.0, 1.0, 2.5, 4.0], [1.0, 1.5, 3.0, 5.0, 5.1, 6.0]], dtype=torch.float64)
    grids = replace(uneven_grids(), t=Samples().on(axis, stamps))
    weights = torch.zeros(2, 6, 6, dtype=torch.float64)
    for b in range(2):
        for t in range(6):
            for s in range(6):
                if stamps[b, s] == stamps[b, t]:  # an only node sees itself, however small its part
                    weights[b, t, s] = max(grids.t.left[b, s].item(), 1e-30)
                elif stamps[b, s] < stamps[b, t]:
                    weights[b, t, s] = grids.t.weights[b, s]
    assert gap(apply(one, grids, x), formula(one, grids, x, x, weights)) < EXACT


@pytest.mark.spec("M2")
@pytest.mark.parametrize("seed", range(3))
def test_the_density_of_heads_is_positive_and_has_mean_one(seed) -> None:
    one = double(Attention(UNEVEN, density=True))
    grids = replace(uneven_grids(), h=uneven_grid(UNEVEN_AXES.h, 5, seed=seed))
    rho = one.rho(grids)
    assert rho.shape == (2, 5)
    assert (rho >= 0).all()
    assert gap(rho[0], rho[1]) > 1e-3, "the density must change with depth"
    assert rho[0].std() > 1e-2, "the density must change with the head"
    h = grids.h.weights
    assert gap(rho @ h, h.sum().expand(2)) < EXACT
    simplex = rho * h / h.sum()
    assert gap(simplex.sum(-1), torch.ones(2, dtype=torch.float64)) < EXACT


@pytest.mark.spec("M2")
def test_a_zero_density_field_is_density_one() -> None:
    with_density = double(Attention(UNEVEN, density=True))
    with torch.no_grad():
        with_density.density.coefficients.zero_()
    assert gap(with_density.rho(uneven_grids()), torch.ones(2, 3, dtype=torch.float64)) < EXACT
    assert Attention(UNEVEN).rho(uneven_grids()) is None


@pytest.mark.spec("M2")
def test_the_score_scale_is_one_over_the_root_of_the_mass() -> None:
    assert Softmax().scale(Points(16)) == 0.25
    assert Softmax().scale(Interval()) == 1.0
    assert Softmax().scale(Interval(mass=4.0)) == 0.5
    assert Softmax(temperature=1.0).scale(Points(16)) == 1.0


def as_torch(one: Attention) -> nn.MultiheadAttention:
    """The same numbers in ``torch.nn``."""
    theirs = nn.MultiheadAttention(8, 4, batch_first=True).double().eval()
    with torch.no_grad():
        flat = [getattr(one, k).coefficients.reshape(8, 8) for k in ("q", "k", "v")]
        theirs.in_proj_weight.copy_(torch.cat(flat))
        theirs.in_proj_bias.copy_(torch.cat([getattr(one, k).coefficients.reshape(8) for k in ("bq", "bk", "bv")]))
        theirs.out_proj.weight.copy_(one.o.coefficients.reshape(8, 8))
        theirs.out_proj.bias.copy_(one.bo.coefficients)
    return theirs


@pytest.mark.spec("M2", "A1")
def test_on_points_attention_is_multi_head_attention() -> None:
    one, x = double(Attention(COUNTED)), random(2, 5, 8)
    assert gap(apply(one, counted_grids(), x), as_torch(one)(x, x, x)[0]) < EXACT
    cross, state = double(Attention(COUNTED, cross=True)), random(2, 7, 8, seed=1)
    tokens = grid_on(Points(7), Counting(7))
    wanted = as_torch(cross)(x, state, state)[0]
    assert gap(apply(cross, counted_grids(), x, state=state, grid=tokens), wanted) < EXACT


@pytest.mark.spec("A1")
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_heads_are_heads_with_repeated_keys_and_values(groups) -> None:
    shared, x = double(Attention(COUNTED, groups=groups, mask=Causal())), random(2, 5, 8)
    full = Attention(COUNTED, mask=Causal()).double()
    with torch.no_grad():
        for name in ("q", "k", "v", "o", "bq", "bk", "bv", "bo"):
            values = getattr(shared, name).coefficients
            if name in ("k", "v", "bk", "bv"):
                assert values.shape[0] == groups
                values = values.repeat_interleave(4 // groups, 0)
            getattr(full, name).coefficients.copy_(values)
    for h in (Counting(4), Nested(3), Nested(2)):  # a subset of heads reads the group of each
        grids = replace(counted_grids(), h=grid_on(Points(4), h))
        assert gap(apply(shared, grids, x), apply(full, grids, x)) < EXACT


# --- fast = slow -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("M2", "A1")
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", ["none", "key", "sample", "head"])
def test_fused_attention_is_the_plain_formula(groups, causal, bias) -> None:
    q, k, v = random(2, 4, 6, 3), random(2, groups, 6, 3, seed=1), random(2, groups, 6, 3, seed=2)
    shape = {"none": None, "key": (1, 6), "sample": (2, 1, 6), "head": (4, 6)}[bias]
    key_bias = None if shape is None else random(*shape, seed=3)
    pair = torch.zeros(6, 6, dtype=torch.float64) if key_bias is None else key_bias[..., None, :]
    if causal:
        pair = pair.masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), -torch.inf)
    wide = [x.repeat_interleave(4 // groups, 1) for x in (k, v)]
    wanted = attend_plain(q, *wide, 0.7, pair)
    assert gap(attend_fused(q, k, v, 0.7, causal, key_bias), wanted) < EXACT


@pytest.mark.spec("M2", "A1")
@pytest.mark.parametrize("block", [1, 2, 5, 6, 100])
@pytest.mark.parametrize("groups", [1, 4])
def test_blocked_attention_is_the_plain_formula(block, groups, monkeypatch) -> None:
    monkeypatch.setattr("continua.operators.attention.fused.BLOCK", block)
    q, k, v = random(2, 4, 6, 3), random(2, groups, 7, 3, seed=1), random(2, groups, 7, 3, seed=2)
    bias, asked = random(2, 4, 6, 7, seed=3), []

    def rows(part: slice) -> Tensor:
        asked.append(part)
        return bias[:, :, part]

    wide = [x.repeat_interleave(4 // groups, 1) for x in (k, v)]
    assert gap(attend_blocked(q, k, v, 0.7, rows), attend_plain(q, *wide, 0.7, bias)) < EXACT
    assert len(asked) == -(-6 // block)


@pytest.mark.spec("M2", "A1", "A2")
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("mask", [None, Causal()], ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_the_fused_path_and_the_paired_path_agree(position, groups, mask, padded, monkeypatch) -> None:
    monkeypatch.setattr("continua.operators.attention.fused.BLOCK", 2)
    one = double(Attention(COUNTED, mask=mask, position=POSITIONS[position](COUNTED), groups=groups))
    grids, x = counted_grids(), random(2, 5, 8)
    if padded:
        observed = torch.tensor([[True] * 5, [True, True, True, False, False]])
        grids = replace(grids, t=grids.t.only(observed))
    everything = torch.ones(5, 5, dtype=torch.bool)
    assert gap(apply(one, grids, x), apply(one, grids, x, pairs=everything)) < EXACT


# --- masks -----------------------------------------------------------------------------------------------------------


def dense(mask, t: Tensor, s: Tensor) -> Tensor:
    """The mask pair by pair, from its words."""
    kinds = {
        "Causal": lambda m, gap: gap >= 0,
        "Window": lambda m, gap: abs(gap) <= m.radius + 1e-9,
        "Strided": lambda m, gap: min(abs(gap - k * m.stride) for k in range(-50, 51)) <= m.width / 2 + 1e-9,
        "Both": None,
    }
    if type(mask).__name__ == "Both":
        return dense(mask.first, t, s) & dense(mask.second, t, s)
    if type(mask).__name__ == "Neighbours":
        edges = {(float(to), float(back)) for back, to in zip(mask.sources, mask.targets, strict=True)}
        return torch.tensor([[a == b or (a, b) in edges for b in s.tolist()] for a in t.tolist()])
    rule = kinds[type(mask).__name__]
    return torch.tensor([[rule(mask, (a - b).item()) for b in s] for a in t])


@pytest.mark.spec("A2")
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_masks_are_their_words_on_whole_and_on_real_times(mask) -> None:
    for t in (torch.arange(9, dtype=torch.float64), 9 * random(9, low=0.0).sort().values):
        allowed = mask.allowed(t[:, None], t[:, None])
        assert torch.equal(allowed, dense(mask, t, t))
        assert allowed.diagonal().all()
        assert not allowed.all()
    batched = torch.stack([t, t * 2])
    assert torch.equal(mask.allowed(batched[..., None], batched[..., None])[1], dense(mask, t * 2, t * 2))


@pytest.mark.spec("A2")
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("other", [None, *MASKS], ids=str)
def test_attention_under_masks_is_attention_on_the_allowed_pairs(mask, other) -> None:
    x, t = random(2, 9, 8), torch.arange(9, dtype=torch.float64)
    both = mask if other is None else mask & other
    masked, plain = double(Attention(COUNTED, mask=both)), double(Attention(COUNTED))
    allowed = dense(mask, t, t) if other is None else dense(mask, t, t) & dense(other, t, t)
    grids = counted_grids(9)
    assert gap(apply(masked, grids, x), apply(plain, grids, x, pairs=allowed)) < EXACT
    keys = as_torch(plain)(x, x, x, attn_mask=~allowed)[0]
    assert gap(apply(masked, grids, x), keys) < EXACT


@pytest.mark.spec("A2")
@pytest.mark.parametrize("mask", [None, *MASKS], ids=str)
def test_padding_is_the_absence_of_tokens(mask) -> None:
    one, x = double(Attention(COUNTED, mask=mask)), random(1, 9, 8)
    grids = counted_grids(9)
    observed = torch.arange(9) < 6
    padded = apply(one, replace(grids, t=grids.t.only(observed)), x)
    assert gap(padded[:, :6], apply(one, counted_grids(6), x[:, :6])) < EXACT
    bias = one.bo.coefficients.expand(1, 3, 8)
    assert torch.equal(padded[:, 6:], bias), "an absent query gets nothing but the bias"


@pytest.mark.spec("A2")
def test_pairs_are_broadcast_over_samples_and_heads_and_floats_are_added() -> None:
    one, grids, x = double(Attention(COUNTED)), counted_grids(), random(2, 5, 8)
    allowed = random(2, 4, 5, 5) > -0.5
    allowed |= torch.eye(5, dtype=torch.bool)
    scores = torch.where(allowed, 0.0, -torch.inf).double()
    assert gap(apply(one, grids, x, pairs=allowed), apply(one, grids, x, pairs=scores)) < EXACT
    one_head = allowed[:, :1]
    assert gap(apply(one, grids, x, pairs=one_head), apply(one, grids, x, pairs=one_head[:, 0])) < EXACT
    one_sample = allowed[0, 0]
    assert gap(apply(one, grids, x, pairs=one_sample), apply(one, grids, x, pairs=one_sample[None])) < EXACT
