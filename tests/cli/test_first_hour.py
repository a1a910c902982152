"""What a new user does first: devices, threads, text as it is written, sentences instead of tracebacks."""

import importlib

import pytest
import torch

from continua import devices
from continua.cli import main
from continua.cli.failures import sentence
from continua.errors import ConfigError
from tests.commands import typed
from tests.refusals import refused
from tests.runs import tiny_text


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of text, a few steps long."""
    folder = tmp_path_factory.mktemp("hour")
    (folder / "words.txt").write_text(tiny_text())
    small = ["d=8", "heads=2", "depth=2", "context=8", "batch=4", "steps=4", "evaluate_every=2"]
    words = [word for change in small for word in ("--set", change)]
    done = typed("fit", "text", "--text", str(folder / "words.txt"), "--folder", str(folder / "run"), *words)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.finding("N6")
def test_a_device_that_is_absent_is_refused_in_one_sentence(run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for verb in ("generate", "pareto", "inspect"):
        done = typed(verb, str(run), "--device", "cuda")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "no such device, got cuda" in done.stderr
    assert "Did you mean 'cuda'?" in typed("fit", "text", "--device", "cida").stderr


@pytest.mark.finding("N6")
def test_a_device_is_found_by_its_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.find_device() == torch.device("cuda")
    assert devices.find_device("cuda:1") == torch.device("cuda", 1)
    assert devices.find_device("cpu") == torch.device("cpu")
    with refused(ConfigError, "got cuda:2", "Use cpu or cuda"):
        devices.find_device("cuda:2")
    with refused(ConfigError, "got cuda:x", "Did you mean 'cuda'"):
        devices.find_device("cuda:x")
    with refused(ConfigError, "got cpu:1", "Did you mean 'cpu'"):
        devices.find_device("cpu:1")


@pytest.mark.finding("N6")
def test_a_fit_in_python_takes_a_device_too(monkeypatch):
    import continua as ct
    from tests.runs import tiny_model, tiny_task

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(ConfigError, "no such device, got cuda", "Use cpu, or auto"):
        ct.fit(tiny_model(), tiny_task(), steps=1, device="cuda")
    assert len(ct.fit(tiny_model(), tiny_task(), steps=1, device="cpu").history) == 1


@pytest.mark.finding("N6")
@pytest.mark.spec("B17")
def test_threads_are_few_unless_they_are_asked_for(run, monkeypatch):
    before = torch.get_num_threads()
    try:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(devices, "cores", lambda: 64)
        assert devices.use_threads() == torch.get_num_threads() == 2
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        assert devices.default_threads() == 3
        assert typed("generate", str(run), "--tokens", "1", "--threads", "1").returncode == 0
        assert torch.get_num_threads() == 1
        assert "at least one thread, got 0" in typed("generate", str(run), "--threads", "0").stderr
    finally:
        torch.set_num_threads(before)


@pytest.mark.finding("N6")
def test_text_is_printed_as_it_is_written(run, monkeypatch):
    pieces = []
    monkeypatch.setattr("typer.echo", lambda text="", **_: pieces.append(text))
    assert typed("generate", str(run), "--prompt", "the ", "--tokens", "20").returncode == 0
    assert pieces[:4] == ["t", "h", "e", " "]
    assert len(pieces) == 25  # the prompt, twenty characters, the end of the line
    whole = "".join(pieces)
    del pieces[:]
    assert typed("generate", str(run), "--prompt", "the ", "--tokens", "20", "--no-stream").returncode == 0
    assert pieces[0] == whole
    assert len(pieces) == 2


def test_bytes_of_one_character_wait_for_one_another():
    pytest.importorskip("tokenizers")
    from continua.cli.generate import texts
    from continua.tasks import BytePairs

    tokens = BytePairs.of("plain words", 256)
    ids = tokens.encode("aß→𝄞b").tolist()
    assert len(ids) == 11
    assert list(texts(tokens, ids)) == ["a", "ß", "→", "𝄞", "b"]
    assert "".join(texts(tokens, ids[:-2])) == tokens.decode(torch.tensor(ids[:-2]))


@pytest.mark.finding("N6")
def test_sampling_is_chosen_on_the_command_line(run):
    def text(*words):
        done = typed("generate", str(run), "--prompt", "the ", "--tokens", "30", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    greedy = text("--temperature", "0")
    assert text("--top-k", "1") == greedy
    assert text("--top-p", "1e-6") == greedy
    assert text("--temperature", "5") != greedy
    assert text("--seed", "1") == text("--seed", "1")
    two = text("--samples", "2", "--temperature", "2")
    assert two.count("--- sample") == 2
    first, second = two.split("--- sample 2 of 2 ---\n")
    assert first.split("\n", 1)[1].strip() != second.strip()
    assert second == text("--temperature", "2", "--seed", "1")


@pytest.mark.finding("N6")
@pytest.mark.parametrize(
    ("words", "got"),
    [
        (["--temperature", "-1"], "got -1.0"),
        (["--temperature", "nan"], "got nan"),
        (["--top-k", "0"], "got 0"),
        (["--top-p", "1.5"], "got 1.5"),
        (["--samples", "0"], "got 0"),
        (["--tokens", "0"], "got 0"),
        (["--seed", "-1"], "got -1"),
        (["--seed", str(2**63)], f"got {2**63}"),
        (["--temperature", "0", "--top-k", "5"], "--temperature 0 with"),
    ],
)
def test_options_of_sampling_are_checked_before_a_run_is_read(tmp_path, words, got):
    done = typed("generate", str(tmp_path), *words)
    assert done.returncode == 2
    assert got in done.stderr
    assert done.stderr.count("\n") == 1


def test_models_and_views_yield_tokens_as_they_are_made():
    from continua.models import zoo

    model = zoo.gpt2(vocab=16, d=8, heads=2, depth=2, context=8)
    prompt = torch.zeros(2, 3, dtype=torch.long)
    for one in (model, model.at(z=1)):
        stream = one.stream(prompt, tokens=4)
        first = next(stream)
        assert first.shape == (2,)
        made = torch.stack([first, *stream], 1)
        assert torch.equal(made, one.generate(prompt, tokens=4)[:, 3:])


# --- what ends a command ----------------------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch):
    """A command that ends with the error it is given."""

    def set_up(error):
        def run(*_):
            raise error

        monkeypatch.setattr(importlib.import_module("continua.cli.check"), "run", run)

    return set_up


@pytest.mark.finding("N6")
def test_any_exception_becomes_one_sentence(broken):
    broken(KeyError("d"))
    done = typed("check")
    assert done.returncode == 1
    assert done.stderr == "continua: this ended with KeyError: 'd'. Add --debug to see where, and please report it.\n"


@pytest.mark.finding("N6")
@pytest.mark.parametrize("words", [["--debug", "check"], ["check", "--debug"]])
def test_debug_shows_where(broken, words):
    broken(KeyError("d"))
    done = typed(*words)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "in run" in done.stderr
    broken(ConfigError("no", remedy="Yes."))
    done = typed(*words)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "continua: no. Yes."


def test_sentences_of_what_the_system_refuses():
    assert "No space left" in sentence(OSError(28, "No space left on device", "runs/x"))
    assert "(runs/x)" in sentence(OSError(28, "No space left on device", "runs/x"))
    assert "does not fit into memory" in sentence(MemoryError())
    assert "does not fit into memory" in sentence(RuntimeError("[enforce fail] can't allocate memory: you tried"))
    assert sentence(RuntimeError("first\nsecond")).startswith("this ended with RuntimeError: first. ")
    assert sentence(OSError("odd")).startswith("this ended with OSError: odd. ")
    assert callable(main)


@pytest.mark.finding("N3")
def test_attention_of_a_run_is_read_by_its_own_tokeniser(run, tmp_path):
    done = typed("inspect", str(run), "--attention", "the cat", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "7 tokens: t h e · c a t" in done.stdout
    assert (tmp_path / "attention.png").is_file()
    done = typed("inspect", str(run), "--attention", "the cat the cat", "--out", str(tmp_path))
    assert "cut after 8 tokens" in done.stdout
    assert done.returncode == 0, done.stderr
    done = typed("inspect", str(run), "--attention", " ", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "--attention needs a text" in done.stderr
    assert "does not know this character, got 'Ж'" in typed("inspect", str(run), "--attention", "Ж").stderr
