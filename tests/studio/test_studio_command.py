"""The command: a run becomes a page, as plain files or served on loopback."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from continua.cli import app
from continua.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
TINY = ["steps=4", "evaluate_every=2", "below=0", "d=16", "heads=2", "depth=2", "context=32", "batch=4"]


@pytest.mark.spec("B7")
def test_what_is_no_run_is_refused(tmp_path: Path):
    for words, what in (([str(tmp_path)], "opens a run"), (["--port", "70000"], "a port")):
        with pytest.raises(ConfigError, match=what):
            CliRunner().invoke(app, ["studio", *words], catch_exceptions=False)


@pytest.mark.spec("B7")
def test_missing_packages_are_named_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("onnx", "uvicorn") else name)
    with pytest.raises(ConfigError, match=r"no onnx, uvicorn.*continua-ml\[onnx,serve\]"):
        CliRunner().invoke(app, ["studio", str(tmp_path)], catch_exceptions=False)
    with pytest.raises(ConfigError, match=r"no onnx\b(?!, )"):
        CliRunner().invoke(app, ["studio", str(tmp_path), "--export", "site"], catch_exceptions=False)


@pytest.mark.spec("B7")
@pytest.mark.slow(reason="trains a tiny elastic model, measures its sizes and starts two processes")
def test_a_run_becomes_a_page(tmp_path: Path):
    words = [word for setting in TINY for word in ("--set", setting)]
    place = tmp_path / "runs" / "tiny"
    done = CliRunner().invoke(app, ["fit", "elastic", *words, "--folder", str(place)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["studio", str(place), "--export", str(tmp_path / "site")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    said = json.loads((tmp_path / "site" / "bundle.json").read_text("utf-8"))
    assert said["name"] == "tiny"
    assert said["sizes"]
    assert len(said["windows"]) == 4
    assert (place / "pareto.json").is_file(), "what was measured is kept"
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "continua", "studio", str(place), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=surroundings, cwd=tmp_path) as child:
        assert child.stderr is not None
        address = next(found for line in child.stderr if (found := re.search(r"http://\S+", line)))[0]
        page, _, token = address.partition("#token=")
        assert len(token) >= 32
        with urllib.request.urlopen(page) as answer:
            assert b"Continua studio" in answer.read()
        asked = urllib.request.Request(f"{page}api/runs", headers={"authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked) as answer:
            assert [run["name"] for run in json.loads(answer.read())["runs"]] == ["tiny"]
        child.send_signal(signal.SIGINT)
        child.stderr.read()
        assert child.wait(30) in (0, -signal.SIGINT, 130)
