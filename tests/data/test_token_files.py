"""Texts as token files: the same bytes however they were made, read where they are wanted and never as a whole."""

import io
import json
import resource
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from continua.data import BytePairs, Characters, TokenFiles, building, built
from continua.data.building import REQUEST
from continua.data.documents import LONGEST, Unit, documents, units_of
from continua.data.shuffling import PERIOD, mixed_block, shares, shuffled
from continua.data.token_files import ABOUT, Shard, Tokens
from continua.errors import ConfigError
from continua.recipes.text import task_of
from continua.tasks import StoredText, Text
from continua.tasks import from_file as corpus_of
from tests.refusals import refused

pytestmark = pytest.mark.spec("B15")
TEXT = "".join(f"line {number}: the quick brown fox jumps over the lazy dog\n" for number in range(3000))
LETTERS = Characters.of(TEXT)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "fox.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture(scope="module")
def stored(source: Path, tmp_path_factory: pytest.TempPathFactory) -> TokenFiles:
    return built([source], tmp_path_factory.mktemp("tokens") / "fox", LETTERS, unit_bytes=40_000)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_token_is_there_once_and_some_are_held_out(stored: TokenFiles) -> None:
    assert len(stored.train) + len(stored.held_out) == len(TEXT)
    assert 0.02 < len(stored.held_out) / len(TEXT) < 0.2
    assert len(stored.shards) == 5
    whole = stored.train.read(0, len(stored.train))
    assert LETTERS.decode(torch.from_numpy(whole.astype(np.int64))).startswith(TEXT[:4000])
    held = LETTERS.decode(torch.from_numpy(stored.held_out.read(0, 60).astype(np.int64)))
    assert held in TEXT
    assert set(content(stored.folder)) == {
        ABOUT,
        *(shard.file for shard in (*stored.shards, *stored.held_out_shards)),
    }


def test_windows_cross_the_ends_of_shards(stored: TokenFiles) -> None:
    first = stored.shards[0].tokens
    rows = stored.train.windows([first - 3, 0], 8)
    apart = [stored.train.read(first - 3, 3), stored.train.read(first, 5)]
    assert rows[0].tolist() == np.concatenate(apart).tolist()
    assert rows.dtype == torch.int64


def test_an_interrupted_build_goes_on_and_ends_with_the_same_bytes(
    source: Path, stored: TokenFiles, tmp_path: Path
) -> None:
    def stop(done: int, total: int, tokens: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built([source], tmp_path / "again", LETTERS, unit_bytes=40_000, watch=stop)
    with refused(ConfigError, "is not finished", "it goes on"):
        TokenFiles.open(tmp_path / "again")
    with refused(ConfigError, "other token files were begun here", "another folder"):
        built([source], tmp_path / "again", LETTERS, unit_bytes=50_000)
    seen: list[int] = []
    built([source], tmp_path / "again", LETTERS, unit_bytes=40_000, watch=lambda done, *_: seen.append(done))
    assert seen == [2, 3, 4, 5]
    assert content(tmp_path / "again") == content(stored.folder)
    with refused(ConfigError, "there are token files already", "another folder"):
        built([source], tmp_path / "again", LETTERS, unit_bytes=40_000)


@pytest.mark.slow(reason="two more processes import torch")
def test_many_processes_write_the_same_bytes(source: Path, stored: TokenFiles, tmp_path: Path) -> None:
    built([source], tmp_path / "two", LETTERS, unit_bytes=40_000, jobs=2)
    assert content(tmp_path / "two") == content(stored.folder)


def test_units_end_at_ends_of_lines_and_nothing_is_read_twice(source: Path) -> None:
    for size in (1000, 4096, 77_777):
        units = units_of(source, size)
        assert "".join(text for unit in units for text in documents(unit, "text")) == TEXT


def table(path: Path, texts: list[str]) -> None:
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    made = arrow.table({"text": texts, "number": list(range(len(texts)))})
    if path.suffix == ".parquet":
        arrow.parquet.write_table(made, path, row_group_size=2)
        return
    with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_file(file, made.schema) as writer:
        writer.write_table(made, max_chunksize=2)


def lines(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(texts)))


