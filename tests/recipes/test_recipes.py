"""Recipes: functions with settings, found by name or in a file, started and gone on with."""

import json
from pathlib import Path

import pytest
import torch

from continua.errors import ConfigError, RunError
from continua.recipes import SHIPPED, Bundle, TextSettings, build, parse, resume, start, text, tokens_of
from continua.recipes.recipe import find, keys
from continua.tasks import BytePairs, Characters
from continua.training import Run, Training
from tests.refusals import refused
from tests.runs import steps_of, tiny_text

SMALL = {"d": 8, "heads": 2, "depth": 1, "context": 8, "batch": 4, "save_every": 2, "evaluate_every": 100}


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(tiny_text(), encoding="utf-8")
    return path


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("steps=500", {"steps": 500}),
        ("lr=1e-3", {"lr": 1e-3}),
        ("discrete=True", {"discrete": True}),
        ("text=None", {"text": None}),
        ("text=some/file.txt", {"text": "some/file.txt"}),
        ("text='3'", {"text": "3"}),
        (" d =8", {"d": 8}),
        ("text=a=b", {"text": "a=b"}),
        ("text=", {"text": ""}),
        ("betas=(0.9, 0.95)", {"betas": (0.9, 0.95)}),
    ],
)
def test_settings_are_read_as_python_or_as_text(typed, read) -> None:
    assert parse([typed]) == read


def test_the_last_of_two_settings_counts_and_a_bare_word_is_refused() -> None:
    assert parse(["steps=1", "steps=2"]) == {"steps": 2}
    with refused(ConfigError, "got steps", "--set steps=500"):
        parse(["steps"])


def test_unknown_keys_name_the_nearest(file) -> None:
    with refused(ConfigError, "got hedas", "Did you mean 'heads'?"):
        build("text", {"hedas": 4})
    with refused(ConfigError, "got sav_every", "Did you mean 'save_every'?"):
        build("text", {"text": str(file), "sav_every": 4})
    with refused(ConfigError, "got txt", "Did you mean 'text'?"):
        find("txt")
    with refused(ConfigError, "got 0", "Use steps ≥ 1"):
        build("text", {"text": str(file), **SMALL, "steps": 0})


def test_a_setting_of_the_wrong_kind_is_answered_with_a_sentence(file) -> None:
    with pytest.raises(ConfigError, match="heads"):
        build("text", {"text": str(file), **SMALL, "discrete": True, "heads": 3})


