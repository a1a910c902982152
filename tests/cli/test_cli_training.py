"""fit, resume, inspect and generate as a user types them."""

import json
import re
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from continua.cli import app
from continua.errors import CheckpointError, ConfigError, RunError
from continua.training import compiled
from tests.forked import commanded
from tests.runs import states, steps_of, tiny_text

RUN = CliRunner()
SMALL = {"d": 8, "heads": 2, "depth": 2, "context": 8, "batch": 4, "save_every": 2, "evaluate_every": 2}


def typed(**changes: object) -> list[str]:
    return [word for key, value in {**SMALL, **changes}.items() for word in ("--set", f"{key}={value}")]


def said(*words: object) -> Result:
    return RUN.invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run."""
    place = tmp_path_factory.mktemp("cli")
    (place / "text.txt").write_text(tiny_text(), encoding="utf-8")
    done = said("fit", "text", "--text", place / "text.txt", "--folder", place / "run", *typed(steps=4))
    assert done.exit_code == 0, done.output
    assert re.search(r"done: .*run +held-out: loss \d\.\d{4}, perplexity .*bits_per_byte", done.output)
    assert "Look at it with: continua inspect" in done.output
    assert "step 4/4" in done.stderr
    return place / "run"


@pytest.mark.spec("T9", "B5")
def test_fit_leaves_a_run_that_resume_goes_on_with(run) -> None:
    assert steps_of(run) == [1, 2, 3, 4]
    about = json.loads((run / "run.json").read_text())
    assert (about["recipe"], about["changes"]["d"], about["training"]["steps"]) == ("text", 8, 4)
    assert about["corpus"]["name"] == "text"
    done = said("fit", "--resume", run, "--set", "steps=6")
    assert done.exit_code == 0, done.output
    assert steps_of(run) == [1, 2, 3, 4, 5, 6]


@pytest.mark.spec("B9", "T9")
def test_a_fit_is_compiled_if_asked_and_goes_on_compiled(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    (tmp_path / "text.txt").write_text(tiny_text(), encoding="utf-8")
    words = ("fit", "text", "--compile", "--text", tmp_path / "text.txt", "--folder", tmp_path / "run")
    done = said(*words, *typed(steps=2))
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "run" / "run.json").read_text())["training"]["compile"] is True
    done = said("fit", "--resume", tmp_path / "run", "--set", "steps=3")
    assert done.exit_code == 0, done.output
    assert steps_of(tmp_path / "run") == [1, 2, 3]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["training"]["compile"] is True


@pytest.mark.spec("T9", "M10")
def test_inspect_tells_axes_sizes_history_and_drift(run) -> None:
    done = said("inspect", run)
    assert done.exit_code == 0, done.output
    for words in ("parameters", "8 nodes", "2 steps of LieTrotter", "recipe text", "history", "held-out", "drift over"):
        assert words in done.output
    for size in ("native", "d=4", "h=1", "z=1", "d=4, h=1, z=1", "z=4"):
        assert re.search(rf"│ {size} +│ \d\.\d{{4}} +│ [+-]\d+\.\d %", done.output), size


@pytest.mark.spec("B5", "M10")
@pytest.mark.parametrize(("size", "which"), [("", "best"), ("d=4,z=3", "last"), ("h=1", "best")])
def test_generate_writes_at_any_size(run, size, which) -> None:
    words = ("generate", run, "--prompt", "the cat ", "--tokens", 14, "--at", size, "--which", which)
    done = said(*words)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("the cat ")
    assert len(done.stdout) == 8 + 14 + 1, "and every character as it is, also behind the end of the positions"
    assert said(*words).stdout == done.stdout, "the same seed writes the same text"


@pytest.mark.spec("B12")
def test_a_draft_leaves_the_text_as_it_is(run) -> None:
    words = ("generate", run, "--prompt", "the cat ", "--tokens", 14, "--temperature", 0)
    wanted = said(*words).stdout
    for draft in ("d=4,z=1", "auto"):
        done = said(*words, "--draft", draft, "--ahead", 2)
        assert done.exit_code == 0, done.output
        assert done.stdout == wanted
    refused = said(*words, "--draft", "d=4", "--ahead", 0).exception
    assert isinstance(refused, ConfigError)
    assert "--ahead counts from one, got 0" in str(refused)


def test_generate_changes_nothing_of_the_text(run, monkeypatch) -> None:
    """No wrapping, no markup, no emoji."""
    from continua.tasks import Characters

    monkeypatch.setattr(Characters, "decode", lambda self, ids: "x" * 300 + " [bold] :smile:")
    assert (
        said("generate", run, "--prompt", "the", "--tokens", 2, "--no-stream").stdout == "x" * 300 + " [bold] :smile:\n"
    )


@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        (("fit",), ConfigError, r"fit needs a recipe, got none\. Shipped: .*text.*--resume RUN"),
        (("fit", "txet"), ConfigError, r"no such recipe, got txet\. Did you mean 'text'\?"),
        (("fit", "text", "--set", "stesp=3"), ConfigError, r"got stesp\. Did you mean 'steps'\?"),
        (("fit", "text", "--set", "steps"), ConfigError, r"got steps\. For example --set steps=500"),
        (("fit", "text", "--text", "none.txt"), ConfigError, r"cannot be read as text.*Give a UTF-8 file"),
        (("fit", "--resume", "nowhere"), RunError, r"none in nowhere\. Give a folder that continua fit wrote"),
        (("generate", "nowhere"), CheckpointError, r"got nowhere, where no folder is\. Give a run"),
        (("generate", "RUN", "--prompt", "%"), ConfigError, r"does not know this character, got '%'"),
        (("generate", "RUN", "--prompt", ""), ConfigError, r"a prompt needs at least one token, got ''"),
        (("generate", "RUN", "--which", "first"), ConfigError, r"--which is best or last, got first"),
        (("generate", "RUN", "--at", "d=x"), ConfigError, r"--at takes sizes"),
        (("inspect", "nowhere"), CheckpointError, r"got nowhere, where no folder is\. Give a run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_are_answered_with_a_sentence(run, words, kind, sentence, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = said(*(run if word == "RUN" else word for word in words))
    assert done.exit_code == 1
    assert isinstance(done.exception, kind)
    assert re.search(sentence, str(done.exception)), str(done.exception)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.spec("T9")
def test_ctrl_c_and_resume_in_a_process_of_its_own(tmp_path) -> None:
    (tmp_path / "text.txt").write_text(tiny_text(), encoding="utf-8")
    words = ["fit", "text", "--text", "text.txt", *typed(steps=100_000, evaluate_every=100_000)]
    job = commanded(*words, folder=tmp_path)
    folder = tmp_path / "runs" / "text"
    try:
        job.wait_until(lambda: any(states(folder)))
        second = RUN.invoke(app, ["fit", "--resume", str(folder)])
        assert f"another process is training this run, got process {job.pid}" in str(second.exception)
        job.send(signal.SIGINT)
        code = job.ended(60)
    finally:
        job.kill()
    assert code == 130, job.err.read_text()
    out = job.out.read_text()
    assert out.startswith("interrupted: runs/text")
    assert "Go on with: continua fit --resume runs/text" in out
    reached = steps_of(folder)
    assert reached == list(range(1, reached[-1] + 1))
    assert json.loads((next(states(folder)) / "state.json").read_text())["step"] == reached[-1]
    done = said("fit", "--resume", folder, "--set", f"steps={reached[-1] + 2}")
    assert done.exit_code == 0, done.output
    assert steps_of(folder) == list(range(1, reached[-1] + 3))