def archive(path: Path, texts: list[str]) -> None:
    with tarfile.open(path, "w") as file:
        for index, text in enumerate(texts):
            name, content = (f"{index}.txt", text) if index % 2 else (f"{index}.json", json.dumps({"text": text}))
            member = tarfile.TarInfo(name)
            member.size = len(content.encode())
            file.addfile(member, io.BytesIO(content.encode()))
        picture = tarfile.TarInfo("0.png")
        picture.size = 3
        file.addfile(picture, io.BytesIO(b"\x89PN"))


KINDS = {".jsonl": lines, ".parquet": table, ".arrow": table, ".tar": archive}


@pytest.mark.parametrize("suffix", KINDS)
def test_tables_lines_and_archives_are_documents(suffix: str, tmp_path: Path) -> None:
    texts = [f"document {i}, größer\nthan a line" for i in range(7)]
    path = tmp_path / f"texts{suffix}"
    KINDS[suffix](path, texts)
    found = [text for unit in units_of(path, 64) for text in documents(unit, "text")]
    assert found == texts
    if suffix != ".tar":
        with refused(ConfigError, "'body'", "--column NAME"):
            list(documents(units_of(path, 64)[0], "body"))


def test_samples_of_an_archive_may_have_more_than_their_text(tmp_path: Path) -> None:
    members = {
        "a/000.json": '{"url": "x"}',
        "a/000.txt": "first",
        "a/001.cls": "7",
        "a/001.json": '{"text": "second"}',
        "b/001.en.txt": "third",
    }
    with tarfile.open(tmp_path / "shard.tar", "w") as file:
        for name, held in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(held)
            file.addfile(member, io.BytesIO(held.encode()))
    assert list(documents(Unit(str(tmp_path / "shard.tar")), "text")) == ["first", "second", "third"]
    (tmp_path / "cut.tar").write_bytes((tmp_path / "shard.tar").read_bytes()[:700])
    with refused(ConfigError, "is no whole tar archive", "Fetch it anew"):
        list(documents(Unit(str(tmp_path / "cut.tar")), "text"))


