"""Fields that grow their modes: a switch changes no answer, coarse stages train what a coarse model trains."""

from pathlib import Path
from typing import Any

import pytest
import torch

from continua.axes import at
from continua.config import from_plain, to_plain
from continua.errors import ConfigError
from continua.fields import BSpline, Cosine, Expansion, Fourier, Legendre, NestedSpline
from continua.flow import Fixed, LieTrotter
from continua.models import Transformer, initialise
from continua.models.init import Scaled
from continua.optim import SOAP, AdamW, ByRole, Muon, Rescaled, Shampoo
from continua.training import Growth, Modes, Run, Stage, fit
from continua.training.modes import leave_modes
from tests.measure import gap
from tests.refusals import refused
from tests.runs import silent, timeless, tiny_task

EXACT = 1e-12  # float64
BOTH = ByRole(AdamW(1e-2), kernel=Muon(0.05))
DEPTH = {"Legendre": Legendre, "cosine": Cosine, "nested spline": lambda n: NestedSpline(n, 2)}
pytestmark = [pytest.mark.spec("B1"), pytest.mark.spec("T11")]


def gpt(seed: int = 0, **bases: Any) -> Transformer:
    native = at(d=8, h=2, z=Fixed(4, LieTrotter()))
    model = Transformer.continuous(vocab=tiny_task().tokens.size, at=native, context=8, bases=bases)
    initialise(model, Scaled(), torch.Generator().manual_seed(seed))
    return model.double()


def smooth(seed: int = 0) -> Transformer:
    """Modes along depth and along both widths."""
    return gpt(seed, z=Legendre(4), d=Fourier(7), m=Fourier(15))


def ids() -> torch.Tensor:
    return torch.randint(10, (3, 7), generator=torch.Generator().manual_seed(2))


def growth(*stages: tuple[float, Modes]) -> Growth:
    return Growth(tuple(Stage((at(),), until, modes) for until, modes in stages))


def trained(model: Any, grow: Growth | None, steps: int = 10, **given: Any) -> Any:
    given = {"optimiser": BOTH, "watch": silent, "evaluate_every": 100, **given}
    return fit(model, tiny_task(), steps=steps, grow=grow, **given)


def fields_along(model: Any, letter: str) -> list[Expansion]:
    return [field for field in model.modules() if isinstance(field, Expansion) and letter in field.letters]


def weight(model: Any) -> torch.Tensor:
    found: torch.Tensor = model.block.parts[1].inner.w1.coefficients  # z, m, c
    return found


# --- what a coarse stage is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", [BOTH, ByRole(AdamW(1e-2))])
@pytest.mark.parametrize("kind", DEPTH)
def test_a_coarse_stage_trains_what_a_model_with_so_few_modes_trains(kind: str, optimiser: ByRole) -> None:
    few, many = gpt(z=DEPTH[kind](2)), gpt(seed=1, z=DEPTH[kind](4))
    padded = dict(many.named_parameters())
    with torch.no_grad():
        for name, value in few.named_parameters():
            target = padded[name].zero_()
            target[tuple(slice(n) for n in value.shape)] = value
    assert gap(few(ids()), many(ids())) < EXACT, "zeros behind are the same function"
    trained(few, None, steps=5, optimiser=optimiser)
    trained(many, growth((0.99, Modes(z=2))), steps=5, optimiser=optimiser)
    assert gap(few(ids()), many(ids())) < 1e-9
    assert all(not field.coefficients[2:].any() for field in fields_along(many, "z"))


@pytest.mark.parametrize("kernel", [SOAP(1e-2), Shampoo(1e-2), Rescaled(AdamW(1e-2), 4.0)])
def test_modes_beyond_stay_zero_under_every_kind_of_step(kernel: Any) -> None:
    model = smooth()
    trained(model, growth((0.99, Modes(z=2, m=5))), steps=4, optimiser=ByRole(AdamW(1e-2), kernel=kernel))
    assert weight(model)[:2, :5].all()
    assert float(weight(model).detach()[2:].abs().max()) < EXACT
    assert float(weight(model).detach()[:, 5:].abs().max()) < EXACT


