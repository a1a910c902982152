"""Other sizes and growth with tokens in parts: two processes walk the curve of one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from continua.axes import at
from continua.convert import elastic, with_corrections
from continua.fields import Corrections
from continua.models import zoo
from continua.optim import AdamW, ByRole, Muon
from continua.training import Afterwards, ByGap, Copied, Elastic, Growth, Stage, fit
from continua.training.distributed import joined
from tests.forked import together
from tests.runs import silent, tiny_task

CLOSE = 1e-9
STAGES = (Stage((at(t=4, d=8, h=1, z=1),), 0.3), Stage((at(d=8),), 0.6))
LAWS = {"drawn": Elastic(start=0.0, draws=1), "gap": Elastic(law=ByGap())}


def trained(run: Path, law: Elastic, **more: Any) -> Any:
    """A model that grows from short contexts on and learns at other sizes; corrections of a quarter learn last."""
    torch.manual_seed(0)
    model = elastic(zoo.gpt2(vocab=tiny_task().tokens.size, d=16, heads=2, depth=2, context=8))
    model = with_corrections(model, Corrections(2, "d", beyond=1.0)).double()
    return fit(
        model,
        tiny_task(batch=8),
        run=run,
        optimiser=ByRole(AdamW(2e-3), kernel=Muon(0.01)),
        watch=silent,
        steps=8,
        grow=Growth(STAGES, Copied()),
        elastic=law,
        afterwards=Afterwards(0.3, (at(d=4),)),
        evaluate_every=8,
        **more,
    )


def work(folder: Path, law: Elastic) -> None:
    """What each process does."""
    with joined():
        trained(folder / "two", law, shard_tokens=2)


def curve(run: Path, name: str) -> torch.Tensor:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return torch.tensor([line[name] for line in lines if name in line], dtype=torch.float64)


@pytest.mark.spec("B8", "B15", "B1", "T11")
@pytest.mark.parametrize("law", ["drawn", pytest.param("gap", marks=pytest.mark.slow(reason="another job of two"))])
def test_sizes_and_growth_walk_the_curve_of_one_process(law: str, tmp_path: Path) -> None:
    trained(tmp_path / "one", LAWS[law])
    together(work, tmp_path, LAWS[law], folder=tmp_path)
    for name in ("loss", "elastic", "validation_loss"):
        one = curve(tmp_path / "one", name)
        two = curve(tmp_path / "two", name)
        assert len(one) == len(two) > 1, name
        assert (one - two).abs().max() < CLOSE, name
