"""continua chat: messages from a pipe, answers as a language model writes them behind the template (B14)."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import continua as ct
from continua.cli.chat import Chat
from continua.cli.generate import Author, Writing
from continua.convert.chat import ChatTemplate
from continua.convert.tokenizer import read_tokeniser
from tests.commands import typed
from tests.convert.test_hub import fill
from tests.exact import stirred
from tests.lazy import Lazily

tokenizers = Lazily("tokenizers")
pytestmark = pytest.mark.spec("B14")

MARKS = ["[B]", "[E]", "[user]", "[assistant]", "[system]"]
WORDS = [*MARKS, *(f"w{i}" for i in range(15))]
TEMPLATE = "{{ bos_token }}{% for m in messages %} [{{ m.role }}] {{ m.content }}{% endfor %} [assistant]"
CONTEXT = 48


def folder_of(place: Path, context: int = CONTEXT) -> Path:
    """A language model with a tokeniser of twenty words, a template, and the numbers of its ends."""
    torch.manual_seed(0)
    model = stirred(ct.zoo.gpt2(vocab=20, d=16, heads=2, depth=2, context=context).eval(), torch.float32)
    ct.to_hf(model, place, bos=0, eos=19)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(MARKS)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[B] $A", special_tokens=[("[B]", 0)])
    made.save(str(place / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "bos_token": "[B]", "eos_token": {"content": "[E]"}}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("chat"))


def spoken(*words: str, lines: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return typed("chat", *words)


def by_hand(folder: Path, messages: list[tuple[str, str]], tokens: int) -> str:
    """The likeliest words behind all messages, until one of the ends."""
    model = ct.from_hf(folder)
    text = " ".join(f"[{role}] {content}" for role, content in messages)
    ids = torch.tensor([[WORDS.index(word) for word in f"[B] {text} [assistant]".split()]])
    new = ct.generate(model, ids, tokens=tokens, stop=(19, 1))[0, ids.shape[1] :].tolist()
    stops = [place for place, token in enumerate(new) if token in (19, 1)]
    kept = new[: stops[0]] if stops else new
    return " ".join(WORDS[token] for token in kept if token >= len(MARKS))


def test_messages_from_a_pipe_are_answered_in_turn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (str(folder), "--system", "w1 w2", "--tokens", "6", "--temperature", "0")
    done = spoken(*words, lines="w3 w4\n\n\udcff\n  w5\n", monkeypatch=monkeypatch)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "continua: a message is text in UTF-8; this line is left out.\n"
    first = by_hand(folder, [("system", "w1 w2"), ("user", "w3 w4")], 6)
    second = by_hand(folder, [("system", "w1 w2"), ("user", "w3 w4"), ("assistant", first), ("user", "w5")], 6)
    assert done.stdout.split("\n") == [first, second, ""]
    assert first
    drawn = [spoken(*words[:-1], "2", "--seed", s, lines="w3\n", monkeypatch=monkeypatch).stdout for s in "112"]
    assert drawn[0] == drawn[1] != drawn[2]
    assert spoken(*words, lines="", monkeypatch=monkeypatch).stdout == ""


@pytest.mark.slow(reason="starts the interpreter and torch")
def test_a_real_pipe(folder: Path) -> None:
    words = [sys.executable, "-m", "continua.cli", "chat", str(folder), "--tokens", "6", "--temperature", "0"]
    done = subprocess.run(words, input=b"\xff\xfe\nw3 w4\n", capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == [by_hand(folder, [("user", "w3 w4")], 6)]
    assert b"left out" in done.stderr


def test_long_chats_forget_their_beginning(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, context=16)
    view = ct.from_hf(folder).eval().at()
    author = Author(view, read_tokeniser(folder))
    chat = Chat(author, ChatTemplate(TEMPLATE, "[B]"), Writing(4, temperature=0.0))
    chat.messages.append({"role": "system", "content": "w1"})
    for word in ("w3", "w4", "w5", "w6"):
        "".join(chat.ask(word))
    assert chat.messages[0] == {"role": "system", "content": "w1"}
    assert {"role": "user", "content": "w3"} not in chat.messages
    assert chat.messages[-2] == {"role": "user", "content": "w6"}
    before = list(chat.messages)
    with pytest.raises(ct.errors.ShapeError, match="Say it shorter"):
        list(chat.ask("w7 " * 40))
    assert chat.messages == before


def test_an_answer_that_is_ended_is_kept_as_far_as_it_came(folder: Path) -> None:
    author = Author(ct.from_hf(folder).eval().at(), read_tokeniser(folder))
    chat = Chat(author, ChatTemplate(TEMPLATE, "[B]"), Writing(6, temperature=0.0))
    answer = chat.ask("w3 w4")
    piece = next(answer)
    answer.close()
    assert chat.messages == [{"role": "user", "content": "w3 w4"}, {"role": "assistant", "content": piece}]


def test_bad_folders_are_answered_with_a_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    fill(tmp_path / "hub", "org/talks", folder)
    named = spoken("org/talks", "--tokens", "3", "--temperature", "0", lines="w3\n", monkeypatch=monkeypatch)
    assert named.returncode == 0, named.stderr
    bare = ct.to_hf(ct.zoo.gpt2(vocab=8, d=8, heads=2, depth=1, context=8), tmp_path / "bare")
    mute = folder_of(tmp_path / "mute")
    (mute / "tokenizer.json").unlink()
    hostile = folder_of(tmp_path / "hostile")
    (hostile / "chat_template.jinja").write_text("{{ 'a' * 10**10 }}")
    picky = folder_of(tmp_path / "picky")
    (picky / "chat_template.jinja").write_text("{{ raise_exception('not today') }}")
    for place, said in (
        (bare, "a chat needs a template"),
        (mute, "a text needs a tokeniser"),
        (hostile, "512 MB"),
        (picky, "not today"),
        (tmp_path / "none", "none"),
        (Path("org/other"), "hf download org/other"),
    ):
        done = spoken(str(place), lines="w3\n", monkeypatch=monkeypatch)
        assert done.returncode == 2, done.stderr
        assert said in " ".join(done.stderr.split()), done.stderr
        assert "Traceback" not in done.stderr
