"""Attention without all pairs in use: crossing fields, shared heads, blocks, draws, heads as an axis, and refusals."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.axes import GaussLegendre, Grid, Lattice, MonteCarlo, Samples, Sobol, Times, counting
from continua.errors import ConfigError, GridError, MaskError, ShapeError
from continua.fields import Legendre
from continua.flow import Direct, Lean
from continua.models import Transformer
from continua.operators import (
    ALiBi,
    Attention,
    Cache,
    Causal,
    Comb,
    FewSources,
    Gaussian,
    Local,
    Nystrom,
    PositiveFeatures,
    RelativeBias,
    Rotary,
    Stationary,
    Subquadratic,
    Window,
    redraw,
    spread,
)
from continua.operators.kernels import blocks, feature_sums, features
from continua.operators.kernels.sampled import at_quantiles, reference
from continua.operators.kernels.stationary import _quick_length
from tests.bound import COUNTED, COUNTED_AXES, apply, counted_grids, double
from tests.cases import KERNELS
from tests.cases_models import discrete, words
from tests.measure import EXACT, gap, random, slope, stirred
from tests.refusals import refused

QUICK = {name: kernel for name, kernel in KERNELS.items() if isinstance(kernel, Subquadratic)}
LOOSE = {name: kernel for name, kernel in QUICK.items() if not kernel.is_exact}


def pair(kernel, mask=None, **more) -> tuple[Attention, Attention]:
    """The operator with this kernel, and with the one that it stands for."""
    plain, support = kernel.plain(mask)
    own = double(Attention(COUNTED, kernel=kernel, mask=mask, **more))
    return own, double(Attention(COUNTED, kernel=plain, mask=support, **more))


# --- exact kernels ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("A5", "A1")
@pytest.mark.parametrize("kernel", [Local(1.5), Comb(2.0, width=1.0)], ids=str)
@pytest.mark.parametrize("groups", [None, 2])
def test_exact_kernels_cross_fields_and_share_heads(kernel, groups, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "ROWS", 3)
    monkeypatch.setattr(blocks, "PAIRS", 40)
    own, plain = pair(kernel, groups=groups, cross=True)
    state = random(2, 11, 8, seed=3)
    grid = Grid(10 * random(2, 11, 1, low=0.0), random(2, 11, seed=4, low=0.2))  # in no order
    grids = replace(counted_grids(10), t=Samples().on(Times(), grid.nodes[:, :10, 0] + 0.1))
    x = random(2, 10, 8)
    assert gap(apply(own, grids, x, state=state, grid=grid), apply(plain, grids, x, state=state, grid=grid)) < EXACT


@pytest.mark.spec("A5", "A3")
@pytest.mark.parametrize("mask", [None, Causal()], ids=str)
@pytest.mark.parametrize("position", ["rotary", "ALiBi", "relative", "Gaussian"])
@pytest.mark.parametrize("kernel", [Local(7.0), Comb(5.0, width=1.0)], ids=str)
def test_exact_kernels_take_every_position(kernel, position, mask, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "ROWS", 4)
    made = {
        "rotary": lambda: Rotary(base=100.0),
        "ALiBi": lambda: ALiBi(COUNTED_AXES),
        "relative": lambda: RelativeBias(COUNTED.autonomous(), buckets=8, reach=16.0),
        "Gaussian": lambda: Gaussian(COUNTED_AXES, near=2.0, far=9.0),
    }[position]
    own, plain = (
        double(Attention(COUNTED, kernel=kernel, mask=support, position=made()))
        for kernel, support in ((kernel, mask), kernel.plain(mask))
    )
    steps = random(2, 21, low=0.1)
    grids = replace(counted_grids(21), t=Samples().on(Times(), steps.cumsum(-1)))
    x = random(2, 21, 8)
    assert gap(apply(own, grids, x), apply(plain, grids, x)) < EXACT


@pytest.mark.spec("A5")
def test_a_local_kernel_and_a_mask_are_one_mask() -> None:
    own, _ = pair(Local(4.0), mask=Window(2.0))
    narrow = double(Attention(COUNTED, mask=Window(2.0)))
    x = random(2, 9, 8)
    assert gap(apply(own, counted_grids(9), x), apply(narrow, counted_grids(9), x)) < EXACT


@pytest.mark.spec("A5")
@pytest.mark.parametrize("kernel", [Local(3.0), Comb(3.0, width=0.5)], ids=str)
@pytest.mark.parametrize("mask", [None, Causal()], ids=str)
def test_crowds_equal_stamps_and_one_token(kernel, mask, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "ROWS", 4)
    for stamps in ([0.0] * 9, [0.0, 0.0, 1.0, 1.0, 1.0, 50.0, 50.1, 50.1, 99.0], [5.0]):
        times = torch.tensor(stamps, dtype=torch.float64)
        own, plain = pair(kernel, mask)
        grids = replace(counted_grids(len(times)), t=Samples().on(Times(), times))
        x = random(2, len(times), 8)
        assert gap(apply(own, grids, x), apply(plain, grids, x)) < EXACT


@pytest.mark.spec("A5")
def test_equal_stamps_across_causal_blocks_share_their_cell(monkeypatch) -> None:
    own = double(Attention(COUNTED, kernel=PositiveFeatures(8), mask=Causal()))
    stamps = torch.tensor([0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0], dtype=torch.float64)
    grids = replace(counted_grids(10), t=Samples().on(Times(), stamps))
    x = random(2, 10, 8)
    at_once = apply(own, grids, x)
    for rows in (3, 4, 5):
        monkeypatch.setattr(features, "ROWS", rows)
        monkeypatch.setattr(feature_sums, "ROWS", rows)
        assert gap(apply(own, grids, x), at_once) < EXACT


@pytest.mark.spec("A5")
def test_runs_hold_what_they_must_and_little_more() -> None:
    """A crowd of 200 tokens and 800 spread ones: the pairs looked at are near the pairs allowed."""
    times = torch.cat([torch.rand(200, generator=torch.Generator().manual_seed(0)), torch.arange(800) + 2.0]).double()
    queries = blocks.sorted_along(times[None], torch.ones(1, 1000, dtype=torch.bool))
    made = blocks.runs(queries, queries, 3.0, 3.0, torch.tensor([1000]))
    looked = sum(group.sources.numel() for group in made.groups) * blocks.ROWS
    allowed = int(((times[:, None] - times).abs() <= 3.0).sum())
    assert allowed <= looked < 8 * allowed
    assert looked < 0.3 * 1000**2


@pytest.mark.spec("A5")
@pytest.mark.parametrize("position", [Gaussian(COUNTED_AXES, near=1.0), ALiBi(COUNTED_AXES), None], ids=str)
@pytest.mark.parametrize("mask", [None, Causal()], ids=str)
def test_a_stationary_row_in_a_wide_gap_is_summed_directly(position, mask) -> None:
    """Twenty widths from the nearest heavy token the transform knows nothing but its own round-off."""
    own, plain = pair(Stationary(), mask, position=position)
    weights = torch.ones(60, dtype=torch.float64)
    weights[20:50] = 1e-12
    even = torch.arange(60, dtype=torch.float64)[:, None]
    grids = replace(counted_grids(60), t=Grid(even, weights, left=weights / 2, is_ordered=True))
    x = random(2, 60, 8)
    assert gap(apply(own, grids, x), apply(plain, grids, x)) < EXACT


@pytest.mark.spec("A5")
def test_transforms_have_quick_lengths() -> None:
    for least in (1, 2, 7, 31, 97, 1000, 32_767):
        found = _quick_length(least)
        assert least <= found <= 1.2 * least + 1
        for factor in (2, 3, 5):
            while found % factor == 0:
                found //= factor
        assert found == 1


# --- what needs single pairs -----------------------------------------------------------------------------------------


@pytest.mark.spec("A5", "A11")
@pytest.mark.parametrize("name", QUICK)
def test_recorded_weights_are_exact_or_refused(name) -> None:
    own, plain = pair(QUICK[name])
    x, record = random(2, 9, 8), []
    if name in LOOSE:
        with refused(ConfigError, f"got {type(QUICK[name]).__name__}", "kernel=Softmax("):
            apply(own, counted_grids(9), x, record=[])
        return
    assert gap(apply(own, counted_grids(9), x, record=record), apply(plain, counted_grids(9), x)) < EXACT
    assert gap(record[0].weights.sum(-1), torch.ones(2, 4, 9, dtype=torch.float64)) < EXACT


@pytest.mark.spec("A5", "A8")
@pytest.mark.parametrize("name", QUICK)
def test_generation_is_exact_or_refused(name) -> None:
    kernel = QUICK[name]
    if name in LOOSE:
        own, _ = pair(kernel, Causal() if isinstance(kernel, PositiveFeatures) else None)
        with refused(ConfigError, f"got {type(kernel).__name__}", "kernel=Softmax("):
            apply(own, counted_grids(9), random(2, 9, 8), cache=Cache())
        return
    if not kernel.is_dot:
        return
    plain, support = kernel.plain(Causal())
    torch.manual_seed(0)
    model = stirred(discrete(kernel=kernel, mask=Causal()))
    torch.manual_seed(0)
    other = stirred(discrete(kernel=plain, mask=support))
    start = words().values[:1]
    assert torch.equal(model.generate(start, tokens=4), other.generate(start, tokens=4))


@pytest.mark.spec("A5", "D4")
@pytest.mark.parametrize("name", QUICK)
def test_lean_gradients_are_those_of_the_graph(name) -> None:
    model, batch = stirred(discrete(kernel=QUICK[name])), words()
    found = []
    for adjoint in (Direct(), Lean()):
        model.adjoint = adjoint
        answer = model(batch)
        wanted = torch.autograd.grad((answer * random(*answer.shape)).sum(), model.parameters(), allow_unused=True)
        found.append([g for g in wanted if g is not None])
    assert all(gap(one, other) < 1e-10 for one, other in zip(*found, strict=True))


# --- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("A5", "T4")
def test_sources_are_drawn_as_they_weigh() -> None:
    weights = torch.tensor([[1.0, 0.0, 3.0, 4.0]], dtype=torch.float64)
    nodes, _ = reference(MonteCarlo(20_000))
    found = at_quantiles(weights, nodes)[0].bincount(minlength=4) / 20_000
    assert (found - weights[0] / 8).abs().max() < 4 * (0.25 / 20_000) ** 0.5  # four deviations of a frequency
    ends = at_quantiles(torch.tensor([[0.0, 2.0, 0.0]]).double(), (0.0, 1.0))
    assert ends.tolist() == [[1, 1]], "an absent source is never drawn, not even at the ends"


@pytest.mark.spec("A5", "T4")
@pytest.mark.parametrize("kernel", [FewSources(MonteCarlo(6)), FewSources(Sobol(4)), PositiveFeatures(32)], ids=str)
def test_a_draw_is_a_function_of_seed_and_step(kernel) -> None:
    own, _ = pair(kernel)
    x, grids = random(2, 30, 8), counted_grids(30)

    def at_step(step: int) -> Tensor:
        return apply(redraw(own, step), grids, x)

    first = at_step(1)
    assert gap(at_step(2), first) > 1e-3, "another step is another draw"
    assert torch.equal(at_step(1), first), "whatever was drawn in between"
    assert torch.equal(apply(own, grids, x), first), "and the draw stays until it is changed"
    assert own.kernel == kernel.fresh(1)


def smooth(n: int = 160) -> tuple[Tensor, Tensor, Tensor, Grid]:
    """Smooth queries, keys and values on irregular stamps."""
    steps = random(n, low=0.1)
    times = steps.cumsum(0) / steps.sum()
    waves = torch.cat([torch.cos(3 * times[:, None] * torch.arange(3)), torch.sin(4 * times[:, None])], -1)
    q, k, v = (waves @ random(4, 2 * 3, seed=i).unflatten(1, (2, 3)).transpose(0, 1) for i in range(3))
    return 0.6 * q[None], 0.6 * k[None], v[None], Samples().on(Times(), times)


@pytest.mark.spec("A5", "T4")
@pytest.mark.parametrize("control", [0, 8])
def test_bias_and_deviation_of_independent_draws_are_the_predicted_ones(control) -> None:
    q, k, v, grid = smooth()
    found = spread(FewSources(MonteCarlo(24), control=control), q, k, v, grid, draws=200)
    # the next order in 1/m is some percent of each, and 200 draws know a deviation to five percent
    assert abs(found.deviation / found.predicted_deviation - 1) < 0.2
    assert abs(found.bias - found.predicted_bias) < 3 * found.bias_noise + 0.3 * found.predicted_bias
    assert found.predicted_bias < 0.3 * found.deviation


@pytest.mark.spec("A5", "T4")
def test_the_bias_falls_like_one_over_m_and_the_deviation_like_its_root() -> None:
    q, k, v, grid = smooth()
    sizes = (5, 20)
    found = [spread(FewSources(MonteCarlo(m)), q, k, v, grid, draws=400) for m in sizes]
    assert found[0].bias > 3 * found[0].bias_noise, "a bias that can be seen"
    assert found[0].predicted_bias / found[1].predicted_bias == pytest.approx(4.0)
    assert all(abs(one.bias - one.predicted_bias) < 3 * one.bias_noise for one in found)
    assert abs(slope(sizes, [one.deviation for one in found]) - 0.5) < 0.1  # each known to four percent


@pytest.mark.spec("T4")
def test_control_variates_and_quasi_random_sources_reduce_the_variance() -> None:
    q, k, v, grid = smooth()
    plain = spread(FewSources(MonteCarlo(16)), q, k, v, grid, draws=60)
    controlled = spread(FewSources(MonteCarlo(16), control=8), q, k, v, grid, draws=60)
    sobol = spread(FewSources(Sobol(16)), q, k, v, grid, draws=60)
    lattice = spread(FewSources(Lattice(16)), q, k, v, grid, draws=60)
    assert controlled.deviation < plain.deviation / 4
    assert sobol.deviation < plain.deviation / 3
    assert lattice.deviation < plain.deviation / 3
    # the same points in every batch: no variance over batches, and all of the error left
    fixed = FewSources(Sobol(16), step=1)
    assert spread(fixed, q, k, v, grid, draws=2).error > 0
    with refused(ShapeError, "got 1", "Ask for 64"):
        spread(fixed, q, k, v, grid, draws=1)


# --- heads -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("T4", "M8")
def test_gauss_nodes_for_the_heads_converge_faster_than_any_power() -> None:
    torch.manual_seed(0)
    native = ct.at(d=16, h=8, e=4, z=2)
    model = Transformer.continuous(channels=2, t=Times(), at=native, bases={"h": Legendre(2)}).double()
    times = torch.linspace(0, 1, 24).double()
    batch = ct.Batch(torch.stack([torch.sin(7 * times), torch.cos(4 * times)], -1)[None], times=times)
    with torch.no_grad():
        wanted = model(batch, at=ct.at(h=GaussLegendre(24)))
        errors = [
            float((model(batch, at=ct.at(h=GaussLegendre(n))) - wanted).norm() / wanted.norm()) for n in (2, 4, 8)
        ]
    assert errors[0] > 1e-3
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 10, errors


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("A5")
def test_what_a_kernel_cannot_serve_is_refused() -> None:
    x, grids = random(2, 9, 8), counted_grids(9)

    def run(kernel, **more) -> Tensor:
        context = {name: more.pop(name) for name in ("pairs",) if name in more}
        return apply(double(Attention(COUNTED, kernel=kernel, **more)), grids, x, **context)

    for kernel in QUICK.values():
        with refused(MaskError, f"got {type(kernel).__name__}", "Softmax()"):
            run(kernel, pairs=torch.ones(9, 9, dtype=torch.bool))
    for kernel in (PositiveFeatures(8), FewSources(MonteCarlo(4)), Nystrom()):
        with refused(MaskError, "got Window", "Local(r)"):
            run(kernel, mask=Window(2.0))
    with refused(MaskError, "got Causal()", "Softmax()"):
        run(Nystrom(), mask=Causal())
    with refused(MaskError, "got Causal()", "control=0"):
        run(FewSources(MonteCarlo(4), control=2), mask=Causal())
    with refused(MaskError, "got Window", "Uniform()"):
        run(Stationary(), mask=Window(2.0))
    for kernel in (PositiveFeatures(8), Nystrom()):
        with refused(ConfigError, "got ALiBi", "Rotary()"):
            run(kernel, position=ALiBi(COUNTED_AXES))
    with refused(ConfigError, "got ALiBi", "control=0"):
        run(FewSources(MonteCarlo(4), control=2), position=ALiBi(COUNTED_AXES))
    with refused(ConfigError, "got 0.0", "unit of the stamps"):
        Local(0.0)
    with refused(ConfigError, "got -1.0", "unit of the stamps"):
        Comb(-1.0)


@pytest.mark.spec("A5")
def test_stamps_that_a_kernel_cannot_use_are_refused() -> None:
    x = random(2, 9, 8)
    plane = replace(counted_grids(9), t=Grid(random(9, 2), torch.ones(9, dtype=torch.float64)))
    uneven = replace(counted_grids(9), t=Samples().on(Times(), random(9, low=0.1).cumsum(0)))
    for kernel in (Local(1.0), Comb(2.0)):
        with refused(MaskError, "got 2-dimensional points", "1-D time axis"):
            apply(double(Attention(COUNTED, kernel=kernel)), plane, x)
    with refused(GridError, "got 2-dimensional points", "Uniform()"):
        apply(double(Attention(COUNTED, kernel=Stationary())), plane, x)
    with refused(GridError, "of a step", "Resample"):
        apply(double(Attention(COUNTED, kernel=Stationary())), uneven, x)
    crossing = double(Attention(COUNTED, kernel=Stationary(), cross=True))
    with refused(GridError, "another field's", "Uniform()"):
        apply(crossing, counted_grids(9), x, state=x, grid=counting(9, x))
    far = double(Attention(COUNTED, kernel=Local(1.0), cross=True))
    with refused(MaskError, "got query 4 of sample 0", "at least one key"):
        apply(far, counted_grids(9), x, state=x[:, :3], grid=counting(3, x))
