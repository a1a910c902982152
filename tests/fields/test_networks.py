"""Networks that make fields: their sizes and spreads are held against what weights can be."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from continua import memory
from continua.axes import Axes, Circle, Interval, Points
from continua.errors import ConfigError
from continua.fields import BSpline, ByNetwork, Fourier, Generated, Neural, Separable
from tests.refusals import refused

LINES: dict[str, Any] = {"t": Interval(), "d": Circle()}
AXES = Axes(t=Points(), d=Circle(mass=8.0), h=Points(2), e=Points(4), m=Points(8), z=Interval())

pytestmark = pytest.mark.spec("B17")

WRONG: dict[str, tuple[Callable[[], Any], str, str]] = {
    "no hidden values": (lambda: Neural(LINES, hidden=0), "got 0", "hidden ≥ 1"),
    "waves below none": (lambda: Neural(LINES, waves=-1), "got -1", "waves ≥ 0"),
    "no rank": (lambda: Separable(LINES, rank=0), "got 0", "rank ≥ 1"),
    "a spread below zero": (lambda: Separable(LINES, std=-1.0), "got -1.0", "std ≥ 0"),
    "a mean beyond float32": (lambda: Separable(LINES, mean=1e300), "got 1e+300", "mean ≥ -1e+38 and ≤ 1e+38"),
    "no coefficients": (lambda: Generated(0), "got 0", "size ≥ 1"),
    "a seed below zero": (lambda: Generated(4, seed=-1), "got -1", "seed ≥ 0"),
    "no waves": (lambda: Fourier(0), "got 0", "size ≥ 1"),
    "a spline of degree −1": (lambda: BSpline(4, degree=-1), "got -1", "degree ≥ 0"),
    "networks of no width": (lambda: ByNetwork(AXES, hidden=0), "got 0", "hidden ≥ 1"),
    "networks of no rank": (lambda: ByNetwork(AXES, separable=0), "got 0", "separable ≥ 1"),
}


@pytest.mark.parametrize(("make", "got", "remedy"), WRONG.values(), ids=WRONG)
def test_what_no_network_has_is_refused(make: Callable[[], Any], got: str, remedy: str) -> None:
    with refused(ConfigError, got, remedy):
        make()


LARGE: dict[str, Callable[[], Any]] = {
    "Neural": lambda: Neural(LINES, hidden=10**6, waves=10**6),
    "Separable": lambda: Separable(LINES, rank=10**6, hidden=10**6),
    "Generated": lambda: Generated(10**6, hidden=10**6),
}


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
def test_networks_that_do_not_fit_are_refused_before_they_are_drawn(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*_: Any, **__: Any) -> None:
        raise AssertionError("numbers were drawn for a network that does not fit")

    monkeypatch.setattr(memory, "available", lambda: 10**9)
    monkeypatch.setattr(torch, "randn", draw)
    with refused(ConfigError, "a weight of shape", "Choose smaller sizes"):
        make()


@pytest.mark.parametrize("kind", [Neural, Separable])
def test_a_whole_number_is_a_mean(kind: Any) -> None:
    field = kind(LINES, mean=2, std=0.0).double()
    assert field.rest.dtype == torch.float64
    assert field.rest.item() == 2.0