def test_a_switch_changes_no_answer_and_new_modes_learn() -> None:
    model = smooth()
    seen: list[torch.Tensor] = []
    law = growth((0.3, Modes(z=1, d=3, m=5)), (0.6, Modes(z=2, d=5)))
    trained(model, law, steps=10, watch=lambda progress: seen.append(weight(model).detach().clone()))
    assert seen[2][:1, :5, :3].all()
    assert not seen[2][1:].any()
    assert not seen[2][:, 5:].any()
    assert not seen[2][:, :, 3:].any()
    assert seen[3][:2, :, :5].all(), "one step later the new modes of all letters have learned something"
    assert not seen[5][2:].any()
    assert seen[9].all()


def test_no_number_is_touched_when_modes_are_added() -> None:
    model = smooth()
    law = growth((0.5, Modes(z=2, d=5)))
    answers: list[torch.Tensor] = []
    moments: list[int] = []

    def watch(progress: Any) -> None:
        moments.append(progress.step)
        answers.append(model(ids()).detach())

    trained(model, law, steps=6, watch=watch, optimiser=ByRole(AdamW(0.0)))  # every change would be the switch's
    assert moments == [1, 2, 3, 4, 5, 6]
    assert all(gap(answers[0], answer) < EXACT for answer in answers)


def test_what_was_drawn_keeps_its_mean_square_and_gains_stay_one() -> None:
    model = smooth()
    before = {name: float(p.detach().square().sum()) for name, p in model.named_parameters()}
    leave_modes(model, Modes(z=1, m=5))
    w1 = "block.parts.1.inner.w1.coefficients"
    assert float(weight(model).detach().square().sum()) == pytest.approx(before[w1], rel=1e-12)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert float(parameter.detach().square().sum()) == pytest.approx(before[name], rel=1e-12), name
    once = {name: p.clone() for name, p in model.named_parameters()}
    leave_modes(model, Modes(z=1, m=5))
    assert all(torch.equal(once[name], p) for name, p in model.named_parameters()), "a second time changes nothing"


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [2, 3, 5])
def test_a_run_whose_modes_grow_goes_on_with_the_same_bits(tmp_path: Path, stopped: int) -> None:
    law = growth((0.3, Modes(z=1, d=3)), (0.6, Modes(z=2)))
    whole = trained(smooth().float(), law, save_every=1)

    def stop(progress: Any) -> None:
        if progress.step == stopped:
            raise KeyboardInterrupt

    part = trained(smooth().float(), law, run=tmp_path / "run", watch=stop, save_every=1)
    assert part.ended == "interrupted"
    rest = trained(smooth(seed=5).float(), law, run=Run.open(tmp_path / "run"), save_every=1)
    assert timeless(rest.history) == timeless(whole.history)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, rest.model.state_dict()[name]), name


def test_modes_are_part_of_the_settings() -> None:
    law = growth((0.3, Modes(z=1)), (0.5, Modes(z=2)))
    assert from_plain(to_plain(law)) == law


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "sentence", "remedy"),
    [
        (
            growth((0.3, Modes(z=2)), (0.6, Modes(z=1))),
            "modes along z shrink while training grows",
            "few modes to many",
        ),
        (growth((0.3, Modes()), (0.6, Modes(z=2))), "modes along z shrink", "few modes to many"),
        (growth((0.3, Modes(z=5))), "weights along z have 4 modes, got 5", "4 at most"),
        (growth((0.3, Modes(e=2))), "weights along e have no modes in order", "nodes grow by sizes, at(e=…)"),
    ],
)
def test_modes_that_cannot_grow_are_refused(law: Growth, sentence: str, remedy: str) -> None:
    with refused(ConfigError, sentence, remedy):
        trained(smooth(), law)


def test_local_splines_have_no_order() -> None:
    with refused(ConfigError, "weights along z have no modes in order, got BSpline", "NestedSpline along z"):
        trained(gpt(z=BSpline(4)), growth((0.3, Modes(z=2))))
