"""Fields on disk: the same bytes however they were made, read where they are wanted and never as a whole."""

import json
import math
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import continua as ct
from continua.axes import Circle, Interval, Product
from continua.data import FieldFiles, built_fields
from continua.data.building import REQUEST
from continua.data.field_files import ABOUT, FieldShard, Kind, Paths
from continua.errors import ConfigError
from continua.models.zoo import function_map
from continua.optim import Constant
from continua.recipes import FieldSettings, fields
from continua.tasks import StoredFunctions
from tests.refusals import refused
from tests.runs import silent

pytestmark = pytest.mark.spec("B15")
NODES = 16
TIMES = 5
PATH = TIMES * NODES * 4  # bytes


def waves(count: int, seed: int = 0) -> np.ndarray:
    """Waves that travel a tenth of the circle in each time: [count, times, nodes, 1]."""
    phases = np.random.default_rng(seed).random((count, 1, 1))
    x = np.arange(NODES) / NODES
    t = np.arange(TIMES)[:, None] / 10
    return np.sin(2 * math.pi * (x - t + phases))[..., None].astype(np.float32)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    np.save(folder / "a.npy", waves(20))
    np.save(folder / "b.npy", waves(11, seed=1))
    return folder


@pytest.fixture(scope="module")
def stored(source: Path, tmp_path_factory: pytest.TempPathFactory) -> FieldFiles:
    return built_fields([source], tmp_path_factory.mktemp("fields") / "waves", ("circle",), unit_bytes=8 * PATH)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_path_is_there_once_and_whole_paths_are_held_out(source: Path, stored: FieldFiles) -> None:
    whole = np.concatenate([np.load(source / "a.npy"), np.load(source / "b.npy")])
    assert len(stored.train) + len(stored.held_out) == 31
    assert len(stored.held_out) == 3
    assert stored.kind == Kind((TIMES, NODES, 1), "float32", ("circle",))
    found = [paths.read(np.arange(paths.windows(TIMES - 1)), TIMES - 1)[0] for paths in (stored.train, stored.held_out)]
    rows = torch.cat(found).flatten(1).tolist()
    assert sorted(rows) == sorted(whole[:, 0].reshape(31, -1).tolist())
    assert set(content(stored.folder)) == {ABOUT, *(shard.file for shard in (*stored.shards, *stored.held_out_shards))}


