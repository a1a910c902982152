"""One law of all models: every instrument runs on them, or refuses in a sentence that says what to do instead.

The refusals are the table of ``instruments.py``; what it does not name has to run. Training has a law of its own.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua import lab
from continua.errors import ContinuaError
from continua.models import Batch, initialise, load
from continua.models.init import GPT2Init
from continua.models.model import Model
from continua.tasks import Example, Score
from tests.cases import MODELS, made
from tests.cases_models import STEPS
from tests.laws.instruments import REFUSALS, WHOLE, runs_or_refuses
from tests.measure import EXACT, gap


@dataclass(frozen=True)
class Subject:
    """A model, what it reads and what it answers; made once, so an instrument that changes a model copies it."""

    model: Any
    batch: Batch
    answer: Tensor
    folder: Path

    @property
    def prompt(self) -> Batch:
        """The values without padding, beside their source."""
        return Batch(self.batch.values, source=self.batch.source)

    @property
    def reads_words(self) -> bool:
        """Whether bare token numbers are enough."""
        values = self.batch.values
        return isinstance(values, Tensor) and values.dim() == 2 and self.batch.source is None

    def is_answered(self, got: Tensor) -> bool:
        """Whether this is what the model answers."""
        return gap(got, self.answer) < EXACT * (float(self.answer.abs().max()) + 1.0)


@dataclass(frozen=True)
class TinyTask:
    """The answers of a model are right."""

    only: Example

    def example(self, seed: int, step: int) -> Example:
        return self.only

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        return (answer - example.target).square().sum()

    def evaluate(self, model: Any) -> Score:
        return Score({"loss": float(self.loss(model(self.only.batch), self.only))})


# --- the instruments -------------------------------------------------------------------------------------------------


def states(subject: Subject) -> None:
    path = subject.model.states(subject.batch)
    assert len(path.x) == STEPS + 1
    assert path.x[0].shape == path.final.shape


def run(subject: Subject) -> None:
    answer, path, t = subject.model.run(subject.batch, keep=ct.SaveAt(1))
    assert subject.is_answered(answer)
    assert len(path.x) == STEPS + 1
    assert len(t) == path.final.shape[1]


def velocity(subject: Subject) -> None:
    x = subject.model.states(subject.batch).x[0]
    assert subject.model.velocity(subject.batch, 0.5, x).shape == x.shape


def at_another_depth(subject: Subject) -> None:
    assert subject.model.at(z=3)(subject.batch).shape == subject.answer.shape
    assert subject.is_answered(subject.model.at(ct.at())(subject.batch))


def at_another_width(subject: Subject) -> None:
    assert torch.isfinite(subject.model.at(d=4)(subject.batch)).all()


def held(subject: Subject) -> None:
    assert subject.is_answered(subject.model.at(ct.at()).held()(subject.batch))
    view = subject.model.at(z=3)
    assert gap(view.held()(subject.batch), view(subject.batch)) < EXACT
    if subject.reads_words:  # a held view of bare numbers keeps what it was bound to
        kept = view.held()
        for ids in (subject.batch.values, subject.batch.values, subject.batch.values[:1, :4]):
            assert gap(kept(ids), view(ids)) < EXACT


def hooks(subject: Subject) -> None:
    """Hooks of the model fire however it is run."""
    model, batch = subject.model, subject.batch
    seen: list[Tensor] = []
    ways: dict[str, Callable[[], Any]] = {
        "call": lambda: model(batch),
        "view": lambda: model.at(z=1)(batch),
        "held view": lambda: model.at(z=1).held()(batch),
        "run": lambda: model.run(batch),
        "states": lambda: model.states(batch),
        "states of a view": lambda: model.at(z=1).states(batch),
        "velocity": lambda: velocity(subject),
        "generate": lambda: generate(subject),
    }
    for way, go in ways.items():
        seen.clear()
        hook = model.register_forward_hook(lambda module, given, answer: seen.append(answer))
        try:
            go()
        except ContinuaError:  # the law of generate says where
            assert way == "generate"
            continue
        finally:
            hook.remove()
        assert seen, way


def generate(subject: Subject) -> None:
    written = subject.model.generate(subject.prompt, tokens=2)
    assert written.shape[1] == subject.batch.values.shape[1] + 2


def pareto(subject: Subject) -> None:
    task = TinyTask(Example(subject.batch, subject.answer))
    native, other = ct.pareto(subject.model, task, [ct.at(), ct.at(z=1)], rounds=1).points
    assert native.loss < EXACT
    assert 0 < other.flops < native.flops
    assert other.sizes["z"] == 1


def attention_maps(subject: Subject) -> None:
    for one in lab.attention_maps(subject.model, subject.batch):
        rows = one.weights.sum(-1)
        assert gap(torch.where(one.rows[:, None] > 0, rows, 1.0), torch.ones_like(rows)) < 1e-6


def dynamics(subject: Subject) -> None:
    found = lab.dynamics(subject.model, subject.batch, sinks=None)
    assert len(found.states) == len(found.moves) + 1 == STEPS + 1


def predict(subject: Subject) -> None:
    found = lab.predict(subject.model, 2, subject.answer.shape[1])
    assert found.forward > 0
    assert found.parameters == sum(weight.numel() for weight in subject.model.parameters())


def initialised(subject: Subject) -> None:
    drawn = [initialise(copy.deepcopy(subject.model), GPT2Init(), torch.Generator().manual_seed(1)) for _ in "ab"]
    answers = [model(subject.batch) for model in drawn]
    assert gap(*answers) == 0.0
    assert torch.isfinite(answers[0]).all()


def save_and_load(subject: Subject) -> None:
    found = load(subject.model.save(subject.folder)).train(subject.model.training)
    assert gap(found(subject.batch), subject.answer) == 0.0


def laid(subject: Subject) -> None:
    assert subject.is_answered(subject.model(subject.model.laid(subject.batch)))


def protocol(subject: Subject) -> None:
    """What instruments ask of a model is declared."""
    assert isinstance(subject.model, Model)
    assert all(flow.execution is subject.model.execution for flow in subject.model.flows)


INSTRUMENTS: dict[str, Callable[[Subject], None]] = {
    "protocol": protocol,
    "states": states,
    "run": run,
    "velocity": velocity,
    "at another depth": at_another_depth,
    "at another width": at_another_width,
    "held": held,
    "hooks": hooks,
    "generate": generate,
    "pareto": pareto,
    "attention maps": attention_maps,
    "dynamics": dynamics,
    "predict": predict,
    "initialise": initialised,
    "save and load": save_and_load,
    "laid": laid,
}


@pytest.mark.spec("D7", "M10", "A4")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_every_instrument_runs_or_says_what_to_do(instrument: str, name: str, tmp_path: Path) -> None:
    subject = Subject(*made(name), tmp_path)
    runs_or_refuses(instrument, name, lambda: INSTRUMENTS[instrument](subject))


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", REFUSALS, ids=lambda line: f"{line.instrument}: {line.sentence}")
def test_every_line_is_about_a_model(line: Any) -> None:
    for case in line.cases:
        alone = type(line)(line.instrument, (case,), line.sentence)
        assert any(alone.holds(line.instrument, name) for name in MODELS), case


def test_no_case_is_refused_twice() -> None:
    for name in MODELS:
        for instrument in {line.instrument for line in REFUSALS}:
            assert sum(line.holds(instrument, name) for line in REFUSALS) <= 1, (instrument, name)


@pytest.mark.parametrize("name", WHOLE)
def test_the_usual_models_refuse_nothing(name: str) -> None:
    """But that what is no causal model of words cannot write on."""
    refused = {line.instrument for line in REFUSALS if line.holds(line.instrument, name)}
    assert refused <= ({"generate"} if name in ("bert", "vit", "forecaster", "continuous series") else set())
