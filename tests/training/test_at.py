"""Training on a chosen discretisation: the loss, its costs and held-out data are those of the view; resume is exact."""

import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from continua.axes import Discretisation, at
from continua.cli import app
from continua.config import from_plain, register, to_plain
from continua.errors import ConfigError
from continua.flow import Adaptive, Checkpoint, Direct, Dopri5, Fixed, Recompute
from continua.flow.controls.control import Problem, StepsFound
from continua.models import Transformer
from continua.optim import Constant
from continua.recipes import changes_of, resume, start
from continua.tasks import generator_for
from continua.training import (
    Always,
    Discretisations,
    JacobianNorm,
    KineticEnergy,
    Objective,
    Penalties,
    Run,
    Sampled,
    SpectralNorm,
    Training,
    Whole,
    fit,
)
from continua.training.discretisations import discretisations
from continua.training.penalty import penalties
from tests.measure import EXACT, gap
from tests.refusals import refused
from tests.runs import FAST, silent, steps_of, timeless, tiny_model, tiny_task, tiny_text

CLOSE = 1e-10
TOLERANT = at(z=Adaptive(Dopri5(), rtol=1e-2, atol=1e-2))
PLACES = {
    "steps": at(z=5),
    "sizes": at(d=6, h=1, z=3),
    "another solver": at(z=Fixed(2, Dopri5())),
    "a tolerance": TOLERANT,
}
everywhere = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


@register
@dataclass(frozen=True)
class Either:
    """Half the loss on one of two depths, which chance chooses, and half on the native one."""

    few: int
    many: int

    def draw(self, step: int, generator: torch.Generator) -> list[tuple[Discretisation, float]]:
        chosen = self.many if torch.rand((), generator=generator) < 0.5 else self.few
        return [(at(z=chosen), 0.5), (at(), 0.5)]


# --- what is computed -------------------------------------------------------------------------------------------------


@pytest.mark.spec("T9")
def test_the_native_discretisation_is_what_training_uses_anyway() -> None:
    plain = fit(tiny_model(), tiny_task(), steps=3, watch=silent)
    native = fit(tiny_model(), tiny_task(), steps=3, at=tiny_model().native, watch=silent)
    assert timeless(plain.history) == timeless(native.history)


@pytest.mark.spec("T9", "T11")
@everywhere
def test_loss_running_cost_and_held_out_data_are_those_of_the_view(place) -> None:
    model, task = tiny_model(double=True), tiny_task()
    view, example = model.at(place), task.example(0, 0)
    loss = task.loss(view(example.batch), example).detach() / example.count
    cost = model.run(example.batch, place, cost=Objective(model, task, penalties(KineticEnergy()))._cost)[1].cost
    done = fit(model, task, steps=1, at=place, penalties=0.5 * KineticEnergy(), watch=silent)
    line = done.history[0]
    assert line["loss"] == pytest.approx(float(loss), abs=EXACT)
    assert line["running"] == pytest.approx(0.5 * float(cost.detach().mean()), abs=EXACT)
    assert line["validation_loss"] == task.evaluate(done.model.at(place)).main
    assert line["validation_loss"] != task.evaluate(done.model).main


@pytest.mark.spec("T9", "D1")
def test_evaluations_are_told_where_steps_are_searched_for() -> None:
    model, task = tiny_model(), tiny_task()
    wanted = model.run(task.example(0, 0).batch, TOLERANT)[1].stats["evaluations"]
    one = fit(model, task, steps=1, at=TOLERANT, watch=silent).history[0]
    cut = fit(tiny_model(), task, steps=1, at=TOLERANT, accumulate=2, watch=silent).history[0]
    assert one["evaluations"] == wanted > 12
    assert 0.5 * wanted < cut["evaluations"] < 2 * wanted, "a mean over micro-batches"
    assert one["loss"] == pytest.approx(cut["loss"], abs=1e-3)
    assert "evaluations" not in fit(tiny_model(), task, steps=1, at=at(z=3), watch=silent).history[0]


@dataclass(frozen=True)
class Replay(Adaptive):
    """Steps that are known already."""

    steps: tuple[tuple[float, float], ...] = ()

    def find(self, problem: Problem) -> StepsFound:
        return StepsFound(self.steps)


def gradients(model: Transformer, place: Discretisation, adjoint: Any, terms: Penalties) -> list[torch.Tensor]:
    """Of one training step."""
    task = tiny_task()
    objective, example = Objective(model, task, terms), task.example(0, 0)
    objective.places, objective.generator = [(place, 1.0)], torch.Generator().manual_seed(5)
    model.adjoint = adjoint
    share, _ = objective(example, Whole.of(example))
    return list(torch.autograd.grad(share, list(model.parameters())))


@pytest.mark.spec("T9", "D4")
@pytest.mark.parametrize("adjoint", [Checkpoint(0.1), Recompute(), Direct()], ids=str)
@pytest.mark.parametrize(
    "terms",
    [None, 0.1 * KineticEnergy(), 0.1 * Sampled(SpectralNorm()), 0.1 * JacobianNorm()],
    ids=["loss", "energy", "sampled", "twice"],
)
def test_gradients_of_an_adaptive_step_are_those_of_plain_backprop_on_its_grid(adjoint, terms) -> None:
    model = tiny_model(double=True)
    place = at(z=Adaptive(Dopri5(), rtol=1e-2, atol=1e-2))
    with torch.no_grad():
        nodes = model.states(tiny_task().example(0, 0).batch, place).z
    assert len(nodes) > 3
    known = at(z=Replay(Dopri5(), steps=tuple((a, b - a) for a, b in itertools.pairwise(nodes))))
    got = gradients(model, place, adjoint, penalties(terms))
    wanted = gradients(model, known, Direct(), penalties(terms))
    assert all(gap(a, b) < CLOSE for a, b in zip(got, wanted, strict=True))
    assert all(g.abs().max() > 0 for g in got)


