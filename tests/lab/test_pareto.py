"""Many sizes of one model: what each costs, the front, a size for a budget, and the commands that show it."""

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from continua.axes import at
from continua.cli import app
from continua.cli.demo import marks
from continua.cli.pareto import hint
from continua.convert import elastic
from continua.errors import ConfigError
from continua.flow import Fixed
from continua.lab import Pareto, Point, pareto, predict, size_grid
from continua.lab.cost.memory import peak_bytes
from continua.lab.cost.pareto import typed_budget
from continua.lab.cost.tolerance import depth_front, plot_depth
from continua.models import zoo
from tests.refusals import refused
from tests.runs import tiny_task, tiny_text

SMALL = {"d": 16, "heads": 4, "depth": 2, "context": 8, "batch": 4, "steps": 6, "evaluate_every": 6, "start": 0.3}


def small_model():
    torch.manual_seed(0)
    task = tiny_task()
    return elastic(zoo.gpt2(vocab=task.tokens.size, d=16, heads=4, depth=2, context=task.context)), task


def points(*numbers: tuple[float, float, int]) -> Pareto:
    return Pareto(
        tuple(Point({"d": 8 + i}, loss, seconds, flops, 100) for i, (loss, seconds, flops) in enumerate(numbers))
    )


@pytest.mark.spec("B1")
def test_every_size_is_measured_as_the_view_of_it() -> None:
    model, task = small_model()
    seen: list[tuple[int, int]] = []
    found = pareto(model, task, rounds=1, trained=lambda sizes: sizes["h"] != 3, watch=lambda *at: seen.append(at))
    assert len(found.points) == len(size_grid(model)) >= 12
    assert seen[-1] == (2 * len(found.points),) * 2
    for point in found.points:
        view = model.at(point.at)
        assert point.loss == task.evaluate(view).main
        assert point.flops == predict(view, 1, task.context).forward
        assert point.seconds > 0
        assert point.bytes > 0
        assert point.trained is (point.sizes["h"] != 3)
        assert 0 < point.alpha <= 1 + 1e-6
    assert abs(found.points[0].alpha - 1) < 1e-6, "the native size keeps all it writes itself"
    assert found.points[0].at == at(d=16, h=4, z=2)
    assert model.training


@pytest.mark.finding("N10")
def test_smaller_sizes_need_less_memory() -> None:
    """With the weights of its own size counted; a view that reads them anew would seem to need more."""
    model, task = small_model()
    found = pareto(model, task, [at(d=16, h=4, z=2), at(d=8), at(h=2), at(d=8, h=2, z=1), at(d=32)], rounds=1)
    native, half_width, half_heads, half, twice = (point.bytes for point in found.points)
    assert half < half_width < native < twice
    assert half < half_heads < native
    weights = sum(p.nbytes for p in model.parameters())
    assert weights / 2 < native < 4 * weights


@pytest.mark.finding("N4")
def test_a_budget_that_nothing_fits_keeps_its_unit() -> None:
    found = points((1.0, 0.003456, 20_000_000), (2.0, 0.0021, 5_000_000))
    with refused(ConfigError, "got latency=2ms", "The least that was measured: latency=2.1ms."):
        found.pick(latency=0.002)
    with refused(ConfigError, "got latency=2ms, flops=1M", "latency=2.1ms, flops=5M."):
        found.pick(latency=0.002, flops=1e6)
    assert typed_budget("latency", 0.003456) == "latency=3.46ms"
    assert typed_budget("latency", 2.5e-7) == "latency=0.25us"
    assert typed_budget("memory", 12) == "memory=12B"


@pytest.mark.spec("B1")
def test_peak_bytes_are_those_of_the_tensors_alive_at_once() -> None:
    def work() -> None:
        a = torch.ones(1000)
        b = a + 1
        del a
        (b + 1).sum()

    assert 8000 <= peak_bytes(work) < 9000


@pytest.mark.spec("B1")
def test_the_front_holds_what_nothing_beats() -> None:
    found = points((1.0, 4.0, 40), (1.2, 2.0, 30), (1.3, 3.0, 10), (1.2, 2.5, 20), (2.0, 1.0, 35))
    assert [p.sizes["d"] for p in found.front()] == [12, 9, 8]
    assert [p.sizes["d"] for p in found.front("flops")] == [10, 11, 8]
    for point in found.points:  # the law itself
        beaten = any(p.seconds <= point.seconds and p.loss < point.loss for p in found.points)
        assert (point in found.front()) is (not beaten and point.sizes["d"] != 11) or beaten
    same = points((1.0, 1.0, 10), (1.0 - 1e-9, 2.0, 20), (0.999, 3.0, 30))  # twice the width: the same to round-off
    assert [p.sizes["d"] for p in same.front()] == [8, 10]


