"""How often each size learns in a short distillation, from how many texts, and which corrections."""

import pytest
import torch

import continua as ct
from continua.convert.distil import distillation
from continua.errors import ConfigError
from continua.fields import Corrections
from continua.operators.correction import Correction, corrections_of
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


@pytest.mark.spec("B11")
def test_a_size_with_a_correction_of_its_own_reads_that_of_another_and_does_not_change_it() -> None:
    both, narrow = ct.at(m=12, h=2), ct.at(d=8, m=12, h=2)
    model = distillation(gpt(), data(), sizes=[both, narrow, ct.at(z=2)]).model
    batch = data()[0]
    named = {name: own for name, own in model.named_parameters() if " whole by " in name}
    generator = torch.Generator().manual_seed(0)
    for own in named.values():
        own.data.normal_(0.0, 0.1, generator=generator)

    def learned(size: ct.Discretisation) -> set[str]:
        """The axes whose corrections hear of an answer at a size."""
        model.zero_grad()
        model.at(size)(batch).sum().backward()
        return {name.split(" by ")[1][0] for name, own in named.items() if own.grad is not None}

    assert learned(both) == {"h"}
    assert learned(narrow) == {"d"}
    assert learned(ct.at(z=2)) == {"z"}
    before = model.at(narrow)(batch)
    for name, own in named.items():
        if " by h" in name:
            own.data.zero_()
    assert (model.at(narrow)(batch) - before).abs().max() > 1e-3, "it is read all the same"
    with refused(ConfigError, "axes that learn alone", "Name some of h m."):
        Corrections(None, "hm", alone="d")


@pytest.mark.spec("B11")
@pytest.mark.parametrize(
    ("sizes", "alone"),
    [
        ([ct.at(m=12)], ""),
        ([ct.at(m=12), ct.at(h=2), ct.at(m=12, h=2)], "hm"),
        ([ct.at(m=12, h=2), ct.at(d=8, m=12, h=2)], "h"),
        ([ct.at(d=8), ct.at(z=2)], ""),
    ],
)
def test_axes_learn_alone_where_a_size_has_no_other_and_another_has(sizes, alone) -> None:
    made = distillation(gpt(), data(), sizes=sizes).model
    assert {own.alone for own in corrections_of(made) if isinstance(own, Correction)} == {alone}
    few = distillation(gpt(), data(), sizes=sizes, rank=2).model
    assert {own.alone for own in corrections_of(few) if isinstance(own, Correction)} == {""}
