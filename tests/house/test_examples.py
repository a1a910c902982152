"""Examples run, assert what they say, and draw; pages quote what was measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages import folder_of
from tools.packages import MINILM
from tools.quote import quoted

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow(reason="a whole example")
@pytest.mark.spec("D1", "D2", "D3")
def test_the_example_keeps_its_promises(tmp_path) -> None:
    picture = tmp_path / "ode.png"
    script = [sys.executable, str(ROOT / "examples" / "ode.py"), "--out", str(picture)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [line[:3] for line in done.stdout.splitlines()].count("(c)") == 9
    assert picture.stat().st_size > 50_000


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_pages_quote_what_was_measured(page) -> None:
    text = page.read_text(encoding="utf-8")
    assert quoted(text) == text, "run python tools/quote.py"


def test_quoting_replaces_what_stood_there(tmp_path) -> None:
    page = "before\n<!-- rows of some.json -->\nold\n<!-- end of rows -->\nbehind\n"
    assert "Not measured yet" in quoted(page, tmp_path)
    row = {"name": "time", "value": 1.2345, "low": 1.0, "high": 1.5, "unit": "s", "target": "≤ 2", "note": "median"}
    (tmp_path / "some.json").write_text(json.dumps({"rows": [row]}), encoding="utf-8")
    got = quoted(page, tmp_path)
    assert "| time | 1.23 [1, 1.5] s | ≤ 2 | median |" in got
    assert "old" not in got
    assert got.startswith("before\n<!-- rows of some.json -->")
    assert got.endswith("<!-- end of rows -->\nbehind\n")
    assert quoted(got, tmp_path) == got


def test_families_are_quoted_with_errors_and_times(tmp_path) -> None:
    page = "before\n<!-- families -->\nold\n<!-- end of families -->\n"
    assert "Not measured yet" in quoted(page, tmp_path)
    one = {"model": "SomeModel", "options": "window=3", "answers": 0.0, "gradients": 2.4e-16, "as is": 3e-7}
    (tmp_path / "parity.json").write_text(json.dumps({"families": [one]}), encoding="utf-8")
    row = {"name": "SomeModel: load", "value": 1.234, "low": 1.1, "high": 1.5, "verdict": "MISS"}
    (tmp_path / "family.json").write_text(json.dumps({"rows": [row]}), encoding="utf-8")
    got = quoted(page, tmp_path)
    assert "| `SomeModel` | window=3 | 0 | 2e-16 | 3e-7 |  |  | **MISS** 1.23 [1.10, 1.50] |" in got
    assert "old" not in got
    assert quoted(got, tmp_path) == got


@pytest.mark.slow(reason="a whole example, which trains")
@pytest.mark.spec("T1", "T2", "T9")
def test_the_training_example_keeps_its_promises(tmp_path) -> None:
    script = [sys.executable, str(ROOT / "examples" / "training.py"), "--out", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "120 steps in two sittings" in done.stdout
    assert all((tmp_path / f"hamiltonian-{when}.png").stat().st_size > 20_000 for when in ("before", "after"))


@pytest.mark.slow(reason="a whole example, which trains")
@pytest.mark.spec("B1", "T11")
def test_the_elastic_example_keeps_its_promises(tmp_path) -> None:
    script = [sys.executable, str(ROOT / "examples" / "elastic.py"), "--out", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pareto.png").stat().st_size > 20_000


@pytest.mark.slow(reason="a whole example, which trains a tiny model and serves it")
@pytest.mark.spec("B13")
def test_the_serving_example_keeps_its_promises(tmp_path) -> None:
    words = [sys.executable, "-m", "continua", "demo", "--quick", "--out", str(tmp_path / "demo")]
    made = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    script = [sys.executable, str(ROOT / "examples" / "serve_and_ask.py"), "--run", str(tmp_path / "demo")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "models: demo, demo:fast" in done.stdout
    assert "400: " in done.stdout


DRAWN = [
    pytest.param(
        "functions", ("functions", "functions-resolution", "functions-roll-out"), marks=pytest.mark.spec("B3")
    ),
    pytest.param("pde_data", ("pde-data",), marks=pytest.mark.spec("B3")),
    pytest.param("long_attention", ("long-attention",), marks=pytest.mark.spec("A5")),
    pytest.param("vision", ("vision",), marks=pytest.mark.spec("B6")),
]


@pytest.mark.slow(reason="whole examples, which train and draw")
@pytest.mark.parametrize(("name", "pictures"), DRAWN)
def test_the_examples_of_fields_keep_their_promises(name, pictures, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CONTINUA_CACHE", str(tmp_path / "cache"))
    script = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--out", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / f"{picture}.png").stat().st_size > 10_000 for picture in pictures)


@pytest.mark.slow(reason="a whole example, which calibrates and measures a real model")
@pytest.mark.spec("B2", "B11")
def test_the_example_of_sizes_keeps_its_promises(tmp_path) -> None:
    pytest.importorskip("transformers")
    folder = folder_of(MINILM)
    script = [sys.executable, str(ROOT / "examples" / "any_size.py"), str(folder), "--out", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert "the aim of 97%" in done.stdout
    assert all((tmp_path / name / "model.safetensors").is_file() for name in ("half-maps", "half-all"))
    assert (tmp_path / "drift.png").stat().st_size > 20_000
