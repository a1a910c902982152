"""Encoder–decoders under the instruments of training, and evaluations that fail."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.errors import SolveFailed
from continua.lab.cost.pareto import pareto
from continua.models import Batch
from continua.tasks import Example, Score
from continua.training import Elastic, Progress, Smoothness, fit
from tests.cases_models import WORDS, encoder_decoder, paired
from tests.measure import gap
from tests.runs import silent, states, tiny_model, tiny_task


@dataclass(frozen=True)
class Copied:
    """Say the words again that the source has."""

    def example(self, seed: int, step: int) -> Example:
        batch = paired()
        source = Batch(batch.source.values.roll(step, 1), observed=batch.source.observed)  # type: ignore[union-attr]
        return Example(replace(batch, source=source), batch.values)

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        return torch.nn.functional.cross_entropy(answer.flatten(0, 1), example.target.flatten(), reduction="sum")

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        return (answer - teacher).square().sum()

    @torch.no_grad()
    def evaluate(self, model: Any) -> Score:
        example = self.example(0, 0)
        return Score({"loss": float(self.loss(model(example.batch), example)) / example.count})


def made() -> Any:
    torch.manual_seed(0)
    return encoder_decoder()


@pytest.mark.finding("D8")
def test_smoothness_of_both_flows_is_trained() -> None:
    model = made()
    done = fit(model, Copied(), steps=3, penalties=[1e-3 * Smoothness("z")], watch=silent)
    assert done.ended == "done"
    assert all(math.isfinite(line["loss"]) for line in done.history)


@pytest.mark.finding("D8")
def test_an_encoder_decoder_is_trained_elastically() -> None:
    model = ct.elastic(made())
    done = fit(model, Copied(), steps=3, elastic=Elastic(), watch=silent)
    assert done.ended == "done"
    assert model.at(d=4)(paired()).shape == (2, 6, WORDS)


@pytest.mark.finding("D8")
@torch.no_grad()
def test_held_views_answer_alike() -> None:
    model = ct.elastic(made()).eval()
    for view in (model.at(), model.at(d=4), model.at(z=1)):
        assert gap(view.held()(paired()), view(paired())) < 1e-5


@pytest.mark.finding("D8")
def test_the_pareto_table_is_measured() -> None:
    model = ct.elastic(made()).eval()
    table = pareto(model, Copied(), [ct.at(), ct.at(d=4)], rounds=1)
    assert len(table.points) == 2


class Failing:
    """A task whose second evaluation meets NaN."""

    def __init__(self) -> None:
        self.task = tiny_task()
        self.count = 0

    def example(self, seed: int, step: int) -> Example:
        return self.task.example(seed, step)

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        return self.task.loss(answer, example)

    def evaluate(self, model: Any) -> Score:
        self.count += 1
        if self.count == 2:
            raise SolveFailed("the field is no longer a number", got="NaN or infinity at z=1", remedy="Look at it.")
        return self.task.evaluate(model)


@pytest.mark.finding("D8")
def test_an_evaluation_that_fails_is_said_and_does_not_end_the_run(tmp_path: Path) -> None:
    told: list[Progress] = []
    done = fit(
        tiny_model(), Failing(), steps=6, evaluate_every=2, save_every=2, run=tmp_path / "run", watch=told.append
    )
    assert done.ended == "done"
    sentence = "step 4 could not be measured: the field is no longer a number, got NaN or infinity at z=1. Look at it."
    assert sentence in [at.note for at in told]
    assert sentence in [line.get("note") for line in done.history]
    losses = [line["validation_loss"] for line in done.history if "validation_loss" in line]
    assert math.isnan(losses[1])
    assert math.isfinite(losses[2])
    assert len(list(states(tmp_path / "run"))) > 0


@pytest.mark.finding("D8")
def test_weights_that_are_nan_at_an_evaluation_do_not_end_the_run() -> None:
    model = made()
    with torch.no_grad():
        next(model.encoder.readout.parameters() if model.encoder.readout else model.encoder.parameters()).fill_(
            math.nan
        )
    with pytest.raises(ct.errors.RunError, match="not finite any more"):
        fit(model, Copied(), steps=9, evaluate_every=1, watch=silent)
