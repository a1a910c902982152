"""Token files as a user makes them, and a fit that reads them."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from continua.cli import app
from continua.data import TokenFiles
from continua.errors import ConfigError, RunError
from tests.runs import tiny_text

pytestmark = pytest.mark.spec("B15")
RUN = CliRunner()
SIZES = ("d=8", "heads=2", "depth=1", "context=8", "batch=4", "save_every=2", "evaluate_every=2")
SMALL = [word for size in SIZES for word in ("--set", size)]


def said(*words: object) -> Result:
    return RUN.invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "text.txt"
    file.write_text((tiny_text() + "\n") * 40, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def folder(text: Path) -> Path:
    out = text.parent / "tokens"
    done = said("data", "build", text, "--out", out)
    assert done.exit_code == 0, done.output
    assert re.search(r"tokens: \d+ documents in 2 shards", done.output)
    assert re.search(r"[\d,]+ tokens to learn from, [\d,]+ held out", done.output)
    assert f"continua fit text --text {out}" in done.output
    return out


def test_a_fit_reads_them_and_goes_on_where_they_are_named_again(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = said("fit", "text", "--text", folder, "--folder", run, *SMALL, "--set", "steps=2")
    assert done.exit_code == 0, done.output
    assert not (run / "data" / "text.txt").exists()
    unnamed = said("fit", "--resume", run, "--set", "steps=4")
    assert isinstance(unnamed.exception, RunError)
    assert "--text FILE" in str(unnamed.exception)
    again = said("fit", "--resume", run, "--text", folder, "--set", "steps=4")
    assert again.exit_code == 0, again.output
    assert "step 4/4" in again.stderr


def test_several_are_mixed(folder: Path, text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert said("data", "build", text, "--out", other, "--tokenizer", folder).exit_code == 0
    done = said(
        "fit", "text", "--text", f"{folder}=3,{other}=1", "--folder", tmp_path / "run", *SMALL, "--set", "steps=2"
    )
    assert done.exit_code == 0, done.output
    wrong = said("fit", "text", "--text", f"{folder}=three", "--folder", tmp_path / "none", *SMALL)
    assert isinstance(wrong.exception, ConfigError)
    assert "web=0.7,code=0.3" in str(wrong.exception)
    pairs = said("fit", "text", "--text", folder, "--folder", tmp_path / "none", *SMALL, "--set", "pairs=300")
    assert isinstance(pairs.exception, ConfigError)
    assert "token files have their tokens, got pairs=300" in str(pairs.exception)
    assert not (tmp_path / "none").exists()


def test_byte_pairs_are_learned_and_documents_separated(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs"
    done = said("data", "build", text, "--out", out, "--tokenizer", "pairs:300", "--separator", "\n")
    assert done.exit_code == 0, done.output
    assert 256 < TokenFiles.open(out).tokeniser.size <= 300
    for wish, sentence in (("pairs:many", "pairs:8192"), (str(tmp_path / "none"), "a tokenizer.json or a folder")):
        wrong = said("data", "build", text, "--out", tmp_path / "x", "--tokenizer", wish)
        assert isinstance(wrong.exception, ConfigError)
        assert sentence in str(wrong.exception)
    two = said("data", "build", text, "--out", tmp_path / "x", "--separator", "at")
    assert isinstance(two.exception, ConfigError)
    assert "a separator is one token" in str(two.exception)


def test_what_is_there_is_shown_and_checked(folder: Path, tmp_path: Path) -> None:
    assert "held out" in said("data", "show", folder).output
    assert "2 shards are as they were written" in said("data", "check", folder).output
    shard = next(folder.glob("train-*.npy"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-2] + b"\x01\x00")
    damaged = said("data", "check", folder)
    shard.write_bytes(whole)
    assert damaged.exit_code == 1
    assert f"damaged: {shard.name}" in damaged.output
    none = said("data", "show", tmp_path)
    assert isinstance(none.exception, ConfigError)
    assert "continua data build" in str(none.exception)


def test_fields_are_built_shown_checked_and_learned_from(tmp_path: Path) -> None:
    x = np.arange(8) / 8
    waves = np.sin(2 * np.pi * (x + np.random.default_rng(0).random((10, 3, 1))))[..., None].astype(np.float32)
    np.save(tmp_path / "waves.npy", waves)
    out = tmp_path / "fields"
    done = said("data", "fields", tmp_path / "waves.npy", "--out", out, "--held-out", "0.2")
    assert done.exit_code == 0, done.output
    assert "paths of 3 times on 8 nodes in 2 shards" in done.output
    assert "8 paths to learn from, 2 held out" in said("data", "show", out).output
    assert "2 shards are as they were written" in said("data", "check", out).output
    sizes = ("d=4", "m=4", "heads=2", "depth=1", "modes=2", "batch=4", "save_every=2", "evaluate_every=2")
    small = [word for size in sizes for word in ("--set", size)]
    run = tmp_path / "run"
    fitted = said("fit", "fields", "--set", f"folder={out}", "--folder", run, *small, "--set", "steps=2")
    assert fitted.exit_code == 0, fitted.output
    unnamed = said("fit", "--resume", run, "--set", "steps=4")
    assert "--set folder=PATH" in str(unnamed.exception)
    again = said("fit", "--resume", run, "--set", f"folder={out}", "--set", "steps=4")
    assert again.exit_code == 0, again.output
    shard = next(out.glob("train-*.npy"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x00")
    broken = said("data", "check", out)
    assert broken.exit_code == 1
    assert f"damaged: {shard.name}" in broken.output
