"""Labelled texts: columns that are named or found, a split that stays, and refusals of what is no table."""

from pathlib import Path

import pytest
import torch

import continua as ct
from continua.convert import with_classes
from continua.data import Characters, labelled_texts
from continua.errors import ConfigError
from continua.tasks import TextClassification, classification
from tests.refusals import refused

TOKENS = Characters("abcdefgh, ")
ROWS = [(f"{'abcd'[i % 4] * (1 + i % 5)}{'efgh'[i // 4 % 4]}", ("low", "high")[i % 2]) for i in range(40)]

pytestmark = pytest.mark.spec("B14")


def table(folder: Path, content: str, name: str = "data.csv", encoding: str = "utf-8") -> Path:
    file = folder / name
    file.write_text(content, encoding=encoding)
    return file


def rows(separator: str = ",", header: str = "text,label") -> str:
    return "\n".join([header.replace(",", separator), *(f"{text}{separator}{label}" for text, label in ROWS)])


def test_columns_are_found_or_named(tmp_path: Path) -> None:
    wanted = labelled_texts(table(tmp_path, rows()))
    assert wanted.labels == ("high", "low")
    assert [(text, wanted.labels[n]) for text, n in zip(wanted.texts, wanted.numbers, strict=True)] == ROWS
    for content, names in (
        (rows(";"), {}),
        (rows("\t"), {}),
        (rows(header="Review,what"), {}),
        (rows(header="this,that"), {"text": "this", "label": "that"}),
        (rows(header="this,Label"), {}),
    ):
        found = labelled_texts(table(tmp_path, content), **names)
        assert (found.texts, found.numbers, found.labels) == (wanted.texts, wanted.numbers, wanted.labels)
    marked = labelled_texts(table(tmp_path, rows(), encoding="utf-8-sig"))
    assert marked.texts == wanted.texts
    counted = labelled_texts(table(tmp_path, "text,label\na,10\nb,9\nc,10\n\n"))
    assert counted.labels == ("9", "10")


def test_the_split_depends_on_the_texts_alone(tmp_path: Path) -> None:
    task = classification(table(tmp_path, rows()), TOKENS, held_out=0.25, batch=8)
    turned = "\n".join(["text,label", *(f"{text},{label}" for text, label in reversed(ROWS))])
    other = classification(table(tmp_path, turned), TOKENS, held_out=0.25, batch=8)

    def seen(one: TextClassification, part: str) -> list[str]:
        return sorted(TOKENS.decode(ids) for ids in getattr(one, part).ids)

    assert seen(task, "train") == seen(other, "train")
    assert not set(seen(task, "train")) & set(seen(task, "held_out"))  # each text is there once on one side
    assert set(task.held_out.numbers.tolist()) == {0, 1}
    assert seen(classification(tmp_path / "data.csv", TOKENS, held_out=0.25, seed=1), "held_out") != seen(
        task, "held_out"
    )
    first = task.example(0, 2)
    again = task.example(0, 2)
    assert torch.equal(first.batch.values, again.batch.values)
    assert torch.equal(first.target, again.target)
    epoch = [task.example(0, step).target for step in range(task.steps_per_epoch)]
    assert sum(len(one) for one in epoch) == len(task.train)


def test_a_model_learns_them_and_is_measured(tmp_path: Path) -> None:
    content = "\n".join(["text,label", *(f"{'abcd'[i % 4]} {'efgh'[i // 4 % 4]},{'xy'[i % 2]}" for i in range(16))])
    task = classification(table(tmp_path, content), TOKENS, held_out=0.25, batch=12)
    torch.manual_seed(0)
    model = with_classes(ct.zoo.bert(vocab=10, d=16, heads=2, depth=1, context=8), task.labels)
    before = task.evaluate(model).values
    fitted = ct.fit(
        ct.with_lora(model, rank=2, also=("readout",)), task, steps=40, evaluate_every=40,
        optimiser=ct.optim.ByRole(ct.optim.AdamW(2e-2)), watch=lambda at: None,
    )  # fmt: skip
    after = task.evaluate(fitted.model).values
    assert after["loss"] < 0.5 * before["loss"]
    assert after["accuracy"] > task.commonest
    assert fitted.history[-1]["validation_accuracy"] == after["accuracy"]
    assert fitted.model.readout.labels == ("x", "y")


@pytest.mark.parametrize(
    ("content", "got", "remedy"),
    [
        ("", "no header", "header and a row"),
        ("text,label\n", "header alone", "a row for each text"),
        ("text,label\na,x\nb,x\n", "2 rows of 'x'", "two labels at least"),
        ("text,label\na,x\nb,\n", "no value", "drop the row"),
        ("text,label\na,x,y\nb,y\n", "2 columns", "quotes"),
        ('text,label\n"a,x\nb,y\n', "unexpected end of data", "comma-separated"),
        ("this,that,those\na,x,1\n", "this, that, those", "--text"),
        ("text,that,those\na,x,1\n", "text, that, those", "--label"),
        ("text,label\na,x\nb,y\nc,y\n", "got 1", "two different texts"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, content: str, got: str, remedy: str) -> None:
    with refused(ConfigError, got, remedy):
        classification(table(tmp_path, content), TOKENS)


def test_bad_files_and_names_are_refused(tmp_path: Path) -> None:
    with refused(ConfigError, "is missing", ".csv with a header"):
        classification(tmp_path / "none.csv", TOKENS)
    with refused(ConfigError, "utf-8", "UTF-8"):
        classification(table(tmp_path, "text,label\nä,x\nb,y\n", encoding="latin-1"), TOKENS)
    good = table(tmp_path, rows())
    with refused(ConfigError, "text, label", "one of these"):
        classification(good, TOKENS, text="body")
    with refused(ConfigError, "'text'", "two of them"):
        classification(good, TOKENS, text="text", label="text")
    with refused(ConfigError, "str", "read_tokeniser"):
        classification(good, "folder")
    task = classification(good, TOKENS)
    with refused(ConfigError, "[16, 3]", "with_classes"):
        task.loss(torch.zeros(16, 3), task.example(0, 0))
