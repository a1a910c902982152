"""A run is created, changed and resumed as a whole or not at all; what is ruined or strange in it is passed over."""

import json
import math
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from continua.errors import CheckpointError, ConfigError, ContinuaError, RunError
from continua.files import sha256_of
from continua.recipes import resume, start
from continua.training import Run, checkpoint, fit
from continua.training.run import RunHeader
from tests.refusals import refused
from tests.runs import FAST, silent, states, steps_of, tiny_model, tiny_task, tiny_text

pytestmark = pytest.mark.spec("B17")
SMALL = {"d": 8, "heads": 2, "depth": 2, "context": 8, "batch": 4, "save_every": 2, "evaluate_every": 2}
SETTINGS: dict[str, Any] = {"save_every": 2, "evaluate_every": 100, "optimiser": FAST, "watch": silent}


def trained(run: Any, steps: int = 4, **changes: Any) -> Any:
    opened = Run.open(run) if (Path(run) / "run.json").is_file() else run
    given = {**SETTINGS, **changes}
    return fit(
        given.pop("model", None) or tiny_model(), given.pop("task", tiny_task()), run=opened, steps=steps, **given
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of text."""
    place = tmp_path_factory.mktemp("done")
    (place / "text.txt").write_text(tiny_text(), encoding="utf-8")
    start("text", {"text": str(place / "text.txt"), **SMALL, "steps": 4}, place / "run")
    return place / "run"


@pytest.fixture
def run(done: Path, tmp_path: Path) -> Path:
    """A copy of it to be harmed, without the text beside it."""
    return Path(shutil.copytree(done, tmp_path / "run"))


def held(folder: Path) -> dict[str, str]:
    """Every file of a folder by its content; the lock's owner is not part of it."""
    return {
        str(p.relative_to(folder)): sha256_of(p) for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "lock"
    }


# --- created, changed ------------------------------------------------------------------------------------------------


@pytest.mark.finding("D2")
@pytest.mark.parametrize(
    "changes",
    [{"d": 16}, {"depth": 3}, {"heads": 4}, {"lr": "abc"}, {"lr": None}, {"steps": "many"}, {"text": "/nowhere"}],
    ids=str,
)
def test_a_change_that_fails_leaves_the_run_as_it_was(run: Path, changes: dict[str, Any]) -> None:
    before = held(run)
    with pytest.raises(ContinuaError):
        resume(run, {"steps": 6, **changes})
    assert held(run) == before
    assert resume(run, {"steps": 6}).ended == "done"
    assert steps_of(run) == [1, 2, 3, 4, 5, 6]


@pytest.mark.finding("D2")
def test_sizes_of_a_run_cannot_be_changed_and_it_says_so(run: Path) -> None:
    with refused(RunError, "in the checkpoint", "start a new run for another one"):
        resume(run, {"d": 16})


@pytest.mark.finding("D2")
def test_a_rate_that_ruins_the_first_steps_is_not_what_the_run_is_from_then_on(tmp_path: Path) -> None:
    class Spoilt(type(tiny_task())):  # type: ignore[misc]
        def loss(self, answer: torch.Tensor, example: Any) -> torch.Tensor:
            return answer.sum() * math.nan

    task = tiny_task()
    folder = tmp_path / "run"
    trained(folder)
    opened = Run.open(folder)
    before = held(folder)
    opened.header = RunHeader({"note": "new"})
    with refused(RunError, "got step", "Lower the learning rate"):
        fit(tiny_model(), Spoilt(task.corpus, task.tokens, 8, 4), run=opened, steps=9, **SETTINGS)
    assert held(folder) == before


@pytest.mark.finding("D3")
@pytest.mark.parametrize("deep", ["run", "a/b/run"])
def test_a_start_that_fails_leaves_nothing(tmp_path: Path, deep: str) -> None:
    class Broken(type(tiny_task())):  # type: ignore[misc]
        def example(self, seed: int, step: int) -> Any:
            raise ZeroDivisionError

    task = tiny_task()
    with pytest.raises(ZeroDivisionError):
        trained(tmp_path / deep, task=Broken(task.corpus, task.tokens, 8, 4))
    assert list(tmp_path.iterdir()) == []
    assert trained(tmp_path / deep).ended == "done"


@pytest.mark.finding("D3")
def test_a_start_that_fails_touches_nothing_that_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ContinuaError):
        trained(folder, accumulate=99)
    assert [path.name for path in folder.iterdir() if path.name != "lock"] == ["notes.txt"]
    trained(folder)
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.finding("D3")
def test_what_a_killed_clearing_left_is_not_taken_for_the_new_run(run: Path) -> None:
    (run / "run.json").unlink()
    fitted = start("text", {"text": str(run / "data" / "text.txt"), **SMALL, "steps": 2}, run)
    assert steps_of(run) == [1, 2]
    assert len(fitted.history) == 2


