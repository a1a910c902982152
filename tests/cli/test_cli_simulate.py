"""``continua simulate`` as a user types it."""

import json
import re
import shutil
import signal
from dataclasses import fields
from pathlib import Path

import numpy
import pytest
from typer.testing import CliRunner, Result

from continua.cli import app
from continua.cli.simulate.settings import Circle, MeanField, Phase, Sphere, asked
from continua.errors import ConfigError, ContinuaError, RunError, ShapeError
from continua.lab.theory.growth import growth_rates
from tests.forked import commanded

RUN = CliRunner()
FEW = ("--n", 40, "--frames", 6, "--until", 4)


def said(*words: object) -> Result:
    return RUN.invoke(app, ["simulate", *map(str, words)], env={"COLUMNS": "200"})


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def circle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("simulate") / "circle"
    done = said("circle", *FEW, "--beta", 4, "--seed", 3, "--out", folder)
    assert done.exit_code == 0, done.output
    assert "clusters at the end" in done.output
    assert "summary.json" in done.output
    return folder


@pytest.mark.spec("L10", "L5", "L3")
def test_a_simulation_leaves_numbers_and_pictures(circle) -> None:
    found = summary(circle)
    assert found["settings"]["seed"] == 3
    assert found["settings"]["kappa"] is None
    assert (found["times"][0], found["times"][-1], len(found["times"])) == (0.0, 4.0, 6)
    energy = numpy.array(found["energy"])[:, 0]
    assert (numpy.diff(energy) >= -1e-9).all(), "softmax attention climbs it"
    assert 0 < energy[0] < energy[-1] <= 1
    assert found["fastest_mode"] == 3
    with numpy.load(circle / "numbers.npz") as arrays:
        assert arrays["x"].shape == (6, 40, 2)
        numpy.testing.assert_allclose(numpy.linalg.norm(arrays["x"], axis=-1), 1, atol=1e-9)
        numpy.testing.assert_array_equal(arrays["final"][0], arrays["x"][-1])
        assert arrays["clusters"][-1].tolist() == found["clusters_at_the_end"]
    for name in found["files"]:
        assert (circle / name).stat().st_size > 1000, name
    assert {"paths.png", "energy.png", "film.gif"} <= set(found["files"])


@pytest.mark.spec("L10")
def test_what_is_done_is_not_done_again(circle) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in circle.iterdir()}
    done = said("circle", *FEW, "--set", "beta=4", "--set", "seed=3", "--out", circle)
    assert done.exit_code == 0, done.output
    assert "Simulated before" in done.output
    assert "clusters at the end" in done.output
    assert {path.name: path.stat().st_mtime_ns for path in circle.iterdir()} == before


@pytest.mark.spec("L10")
def test_the_same_seed_gives_the_same_numbers_and_another_one_others(circle, tmp_path) -> None:
    kept = {}
    for seed in (3, 4):
        done = said("circle", *FEW, "--beta", 4, "--seed", seed, "--film", "none", "--out", tmp_path / str(seed))
        assert done.exit_code == 0, done.output
        kept[seed] = summary(tmp_path / str(seed))
    assert kept[3]["energy"] == summary(circle)["energy"]
    assert kept[4]["energy"] != kept[3]["energy"]
    assert "film.gif" not in kept[3]["files"]


