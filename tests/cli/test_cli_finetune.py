"""Fine-tuning as a user types it: a table makes a classifier, a text a language model, and both go on being used."""

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

import continua as ct
from continua.convert import with_classes
from continua.data import docstrings
from continua.models import load_lora, lora_of
from tests.cli.test_any_size import tokeniser
from tests.commands import typed
from tests.packages import folder_of
from tools.packages import MINILM

pytestmark = pytest.mark.spec("B14")

SUBJECTS = ("the cat", "a cat", "the dog", "a dog")
PLACES = ("sat", "sat on the mat", "sat on a mat", "on the mat", "on a mat", "on the cat")
ROWS = [f"{subject} {place},{'cat' if 'cat' in subject else 'dog'}" for subject in SUBJECTS for place in PLACES]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("encoder")
    ct.to_hf(ct.zoo.bert(vocab=10, d=16, heads=2, depth=1, context=16), folder)
    tokeniser(folder)
    return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("decoder")
    ct.to_hf(ct.zoo.gpt2(vocab=10, d=16, heads=2, depth=1, context=16), folder, eos=2)
    tokeniser(folder, begins="$A")
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "pets.csv"
    file.write_text("\n".join(["text,label", *ROWS]), encoding="utf-8")
    return file


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "pets.txt"
    file.write_text("the cat sat on the mat a dog sat on a mat " * 80, encoding="utf-8")
    return file


def lines(tmp_path: Path) -> Path:
    file = tmp_path / "lines.txt"
    file.write_text("the cat on a mat\na dog sat\n", encoding="utf-8")
    return file


def test_a_table_makes_a_classifier_that_classify_and_transformers_read(encoder, table, tmp_path) -> None:
    run = tmp_path / "run"
    words = ["finetune", str(encoder), "--data", str(table), "--lora", "2", "--folder", str(run), "--lr", "0.02"]
    done = typed(*words, "--steps", "20")
    assert done.returncode == 0, done.stderr
    assert re.search(r"held-out: loss \d\.\d+, accuracy \d\.\d+ \(0\.5000 by the commonest", done.stdout), done.stdout
    assert "step 20/20" in done.stderr  # progress
    model = ct.from_hf(run / "model")
    assert model.readout.labels == ("cat", "dog")
    config = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "cat", "1": "dog"}
    said = [typed("classify", str(place), "--texts", str(lines(tmp_path))) for place in (run, run / "model")]
    assert [one.returncode for one in said] == [0, 0], said[0].stderr + said[1].stderr
    assert said[0].stdout == said[1].stdout
    best = ct.load(run)
    base = with_classes(ct.from_hf(encoder), ("cat", "dog"))
    again = load_lora(base, run / "lora.safetensors")
    ids = torch.tensor([[1, 3, 4, 5, 2]])
    assert lora_of(best) == lora_of(again)
    assert torch.equal(again(ids), best(ids))
    assert (model(ids) - best(ids)).abs().max() <= 1e-6


def test_a_text_makes_a_language_model_that_generate_reads(decoder, text, tmp_path) -> None:
    run = tmp_path / "run"
    out = tmp_path / "out"
    words = ["finetune", str(decoder), "--data", str(text), "--folder", str(run), "--out", str(out), "--context", "8"]
    done = typed(*words, "--steps", "30", "--lr", "0.01")
    assert done.returncode == 0, done.stderr
    measured = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [line["validation_loss"] for line in measured if "validation_loss" in line]
    assert losses[-1] < 0.6 * losses[0]
    asked = ["--prompt", "the cat", "--tokens", "3", "--temperature", "0"]
    said = [typed("generate", str(place), *asked) for place in (run, out)]
    assert [one.returncode for one in said] == [0, 0], said[0].stderr + said[1].stderr
    assert said[1].stdout.split() == ["the", "cat", "sat", "on", "the"]
    assert said[0].stdout == said[1].stdout


