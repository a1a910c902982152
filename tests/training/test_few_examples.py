"""Stages that use a part of each batch: which examples, what else changes, and how runs go on."""

from pathlib import Path
from typing import Any

import pytest
import torch

from continua.axes import at
from continua.config import to_plain
from continua.convert import elastic
from continua.errors import ConfigError, RunError
from continua.models import Transformer, zoo
from continua.optim import AdamW, ByRole, Muon
from continua.training import Copied, Elastic, Growth, Run, Stage, Training, fit
from continua.training.growing import growing, refuse_other_growth
from tests.refusals import refused
from tests.runs import silent, timeless, tiny_task

BOTH = ByRole(AdamW(1e-2), kernel=Muon(0.05))
HALF = Stage((at(d=8),), 0.3, batch=0.5)
FEW = Growth((HALF, Stage((at(),), 0.6, batch=0.5)))
LESSONS = Elastic(start=0.0)
pytestmark = [pytest.mark.spec("B1"), pytest.mark.spec("T11")]


def gpt() -> Transformer:
    torch.manual_seed(0)
    return elastic(zoo.gpt2(vocab=tiny_task().tokens.size, d=16, heads=4, depth=4, context=8)).double()


def trained(model: Any, growth: Growth | None = FEW, **given: Any) -> Any:
    usual = {"optimiser": BOTH, "watch": silent, "evaluate_every": 100, "steps": 10}
    return fit(model, tiny_task(), grow=growth, **{**usual, **given})


def same(one: Any, other: Any) -> bool:
    """Whether two models have the same bits."""
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


# --- what is trained --------------------------------------------------------------------------------------------------


def test_a_stage_learns_from_the_first_examples_of_each_batch() -> None:
    model = gpt()
    first = tiny_task().example(0, 0)
    part = first.rows(slice(0, 2))
    expected = float(tiny_task().loss(model.at(d=8)(part.batch), part).detach()) / part.count
    seen: list[int] = []
    run = model.run

    def counted(batch: Any, *given: Any, **named: Any) -> Any:
        seen.append(len(batch.values))
        return run(batch, *given, **named)

    model.run = counted  # type: ignore[method-assign]
    done = trained(model, evaluate_every=100)
    assert seen[:10] == [2] * 6 + [4] * 4
    assert abs(done.history[0]["loss"] - expected) < 1e-12


def test_shares_are_rounded_up() -> None:
    plan = Growth((Stage((at(d=8),), 0.3, batch=0.3),)).over(gpt())
    assert [plan.examples(0, samples) for samples in (1, 3, 4, 10)] == [1, 1, 2, 3]
    assert plan.examples(1, 10) == 10, "the native stage has them all"


def test_a_native_stage_of_whole_batches_changes_nothing() -> None:
    grown = Growth((Stage((at(d=8),), 0.3),), Copied())
    apart = Growth((*grown.stages, Stage((at(),), 0.6)), Copied())
    one, other = (trained(gpt(), law, elastic=LESSONS) for law in (grown, apart))
    assert [line["loss"] for line in one.history] == [line["loss"] for line in other.history]
    assert same(one.model, other.model)


def test_lessons_begin_with_the_native_size_and_few_examples() -> None:
    done = trained(gpt(), elastic=LESSONS)
    assert ["elastic" in line for line in done.history] == [False] * 3 + [True] * 7
    assert [line["stage"] for line in done.history] == [0] * 3 + [1] * 3 + [2] * 4


def test_learning_rates_count_the_examples_that_were_drawn() -> None:
    few, whole = (trained(gpt(), law) for law in (FEW, None))
    assert [line["factor"] for line in few.history] == [line["factor"] for line in whole.history]


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [2, 3, 5, 6])
def test_a_run_of_few_examples_goes_on_with_the_same_bits(tmp_path: Path, stopped: int) -> None:
    def stop(progress: Any) -> None:
        if progress.step == stopped:
            raise KeyboardInterrupt

    whole = trained(gpt(), elastic=LESSONS)
    assert trained(gpt(), run=tmp_path / "run", watch=stop, elastic=LESSONS).ended == "interrupted"
    rest = trained(gpt(), run=Run.open(tmp_path / "run"), elastic=LESSONS)
    assert timeless(rest.history) == timeless(whole.history)
    assert same(whole.model, rest.model)


def test_a_run_from_before_there_were_shares_goes_on() -> None:
    law = Growth((Stage((at(d=8),), 0.3),))
    kept = {"stage": 0, "law": to_plain(law)}
    for stage in kept["law"]["stages"]:
        stage.pop("batch", None)
    training = Training(grow=law, steps=10)
    own = growing(training, gpt(), BOTH.make(gpt()), tiny_task())
    refuse_other_growth(own, kept, 2)
    with refused(RunError, "grows by the schedule it was started with", "start a new run"):
        refuse_other_growth(growing(Training(grow=FEW, steps=10), gpt(), BOTH.make(gpt()), tiny_task()), kept, 2)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_what_is_no_share_of_a_batch_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="batch"):
        Stage((at(d=8),), 0.5, batch=share)


def test_a_stage_leaves_every_micro_batch_an_example() -> None:
    law = Growth((Stage((at(d=8),), 0.3), Stage((at(),), 0.6, batch=0.25)))
    with refused(ConfigError, "a stage has too few examples for 2 micro-batches, got 1", "accumulate less"):
        trained(gpt(), law, accumulate=2)
