"""Tokens and weights in parts while training: 2 and 4 processes walk the curve of one, and keep it in shards."""

import importlib
import json
import os
import shutil
import signal
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, TensorDataset

from continua.axes import Circle, Times, at
from continua.data import Pairs, lattice
from continua.errors import CheckpointError, ConfigError, ContinuaError, SolveFailed
from continua.models import Transformer
from continua.models.zoo import function_map
from continua.tasks import Functions
from continua.training import KineticEnergy, Progress, Run, Training, checkpoint, fit, keeping, load
from continua.training.distributed import World, joined
from tests.commands import typed
from tests.forked import ranks, together
from tests.refusals import refused
from tests.runs import silent, states, tiny_model, tiny_task
from tests.shards import CHOSEN, kept, one_file, refusals, resharded, same

CLOSE = 1e-9
STEPS = 6


def on_text(run: Path | Run, watch: Any = silent, **more: Any) -> Any:
    """Sums over tokens."""
    return fit(
        tiny_model(steps=1, double=True),
        tiny_task(batch=5),
        run=run,
        optimiser=CHOSEN,
        watch=watch,
        steps=STEPS,
        evaluate_every=STEPS,
        save_every=2,
        **more,
    )


def stop(at: Progress) -> None:
    """Somebody presses Ctrl-C on one of the processes."""
    if at.step == 2:
        os.kill(os.getpid(), signal.SIGINT)


def on_values(run: Path, **more: Any) -> Any:
    """A loss that a loader's task takes of all answers at once."""
    torch.manual_seed(0)
    model = Transformer.continuous(channels=2, t=Times(0.0, 1.0), at=at(t=9, d=8, h=2, z=1)).double()
    data = torch.randn(8, 9, 2, dtype=torch.float64)
    loader = DataLoader(TensorDataset(data, data.cumsum(1)), batch_size=4)
    return fit(model, loader, run=run, watch=silent, steps=STEPS, evaluate_every=STEPS, **more)


def on_functions(run: Path, **more: Any) -> Any:
    """Relative distances, which are made of sums over the nodes."""
    torch.manual_seed(0)
    model = function_map(Circle(), 9, at=at(d=8, h=2, m=8, z=1), modes=2, attention=False).double()
    points = lattice(Circle(), torch.arange(9) / 9)
    inputs = torch.sin(2 * torch.pi * (points + torch.rand(8, 1, 1, dtype=torch.float64)))
    pairs = Pairs("turned", Circle(), inputs, -inputs, points)
    task = Functions(pairs, pairs, 4, order=0)
    return fit(model, task, run=run, optimiser=CHOSEN, watch=silent, steps=STEPS, evaluate_every=STEPS, **more)


def refusal(folder: Path, rank: int) -> list[str]:
    """What processes say that do not belong together: other weights, other data, parts that do not divide."""
    said = []
    other = tiny_model(steps=1, double=True)
    with torch.no_grad():
        next(other.parameters()).add_(rank)
    wishes: list[tuple[Any, Any, dict[str, Any]]] = [
        (other, tiny_task(batch=5), {"shard_tokens": 2}),
        (tiny_model(steps=1), tiny_task(batch=5 + rank), {"shard_tokens": 2}),
        (tiny_model(steps=1), tiny_task(), {"shard_tokens": 3}),
        (tiny_model(steps=1), tiny_task(), {"shard_tokens": 2, "penalties": 1e-2 * KineticEnergy()}),
    ]
    for i, (model, task, more) in enumerate(wishes):
        try:
            fit(model, task, run=folder / f"refused-{i}", watch=silent, steps=1, **more)
            said.append("nothing")
        except ContinuaError as wrong:
            said.append(str(wrong))
    return said


def work(folder: Path, before: Path | None) -> None:
    """What each process does; ``before`` is a checkpoint that others wrote."""
    sharded = {"shard_tokens": 2, "sharded": True}
    with joined() as world:
        on_text(folder / "text", shard_tokens=2)
        on_text(folder / "sharded", **sharded)
        on_values(folder / "values", shard_tokens=2)
        assert on_text(folder / "stopped", watch=stop, **sharded).ended == "interrupted"
        assert on_text(Run.open(folder / "stopped"), **sharded).ended == "done"
        on_functions(folder / "functions", shard_tokens=2)
        said = refusal(folder, world.rank)
        said += refusals(world, folder / "sharded", folder, lambda run: on_text(run, **sharded))
        (folder / f"{world.rank}.json").write_text(json.dumps(said))
        if before is not None:
            resharded(world, before, folder)


@pytest.fixture(scope="module")
def one(tmp_path_factory: Any) -> Path:
    """The same by one process."""
    folder = tmp_path_factory.mktemp("one")
    on_text(folder / "text")
    on_values(folder / "values")
    on_functions(folder / "functions")
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: Any) -> Path:
    """What two processes did: tokens in two parts."""
    folder = tmp_path_factory.mktemp("two")
    together(work, folder, None, folder=folder)
    return folder