# --- what is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("T9", "T11")
def test_a_draw_adds_up_by_its_weights_and_held_out_data_stay_native() -> None:
    model, task, drawn = tiny_model(double=True), tiny_task(), Either(1, 4)
    assert isinstance(drawn, Discretisations)
    example = task.example(0, 0)
    (place, half), _ = drawn.draw(0, generator_for("at", 0, 0))
    losses = [float(task.loss(model(example.batch, at=p), example).detach()) / example.count for p in (place, None)]
    done = fit(model, task, steps=1, at=drawn, watch=silent)
    assert half == 0.5
    assert done.history[0]["loss"] == pytest.approx(sum(losses) / 2, abs=EXACT)
    assert done.history[0]["validation_loss"] == task.evaluate(model).main


@pytest.mark.spec("T9", "T11")
def test_draws_depend_on_the_seed_and_the_step_alone() -> None:
    def depths(seed: int, steps: list[int]) -> list[int]:
        return [Either(1, 4).draw(step, generator_for("at", seed, step))[0][0].z for step in steps]

    assert depths(0, [*range(20)]) == [*depths(0, [*range(10)]), *depths(0, [*range(10, 20)])]
    assert set(depths(0, [*range(20)])) == {1, 4}
    assert depths(0, [*range(20)]) != depths(1, [*range(20)])


@pytest.mark.spec("T9", "T11")
@pytest.mark.parametrize("place", [TOLERANT, at(d=6, z=3), Either(1, 3)], ids=["tolerance", "sizes", "drawn"])
def test_a_resumed_run_ends_with_the_same_bits(place, tmp_path) -> None:
    given = {
        "optimiser": FAST, "schedule": Constant(), "penalties": 1e-2 * Sampled(SpectralNorm()) + KineticEnergy(),
        "adjoint": Checkpoint(0.5), "save_every": 2, "evaluate_every": 2, "watch": silent, "at": place,
    }  # fmt: skip
    dropout = 0.0 if place is TOLERANT else 0.1  # masks that change with depth have no adaptive solve
    whole = fit(tiny_model(dropout), tiny_task(), run=tmp_path / "whole", steps=4, **given)
    fit(tiny_model(dropout), tiny_task(), run=tmp_path / "cut", steps=2, **given)
    torch.manual_seed(99)
    cut = fit(tiny_model(dropout), tiny_task(), run=Run.open(tmp_path / "cut"), steps=4, **given)
    assert timeless(cut.history) == timeless(whole.history)
    for a, b in zip(cut.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)


# --- what is kept -----------------------------------------------------------------------------------------------------

SMALL = {"d": 8, "heads": 2, "depth": 1, "context": 8, "batch": 4, "save_every": 2, "evaluate_every": 100, "steps": 2}


@pytest.fixture
def file(tmp_path) -> Any:
    path = tmp_path / "text.txt"
    path.write_text(tiny_text(), encoding="utf-8")
    return path


@pytest.mark.spec("T9", "B5")
def test_a_run_keeps_where_it_is_trained_and_goes_on_there(file, tmp_path) -> None:
    run = tmp_path / "run"
    start("text", {"text": str(file), **SMALL, "at": TOLERANT}, run)
    assert from_plain(Run.open(run).about["training"]).at == TOLERANT
    assert changes_of(Run.open(run))["at"] == TOLERANT
    fitted = resume(run, {"steps": 4})
    assert steps_of(run) == [1, 2, 3, 4]
    assert all(line["evaluations"] > 6 for line in fitted.history)
    assert from_plain(json.loads((run / "run.json").read_text())["training"]).at == TOLERANT


@pytest.mark.spec("T9", "B5")
def test_sizes_are_typed_as_everywhere(file, tmp_path) -> None:
    def said(*words: object) -> Any:
        return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})

    changes = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    done = said("fit", "text", "--text", file, "--at", "d=6,z=2", "--folder", tmp_path / "run", *changes)
    assert done.exit_code == 0, done.output
    assert changes_of(Run.open(tmp_path / "run"))["at"] == at(d=6, z=2)
    assert said("inspect", tmp_path / "run").exit_code == 0
    done = said("fit", "--resume", tmp_path / "run", "--set", "steps=3")
    assert done.exit_code == 0, done.output
    assert steps_of(tmp_path / "run") == [1, 2, 3]


@pytest.mark.spec("T9")
def test_settings_with_a_discretisation_survive_plain_text() -> None:
    for place in (TOLERANT, Always(TOLERANT), Either(1, 2)):
        made = Training(at=place)
        assert from_plain(json.loads(json.dumps(to_plain(made)))) == made
    assert Always(TOLERANT).draw(3, torch.Generator()) == [(TOLERANT, 1.0)]


@pytest.mark.parametrize("place", [3, "z=3", {"z": 3}, Adaptive()], ids=str)
def test_what_is_no_discretisation_is_refused(place) -> None:
    with refused(ConfigError, f"got {place}", "leave it out for the native one"):
        discretisations(place)