def test_tables_and_archives_are_built_and_gone_on_with(tmp_path: Path) -> None:
    texts = [f"document {i} of a table" for i in range(12)]
    letters = Characters.of("".join(texts))
    table(tmp_path / "a.parquet", texts)
    table(tmp_path / "b.arrow", texts)
    archive(tmp_path / "c.tar", texts)
    places = [tmp_path / name for name in ("a.parquet", "b.arrow", "c.tar")]

    def stop(done: int, total: int, tokens: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(places, tmp_path / "out", letters, unit_bytes=100, held_out=0.5, watch=stop)
    made = built(places, tmp_path / "out", letters, unit_bytes=100, held_out=0.5)
    assert made.documents == 36
    assert len(made.train) + len(made.held_out) == 3 * sum(map(len, texts))
    built(places, tmp_path / "again", letters, unit_bytes=100, held_out=0.5)
    assert content(tmp_path / "again") == content(tmp_path / "out")


def test_a_separator_stands_behind_each_document(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", ["ab", "ba", "aab"] * 4)
    made = built([tmp_path / "a.jsonl"], tmp_path / "out", Characters("ab|"), separator=2, held_out=0.25)
    whole = [*made.train.read(0, len(made.train)).tolist(), *made.held_out.read(0, len(made.held_out)).tolist()]
    assert whole.count(2) == 12


# --- orders that are functions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5, 64, 1000, 4097])
def test_a_shuffled_order_is_a_permutation_and_another_word_another_one(count: int) -> None:
    found = shuffled(np.arange(count), count, "a", 1)
    assert sorted(found.tolist()) == list(range(count))
    assert np.array_equal(found, shuffled(np.arange(count), count, "a", 1))
    if count > 60:
        assert not np.array_equal(found, shuffled(np.arange(count), count, "a", 2))
        assert abs(np.corrcoef(found, np.arange(count))[0, 1]) < 0.3


def test_a_mixture_keeps_its_shares_over_every_period() -> None:
    counts = shares((0.7, 0.3, 1e-6))
    assert sum(counts) == PERIOD
    assert min(counts) == 1
    assert counts[0] == pytest.approx(0.7 * PERIOD, abs=2)
    sources, before = mixed_block(counts, 0, 3)
    assert np.bincount(sources).tolist() == list(counts)
    assert all(sorted(before[sources == which].tolist()) == list(range(count)) for which, count in enumerate(counts))


def test_an_epoch_meets_every_window_once_whatever_the_step(stored: TokenFiles) -> None:
    task = StoredText((stored,), context=64, batch=8)
    count = (len(stored.train) - 64) // 64
    epoch = torch.cat([task.example(0, step).batch.values for step in range(count // 8 + 1)])[:count]
    assert len({tuple(row) for row in epoch.tolist()}) > 0.99 * count  # lines repeat but for their number
    again = task.example(0, 5)
    assert torch.equal(again.batch.values, task.example(0, 5).batch.values)
    assert torch.equal(again.batch.values[:, 1:], again.target[:, :-1])
    assert not torch.equal(again.batch.values, task.example(1, 5).batch.values)


def test_sources_are_mixed_by_weight(stored: TokenFiles, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text(("qqqqqqqqq" * 20 + "\n") * 600)
    other = built([tmp_path / "q.txt"], tmp_path / "q", LETTERS)
    task = StoredText((stored, other), (3.0, 1.0), context=16, batch=PERIOD)
    of_other = (task.example(0, 0).batch.values == int(LETTERS.encode("q")[0])).float().mean(1) > 0.5
    assert int(of_other.sum()) == PERIOD // 4
    pairs = built([tmp_path / "q.txt"], tmp_path / "pairs", BytePairs.of("q" * 3000, 260))
    with refused(ConfigError, "a mixture has one tokeniser", "--tokenizer"):
        StoredText((stored, pairs), (1.0, 1.0))
    with refused(ConfigError, "a weight for each source", "one > 0"):
        StoredText((stored, other), (1.0,))


def test_it_is_measured_as_a_text_is(source: Path, stored: TokenFiles) -> None:
    class Uniform(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, batch: Any) -> torch.Tensor:
            return torch.zeros(*batch.values.shape, LETTERS.size)

    for task in (StoredText((stored,), context=32, limit=5), Text(corpus_of(source), LETTERS, context=32, limit=5)):
        score = task.evaluate(Uniform())
        assert score.values["loss"] == pytest.approx(np.log(LETTERS.size), rel=1e-5)


def test_files_larger_than_memory_are_read_where_they_are_wanted(tmp_path: Path) -> None:
    tokens = 2**36  # 128 GiB, of which the disk holds nothing
    with (tmp_path / "train-00000.npy").open("wb") as file:
        header = {"descr": "<u2", "fortran_order": False, "shape": (tokens,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 2 * tokens)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = Tokens(tmp_path, [Shard("train-00000.npy", tokens, "")], 10)
    rows = held.windows([0, tokens // 2, tokens - 128], 128)
    assert rows.shape == (3, 128)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # KiB


# --- bad input -------------------------------------------------------------------------------------------------------


def test_a_flipped_token_is_refused_before_training(stored: TokenFiles, tmp_path: Path, monkeypatch) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stored.folder, copy)
    shard = copy / stored.shards[0].file
    raw = bytearray(shard.read_bytes())
    raw[-2:], raw[-4:-2] = raw[-4:-2], raw[-2:]
    if raw == shard.read_bytes():
        raw[-2:] = raw[-6:-4]
    shard.write_bytes(raw)
    with refused(ConfigError, f"{shard.name} is damaged", "another SHA-256 than was written"):
        task_of(str(copy), 0, 4, 2)
    monkeypatch.setattr(building, "READ_AT_START", 0)
    task_of(str(copy), 0, 4, 2)  # too large to be read whole


def test_damage_is_named(stored: TokenFiles, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stored.folder, copy)
    assert list(TokenFiles.open(copy).damaged()) == []
    shard = copy / stored.shards[1].file
    raw = bytearray(shard.read_bytes())
    raw[-2:] = b"\xff\xff"
    shard.write_bytes(raw)
    found = TokenFiles.open(copy)
    assert list(found.damaged()) == [shard.name]
    with refused(ConfigError, f"{shard.name} is damaged", "another SHA-256 than was written"):
        found.require_unchanged()
    with refused(ConfigError, "numbers that no token has, got token 65535", "continua data check"):
        found.train.windows([stored.shards[0].tokens + stored.shards[1].tokens - 5], 5)
    shard.write_bytes(raw[:-20])
    with refused(ConfigError, f"{shard.name} is damaged", "Copy it anew"):
        TokenFiles.open(copy).train  # noqa: B018
    shard.unlink()
    with refused(ConfigError, "is missing", "Copy the folder"):
        TokenFiles.open(copy)
    about = json.loads((copy / ABOUT).read_text())
    about["train"][1]["file"] = "../secret.npy"
    (copy / ABOUT).write_text(json.dumps(about))
    with refused(ConfigError, "shards lie in their folder, got ../secret.npy", "again"):
        TokenFiles.open(copy)
    (copy / ABOUT).write_text("{")
    with refused(ConfigError, f"{ABOUT} is damaged", "Copy it anew"):
        TokenFiles.open(copy)
    with refused(ConfigError, "holds no token files", "continua data build"):
        TokenFiles.open(tmp_path)


def test_texts_that_cannot_be_read_are_named(source: Path, tmp_path: Path) -> None:
    with refused(ConfigError, "there is no such text", "Name files"):
        built([tmp_path / "none.txt"], tmp_path / "a", LETTERS)
    (tmp_path / "packed.txt.gz").write_bytes(b"x")
    with refused(ConfigError, "packed texts", "Unpack"):
        built([tmp_path / "packed.txt.gz"], tmp_path / "a", LETTERS)
    (tmp_path / "latin.txt").write_bytes(b"gr\xfc\xdfe\n" * 10)
    with refused(ConfigError, "is no text in UTF-8", "Convert it"):
        built([tmp_path / "latin.txt"], tmp_path / "latin", LETTERS)
    (tmp_path / "long.txt").write_bytes(b"x" * (LONGEST + 1))
    with refused(ConfigError, "a line of more than", "Break it"):
        list(documents(Unit(str(tmp_path / "long.txt"), 0, LONGEST + 1), "text"))
    for suffix in (".parquet", ".tar"):
        (tmp_path / f"no{suffix}").write_bytes(b"nothing of that kind" * 100)
        with refused(ConfigError, "is no whole", "Fetch it anew"):
            [*(text for unit in units_of(tmp_path / f"no{suffix}", 99) for text in documents(unit, "text"))]
    (tmp_path / "no.jsonl").write_text("{\n")
    with refused(ConfigError, "no JSON", "Mend"):
        list(documents(Unit(str(tmp_path / "no.jsonl"), 0, 2), "text"))
    with refused(ConfigError, "a share of the documents", "held_out"):
        built([source], tmp_path / "a", LETTERS, held_out=1.0)
    (tmp_path / "short.txt").write_text("one line\n")
    with refused(ConfigError, "some documents are learned from", "--held-out"):
        built([tmp_path / "short.txt"], tmp_path / "short", LETTERS)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("x")
    with refused(ConfigError, "a folder of their own", "empty"):
        built([source], tmp_path / "taken", LETTERS)
    assert not (tmp_path / "a" / REQUEST).exists()
