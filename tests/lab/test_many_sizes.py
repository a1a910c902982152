"""More than a hundred sizes of one model: a grid, joined steps, perplexities, models beside, and the command for it."""

import itertools
import json
import math
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from continua.axes import at
from continua.cli import app
from continua.cli.sizes import parse_at
from continua.convert import elastic
from continua.errors import ConfigError
from continua.flow import Fixed
from continua.lab import Beside, Pareto, Point, line_through, many_sizes, pareto, predict, read_beside, write_beside
from continua.models import Transformer, zoo
from continua.models.patches import Pixels
from continua.tasks import Text, digits
from continua.training import Elastic
from tests.refusals import refused
from tests.runs import calibrated, tiny_task, tiny_text

pytestmark = pytest.mark.spec("B1", "T11")


def small_model(depth: int = 4) -> tuple[Transformer, Text]:
    torch.manual_seed(0)
    task = tiny_task()
    plain = zoo.gpt2(vocab=task.tokens.size, d=16, heads=4, depth=depth, context=task.context).double()
    return calibrated(elastic(plain)), task


def joinings(steps: int) -> list[tuple[int, ...]]:
    """All ways of walking so many native steps in fewer."""
    found = []
    for cuts in itertools.product((True, False), repeat=steps - 1):
        lengths = [1]
        for cut in cuts:
            lengths = [*lengths, 1] if cut else [*lengths[:-1], lengths[-1] + 1]
        found.append(tuple(lengths))
    return found


# --- the grid ---------------------------------------------------------------------------------------------------------


