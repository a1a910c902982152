"""Settings of operators at the ends of what they may be."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import continua as ct
from continua.errors import ConfigError
from continua.fields import counted
from continua.models.build import discrete_axes
from continua.operators import Convolution, PositiveFeatures, RelativeBias, Waves
from continua.operators.kernels.features import directions
from continua.operators.kernels.sampled import reference
from tests.refusals import refused

WEIGHTS = counted(discrete_axes(8, 2, 12, 1)[0], 1)
LAST = 2**63 - 1

pytestmark = pytest.mark.spec("B17")

WRONG: dict[str, tuple[Callable[[], Any], str, str]] = {
    "too few buckets": (lambda: RelativeBias(WEIGHTS, 3), "got 3 buckets up to 128", "Use 4 buckets or more"),
    "one causal bucket": (lambda: RelativeBias(WEIGHTS, 1, causal=True), "got 1 buckets up to 128", "(2 if causal)"),
    "buckets that reach nowhere": (lambda: RelativeBias(WEIGHTS, 32, 8.0), "got 32 buckets up to 8", "a reach beyond"),
    "a degree below zero": (lambda: Convolution(WEIGHTS, degree=-1), "got -1", "degree ≥ 0"),
    "a degree of 10⁹": (lambda: Convolution(WEIGHTS, degree=10**9), "got 1000000000", "degree ≥ 0 and ≤ 100"),
    "no features": (lambda: PositiveFeatures(m=0), "got 0", "m ≥ 1"),
    "a seed of 2⁶³": (lambda: PositiveFeatures(seed=2**63), "got 9223372036854775808", "seed ≥ 0 and < 2^63"),
    "waves in a box": (lambda: Waves(BOX, (10**6, 10**6)), "of memory", "Use fewer modes"),
}
BOX = ct.Product((ct.Circle(), ct.Circle()))


@pytest.mark.parametrize(("make", "got", "remedy"), WRONG.values(), ids=WRONG)
def test_settings_outside_are_refused(make: Callable[[], Any], got: str, remedy: str) -> None:
    with refused(ConfigError, got, remedy):
        make()


def test_the_least_buckets_have_a_place_for_every_distance() -> None:
    gaps = torch.linspace(-300, 300, 601, dtype=torch.float64)
    for bias in (RelativeBias(WEIGHTS, 4, 2.0), RelativeBias(WEIGHTS, 2, 2.0, causal=True)):
        found = bias.bucket(gaps)
        assert 0 <= int(found.min()) <= int(found.max()) < bias.buckets


def test_the_largest_seed_has_draws_of_every_step() -> None:
    first, second = (reference(ct.axes.Sobol(4, seed=LAST), step) for step in (1, 2))
    assert first != second
    cpu = torch.device("cpu")
    assert not torch.equal(directions(4, 4, LAST, 1, cpu, torch.float64), directions(4, 4, LAST, 2, cpu, torch.float64))