@pytest.fixture(scope="module")
def gathered(two: Path, tmp_path_factory: Any) -> Path:
    """The run of two processes, with its checkpoints in one file each."""
    folder = tmp_path_factory.mktemp("gathered") / "run"
    shutil.copytree(two / "sharded", folder)
    done = typed("gather", str(folder))
    assert done.stdout.count("written: ") == 2, done
    assert "No checkpoint" in typed("gather", str(folder)).stdout, "they are all there"
    return folder


@pytest.fixture(scope="module")
def four(gathered: Path, tmp_path_factory: Any) -> Path:
    """What four did: samples too, and on from what two wrote and one gathered."""
    folder = tmp_path_factory.mktemp("four")
    together(work, folder, next(states(gathered)), folder=folder, count=4)
    return folder


@pytest.fixture(params=["two", "four"])
def many(request: Any) -> Path:
    """Either of them."""
    found: Path = request.getfixturevalue(request.param)
    return found


def curve(run: Path) -> torch.Tensor:
    """Losses, and the held-out one at the end."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    held_out = [value for name, value in lines[-1].items() if name.startswith("validation_")][:1]
    return torch.tensor([line["loss"] for line in lines] + held_out, dtype=torch.float64)


@pytest.mark.spec("B8", "B15", "T9")
@pytest.mark.parametrize("name", ["text", "sharded", "values", "functions"])
def test_parts_walk_the_curve_of_one_process(one: Path, many: Path, name: str) -> None:
    wanted = curve(one / name.replace("sharded", "text"))
    found = curve(many / name)
    assert len(found) == STEPS + 1
    assert (found - wanted).abs().max() < CLOSE
    assert wanted[-2] < wanted[0], "it learned"


@pytest.mark.spec("B8", "B15")
def test_processes_that_do_not_belong_together_say_the_same(many: Path) -> None:
    said = [json.loads(path.read_text()) for path in sorted(many.glob("[0-9].json"))]
    assert all(own == said[0] for own in said)
    weights, data, parts, penalties, shard, there, code = said[0]
    assert "have the same weights, got others on 1" in weights
    assert "have the same data, got others on 1" in data
    assert "tokens in 3 parts need a multiple of so many processes, got " in parts
    assert "penalties of the path need all tokens" in penalties
    assert "every process reads all of step-000000006, got shard-00002-model-00001-of-00001.safetensors" in shard
    assert "is missing on process 1" in shard
    assert "there is a run already" in there
    assert "have the same code, got others on 1" in code


# --- checkpoints in shards --------------------------------------------------------------------------------------------


@pytest.mark.spec("B8", "B15", "T9")
def test_shards_go_on_to_the_bit_on_as_many_processes(many: Path) -> None:
    calm, stopped = (next(states(many / name)) for name in ("sharded", "stopped"))
    assert checkpoint.is_sharded(calm)
    assert not list(calm.glob("model.safetensors"))
    assert len(list(calm.glob("shard-*"))) == len(list(many.glob("[0-9].json")))
    assert same(kept(stopped), kept(calm))
    assert any(name.endswith("/momentum") for name in kept(calm)), "Muon's"


@pytest.mark.spec("B15", "T9")
def test_two_one_and_four_processes_have_the_same_numbers(two: Path, gathered: Path, four: Path) -> None:
    wanted = kept(next(states(two / "sharded")))
    assert same(one_file(next(states(gathered))), wanted)
    assert same(load_file(four / "had.safetensors"), wanted)
    again = next(states(four / "again"))
    assert len(list(again.glob("shard-*"))) == 4
    assert same(kept(again), wanted), "written while training went on"
    assert Run.open(four / "again").checkpoint() == again, "the best one"


@pytest.mark.spec("B15")
def test_a_run_in_shards_is_a_model_and_goes_on_alone(two: Path, gathered: Path, tmp_path: Path, one: Path) -> None:
    x = torch.zeros(1, 5, dtype=torch.long)
    wanted = load(gathered)(x)
    path = next(states(two / "sharded"))
    for place in (two / "sharded", path, shutil.copytree(path, tmp_path / "mine")):
        assert torch.equal(load(place)(x), wanted)
    run = tmp_path / "run"
    shutil.copytree(two / "stopped", run)
    shutil.rmtree(next(states(run)))
    (before,) = [checkpoint.step_of(path) for path in states(run)]
    assert before == 4
    assert on_text(Run.open(run)).ended == "done"
    assert (curve(run) - curve(one / "text")).abs().max() < CLOSE
    assert not checkpoint.is_sharded(next(states(run)))


@pytest.mark.spec("B15", "T9")
@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda path: next(path.glob("shard-00002-*")).unlink(), r"shard-00002-.* is missing"),
        (lambda path: os.truncate(next(path.glob("shard-00001-*")), 99), r"shard-00001-.* has changed"),
        (lambda path: shutil.copy(next(path.glob("shard-00001-*")), path / "shard-9.safetensors"), "shard-9.*its list"),
        (lambda path: shutil.copy(next(path.glob("shard-00001-*")), path / "a.safetensors"), "a.safetensors.*its list"),
        (lambda path: (path / "state.json").unlink(), "state.json is missing"),
        (lambda path: (path / "progress.json").write_text("{}"), "progress.json has changed"),
    ],
)
def test_a_damaged_checkpoint_in_shards_is_named_and_passed_over(
    two: Path, tmp_path: Path, harm: Any, named: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(two / "sharded", run)
    newest, before = states(run)
    harm(newest)
    shutil.copytree(before, run / "checkpoints" / ".step-000000008.partial")
    with pytest.warns(UserWarning, match=named):
        assert Run.open(run).checkpoint("last") == before
    with pytest.raises(CheckpointError, match=named):
        load(newest)
    with pytest.warns(UserWarning, match=named):
        assert [path.name for path in Run.open(run).gather()] == [before.name]


def dying(run: Path, rank: str, place: str, name: str) -> None:
    """Train until one of the processes dies while the second checkpoint is written, its own file half."""
    module = importlib.import_module(place)
    real = getattr(module, name)
    times = []

    def mortal(path: Path, *more: Any) -> Any:
        times.append(path)
        if len(times) == 2 and os.environ["RANK"] == rank:
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(path, *more)

    setattr(module, name, mortal)
    on_text(run, sharded=True)


@pytest.mark.spec("B15", "T9")
@pytest.mark.parametrize(
    ("rank", "module", "name"),
    [
        ("1", "continua.training.shards", "sha256_of"),
        pytest.param(
            "0", "continua.training.checkpoint", "_swap", marks=pytest.mark.slow(reason="the same before the rename")
        ),
    ],
)
def test_a_kill_while_shards_are_written_leaves_the_checkpoint_before(
    tmp_path: Path, one: Path, rank: str, module: str, name: str
) -> None:
    run = tmp_path / "run"
    begun = ranks(dying, run, rank, module, name, folder=tmp_path)
    other = begun[1 - int(rank)]
    try:
        assert [fork.ended(120) for fork in begun] == [1, -signal.SIGKILL][:: 1 if rank == "1" else -1]
    finally:
        for fork in begun:
            fork.kill()
    assert "another process of this run has gone" in other.err.read_text()
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [
        ".step-000000004.partial",
        "step-000000002",
    ]
    assert on_text(Run.open(run)).ended == "done"
    assert (curve(run) - curve(one / "text")).abs().max() < CLOSE


@pytest.mark.spec("B15")
def test_shards_that_do_not_make_a_whole_are_refused(two: Path, tmp_path: Path) -> None:
    path = shutil.copytree(next(states(two / "sharded")), tmp_path / "half")
    next(path.glob("shard-00001-*")).unlink()
    with refused(CheckpointError, "lacks a shard", "older checkpoint"):
        kept(path)
    next(path.glob("shard-00002-*")).write_bytes(b"nothing of the kind")
    with refused(CheckpointError, "cannot be read", "older checkpoint"):
        kept(path)


@pytest.mark.spec("B15")
def test_a_torch_without_shards_writes_one_file_and_says_what_it_cannot_read(
    two: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(keeping, "writes_shards", lambda: False)
    assert isinstance(keeping.keeper(Run(tmp_path), World(0, 2), Training(sharded=True)), keeping.WholeKeeper)
    monkeypatch.setitem(sys.modules, "continua.training.shards", None)
    with refused(CheckpointError, torch.__version__, "continua gather"):
        load(two / "sharded")


@pytest.mark.spec("B15")
def test_headers_that_make_no_sense_are_refused(two: Path, tmp_path: Path) -> None:
    path = shutil.copytree(next(states(two / "sharded")), tmp_path / "half")
    file = next(path.glob("shard-00001-*"))
    tensors = load_file(file)
    for said in ("[" * 100_000, "[]", "{}", json.dumps({name: {"saved_offsets": ["a"]} for name in tensors})):
        save_file(tensors, file, {"DCP_SHARDING_INFO": said})
        with refused(CheckpointError, "cannot be read", "older checkpoint"):
            kept(path)
    far = {name: {"saved_offsets": [10**9] * tensor.dim()} for name, tensor in tensors.items()}
    save_file(tensors, file, {"DCP_SHARDING_INFO": json.dumps(far)})
    with refused(CheckpointError, "lacks a shard", "older checkpoint"):
        kept(path)


@pytest.mark.spec("B15")
def test_errors_are_carried_to_other_processes_as_they_are() -> None:
    error = SolveFailed("no end", got=3, remedy="Wait.", z=0.5)
    again = ForkingPickler.loads(ForkingPickler.dumps(error))
    assert str(again) == str(error) == "no end, got 3. Wait."
    assert (type(again), again.z) == (SolveFailed, 0.5)


@pytest.mark.spec("B8")
def test_parts_need_processes_and_one_size() -> None:
    with refused(ConfigError, "1", "torchrun"), joined(token_parts=2):
        pass
    with refused(ConfigError, "compile", "Leave it out"):
        Training(shard_tokens=2, compile=True)
    assert World(3, 4).share == 3
    assert "RANK" not in os.environ
