"""Which sizes learn at a step, and what: the usual law with joined steps, and laws and imitations of one's own."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from continua.axes import at
from continua.config import from_plain, register, to_plain
from continua.convert import elastic
from continua.errors import ConfigError
from continua.flow import Adaptive, Fixed
from continua.models import Transformer, zoo
from continua.optim import Muon
from continua.recipes import build
from continua.tasks.task import generator_for
from continua.training import AnswerImitation, Elastic, Growth, SmallerSizes, Stage, Training, fit
from continua.training.elastic import Lesson
from continua.training.sizes import never_joined
from tests.refusals import refused
from tests.runs import tiny_task, tiny_text

pytestmark = pytest.mark.spec("T11")


def gpt(depth: int = 4) -> Transformer:
    torch.manual_seed(0)
    return zoo.gpt2(vocab=20, d=16, heads=4, depth=depth, context=16).double()


def drawn(law: Elastic, model: Any, steps: int = 400) -> list[Any]:
    plan = law.over(model)
    return [lesson for step in range(steps) for lesson in plan.draw(0.9, generator_for("size", 0, step))]


# --- joined steps -----------------------------------------------------------------------------------------------------


def test_steps_are_joined_in_every_way_but_one() -> None:
    model = elastic(gpt())
    lessons = drawn(Elastic(joined=1.0, deep=0.0, draws=1), model)
    lengths = Counter(lesson.at.z.lengths for lesson in lessons)
    assert set(lengths) == {(2, 1, 1), (1, 1, 2), (2, 2), (1, 3), (3, 1), (4,)}, "all of them but 1 + 2 + 1"
    assert never_joined(4) == (1, 2, 1)
    assert lengths[2, 2] == max(lengths.values()), "half of the steps is what is asked for most"
    ids = torch.zeros(1, 5, dtype=torch.long)
    for each in lengths:
        wish = at(z=Fixed(len(each), lengths=each))
        assert model(ids, wish).shape == (1, 5, 20)
    assert torch.equal(model(ids, at(z=Fixed(3, lengths=(1, 1, 2)))), model(ids, at(z=3)))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_few_steps_can_be_joined_too(depth: int) -> None:
    lessons = drawn(Elastic(joined=1.0, deep=0.0, draws=1), elastic(gpt(depth)), steps=20)
    assert len(lessons) == 20
    lengths = {lesson.at.z.lengths for lesson in lessons if isinstance(lesson.at.z, Fixed)}
    assert lengths == ({(2, 1), (3,)} if depth == 3 else set())


def test_chances_of_finer_and_joined_steps_add_up() -> None:
    lessons = drawn(Elastic(joined=0.3, deep=0.2, draws=1), elastic(gpt()), steps=2000)
    joined = sum(isinstance(lesson.at.z, Fixed) for lesson in lessons) / len(lessons)
    finer = sum(lesson.at.z == 8 for lesson in lessons) / len(lessons)
    assert abs(joined - 0.3) < 0.05
    assert abs(finer - 0.2) < 0.05


def test_a_run_knows_which_joinings_it_drew() -> None:
    plan = Elastic(joined=0.5, deep=0.1).over(elastic(gpt()))
    assert all(plan.drew({"d": 16, "h": 4, "z": z}) for z in (1, 2, 3, 4, 8))
    assert not plan.drew({"d": 16, "h": 4, "z": 5})
    assert not Elastic(joined=0.0).over(elastic(gpt())).drew({"d": 16, "h": 4, "z": 3})
    assert not Elastic().over(elastic(gpt())).drew({"d": 16, "h": 4, "z": 8}), "twice the steps need no lessons"


def test_a_mix_says_how_often_kinds_of_sizes_are_drawn() -> None:
    model = elastic(gpt())
    half = {"d": 8, "h": 2, "z": 2}
    counts = Counter(
        tuple(k for k, n in half.items() if getattr(lesson.at, k) == n)
        for lesson in drawn(Elastic(d=(8,), h=(2,), z=(2,), draws=1, mix="ddha"), model, steps=2000)
    )
    assert set(counts) == {("d",), ("h",), ("d", "h", "z")}
    assert abs(counts[("d",)] / 2000 - 0.5) < 0.05
    assert abs(counts[("h",)] / 2000 - 0.25) < 0.05
    one_head = elastic(zoo.gpt2(vocab=20, d=16, heads=1, depth=1, context=8))
    assert all(lesson.at.d < 16 for lesson in drawn(Elastic(mix="h", draws=1, d=(8,)), one_head, steps=20)), (
        "an axis that cannot be smaller makes way for all of them"
    )
    with refused(ConfigError, "got dm", "Write letters of axes that are drawn"):
        Elastic(mix="dm")
    assert Elastic(mix="dm", m=(16,)).over(model).draw(0.9, torch.Generator().manual_seed(0))


def test_lessons_may_be_left_out_by_chance() -> None:
    plan = Elastic(often=0.25, draws=2, start=0.0).over(elastic(gpt()))
    counts = Counter(len(plan.draw(0.5, torch.Generator().manual_seed(seed))) for seed in range(1000))
    assert set(counts) == {0, 2}
    assert abs(counts[2] / 1000 - 0.25) < 0.05


# --- the recipe -------------------------------------------------------------------------------------------------------


def test_the_recipe_grows_and_trains_its_kernels_by_muon(tmp_path) -> None:
    (tmp_path / "text.txt").write_text(tiny_text(), encoding="utf-8")
    small = {"text": str(tmp_path / "text.txt"), "d": 16, "heads": 2, "depth": 2, "context": 16}
    usual = build("elastic", small)
    assert usual.optimiser.kernel == Muon(0.015)
    assert build("elastic", {**small, "matrix_lr": 0.0}).optimiser == replace(usual.optimiser, kernel=None)
    quarters = Stage((at(d=12), at(z=1)), 0.55)  # of the width, and of two steps
    stages = (Stage((at(d=8, h=1, z=1),), 0.2), Stage((at(d=8), at(z=1)), 0.4), quarters)
    assert usual.training.grow == Growth(stages)
    assert build("elastic", {**small, "coarse": 0.0}).training.grow == Growth(stages[1:])
    assert build("elastic", {**small, "coarse": 0.0, "half": 0.0, "most": 0.0}).training.grow is None
    first = Stage((at(d=4, h=1, z=1),), 0.05, rate=0.5)
    assert build("elastic", {**small, "quarter": 0.05}).training.grow == Growth((first, *stages))


def test_the_recipe_may_begin_with_few_examples(tmp_path) -> None:
    (tmp_path / "text.txt").write_text(tiny_text(), encoding="utf-8")
    small = {"text": str(tmp_path / "text.txt"), "d": 16, "heads": 2, "depth": 2, "context": 16, "examples": 0.5}
    half = (Stage((at(d=8, h=1, z=1),), 0.2, batch=0.5), Stage((at(d=8), at(z=1)), 0.4, batch=0.5))
    coarse = (*half, Stage((at(d=12), at(z=1)), 0.55, batch=0.5))
    assert build("elastic", small).training.grow == Growth(coarse)
    native = Stage((at(),), 0.7, batch=0.5)
    assert build("elastic", {**small, "few": 0.7}).training.grow == Growth((*coarse, native))
    assert build("elastic", {**small, "few": 0.5}).training.grow == Growth(coarse), "a stage that would be over"
    alone = {**small, "few": 0.7, "coarse": 0.0, "half": 0.0, "most": 0.0}
    assert build("elastic", alone).training.grow == Growth((native,))


@pytest.mark.spec("B1")
def test_sizes_below_half_are_one_more_lesson_now_and_then() -> None:
    model = elastic(zoo.gpt2(vocab=8, d=16, heads=4, depth=4, context=8))
    law = SmallerSizes(draws=1, start=0.0, quarters=0.25)
    plan = law.over(model)
    steps = [plan.draw(0.5, torch.Generator().manual_seed(seed)) for seed in range(400)]
    more = [lessons[1].at for lessons in steps if len(lessons) > 1]
    assert 70 <= len(more) <= 130
    assert all(size.d == 4 or size.h == 1 or size.z == 1 for size in more)
    assert sum(size == at(d=4, h=1, z=1) for size in more) > len(more) / 4
    assert all(plan.drew({"d": size.d, "h": size.h, "z": size.z}) for size in more)
    alone = replace(law, quarters=0.0).over(model)
    assert [lessons[:1] for lessons in steps] == [alone.draw(0.5, torch.Generator().manual_seed(s)) for s in range(400)]
    assert not alone.drew({"d": 4, "h": 1, "z": 1})


# --- laws and imitations of one's own ---------------------------------------------------------------------------------


@register
@dataclass(frozen=True)
class OneSize:
    """Always the same lesson."""

    d: int = 8

    def over(self, model):
        return self

    def draw(self, progress, generator):
        return [Lesson(at(d=self.d), 0, 1)]

    def drew(self, sizes):
        return sizes["d"] == self.d


@register
@dataclass(frozen=True)
class Twice:
    """Twice the distance of the answers."""

    def loss(self, study):
        return 2 * (study.answer() - study.teacher).square().sum()


def test_a_law_and_an_imitation_of_ones_own_take_the_place_of_the_usual_ones() -> None:
    task = tiny_task()
    torch.manual_seed(0)
    model = elastic(zoo.gpt2(vocab=task.tokens.size, d=16, heads=4, depth=2, context=task.context).double())
    own = Elastic(law=OneSize(), imitation=Twice(), weight=0.5)
    assert from_plain(to_plain(Training(elastic=own))) == Training(elastic=own)
    example = task.example(0, 0)
    with torch.no_grad():
        apart = (model(example.batch, at(d=8)) - model(example.batch)).square().sum() / example.count
    line = fit(model, task, steps=1, elastic=own, watch=lambda at: None).history[0]
    assert math.isclose(line["elastic"], float(apart), rel_tol=1e-9)
    assert own.over(model).drew({"d": 8})


def test_the_usual_law_and_imitation_can_be_named() -> None:
    named = Elastic(law=SmallerSizes(d=(8, 16), draws=1), imitation=AnswerImitation(0.5))
    short = Elastic(d=(8, 16), draws=1, distil=0.5)
    assert named.teaching == short.teaching
    model = elastic(gpt())
    assert named.over(model) == short.over(model)
    written = {"kind": "Elastic", "d": [8, 16], "draws": 1, "distil": 0.5}  # by a version that knew no other law
    assert from_plain(written) == short
    with refused(ConfigError, "takes the place of d", "law=SmallerSizes"):
        Elastic(law=SmallerSizes(), d=(8,))
    with refused(ConfigError, "law takes a SizeLaw or None, got 3", "law="):
        Elastic(law=3)
    with refused(ConfigError, "takes the place of distil", "AnswerImitation"):
        Elastic(imitation=AnswerImitation(), distil=0.0)


def test_sizes_of_an_encoder_decoder_are_those_of_its_decoder() -> None:
    model = zoo.t5(11, d=16, heads=4, depth=4, m=16, e=4)
    assert Elastic().over(model).full == {"d": 16, "h": 4, "z": 4}
    searching = gpt()
    searching.native = searching.native.replace(z=Adaptive())
    with refused(ConfigError, "sizes are numbers of steps", "at(z=6)"):
        Elastic().over(searching)
