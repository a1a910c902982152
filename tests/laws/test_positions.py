"""Laws of positions: all are functions of real time."""

from dataclasses import replace

import pytest
import torch

from continua.axes import Counting, Grid, Points, grid_on
from continua.errors import GridError, ShapeError
from continua.models import Batch, Tokens
from continua.operators import ALiBi, Attention, Causal, Learned, RelativeBias, Rotary
from tests.bound import COUNTED, COUNTED_AXES, apply, counted_grids, double
from tests.cases import ENCODINGS, POSITIONS
from tests.measure import EXACT, gap, random


def at_times(t: torch.Tensor) -> Grid:
    return Grid(t[..., None], torch.ones_like(t), is_counting=True)


@pytest.mark.spec("A3")
@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("mask", [None, Causal()], ids=str)
def test_attention_knows_differences_of_real_times_only(name, mask) -> None:
    one = double(Attention(COUNTED, mask=mask, position=POSITIONS[name](COUNTED)))
    x, t = random(2, 6, 8), random(2, 6, seed=1, low=0.1).cumsum(-1)
    plain = double(Attention(COUNTED, mask=mask))
    here, shifted, stretched = (apply(one, replace(counted_grids(), t=at_times(s)), x) for s in (t, t + 7.25, 3 * t))
    assert gap(here, shifted) < 1e-11  # angles of 7.25·t are rounded once more
    if name != "none":
        assert gap(here, stretched) > 1e-4
        assert gap(here, apply(plain, replace(counted_grids(), t=at_times(t)), x)) > 1e-4


@pytest.mark.spec("A3")
def test_rotary_scores_depend_on_the_difference_of_times() -> None:
    rotary = Rotary(base=50.0)
    args = rotary.bind(grid_on(Points(4), Counting(4)), grid_on(Points(6), Counting(6)))
    q, k = random(1, 4, 1, 6), random(1, 4, 1, 6, seed=1)

    def score(t: float, s: float) -> torch.Tensor:
        turned = [rotary.turn(x, rotary.where(torch.tensor([[at]]).double(), args)) for x, at in ((q, t), (k, s))]
        return (turned[0] * turned[1]).sum(-1)

    assert gap(score(0.0, 0.0), (q * k).sum(-1)) < EXACT
    assert gap(score(3.7, 1.2), score(2.5, 0.0)) < EXACT
    assert gap(score(3.7, 1.2), score(1.2, 3.7)) > 1e-3, "the past and the future are not alike"
    turned = rotary.turn(q, rotary.where(torch.tensor([[123.4]]).double(), args))
    assert gap(turned.norm(dim=-1), q.norm(dim=-1)) < EXACT


@pytest.mark.spec("A3")
def test_rotary_turns_each_pair_by_its_own_frequency() -> None:
    rotary = Rotary(base=100.0)
    args = rotary.bind(grid_on(Points(1), Counting(1)), grid_on(Points(4), Counting(4)))
    assert args.tolist() == pytest.approx([1.0, 0.1])
    x = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64).reshape(1, 1, 1, 4)
    turned = rotary.turn(x, rotary.where(torch.tensor([[2.0]]).double(), args)).flatten()
    angle = torch.tensor([2.0, 0.2], dtype=torch.float64)
    assert gap(turned, torch.cat([angle.cos(), angle.sin()])) < EXACT


@pytest.mark.spec("A3")
@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("padded", [False, True])
def test_alibi_is_the_same_as_a_bias_of_keys_and_as_a_bias_of_pairs(offset, padded) -> None:
    one, x = double(Attention(COUNTED, mask=Causal(), position=ALiBi(COUNTED_AXES))), random(2, 5, 8)
    grids = counted_grids()
    tokens = grids.t
    tokens = Grid(tokens.nodes + offset, tokens.weights, is_counting=True, is_unit=True, is_ordered=True)
    if padded:
        tokens = tokens.only(torch.arange(5) < torch.tensor([[5], [3]]))
    grids = replace(grids, t=tokens)
    placed = one.position.bind(grids.h, grids.e)
    assert one.position.key_bias(grids.t.nodes, placed).shape == (4, 5)
    pairs = one.position.pair_bias(grids.t.nodes, grids.t.nodes, placed)
    reference = double(Attention(COUNTED, mask=Causal()))
    assert gap(apply(one, grids, x), apply(reference, grids, x, pairs=pairs[None])) < 1e-11  # 1000·slope is rounded


@pytest.mark.spec("A3")
def test_alibi_slopes_are_those_of_the_paper() -> None:
    for heads in (2, 4, 8):
        axes = replace(COUNTED_AXES, h=Points(heads))
        h = grid_on(Points(heads), Counting(heads))
        slopes = ALiBi(axes).bind(h, h)
        assert slopes.tolist() == pytest.approx([2.0 ** (-8 * (i + 1) / heads) for i in range(heads)])


