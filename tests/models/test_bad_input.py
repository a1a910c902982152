"""Bad input gets one sentence with a remedy; absent tokens answer zero and reach nobody else."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import continua as ct
from continua.axes import Depths, Discretisation, counting, grid_on
from continua.errors import ConfigError, GridError, MaskError, ShapeError, SolveError
from continua.fields import counted
from continua.models import Readout
from continua.models.build import discrete_axes
from continua.operators import Context, Mask
from tests.exact import gap, numbers, stirred
from tests.refusals import refused

B, N, D, VOCAB = 2, 5, 8, 16
IDS = torch.randint(VOCAB, (B, N), generator=torch.Generator().manual_seed(0))
PRESENT = torch.tensor([[True, True, True, False, False], [True] * N])
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def gpt2() -> ct.Transformer:
    return stirred(ct.zoo.gpt2(vocab=VOCAB, d=D, heads=2, depth=2, context=8))


def bert() -> ct.Transformer:
    return stirred(ct.zoo.bert(vocab=VOCAB, d=D, heads=2, depth=2, context=8))


def layer() -> ct.Transformer:
    return ct.from_torch(stirred(nn.TransformerEncoderLayer(D, 2, 12, batch_first=True)))


def series(mask: Mask | None = None, t: Any = None) -> ct.Transformer:
    """Three channels at real times."""
    axes = t if t is not None else ct.Times()
    return stirred(ct.Transformer.continuous(channels=3, t=axes, at=ct.at(d=D, h=2, z=2), mask=mask))


def times(*stamps: float) -> Tensor:
    return torch.tensor(stamps, dtype=torch.float64)


def test_native_steps_are_counted() -> None:
    with refused(ConfigError, "the native grid counts its steps", "model.at(z=Adaptive"):
        ct.Transformer.continuous(vocab=VOCAB, at=ct.at(d=D, h=2, z=ct.Adaptive()))


# --- wrong shapes ----------------------------------------------------------------------------------------------------


def yes(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


STATE, FIVE = numbers(B, N, D), times(0, 1, 2, 3, 4)
SHAPES = {
    "no batch dimension": (gpt2, ct.Batch(IDS[0]), ShapeError, "[5]", "Add a batch dimension"),
    "four dimensions": (layer, ct.Batch(STATE[None]), ShapeError, "[1, 2, 5, 8]", "Add a batch"),
    "float tokens": (gpt2, ct.Batch(IDS.double()), ShapeError, "torch.float64 [2, 5]", "Tokenise"),
    "token outside": (gpt2, ct.Batch(IDS + 9), ShapeError, " to 24", "tokeniser"),
    "negative token": (gpt2, ct.Batch(IDS - 99), ShapeError, "got -9", "tokeniser"),
    "types": (bert, ct.Batch(IDS, types=IDS[:1]), ShapeError, "[1, 5]", "one type for each token"),
    "type outside": (bert, ct.Batch(IDS, types=IDS), ShapeError, "got 0 to", "tokeniser"),
    "width": (layer, ct.Batch(STATE[..., :6]), ShapeError, "[2, 5, 6]", "Match at(d=…)"),
    "channels": (series, ct.Batch(STATE, times=FIVE), ShapeError, "[2, 5, 8]", "channels"),
    "too few stamps": (gpt2, ct.Batch(IDS, times=times(0, 1, 2)), ShapeError, "3 nodes", "one stamp for each token"),
    "stamps of another batch": (gpt2, ct.Batch(IDS, times=FIVE.expand(3, -1)), ShapeError, "[3, 5]", "Match"),
    "flags": (gpt2, ct.Batch(IDS, observed=PRESENT[:, :4]), GridError, "got 4", "One flag per node"),
    "flags of another batch": (gpt2, ct.Batch(IDS, observed=PRESENT[[0, 0, 1]]), ShapeError, "[3, 5]", "Match"),
    "flags in three dimensions": (gpt2, ct.Batch(IDS, observed=PRESENT[None]), ShapeError, "[1, 2, 5]", "One flag"),
    "flags and stamps": (gpt2, ct.Batch(IDS, times=FIVE, observed=PRESENT[:, :4]), ShapeError, "[2, 4]", "one flag"),
    "points in 2-D": (series, ct.Batch(STATE[..., :3], times=numbers(B, N, 2)), GridError, "[2, 5, 2]", "[b, t, 1]"),
    "pairs": (layer, ct.Batch(STATE, pairs=yes(N, 4)), MaskError, "[5, 4]", "One entry a pair"),
    "pairs of another batch": (layer, ct.Batch(STATE, pairs=yes(3, N, N)), MaskError, "[3, 5, 5]", "[t, s]"),
    "pairs of other heads": (layer, ct.Batch(STATE, pairs=yes(B, 3, N, N)), MaskError, "[2, 3, 5, 5]", "each head"),
    "pairs of whole numbers": (layer, ct.Batch(STATE, pairs=yes(N, N).long()), MaskError, "int64", "Use True"),
    "pairs in five dimensions": (layer, ct.Batch(STATE, pairs=yes(1, 1, 1, N, N)), MaskError, "[1, 1, 1, 5, 5]", "Use"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "batch", "kind", "got", "remedy"), SHAPES.values(), ids=SHAPES)
@pytest.mark.spec("M4", "A2")
def test_wrong_shapes(make: Any, batch: ct.Batch, kind: Any, got: str, remedy: str) -> None:
    with refused(kind, got, remedy):
        make()(batch)


@pytest.mark.spec("A1", "A4")
def test_wrong_contexts() -> None:
    decoder = ct.from_torch(stirred(nn.TransformerDecoderLayer(D, 2, 12, batch_first=True)))
    memory = numbers(B, 4, D)
    with refused(ShapeError, "got no context", "Pass Context(state, grid)"):
        decoder(STATE)
    with refused(ShapeError, "[2, 4, 8]", "Match its grid"):
        decoder.run(STATE, context=Context(memory, counting(3, memory)))
    with refused(ShapeError, "[2, 4, 6]", "Match its grid"):
        decoder.run(STATE, context=Context(memory[..., :6], counting(4, memory)))
    with refused(ShapeError, "3 of the source", "its own source"):
        decoder.run(STATE, context=Context(numbers(3, 4, D), counting(4, memory)))
    with refused(MaskError, "[5, 5]", "One entry a pair"):
        decoder.run(STATE, context=Context(memory, counting(4, memory), cross_pairs=yes(N, N)))
    both = ct.EncoderDecoder(layer(), decoder)
    with refused(ShapeError, "got none", "source"):
        both(ct.Batch(STATE))
    with refused(ShapeError, "1 of the source", "its own source"):
        both(ct.Batch(STATE, source=ct.Batch(STATE[:1])))
    with refused(MaskError, "[3, 5, 5]", "one mask for each sample"):
        both(ct.Batch(STATE, source=ct.Batch(STATE), cross_pairs=yes(3, N, N)))


# --- stamps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.spec("M4")
def test_stamps_must_be_finite(bad: float) -> None:
    for model, values in ((series(), numbers(B, N, 3)), (gpt2(), IDS)):
        with refused(GridError, "got NaN or infinity", "observed="):
            model(ct.Batch(values, times=times(0, 1, bad, 3, 4)))


@pytest.mark.spec("M4", "A2")
def test_stamps_must_not_decrease_under_a_causal_mask() -> None:
    values, back, equal = numbers(B, N, 3), times(0, 3, 2, 4, 5), times(0, 2, 2, 4, 4)
    for mask in (ct.Causal(), ct.Causal() & ct.Window(2.0)):
        model = series(mask)
        with refused(GridError, "a step back in time", "Sort the tokens"):
            model(ct.Batch(values, times=back))
        assert model(ct.Batch(values, times=equal)).isfinite().all()
    with refused(GridError, "a step back in time", "drop the causal mask"):
        gpt2()(ct.Batch(IDS, times=back))
    assert series()(ct.Batch(values, times=back)).isfinite().all()  # without order nothing is asked


@pytest.mark.spec("M4", "A2")
def test_absent_stamps_may_be_anywhere_but_hide_no_step_back() -> None:
    model, flags = series(ct.Causal()), torch.tensor([1, 1, 0, 1, 1]).bool()
    values = numbers(B, N, 3)
    wild = model(ct.Batch(values, times=times(0, 3, -7, 4, 5), observed=flags))
    calm = model(ct.Batch(values, times=times(0, 3, 3.5, 4, 5), observed=flags))
    assert torch.equal(wild, calm)
    with refused(GridError, "a step back in time", "Sort the tokens"):
        model(ct.Batch(values, times=times(0, 3, 3, 2, 5), observed=flags))  # 3 → 2 across the absent token


@pytest.mark.spec("M4")
def test_empty_sequences() -> None:
    with refused(ShapeError, "[2, 0]", "Drop empty sequences"):
        gpt2()(IDS[:, :0])
    with refused(ShapeError, "[0, 5]", "Drop empty sequences"):
        gpt2()(IDS[:0])
    with refused(GridError, "an empty one", "Drop empty sequences"):
        series()(ct.Batch(numbers(B, 0, 3), times=times()))
    nobody = torch.tensor([[False] * N, [True] * N])
    for model, batch in ((gpt2(), ct.Batch(IDS, observed=nobody)), (layer(), ct.Batch(STATE, observed=nobody))):
        with refused(GridError, "one with none", "Drop the sequence"):
            model(batch)


@pytest.mark.spec("M4")
def test_stamps_are_needed_and_must_fit_the_axis() -> None:
    with refused(GridError, "got none", "Batch(values, times=…)"):
        series()(numbers(B, N, 3))
    with refused(GridError, "no times and no rule", "at(t=Midpoint(n))"):
        layer()(ct.Batch(lambda nodes: nodes))
    with refused(ShapeError, "9 tokens", "Shorten the sequence"):
        gpt2()(torch.zeros(1, 9, dtype=torch.long))
    with refused(GridError, "0 to 8.5", "Rescale the stamps"):
        gpt2()(ct.Batch(IDS, times=times(0, 1, 2, 3, 8.5)))
    box = ct.Product((ct.Interval(), ct.Interval()))
    with refused(GridError, "a point outside it", "Enlarge"):
        ct.Samples().on(box, 1 + numbers(6, 2).abs())


@pytest.mark.spec("M4")
def test_one_token_sequences_may_bring_their_own_stamps() -> None:
    """[b, 1] are stamps of b sequences; it used to be read as one sequence of b points."""
    model = gpt2()
    alone = model(ct.Batch(IDS[:, :1], times=times(3, 5)[:, None]))
    for b, stamp in enumerate((3.0, 5.0)):
        assert gap(alone[b : b + 1], model(ct.Batch(IDS[b : b + 1, :1], times=times(stamp)))) <= 1e-14


# --- masks -----------------------------------------------------------------------------------------------------------


class Strictly(Mask):
    """The past without the present: the first token has nobody."""

    def allowed(self, t: Tensor, s: Tensor) -> Tensor:
        return t > s.mT


@pytest.mark.spec("A2")
def test_an_observed_query_needs_a_key() -> None:
    some = torch.ones(N, N, dtype=torch.bool)
    some[3] = False
    floats = torch.zeros(N, N, dtype=torch.float64).masked_fill(~some, -INF)
    for pairs in (some, floats, some.expand(B, N, N), some.expand(B, 2, N, N)):
        with refused(MaskError, "query 3 of sample 0", "at least one key"):
            layer()(ct.Batch(STATE, pairs=pairs))
    only_absent = torch.zeros(N, N, dtype=torch.bool)
    only_absent[:, 4] = True  # sample 0 has no token 4, sample 1 has
    with refused(MaskError, "query 0 of sample 0", "observed=False"):
        layer()(ct.Batch(STATE, pairs=only_absent, observed=PRESENT))
    decoder = ct.from_torch(stirred(nn.TransformerDecoderLayer(D, 2, 12, batch_first=True)))
    with refused(MaskError, "query 0 of sample 1", "at least one key"):
        grid = counting(N, STATE).only(torch.tensor([[True] * N, [False] * N]))
        decoder.run(STATE, context=Context(STATE, grid))
    with refused(MaskError, "query 0 of sample 0", "at least one key"):
        ct.from_torch(stirred(nn.MultiheadAttention(D, 2)), mask=ct.Window(2.0) & Strictly())(STATE)


@pytest.mark.spec("A2")
def test_a_blind_query_is_fine_where_it_is_absent() -> None:
    model, pairs = layer(), torch.ones(B, N, N, dtype=torch.bool)
    pairs[0, 3:] = False  # exactly the absent queries of sample 0
    ours = model(ct.Batch(STATE, pairs=pairs, observed=PRESENT))
    assert torch.equal(ours, model(ct.Batch(STATE, pairs=torch.ones_like(pairs), observed=PRESENT)))


@pytest.mark.spec("A2", "M11")
def test_time_masks_need_time() -> None:
    box = ct.Product((ct.Interval(), ct.Interval()))
    where = ct.Batch(numbers(B, N, 3), times=torch.rand(N, 2, dtype=torch.float64))
    with refused(MaskError, "2-dimensional points", "Use Window(r)"):
        series(ct.Strided(2.0), t=box)(where)
    with refused(MaskError, "2-dimensional points", "1-D time axis"):
        series(ct.Causal(), t=box)(where)


# --- sizes, rules and axes -------------------------------------------------------------------------------------------

BAD_AT = [
    ({"q": 3}, ConfigError, "got q", "Known: d, e, h, m, t, z"),
    ({"dd": 3}, ConfigError, "got dd", "'d'"),
    ({"d": 0}, GridError, "got 0", "Write at(d=n) with n ≥ 1"),
    ({"z": -2}, GridError, "got -2", "Write at(z=n) with n ≥ 1"),
    ({"d": 4.5}, GridError, "got 4.5", "Midpoint(64)"),
    ({"h": "two"}, GridError, "got 'two'", "at(h=64)"),
    ({"d": True}, GridError, "got True", "at(d=64)"),
]


@pytest.mark.parametrize(("sizes", "kind", "got", "remedy"), BAD_AT, ids=[str(case[0]) for case in BAD_AT])
@pytest.mark.spec("M10")
def test_bad_sizes(sizes: dict[str, Any], kind: Any, got: str, remedy: str) -> None:
    for make in (ct.at, gpt2().at):
        with refused(kind, got, remedy):
            make(**sizes)


@pytest.mark.spec("M10", "M4")
def test_rules_on_the_wrong_axis() -> None:
    model, smooth = gpt2(), series()
    with refused(GridError, "Midpoint(n=4)", "Counting(n) or Nested(n)"):
        model.at(d=ct.Midpoint(4))(IDS)
    with refused(GridError, "9 nodes", "Nested(n) with n ≤ 8"):
        model.at(d=9)(IDS)
    with refused(GridError, "an interval or circle", "Use Midpoint(n)"):
        smooth.at(d=ct.Counting(D))(ct.Batch(numbers(B, N, 3), times=FIVE))
    with refused(GridError, "Midpoint(n=4)", "Give stamps"):
        smooth.at(t=ct.Midpoint(4))(numbers(B, 4, 3))
    with refused(GridError, "Midpoint(n=4)", "ProductRule((…)) with 2 rules"):
        grid_on(ct.Product((ct.Interval(), ct.Circle())), ct.Midpoint(4))
    with refused(GridError, "a single axis", "one of its factors"):
        grid_on(ct.Interval(), ct.ProductRule((ct.Midpoint(2), ct.Midpoint(2))))
    with refused(GridError, "5 nodes", "ProductRule"):
        series(t=ct.Product((ct.Interval(), ct.Interval()))).at(t=5)
    with refused(GridError, "Times(start=None, end=None)", "Interval(), Circle() or Points(n)"):
        ct.Transformer.continuous(vocab=8, d=ct.Times(), at=ct.at(d=8, h=2, z=1))
    with refused(GridError, "another axis", "Use Circle()"):
        basis = {"e": ct.Nodal(ct.Midpoint(4), ct.Trigonometric())}
        ct.Transformer.continuous(vocab=8, at=ct.at(d=8, h=2, z=1), bases=basis).at(e=3)(IDS[:, :3] % 8)


@pytest.mark.spec("M4", "M10")
def test_contradictory_settings() -> None:
    with refused(ConfigError, "got 3", "Choose a divisor of 8"):
        ct.zoo.gpt2(vocab=4, d=8, heads=3)
    with refused(ConfigError, "got 3", "Give at(e=…) too"):
        ct.Transformer.continuous(vocab=4, at=ct.at(d=8, h=3, z=1))
    with refused(ConfigError, "got 3", "Choose a divisor"):
        ct.Attention(counted(discrete_axes(8, 4, 8, 1)[0], 1), groups=3)
    with refused(ConfigError, "both or none", "Give vocab or channels"):
        ct.Transformer.continuous(vocab=4, channels=3)
    with refused(ConfigError, "at(d=8)", "Write at(d=128, h=4, z=6)"):
        ct.Transformer.continuous(vocab=4, at=ct.at(d=8))
    with refused(ConfigError, "got both", "discretisation.replace"):
        gpt2().at(Discretisation(d=4), h=2)
    with refused(ConfigError, "out=None", "Give out="):
        Readout(counted(discrete_axes(8, 4, 8, 1)[0]), tied=True)
    with refused(ConfigError, "Circle", "Use ByBasis there"):
        counted(series().axes)
    with refused(ShapeError, "3 inner nodes", "even at(e=…)"):
        axes, native = discrete_axes(6, 2, 8, 1)
        grids = replace(native.grids(axes), t=counting(N, STATE), z=Depths((0.0,)))
        ct.Attention(counted(axes, 1), position=ct.Rotary()).bind(grids)


@pytest.mark.spec("M1", "M7")
def test_solves_that_cannot_be_set_up() -> None:
    x, euler, one = numbers(3), ct.Euler(), ct.Fixed(1)

    def decay(z: float, x: Tensor, args: None) -> Tensor:
        return -x

    with refused(SolveError, "(1.0, 0.0)", "end > start"):
        ct.solve(decay, x, (1.0, 0.0), solver=euler, control=one)
    with refused(SolveError, "torch.int64", "x0.float()"):
        ct.solve(decay, torch.ones(3, dtype=torch.long), (0.0, 1.0), solver=euler, control=one)
    with refused(SolveError, "got 0", "Fixed(n) with n ≥ 1"):
        ct.Fixed(0)
    with refused(SolveError, "got -1", "n ≥ 1"):
        ct.SaveAt(-1)
    with refused(SolveError, "got decay", "use Euler()"):
        ct.solve(decay, x, (0.0, 1.0), solver=ct.LieTrotter(), control=one)
    model = gpt2()
    field, args = model.bind(
        replace(model.native.grids(model.axes), t=counting(N, STATE)), model.structure(), Context()
    )
    with refused(SolveError, "z=0.5", "Bind with this depth"):
        field(0.5, STATE, args)


@pytest.mark.spec("B17")
@pytest.mark.parametrize("letter", ["d", "h", "e", "m", "z"])
def test_a_model_is_made_on_every_axis(letter: str) -> None:
    model = gpt2()
    native = replace(model.native, **{letter: None})
    with refused(GridError, f"nothing for {letter}", "at(d=8, h=2, e=4, m=32, z=2)"):
        ct.Transformer(model.axes, native, model.embed, model.block, model.readout)
