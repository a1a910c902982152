"""Sets on disk: found again, made anew when damaged, shared by processes; and the files of a package."""

import json
import multiprocessing
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from continua.axes import Circle, Interval, Product
from continua.data import neuraloperator_files as packaged
from continua.data.burgers import burgers
from continua.data.darcy import darcy
from continua.data.pairs import Pairs, lattice
from continua.data.store import cache_folder, cached, generated, key_of, load, save
from continua.errors import ConfigError, ShapeError
from tests.measure import gap, random
from tests.packages import folder_of
from tests.refusals import refused
from tools.packages import NEURALOPERATOR

SQUARE = Product((Interval(), Circle(2.0, mass=3.0)))


def some(n: int = 6, factor: float = 1.0, watch: Any = None) -> Pairs:
    """Two pairs on a box with one periodic side."""
    points = lattice(SQUARE, torch.linspace(0, 1, n), 2 * torch.arange(n) / n)
    if watch is not None:
        watch(1.0)
    return Pairs("some", SQUARE, factor * random(2, n, n, 1).float(), random(2, n, n, 2), points)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.mark.spec("B3")
def test_a_set_is_made_once_and_found_again(tmp_path: Path) -> None:
    told: list[float] = []
    first = cached(some, "some", {"n": 5}, told.append, root=tmp_path)
    second = cached(some, "some", {"n": 5}, told.append, root=tmp_path)
    assert told == [1.0], "the second time nothing is made"
    assert second.sha256 == first.sha256
    assert second.axis == SQUARE
    assert (second.inputs.dtype, second.outputs.dtype) == (torch.float32, torch.float64)
    assert gap(second.grid.weights, first.grid.weights) == 0
    cached(some, "some", {"n": 5}, told.append, version=2, root=tmp_path)
    cached(some, "some", {"n": 5, "factor": 2.0}, told.append, root=tmp_path)
    assert len(told) == 3
    assert len(files(tmp_path)) == 3


@pytest.mark.spec("B3")
def test_a_key_names_everything_in_any_order() -> None:
    key = key_of("some", 1, {"n": 5, "seed": 0})
    assert key == key_of("some", 1, {"seed": 0, "n": 5})
    others = [("other", 1, {"n": 5, "seed": 0}), ("some", 2, {"n": 5, "seed": 0}), ("some", 1, {"n": 5, "seed": 1})]
    assert len({key, *(key_of(*other) for other in others)}) == 4
    with refused(ConfigError, "Tensor", "finite numbers"):
        key_of("some", 1, {"n": torch.ones(1)})
    with refused(ConfigError, "not JSON compliant", "finite numbers"):
        key_of("some", 1, {"n": float("nan")})


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(bytes(content))


def _domain(path: Path) -> None:
    pairs = load(path)
    tensors = {"inputs": pairs.inputs, "outputs": pairs.outputs, "points": pairs.points}
    save_file(tensors, path, {"name": "some", "axis": json.dumps([1, 2]), "sha256": pairs.sha256})


def _nameless(path: Path) -> None:
    save_file({"inputs": random(2, 3)}, path)


@pytest.mark.spec("B3")
@pytest.mark.parametrize("harm", [_cut, _empty, _flip, _domain, _nameless])
def test_a_damaged_file_is_made_anew(tmp_path: Path, harm: Any) -> None:
    wanted = cached(some, "some", {}, root=tmp_path).sha256
    [path] = files(tmp_path)
    harm(path)
    with pytest.warns(UserWarning, match="made anew") as said:
        assert cached(some, "some", {}, root=tmp_path).sha256 == wanted
    assert "\n" not in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cached(some, "some", {}, root=tmp_path).sha256 == wanted, "and it is whole again"


@pytest.mark.spec("B3")
def test_files_that_are_no_pairs_are_refused(tmp_path: Path) -> None:
    path = save(some(), tmp_path / "deep" / "some.safetensors")
    _flip(path)
    with refused(ConfigError, "another sha256", "Delete it"):
        load(path)
    _nameless(path)
    with refused(ConfigError, "no outputs in it", "Delete it"):
        load(path)
    with refused(ConfigError, "No such file", "Delete it"):
        load(tmp_path / "absent.safetensors")
    shapes = {"inputs": random(2, 4, 1), "outputs": random(2, 5, 1), "points": random(4, 1)}
    save_file(shapes, path, {"name": "some", "axis": '{"kind": "Circle"}', "sha256": ""})
    with refused(ShapeError, "outputs [2, 5, 1]", "one grid"):
        load(path)


@pytest.mark.spec("B3")
def test_inputs_and_outputs_may_be_parts_of_one_tensor(tmp_path: Path) -> None:
    path = random(7, 8, 1)
    pairs = Pairs("path", Circle(), path[:-1], path[1:], lattice(Circle(), torch.arange(8) / 8))
    for name, each in (("whole", pairs), ("thin", pairs.every(2)), ("part", pairs.part(slice(1, 5, 2)))):
        found = load(save(each, tmp_path / name))
        assert found.sha256 == each.sha256
        assert gap(found.outputs, each.outputs) == 0


