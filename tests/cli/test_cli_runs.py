"""Foreign runs are read without running anything; runs are carried elsewhere; ends, and tables of sizes."""

import json
import math
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from continua.cli import app
from continua.cli.fit import command_to_go_on
from continua.cli.pareto import measure
from continua.errors import ConfigError, ContinuaError, RunError
from continua.lab import Pareto
from continua.recipes.runs import SMALL as SMALL_DATA
from continua.training import Run, checkpoint
from tests.commands import ODD, odd_place
from tests.forked import commanded
from tests.runs import states, steps_of, tiny_text

RUN = CliRunner()
SMALL = {"d": 8, "heads": 2, "depth": 2, "context": 8, "batch": 4, "save_every": 2, "evaluate_every": 2}
OWN = """
from pathlib import Path
from continua.recipes import Bundle
from continua.training import Training
from tests.runs import tiny_model, tiny_task

Path("EXECUTED").touch()

def mine():
    task = tiny_task()
    return Bundle(tiny_model(), task, training=Training(steps=4, save_every=2, evaluate_every=2), tokens=task.tokens)
"""


def changes(**more: object) -> list[str]:
    return [word for key, value in {**SMALL, **more}.items() for word in ("--set", f"{key}={value}")]


def said(*words: object) -> Result:
    return RUN.invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("text")
    (place / "text.txt").write_text(tiny_text(), encoding="utf-8")
    done = said("fit", "text", "--text", place / "text.txt", "--folder", place / "run", *changes(steps=4))
    assert done.exit_code == 0, done.output
    (place / "text.txt").unlink()
    return place / "run"


