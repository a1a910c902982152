"""Laws that draw from a list of sizes: along the diagonal, or by what each still gets wrong."""

from collections import Counter
from typing import Any

import pytest
import torch

from continua.axes import at
from continua.config import from_plain, to_plain
from continua.convert import elastic
from continua.errors import ConfigError
from continua.flow import Adaptive, Fixed
from continua.models import Transformer, zoo
from continua.tasks.task import generator_for
from continua.training import ByGap, ByShare, Diagonal, Elastic, LearningPlan, Lesson, Run, SizeLaw, Training, fit
from tests.refusals import refused
from tests.runs import tiny_task

pytestmark = pytest.mark.spec("T11")


def gpt(depth: int = 4) -> Transformer:
    torch.manual_seed(0)
    task = tiny_task()
    plain = zoo.gpt2(vocab=task.tokens.size, d=16, heads=4, depth=depth, context=task.context)
    return elastic(plain.double())


def drawn(plan: Any, steps: int, progress: float = 0.9) -> list[Lesson]:
    return [lesson for step in range(steps) for lesson in plan.draw(progress, generator_for("size", 0, step))]


LAWS = [
    Diagonal(),
    Diagonal((0.5,), parts=1),
    ByGap(),
    ByGap((at(d=8), at(h=2)), power=0.5),
    ByShare((at(d=8), at(h=2)), (1.0, 0.5), (at(h=2),)),
]


@pytest.mark.parametrize("law", LAWS)
def test_a_run_remembers_its_law(law: SizeLaw) -> None:
    training = Training(elastic=Elastic(law=law))
    assert from_plain(to_plain(training)) == training
    assert isinstance(law.over(gpt()), LearningPlan) is isinstance(law, ByGap)


# --- the diagonal -----------------------------------------------------------------------------------------------------


def test_the_diagonal_is_drawn_in_equal_shares() -> None:
    plan = Diagonal().over(gpt())
    sizes = Counter(lesson.at for lesson in drawn(plan, 900))
    assert set(sizes) == {at(d=4, h=1, z=1), at(d=8, h=2, z=2), at(d=12, h=3, z=3)}
    assert all(abs(count - 300) < 60 for count in sizes.values())  # four standard deviations
    assert {lesson.block for lesson in drawn(plan, 50)} == {0, 1}
    assert Diagonal(start=0.5).over(gpt()).draw(0.4, generator_for("size", 0, 0)) == []


def test_sizes_of_one_step_are_different_ones() -> None:
    plan = Diagonal(draws=3).over(gpt())
    for step in range(20):
        lessons = plan.draw(0.0, generator_for("size", 0, step))
        assert len({lesson.at for lesson in lessons}) == 3


def test_the_diagonal_knows_what_it_drew() -> None:
    plan = Diagonal((0.5,)).over(gpt())
    assert plan.drew({"d": 8, "h": 2, "z": 2})
    assert plan.drew({"d": 16, "h": 4, "z": 4}), "the native size"
    assert not plan.drew({"d": 8, "h": 4, "z": 4})
    assert not plan.drew({"d": 8, "h": 2, "z": 2, "m": 64})
    assert not plan.drew({"d": 8, "h": 2, "z": (3, 1)})


@pytest.mark.parametrize("wrong", [{"shares": ()}, {"shares": (0.0, 0.5)}, {"shares": (0.5, 0.5), "draws": 2}])
def test_what_is_no_diagonal_is_refused(wrong: dict[str, Any]) -> None:
    with refused(ConfigError, "a diagonal is a list of shares", "(0.25, 0.5)"):
        Diagonal(**wrong)
    with refused(ConfigError, "shares", "1"):
        Diagonal((1.0,))


# --- by their gaps ----------------------------------------------------------------------------------------------------


def test_sizes_are_drawn_in_proportion_to_their_gap() -> None:
    plan = ByGap((at(d=8), at(h=2), at(z=2)), even=0.0, memory=0.5).over(gpt())
    assert plan.chances() == [1 / 3] * 3, "nothing is known"
    plan.saw([Lesson(at(d=8), 0, 2)], 0.6)
    plan.saw([Lesson(at(h=2), 0, 2)], 0.2)
    assert plan.chances() == pytest.approx([0.6 / 1.4, 0.2 / 1.4, 0.6 / 1.4]), "the unknown one as the worst"
    plan.saw([Lesson(at(z=2), 0, 2)], 0.4)
    plan.saw([Lesson(at(z=2), 0, 2)], 0.0)
    assert plan.gaps == pytest.approx([0.6, 0.2, 0.2])
    sizes = Counter(lesson.at for lesson in drawn(plan, 1000))
    assert abs(sizes[at(d=8)] - 600) < 70
    assert abs(sizes[at(h=2)] - 200) < 60


def test_a_part_is_drawn_evenly_and_the_power_bends_the_rest() -> None:
    sizes = (at(d=8), at(h=2))
    known = {"gaps": [0.9, 0.1]}
    for law, chances in (
        (ByGap(sizes, even=1.0), [0.5, 0.5]),
        (ByGap(sizes, even=0.0, power=0.0), [0.5, 0.5]),
        (ByGap(sizes, even=0.0, power=0.5), [0.75, 0.25]),
        (ByGap(sizes, even=0.5), [0.7, 0.3]),
    ):
        plan = law.over(gpt())
        plan.recall({"law": to_plain(law), **known})
        assert plan.chances() == pytest.approx(chances)
    plan.recall({"law": to_plain(law), "gaps": [0.0, 0.0]})
    assert plan.chances() == [0.5, 0.5], "nothing left to learn"


