"""A process of two is killed at random moments; ``torchrun`` starts both anew, and the run ends as one left alone."""

import pytest

from tests.killed_ranks import killed

NOTICED = 30.0  # seconds


@pytest.mark.slow(reason="torchrun starts interpreters again and again; benchmarks/scale.py --only kills has twenty")
@pytest.mark.spec("B8", "B15", "T9")
def test_kills_under_torchrun_change_no_bit() -> None:
    seen = killed(2, seed=4)
    assert seen.other == 0
    assert len(seen.kills) == 2
    assert max(kill.seconds for kill in seen.kills) < NOTICED
