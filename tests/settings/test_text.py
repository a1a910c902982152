"""Settings as they are typed, listed and read from files."""

from pathlib import Path
from typing import Any

import pytest

from continua.errors import ConfigError, ContinuaError
from continua.flow import RK4, Checkpoint, Fixed, Strang
from continua.recipes import SHIPPED, TextSettings, build
from continua.recipes.listing import MINUTES, from_file, recipes, settings_listed
from continua.recipes.recipe import valued_changes
from continua.settings.text import Typed, about, built, pairs, read
from continua.training import Training
from tests.refusals import refused


@pytest.mark.finding("S4")
@pytest.mark.parametrize(
    ("text", "value"),
    [("false", False), ("False", False), ("no", False), ("off", False), ("0", False), ("true", True), ("on", True)],
)
def test_text_of_a_flag_is_read_not_obeyed(text: str, value: bool) -> None:
    assert valued_changes("text", pairs([f"discrete={text}"])) == {"discrete": value}


@pytest.mark.finding("S4")
def test_a_typed_false_makes_the_continuous_model(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be, that is the question\n" * 40)
    small = pairs([f"text={file}", "d=8", "heads=2", "depth=2", "context=8", "batch=2", "discrete=false"])
    assert not build("text", small).model.native.is_discrete
    assert build("text", {**small, "discrete": Typed("true")}).model.native.is_discrete


TYPED = [
    (Training, "steps", "500", 500),
    (Training, "steps", "1e3", 1000),
    (Training, "steps", "1_000", 1000),
    (Training, "clip", "1e-3", 1e-3),
    (Training, "clip", "None", None),
    (Training, "clip", "none", None),
    (Training, "patience", "null", None),
    (Training, "precision", "bfloat16", "bfloat16"),
    (Training, "precision", "'float64'", "float64"),
    (Training, "adjoint", "Checkpoint(every=2)", Checkpoint(2)),
    (Training, "adjoint", "Checkpoint(2)", Checkpoint(2)),
    (TextSettings, "text", "a=b.txt", "a=b.txt"),
    (TextSettings, "text", "None", None),
    (Fixed, "solver", "Strang(RK4())", Strang(RK4())),
    (Fixed, "solver", "RK4", RK4()),
]


@pytest.mark.parametrize(("thing", "name", "text", "value"), TYPED)
def test_text_is_read_by_the_annotation(thing: Any, name: str, text: str, value: Any) -> None:
    found = read(thing, name, text)
    assert found == value
    assert type(found) is type(value)


MISTYPED = [
    "steps=abc", "steps=1.5", "steps=0", "steps=-3", "steps=", "steps=nan", "steps=1e400", "steps=true",
    "lr=fast", "lr=-1", "lr=nan", "lr=inf", "clip=0", "clip=-1", "patience=0", "discrete=maybe", "discrete=2",
    "discrete=", "d=0", "d=None", "d=10**9", "heads=[4]", "adjoint=Rk4", "adjoint=RK4",
    "adjoint=Checkpoint(evry=2)", "adjoint=Checkpoint(**x)", "adjoint=__import__('os')",
    "adjoint=Checkpoint(every=open('x'))", "adjoint=(", "at=d=64", "elastic=5", "seed=-1",
    "seed=18446744073709551616", "weights=x", "pairs=-5", "d=99999999999999", "compile=perhaps",
    "precision=float31",
]  # fmt: skip


@pytest.mark.finding("D1")
@pytest.mark.parametrize("typed", MISTYPED)
def test_what_cannot_be_read_is_answered_with_a_sentence(typed: str, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be, that is the question\n" * 40)
    small = {"text": str(file), "d": 8, "heads": 2, "depth": 2, "context": 8, "batch": 2}
    with pytest.raises(ContinuaError) as caught:
        build("text", {**small, **pairs([typed])})
    assert str(caught.value).endswith((".", "?"))


def test_a_setting_without_an_equals_sign_is_refused() -> None:
    for typed in ("steps", "=5"):
        with refused(ConfigError, f"got {typed}", "--set steps=500"):
            pairs([typed])


def test_objects_are_described_and_nothing_is_executed(tmp_path: Path) -> None:
    assert built("Fixed(3, solver=Strang())") == Fixed(3, Strang())
    with pytest.raises(ConfigError, match="unknown kind"):
        built("open(1)")


def test_every_setting_of_every_recipe_is_listed_with_what_it_does() -> None:
    for name in SHIPPED:
        own, training = settings_listed(name)
        assert {"steps", "clip"} <= {setting.name for setting in training}
        for setting in (*own, *training):
            assert setting.takes, (name, setting.name)
            assert setting.default, (name, setting.name)
            assert setting.about, (name, setting.name)
    assert {name for name, _, _ in recipes()} == set(SHIPPED) >= set(MINUTES)


def test_the_sentence_that_names_a_setting() -> None:
    assert about("b", "``a`` is one. ``b`` and ``c``\n    are two; more. ``bb`` is three.") == "b and c are two; more"


# --- files -----------------------------------------------------------------------------------------------------------


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    toml = tmp_path / "a.toml"
    toml.write_text(
        'recipe = "text"\nd = 64\nlr = 1e-3\ndiscrete = false\n[training]\nsteps = 7\nadjoint = "Recompute"\n'
    )
    yaml = tmp_path / "a.yaml"
    yaml.write_text("recipe: text\nd: 64\nlr: 1e-3\ndiscrete: false\ntraining:\n  steps: 7\n  adjoint: Recompute\n")
    pytest.importorskip("yaml")
    found = [from_file(path) for path in (toml, yaml)]
    assert [values.pop("recipe") for values in found] == ["text", "text"]
    first, second = (valued_changes("text", values) for values in found)
    assert first == second
    assert first["lr"] == 1e-3
    assert first["discrete"] is False


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.toml", "d = "), ("a.yaml", "a: [1"), ("a.yaml", "- 1\n- 2"), ("a.json", "{}"), ("a.toml", "training = 3"),
        ("a.yaml", "!!python/object/apply:os.system ['true']"),
    ],
)  # fmt: skip
def test_files_that_hold_no_settings_are_refused(tmp_path: Path, name: str, content: str) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError):
        from_file(path)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    for name in ("a.toml", "b.toml"):
        with refused(ConfigError, "got", "Check the path"):
            from_file(tmp_path / name)