@pytest.mark.finding("D4")
def test_anew_replaces_a_run_but_never_one_that_is_locked(run: Path) -> None:
    (run / "mine.txt").write_text("kept")
    changes = {"text": str(run / "data" / "text.txt"), **SMALL, "steps": 2}
    other = Run.open(run)
    other.lock()
    before = held(run)
    with refused(RunError, "got process", "Wait for it"):
        start("text", changes, run, anew=True)
    assert held(run) == before
    other.release()
    with pytest.raises(ContinuaError):
        start("text", {**changes, "accumulate": 99}, run, anew=True)
    assert held(run) == before, "a new start that fails leaves the old run"
    start("text", changes, run, anew=True)
    assert steps_of(run) == [1, 2]
    assert (run / "mine.txt").read_text() == "kept"


# --- ruined, unreadable ----------------------------------------------------------------------------------------------


def doctored(path: Path, name: str, content: bytes) -> None:
    """Change a file of a checkpoint and its checksum: damage that only its meaning shows."""
    (path / name).write_bytes(content)
    state = json.loads((path / "state.json").read_text())
    state["files"][name] = sha256_of(path / name)
    (path / "state.json").write_text(json.dumps(state))


def ruined(path: Path) -> None:
    from safetensors.torch import load_file, save

    tensors = load_file(path / "model.safetensors")
    next(iter(tensors.values())).view(-1)[0] = math.nan
    doctored(path, "model.safetensors", save(tensors))


def piped(path: Path) -> None:
    (path / "model.safetensors").unlink()
    os.mkfifo(path / "model.safetensors")


def linked(path: Path) -> None:
    (path / "model.safetensors").rename(path.parents[2] / "elsewhere")
    (path / "model.safetensors").symlink_to(path.parents[2] / "elsewhere")


def unlisted(path: Path) -> None:
    (path / "state.json").write_text('{"files": {}}')


def outside(path: Path) -> None:
    state = json.loads((path / "state.json").read_text())
    state["files"]["../../run.json"] = sha256_of(path.parents[1] / "run.json")
    (path / "state.json").write_text(json.dumps(state))


def a_link(path: Path) -> None:
    path.rename(path.parents[1] / "moved")
    path.symlink_to(path.parents[1] / "moved")


STRANGE = {
    "not finite": (ruined, "is not finite in"),
    "a pipe": (piped, "is not a plain file"),
    "a link out": (linked, "is a link out of its folder"),
    "nothing listed": (unlisted, "is not in its list"),
    "a list that leads out": (outside, "is not in its folder"),
    "a folder that is a link": (a_link, "it is a link"),
}


@pytest.mark.finding("D5", "D6", "X2")
@pytest.mark.parametrize(("harm", "said"), STRANGE.values(), ids=STRANGE)
def test_a_strange_checkpoint_is_passed_over_with_a_word(run: Path, harm: Any, said: str) -> None:
    harm(next(states(run)))
    with pytest.warns(UserWarning, match=f"is damaged \\(.*{said}"):
        assert checkpoint.step_of(Run.open(run).checkpoint("last")) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert resume(run).ended == "done"
    assert steps_of(run) == [1, 2, 3, 4]


@pytest.mark.finding("D6")
@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "progress.json"])
@pytest.mark.parametrize("number", [5, 13], ids=["EIO", "EACCES"])
def test_a_checkpoint_that_cannot_be_read_is_passed_over(run: Path, monkeypatch, name: str, number: int) -> None:
    bad = next(states(run)) / name
    real = Path.open

    def broken(self: Path, *given: Any, **named: Any) -> Any:
        if self == bad:
            raise OSError(number, os.strerror(number))
        return real(self, *given, **named)

    monkeypatch.setattr(Path, "open", broken)
    with pytest.warns(UserWarning, match="is damaged"):
        assert checkpoint.step_of(Run.open(run).checkpoint("last")) == 2


