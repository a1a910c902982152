"""``continua recipes``, ``fit RECIPE --help``, ``--config`` and ``--dry-run``."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from continua.cli import app
from continua.recipes import SHIPPED
from continua.recipes.listing import MINUTES, time_of
from continua.training import Run

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
SMALL = ["d=8", "heads=2", "depth=2", "context=8", "batch=2", "steps=3"]


def said(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question\n" * 40)
    return path


@pytest.mark.finding("N6")
def test_recipes_are_listed_with_their_times() -> None:
    shown = said("recipes")
    assert all(name in shown for name in SHIPPED)
    assert "minutes" in shown


@pytest.mark.finding("N6")
def test_times_are_those_that_were_measured() -> None:
    rows = json.loads((RESULTS / "recipes.json").read_text(encoding="utf-8"))["rows"]
    measured = {row["name"]: row["value"] for row in rows}
    assert set(measured) == set(MINUTES) <= set(SHIPPED)
    far = {name: (MINUTES[name], value) for name, value in measured.items() if not 0.6 < MINUTES[name] / value < 1.6}
    assert not far, "what is said, and what benchmarks/recipes.py found"
    assert (time_of("digits"), time_of("mine.py:one")) == (f"about {60 * MINUTES['digits']:.0f} seconds", "")


@pytest.mark.finding("N6")
@pytest.mark.parametrize("words", [("recipes", "text"), ("fit", "text", "--help")])
def test_settings_are_listed_with_default_range_and_meaning(words: tuple[str, ...]) -> None:
    shown = said(*words)
    for part in ("heads", "a whole number ≥ 1", "bounds the norm of the gradient", "0.002", "patience"):
        assert part in shown


def test_help_without_a_recipe_is_the_usual_one() -> None:
    shown = said("fit", "--help")
    assert "--dry-run" in shown
    assert "bounds the norm" not in shown


def test_settings_come_from_a_file_and_from_set_after_it(tmp_path: Path, file: Path) -> None:
    lines = [f'text = "{file}"', *(one.replace("=", " = ") for one in SMALL), "discrete = true", "seed = 7"]
    path = tmp_path / "settings.toml"
    path.write_text("\n".join(lines))
    folder = tmp_path / "run"
    said("fit", "text", "--config", str(path), "--set", "steps=2", "--folder", str(folder))
    run = Run.open(folder)
    assert run.about["training"]["steps"] == 2
    assert run.about["training"]["seed"] == 7
    assert run.about["changes"]["discrete"] is True


def test_a_dry_run_says_what_would_happen_and_writes_nothing(tmp_path: Path, file: Path) -> None:
    folder = tmp_path / "run"
    changes = [word for one in [*SMALL[:-1], "steps=500"] for word in ("--set", one)]
    shown = said("fit", "text", "--text", str(file), *changes, "--folder", str(folder), "--dry-run")
    for part in ("parameters", "500", "memory", "Nothing was written"):
        assert part in shown
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.finding("S4", "D1")
@pytest.mark.parametrize("change", ["d=abc", "lr=-1", "discrete=perhaps", "hedas=4", "steps=0", "d=99999999999999999"])
def test_what_does_not_fit_is_refused_before_a_folder_is_made(tmp_path: Path, file: Path, change: str) -> None:
    for more in ([], ["--dry-run"]):
        words = ["fit", "text", "--text", str(file), "--set", change, "--folder", str(tmp_path / "run"), *more]
        done = CliRunner().invoke(app, words)
        assert done.exit_code != 0
        assert type(done.exception).__name__ == "ConfigError", done.exception
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_dry_run_does_not_resume(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["fit", "--resume", str(tmp_path / "run"), "--dry-run"])
    assert type(done.exception).__name__ == "ConfigError", done.exception
    assert "--dry-run is for a run that starts, got --resume" in str(done.exception)