@pytest.mark.spec("L10")
def test_a_folder_is_not_overwritten_by_something_else(circle, tmp_path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(circle, folder)
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    for words in (("circle", *FEW, "--beta", 5, "--seed", 3), ("sphere",)):
        done = said(*words, "--out", folder)
        assert isinstance(done.exception, ConfigError)
        assert re.search(
            r"got (beta=4.0 there and beta=5.0 now|what=circle there and .*)\. .*--again anew", str(done.exception)
        )
    done = said("circle", *FEW, "--beta", 5, "--seed", 3, "--film", "none", "--out", folder, "--again", "anew")
    assert done.exit_code == 0, done.output
    assert summary(folder)["settings"]["beta"] == 5
    assert not (folder / "film.gif").exists(), "what was there is forgotten"
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "mine", "but nothing else"


@pytest.mark.spec("L10")
def test_a_lost_file_is_made_again(circle, tmp_path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(circle, folder)
    (folder / "paths.png").unlink()
    done = said("circle", *FEW, "--beta", 4, "--seed", 3, "--out", folder)
    assert done.exit_code == 0, done.output
    assert "Simulated before" not in done.output
    assert (folder / "paths.png").is_file()


@pytest.mark.spec("L10", "L1")
def test_sphere_takes_any_dimension_noise_and_causal_attention(tmp_path) -> None:
    words = ("sphere", *FEW, "--d", 5, "--noise", 300, "--causal", "--interaction", "usa", "--beta", 1, "--log")
    done = said(*words, "--film", "png", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    found = summary(tmp_path)
    assert (found["settings"]["kappa"], found["settings"]["causal"], found["settings"]["d"]) == (300.0, True, 5)
    assert found["fastest_mode"] is None, "the theory is of tokens that all see each other"
    steps = numpy.diff(numpy.log(found["times"][1:]))
    numpy.testing.assert_allclose(steps, steps[0], rtol=1e-9)
    with numpy.load(tmp_path / "numbers.npz") as arrays:
        assert arrays["x"].shape == (6, 40, 5)
    assert (tmp_path / "film.png").is_file()


@pytest.mark.spec("L10", "L5")
def test_many_runs_are_counted(tmp_path) -> None:
    done = said("circle", "--n", 60, "--runs", 5, "--frames", 5, "--film", "none", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    found = summary(tmp_path)
    assert len(found["clusters_at_the_end"]) == 5
    assert "(mean)" in done.output
    assert (tmp_path / "clusters.png").is_file()
    rate = float(growth_rates(9.0).max())
    assert found["until"] == pytest.approx(11 / rate, rel=5e-3), "three digits"


@pytest.mark.spec("L10", "L6")
def test_the_mean_field_stands_beside_particles(tmp_path) -> None:
    done = said("meanfield", "--n", 400, "--nodes", 128, "--until", 3, "--frames", 9, "--noise", 50, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    found = summary(tmp_path)
    assert found["mass_error"] < 1e-12
    assert found["wasserstein"]["distance"][0] == pytest.approx(numpy.pi / 800, rel=0.01), "quantiles: π/2n"
    assert found["wasserstein"]["distance"][-1] < 0.3
    assert found["resolved_until"] == 3
    with numpy.load(tmp_path / "numbers.npz") as arrays:
        assert arrays["density"].shape == (9, 128)
    assert (tmp_path / "density.png").is_file()


@pytest.mark.spec("L10", "L6")
def test_the_mean_field_says_where_its_nodes_do_not_suffice(tmp_path) -> None:
    done = said(
        "meanfield", "--n", 64, "--nodes", 128, "--until", 8, "--noise", "inf", "--frames", 17, "--out", tmp_path
    )
    assert done.exit_code == 0, done.output
    assert "then it needs more --nodes" in done.output
    found = summary(tmp_path)
    assert 1 < found["resolved_until"] < 8
    assert max(found["tail"]) <= 1e-3


PHASE = ("phase", "--d", "2,3", "--n", 16, "--runs", 2, "--until", 6)


@pytest.mark.spec("L10", "L5")
def test_a_phase_diagram_goes_on_cell_by_cell(tmp_path) -> None:
    done = said(*PHASE, "--beta", "1,4", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    first = (tmp_path / "cells.jsonl").read_text(encoding="utf-8")
    assert len(first.splitlines()) == 4
    again = said(*PHASE, "--beta", "1,4", "--out", tmp_path)
    assert "Simulated before" in again.output
    more = said(*PHASE, "--beta", "1,4,9", "--out", tmp_path)
    assert more.exit_code == 0, more.output
    assert "Simulated before" not in more.output
    then = (tmp_path / "cells.jsonl").read_text(encoding="utf-8")
    assert then.startswith(first)
    assert len(then.splitlines()) == 6
    assert len(summary(tmp_path)["cells"]) == 6
    with numpy.load(tmp_path / "numbers.npz") as arrays:
        assert arrays["count"].shape == (3, 2, 1)
        assert (arrays["count"][0] >= 1).all()
    assert (tmp_path / "phase-n16.png").is_file()


@pytest.mark.spec("L10")
def test_ctrl_c_loses_nothing_of_a_phase_sweep(tmp_path) -> None:
    betas = ",".join(str(0.5 * i) for i in range(1, 400))
    words = ["phase", "--beta", betas, "--d", "2", "--n", "32", "--runs", "1", "--until", "8", "--out", "sweep"]
    job = commanded("simulate", *words, folder=tmp_path)
    cells = tmp_path / "sweep" / "cells.jsonl"
    try:
        job.wait_until(lambda: cells.is_file() and cells.read_bytes().count(b"\n") >= 2)
        job.send(signal.SIGINT)
        code = job.ended(60)
    finally:
        job.kill()
    assert code == 0, job.err.read_text()
    out = job.out.read_text()
    kept = len(cells.read_text(encoding="utf-8").splitlines())
    assert f"Stopped. {kept} cells are kept in sweep: the same command goes on with them." in out
    assert kept >= 2


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L10")
@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        (("circle", "--interaction", "softmx"), ConfigError, r"got softmx\. Known: hardmax, sa, sinkhorn, usa"),
        (("circle", "--interaction", "hardmx"), ConfigError, r"got hardmx\. Did you mean 'hardmax'\?"),
        (("circle", "--interaction", "Sinkhron"), ConfigError, r"got Sinkhron\. Did you mean 'Sinkhorn'\?"),
        (("circle", "--set", "bta=3"), ConfigError, r"circle has no such setting, got bta\. Did you mean 'beta'\?"),
        (("circle", "--set", "n=2.5"), ConfigError, r"n is a whole number, got 2\.5\. For example --set n=100"),
        (("circle", "--set", "beta=hot"), ConfigError, r"beta is a number, got 'hot'"),
        (("circle", "--set", "causal=perhaps"), ConfigError, r"causal is true or false, got 'perhaps'"),
        (("circle", "--set", "beta"), ConfigError, r"written key=value, got beta"),
        (("circle", "--n", 0), ShapeError, r"got n=0, d=2\. Write Particles"),
        (("circle", "--runs", 0), ConfigError, r"at least one run, got 0\. Use --runs 1"),
        (("circle", "--beta", "nan"), ConfigError, r"beta takes a number, got nan"),
        (("circle", "--beta", 900, "--interaction", "USA", "--until", 1), ContinuaError, r"got .*900.*\. Use "),
        (
            ("circle", "--beta", 900, "--interaction", "USA"),
            ContinuaError,
            r"leave the range of numbers, got beta=900\. Use",
        ),
        (("circle", "--until", -1), ConfigError, r"positive time, got -1"),
        (("circle", "--until", -1, "--log"), ConfigError, r"positive time, got -1"),
        (("circle", "--frames", 1), ConfigError, r"start and the end are kept, got 1"),
        (("circle", "--noise", -5, "--until", 1), ConfigError, r"kappa takes a number ≥ 1e-30, got -5"),
        (("circle", "--film", "gfi"), ConfigError, r"got film\.gfi\. Did you mean '\.gif'\?"),
        (("circle", "--again", "resum"), ConfigError, r"--again is resume or anew, got resum\. Did you mean 'resume'"),
        (
            ("circle", "--causal", "--interaction", "Sinkhorn", "--n", 8),
            ConfigError,
            r"Use SelfAttention\(causal=True\)",
        ),
        (("sphere", "--d", 1), ContinuaError, r"got .*d=1\. "),
        (("meanfield", "--interaction", "hardmax"), ConfigError, r"no mean field is known"),
        (("meanfield", "--nodes", 2), ConfigError, r"at least eight nodes, got 2\. Use --nodes 512"),
        (
            ("meanfield", "--nodes", 16, "--noise", "inf", "--n", 50, "--until", 2, "--frames", 2),
            ConfigError,
            r"not resolved, got 16 nodes.*Use more --nodes",
        ),
        (("meanfield", "--amplitude", 3), ConfigError, r"a density is positive, got .*Use an --amplitude below"),
        (("meanfield", "--n", 0), ContinuaError, r"at least one token"),
        (("phase", "--beta", ""), ConfigError, r"at least one cell, got an empty list"),
        (("phase", "--beta", "1,hot"), ConfigError, r"beta is a list of numbers, got 1,hot\. Write --beta 2,4,9"),
        (("phase", "--d", "1,2"), ConfigError, r"got .*d=1"),
        (("phase", "--runs", 0), ConfigError, r"at least one run, got 0"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_mistakes_are_answered_with_a_sentence(words, kind, sentence, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = said(*words)
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, kind), repr(done.exception)
    assert re.search(sentence, str(done.exception)), str(done.exception)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.spec("L10")
def test_a_film_that_cannot_be_made_is_refused_before_the_simulation(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    done = said("circle", "--film", "mp4", "--n", 100_000, "--out", tmp_path / "long")
    assert isinstance(done.exception, ConfigError)
    assert "apt install ffmpeg" in str(done.exception)
    assert not (tmp_path / "long").exists()


@pytest.mark.spec("L10")
def test_a_sweep_does_not_go_on_as_another_one(tmp_path) -> None:
    assert said(*PHASE, "--beta", 1, "--out", tmp_path).exit_code == 0
    done = said(*PHASE, "--beta", "1,2", "--interaction", "USA", "--out", tmp_path)
    assert isinstance(done.exception, ConfigError)
    assert "interaction=SA there and interaction=USA now" in str(done.exception)
    (tmp_path / "summary.json").unlink()  # as after a sweep that was stopped
    done = said(*PHASE, "--beta", "1,2", "--interaction", "USA", "--out", tmp_path)
    assert isinstance(done.exception, RunError)
    assert len((tmp_path / "cells.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.spec("L10")
def test_one_token_stays_where_it_is(tmp_path) -> None:
    done = said("circle", "--n", 1, "--frames", 3, "--until", 2, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    with numpy.load(tmp_path / "numbers.npz") as arrays:
        numpy.testing.assert_allclose(arrays["x"][-1], arrays["x"][0], atol=1e-12)
    assert summary(tmp_path)["clusters"] == [[1]] * 3


# --- what can be set ------------------------------------------------------------------------------------------------


@pytest.mark.spec("L10")
def test_options_are_the_settings() -> None:
    """Frozen: an option that changes its name breaks scripts."""
    common = {"beta", "n", "until", "interaction", "seed", "kappa"}
    tokens = common | {"causal", "runs", "frames", "log", "film"}
    wanted = {
        Circle: tokens,
        Sphere: tokens | {"d"},
        MeanField: common | {"nodes", "amplitude", "frames"},
        Phase: common | {"d", "runs", "causal"},
    }
    for kind, names in wanted.items():
        assert {f.name for f in fields(kind)} == names
        shown = RUN.invoke(app, ["simulate", kind.name, "--help"], env={"COLUMNS": "200"}).output
        for name in [*names, "noise", "set", "out", "again"]:
            assert f"--{name}" in shown, name


@pytest.mark.spec("L10")
def test_folders_are_named_by_what_was_set() -> None:
    assert Circle().folder == Path("runs/simulate-circle")
    assert Sphere(beta=4.0, causal=True, n=100).folder.name == "simulate-sphere-beta4-n100-causal"
    assert Phase(beta="1,2", d="2", runs=3).folder.name == "simulate-phase-runs3", "a sweep may grow in its folder"


@pytest.mark.spec("L10")
def test_settings_are_read_as_they_are_meant() -> None:
    found = asked(Circle, {"beta": 4.0}, ["n=1e3", "noise=20", "causal=true", "interaction=USA"])
    assert (found.beta, found.n, found.kappa, found.causal, found.interaction) == (4.0, 1000, 20.0, True, "USA")
    assert asked(Phase, {}, ["beta=1,2", "d=3"]).beta == "1,2"
