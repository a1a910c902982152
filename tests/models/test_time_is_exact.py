"""Stamps keep their order, gaps and equality whatever the model's dtype; outside its domain none is taken."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import continua as ct
from continua import operators as op
from continua.axes import as_stamps
from continua.errors import GridError
from continua.fields import ByBasis
from continua.models import Batch, Observations, Readout, Transformer
from continua.models.build import continuous_axes, pre_norm, smooth_bases
from continua.operators import Attention, Causal, LayerNorm, Pointwise
from tests.cases import KERNELS, POSITIONS
from tests.measure import gap, random, stirred
from tests.refusals import refused

SINGLE = 2e-5  # float32 round-off of a small model, relative to its largest answer
TOKENS = 9
CLOCKS = {  # the same series in other clocks: where it starts, and how many units a step has
    "years": (2024.0, 1.0),
    "days, a float of float32": (19_700.0, 1.0),
    "Unix seconds": (1_700_000_000.0, 1.0),
    "Unix milliseconds": (1_700_000_000_000.0, 1_000.0),
    "Unix nanoseconds": (1_700_000_000_000_000_000.0, 1_000_000_000.0),
}
CAUSAL_KERNELS = ("softmax", "additive", "flat", "local", "comb with wide teeth", "stationary", "quadrature")


def steps() -> Tensor:
    """Irregular stamps in halves of a unit, two of them equal: every clock holds them exactly."""
    return torch.tensor([0, 0.5, 1.5, 3, 3, 4.5, 6, 7.5, 8.5], dtype=torch.float64)


def series(position: str = "none", kernel: str = "softmax", unit: float = 1.0, t: Any = None) -> Transformer:
    """A causal model in float32; lengths of its position and kernel are in units."""
    torch.manual_seed(0)
    axes, native = continuous_axes(ct.at(d=8, h=2, e=4, m=12, z=2), t=ct.Times() if t is None else t)
    w = ByBasis(axes, smooth_bases(axes, native, 2))
    fixed = w.autonomous()
    chosen = KERNELS[kernel]
    if unit != 1.0 and kernel == "local":
        chosen = op.Local(2.0 * unit)
    elif unit != 1.0 and kernel == "comb with wide teeth":
        chosen = op.Comb(3.0 * unit, width=unit)
    attention = Attention(w, mask=Causal(), kernel=chosen, position=POSITIONS[position](w))
    block = pre_norm((attention, Pointwise(w)), lambda: LayerNorm(w))
    model = Transformer(axes, native, Observations(fixed, 2), block, Readout(fixed, 3, before=(LayerNorm(fixed),)))
    return stirred(model).float().eval()


def in_clock(clock: str, even: bool = False) -> tuple[Tensor, Tensor, float]:
    """Stamps in a clock, the same from zero on in steps, and the unit."""
    origin, unit = CLOCKS[clock]
    plain = torch.arange(TOKENS, dtype=torch.float64) if even else steps()
    return origin + plain * unit, plain * unit, unit


@pytest.mark.finding("S1")
@pytest.mark.parametrize("kernel", CAUSAL_KERNELS)
@pytest.mark.parametrize("clock", CLOCKS)
@torch.no_grad()
def test_a_causal_model_does_not_see_the_future_in_any_clock(clock: str, kernel: str) -> None:
    times, _, unit = in_clock(clock, even=kernel == "stationary")
    model = series(kernel=kernel, unit=unit)
    values = random(2, TOKENS, 2).float()
    before = model(Batch(values, times=times))
    for i in (1, 5, TOKENS - 1):
        changed = values.clone()
        changed[:, i] += 3.0
        after = model(Batch(changed, times=times))
        past = times < times[i]
        if kernel == "stationary":  # by transforms, which mix their round-off
            assert gap(after[:, past], before[:, past]) < SINGLE
        else:
            assert torch.equal(after[:, past], before[:, past])
        assert gap(after[:, ~past], before[:, ~past]) > 1e-3


@pytest.mark.finding("S1")
@pytest.mark.parametrize("position", ["none", "rotary", "ALiBi", "Gaussian", "relative"])
@pytest.mark.parametrize("clock", CLOCKS)
@torch.no_grad()
def test_a_shifted_series_has_the_same_answer(clock: str, position: str) -> None:
    times, plain, _ = in_clock(clock)
    model = series(position)
    values = random(2, TOKENS, 2).float()
    assert gap(model(Batch(values, times=times)), model(Batch(values, times=plain))) < SINGLE


@pytest.mark.finding("S1")
@torch.no_grad()
def test_steps_of_a_second_through_a_year_are_told_apart() -> None:
    """Counted from an origin of their own they would be too large for float32: order comes from what was given."""
    times = torch.cat([torch.zeros(1), torch.arange(8.0, dtype=torch.float64) + 3.2e7])
    model = series("ALiBi")
    values = random(1, TOKENS, 2).float()
    changed = values.clone()
    changed[:, 5] += 3.0
    a, b = (model(Batch(x, times=times)) for x in (values, changed))
    assert torch.equal(a[:, :5], b[:, :5])
    assert gap(a[:, 5:], b[:, 5:]) > 1e-3


@pytest.mark.finding("S1")
@torch.no_grad()
def test_masks_in_any_clock_are_those_from_zero_on() -> None:
    times, plain, _ = in_clock("Unix seconds")
    for mask in (op.Window(1.3), op.Strided(3.0, width=1.0), Causal() & op.Window(2.0)):
        far, near = (mask.allowed(t[:, None], t[:, None]) for t in (times, plain))
        assert torch.equal(far, near)
    grids = [ct.Samples().on(ct.Times(), t) for t in (times, plain)]
    assert torch.equal(grids[0].weights, grids[1].weights)
    assert torch.equal(grids[0].weights[3], grids[0].weights[4])  # equal stamps share their cell


@pytest.mark.finding("S1")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@torch.no_grad()
def test_every_dtype_keeps_the_order(dtype: torch.dtype) -> None:
    times = in_clock("Unix seconds")[0]
    model = series().to(dtype)
    values = random(1, TOKENS, 2).to(dtype)
    changed = values.clone()
    changed[:, 5] += 3.0
    a, b = (model(Batch(x, times=times)) for x in (values, changed))
    assert a.dtype == dtype
    assert torch.equal(a[:, :5], b[:, :5])


@pytest.mark.finding("S1")
@torch.no_grad()
def test_questions_and_their_source_share_a_clock() -> None:
    """The encodings of a forecaster are those of its clock: answers in float32 are near those in float64."""
    model = stirred(ct.zoo.forecaster(2, out=3, at=ct.at(d=8, h=2, z=2), self_attention=True)).eval()
    origin = CLOCKS["Unix seconds"][0]
    source = Batch(random(2, TOKENS, 2), times=origin + steps())
    asked = Batch(times=origin + 9.0 + steps(), source=source)
    wanted = model(asked)
    model.float()
    source = replace(source, values=random(2, TOKENS, 2).float())
    assert gap(model(replace(asked, source=source)), wanted.float()) < SINGLE


@pytest.mark.finding("S1")
@torch.no_grad()
def test_a_laid_batch_and_a_far_interval_keep_stamps() -> None:
    times, plain, _ = in_clock("Unix seconds")
    values = random(1, TOKENS, 2).float()
    model = series("rotary")
    batch = Batch(values, times=times)
    assert torch.equal(model(model.laid(batch)), model(batch))
    far = series(t=ct.Interval(1.7e9, 1.7e9 + 10))
    near = series(t=ct.Interval(0.0, 10.0))
    assert gap(far(batch), near(Batch(values, times=plain))) < SINGLE
    rule = ct.Midpoint(TOKENS)
    changed = values.clone()
    changed[:, 5] += 3.0
    a, b = (far.at(t=rule)(x) for x in (values, changed))
    assert torch.equal(a[:, :5], b[:, :5])
    assert gap(a, near.at(t=rule)(values)) < SINGLE


@pytest.mark.finding("S1")
@pytest.mark.unshaped
@torch.no_grad()
def test_compiled_and_exported_models_keep_stamps() -> None:
    times = in_clock("Unix seconds")[0]
    model = series("rotary")
    values = random(2, TOKENS, 2).float()
    changed = values.clone()
    changed[:, 5] += 3.0
    batch = Batch(values, times=times)
    eager = torch.compile(model, backend="eager", fullgraph=True)
    program = torch.export.export(model, (batch,)).module()
    for run in (eager, program):
        a, b = run(batch), run(replace(batch, values=changed))
        assert gap(a, model(batch)) < SINGLE
        assert torch.equal(a[:, :5], b[:, :5])


@pytest.mark.finding("S1")
def test_stamps_have_gradients_in_their_own_precision() -> None:
    times = in_clock("Unix seconds")[0].requires_grad_()
    series("rotary")(Batch(random(1, TOKENS, 2).float(), times=times)).sum().backward()
    assert times.grad is not None
    assert times.grad.dtype == torch.float64
    assert bool(times.grad.isfinite().all())
    assert bool(times.grad.abs().max() > 0)


# --- what stamps may be given as --------------------------------------------------------------------------------------


class Indexed:
    """What pandas' indices and series are to us: something that knows how to become an array."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.values


