"""How often each size learns in a short distillation, and from how many texts."""

import pytest
import torch

import continua as ct
from continua.convert.distil import distillation
from continua.errors import ConfigError
from continua.training import ByGap, ByShare
from tests.convert.test_distil import data, gpt
from tests.refusals import refused


@pytest.mark.spec("B11")
def test_sizes_that_cost_more_than_half_learn_from_half_of_the_texts() -> None:
    sizes = [ct.at(m=12, h=2), ct.at(z=2)]
    law = distillation(gpt(), data(), sizes=sizes).training.elastic.law
    assert law.brief == (sizes[1],)
    plan = law.over(gpt())
    drawn = [lesson for step in range(8) for lesson in plan.draw(0.0, torch.Generator().manual_seed(step))]
    assert {lesson.at: lesson.parts for lesson in drawn} == {sizes[0]: 1, sizes[1]: 2}
    assert {lesson.block for lesson in drawn if lesson.at == sizes[1]} == {0, 1}
    assert distillation(gpt(), data(), sizes=sizes[1:]).training.elastic.law.brief == ()  # nothing to save for
    with refused(ConfigError, "z", "Name them among sizes, too."):
        ByGap(sizes=(sizes[0],), brief=(sizes[1],))


@pytest.mark.spec("B11")
def test_sizes_learn_at_their_shares_of_the_steps() -> None:
    sizes = (ct.at(m=12, h=2), ct.at(z=2))
    law = distillation(gpt(), data(), sizes=sizes, shares=(1.0, 0.25)).training.elastic.law
    assert law == ByShare(sizes, (1.0, 0.25), brief=sizes[1:])
    with refused(ConfigError, "each size has a share of the steps", "shares=(1.0, 0.5)"):
        distillation(gpt(), data(), sizes=sizes, shares=(1.0,))
