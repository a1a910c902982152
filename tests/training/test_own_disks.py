"""Machines with disks of their own: what one process cannot read ends all of them, with one sentence."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from continua.cli import main
from continua.data import Characters, TokenFiles, built
from tests.forked import ranks

TEXT = "".join(f"line {number}: the quick brown fox jumps over the lazy dog\n" for number in range(300))
SMALL = {"d": 8, "heads": 2, "depth": 1, "context": 8, "batch": 4, "steps": 2, "time_limit": 60}


def on_own_disk(folder: Path) -> None:
    """The same command in the folder of each machine."""
    os.chdir(folder / f"machine-{os.environ['RANK']}")
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    sys.argv = ["continua", "fit", "text", "--text", "tokens", "--folder", "run", "--device", "cpu", *settings]
    main()


def flipped(shard: Path) -> None:
    """Two tokens of a file exchanged."""
    raw = bytearray(shard.read_bytes())
    raw[-4:-2], raw[-2:] = raw[-2:], raw[-4:-2]
    assert raw != shard.read_bytes()
    shard.write_bytes(raw)


@pytest.mark.spec("B15")
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        pytest.param(Path.unlink, "is missing", id="missing"),
        pytest.param(flipped, "is damaged, got another SHA-256 than was written", id="damaged"),
    ],
)
def test_a_token_file_that_one_machine_lacks_ends_all(harm: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    text = tmp_path / "fox.txt"
    text.write_text(TEXT)
    built([text], tmp_path / "machine-0" / "tokens", Characters.of(TEXT), unit_bytes=5_000)
    shutil.copytree(tmp_path / "machine-0", tmp_path / "machine-1")
    stored = TokenFiles.open(tmp_path / "machine-1" / "tokens")
    shard = stored.folder / stored.shards[1].file
    harm(shard)
    both = ranks(on_own_disk, tmp_path, folder=tmp_path)
    try:
        codes = [one.ended(120) for one in both]
    finally:
        for one in both:
            one.kill()
    assert codes[0] == codes[1] != 0
    sentences = [" ".join(one.err.read_text().split()) for one in both]
    assert sentences[0] == sentences[1], "the same sentence"
    assert shard.name in sentences[0]
    assert said in sentences[0]
    assert not (tmp_path / "machine-0" / "run").exists(), "nothing was begun"