def test_a_grid_has_more_than_a_hundred_sizes_from_a_quarter_to_twice() -> None:
    model, _ = small_model()
    sizes = [model.settle(wish) for wish in many_sizes(model)]
    assert len(sizes) == len({*sizes}) > 100
    assert sizes[0] == model.native
    for letter, native in {"d": 16, "h": 4, "m": 64}.items():
        counts = {getattr(size, letter).n for size in sizes}
        assert {native // 4, native // 2, native, 2 * native} <= counts, letter
        assert min(counts) >= native / 4
        assert max(counts) == 2 * native
    assert {size.z.steps for size in sizes} == {1, 2, 3, 4, 8}
    assert any(size.m.n != 4 * size.d.n for size in sizes), "m is an axis of its own"


@pytest.mark.parametrize("depth", [1, 2])
def test_small_models_have_fewer_sizes_and_none_twice(depth: int) -> None:
    model, _ = small_model(depth)
    sizes = [model.settle(wish) for wish in many_sizes(model)]
    assert len(sizes) == len({*sizes}) > 30


def test_the_front_alone_is_timed_and_every_loss_is_that_of_its_size() -> None:
    model, task = small_model()
    seen: list[tuple[int, int]] = []
    sizes = [at(), *many_sizes(model)[1:30:3], at(z=Fixed(3, lengths=(2, 1, 1))), at(e=2)]
    found = pareto(model, task, sizes, rounds=1, front_only=True, watch=lambda *one: seen.append(one))
    timed = [point for point in found.points if point.seconds is not None]
    assert found.nats
    assert not found.is_timed
    assert {p.name for p in timed} == {found.points[0].name, *(p.name for p in found.front("flops"))}
    assert all((point.bytes is None) is (point.seconds is None) for point in found.points)
    assert seen[-1] == (len(sizes) + len(timed),) * 2
    for point, size in zip(found.points, sizes, strict=True):
        assert model.settle(point.at) == model.settle(size)
        assert point.loss == task.evaluate(model.at(size)).main
        assert point.flops == predict(model.at(size), 1, task.context).forward
    assert found.points[-1].name == "d=16 h=4 z=4 e=2"
    assert found.points[-2].name == "d=16 h=4 z=2+1+1"


def test_perplexity_ratios_are_exponentials_of_differences() -> None:
    native, other = Point({"d": 8}, 1.5, 1.0, 10, 1), Point({"d": 4}, 1.7, None, 5, None)
    assert Pareto((native, other), nats=True).perplexity_ratio(other) == pytest.approx(math.exp(0.2))
    assert Pareto((native, other)).perplexity_ratio(other) is None
    torch.manual_seed(0)
    images = pareto(
        elastic(zoo.vit(Pixels(8, 8, 1, patch=(2, 2)), d=16, heads=4, depth=2, labels=10)), digits(), [at()], rounds=1
    )
    assert not images.nats, "a loss of images is no perplexity"


def test_untimed_sizes_are_kept_and_budgets_of_time_pass_over_them(tmp_path: Path) -> None:
    native = Point({"d": 8, "h": 2, "z": 4}, 1.0, 4.0, 40, 100, True)
    joined = Point({"d": 8, "h": 2, "z": (2, 1, 1)}, 0.9, None, 30, None, False)
    found = Pareto((native, joined), "here", True)
    again = Pareto.load(found.save(tmp_path / "pareto.json"))
    assert again == found
    assert again.points[1].at == at(d=8, h=2, z=Fixed(3, lengths=(2, 1, 1)))
    assert found.pick(latency=10.0) == native
    assert found.pick(flops=100) == joined
    assert found.front() == [native]
    assert found.front("flops") == [joined]
    later = Pareto((Point(native.sizes, 1.0, 3.0, 40, 100), Point(joined.sizes, 0.9, 2.0, 30, 50)), "here", True)
    assert found.joined(later).points == (native, later.points[1]), "a time that is known is kept"
    old = {"measured_on": "", "points": [{"sizes": {"d": 8}, "loss": 1.0, "seconds": 1.0, "flops": 3, "bytes": 4}]}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert Pareto.load(tmp_path / "old.json") == Pareto((Point({"d": 8}, 1.0, 1.0, 3, 4),))


# --- any number of steps, any joining of them -------------------------------------------------------------------------


def test_every_number_of_steps_and_every_joining_is_a_size() -> None:
    model, task = small_model()
    ways = joinings(4)
    assert len({*ways}) == 8
    sizes = [at(z=n) for n in range(1, 9)] + [at(z=Fixed(len(own), lengths=own)) for own in ways]
    found = pareto(model, task, sizes, rounds=1, trained=Elastic(joined=0.5).over(model).drew)
    assert all(math.isfinite(point.loss) for point in found.points)
    by = {point.name.split("z=")[1]: point for point in found.points}
    assert set(by) == {"1", "2", "3", "4", "5", "6", "7", "8", "2+1+1", "1+2+1", "1+3", "3+1"}, "others are numbers"
    assert len({point.loss for point in by.values()}) == len(by), "each is a size of its own"
    whole = {"1": (4,), "2": (2, 2), "3": (1, 1, 2), "4": (1, 1, 1, 1)}
    for name, lengths in whole.items():
        assert by[name].loss == pytest.approx(task.evaluate(model.at(z=Fixed(len(lengths), lengths=lengths))).main)
    unseen = {name for name, point in by.items() if not point.trained}
    assert unseen == {"1+2+1", "5", "6", "7", "8"}
    for own in ways:
        wish = at(z=Fixed(len(own), lengths=own))
        gradients = torch.autograd.grad(
            model(torch.zeros(1, 3, dtype=torch.long), wish).sum(), [*model.parameters()], allow_unused=True
        )
        assert all(g is None or bool(g.isfinite().all()) for g in gradients)


def test_sizes_of_axes_that_were_not_drawn_are_not_called_trained() -> None:
    model, _ = small_model()
    usual = Elastic().over(model)
    assert usual.drew({"d": 16, "h": 4, "z": 4})
    assert not usual.drew({"d": 16, "h": 4, "z": 4, "m": 32})
    assert not usual.drew({"d": 16, "h": 4, "z": (2, 1, 1)}), "no steps are joined by it"
    wide = Elastic(d=(8, 16), m=(32, 64)).over(model)
    assert wide.drew({"d": 16, "h": 4, "z": 4, "m": 32})
    assert wide.drew({"d": 8, "h": 4, "z": 4}), "m follows: 32"
    assert not wide.drew({"d": 16, "h": 4, "z": 4, "e": 2})
    joined = Elastic(joined=0.5).over(model)
    assert joined.drew({"d": 8, "h": 4, "z": (3, 1)})
    assert not joined.drew({"d": 8, "h": 4, "z": (3, 2)}), "five steps"
    assert not joined.drew({"d": 10, "h": 3, "z": (3, 1)})


def test_joined_steps_are_typed_with_a_plus() -> None:
    assert parse_at("d=64, z=2+1+1") == at(d=64, z=Fixed(3, lengths=(2, 1, 1)))
    assert parse_at("z=4") == at(z=4)
    for wrong in ("d=2+1", "z=2+", "z=+", "z=2+x", "z=²", "z"):
        with refused(ConfigError, f"got {wrong}", "z=2+1+1"):
            parse_at(wrong)


# --- other models beside ----------------------------------------------------------------------------------------------


def test_the_line_through_models_is_a_power_of_their_cost(tmp_path: Path) -> None:
    models = [Beside(f"model {n}", n, 5.0 * n**-0.2) for n in (10, 100, 1000)]
    line = line_through(models)
    assert line is not None
    assert line(50) == pytest.approx(5.0 * 50**-0.2)
    assert line_through(models[:1]) is None
    assert read_beside(write_beside(models, tmp_path / "deep" / "beside.json")) == tuple(models)


@pytest.mark.parametrize(
    ("content", "said"),
    [("[]", "none in it"), ("{", "is no list of models"), ('[{"name": "a"}]', "flops"), ("3", "not iterable"),
     ('[{"name": "a", "flops": 0, "loss": 1}]', "has a cost and a loss"),
     ('[{"name": "a", "flops": 3, "loss": NaN}]', "has a cost and a loss")],
)  # fmt: skip
def test_files_without_models_are_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "beside.json").write_text(content)
    with refused(ConfigError, said, "."):
        read_beside(tmp_path / "beside.json")


