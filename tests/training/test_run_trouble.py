"""What goes wrong around a run: damaged checkpoints, full disks, folders that cannot be written, losses of NaN."""

import errno
import json
import math
import os
import resource
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from continua.errors import CheckpointError, ConfigError, RunError
from continua.training import Run, checkpoint, fit
from continua.training.loop import ROLLBACKS, SKIPS
from tests.refusals import refused
from tests.runs import FAST, silent, states, steps_of, timeless, tiny_model, tiny_task

SETTINGS: dict[str, Any] = {"save_every": 2, "evaluate_every": 100, "optimiser": FAST, "watch": silent}


def trained(folder: Path, steps: int = 6, **changes: Any) -> Any:
    run = Run.open(folder) if (folder / "run.json").is_file() else folder
    return fit(changes.pop("model", None) or tiny_model(), changes.pop("task", tiny_task()), run=run, steps=steps,
               **{**SETTINGS, **changes})  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Any:
    """A finished run, and its last weights."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, trained(folder)


# --- damage -----------------------------------------------------------------------------------------------------------


def cut_short(path: Path) -> None:
    os.truncate(path / "model.safetensors", (path / "model.safetensors").stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray((path / "optimiser.safetensors").read_bytes())
    data[-5] ^= 1
    (path / "optimiser.safetensors").write_bytes(data)


def empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def wrong_list(path: Path) -> None:
    (path / "state.json").write_text('{"files": [1]}')


DAMAGES = {
    "cut short": (cut_short, "model.safetensors has changed"),
    "one bit": (flip, "optimiser.safetensors has changed"),
    "no state": (lambda path: (path / "state.json").unlink(), "state.json is missing"),
    "half a state": (lambda path: os.truncate(path / "state.json", 9), "state.json: JSONDecodeError"),
    "another state": (wrong_list, "state.json: AttributeError"),
    "a file less": (lambda path: (path / "progress.json").unlink(), "progress.json is missing"),
    "empty": (empty, "state.json is missing"),
}


@pytest.mark.spec("T9")
@pytest.mark.parametrize(("harm", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning_and_the_one_before_is_used(
    whole, tmp_path, harm, said
) -> None:
    folder, calm = tmp_path / "run", whole[1]
    shutil.copytree(whole[0], folder)
    newest = next(states(folder))
    harm(newest)
    with pytest.warns(UserWarning, match=rf"step-000000006 is damaged \({said}\): the checkpoint before it is used"):
        resumed = trained(folder)
    assert steps_of(folder) == [1, 2, 3, 4, 5, 6]
    assert timeless(resumed.history) == timeless(calm.history)
    for a, b in zip(resumed.model.parameters(), calm.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert checkpoint.damage(newest) is None, "written anew"
    assert (newest.parent / f"damaged-{newest.name}").is_dir(), "the damaged one is kept, out of the way"


def test_where_all_are_damaged_a_run_starts_again(whole, tmp_path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    for path in states(folder):
        flip(path)
    with pytest.warns(UserWarning, match="is damaged"):
        resumed = trained(folder)
    assert timeless(resumed.history) == timeless(whole[1].history)


def test_what_a_crash_left_half_written_is_not_looked_at_and_is_removed(whole, tmp_path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    left = folder / "checkpoints" / ".step-000000007.partial"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    (folder / "checkpoints" / "step-notes").mkdir()
    assert trained(folder, steps=8).ended == "done"
    assert not left.exists()


def test_a_damaged_best_checkpoint_gives_way_to_the_last(whole, tmp_path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    run = Run.open(folder)
    newest, older = list(states(folder))
    progress = checkpoint.read_text(newest, "progress")
    (newest / "progress.json").write_text(json.dumps({**progress, "best": older.name}))
    sums = json.loads((newest / "state.json").read_text())
    sums["files"]["progress.json"] = checkpoint._sum(newest / "progress.json")
    (newest / "state.json").write_text(json.dumps(sums))
    best = run.model("best")
    assert any(not torch.equal(a, b) for a, b in zip(best.parameters(), run.model("last").parameters(), strict=True))
    flip(older)
    with pytest.warns(UserWarning, match=f"the best checkpoint, {older.name}, is damaged"):
        found = run.model("best")
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), run.model("last").parameters(), strict=True))


def test_only_the_newest_two_and_the_best_are_kept(tmp_path) -> None:
    task = Scripted(tiny_task(), scores=[3.0, 1.0, 2.0, 2.0, 2.0])
    trained(tmp_path, steps=10, task=task, evaluate_every=2, save_every=1)
    assert [checkpoint.step_of(path) for path in states(tmp_path)] == [10, 9, 4]
    assert checkpoint.read_text(next(states(tmp_path)), "progress")["best"] == "step-000000004"


def test_a_file_that_cannot_be_read_is_said_plainly(whole, tmp_path) -> None:
    path = tmp_path / "step-1"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"no")
    with refused(CheckpointError, "got", "Resume from an older checkpoint"):
        checkpoint.read_tensors(path, "model")


# --- no room, no right ------------------------------------------------------------------------------------------------


def full(*given: Any, **named: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def full_in_rust(*given: Any, **named: Any) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.spec("T9")
@pytest.mark.parametrize(("name", "broken"), [("_flush", full), ("save_file", full), ("save_file", full_in_rust)])
def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path, monkeypatch, name, broken) -> None:
    calm = trained(tmp_path / "calm")

    def fill(at: Any) -> None:
        if at.step == 3:
            monkeypatch.setattr(checkpoint, name, broken)
        if at.step == 5:
            monkeypatch.undo()

    with pytest.warns(UserWarning, match=r"checkpoint of step 4 was not written \(.*No space left.*training goes on"):
        fitted = trained(tmp_path / "run", watch=fill)
    assert fitted.ended == "done"
    assert [checkpoint.step_of(path) for path in states(tmp_path / "run")] == [6, 2]
    assert all(checkpoint.damage(path) is None for path in states(tmp_path / "run"))
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    assert timeless(fitted.history) == timeless(calm.history)


def test_a_limit_on_the_size_of_files_leaves_the_good_checkpoint(tmp_path) -> None:
    """The real writers against a real refusal of the system."""
    trained(tmp_path, steps=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (next(states(tmp_path)) / "model.safetensors").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard))
    try:
        with pytest.warns(UserWarning, match="checkpoint of step 4 was not written"):
            trained(tmp_path, steps=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [checkpoint.step_of(path) for path in states(tmp_path)] == [2]
    assert trained(tmp_path, steps=4).ended == "done"
    assert steps_of(tmp_path) == [1, 2, 3, 4]


def test_a_line_that_could_not_be_written_whole_does_not_spoil_the_next(tmp_path, monkeypatch) -> None:
    run = Run.create(tmp_path, {})
    run.log({"step": 1})
    real = Path.open

    def torn(self: Path, *given: Any, **named: Any) -> Any:
        with real(self, "a") as file:
            file.write('{"st')
        full()

    monkeypatch.setattr(Path, "open", torn)
    with pytest.warns(UserWarning, match=r"a line of metrics.jsonl was lost: No space left"):
        run.log({"step": 2})
    monkeypatch.undo()
    run.log({"step": 3})
    assert [line["step"] for line in run.history()] == [1, 3]


def locked_out(self: Path, *given: Any, **named: Any) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.spec("T9")
def test_a_folder_that_cannot_be_written_is_refused_before_training(whole, tmp_path, monkeypatch) -> None:
    trained(tmp_path / "run", steps=2)
    opened = Run.open(tmp_path / "run")
    monkeypatch.setattr(Path, "open", locked_out)  # a super-user may write everywhere, so it is only said
    for run in (tmp_path / "new", opened):
        with refused(RunError, "got Permission denied", "choose a folder that can be written: --folder PATH"):
            fit(tiny_model(), tiny_task(), run=run, steps=3, watch=silent)


def test_a_folder_that_becomes_read_only_costs_no_step(tmp_path, monkeypatch) -> None:
    def shut(at: Any) -> None:
        if at.step == 2:
            monkeypatch.setattr(Path, "mkdir", locked_out)

    with pytest.warns(UserWarning, match=r"checkpoint of step [45] was not written \(.*Permission denied"):
        fitted = trained(tmp_path, steps=5, watch=shut, save_every=2)
    assert [line["step"] for line in fitted.history] == [1, 2, 3, 4, 5]
    assert checkpoint.damage(next(states(tmp_path))) is None


def test_runs_that_are_none(tmp_path) -> None:
    with refused(RunError, f"none in {tmp_path}", "Give a folder that continua fit wrote"):
        Run.open(tmp_path)
    Run.create(tmp_path, {})
    with refused(RunError, f"got {tmp_path}", "--resume"):
        Run.create(tmp_path, {})
    with refused(RunError, f"got {tmp_path}", "Train it a little further"):
        Run.open(tmp_path).model()
    (tmp_path / "run.json").write_text('{"format": "continua run", "version": 99}')
    with refused(RunError, "version 99", "Use the one it was made with"):
        Run.open(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with refused(RunError, "got", "Start a new run"):
        Run.open(tmp_path)


# --- losses that are not finite ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scripted:
    """A task that spoils examples of (seed, step), and may have its scores written down."""

    task: Any
    spoilt: Any = lambda seed, step: False
    scores: Any = None

    def example(self, seed: int, step: int) -> Any:
        made = self.task.example(seed, step)
        return replace(made, target=torch.full_like(made.target, -1)) if self.spoilt(seed, step) else made

    def loss(self, answer: torch.Tensor, example: Any) -> torch.Tensor:
        if bool((example.target < 0).any()):
            return answer.sum() * math.nan
        return self.task.loss(answer, example)

    def evaluate(self, model: Any) -> Any:
        score = self.task.evaluate(model)
        return score if self.scores is None else type(score)({"loss": self.scores.pop(0)})


def test_a_bad_step_is_passed_over(tmp_path) -> None:
    fitted = trained(tmp_path, steps=6, task=Scripted(tiny_task(), lambda seed, step: step in (1, 2, 5)))
    assert fitted.ended == "done"
    assert steps_of(tmp_path) == [1, 4, 5]
    notes = [line["note"] for line in fitted.history if "note" in line]
    assert notes == [f"step {i} gave loss nan: passed over" for i in (2, 3, 6)]
    assert checkpoint.step_of(next(states(tmp_path))) == 6, "a bad last step is saved as the end, too"
    assert fitted.history == Run.open(tmp_path).history()
    assert all(p.isfinite().all() for p in fitted.model.parameters())


def test_after_some_bad_steps_the_run_goes_back_and_meets_other_data(tmp_path) -> None:
    task = Scripted(tiny_task(), lambda seed, step: seed == 0 and step >= 3)
    fitted = trained(tmp_path, steps=9, task=task)
    assert fitted.ended == "done"
    assert steps_of(tmp_path) == list(range(1, 10))
    notes = [line["note"] for line in fitted.history if "note" in line]
    assert notes == [f"{SKIPS + 1} bad steps in a row: back to step 2, with other data"]
    assert checkpoint.read_text(next(states(tmp_path)), "progress")["salt"] == 1


@pytest.mark.spec("T9")
def test_in_the_end_the_run_stops_with_a_sentence_and_the_last_good_checkpoint_stays(tmp_path) -> None:
    task = Scripted(tiny_task(), lambda seed, step: step >= 5)
    with refused(RunError, "got step", "the last good checkpoint is kept"):
        trained(tmp_path, steps=20, task=task)
    assert [checkpoint.step_of(path) for path in states(tmp_path)] == [4, 2]
    notes = [line["note"] for line in Run.open(tmp_path).history() if "note" in line and "back" in line["note"]]
    assert len(notes) == ROLLBACKS
    assert all(p.isfinite().all() for p in Run.open(tmp_path).model("last").parameters())
    assert trained(tmp_path, steps=20).ended == "done", "and goes on where the data are good"
    assert steps_of(tmp_path) == list(range(1, 21))


def test_without_a_folder_there_is_nothing_to_go_back_to() -> None:
    with refused(RunError, "got step", "Lower the learning rate"):
        fit(tiny_model(), Scripted(tiny_task(), lambda seed, step: True), steps=9, watch=silent)


def test_weights_that_blow_up_are_a_bad_step_too_and_not_an_exception(tmp_path) -> None:
    """A state that is not finite would be refused by the solver; the loop passes over it."""
    model = tiny_model()
    with torch.no_grad():
        next(model.block.parameters()).fill_(math.inf)
    with refused(RunError, "got step 4", "Lower the learning rate"):
        fit(model, tiny_task(), steps=9, watch=silent)
    assert model.check is True, "and it is set back"


def test_a_score_of_nan_is_no_best_score(tmp_path) -> None:
    task = Scripted(tiny_task(), scores=[2.0, math.nan, 1.0])
    fitted = trained(tmp_path, steps=6, task=task, evaluate_every=2)
    assert checkpoint.read_text(next(states(tmp_path)), "progress")["best"] == "step-000000006"
    assert [line["validation_loss"] for line in fitted.history if "validation_loss" in line][2] == 1.0


def test_a_batch_that_is_too_small_to_be_cut_is_refused() -> None:
    with refused(ConfigError, "got 4 samples", "larger batch"):
        fit(tiny_model(), tiny_task(batch=4), steps=1, accumulate=5, watch=silent)
