"""The planner: bytes against what torch allocates, rings against their closed form, meshes against what must hold."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import continua as ct
from continua.cli import app
from continua.errors import ConfigError
from continua.lab.cost.collectives import all_gather, all_reduce, ring_step
from continua.lab.cost.machines import PUBLISHED, Machine, machine
from continua.lab.cost.memory import peak_bytes
from continua.lab.cost.plan import Job, Mesh, largest, largest_context, meshes, planned, plans
from tests.refusals import refused

pytestmark = pytest.mark.spec("B15")
EVEN = Machine("even", 8e9, 1e12, 4, 1e9, 1e9, 1e-6, 1e-6, 1.0)
SLOW = replace(EVEN, outside=1e8)


def gpt(d: int = 64, heads: int = 4, depth: int = 3, vocab: int = 50, context: int = 64) -> Any:
    return ct.zoo.gpt2(vocab=vocab, d=d, heads=heads, depth=depth, context=context)


@pytest.mark.parametrize(
    ("shape", "batch"), [((64, 4, 3, 50, 64), 8), ((32, 2, 4, 900, 32), 16), ((96, 4, 2, 30, 64), 1)]
)
def test_bytes_are_those_of_a_training_step(shape: tuple[int, ...], batch: int) -> None:
    model = gpt(*shape)
    optimiser = torch.optim.AdamW(model.parameters())
    ids = torch.randint(shape[3], (batch, shape[4]))

    def step() -> None:
        optimiser.zero_grad()
        cross_entropy(model(ids).flatten(0, 1), ids.flatten(), reduction="sum").backward()
        optimiser.step()

    step()
    stored = sum(p.numel() * p.element_size() for p in model.parameters())
    states = sum(t.numel() * t.element_size() for s in optimiser.state.values() for t in s.values())
    measured = stored + states + peak_bytes(step)
    assert planned(Job(model, batch, shape[4]), EVEN, Mesh()).bytes.total == pytest.approx(measured, rel=0.1)


def test_rings_take_the_time_of_their_closed_form_where_links_are_alike() -> None:
    for ranks in (2, 5, 64):
        once = 1e-6 + 1e6 / ranks / 1e9
        assert all_reduce(1e6, ranks, EVEN) == pytest.approx(2 * (ranks - 1) * once)
        assert all_gather(1e6, ranks, EVEN) == pytest.approx((ranks - 1) * once)
        assert ring_step(1e6, ranks, EVEN) == pytest.approx(1e-6 + 1e-3)
    assert all_reduce(1e6, 1, EVEN) == 0.0


def test_the_slowest_link_decides() -> None:
    inside = all_reduce(1e6, 4, SLOW)
    across = all_reduce(1e6, 8, SLOW)
    assert inside == pytest.approx(all_reduce(1e6, 4, EVEN))
    steps = 2 * 7
    assert across == pytest.approx(steps * (1e-6 + 1e6 / 8 / 1e8), rel=0.15)
    assert across > 5 * all_reduce(1e6, 8, EVEN)


def test_a_mesh_divides_work_and_bytes() -> None:
    job = Job(gpt(), 8, 64)
    one = planned(job, EVEN, Mesh())
    for mesh in (Mesh(4, 1), Mesh(1, 4), Mesh(2, 2)):
        many = planned(job, EVEN, mesh)
        assert many.seconds.compute == pytest.approx(one.seconds.compute / 4)
        assert many.bytes.activations == pytest.approx(one.bytes.activations / 4)
    sharded = planned(job, EVEN, Mesh(4, 1, sharded=True))
    assert sharded.bytes.weights == pytest.approx(one.bytes.weights / 4)
    assert sharded.bytes.optimiser == pytest.approx(one.bytes.optimiser / 4)
    halved = planned(job, EVEN, Mesh(2, 1), accumulate=2)
    assert halved.bytes.activations == pytest.approx(one.bytes.activations / 4)
    assert halved.seconds.compute == pytest.approx(one.seconds.compute / 2)
    assert one.tokens_per_second == pytest.approx(8 * 64 / one.seconds.total)


def test_keys_under_way_cost_time_only_where_attention_is_quicker_than_the_link() -> None:
    job = Job(gpt(), 4, 64)
    assert planned(job, EVEN, Mesh(1, 2)).seconds.tokens > 0
    assert planned(job, replace(EVEN, flops=1e3), Mesh(1, 2)).seconds.tokens == 0


def test_plans_name_every_mesh_once_and_what_fits_first() -> None:
    job = Job(gpt(), 8, 64)
    found = plans(job, replace(EVEN, memory=2e6), 4)
    assert len({str(plan.mesh) for plan in found}) == len(found) == len(list(meshes(job, 4))) == 6
    assert [plan.fits for plan in found] == sorted((plan.fits for plan in found), reverse=True)
    assert any(plan.accumulate > 1 for plan in found)
    with refused(ConfigError, "no mesh of these devices divides the job, got 3 devices", "divides"):
        plans(Job(gpt(), 8, 64), EVEN, 3)
    with refused(ConfigError, "a mesh divides samples and tokens", "divides both"):
        planned(job, EVEN, Mesh(3, 1))


def test_the_largest_that_fits_is_found() -> None:
    assert [largest(lambda n, top=top: n <= top) for top in (0, 1, 2, 3, 100, 257)] == [0, 1, 2, 3, 100, 257]
    assert largest(lambda n: n <= 10**6) == pytest.approx(10**6, rel=0.01)
    job = Job(gpt(), 2, 64)
    longest = largest_context(job, EVEN, Mesh(1, 2))
    assert longest % 2 == 0
    assert planned(replace(job, context=longest), EVEN, Mesh(1, 2), 2).fits
    assert not planned(replace(job, context=int(1.02 * longest) // 2 * 2), EVEN, Mesh(1, 2), 2).fits


def test_bad_wishes_are_refused() -> None:
    with refused(ConfigError, "no figures of this device are known, got h10", "'h100'"):
        machine("h10")
    with refused(ConfigError, "the bytes of this optimiser are not known, got adam", "adamw"):
        Job(gpt(), 1, 1, "adam")
    with refused(ConfigError, "a step has samples with tokens", "1 or more"):
        Job(gpt(), 0, 1)
    assert all(one.memory > 1e10 and one.flops > 1e14 for one in PUBLISHED.values())


def said(*words: object) -> Any:
    return CliRunner().invoke(app, ["plan", *map(str, words)], env={"COLUMNS": "200"})


SMALL = ("--d", 64, "--heads", 4, "--depth", 2, "--vocab", 100, "--batch", 64, "--context", 256)


def test_the_command_prints_meshes_and_draws(tmp_path: Path) -> None:
    done = said(*SMALL, "--devices", 8, "--memory", 1, "--out", tmp_path / "plan.png")
    assert done.exit_code == 0, done.output
    assert "data 8 × tokens 1" in done.output
    assert "A simulation" in done.output
    assert "the longest context that fits" in done.output
    assert "The deepest GPT of width 64" in done.output
    assert (tmp_path / "plan.png").stat().st_size > 20_000
    tight = said(*SMALL, "--memory", 0.0001)
    assert "Nothing fits" in tight.output
    for words, sentence in (
        (("--dtype", "int8"), "--dtype bfloat16"),
        (("--efficiency", 2), "--efficiency"),
        (("--memory", -1), "gigabytes"),
        (("--devices", 0), "--devices 1"),
    ):
        wrong = said(*SMALL, *words)
        assert isinstance(wrong.exception, ConfigError)
        assert sentence in str(wrong.exception)


def test_a_folder_is_planned_for(tmp_path: Path) -> None:
    gpt().save(tmp_path / "model")
    done = said(tmp_path / "model", "--batch", 8, "--context", 64, "--devices", 2)
    assert done.exit_code == 0, done.output
    assert "0.2 M parameters" in done.output
