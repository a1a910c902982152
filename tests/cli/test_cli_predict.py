"""Predicting functions from the command line: roll-outs, places that cannot be written, and damaged input."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from continua.cli import app, parity
from continua.data.burgers import burgers_pairs
from continua.errors import ContinuaError, GridError
from continua.recipes import BurgersSettings
from continua.recipes.functions import model_of, task_of
from continua.training import fit
from tests.commands import ODD, odd_place

RUN = CliRunner()


def said(*words: object) -> Result:
    return RUN.invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = BurgersSettings(train=4, held_out=2, nodes=8, fine=16, d=8, m=8, heads=2, depth=1, modes=3, batch=2)
    task = task_of(burgers_pairs(6, n=16), settings)
    folder = tmp_path_factory.mktemp("functions") / "run"
    fit(model_of(task, settings), task, run=folder, steps=1, watch=lambda at: None)
    return folder


def grid(place: Path, points: Any = (0.0, 0.25, 0.5, 0.75)) -> Path:
    np.savez(place / "in.npz", points=np.array(points)[:, None], inputs=np.linspace(0, 1, len(points)))
    return place / "in.npz"


@pytest.mark.finding("D12")
@pytest.mark.parametrize(
    ("verb", "kind"),
    # a folder is what check and simulate write into
    [
        ("check", ODD[0]),
        ("check", ODD[2]),
        ("simulate", ODD[0]),
        ("simulate", ODD[2]),
        *(("predict", kind) for kind in ODD),
    ],
)
def test_an_odd_place_is_refused_before_the_work(functions, tmp_path, monkeypatch, verb: str, kind: str) -> None:
    monkeypatch.setattr(parity, "rows", lambda: pytest.fail("the work had begun"))
    out = odd_place(tmp_path, kind, "odd.npz" if verb == "predict" else "odd.png")
    words = {
        "check": ("check", "--out", out),
        "simulate": ("simulate", "circle", "--n", "8", "--until", "1", "--out", out),
        "predict": ("predict", functions, "--grid", grid(tmp_path), "--out", out),
    }[verb]
    done = said(*words)
    assert isinstance(done.exception, ContinuaError), done.exception
    assert "--out" in str(done.exception)


@pytest.mark.spec("B16")
def test_predict_rolls_out(functions: Path, tmp_path: Path) -> None:
    done = said("predict", functions, "--grid", grid(tmp_path), "--steps", 3, "--out", tmp_path / "path.npz")
    assert done.exit_code == 0, done.output
    assert "3 steps; 1 of 1 roll-outs finite" in done.output
    with np.load(tmp_path / "path.npz") as found:
        assert found["outputs"].shape[:2] == (1, 3)
    for words, why in (
        (("--tolerance", 0.1), "--steps"),
        (("--steps", 2, "--tolerance", 0.1), "depth is time"),
        (("--steps", 2, "--out", tmp_path / "path.csv"), ".npz"),
    ):
        done = said("predict", functions, "--grid", grid(tmp_path), *words)
        assert done.exit_code != 0
        assert why in str(done.exception)


@pytest.mark.finding("D12")
def test_predict_writes_exactly_the_named_file_or_refuses_the_name(functions: Path, tmp_path: Path) -> None:
    for name in ("o.npz", "o.csv", "deep/o.npz"):
        done = said("predict", functions, "--grid", grid(tmp_path), "--out", tmp_path / name)
        assert done.exit_code == 0, done.exception
        assert (tmp_path / name).is_file()
    for name in ("o.xyz", "o", "o.npz.bak"):
        done = said("predict", functions, "--grid", grid(tmp_path), "--out", tmp_path / name)
        assert "answers are written as .npz or .csv" in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "in.npz", "o.csv", "o.npz"]


@pytest.mark.finding("D12")
@pytest.mark.parametrize("points", [(0.0, 0.1, 0.2, 1.5), (-3.0, 0.1, 0.2, 0.9), (0.0, 0.5, 1e6, 7.0)], ids=str)
def test_points_outside_the_domain_are_said_as_such(functions: Path, tmp_path: Path, points: Any) -> None:
    done = said("predict", functions, "--grid", grid(tmp_path, points))
    assert isinstance(done.exception, GridError)
    assert "points of a circle lie within one turn" in str(done.exception)


@pytest.mark.finding("S11")
@pytest.mark.parametrize("which", ["BEST", "newest", ""])
def test_predict_knows_the_best_and_the_last(functions: Path, tmp_path: Path, which: str) -> None:
    done = said("predict", functions, "--grid", grid(tmp_path), "--which", which)
    assert "--which is best or last" in str(done.exception)


@pytest.mark.finding("D6")
def test_a_damaged_archive_is_a_sentence(functions: Path, tmp_path: Path) -> None:
    whole = grid(tmp_path).read_bytes()
    chance = torch.Generator().manual_seed(0)
    for _ in range(60):
        spoilt = bytearray(whole)
        for place in torch.randint(len(whole), (3,), generator=chance).tolist():
            spoilt[place] ^= 0x15
        (tmp_path / "in.npz").write_bytes(spoilt)
        done = said("predict", functions, "--grid", tmp_path / "in.npz", "--out", tmp_path / "o.npz")
        assert done.exception is None or isinstance(done.exception, ContinuaError), repr(done.exception)
