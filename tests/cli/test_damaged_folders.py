"""Folders that are no model, or a damaged one, given to every command that reads them: one sentence each (B14)."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import continua as ct
from continua.convert.huggingface import ARCHITECTURES
from continua.errors import CheckpointError
from tests.cli.test_any_size import tokeniser
from tests.commands import typed
from tests.convert.test_transcription import SAYS, as_wav, tiny, tone
from tests.refusals import refused
from tests.slow import slow_but

pytestmark = pytest.mark.spec("B14")

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def configured(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | changes))


def tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    held = load_file(folder / WEIGHTS)
    change(held)
    save_file(held, folder / WEIGHTS, {"format": "pt"})


def with_index(folder: Path, file: str) -> None:
    names = list(load_file(folder / WEIGHTS))
    shutil.move(folder / WEIGHTS, folder / "model-00001-of-00002.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, file)}))


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({}, folder / "pytorch_model.bin")


def lies(folder: Path) -> None:
    """The header says float16 of numbers that take as many bytes as float32."""
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content.replace(b'"dtype":"F32"', b'"dtype":"F16"'))


def emptied(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / "notes.txt").write_text("nothing")


def coded(folder: Path) -> None:
    configured(folder, auto_map={"AutoModel": "modeling.Own"})
    (folder / "modeling.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")


DAMAGES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "no model": (emptied, ("config.json",)),
    "not there": (shutil.rmtree, ("model",)),
    "unknown architecture": (lambda f: configured(f, model_type="mamba"), ("mamba", *sorted(ARCHITECTURES))),
    "code of its own": (coded, ("auto_map", "Nothing from a folder is executed")),
    "no JSON": (lambda f: (f / CONFIG).write_text("{"), ("config.json", "JSON")),
    "a list": (lambda f: (f / CONFIG).write_text("[]"), ("config.json",)),
    "a tensor missing": (lambda f: tensors(f, lambda held: held.pop(sorted(held)[3])), ("lacks tensors", "no ")),
    "a tensor more": (lambda f: tensors(f, lambda held: held.update(more=torch.zeros(2))), ("more", "without a place")),
    "cut short": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-9]), ("model.safetensors",)),
    "empty weights": (lambda f: (f / WEIGHTS).write_bytes(b""), ("model.safetensors",)),
    "a pickle": (pickled, ("pytorch_model.bin", "weights_only=True")),
    "a shard elsewhere": (lambda f: with_index(f, "../model.safetensors"), ("'../model.safetensors'",)),
    "a shard missing": (lambda f: with_index(f, "model-00002-of-00002.safetensors"), ("model-00002-of-00002",)),
    "another dtype": (lies, ("model.safetensors",)),
    "whole numbers": (lambda f: tensors(f, lambda h: h.update({k: t.char() for k, t in h.items()})), ("torch.int8",)),
    "other sizes": (lambda f: configured(f, vocab_size=9), ("needs shape",)),
    "no tokeniser": (lambda f: (f / "tokenizer.json").unlink(), ("a text needs a tokeniser",)),
    "a damaged tokeniser": (lambda f: (f / "tokenizer.json").write_text("{"), ("tokenizer.json",)),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder, a classifier and a Whisper, each with its tokeniser, and what the commands read beside them."""
    place = tmp_path_factory.mktemp("sound")
    torch.manual_seed(0)
    decoder = ct.to_hf(ct.zoo.gpt2(vocab=10, d=8, heads=2, depth=1, context=16), place / "decoder", eos=2)
    (decoder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    classes = ct.to_hf(ct.zoo.bert(vocab=10, d=8, heads=2, depth=1, context=16, labels=2), place / "classes")
    whisper = ct.to_hf(tiny(), place / "whisper")
    (whisper / "generation_config.json").write_text(json.dumps(SAYS))
    for folder in (decoder, classes, whisper):
        tokeniser(folder)
    (place / "lines.txt").write_text("the cat sat\na dog\n" * 40)
    as_wav(place / "sound.wav", tone(4000))
    return place


COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "generate": ("decoder", ("--prompt", "the cat", "--tokens", "2")),
    "chat": ("decoder", ()),
    "embed": ("classes", ("--texts", "lines.txt", "--out", "out.npz")),
    "classify": ("classes", ("--texts", "lines.txt")),
    "transcribe": ("whisper", ("sound.wav",)),
    "finetune": ("decoder", ("--data", "lines.txt", "--steps", "1")),
}


@pytest.mark.parametrize(
    "command", slow_but(("generate", "classify"), COMMANDS, "half a second each, and the same door for all folders")
)
def test_every_damage_is_one_sentence(
    command: str, places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, more = COMMANDS[command]
    monkeypatch.chdir(places)
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\n"))
    for name, (damage, said) in DAMAGES.items():
        folder = tmp_path / name.replace(" ", "-") / "model"
        shutil.copytree(places / kind, folder)
        damage(folder)
        done = typed(command, str(folder), *more)
        told = done.stderr.strip()
        assert done.returncode == 2, (name, done.stderr, done.stdout)
        assert len(told.splitlines()) == 1, (name, told)
        assert all(word in told for word in said), (name, told)
        assert not (folder / "ran").exists()


@pytest.mark.parametrize("kind", ["decoder", "classes"])
def test_a_head_that_is_named_is_there(kind: str, places: Path, tmp_path: Path) -> None:
    """Without it the file would be read as a model of words, or of states."""
    folder = tmp_path / "model"
    shutil.copytree(places / kind, folder)
    if kind == "classes":
        tensors(folder, lambda held: [held.pop(name) for name in list(held) if name.startswith("classifier")])
    else:
        configured(folder, architectures=["GPT2ForSequenceClassification"])
    with refused(CheckpointError, "ForSequenceClassification, got none of its tensors", "Copy the whole file"):
        ct.from_hf(folder)
