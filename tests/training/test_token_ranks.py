"""Tokens in parts while training: 2 and 4 processes walk the curve of one."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from continua.axes import Times, at
from continua.errors import ConfigError, ContinuaError
from continua.models import Transformer
from continua.optim import AdamW, ByRole, Muon
from continua.training import KineticEnergy, Training, fit
from continua.training.distributed import World, joined
from tests.forked import together
from tests.refusals import refused
from tests.runs import silent, tiny_model, tiny_task

CLOSE = 1e-9
STEPS = 6
CHOSEN = ByRole(AdamW(2e-3), kernel=Muon(0.01))


def on_text(run: Path, **more: Any) -> Any:
    """Sums over tokens."""
    return fit(
        tiny_model(steps=1, double=True),
        tiny_task(batch=5),
        run=run,
        optimiser=CHOSEN,
        watch=silent,
        steps=STEPS,
        evaluate_every=STEPS,
        **more,
    )


def on_values(run: Path, **more: Any) -> Any:
    """A loss that a loader's task takes of all answers at once."""
    torch.manual_seed(0)
    model = Transformer.continuous(channels=2, t=Times(0.0, 1.0), at=at(t=9, d=8, h=2, z=1)).double()
    data = torch.randn(8, 9, 2, dtype=torch.float64)
    loader = DataLoader(TensorDataset(data, data.cumsum(1)), batch_size=4)
    return fit(model, loader, run=run, watch=silent, steps=STEPS, evaluate_every=STEPS, **more)


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


def work(folder: Path) -> None:
    """What each process does."""
    with joined() as world:
        on_text(folder / "text", shard_tokens=2)
        on_text(folder / "sharded", shard_tokens=2, sharded=True)
        on_values(folder / "values", shard_tokens=2)
        said = refusal(folder, world.rank)
        (folder / f"{world.rank}.json").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def one(tmp_path_factory: Any) -> Path:
    """The same by one process."""
    folder = tmp_path_factory.mktemp("one")
    on_text(folder / "text")
    on_values(folder / "values")
    return folder


@pytest.fixture(scope="module", params=[2, 4])
def many(request: Any, tmp_path_factory: Any) -> Path:
    """What processes did: tokens in two parts, and on four of them samples too."""
    folder = tmp_path_factory.mktemp("many")
    together(work, folder, folder=folder, count=request.param)
    return folder


def curve(run: Path) -> torch.Tensor:
    """Losses, and the held-out one at the end."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return torch.tensor([line["loss"] for line in lines] + [lines[-1]["validation_loss"]], dtype=torch.float64)


@pytest.mark.spec("B8", "B15", "T9")
@pytest.mark.parametrize("name", ["text", "sharded", "values"])
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
    weights, data, parts, penalties = said[0]
    assert "have the same weights, got others on 1" in weights
    assert "have the same data, got others on 1" in data
    assert "tokens in 3 parts need a multiple of so many processes, got " in parts
    assert "penalties of the path need all tokens" in penalties


@pytest.mark.spec("B8")
def test_parts_need_processes_and_one_size() -> None:
    with refused(ConfigError, "1", "torchrun"), joined(token_parts=2):
        pass
    with refused(ConfigError, "compile", "Leave it out"):
        Training(shard_tokens=2, compile=True)
    assert World(3, 4).share == 3
    assert "RANK" not in os.environ
