"""``ct.load`` reads whatever Continua wrote, in a process that has imported nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import continua as ct
from continua.data.burgers import burgers_pairs
from continua.errors import CheckpointError, ConfigError
from continua.recipes import BurgersSettings
from continua.recipes.functions import model_of as functions_model
from continua.recipes.functions import task_of
from continua.training import fit
from tests.refusals import refused
from tests.runs import FAST, silent, states, tiny_model, tiny_task

FRESH = """
import sys, torch
import continua as ct
for path in sys.argv[1:]:
    model = ct.load(path)
    print(type(model).__name__, sum(p.double().sum().item() for p in model.parameters()))
"""


def weight(model: torch.nn.Module) -> float:
    return sum(p.double().sum().item() for p in model.parameters())


@pytest.mark.finding("D10")
def test_checkpoints_of_functions_and_of_series_load_in_a_fresh_process(tmp_path: Path) -> None:
    settings = BurgersSettings(train=4, held_out=2, nodes=8, fine=16, d=8, m=8, heads=2, depth=1, modes=3, batch=2)
    task = task_of(burgers_pairs(6, n=16), settings)
    given = {"steps": 1, "optimiser": FAST, "watch": silent}
    functions = fit(functions_model(task, settings), task, run=tmp_path / "functions", **given).model
    torch.manual_seed(0)
    series = ct.zoo.series_classifier(features=2, classes=3, d=8, heads=2, depth=1)
    series.save(tmp_path / "series")
    places = [tmp_path / "functions", next(states(tmp_path / "functions")), tmp_path / "series"]
    words = [sys.executable, "-c", FRESH, *map(str, places)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert found == pytest.approx([weight(functions), weight(functions), weight(series)], rel=1e-12)


@pytest.mark.finding("D10")
def test_a_run_its_checkpoints_and_their_files_are_all_models(tmp_path: Path) -> None:
    scores = iter([1.0, 2.0])

    class Task(type(tiny_task())):  # type: ignore[misc]
        def evaluate(self, model: object) -> object:
            return type(super().evaluate(model))({"loss": next(scores)})

    task = tiny_task()
    task = Task(task.corpus, task.tokens, task.context, task.batch, 2)
    given = {"steps": 4, "evaluate_every": 2, "save_every": 2, "optimiser": FAST, "watch": silent}
    last = fit(tiny_model(), task, run=tmp_path / "run", **given).model
    newest, older = states(tmp_path / "run")
    for path in (newest, newest / "model.safetensors", newest / "config.json"):
        assert weight(ct.load(path)) == weight(last)
    assert weight(ct.load(tmp_path / "run", which="last")) == weight(last)
    assert weight(ct.load(tmp_path / "run")) == weight(ct.load(older)) != weight(last)
    with refused(ConfigError, "got 'BEST'", "Leave it out"):
        ct.load(tmp_path / "run", which="BEST")
    (newest / "optimiser.json").write_text("[]")
    with refused(CheckpointError, "optimiser.json has changed", "Take an older one"):
        ct.load(newest)
    with refused(CheckpointError, f"none in {tmp_path}", "Give the folder"):
        ct.load(tmp_path)