def test_a_table_makes_a_classifier_of_a_decoder(decoder, table, tmp_path) -> None:
    out = tmp_path / "out"
    words = ["finetune", str(decoder), "--data", str(table), "--folder", str(tmp_path / "run"), "--out", str(out)]
    done = typed(*words, "--steps", "1")
    assert done.returncode == 0, done.stderr
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["GPT2ForSequenceClassification"]
    said = typed("classify", str(out), "--texts", str(lines(tmp_path)))
    assert said.returncode == 0, said.stderr
    assert {line.split()[0] for line in said.stdout.splitlines()} <= {"cat", "dog"}


def test_the_same_command_goes_on_and_another_one_is_refused(encoder, table, tmp_path) -> None:
    run = tmp_path / "run"
    words = ["finetune", str(encoder), "--data", str(table), "--folder", str(run), "--steps", "6", "--lora", "1"]
    assert typed(*words).returncode == 0
    wanted = ct.load(run, "last").state_dict()
    newest = sorted((run / "checkpoints").iterdir())[-1]
    for name in ("model.safetensors", "state.json"):
        (newest / name).unlink()  # as if it had been killed before the end
    with pytest.warns(UserWarning, match="damaged"):
        assert typed(*words).returncode == 0
    found = ct.load(run, "last").state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    other = typed(*words, "--lr", "0.1")
    assert other.returncode == 2
    assert "other lr" in other.stderr
    assert "--folder PATH" in other.stderr


@pytest.mark.parametrize(
    ("model", "data", "more", "said"),
    [
        ("encoder", "pets.txt", [], "Give a decoder with its head of words"),
        ("encoder", "pets.json", [], "Give a .csv of texts and labels"),
        ("encoder", "none.csv", [], "Give --data"),
        ("encoder", "pets.csv", ["--text", "body"], "Name one of these"),
        ("encoder", "pets.csv", ["--lora", "0"], "Give --lora 1 or more"),
        ("encoder", "pets.csv", ["--steps", "0"], "Give --steps 1 or more"),
        ("encoder", "pets.csv", ["--context", "1"], "Give --context 2 or more"),
        ("encoder", "pets.csv", ["--lr", "-1"], "Leave it out for the usual one"),
        ("decoder", "pets.txt", ["--label", "x"], "Leave them out"),
        ("decoder", "pets.txt", ["--context", "15", "--out", "taken"], "Choose another name"),
        ("nowhere", "pets.csv", [], "nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    model, data, more, said, request, table, text, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets.json").write_text("{}", encoding="utf-8")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("", encoding="utf-8")
    folder = "nowhere" if model == "nowhere" else str(request.getfixturevalue(model))
    refused = typed("finetune", folder, "--data", data, *more)
    assert refused.returncode == 2, refused.stderr
    assert said in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr
    assert not (tmp_path / "runs").exists()


def test_help_names_everything() -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", typed("finetune", "--help").stdout)
    for option in ("--data", "--lora", "--out", "--text", "--label", "--folder", "--steps", "--batch", "--lr"):
        assert option in shown


@pytest.mark.slow(reason="a real encoder of 22 million weights learns")
def test_a_real_encoder_learns_which_module_a_docstring_is_of(tmp_path) -> None:
    folder = folder_of(MINILM)
    known = docstrings()
    every = [(one.place.split(".")[0], one.summary) for one in (*known.train, *known.validation)]
    modules = [name for name, _ in Counter(name for name, _ in every).most_common(4)]
    file = tmp_path / "docstrings.csv"
    with file.open("w", newline="", encoding="utf-8") as opened:
        rows = csv.writer(opened)
        rows.writerow(["summary", "module"])
        rows.writerows([text, name] for name, text in every if name in modules and len(text) > 20)
    words = ["finetune", str(folder), "--data", str(file), "--text", "summary", "--label", "module", "--lora", "8"]
    done = typed(*words, "--steps", "32", "--folder", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    found = re.search(r"accuracy (\d\.\d+) \((\d\.\d+) by the commonest", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) > float(found[2]) + 0.3
    assert ct.from_hf(tmp_path / "run" / "model").readout.labels == tuple(sorted(modules))
