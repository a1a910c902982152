"""A saved model is the one that was saved, or is refused: bits that flip, crashes between files, two writers, links."""

import math
import os
import random
import stat
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import continua as ct
from continua.errors import CheckpointError, ContinuaError
from continua.models import store
from tests.refusals import refused


def model(seed: int = 0, depth: int = 1) -> Any:
    torch.manual_seed(seed)
    return ct.zoo.gpt2(vocab=7, d=8, heads=2, depth=depth, context=4)


def same(a: Any, b: Any) -> bool:
    return store.description(a) == store.description(b) and store.fingerprint(a.state_dict()) == store.fingerprint(
        b.state_dict()
    )


@pytest.mark.finding("S8")
def test_a_bit_that_flipped_is_noticed_or_means_nothing(tmp_path: Path) -> None:
    made = model()
    made.save(tmp_path)
    chance = random.Random(0)
    refusals = 0
    for name in ("model.safetensors", "config.json"):
        whole = (tmp_path / name).read_bytes()
        weights = 8 + int.from_bytes(whole[:8], "little") if name == "model.safetensors" else len(whole)
        for _ in range(150):
            flipped = bytearray(whole)
            place = chance.randrange(len(whole))
            flipped[place] ^= 1 << chance.randrange(8)
            (tmp_path / name).write_bytes(flipped)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = ct.load(tmp_path)
            except ContinuaError:
                refusals += 1
            else:
                assert same(found, made)
                assert place < weights, "a weight that changed is never loaded"
        (tmp_path / name).write_bytes(whole)
    assert same(ct.load(tmp_path), made)
    assert refusals > 225  # the header has the description a second time, in an order that changes from save to save


@pytest.mark.finding("S8")
@pytest.mark.parametrize("before", [False, True], ids=["a new folder", "over another model"])
@pytest.mark.parametrize("moment", range(8))
def test_a_crash_at_any_moment_leaves_the_model_before_or_this_one(tmp_path, monkeypatch, before, moment) -> None:
    class Killed(BaseException):
        pass

    old = model(1, depth=2)
    new = model(2)
    if before:
        old.save(tmp_path)
    calls = 0
    for name in ("replace", "fsync", "chmod"):
        real = getattr(os, name)

        def mortal(*given: Any, real: Any = real) -> Any:
            nonlocal calls
            calls += 1
            if calls == moment + 1:
                raise Killed
            return real(*given)

        monkeypatch.setattr(os, name, mortal)
    try:
        new.save(tmp_path)
    except Killed:
        pass
    else:
        assert moment >= 6, "all moments were tried"
    monkeypatch.undo()
    if not before and not (tmp_path / "model.safetensors").exists():
        with refused(CheckpointError, "got", "."):
            ct.load(tmp_path)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ct.load(tmp_path)
    assert same(found, new) or (before and same(found, old))


@pytest.mark.finding("S8")
def test_writers_that_meet_leave_one_of_their_models(tmp_path: Path) -> None:
    writers = [model(seed, depth=1 + seed % 2) for seed in range(4)]
    failed: list[Exception] = []

    def write(one: Any) -> None:
        try:
            for _ in range(5):
                one.save(tmp_path)
        except Exception as problem:
            failed.append(problem)

    threads = [threading.Thread(target=write, args=(one,)) for one in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ct.load(tmp_path)
    assert any(same(found, one) for one in writers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.finding("D11")
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_weights_may_be_read_by_whom_the_description_may(tmp_path: Path, mask: int) -> None:
    usual = os.umask(mask)
    try:
        model().save(tmp_path)
    finally:
        os.umask(usual)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("config.json", "model.safetensors")}
    assert modes == {0o666 & ~mask}


@pytest.mark.finding("D5")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, value: float) -> None:
    made = model()
    made.save(tmp_path)
    spoilt = model()
    with torch.no_grad():
        next(spoilt.parameters()).view(-1)[3] = value
    with refused(CheckpointError, "NaN or infinity in", "earlier checkpoint"):
        spoilt.save(tmp_path)
    assert same(ct.load(tmp_path), made)


@pytest.mark.finding("X2")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_links_out_of_a_folder_and_pipes_are_refused(tmp_path: Path, name: str) -> None:
    folder = model().save(tmp_path / "model")
    other = (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(other)
    with refused(CheckpointError, "link out of its folder", "files themselves"):
        ct.load(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with refused(CheckpointError, "got", "."):
        ct.load(folder)


def test_an_edited_description_is_refused_even_where_it_would_fit(tmp_path: Path) -> None:
    folder = model().save(tmp_path)
    text = (folder / "config.json").read_text()
    assert text.count("1e-05") >= 1
    (folder / "config.json").write_text(text.replace("1e-05", "1e-04"))
    with refused(CheckpointError, "config.json has changed", "copy it again"):
        ct.load(folder)
