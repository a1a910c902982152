"""Listing runs and comparing two of them."""

import json
import os

import pytest

from continua.training import Run
from continua.training.summaries import differences, is_busy, places, summary
from tests.commands import typed


def made(folder, losses=(3.0, 2.0, 2.5), planned=3, **about):
    run = Run.create(folder, {"recipe": "text", "changes": {"d": 8}, "training": {"steps": planned}, **about})
    for step, loss in enumerate(losses, 1):
        run.log({"step": step, "loss": loss + 1, "validation_loss": loss, "seconds": 0.5})
    run.log({"step": len(losses), "note": "a word"})
    return run


@pytest.fixture
def two(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    made(tmp_path / "runs" / "first")
    made(tmp_path / "runs" / "[bold]", (4.0,), changes={"d": 16, "lr": 0.1})
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.finding("N6")
def test_runs_are_listed_with_how_they_went(two):
    os.utime(two / "first" / "run.json", (1, 1))
    os.utime(two / "first" / "metrics.jsonl", (86_400, 86_400))
    (two / "broken").mkdir()
    (two / "broken" / "run.json").write_text("{")
    done = typed("runs")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("│")}
    assert "3 of 3" in lines["first"]
    assert "2.0000" in lines["first"]
    assert "done" in lines["first"]
    assert "1970-01-0" in lines["first"]
    assert "1 of 3" in lines["[bold]"]
    assert "stopped" in lines["[bold]"]
    assert "unreadable" in lines["broken"]
    assert list(lines)[-1] == "first", "the oldest is the last"
    assert typed("runs", str(two / "first")).stdout.count("of 3") == 1


def test_a_run_that_is_trained_now_is_said_to_be(two):
    run = Run.open(two / "first")
    assert not is_busy(run.folder)
    run.lock()
    try:
        assert summary(run.folder).state == "training"
    finally:
        run.release()
    assert summary(run.folder).state == "done"


def test_what_is_no_run_is_not_listed(tmp_path):
    assert "There are no runs in" in typed("runs", str(tmp_path)).stdout
    assert typed("runs", str(tmp_path / "none")).returncode == 0
    (tmp_path / "file").write_text("")
    assert typed("runs", str(tmp_path / "file")).returncode == 2
    made(tmp_path / "far" / "down" / "run")
    made(tmp_path / "near")
    (tmp_path / "link").symlink_to(tmp_path / "near")
    assert [place.name for place in places(tmp_path)] == ["near"]
    assert [place.name for place in places(tmp_path / "far")] == ["run"]


@pytest.mark.finding("N6")
def test_two_runs_are_compared(two):
    done = typed("compare", str(two / "first"), str(two / "[bold]"))
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in done.stdout.splitlines()]
    assert ["changes.d", "8", "16"] in rows
    assert ["changes.lr", "-", "0.1"] in rows
    assert ["best held-out", "2.0000", "4.0000"] in rows
    assert ["at step", "2", "1"] in rows
    assert ["seconds a step", "0.500", "0.500"] in rows
    assert (two / "compare" / "first-[bold].png").stat().st_size > 10_000
    same = typed("compare", str(two / "first"), str(two / "first"), "--out", str(two / "same.png"))
    assert "the same settings" in same.stdout
    assert (two / "same.png").is_file()


def test_comparing_refuses_with_a_sentence(two):
    for words in ((two / "none", two / "first"), (two / "first", two / "first", "--out", two)):
        done = typed("compare", *map(str, words))
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1


def test_runs_without_a_history_are_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        Run.create(tmp_path / name, {})
    assert typed("compare", "a", "b").returncode == 0
    assert differences({"x": {"y": [1]}}, json.loads('{"x": {"y": [2]}, "files": {}}')) == [("x.y", [1], [2])]
