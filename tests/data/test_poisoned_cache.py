"""A cached set is the one that was asked for, and this user made it; or it is made anew."""

import os
import warnings
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from continua.data.store import cached, generated, load, save
from tests.data.test_store import files, some


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONTINUA_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.finding("S11")
def test_a_set_under_the_name_of_another_is_not_returned(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    generated("burgers", 2, root=root, n=32)
    [small] = files(root)
    generated("burgers", 2, root=root, n=64)
    [large] = [path for path in files(root) if path != small]
    large.write_bytes(small.read_bytes())
    with pytest.warns(UserWarning, match="holds another set"):
        assert generated("burgers", 2, root=root, n=64).shape == (64,)


@pytest.mark.finding("X2")
def test_a_set_that_somebody_else_made_is_not_believed(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    wanted = cached(some, "some", {}, root=root).sha256
    [path] = files(root)
    with safe_open(path, "pt") as file:
        about = dict(file.metadata())
    poisoned = some(factor=3.0)
    tensors = {"inputs": poisoned.inputs, "outputs": poisoned.outputs, "points": poisoned.points}
    save_file(tensors, path, {**about, "sha256": poisoned.sha256})
    assert load(path).sha256 == poisoned.sha256, "whole and consistent by itself"
    with pytest.warns(UserWarning, match="was not made here"):
        assert cached(some, "some", {}, root=root).sha256 == wanted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cached(some, "some", {}, root=root).sha256 == wanted


def test_sets_of_0_1_have_no_seal_and_are_made_anew_without_a_word(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    wanted = cached(some, "some", {}, root=root).sha256
    [path] = files(root)
    save(some(factor=2.0), path)
    assert cached(some, "some", {}, root=root).sha256 == wanted


def test_the_key_is_its_owners_and_where_none_can_be_kept_sets_are_found_all_the_same(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    cached(some, "some", {}, told.append, root=tmp_path / "cache")
    assert os.stat(state / "continua" / "seal.key").st_mode & 0o077 == 0
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("CONTINUA_STATE", str(tmp_path / "file"))
    for _ in range(2):
        cached(some, "some", {"n": 5}, told.append, root=tmp_path / "cache")
    assert len(told) == 2


def test_a_pipe_in_the_cache_does_not_hang(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    cached(some, "some", {}, root=root)
    [path] = files(root)
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(UserWarning, match="not a plain file"):
        cached(some, "some", {}, root=root)