@pytest.fixture
def run(text_run: Path, tmp_path: Path) -> Path:
    """A copy of a run in another place, the text of which is gone."""
    return Path(shutil.copytree(text_run, tmp_path / "carried"))


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a recipe from a file."""
    place = tmp_path_factory.mktemp("own")
    before = Path.cwd()
    os.chdir(place)
    try:
        (place / "own.py").write_text(OWN)
        done = said("fit", f"{place / 'own.py'}:mine", "--folder", place / "run")
        assert done.exit_code == 0, done.output
        assert (place / "EXECUTED").exists()
        (place / "EXECUTED").unlink()
    finally:
        os.chdir(before)
    return place / "run"


# --- nothing foreign runs --------------------------------------------------------------------------------------------


@pytest.fixture
def foreign(own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that somebody sent: its recipe is a file inside of it."""
    folder = Path(shutil.copytree(own_run, tmp_path / "foreign"))
    (folder / "recipe.py").write_text(OWN)
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**about, "recipe": f"{folder / 'recipe.py'}:mine"}))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.finding("X1")
@pytest.mark.parametrize(
    ("words", "works"),
    [
        (("inspect", "RUN"), True),
        (("generate", "RUN", "--prompt", "the", "--tokens", "3"), True),
        (("generate", "RUN", "--prompt", "the", "--tokens", "3", "--at", "latency=9s"), False),
        (("pareto", "RUN"), False),
        (("fit", "--resume", "RUN"), False),
        (("inspect", "RUN", "--at", "latency=9s"), False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_foreign_run_is_read_without_running_anything(foreign: Path, tmp_path: Path, words: Any, works: bool) -> None:
    done = said(*(foreign if word == "RUN" else word for word in words))
    assert not (tmp_path / "EXECUTED").exists()
    if works:
        assert done.exit_code == 0, done.output
    else:
        assert isinstance(done.exception, RunError)
        assert "is not executed" in str(done.exception)
        assert "--trust" in str(done.exception)


@pytest.mark.finding("X1")
def test_what_needs_the_recipe_says_so_in_a_sentence(foreign: Path) -> None:
    done = said("inspect", foreign)
    assert re.search(
        r"No table of other sizes: a recipe that a run names is not executed, got '.*recipe.py:mine'", done.output
    )
    assert "history" in done.output


@pytest.mark.finding("X1")
def test_a_recipe_runs_where_it_is_named_or_trusted(foreign: Path, own_run: Path, tmp_path: Path) -> None:
    done = said("fit", f"{own_run.parent / 'own.py'}:mine", "--resume", foreign, "--set", "steps=5")
    assert done.exit_code == 0, done.output
    assert steps_of(foreign) == [1, 2, 3, 4, 5]
    (tmp_path / "EXECUTED").unlink()
    assert said("pareto", foreign, "--size", "d=4", "--trust").exit_code == 0
    assert (tmp_path / "EXECUTED").exists()


@pytest.mark.finding("X1")
def test_the_hash_of_a_recipe_is_recorded_and_compared(foreign: Path, own_run: Path, tmp_path: Path) -> None:
    about = json.loads((foreign / "run.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", about["recipe_sha256"])
    (tmp_path / "changed.py").write_text(OWN + "\n# other\n")
    with pytest.warns(UserWarning, match="has changed since"):
        said("fit", f"{tmp_path / 'changed.py'}:mine", "--resume", foreign, "--set", "steps=5")
    (foreign / "data" / "recipe.py").write_text("raise SystemExit(9)")
    (foreign / "recipe.py").write_text("raise SystemExit(9)")
    done = said("pareto", foreign, "--trust")
    assert "recipe.py of this run has changed" in str(done.exception)


@pytest.mark.finding("X2")
@pytest.mark.parametrize("place", ["/etc/hostname", "../secret.txt", "data/../../secret.txt", "~/secret.txt"])
def test_a_text_outside_of_a_run_is_not_read(run: Path, place: str) -> None:
    (run.parent / "secret.txt").write_text(tiny_text())
    about = json.loads((run / "run.json").read_text())
    about["changes"]["text"] = place
    for files in ({}, {"text.txt": {"path": place, "sha256": "0"}}):
        (run / "run.json").write_text(json.dumps({**about, "files": files}))
        done = said("fit", "--resume", run, "--set", "steps=5")
        assert isinstance(done.exception, RunError), done.output
        assert "folder" in str(done.exception)
        done = said("inspect", run)
        assert done.exit_code == 0, done.output
        assert "No table of other sizes" in done.output
    assert steps_of(run) == [1, 2, 3, 4]


# --- carried elsewhere -----------------------------------------------------------------------------------------------


@pytest.mark.finding("N10")
def test_a_run_is_whole_by_itself(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    about = json.loads((run / "run.json").read_text())
    assert about["changes"]["text"] == "data/text.txt"
    assert str(run.parent) not in (run / "run.json").read_text()
    assert said("fit", "--resume", "carried", "--set", "steps=6").exit_code == 0
    assert steps_of(run) == [1, 2, 3, 4, 5, 6]
    assert said("inspect", "carried").exit_code == 0
    assert command_to_go_on(Run.open(run)) == f"continua fit --resume {run}"


@pytest.mark.finding("N10")
def test_a_large_text_is_named_again_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continua.recipes.runs.SMALL", 100)
    (tmp_path / "text.txt").write_text(tiny_text(), encoding="utf-8")
    done = said("fit", "text", "--text", tmp_path / "text.txt", "--folder", tmp_path / "run", *changes(steps=2))
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "run" / "data").exists()
    assert command_to_go_on(Run.open(tmp_path / "run")).endswith(f"--text {tmp_path / 'text.txt'}")
    moved = (tmp_path / "text.txt").rename(tmp_path / "moved.txt")
    done = said("fit", "--resume", tmp_path / "run", "--set", "steps=3")
    assert "Name it: --text FILE" in str(done.exception)
    done = said("fit", "--resume", tmp_path / "run", "--set", "steps=3", "--text", moved)
    assert done.exit_code == 0, done.output
    assert said("fit", "--resume", tmp_path / "run", "--set", "steps=4", "--trust").exit_code == 0
    moved.write_text(tiny_text() + "the", encoding="utf-8")
    done = said("fit", "--resume", tmp_path / "run", "--set", "steps=5", "--text", moved)
    assert "another text" in str(done.exception)
    assert SMALL_DATA >= 4 * 2**20


# --- again, and ends -------------------------------------------------------------------------------------------------


@pytest.mark.finding("D4")
def test_fit_again_goes_on_or_starts_anew_and_not_over_a_locked_run(run: Path) -> None:
    words = ("fit", "text", "--text", run / "data" / "text.txt", "--folder", run, *changes(steps=6))
    assert "there is a run already" in str(said(*words).exception)
    assert "--again is ask, resume or anew" in str(said(*words, "--again", "maybe").exception)
    assert said(*words, "--again", "resume").exit_code == 0
    assert steps_of(run) == [1, 2, 3, 4, 5, 6]
    held = Run.open(run)
    held.lock()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for again in ("anew", "resume"):
        assert "another process is training this run" in str(said(*words, "--again", again).exception)
        assert "another process" in str(said("demo", "--out", run, "--again", again).exception) or again == "resume"
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    held.release()
    kept = run.parent / "text.txt"
    shutil.copy(run / "data" / "text.txt", kept)
    assert said("fit", "text", "--text", kept, "--folder", run, *changes(steps=2), "--again", "anew").exit_code == 0
    assert steps_of(run) == [1, 2]


@pytest.mark.finding("D7")
def test_sigterm_ends_a_fit_with_130_and_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(tiny_text(), encoding="utf-8")
    words = ["fit", "text", "--text", "text.txt", *changes(steps=100_000), "--set", "evaluate_every=100000"]
    job = commanded(*words, folder=tmp_path)
    folder = tmp_path / "runs" / "text"
    try:
        job.wait_until(lambda: any(states(folder)))
        job.send(signal.SIGTERM)
        code = job.ended(60)
    finally:
        job.kill()
    assert code == 130, job.err.read_text()
    out = job.out.read_text()
    assert "Go on with: continua fit --resume runs/text" in out
    assert checkpoint.step_of(next(states(folder))) == steps_of(folder)[-1]


@pytest.mark.finding("D7")
def test_a_state_that_was_not_kept_is_exit_code_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(tiny_text(), encoding="utf-8")
    real = checkpoint.write

    def full(root: Path, step: int, *given: Any) -> Path:
        if step == 4:
            raise OSError(28, "No space left on device")
        return real(root, step, *given)

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.warns(UserWarning, match="was not written"):
        done = said("fit", "text", "--text", tmp_path / "text.txt", "--folder", tmp_path / "run", *changes(steps=4))
    assert done.exit_code == 3
    assert "The last state was not kept" in done.output


@pytest.mark.finding("D11")
def test_paths_with_brackets_are_paths(tmp_path: Path) -> None:
    place = tmp_path / "a[/x]b [bold]"
    place.mkdir(parents=True)
    (place / "text.txt").write_text(tiny_text(), encoding="utf-8")
    folder = place / "run[/y]"
    done = said("fit", "text", "--text", place / "text.txt", "--folder", folder, *changes(steps=2))
    assert done.exit_code == 0, done.exception
    for words in (("inspect", folder), ("pareto", folder, "--size", "d=4")):
        done = said(*words)
        assert done.exit_code == 0, done.exception
        assert "[/y]" in done.output.replace("\n", "")


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.finding("S12")
def test_sizes_are_relative_to_native_and_join_what_was_measured(run: Path) -> None:
    first = said("pareto", run, "--size", "d=4,h=1")
    assert first.exit_code == 0, first.exception
    native = re.search(r"d=8 h=2 z=2 *│ +([\d.]+)│ +\+0.0│ +×1.000│", first.output)
    small = re.search(r"d=4 h=1 z=2 *│ +([\d.]+)│ +([+-][\d.]+)│ +×([\d.]+)│", first.output)
    assert native is not None
    assert small is not None
    assert float(small[2]) == pytest.approx(100 * (float(small[1]) / float(native[1]) - 1), abs=0.1)
    assert float(small[3]) == pytest.approx(math.exp(float(small[1]) - float(native[1])), abs=1e-3), "of perplexities"
    assert said("pareto", run, "--size", "z=1").exit_code == 0
    kept = Pareto.load(run / "pareto.json")
    assert [point.name for point in kept.points] == ["d=8 h=2 z=2", "d=8 h=2 z=1", "d=4 h=1 z=2"]
    assert said("fit", "--resume", run, "--set", "steps=8").exit_code == 0
    assert said("pareto", run, "--size", "h=1").exit_code == 0
    if Pareto.load(run / "pareto.json").points[0].loss != kept.points[0].loss:
        names = [point.name for point in Pareto.load(run / "pareto.json").points]
        assert names == ["d=8 h=2 z=2", "d=8 h=1 z=2"], "the model has learned: what was measured before is another's"
    assert measure.__doc__ is not None


@pytest.mark.finding("D6")
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b'{"points": [{"sizes": 3}]}', b'{"points": []}', b""])
def test_a_damaged_table_of_sizes_is_a_sentence(run: Path, content: bytes) -> None:
    (run / "pareto.json").write_bytes(content)
    done = said("generate", run, "--prompt", "the", "--at", "latency=9s")
    assert isinstance(done.exception, ConfigError)
    assert "is no table of sizes" in str(done.exception)


@pytest.mark.finding("D6", "D12")
def test_a_damaged_table_is_written_anew_and_a_run_that_cannot_be_written_costs_the_table_alone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "pareto.json").write_bytes(b"{")
    done = said("pareto", run, "--size", "d=4")
    assert done.exit_code == 0, done.exception
    assert "It is written anew" in done.output
    assert len(Pareto.load(run / "pareto.json").points) == 2

    def shut(self: Pareto, path: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Pareto, "save", shut)
    done = said("pareto", run, "--size", "d=4", "--out", tmp_path / "elsewhere.png")
    assert done.exit_code == 0, done.exception
    assert "Not kept for budgets" in done.output
    assert (tmp_path / "elsewhere.png").is_file()


@pytest.mark.finding("D12")
@pytest.mark.parametrize("kind", ODD)
def test_an_odd_place_for_a_picture_is_refused_before_the_work(run: Path, tmp_path: Path, kind: str) -> None:
    done = said("pareto", run, "--size", "d=4", "--out", odd_place(tmp_path, kind, "odd.png"))
    assert isinstance(done.exception, ContinuaError), done.exception
    assert "--out" in str(done.exception)