@pytest.mark.finding("D5")
def test_weights_that_are_not_finite_never_become_a_checkpoint(tmp_path: Path) -> None:
    model = tiny_model()
    times: list[int] = []

    def spoil(at: Any) -> None:
        if at.step == 3 and not times:
            times.append(at.step)
            with torch.no_grad():
                next(model.parameters()).fill_(math.nan)

    calm = trained(tmp_path / "calm", steps=9)
    fitted = trained(tmp_path / "run", steps=9, model=model, watch=spoil, save_every=1)
    broken = Run.create(tmp_path / "broken", {})
    state = {"model": {"w": torch.tensor([math.nan])}, "optimiser": ({}, {}), "config": {}, "progress": {}}
    with pytest.warns(UserWarning, match=r"step 3 was not written \(a checkpoint must be finite, got w of the model"):
        assert not broken.save(3, state, False)
    assert fitted.ended == "done"
    assert all(checkpoint.damage(path) is None for path in states(tmp_path / "run"))
    assert all(bool(p.isfinite().all()) for p in Run.open(tmp_path / "run").model("last").parameters())
    assert len(calm.history) == 9


@pytest.mark.finding("D6")
def test_a_byte_that_is_no_text_costs_its_line_of_the_history(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines()
    lines[1] = lines[1][:9] + b"\xff" + lines[1][10:]
    (run / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert [line["step"] for line in Run.open(run).history()] == [1, 3, 4]
    assert resume(run, {"steps": 5}).ended == "done"


@pytest.mark.finding("X2")
@pytest.mark.parametrize("best", ["/etc", "../../other", "step-000000002/../..", "step-2", 7])
def test_a_best_checkpoint_elsewhere_is_not_followed(run: Path, best: Any) -> None:
    newest = next(states(run))
    progress = json.loads((newest / "progress.json").read_text())
    doctored(newest, "progress.json", json.dumps({**progress, "best": best}).encode())
    with pytest.warns(UserWarning, match="which is none"):
        assert Run.open(run).checkpoint() == newest


@pytest.mark.finding("X2")
def test_what_is_written_into_a_run_stays_in_it(run: Path, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    for name in ("lock", "metrics.jsonl"):
        treasure.write_text("gold")
        (run / name).unlink()
        (run / name).symlink_to(treasure)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name == "lock":
                with refused(RunError, "link out of its folder", "."):
                    resume(run, {"steps": 5})
                (run / name).unlink()
            else:
                resume(run, {"steps": 5})
        assert treasure.read_text() == "gold"
    shutil.move(run / "checkpoints", tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with refused(RunError, "a link in", "what is outside of a run is not read"):
        Run.open(run)


# --- which model -----------------------------------------------------------------------------------------------------


@pytest.mark.finding("S11")
@pytest.mark.parametrize("which", ["BEST", "Last", "first", "", 3])
def test_a_run_has_a_best_and_a_last_model_and_no_other(run: Path, which: Any) -> None:
    with refused(ConfigError, f"got {which!r}", "best"):
        Run.open(run).model(which)


@pytest.mark.finding("D6")
def test_progress_that_says_nothing_is_a_sentence(run: Path) -> None:
    newest = next(states(run))
    doctored(newest, "progress.json", b'{"step": "x"}')
    with refused(CheckpointError, "got", "Remove this checkpoint"):
        resume(run, {"steps": 6})


@pytest.mark.finding("D6")
def test_lines_that_are_no_history_are_left_out(run: Path) -> None:
    odd = [{"step": 5, "loss": "x"}, {"step": 5, "loss": [1]}, {"step": 5, "note": 3}, {"step": "5"}, [], 3, None]
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in odd)
    assert [line["step"] for line in Run.open(run).history()] == [1, 2, 3, 4]


@pytest.mark.finding("D2", "D4")
def test_a_run_that_is_trained_is_not_amended_by_another(run: Path) -> None:
    other = Run.open(run)
    other.lock()
    before = held(run)
    with refused(RunError, "got process", "Wait for it"):
        Run.open(run).amend({"note": "mine"})
    assert held(run) == before
    other.release()
    Run.open(run).amend({"note": "mine"})
    assert Run.open(run).about["note"] == "mine"


@pytest.mark.finding("D2")
def test_another_optimiser_goes_on_or_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(tiny_text(), encoding="utf-8")
    start("elastic", {"text": str(tmp_path / "text.txt"), **SMALL, "steps": 2}, tmp_path / "run")
    before = held(tmp_path / "run")
    try:
        resume(tmp_path / "run", {"steps": 4, "matrix_lr": 0.02})
    except ContinuaError:
        assert held(tmp_path / "run") == before
    else:
        assert steps_of(tmp_path / "run") == [1, 2, 3, 4]
