"""How the recipe ``elastic`` grows, and which sizes learn afterwards."""

from collections import Counter

import pytest

from continua.axes import at
from continua.models import zoo
from continua.recipes.elastic import ElasticSettings, afterwards, growth

pytestmark = [pytest.mark.spec("B1"), pytest.mark.spec("T11")]
SETTINGS = ElasticSettings()
FULL = {"d": 16, "h": 4, "z": 4}


def test_it_grows_from_half_of_everything_by_half_and_three_quarters_of_the_width_or_depth() -> None:
    grow = growth(zoo.gpt2(vocab=10, d=16, heads=4, depth=4, context=8).native, SETTINGS)
    assert grow is not None
    assert [stage.sizes for stage in grow.stages] == [
        (at(d=8, h=2, z=2),),
        (at(d=8), at(z=2)),
        (at(d=12), at(z=3)),
    ]
    assert [stage.until for stage in grow.stages] == [SETTINGS.coarse, SETTINGS.half, SETTINGS.most]


def test_every_size_below_half_learns_afterwards_and_those_that_others_read_more_often() -> None:
    later = afterwards(FULL, SETTINGS)
    assert later is not None
    times = Counter(later.sizes)
    assert len(times) == 4 * 3 * 3 - 2 * 2 * 2, "quarter, 3/8, half and all of d; quarter, half and all of h and z"
    assert min(times.values()) == 1
    assert [size for size, _ in times.most_common(2)] == [at(d=4, h=1, z=1), at(d=4, h=4, z=4)]
    assert at(d=8, h=2, z=2) not in times


@pytest.mark.parametrize("full", [{"d": 2, "h": 2, "z": 2}, {"d": 1, "h": 1, "z": 1}])
def test_a_model_without_sizes_below_half_has_nothing_to_learn_afterwards(full: dict[str, int]) -> None:
    assert afterwards(full, SETTINGS) is None
