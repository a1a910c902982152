"""Names of models in a filled cache of Hugging Face: found without a network, and nothing outside of it is opened."""

import os
import shutil
from pathlib import Path

import pytest
import torch

import continua as ct
from continua.convert.hub import cache_folder, located, snapshot
from continua.errors import CheckpointError
from continua.files import fault_of
from tests.commands import typed
from tests.refusals import refused

COMMIT = "0123456789abcdef0123456789abcdef01234567"
IDS = torch.tensor([[1, 2, 3]])

pytestmark = pytest.mark.spec("B14")


def fill(cache: Path, name: str, folder: Path, commit: str = COMMIT) -> Path:
    """Put a folder into a cache as ``hf download`` lays it out: blobs, and a snapshot of links to them."""
    home = cache / f"models--{name.replace('/', '--')}"
    there = home / "snapshots" / commit
    there.mkdir(parents=True)
    (home / "blobs").mkdir()
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.copyfile(file, home / "blobs" / f"{number:064x}")
        (there / file.name).symlink_to(Path("..", "..", "blobs", f"{number:064x}"))
    return home


@pytest.fixture(scope="module")
def model() -> ct.Transformer:
    return ct.zoo.gpt2(vocab=8, d=8, heads=2, depth=1, context=8)


@pytest.fixture
def cache(tmp_path: Path, model: ct.Transformer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one model, and a working folder without any."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    fill(tmp_path / "home" / "hub", "org/name", ct.to_hf(model, tmp_path / "written"))
    return tmp_path / "home" / "hub"


def test_a_name_means_the_cached_model(cache: Path, model: ct.Transformer, tmp_path: Path) -> None:
    assert torch.equal(ct.from_hf("org/name")(IDS), model(IDS))
    assert located("org/name") == cache / "models--org--name" / "snapshots" / COMMIT
    shown = typed("inspect", "org/name")
    assert shown.returncode == 0, shown.stderr
    assert "GELU" in shown.stdout or "Attention" in shown.stdout
    missing = typed("generate", "org/name")
    assert "a text needs a tokeniser" in missing.stderr  # the folder was found
    fill(cache, "gpt2", tmp_path / "written")
    assert torch.equal(ct.from_hf("gpt2")(IDS), model(IDS))
    other = ct.zoo.gpt2(vocab=8, d=8, heads=2, depth=1, context=8)
    ct.to_hf(other, Path("org/name"))
    assert torch.equal(ct.from_hf("org/name")(IDS), other(IDS))  # a folder that is there counts


def test_the_surroundings_say_where_the_cache_is(tmp_path: Path) -> None:
    home = str(tmp_path)
    assert cache_folder({"HF_HUB_CACHE": home, "HF_HOME": "elsewhere"}) == tmp_path
    assert cache_folder({"HUGGINGFACE_HUB_CACHE": home}) == tmp_path
    assert cache_folder({"HF_HOME": home}) == tmp_path / "hub"
    assert cache_folder({"XDG_CACHE_HOME": home}) == tmp_path / "huggingface" / "hub"
    assert cache_folder({}) == Path.home() / ".cache" / "huggingface" / "hub"


def test_what_is_not_cached_is_said_with_a_remedy(cache: Path) -> None:
    with refused(CheckpointError, "org/other", "hf download org/other. Nothing is downloaded here"):
        ct.from_hf("org/other")
    ref = cache / "models--org--name" / "refs" / "main"
    for said in ("../../..", "main", "", "a" * 3000, COMMIT[::-1]):
        ref.write_text(said)
        with refused(CheckpointError, "", "hf download org/name"):
            ct.from_hf("org/name")
    ref.unlink()
    with refused(CheckpointError, "refs/main is missing", "hf download org/name"):
        ct.from_hf("org/name")
    os.mkfifo(ref)
    with refused(CheckpointError, "refs/main is not a plain file", "hf download org/name"):
        ct.from_hf("org/name")


@pytest.mark.parametrize(
    "name",
    ["org/..", "org/../name", "a--b/c", "org/na me", "org/" + "n" * 200, "org/name\n", "ORG/$HOME", "org/.hidden"],
)
def test_names_that_lead_elsewhere_are_refused(cache: Path, name: str) -> None:
    with refused(CheckpointError, "", ""):
        ct.from_hf(name)
    with refused(CheckpointError, "this is no name of a model", "org/name"):
        snapshot(name)


def test_links_out_of_the_cache_are_refused(cache: Path, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("{}")
    folder = cache / "models--org--name" / "snapshots" / COMMIT
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(treasure)
    with refused(CheckpointError, "config.json, a link out of it", "Fetch it anew"):
        ct.from_hf("org/name")
    assert fault_of(folder / "config.json") == "is a link out of its folder"
    shutil.move(folder, tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    with refused(CheckpointError, "a link out of it", "Fetch it anew"):
        ct.from_hf("org/name")


def test_blobs_are_those_of_a_cache_alone(tmp_path: Path) -> None:
    """Links to blobs are plain files in a cached model, and nowhere else."""
    for home, fault in (("models--a--b", None), ("run", "is a link out of its folder")):
        folder = tmp_path / home / "snapshots" / "x"
        folder.mkdir(parents=True)
        blobs = tmp_path / home / "blobs"
        blobs.mkdir()
        (blobs / "y").write_text("{}")
        (folder / "config.json").symlink_to(Path("..", "..", "blobs", "y"))
        assert fault_of(folder / "config.json") == fault