@pytest.mark.spec("B1")
def test_a_budget_picks_the_best_size_within_it() -> None:
    found = points((1.0, 4.0, 40), (1.2, 2.0, 30), (2.0, 1.0, 10))
    assert found.pick(latency=10).sizes == {"d": 8}
    assert found.pick(latency=2.0).sizes == {"d": 9}
    assert found.pick(latency=10, flops=15).sizes == {"d": 10}
    with refused(ConfigError, "got latency=500ms", "latency=1s"):
        found.pick(latency=0.5)
    with refused(ConfigError, "got speed", "latency"):
        found.pick(speed=1)


@pytest.mark.spec("B1")
def test_a_table_is_kept_and_drawn(tmp_path) -> None:
    found = points((1.0, 4.0, 40), (1.2, 2.0, 30))
    assert Pareto.load(found.save(tmp_path / "deep" / "pareto.json")) == found
    assert found.plot(tmp_path / "pareto.png").stat().st_size > 10_000
    model, task = small_model()
    with refused(ConfigError, "got none", "Leave sizes out"):
        pareto(model, task, sizes=[])


@pytest.mark.spec("B1", "D1")
def test_depth_by_tolerance_counts_evaluations_beside_fixed_steps(tmp_path) -> None:
    model, task = small_model()
    found = depth_front(model, task, steps=(1, 2), tolerances=(1.0, 1e-3))
    assert [(one.name, one.is_adaptive) for one in found] == [
        ("1 steps", False), ("2 steps", False), ("tolerance 1", True), ("tolerance 0.001", True),
    ]  # fmt: skip
    assert [one.evaluations for one in found[:2]] == [1, 2]
    assert found[1].loss == task.evaluate(model.at(z=Fixed(2, nested=2))).main
    assert found[3].evaluations > found[2].evaluations > 2
    assert plot_depth(found, tmp_path / "depth.png").stat().st_size > 10_000


# --- commands ---------------------------------------------------------------------------------------------------------


