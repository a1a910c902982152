"""The planner: bytes against what torch allocates, timelines and rings against what is computed by hand, and meshes."""

import json
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
from continua.lab.cost.job import Job, Mesh
from continua.lab.cost.machines import PUBLISHED, Machine, machine
from continua.lab.cost.memory import peak_bytes
from continua.lab.cost.plan import deepest, largest, largest_context, meshes, planned, plans
from tests.refusals import refused

pytestmark = pytest.mark.spec("B15")
EVEN = Machine("even", 8e9, 1e12, 4, 1e9, 1e9, 1e-6, 1e-6, 1.0)


def gpt(d: int = 64, heads: int = 4, depth: int = 3, vocab: int = 50, context: int = 64) -> Any:
    return ct.zoo.gpt2(vocab=vocab, d=d, heads=heads, depth=depth, context=context)


@pytest.mark.parametrize(
    ("shape", "batch", "half"),
    [
        ((64, 4, 3, 50, 64), 8, False),
        ((32, 2, 4, 900, 32), 16, False),
        ((96, 4, 2, 30, 64), 1, False),
        ((64, 4, 3, 50, 64), 8, True),
        ((32, 2, 4, 900, 32), 16, True),
    ],
)
def test_bytes_are_those_of_a_training_step(shape: tuple[int, ...], batch: int, half: bool) -> None:
    model = gpt(*shape)
    optimiser = torch.optim.AdamW(model.parameters())
    ids = torch.randint(shape[3], (batch, shape[4]))

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = cross_entropy(model(ids).flatten(0, 1), ids.flatten(), reduction="sum")
        loss.backward()
        optimiser.step()

    step()
    stored = sum(p.numel() * p.element_size() for p in model.parameters())
    states = sum(t.numel() * t.element_size() for s in optimiser.state.values() for t in s.values())
    measured = stored + states + peak_bytes(step)
    told = planned(Job(model, batch, shape[4], half=half), EVEN, Mesh()).bytes.total
    assert told == pytest.approx(measured, rel=0.1)


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
    slow = replace(EVEN, flops=1e3)
    home = 3 * (1e-6 + 2 * 4 * 32 * 64 * 4 / 1e9)  # of each layer's last gradients, which nothing hides
    assert planned(job, slow, Mesh(1, 2)).seconds.tokens == pytest.approx(home, rel=1e-3)


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


def test_the_deepest_that_fits_is_found() -> None:
    tight = replace(EVEN, memory=1e7)
    layers = deepest(Job(gpt(depth=1), 4, 64), Job(gpt(depth=2), 4, 64), tight, 2)
    assert layers > 3
    assert plans(Job(gpt(depth=layers), 4, 64), tight, 2)[0].fits
    assert not plans(Job(gpt(depth=layers + 1), 4, 64), tight, 2)[0].fits


def test_bad_wishes_are_refused() -> None:
    with refused(ConfigError, "no figures of this device are known, got h10", "'h100'"):
        machine("h10")
    with refused(ConfigError, "the bytes of this optimiser are not known, got adam", "adamw"):
        Job(gpt(), 1, 1, "adam")
    with refused(ConfigError, "a step has samples with tokens", "1 or more"):
        Job(gpt(), 0, 1)
    assert all(one.memory > 1e10 and one.flops > 1e14 for one in PUBLISHED.values())


def said(*words: object) -> Any:
    return CliRunner().invoke(app, ["plan", *map(str, words)], env={"COLUMNS": "80"})


def text(done: Any) -> str:
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def rows(done: Any) -> list[str]:
    return text(done).split("goes")[1].split("Longest")[0].split()


SMALL = ("--d", 64, "--heads", 4, "--depth", 2, "--vocab", 100, "--batch", 64, "--context", 256)


def test_the_command_prints_meshes_and_draws(tmp_path: Path) -> None:
    done = said(*SMALL, "--devices", 8, "--memory", 1, "--out", tmp_path / "plan.png")
    assert "8 × H100 80 GB (changed) at 40 % of its FLOPs: a simulation by the figures given" in text(done)
    assert "8 × 1" in done.output
    assert "Longest context that fits" in done.output
    assert "Deepest GPT of width 64" in done.output
    assert (tmp_path / "plan.png").stat().st_size > 20_000
    tight = said(*SMALL, "--memory", 0.0001)
    assert "Nothing fits" in tight.output
    assert "* does not fit" in tight.output
    for words, sentence in (
        (("--precision", "int8"), "--precision bfloat16"),
        (("--efficiency", 2), "efficiency ≤ 1"),
        (("--memory", -1), "memory takes a number > 0"),
        (("--devices", 0), "--devices 1"),
    ):
        wrong = said(*SMALL, *words)
        assert isinstance(wrong.exception, ConfigError)
        assert sentence in str(wrong.exception)


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    done = said("--devices", 4096, "--batch", 128, "--context", 131072, "--precision", "float32")
    assert "simulation by published figures" in done.output
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in done.output, "nothing is cut off"
    (heading,) = (line.split() for line in lines if "tokens/s" in line)
    assert " ".join(heading) == "data × tokens parts GB s/step tokens/s where the time goes"
    (row,) = (line for line in lines if line.startswith("32 × 128, sharded"))
    assert "computing " in row
    assert sum("sharded" in line for line in lines) >= 3


def test_devices_of_ones_own_come_from_a_file_or_from_options(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    figures = {"name": "mine", "memory": 24e9, "flops": 1e12, "node": 2, "inside": 25e9, "outside": 3e9}
    path.write_text(json.dumps({**figures, "efficiency": 0.5, "bandwidth": 3.35e12}))
    assert machine(str(path)) == Machine("mine", 24e9, 1e12, 2, 25e9, 3e9, efficiency=0.5, bandwidth=3.35e12)
    done = said(*SMALL, "--devices", 2, "--device", path)
    assert "2 × mine at 50 % of its FLOPs: a simulation by the figures given" in text(done)
    own = ("--memory", 24, "--tflops", 1, "--node", 2, "--inside", 25, "--outside", 3, "--efficiency", 0.5)
    other = said(*SMALL, "--devices", 2, "--device", "h100", *own)
    assert rows(done) == rows(other) != rows(said(*SMALL, "--devices", 2))
    for content, sentence in (
        ("[]", "describes no device, got list"),
        ("{", "describes no device"),
        ('{"name": "mine"}', "Machine needs "),
        (json.dumps({**figures, "speed": 1}), "speed"),
        (json.dumps({**figures, "node": 0}), "node"),
        (json.dumps({**figures, "flops": "many"}), "flops takes a number > 0, got 'many'"),
    ):
        path.write_text(content)
        with pytest.raises(ConfigError) as wrong:
            machine(str(path))
        assert sentence in str(wrong.value)
    with refused(ConfigError, "describes no device", "Write its figures"):
        machine(str(tmp_path / "absent.json"))


def test_a_folder_is_planned_for(tmp_path: Path) -> None:
    gpt().save(tmp_path / "model")
    done = said(tmp_path / "model", "--batch", 8, "--context", 64, "--devices", 2)
    assert done.exit_code == 0, done.output
    assert "0.2 M parameters" in done.output


def test_an_encoder_with_its_decoder_is_planned_for_too() -> None:
    model = ct.zoo.t5(vocab=50, d=16, heads=2, depth=2)
    job = Job(model, 4, 16, half=True)
    assert planned(job, EVEN, Mesh(2, 2, sharded=True)).seconds.total > 0