@pytest.mark.spec("B3")
def test_where_nothing_can_be_written_the_set_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.warns(UserWarning, match="was not kept"):
        found = cached(some, "some", {}, root=blocked)
    assert found.sha256 == some().sha256

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="No space left"):
        cached(some, "some", {}, root=tmp_path / "full")
    assert files(tmp_path / "full") == [], "nothing half-written stays"


def _work(folder: str) -> str:
    return cached(some, "some", {"n": 40}, root=Path(folder)).sha256


@pytest.mark.spec("B3")
def test_writers_at_the_same_time_leave_one_whole_file(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.map(_work, [str(tmp_path)] * 12)
    assert set(found) == {some(40).sha256}
    [path] = files(tmp_path)
    assert load(path).sha256 == found[0]


@pytest.mark.spec("B3")
def test_generators_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTINUA_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    told: list[float] = []
    first = generated("darcy", 2, told.append, n=9, high=12)
    again = generated("darcy", 2, told.append, n=9, high=12.0, seed=0)
    assert first.sha256 == again.sha256
    assert len(told) == len(files(tmp_path)) == 1, "12 and 12.0 are one setting, and the usual ones need no name"
    for name, settings, got, remedy in [
        ("darcey", {}, "darcey", "'darcy'"),
        ("darcy", {"nn": 9}, "nn", "'n'"),
        ("darcy", {"n": "9"}, "'9'", "Give one"),
        ("darcy", {"n": 9.5}, "9.5", "Give one"),
    ]:
        with refused(ConfigError, got, remedy):
            generated(name, 2, **settings)  # type: ignore[arg-type]
    monkeypatch.delenv("CONTINUA_CACHE")
    assert cache_folder() == Path("~/.cache/continua").expanduser()


# --- the files of a package ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder() -> Path:
    return folder_of(NEURALOPERATOR)


@pytest.mark.spec("B3")
def test_the_pinned_files_are_the_same_everywhere() -> None:
    assert dict(packaged.FILES) == dict(NEURALOPERATOR.files)


@pytest.mark.spec("B3", "M11")
def test_packaged_darcy_lies_on_the_points_it_is_said_to(folder: Path) -> None:
    train, test, fine = packaged.darcy(folder)
    assert [(len(each), each.shape) for each in (train, test, fine)] == [
        (1000, (16, 16)),
        (50, (16, 16)),
        (50, (32, 32)),
    ]
    thin = fine.every(2)
    assert gap(thin.inputs, test.inputs) == gap(thin.outputs, test.outputs) == gap(thin.points, test.points) == 0
    assert float(test.grid.mass) == pytest.approx(1.0, abs=1e-12)
    mean = train.outputs[..., 0].mean(0)
    assert float(mean[0].max()) < 0.02 * float(mean.max()), "the first lines lie on the boundary"
    assert float((mean[1:, 8] - mean[1:, 8].flip(0)).abs().max()) < 0.05 * float(mean.max()), "and 1 − 1/n mirrors 1/n"
    # the same equation: our solution, with the two materials and the source fitted, comes within the coarse medium
    nearest = (torch.arange(129) / 4).round().clamp_max(31).long()
    medium = fine.inputs[:8, nearest][:, :, nearest, 0].double()
    ours = darcy(torch.where(medium > 0, 18.0, 1.0))[:, :128:4, :128:4]
    theirs = fine.outputs[:8, ..., 0].double()
    ours = ours * (ours * theirs).sum() / ours.square().sum()
    errors = (ours - theirs).flatten(1).norm(dim=1) / theirs.flatten(1).norm(dim=1)
    assert float(errors.mean()) < 0.05
    turned = ours.transpose(1, 2)
    assert float(((turned - theirs).flatten(1).norm(dim=1) / theirs.flatten(1).norm(dim=1)).mean()) > 0.2


@pytest.mark.spec("B3")
def test_packaged_burgers_is_burgers(folder: Path) -> None:
    pairs = packaged.burgers(folder)
    assert (len(pairs), pairs.shape) == (1200, (16,))
    first = packaged.burgers(folder, time=1)
    assert gap(first.inputs, pairs.inputs) == 0
    start = first.part(slice(0, 20))
    waves = torch.fft.rfft(start.inputs[..., 0].double())
    waves[:, -1] /= 2
    fine = torch.fft.irfft(waves * 16, 256)
    for time, allowed in ((1, 0.01), (16, 0.05)):  # sixteen points do not show all of the start
        wanted = packaged.burgers(folder, time).outputs[:20, :, 0]
        found = burgers(fine, 0.01, time / 16)[:, ::16]
        error = ((found - wanted).norm(dim=1) / wanted.norm(dim=1)).median()
        assert float(error) < allowed
    assert gap(start.inputs, pairs.outputs[:20]) > 0.1
    with refused(ConfigError, "17", "time=1"):
        packaged.burgers(folder, 17)


@pytest.mark.spec("B3")
def test_other_files_are_not_unpickled(tmp_path: Path) -> None:
    with refused(ConfigError, "No such file", "neuraloperator==0.3.0"):
        packaged.darcy(tmp_path)
    torch.save({"x": torch.ones(1), "y": torch.ones(1)}, tmp_path / "darcy_train_16.pt")
    with refused(ConfigError, "sha256", "neuraloperator==0.3.0"):
        packaged.darcy(str(tmp_path))