@pytest.mark.spec("A3")
@pytest.mark.parametrize("buckets", [8, 32, 64])
@pytest.mark.parametrize("reach", [20, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relative_buckets_are_those_of_t5_on_whole_distances(buckets, reach, causal, dtype) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    if buckets // (2 if causal else 4) >= reach:
        reach = 2 * buckets
    gaps = torch.arange(-400, 401)
    wanted = t5._relative_position_bucket(gaps, bidirectional=not causal, num_buckets=buckets, max_distance=reach)
    ours = RelativeBias(COUNTED, buckets=buckets, reach=float(reach), causal=causal).bucket(gaps.to(dtype))
    assert torch.equal(ours, wanted)


@pytest.mark.spec("A3")
@pytest.mark.parametrize("causal", [False, True])
def test_relative_buckets_are_constant_between_whole_distances_and_grow(causal) -> None:
    one = RelativeBias(COUNTED, buckets=16, reach=40.0, causal=causal)
    gaps = torch.linspace(-60, 60, 4801, dtype=torch.float64)
    bucket = one.bucket(gaps)
    past = bucket[gaps <= 0].flip(0)
    assert (past.diff() >= 0).all(), "further back is never a lower bucket"
    assert set(bucket.tolist()) == set(range(16)), "every bucket is used"
    assert (one.bucket(-torch.arange(0.0, 3.0)) == one.bucket(-torch.arange(0.0, 3.0) - 0.4)).all()


@pytest.mark.spec("A3")
def test_relative_bias_adds_the_table_to_the_scores() -> None:
    position = RelativeBias(COUNTED, buckets=8, reach=16.0)
    one, plain = double(Attention(COUNTED, position=position)), double(Attention(COUNTED))
    for name, parameter in plain.named_parameters():
        parameter.data.copy_(one.get_parameter(name))
    t = random(5, low=0.0).mul(4).cumsum(0)
    grids, x = replace(counted_grids(), t=at_times(t)), random(2, 5, 8)
    table = position.table.coefficients
    bias = torch.stack([torch.stack([table[position.bucket(s - r)] for s in t]) for r in t]).movedim(-1, 0)
    assert gap(apply(one, grids, x), apply(plain, grids, x, pairs=bias[None])) < EXACT


@pytest.mark.spec("A3")
def test_learned_positions_are_an_embedding_on_counted_tokens() -> None:
    one = double(Learned(COUNTED, 7))
    d = grid_on(Points(8), Counting(8))
    like = torch.zeros((), dtype=torch.float64)
    rows = one(grid_on(Points(5), Counting(5)), d, like)
    assert torch.equal(rows, one.table.coefficients[:5])
    assert torch.equal(rows, one(at_times(torch.arange(5.0).double()), d, like))
    assert torch.equal(one(at_times(torch.tensor([6.0]).double()), d, like), one.table.coefficients[6:])


@pytest.mark.spec("A3")
def test_learned_positions_are_read_along_straight_lines_between_whole_times() -> None:
    one = double(Learned(COUNTED, 7))
    d, like = grid_on(Points(8), Counting(8)), torch.zeros((), dtype=torch.float64)
    table = one.table.coefficients
    between = one(at_times(torch.tensor([[0.25, 5.5]]).double()), d, like)
    assert gap(between[0, 0], 0.75 * table[0] + 0.25 * table[1]) < EXACT
    assert gap(between[0, 1], 0.5 * table[5] + 0.5 * table[6]) < EXACT
    stamps = torch.tensor([0.3, 2.7], dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(one(at_times(stamps), d, like)[1].sum(), stamps)[0]
    assert gap(slope, torch.stack([slope[0] * 0, (table[3] - table[2]).sum()])) < EXACT


@pytest.mark.spec("A3")
def test_learned_positions_end_where_their_table_ends() -> None:
    one = double(Learned(COUNTED, 7))
    d, like = grid_on(Points(8), Counting(8)), torch.zeros((), dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"position table has 7 rows, got 8 tokens\. Shorten"):
        one(grid_on(Points(8), Counting(8)), d, like)
    with pytest.raises(GridError, match=r"covers times 0 to 6, got 1 to 6.5\. Rescale"):
        one(at_times(torch.tensor([1.0, 6.5]).double()), d, like)
    padded = at_times(torch.tensor([1.0, 99.0]).double()).only(torch.tensor([True, False]))
    assert gap(one(padded, d, like)[0], one.table.coefficients[1]) < EXACT  # an absent token may carry any stamp


@pytest.mark.spec("A3")
@pytest.mark.parametrize("name", ENCODINGS)
def test_encodings_are_added_to_the_embedding(name) -> None:
    encoding = ENCODINGS[name](COUNTED)
    plain, placed = double(Tokens(COUNTED, 5)), double(Tokens(COUNTED, 5, encoding))
    grids = replace(counted_grids(), t=at_times(random(2, 5, low=0.0).cumsum(-1)))
    ids = Batch(torch.tensor([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]))
    wanted = torch.nn.functional.embedding(ids.values, placed.table.coefficients)
    added = encoding(grids.t, grids.d, torch.zeros((), dtype=torch.float64))
    assert added.shape == (2, 5, 8)
    assert gap(placed(ids, grids), wanted + added) < EXACT
    assert gap(plain(ids, grids), torch.nn.functional.embedding(ids.values, plain.table.coefficients)) == 0.0