def test_the_picture_of_many_sizes_holds_what_does_not_work_at_all(tmp_path: Path) -> None:
    sizes = [Point({"d": n, "z": z}, 1 + 1 / n + 1 / z, None, n * z, None, n > 2) for n in range(1, 12) for z in (1, 2)]
    found = Pareto((*sizes[::-1], Point({"d": 1, "z": 3}, 50.0, None, 3, None, False)), nats=True)
    first = found.plot(tmp_path / "many.png").read_bytes()
    beside = [Beside("small", 3, 2.2), Beside("large", 20, 1.4)]
    assert found.plot(tmp_path / "beside.png", beside=beside).read_bytes() != first
    assert len(first) > 20_000
    assert Pareto(sizes[:1]).plot(tmp_path / "one.png").stat().st_size > 5_000


# --- the command ------------------------------------------------------------------------------------------------------


def said(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("many")
    (place / "text.txt").write_text(tiny_text(), encoding="utf-8")
    small = {"d": 16, "heads": 4, "depth": 4, "context": 8, "batch": 4, "steps": 6, "evaluate_every": 6}
    words = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    done = said("fit", "elastic", "--text", place / "text.txt", "--folder", place / "run", *words)
    assert done.exit_code == 0, done.output
    return place / "run"


@pytest.mark.slow(reason="a training and a hundred sizes; the rest of the file shows many on a tiny model")
def test_the_command_measures_many_and_shows_some(run: Path, tmp_path: Path) -> None:
    others = [{"name": "half", "flops": 30_000, "loss": 3.0}, {"name": "native", "flops": 90_000, "loss": 2.8}]
    (tmp_path / "beside.json").write_text(json.dumps(others))
    more = ("--size", "z=2+1+1", "--beside", tmp_path / "beside.json")
    done = said("pareto", run, "--many", "--windows", 2, *more)
    assert done.exit_code == 0, done.output
    found = Pareto.load(run / "pareto.json")
    assert len(found.points) == len({point.name for point in found.points}) > 100
    rows = re.findall(r"d=\d+ h=\d z=\S.*", done.output)
    assert 14 <= len(rows) < 60
    assert f"of {len(found.points)} sizes of one checkpoint" in done.output
    assert "ppl" in done.output
    assert "×1.000" in done.output
    assert re.search(r"worst of \d+ sizes up to the native cost, against the line through 2 models: d=", done.output)
    assert any(point.name == "d=16 h=4 z=2+1+1" for point in found.points)
    assert (run / "pareto.png").stat().st_size > 20_000
    front = {point.name for point in found.front("flops")}
    assert front <= {point.name for point in found.points if point.seconds is not None}
    missing = said("pareto", run, "--beside", tmp_path / "none.json", "--size", "d=8")
    assert missing.exit_code != 0
    assert "is no list of models" in str(missing.exception)


def test_joined_steps_can_be_asked_for_wherever_a_size_can(run: Path) -> None:
    written = said("generate", run, "--at", "z=2+1+1", "--tokens", 3)
    assert written.exit_code == 0, written.output
    looked = said("inspect", run, "--at", "z=1+3,m=32")
    assert looked.exit_code == 0, looked.output
    assert re.search(r"d=16 h=4 z=1\+3 m=32│.*│ no +│", looked.output)
    assert "ppl" in looked.output