def test_an_interrupted_build_goes_on_and_ends_with_the_same_bytes(
    source: Path, stored: FieldFiles, tmp_path: Path
) -> None:
    def stop(done: int, total: int, paths: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    wishes: dict[str, Any] = {"unit_bytes": 8 * PATH}
    with pytest.raises(KeyboardInterrupt):
        built_fields([source], tmp_path / "again", ("circle",), watch=stop, **wishes)
    with refused(ConfigError, "is not finished", "it goes on"):
        FieldFiles.open(tmp_path / "again")
    with refused(ConfigError, "other field files were begun here", "another folder"):
        built_fields([source], tmp_path / "again", ("cells",), **wishes)
    seen: list[int] = []
    built_fields([source], tmp_path / "again", ("circle",), watch=lambda done, *_: seen.append(done), **wishes)
    assert seen[0] == 2
    assert content(tmp_path / "again") == content(stored.folder)
    assert not (tmp_path / "again" / REQUEST).exists()


@pytest.mark.slow(reason="two more processes import torch")
def test_many_processes_write_the_same_bytes(source: Path, stored: FieldFiles, tmp_path: Path) -> None:
    built_fields([source], tmp_path / "two", ("circle",), unit_bytes=8 * PATH, jobs=2)
    assert content(tmp_path / "two") == content(stored.folder)


def test_an_epoch_meets_every_window_once_whatever_the_step(stored: FieldFiles) -> None:
    task = StoredFunctions(stored, lag=2, batch=7)
    count = stored.train.windows(2)
    assert count == 28 * (TIMES - 2)
    met = np.concatenate([task.numbers(3, step) for step in range(count // 7)])
    assert sorted(met.tolist()) == list(range(count))
    assert np.array_equal(task.numbers(3, 5), task.numbers(3, 5))
    assert not np.array_equal(task.numbers(4, 5), task.numbers(3, 5))
    example = task.example(3, 5)
    moved = torch.roll(example.target, 0, 1)
    assert example.batch.values.shape == moved.shape == (7, NODES, 1)
    assert example.batch.grid is not None
    assert float(example.batch.grid.weights.sum()) == pytest.approx(1.0)


def test_points_lie_where_the_words_say() -> None:
    kind = Kind((2, 4, 3, 2, 1), "float64", ("circle", "interval", "cells"))
    assert kind.axis == Product((Circle(), Interval(), Interval()))
    assert kind.points[:, 0, 0, 0].tolist() == [0.0, 0.25, 0.5, 0.75]
    assert kind.points[0, :, 0, 1].tolist() == [0.0, 0.5, 1.0]
    assert kind.points[0, 0, :, 2].tolist() == [0.25, 0.75]


def test_fields_larger_than_memory_are_read_where_they_are_wanted(tmp_path: Path) -> None:
    kind = Kind((1001, 4096, 1), "float32", ("circle",))
    paths = 2**37 // kind.bytes  # 128 GiB, of which the disk holds nothing
    with (tmp_path / "train-00000.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (paths, *kind.shape)}
        )
        file.truncate(file.tell() + kind.bytes * paths)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = Paths(tmp_path, [FieldShard("train-00000.npy", paths, "")], kind)
    starts, ends = held.read(np.array([0, held.windows(1) // 2, held.windows(1) - 1]), 1)
    assert starts.shape == ends.shape == (3, 4096, 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # KiB


def test_a_model_learns_from_them_and_resumes(stored: FieldFiles, tmp_path: Path) -> None:
    settings = FieldSettings(folder=str(stored.folder), d=8, m=8, heads=2, depth=1, modes=3, batch=8, limit=3)
    curves = []
    for name, parts in (("at once", (9,)), ("in two", (4, 9))):
        bundle = fields(settings)
        assert bundle.about["data"]["sha256"] == stored.sha256
        for steps in parts:
            run = ct.Run.open(tmp_path / name) if (tmp_path / name).exists() else tmp_path / name
            more: dict[str, Any] = {"steps": steps, "evaluate_every": 9, "schedule": Constant()}
            ct.fit(bundle.model, bundle.task, run=run, watch=silent, **more)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        curves.append([json.loads(line)["loss"] for line in lines])
    assert len(curves[0]) == 9
    assert curves[0] == curves[1]
    assert curves[0][-1] < curves[0][0]


# --- bad input -------------------------------------------------------------------------------------------------------


def test_arrays_that_do_not_fit_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", waves(4))
    np.save(tmp_path / "b.npy", waves(4)[:, :, ::2])
    with refused(ConfigError, "have one shape, got float32 [5, 16, 1], and float32 [5, 8, 1] in b.npy", "one grid"):
        built_fields([tmp_path], tmp_path / "out", ("circle",))
    with refused(ConfigError, "[paths, times, n1, n2, channels], got float32 [4, 5, 16, 1] in a.npy", "--domain"):
        built_fields([tmp_path / "a.npy"], tmp_path / "out", ("circle", "circle"))
    with refused(ConfigError, "a word for each direction, got ring", "cells"):
        built_fields([tmp_path / "a.npy"], tmp_path / "out", ("ring",))
    with refused(ConfigError, "read from .npy files", "numpy.save"):
        built_fields([tmp_path / "c.zarr"], tmp_path / "out", ("circle",))
    spoiled = waves(4)
    spoiled[2, 1, 3] = np.nan
    np.save(tmp_path / "nan.npy", spoiled)
    with refused(ConfigError, "finite numbers, got path 2 of", "fill what is missing"):
        built_fields([tmp_path / "nan.npy"], tmp_path / "nan", ("circle",))
    with refused(ConfigError, "some held out, got 4 paths", "--held-out"):
        built_fields([tmp_path / "a.npy"], tmp_path / "few", ("circle",), held_out=0.1)


def test_damage_is_named(stored: FieldFiles, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stored.folder, copy)
    assert list(FieldFiles.open(copy).damaged()) == []
    shard = copy / stored.shards[0].file
    raw = bytearray(shard.read_bytes())
    raw[-4:] = b"\x00\x00\xc0\x7f"
    shard.write_bytes(raw)
    found = FieldFiles.open(copy)
    assert list(found.damaged()) == [shard.name]
    last = (stored.shards[0].paths) * (TIMES - 1) - 1
    with refused(ConfigError, f"hold finite numbers, got {shard.name}", "continua data check"):
        found.train.read(np.array([last]), 1)
    shard.write_bytes(raw[:-20])
    with refused(ConfigError, f"{shard.name} is damaged", "Copy it anew"):
        FieldFiles.open(copy).train  # noqa: B018
    shard.unlink()
    with refused(ConfigError, "is missing", "Copy the folder"):
        FieldFiles.open(copy)
    about = json.loads((copy / ABOUT).read_text())
    about["kind"]["shape"] = [5, -16, 1]
    (copy / ABOUT).write_text(json.dumps(about))
    with refused(ConfigError, f"{ABOUT} is damaged", "Copy it anew"):
        FieldFiles.open(copy)


def test_a_window_fits_into_a_path(stored: FieldFiles) -> None:
    with refused(ConfigError, "a window fits into a path, got lag=5 in paths of 5 times", "from 1 to 4"):
        StoredFunctions(stored, lag=5)
    with refused(ConfigError, "there are 112 windows, got 113", "smaller batch"):
        StoredFunctions(stored, batch=113)
    with refused(ConfigError, "read from a folder", "continua data fields"):
        fields(FieldSettings())


def test_answers_of_a_map_are_measured(stored: FieldFiles) -> None:
    task = StoredFunctions(stored, limit=4)
    assert len(task.functions.held_out) == 4
    torch.manual_seed(0)
    model = function_map(Circle(), NODES, at=ct.at(d=8, h=2, m=8, z=1), modes=3)
    assert 0.1 < task.evaluate(model).main < 10