def said(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120"})


def changes(**more: object) -> list[str]:
    return [word for key, value in {**SMALL, **more}.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("elastic")
    (place / "text.txt").write_text(tiny_text(), encoding="utf-8")
    done = said("fit", "elastic", "--text", place / "text.txt", "--folder", place / "run", *changes())
    assert done.exit_code == 0, done.output
    return place / "run"


@pytest.mark.spec("B1", "T11")
def test_pareto_prints_marks_keeps_and_draws(run) -> None:
    done = said("pareto", run, "--windows", 2)
    assert done.exit_code == 0, done.output
    rows = re.findall(r"d=\d+ h=\d z=\d.*", done.output)
    assert len(rows) >= 12
    untrained = re.compile("│ no +│$")
    assert {bool(untrained.search(row)) for row in rows if "h=3" in row} == {True}
    assert not any(untrained.search(row) for row in rows if row.startswith("d=8 h=2 z=1 "))
    kept = json.loads((run / "pareto.json").read_text())["points"]
    assert len(kept) == len(rows)
    assert (run / "pareto.png").is_file()
    few = said("pareto", run, "--size", "d=8", "--size", "d=8,h=2", "--windows", 1, "--out", run / "few.png")
    assert few.exit_code == 0, few.output
    assert len(re.findall(r"d=8 h=\d", few.output)) == 2


@pytest.mark.spec("B1")
def test_a_size_can_be_asked_for_by_budget(run) -> None:
    (run / "pareto.json").unlink(missing_ok=True)
    written = said("generate", run, "--at", "latency=10s", "--tokens", 5)
    assert written.exit_code == 0, written.output
    assert "latency=10s: d=" in written.stderr
    assert (run / "pareto.json").is_file(), "what was measured is kept"
    looked = said("inspect", run, "--at", "flops=1G")
    assert looked.exit_code == 0, looked.output
    assert "one checkpoint" in looked.output
    for wish, problem in (("latency=1us", "no measured size fits"), ("latency=fast", "a number with a unit"),
                          ("d=8,latency=5ms", "sizes or a budget"), ("speed=3", "a budget is a limit")):  # fmt: skip
        failed = said("generate", run, "--at", wish)
        assert failed.exit_code != 0
        assert problem in str(failed.exception), failed.output


def test_the_curve_of_the_demo_marks_what_begins() -> None:
    lines = [{"step": 1, "stage": 0}, {"step": 2, "stage": 1}, {"step": 3, "stage": 2, "elastic": 0.1}, {"step": 4}]
    assert marks(lines[:3]) == {2: "finer grid", 3: "other sizes join"}
    assert marks([{"step": 1}, {"step": 2}]) == {}


@pytest.mark.spec("B1", "T11")
def test_the_demo_trains_shows_writes_and_goes_on_or_starts_anew(tmp_path) -> None:
    (tmp_path / "text.txt").write_text(tiny_text() + "def ", encoding="utf-8")
    small = [*changes(), "--set", f"text='{tmp_path / 'text.txt'}'"]
    out = tmp_path / "demo"
    done = said("demo", "--out", out, *small)
    assert done.exit_code == 0, done.output
    assert all((out / name).stat().st_size > 10_000 for name in ("pareto.png", "loss.png"))
    assert "written at full size" in done.output
    assert "written at half of everything" in done.output
    assert len(re.findall(r"d=\d+ h=\d z=\d", done.output)) >= 12
    before = (out / "metrics.jsonl").read_text()
    again = said("demo", "--out", out, *small)
    assert again.exit_code == 0, again.output
    assert "There is a run of 6 steps" in again.output
    assert (out / "metrics.jsonl").read_text() == before
    anew = said("demo", "--out", out, "--again", "anew", *changes(steps=3), "--set", f"text='{tmp_path / 'text.txt'}'")
    assert anew.exit_code == 0, anew.output
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 3
    wrong = said("demo", "--out", out, "--again", "maybe")
    assert "ask, resume or anew" in str(wrong.exception)


@pytest.mark.finding("N10")
def test_every_column_of_the_table_has_a_heading(run) -> None:
    done = said("pareto", run, "--windows", 1, "--size", "d=8", "--out", run / "headings.png")
    assert done.exit_code == 0, done.output
    (heads,) = (line for line in done.output.splitlines() if "MFLOP" in line)
    assert all(word.strip() for word in re.split("[┃│|]", heads.strip())[1:-1])
    assert "MB: the weights of that size" in " ".join(done.output.split())


@pytest.mark.finding("N4")
def test_the_hint_at_the_end_fits_this_machine(tmp_path) -> None:
    (tmp_path / "text.txt").write_text(tiny_text() + "def class", encoding="utf-8")
    out = tmp_path / "demo"
    done = said("demo", "--quick", "--out", out, *changes(), "--set", f"text='{tmp_path / 'text.txt'}'")
    assert done.exit_code == 0, done.output
    (line,) = (line for line in done.output.splitlines() if line.startswith("Go on: continua generate "))
    wish = re.search(r"--at (latency=[0-9.]+[mu]?s)", line)
    assert wish, line
    written = said("generate", out, "--at", wish[1], "--prompt", "class ", "--tokens", 3)
    assert written.exit_code == 0, written.output


@pytest.mark.parametrize(("seconds", "wish"), [((4e-3, 1e-3, 2e-3), "latency=1.5ms"), ((1e-3, 9e-4), "latency=1.5ms")])
def test_hints_are_kept_by_a_size_that_is_quicker(seconds, wish) -> None:
    found = points(*((1.0 + i, took, 1) for i, took in enumerate(seconds)))
    assert hint(found) == wish


@pytest.mark.finding("N4")
def test_times_of_another_machine_are_measured_again(run) -> None:
    kept = run / "pareto.json"
    assert said("pareto", run, "--windows", 1, "--size", "d=8").exit_code == 0
    here = json.loads(kept.read_text())
    assert "thread" in here["measured_on"]
    for point in here["points"]:
        point["seconds"] = 1e6
    kept.write_text(json.dumps({**here, "measured_on": "an abacus"}))
    assert said("generate", run, "--at", "latency=100s", "--tokens", 1).exit_code == 0
    again = json.loads(kept.read_text())
    assert again["measured_on"] == here["measured_on"]
    assert all(point["seconds"] < 100 for point in again["points"])
    kept.write_text(json.dumps({**here, "measured_on": "an abacus"}))
    assert said("generate", run, "--at", "flops=100G", "--tokens", 1).exit_code == 0
    assert json.loads(kept.read_text())["measured_on"] == "an abacus", "FLOPs are the same everywhere"


def test_points_of_two_machines_are_not_joined() -> None:
    one = points((1.0, 4.0, 40), (1.2, 2.0, 30))
    few = Pareto(one.points[:1], "here")
    assert few.joined(Pareto(one.points, "there")) == few
    assert few.joined(Pareto(one.points, "here")).points == one.points
