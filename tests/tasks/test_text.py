"""Text: tokens that round trip, windows that cover, and numbers that mean what they say."""

import math
import sys
import sysconfig
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from continua.config import from_plain, to_plain
from continua.data.corpus import cut
from continua.errors import ConfigError
from continua.models import Greedy
from continua.tasks import BytePairs, Characters, Corpus, Score, Task, Text, from_file, generator_for, python_source
from continua.training import Run, fit
from tests.refusals import refused
from tests.runs import FAST, silent, tiny_corpus, tiny_model, tiny_task, tiny_text

ODD = "naïve façade — Ω≈ç√ 日本語 🙂\ttab\nline  two spaces"


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B5")
def test_characters_round_trip() -> None:
    tokens = Characters.of(ODD)
    ids = tokens.encode(ODD)
    assert (tokens.size, ids.dtype, ids.shape) == (len(set(ODD)), torch.int64, (len(ODD),))
    assert tokens.decode(ids) == ODD
    assert from_plain(to_plain(tokens)) == tokens
    with refused(ConfigError, "got '%'", "train on text that has this one"):
        tokens.encode("%")


@pytest.mark.spec("B5")
def test_characters_are_looked_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continua.session.tokens.PIECE", 7)
    for alphabet in ("".join(sorted(set(ODD))), "zyx🙂", "\ud800a", "a"):
        tokens = Characters(alphabet)
        text = alphabet * 3 + alphabet[::-1]
        assert tokens.encode(text).tolist() == [alphabet.index(character) for character in text]
        for unknown in ("%", "\U0010ffff", "\x00"):
            with refused(ConfigError, f"got {unknown!r}", "train on text that has this one"):
                tokens.encode(text + unknown + alphabet)
    assert Characters("").encode("").shape == (0,)


