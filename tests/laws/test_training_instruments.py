"""One law of all models: every penalty, an elastic lesson and a step of ``fit`` run on them, or refuse with a remedy.

The refusals are the table of ``instruments.py``; what it does not name has to run.
"""

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.models import Batch
from continua.tasks import Example, Score
from continua.training import (
    Elastic,
    HeadEntropy,
    JacobianNorm,
    KineticEnergy,
    Lesson,
    Objective,
    Penalties,
    Penalty,
    Sampled,
    Smoothness,
    SpectralNorm,
    SquaredWeights,
    Whole,
    fit,
)
from continua.training import penalty as module
from tests.cases import MODELS, made
from tests.laws.instruments import runs_or_refuses
from tests.runs import silent

PENALTIES: dict[str, Penalty] = {
    "kinetic energy": KineticEnergy(),
    "Jacobian norm": JacobianNorm(),
    "spectral norm": SpectralNorm(iterations=1),
    "sampled kinetic energy": Sampled(KineticEnergy()),
    "sampled spectral norm": Sampled(SpectralNorm(iterations=1)),
    "head entropy": HeadEntropy(),
    **{f"smoothness over {letter}": Smoothness(letter) for letter in "zdhem"},
    "squared weights": SquaredWeights(),
}


@dataclass(frozen=True)
class Zeros:
    """A task whose right answer is zero everywhere. A state as an answer has fewer entries at other widths: its means
    over them are what is compared."""

    batch: Batch
    shape: torch.Size

    def example(self, seed: int, step: int) -> Example:
        return Example(self.batch, torch.zeros(self.shape, dtype=torch.float64))

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        return answer.square().mean(-1).sum()

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        return (answer.square().mean(-1) - teacher.square().mean(-1)).abs().sum()

    def evaluate(self, model: Any) -> Score:
        with torch.no_grad():
            return Score({"loss": float(model(self.batch).square().mean())})


@dataclass(frozen=True)
class Subject:
    """A model of its own and its task."""

    model: Any
    task: Zeros

    @property
    def example(self) -> Example:
        return self.task.example(0, 0)

    @classmethod
    def of(cls, name: str) -> "Subject":
        """A model that is changed."""
        model, batch, answer = made(name)
        return cls(copy.deepcopy(model), Zeros(batch, answer.shape))

    def objective(self, penalties: Penalties = Penalties()) -> Objective:  # noqa: B008  (frozen)
        self.model.train()
        made = Objective(self.model, self.task, penalties)
        made.generator = torch.Generator().manual_seed(0)
        return made

    def told(self, objective: Objective) -> dict[str, float]:
        """The terms, after a backward pass of which every gradient is finite."""
        self.model.zero_grad()
        value, terms = objective(self.example, Whole.of(self.example))
        value.backward()
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        assert gradients
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        assert math.isfinite(float(value.detach()))
        return {name: float(number) for name, number in terms.items()}


def penalised(term: Penalty) -> Callable[[Subject], None]:
    def run(subject: Subject) -> None:
        terms = subject.told(subject.objective(Penalties((replace(term, weight=0.5),))))
        assert terms["loss"] > 0
        if type(term).running is not Penalty.running or isinstance(term, Sampled):
            assert terms["running"] >= 0

    return run


def lesson(at: ct.Discretisation) -> Callable[[Subject], None]:
    def run(subject: Subject) -> None:
        objective = subject.objective()
        objective.elastic = Elastic()
        objective.lessons = [Lesson(at, 0, 2)]
        assert subject.told(objective)["elastic"] >= 0
        assert Elastic(start=0.0).over(subject.model).draw(0.0, torch.Generator().manual_seed(0))

    return run


def step(subject: Subject) -> None:
    before = [weight.detach().clone() for weight in subject.model.parameters()]
    done = fit(subject.model, subject.task, steps=1, schedule=ct.optim.Constant(), watch=silent)
    assert done.ended == "done"
    assert math.isfinite(done.history[0]["validation_loss"])
    pairs = zip(before, subject.model.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in pairs)


INSTRUMENTS: dict[str, Callable[[Subject], None]] = {
    **{name: penalised(term) for name, term in PENALTIES.items()},
    "lesson in fewer steps": lesson(ct.at(z=1)),
    "lesson at half of all": lesson(ct.at(d=4, h=1, z=1)),
    "step of fit": step,
}
CHANGING = ("step of fit",)
unchanged = functools.cache(Subject.of)  # gradients alone are written: one for all instruments


@pytest.mark.spec("D7", "T4", "T11")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_every_instrument_of_training_runs_or_says_what_to_do(instrument: str, name: str) -> None:
    subject = Subject.of(name) if instrument in CHANGING else unchanged(name)
    runs_or_refuses(instrument, name, lambda: INSTRUMENTS[instrument](subject))


def test_every_penalty_is_an_instrument() -> None:
    known = {kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Penalty)}
    assert {type(term) for term in PENALTIES.values()} == known - {Penalty}