@pytest.mark.spec("B5")
def test_the_text_recipe_makes_what_it_is_asked_for(file) -> None:
    given = {"text": str(file), **SMALL}
    made = build("text", {**given, "steps": 7, "lr": 0.5})
    assert made.training == Training(steps=7, save_every=2, evaluate_every=100)
    assert made.optimiser.rest.lr == 0.5
    assert isinstance(made.tokens, Characters)
    assert str(made.model.native) == "at(d=Trapezoid(8), h=Midpoint(2), e=Midpoint(4), m=Trapezoid(32), z=1 steps of LieTrotter(Euler))"  # noqa: E501  # fmt: skip
    plain = build("text", {**given, "discrete": True}).model
    assert str(plain.native.d) == "Counting(n=8)"
    assert made.about["corpus"]["name"] == "text"
    assert keys(text) == list(TextSettings.__dataclass_fields__)
    assert SHIPPED["text"] is text
    again = build("text", given).model
    for a, b in zip(build("text", given).model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.spec("B5")
def test_byte_pairs_are_a_setting(file) -> None:
    pytest.importorskip("tokenizers")
    made = build("text", {"text": str(file), **SMALL, "pairs": 270})
    assert isinstance(made.tokens, BytePairs)
    assert made.tokens.size == 270


# --- recipes of one's own ---------------------------------------------------------------------------------------------

OWN = """
from continua.recipes import Bundle
from tests.runs import tiny_model, tiny_task
from continua.training import Training, KineticEnergy

def mine(width: int = 8, strength: float = 0.0):
    return Bundle(tiny_model(), tiny_task(), penalties=strength * KineticEnergy(), training=Training(steps=4))
"""


def test_a_function_in_a_file_is_a_recipe(tmp_path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    name = f"{path}:mine"
    assert keys(find(name)) == ["width", "strength"]
    made = build(name, {"strength": 0.1, "steps": 3})
    assert isinstance(made, Bundle)
    assert made.training.steps == 3
    fitted = start(name, {"strength": 0.1, "save_every": 2}, tmp_path / "run")
    assert (len(fitted.history), fitted.ended) == (4, "done")
    assert fitted.history[0]["running"] > 0
    with refused(ConfigError, f"got {tmp_path / 'run'}", "Use a run of continua fit text"):
        tokens_of(Run.open(tmp_path / "run"))
    with refused(ConfigError, "got strenth", "Did you mean 'strength'?"):
        build(name, {"strenth": 1})
    with refused(ConfigError, "got mnie", "Did you mean 'mine'?"):
        find(f"{path}:mnie")
    with refused(ConfigError, "got nowhere.py:mine", "Check the path"):
        find("nowhere.py:mine")


# --- going on ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("T9", "B5")
def test_a_run_is_started_lengthened_and_stays_so(file, tmp_path) -> None:
    run = tmp_path / "run"
    start("text", {"text": str(file), **SMALL, "steps": 2}, run)
    assert tokens_of(Run.open(run)) == Characters.of(tiny_text())
    assert resume(run).ended == "done"
    assert steps_of(run) == [1, 2]
    resume(run, {"steps": 4})
    assert steps_of(run) == [1, 2, 3, 4]
    assert Run.open(run).about["changes"]["steps"] == 4, "the run says what it is now"
    assert len(resume(run).history) == 4
    with refused(RunError, f"got {run}", "--resume"):
        start("text", {"text": str(file), **SMALL, "steps": 2}, run)


def test_a_run_does_not_go_on_with_another_text(file, tmp_path) -> None:
    run = tmp_path / "run"
    start("text", {"text": str(file), **SMALL, "steps": 2}, run)
    file.write_text(tiny_text() + "cat", encoding="utf-8")
    with refused(RunError, f"got {run}", "Give it the text it was started with"):
        resume(run, {"text": str(file)})
    file.write_text(tiny_text() + "?", encoding="utf-8")
    with pytest.raises(RunError, match="another alphabet"):
        resume(run, {"text": str(file)})
    assert resume(run).ended == "done", "it has a copy of its own"


def test_a_run_from_python_is_gone_on_with_from_python(tmp_path) -> None:
    Run.create(tmp_path, {"training": {}})
    with refused(ConfigError, f"got {tmp_path}", "Go on from Python"):
        resume(tmp_path)


def test_changes_do_not_reach_a_run_that_is_going_on(file, tmp_path) -> None:
    run = tmp_path / "run"
    start("text", {"text": str(file), **SMALL, "steps": 2}, run)
    held = Run.open(run)
    held.lock()
    before = json.loads((run / "run.json").read_text())
    with refused(RunError, "got process", "Wait for it"):
        resume(run, {"steps": 9})
    assert json.loads((run / "run.json").read_text()) == before
    held.release()


@pytest.mark.spec("B1")
@pytest.mark.parametrize(("heads", "depth"), [(4, 4), (3, 5), (2, 2), (1, 1)])
def test_elastic_text_serves_sizes_below_half_unless_told_not_to(heads: int, depth: int, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(tiny_text())
    own = {"d": 12 * heads, "heads": heads, "depth": depth, "context": 8, "text": str(tmp_path / "text.txt")}
    made = build("elastic", {**own, "below": 0.5, "steps": 20})
    assert made.training.total == 30
    assert made.training.afterwards is not None
    made.training.afterwards.over(made.model, 20)  # every size reads a correction
    plain = build("elastic", {**own, "below": 0})
    assert plain.training.afterwards is None
    assert not any("correction" in name for name, _ in plain.model.named_parameters())
