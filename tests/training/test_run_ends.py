"""How a run ends: moved away, not written, interrupted; it goes on from there."""

import os
import signal
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from continua.training import Run, checkpoint
from tests.runs import states, steps_of, timeless, tiny_task
from tests.training.test_run_transaction import trained

pytestmark = pytest.mark.spec("B17")


@pytest.mark.finding("D7")
def test_a_folder_that_was_moved_away_is_not_begun_again_and_the_fit_says_so(tmp_path: Path) -> None:
    def move(at: Any) -> None:
        if at.step == 2:
            (tmp_path / "run").rename(tmp_path / "moved")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = trained(tmp_path / "run", watch=move)
    assert (fitted.ended, fitted.kept) == ("done", False)
    assert not (tmp_path / "run").exists()
    assert trained(tmp_path / "moved").kept


@pytest.mark.finding("D7")
def test_a_last_checkpoint_that_could_not_be_written_is_said(tmp_path: Path, monkeypatch) -> None:
    def fill(at: Any) -> None:
        if at.step == 3:
            monkeypatch.setattr(checkpoint, "save_file", full)

    def full(*given: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.warns(UserWarning, match="was not written"):
        fitted = trained(tmp_path / "run", watch=fill)
    assert (fitted.ended, fitted.kept) == ("done", False)
    monkeypatch.undo()
    again = trained(tmp_path / "run")
    assert again.kept
    assert steps_of(tmp_path / "run") == [1, 2, 3, 4]


@pytest.mark.finding("D7")
def test_sigterm_saves_like_ctrl_c(tmp_path: Path) -> None:
    def stop(at: Any) -> None:
        if at.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    fitted = trained(tmp_path / "run", steps=9, watch=stop, save_every=100)
    assert (fitted.ended, fitted.kept) == ("interrupted", True)
    assert signal.getsignal(signal.SIGTERM) is before
    assert checkpoint.step_of(next(states(tmp_path / "run"))) == 4


@dataclass(frozen=True)
class Measured:
    """A task whose scores are written down, and during one of whose evaluations somebody presses Ctrl-C twice."""

    task: Any
    scores: dict[int, float]
    twice_at: int = -1
    asked: Any = None

    def example(self, seed: int, step: int) -> Any:
        self.asked.append(step)
        return self.task.example(seed, step)

    def loss(self, answer: torch.Tensor, example: Any) -> torch.Tensor:
        return self.task.loss(answer, example)

    def evaluate(self, model: Any) -> Any:
        step = self.asked[-1] + 1 if self.asked else self.twice_at
        if step == self.twice_at and self.asked:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return type(self.task.evaluate(model))({"loss": self.scores[step]})


@pytest.mark.finding("S9")
def test_an_evaluation_that_was_interrupted_is_done_when_the_run_goes_on(tmp_path: Path) -> None:
    scores = {3: 1.0, 6: 2.0, 9: 2.0, 12: 2.0}
    given = {"steps": 12, "evaluate_every": 3, "save_every": 100, "patience": 2}
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        calm = trained(tmp_path / "calm", task=Measured(tiny_task(), scores, asked=[]), **given)
        first = trained(tmp_path / "run", task=Measured(tiny_task(), scores, 3, asked=[]), **given)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert (calm.ended, len(calm.history)) == ("stopped early", 9)
    assert first.ended == "interrupted"
    again = trained(tmp_path / "run", task=Measured(tiny_task(), scores, 3, asked=[]), **given)
    assert again.ended == "stopped early"
    assert timeless(again.history) == timeless(calm.history)
    assert timeless(Run.open(tmp_path / "run").history()) == timeless(calm.history)
    for folder in ("calm", "run"):
        assert checkpoint.step_of(Run.open(tmp_path / folder).checkpoint("best")) == 3