def test_the_usual_list_has_quarters_and_halves_of_every_axis() -> None:
    plan = ByGap().over(gpt())
    assert len(plan.sizes) == 27
    assert {at(d=4, h=1, z=1), at(d=8, h=2, z=2), at(d=4, h=4, z=4), at(d=16, h=4, z=8)} < {*plan.sizes}
    assert plan.drew({"d": 8, "h": 1, "z": 2})
    assert not plan.drew({"d": 10, "h": 4, "z": 4})
    assert len(ByGap().over(gpt(depth=1)).sizes) == 9, "one step cannot be fewer"


def test_no_list_and_searched_steps_are_refused() -> None:
    for wrong in ((), (at(d=8), at(d=8))):
        with refused(ConfigError, "sizes are what is drawn from", "different ones"):
            ByGap(wrong)
    searching = gpt()
    searching.native = searching.native.replace(z=Adaptive())
    for law in (ByGap(), Diagonal()):
        with refused(ConfigError, "sizes are numbers of steps", "at(z=6)"):
            law.over(searching)


# --- by shares of the steps -------------------------------------------------------------------------------------------


def test_each_size_learns_at_its_share_of_the_steps() -> None:
    sizes = (at(d=8), at(h=2), at(z=2))
    plan = ByShare(sizes, (1.0, 0.75, 0.25), brief=sizes[2:]).over(gpt())
    lessons = drawn(plan, 1000)
    counts = Counter(lesson.at for lesson in lessons)
    assert counts[sizes[0]] == 1000
    assert abs(counts[sizes[1]] - 750) < 56  # four standard deviations
    assert abs(counts[sizes[2]] - 250) < 56
    assert {(lesson.at, lesson.parts, lesson.block) for lesson in lessons} == {
        (sizes[0], 1, 0),
        (sizes[1], 1, 0),
        (sizes[2], 2, 0),
        (sizes[2], 2, 1),
    }
    assert plan.drew({"d": 8, "h": 4, "z": 4})
    assert not plan.drew({"d": 10, "h": 4, "z": 4})


def test_a_step_without_a_size_goes_to_that_of_the_largest_share() -> None:
    sizes = (at(d=8), at(h=2))
    plan = ByShare(sizes, (0.1, 0.2)).over(gpt())
    steps = [plan.draw(0.0, generator_for("size", 0, step)) for step in range(200)]
    assert min(len(lessons) for lessons in steps) == 1
    counts = Counter(lesson.at for lessons in steps for lesson in lessons)
    assert counts[sizes[1]] > 150 > counts[sizes[0]]


@pytest.mark.parametrize("shares", [(), (1.0,), (1.0, 0.0), (1.0, 0.5, 0.5)])
def test_shares_are_one_for_each_size(shares: tuple[float, ...]) -> None:
    with refused(ConfigError, "each size has a share of the steps", "shares=(1.0, 0.5)"):
        ByShare((at(d=8), at(h=2)), shares)
    with refused(ConfigError, "sizes are what is drawn from", "different ones"):
        ByShare((at(d=8), at(d=8)), (1.0, 1.0))


def test_gaps_are_those_of_the_lessons_and_steps_may_be_joined() -> None:
    joined = at(z=Fixed(3, lengths=(2, 1, 1)))
    law = ByGap((joined, at(d=8)), memory=0.0, even=1.0)
    seen: list[Any] = []
    whole = fit(gpt(), tiny_task(), steps=12, elastic=Elastic(law=law, weight=1.0), watch=lambda at: None)
    plan = law.over(gpt())
    for step, line in enumerate(whole.history):
        lessons = plan.draw(step / 12, generator_for("size", 0, step))
        plan.saw(lessons, line["elastic"])
        seen += [lesson.at for lesson in lessons]
    assert {*seen} == {joined, at(d=8)}, "the even part alone decides, whatever the gaps"
    assert all(gap is not None and gap > 0 for gap in plan.gaps)


def test_a_resumed_run_draws_what_the_whole_one_draws(tmp_path) -> None:
    own = {"steps": 14, "save_every": 1, "elastic": Elastic(law=ByGap(even=0.0), weight=0.8)}
    whole = fit(gpt(), tiny_task(), watch=lambda at: None, **own)

    def stop(progress: Any) -> None:
        if progress.step == 8:
            raise KeyboardInterrupt

    part = fit(gpt(), tiny_task(), run=tmp_path / "run", watch=stop, **own)
    assert part.ended == "interrupted"
    again = fit(gpt(), tiny_task(), run=Run.open(tmp_path / "run"), watch=lambda at: None, **own)
    assert [line["elastic"] for line in again.history] == [line["elastic"] for line in whole.history]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_what_another_law_learned_is_not_used() -> None:
    law = ByGap((at(d=8), at(h=2)))
    plan = law.over(gpt())
    for other in (None, 3, {}, {"law": to_plain(ByGap()), "gaps": [1.0] * 27}):
        plan.saw([Lesson(at(d=8), 0, 2)], 0.5)
        plan.recall(other)
        assert plan.gaps == [None, None]
    plan.saw([Lesson(at(d=8), 0, 2)], 0.5)
    kept = plan.plain()
    fresh = law.over(gpt())
    fresh.recall(kept)
    assert fresh.gaps == [0.5, None]