DAYS = np.array(["2024-01-01", "2024-01-02", "2024-01-04"], dtype="datetime64[D]")
SECONDS = torch.tensor([1704067200.0, 1704153600.0, 1704326400.0], dtype=torch.float64)
BERLIN = timezone(timedelta(hours=1))
GIVEN = {
    "days": DAYS,
    "nanoseconds": DAYS.astype("datetime64[ns]"),
    "an index": Indexed(DAYS.astype("datetime64[ns]")),
    "datetimes": [datetime(2024, 1, day) for day in (1, 2, 4)],
    "dates": [datetime(2024, 1, day).date() for day in (1, 2, 4)],
    "aware datetimes": [datetime(2024, 1, day, 1, tzinfo=BERLIN) for day in (1, 2, 4)],
    "an array of objects": np.array([datetime(2024, 1, day, 1, tzinfo=BERLIN) for day in (1, 2, 4)], dtype=object),
    "numbers": SECONDS.tolist(),
    "whole numbers": [int(x) for x in SECONDS],
    "an array": SECONDS.numpy(),
}


@pytest.mark.finding("S1", "D11")
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@torch.no_grad()
def test_dates_lists_and_arrays_are_stamps(given: Any) -> None:
    batch = Batch(random(1, 3, 2).float(), times=given)
    assert isinstance(batch.times, Tensor)
    assert torch.equal(batch.times.double(), SECONDS)
    model = series()
    assert torch.equal(model(batch), model(replace(batch, times=SECONDS)))