@pytest.mark.spec("B17")
def test_a_long_text_is_encoded_without_lists() -> None:
    text = "abcd" * 500_000
    tokens = Characters("abcd")
    tracemalloc.start()
    ids = tokens.encode(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * ids.nbytes


@pytest.mark.spec("B5")
@pytest.mark.parametrize("text", [tiny_text(), ODD, "", " leading", "never seen: ζ\x00"])
def test_byte_pairs_round_trip_any_text(text) -> None:
    pytest.importorskip("tokenizers")
    tokens = BytePairs.of(tiny_text(), 280)
    assert tokens.size == 280
    assert tokens.decode(tokens.encode(text)) == text
    again = from_plain(to_plain(tokens))
    assert torch.equal(again.encode(text), tokens.encode(text))


def test_byte_pairs_are_fewer_than_bytes_and_the_same_every_time() -> None:
    pytest.importorskip("tokenizers")
    text = tiny_text()
    tokens = BytePairs.of(text, 300)
    assert len(tokens.encode(text)) < len(text) / 2
    assert BytePairs.of(text, 300) == tokens


def test_byte_pairs_without_their_library_are_refused(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with refused(ConfigError, "got", "pip install 'continua-ml[text]'"):
        BytePairs.of("text", 300)


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B5")
def test_the_text_that_is_always_there_is_pythons_own_source() -> None:
    corpus = python_source()
    text = corpus.train + corpus.validation
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    first, last = (path.read_text(encoding="utf-8", errors="ignore") for path in (files[0], files[-1]))
    assert text.isascii()
    assert text.startswith("".join(c for c in first if ord(c) < 128))
    assert text.endswith("".join(c for c in last if ord(c) < 128))
    assert len(corpus.train) == int(len(text) * 0.95)
    assert len(text) > 3_000_000
    assert python_source().sha256 == corpus.sha256


def test_any_file_can_be_read_and_mistakes_are_named(tmp_path) -> None:
    path = tmp_path / "poem.txt"
    path.write_text(tiny_text(), encoding="utf-8")
    corpus = from_file(path)
    assert (corpus.name, corpus.train + corpus.validation) == ("poem", tiny_text())
    assert corpus.sha256 != replace(corpus, train=corpus.train[1:]).sha256
    with refused(ConfigError, "got", "Give a UTF-8 file"):
        from_file(tmp_path / "none.txt")
    path.write_bytes(b"\xff\xfe\x00" * 999)
    with refused(ConfigError, "got", "Give a UTF-8 file"):
        from_file(path)
    with refused(ConfigError, "got 3 characters", "at least a thousand"):
        cut("short", "abc")
    with refused(ConfigError, "tokens", "shorter context"):
        Text(tiny_corpus(), tiny_task().tokens, context=1000)


# --- examples ---------------------------------------------------------------------------------------------------------


def test_examples_are_a_function_of_seed_and_step() -> None:
    task = tiny_task()
    a, b = task.example(0, 3), task.example(0, 3)
    assert torch.equal(a.batch.values, b.batch.values)
    assert not torch.equal(a.batch.values, task.example(0, 4).batch.values)
    assert not torch.equal(a.batch.values, task.example(1, 3).batch.values)
    assert torch.equal(a.batch.values[:, 1:], a.target[:, :-1]), "each token's target is the one behind it"
    assert (a.samples, a.count) == (4, 32)
    assert isinstance(task, Task)
    assert generator_for("x", 1).initial_seed() == generator_for("x", 1).initial_seed() != generator_for("x", 2)


def test_windows_reach_both_ends_of_the_text() -> None:
    corpus = Corpus("short", "abcdefghij", "abcdefghij")
    task = Text(corpus, Characters.of("abcdefghij"), context=8, batch=64)
    starts = {int(row[0]) for row in task.example(0, 0).batch.values}
    assert starts == {0, 1}, "nine tokens of ten are two windows"


# --- measures ---------------------------------------------------------------------------------------------------------


class Certain(torch.nn.Module):
    """Gives every token the same log-probabilities, and remembers what it read."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits, self.read = torch.nn.Parameter(logits), []

    def forward(self, batch: Any) -> torch.Tensor:
        self.read.append(batch.values)
        return self.logits.expand(*batch.values.shape, -1)


@pytest.mark.spec("B5")
def test_perplexity_and_bits_a_byte_of_a_text_by_hand() -> None:
    """p(a) = 1/2, p(b) = p(é) = 1/4: the targets of "ababaéabab" are nine tokens of ten bytes."""
    corpus = Corpus("hand", "abé" * 3, "ababaéabab")
    task = Text(corpus, Characters("abé"), context=3, batch=2)
    model = Certain(torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log())
    score = task.evaluate(model)
    bits = 2 * 5 + 1 * 4
    assert score.values["bits_per_byte"] == pytest.approx(bits / 10, abs=1e-12)
    assert score.values["loss"] == pytest.approx(bits * math.log(2) / 9, abs=1e-12)
    assert score.values["perplexity"] == pytest.approx(math.exp(score.values["loss"]), abs=1e-12)
    assert score.main == score.values["loss"]
    assert torch.cat(model.read).flatten().tolist() == task.validation[:-1].tolist(), "each token is read once"


def test_windows_stand_one_behind_the_other_whatever_the_batch() -> None:
    corpus = tiny_corpus()
    tokens = Characters.of(corpus.train + corpus.validation)
    model = tiny_model(double=True)
    found = []
    for batch in (1, 4, 64):
        probe = Certain(torch.zeros(tokens.size))
        Text(corpus, tokens, 8, batch).evaluate(probe)
        read = torch.cat(probe.read).flatten()
        whole = tokens.encode(corpus.validation)
        assert torch.equal(read, whole[: len(read)])
        assert len(whole) - 8 <= len(read) < len(whole), "all of it but a last piece shorter than a window"
        found.append(Text(corpus, tokens, 8, batch).evaluate(model).main)
    assert found == pytest.approx([found[0]] * 3, abs=1e-12)
    assert len(torch.cat([*_read(corpus, tokens)]).flatten()) == 3 * 8


def _read(corpus: Corpus, tokens: Characters) -> list[torch.Tensor]:
    probe = Certain(torch.zeros(tokens.size))
    Text(corpus, tokens, 8, 2, limit=3).evaluate(probe)
    return probe.read


def test_a_loss_too_large_to_be_exponentiated_is_still_a_number() -> None:
    task = Text(Corpus("x", "ab" * 9, "ab" * 9), Characters("ab"), context=3)
    assert math.isfinite(task.evaluate(Certain(torch.tensor([1e4, -1e4]))).values["perplexity"])


def test_half_precision_answers_are_summed_in_full() -> None:
    task = tiny_task()
    example = task.example(0, 0)
    answer = torch.randn(*example.target.shape, task.tokens.size)
    assert task.loss(answer.bfloat16(), example).dtype == torch.float32
    assert task.loss(answer.double(), example).dtype == torch.float64


# --- use --------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B5", "M10")
def test_the_model_of_a_run_writes_at_other_sizes(tmp_path) -> None:
    task = tiny_task()
    fit(tiny_model(), task, run=tmp_path, steps=2, optimiser=FAST, watch=silent)
    model = Run.open(tmp_path).model()
    prompt = task.tokens.encode("the ")[None]
    for view in (model, model.at(d=4, z=3), model.at(d=16, h=1), model.at(z=1)):
        written = view.generate(prompt, tokens=5, sampling=Greedy())
        assert task.tokens.decode(written[0]).startswith("the ")
        assert written.shape == (1, 9)
    assert isinstance(task.evaluate(model.at(d=4)), Score)


@pytest.mark.spec("B5")
def test_byte_pairs_are_trained_on_too() -> None:
    pytest.importorskip("tokenizers")
    from continua.axes import at
    from continua.models import Transformer

    corpus = tiny_corpus()
    tokens = BytePairs.of(corpus.train, 270)
    task = Text(corpus, tokens, context=8, batch=4, limit=4)
    model = Transformer.continuous(vocab=tokens.size, at=at(d=8, h=2, z=1))
    fitted = fit(model, task, steps=30, optimiser=FAST, evaluate_every=15, watch=silent)
    first, last = (line for line in fitted.history if "validation_loss" in line)
    assert last["validation_bits_per_byte"] < first["validation_bits_per_byte"] < 8