@pytest.mark.finding("S1")
def test_pandas_is_taken_where_it_is_installed() -> None:
    pandas = pytest.importorskip("pandas")
    index = pandas.to_datetime(["2024-01-01", "2024-01-02", "2024-01-04"])
    for given in (index, pandas.Series(index), list(index), index.tz_localize("UTC")):
        assert torch.equal(as_stamps(given), SECONDS)


@pytest.mark.finding("S1", "D11")
def test_what_is_no_stamp_is_refused() -> None:
    values = random(1, 3, 2)
    with refused(GridError, "got list of", "a list of numbers or dates"):
        Batch(values, times=["a", "b", "c"])
    with refused(GridError, "got ", "a list of numbers or dates"):
        Batch(values, times=[[0.0], [1.0, 2.0]])
    with refused(GridError, "got ", "a list of numbers or dates"):
        Batch(values, times=[None, object(), 3])
    close = np.array(["2024-01-01T00:00:00.000000001", "2024-01-01T00:00:00.000000002"], dtype="datetime64[ns]")
    with refused(GridError, "some that float64 cannot tell apart", "times − times[0]"):
        Batch(values[:, :2], times=close)
    whole = torch.tensor([2**60, 2**60 + 1, 2**60 + 2])
    with refused(GridError, "some that float64 cannot tell apart", "times − times[0]"):
        series()(Batch(values.float(), times=whole))
    missing = np.array(["2024-01-01", "NaT", "2024-01-03"], dtype="datetime64[D]")
    with refused(GridError, "NaN or infinity", "observed"):
        series()(Batch(values.float(), times=missing))


@pytest.mark.finding("D11")
@torch.no_grad()
def test_flags_and_asked_points_may_be_lists() -> None:
    batch = Batch(random(1, 3, 2).float(), times=[0.0, 1.0, 2.0], observed=[True, False, True])
    tensors = replace(batch, times=torch.arange(3.0).double(), observed=torch.tensor([True, False, True]))
    assert torch.equal(series()(batch), series()(tensors))
    assert torch.equal(Batch(asked=[[0.5], [1.0]]).asked, torch.tensor([[0.5], [1.0]], dtype=torch.float64))
