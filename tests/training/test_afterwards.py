"""Corrections that begin below half, and the steps afterwards in which they alone learn."""

from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

import continua as ct
from continua.axes import at
from continua.config import from_plain, to_plain
from continua.convert import elastic, with_corrections
from continua.errors import ConfigError, RunError
from continua.fields import Corrections, Use, roles
from continua.models import Transformer, zoo
from continua.operators.correction import corrections_of
from continua.optim import AdamW, ByRole, Muon
from continua.recipes.elastic import ElasticSettings, afterwards
from continua.recipes.elastic import corrected as with_own_corrections
from continua.tasks import Text
from continua.training import Afterwards, Copied, Elastic, Growth, Run, Stage, Training, fit
from continua.training.prolongation import Switch
from continua.training.sizes import native_sizes
from tests.refusals import refused
from tests.runs import silent, timeless, tiny_task

pytestmark = [pytest.mark.spec("B1"), pytest.mark.spec("T11")]
BOTH = ByRole(AdamW(1e-2), kernel=Muon(0.05))
HALVES = Growth((Stage((at(d=8, h=2, z=2),), 0.5),))
LATER = Afterwards(2 / 3, (at(d=4, h=1, z=1), at(d=4), at(h=1), at(z=1), at(z=8)))
SERVED = ({}, {"d": 8}, {"d": 10}, {"h": 2}, {"z": 2}, {"d": 8, "h": 2, "z": 2}, {"z": 3}, {"d": 32})
BELOW = ({"d": 4}, {"z": 8}, {"d": 6}, {"h": 1}, {"z": 1}, {"d": 4, "h": 1, "z": 1}, {"d": 4, "z": 3})


def gpt(beyond: float = 1.0, apart: bool = False) -> Transformer:
    torch.manual_seed(0)
    made = elastic(zoo.gpt2(vocab=tiny_task().tokens.size, d=16, heads=4, depth=4, context=8))
    of_all = None if apart else 2
    return with_corrections(made, Corrections((3, 2, 3, of_all, 1), "dhzaf", beyond, apart)).double()


def ids() -> torch.Tensor:
    return torch.randint(10, (3, 7), generator=torch.Generator().manual_seed(2))


def trained(model: Any, steps: int = 6, later: Afterwards | None = LATER, **given: Any) -> Any:
    given = {"optimiser": BOTH, "watch": silent, "evaluate_every": 3, "elastic": Elastic(start=0.0, deep=0.0), **given}
    return fit(model, tiny_task(), steps=steps, grow=HALVES, afterwards=later, **given)


def shaken(model: Any) -> Any:
    """Corrections that say something."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for own in corrections_of(model):
            for parameter in own.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


# --- corrections that begin below half --------------------------------------------------------------------------------


def test_sizes_from_half_on_read_nothing() -> None:
    model = gpt()
    before = {str(size): model.at(**size)(ids()) for size in (*SERVED, *BELOW)}
    shaken(model)
    for size in SERVED:
        assert torch.equal(model.at(**size)(ids()), before[str(size)]), size
    for size in BELOW:
        assert (model.at(**size)(ids()) - before[str(size)]).abs().max() > 1e-3, size


def test_a_new_correction_changes_nothing() -> None:
    model = gpt()
    torch.manual_seed(0)
    plain = elastic(zoo.gpt2(vocab=tiny_task().tokens.size, d=16, heads=4, depth=4, context=8)).double()
    for size in (*SERVED, *BELOW):
        assert torch.equal(model.at(**size)(ids()), plain.at(**size)(ids())), size


def test_what_is_stored_is_what_the_finest_size_below_half_reads() -> None:
    shapes = {name: tuple(value.shape) for name, value in gpt().state_dict().items()}
    inner = "block.parts.1.inner.correction.fields"
    assert shapes[f"{inner}.w1 in by d.coefficients"] == (4, 3, 7), "z, rank, seven of sixteen nodes"
    assert shapes[f"{inner}.w1 out by d.coefficients"] == (4, 3, 31), "m follows d"
    assert shapes[f"{inner}.w1 in by z.coefficients"] == (1, 3, 16), "one step"
    assert f"{inner}.w1 in by h.coefficients" not in shapes, "no map of heads"
    assert shapes["embed.table.below.coefficients"] == (tiny_task().tokens.size, 7)


def test_a_vector_and_a_table_are_corrected_by_their_formula() -> None:
    """w + s_d a + s_z b, with s_d = log2(16 / 4) − 1 and s_z = log2(4) − 1."""
    model = shaken(gpt())
    structure = model.structure(at(d=4, z=1))
    grids = structure.grids.with_depths(structure.depths[0])
    norm = model.block.parts[0].norm
    norm.calibration = None
    d = {"d": grids.d}
    own = norm.correction.fields
    wanted = norm.shift.on(**d)[0] + own["shift by d"].on(**d)[0] + own["shift by z"].on(**d)[0]
    assert (norm.read(grids).weights.at(0.0)["shift"] - wanted).abs().max() < 1e-12
    table = model.embed.table
    stored = table.coefficients[:, ::4] + table.below.on(**d)
    assert (table.on(**d) - stored).abs().max() < 1e-12


def test_what_corrects_all_axes_may_stand_in_the_place_of_the_others() -> None:
    """s_a = min(s_d, s_h, s_z), and the others are less by it: a quarter of everything reads a alone."""
    model = gpt(apart=True)
    own = model.block.parts[0].inner.correction

    def sizes(**wish: int) -> dict[str, float]:
        structure = model.structure(at(**wish))
        return own.sizes(structure.grids.with_depths(structure.behind))

    assert sizes(d=4, h=1, z=1) == {"a": 1.0}
    assert sizes(d=4, h=1) == {"d": 1.0, "h": 1.0}
    assert sizes(d=2, h=1, z=1) == {"d": 1.0, "a": 1.0}
    before = model.at(d=4, h=1, z=1)(ids())
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            if " by a" not in name:
                parameter.add_(1.0)
    assert torch.equal(model.at(d=4, h=1, z=1)(ids()), before), "what other sizes learn"
    assert (model.at(d=2, h=1, z=1)(ids()) - gpt(apart=True).at(d=2, h=1, z=1)(ids())).abs().max() > 1e-3


def test_a_quarter_of_everything_learns_by_its_own_correction_alone() -> None:
    model = gpt(apart=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained(model, 3, Afterwards(1.0, (at(d=4, h=1, z=1),), BOTH), elastic=None)
    own = {name.partition(".correction.fields.")[2] for name, value in model.state_dict().items()
           if ".correction." in name and not torch.equal(value, before[name])}  # fmt: skip
    assert "q whole by a.coefficients" in own
    assert all(" by a." in name for name in own)


def test_the_recipe_gives_a_quarter_of_everything_kernels_of_its_own() -> None:
    plain = elastic(zoo.gpt2(vocab=10, d=16, heads=4, depth=4, context=8))
    settings = ElasticSettings(apart=True)
    model = with_own_corrections(plain, settings)
    kernels = [name for name, role in roles(model).items() if " whole by " in name and role.use is Use.KERNEL]
    assert len(kernels) == 6
    assert all(" by a." in name for name in kernels)
    later = afterwards(native_sizes(model), settings)
    assert later is not None
    later.over(model, 4)  # every size reads a correction
    assert max(later.sizes, key=later.sizes.count) == at(d=4, h=1, z=1)
    assert later.optimiser.of(roles(model)[kernels[0]]) == Muon(4 * settings.matrix_lr)


def test_the_recipe_corrects_the_width_alone_where_nothing_else_has_a_quarter() -> None:
    plain = elastic(zoo.gpt2(vocab=10, d=16, heads=2, depth=2, context=8))
    model = with_own_corrections(plain, ElasticSettings())
    later = afterwards(native_sizes(model), ElasticSettings())
    assert later is not None
    later.over(model, 4)  # every size reads a correction


@pytest.mark.parametrize("size", BELOW[:6], ids=str)
def test_a_corrected_size_is_held_made_discrete_and_kept(size: dict[str, int], tmp_path: Path) -> None:
    view = shaken(gpt()).at(**size)
    answer = view(ids())
    assert (view.held()(ids()) - answer).abs().max() < 1e-12
    assert (ct.discretise(view)(ids()) - answer).abs().max() < 1e-12
    again = ct.load(view.model.save(tmp_path / "saved"))
    assert torch.equal(again.at(**size)(ids()), answer)


def test_a_size_is_not_taught_by_corrections_that_it_does_not_read() -> None:
    with refused(ConfigError, "or of other sizes", "start from the model without corrections"):
        with_corrections(gpt(), Corrections(3, "d"))


# --- the steps afterwards ---------------------------------------------------------------------------------------------


@lru_cache
def calm() -> Any:
    """A fit that nobody interrupts."""
    return trained(gpt())


def test_corrections_alone_learn_and_other_sizes_stay_to_the_bit() -> None:
    model = gpt()
    seen: dict[int, dict[str, torch.Tensor]] = {}

    def watch(progress: Any) -> None:
        if progress.step in (6, 10):
            seen[progress.step] = {str(size): model.at(**size)(ids()).detach() for size in (*SERVED, *BELOW)}

    done = trained(model, watch=watch)
    assert [line["step"] for line in done.history] == list(range(1, 11))
    for size in SERVED:
        assert torch.equal(seen[6][str(size)], seen[10][str(size)]), size
    for size in (own for own in BELOW if own != {"z": 8}):  # which is not drawn in four steps
        assert not torch.equal(seen[6][str(size)], seen[10][str(size)]), size
    assert all(parameter.requires_grad for parameter in model.parameters()), "all may learn again"


def test_every_size_learns_once_before_one_learns_again() -> None:
    later = LATER.over(gpt(), 6)
    drawn = [later.place(seed=1, step=step) for step in range(6, 16)]
    assert Counter(drawn[:5]) == Counter(drawn[5:]) == Counter(LATER.sizes)
    assert drawn[:5] != drawn[5:], "in another order"
    assert drawn != [later.place(seed=2, step=step) for step in range(6, 16)]


def test_until_then_nothing_is_other_than_without_them() -> None:
    """Unless a lesson reads a correction, which it then teaches: here none does."""
    without = trained(gpt(), later=None)
    for name, value in without.model.state_dict().items():
        same = torch.equal(value, calm().model.state_dict()[name])
        assert same or ".correction." in name or ".below." in name, name
    assert timeless(without.history)[:5] == timeless(calm().history)[:5]


def test_a_switch_to_a_finer_grid_leaves_corrections_alone() -> None:
    model = gpt()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sizes = ((model.settle(at(d=8, h=2, z=2)),), (model.settle(None),))
    Copied().prolong(Switch(model, BOTH.make(model), *sizes, seed=0))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert "embed.table.coefficients" in changed
    assert not any(".correction." in name or ".below." in name for name in changed)


def test_the_schedule_begins_again() -> None:
    factors = [line["factor"] for line in calm().history]
    alone = [line["factor"] for line in trained(gpt(), steps=4, later=None, elastic=None).history]
    assert factors[6:] == alone


@pytest.mark.parametrize("stopped", [6, 8])
def test_a_run_goes_on_with_the_same_bits(tmp_path: Path, stopped: int) -> None:
    def stop(progress: Any) -> None:
        if progress.step == stopped:
            raise KeyboardInterrupt

    part = trained(gpt(), run=tmp_path / "run", watch=stop)
    assert part.ended == "interrupted"
    rest = trained(gpt(), run=Run.open(tmp_path / "run"))
    assert timeless(rest.history) == timeless(calm().history)
    for name, value in calm().model.state_dict().items():
        assert torch.equal(value, rest.model.state_dict()[name]), name
    kept = Run.open(tmp_path / "run")
    assert torch.equal(kept.model("last").at(d=4)(ids()), calm().model.at(d=4)(ids()))


def test_the_best_model_of_a_run_is_a_corrected_one(tmp_path: Path) -> None:
    done = trained(gpt(), run=tmp_path / "run", evaluate_every=2)
    losses = [line["validation_loss"] for line in done.history if "validation_loss" in line]
    assert losses[-1] == losses[-2] == min(losses), "the native size stays"
    best = Run.open(tmp_path / "run").model()
    assert torch.equal(best.at(d=4)(ids()), done.model.at(d=4)(ids()))


def test_a_run_that_goes_back_goes_back_to_the_optimiser_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = Text.loss
    spoiled: list[int] = []

    def bad(self: Any, answer: torch.Tensor, example: Any) -> torch.Tensor:
        if not model.embed.table.coefficients.requires_grad and len(spoiled) < 4:
            spoiled.append(1)
            return loss(self, answer, example) * float("nan")
        return loss(self, answer, example)

    model = gpt()
    monkeypatch.setattr(Text, "loss", bad)
    done = trained(model, run=tmp_path / "run", evaluate_every=20, save_every=4)
    assert [line["note"] for line in done.history if "back" in line.get("note", "")] == [
        "4 bad steps in a row: back to step 4, with other data"
    ]
    assert [line["factor"] for line in done.history if "note" not in line][-6:] == [
        line["factor"] for line in calm().history[4:]
    ]


@pytest.fixture(scope="module")
def corrected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corrected") / "run"
    trained(gpt(), run=folder)
    return folder


@pytest.mark.parametrize(
    ("steps", "later"), [(6, None), (6, Afterwards(2 / 3, (at(z=1),))), (6, Afterwards(1.5, LATER.sizes)), (8, LATER)]
)
def test_another_ending_is_refused(corrected: Path, steps: int, later: Afterwards | None) -> None:
    growth = Growth((Stage((at(d=8, h=2, z=2),), 0.5),))
    with refused(RunError, "corrections of this run have begun to learn", "start a new run"):
        fit(gpt(), tiny_task(), run=Run.open(corrected), steps=steps, grow=growth, afterwards=later,
            optimiser=BOTH, watch=silent, elastic=Elastic(start=0.0, deep=0.0))  # fmt: skip


def test_it_is_part_of_the_settings() -> None:
    settings = Training(steps=6, afterwards=LATER)
    assert from_plain(to_plain(settings)) == settings
    assert settings.total == 10
    assert Training(steps=6).total == 6


@pytest.mark.parametrize(
    ("make", "sentence", "remedy"),
    [
        (lambda: Afterwards(0.5, ()), "some size learns afterwards", "Write Afterwards("),
        (
            lambda: trained(gpt(), later=Afterwards(0.5, (at(d=4), at(d=8)))),
            "this size reads no correction",
            "Name sizes",
        ),
        (
            lambda: trained(elastic(zoo.gpt2(vocab=13, d=16, heads=4, depth=4, context=8))),
            "this size reads no correction",
            "with_corrections",
        ),
        (lambda: Training(afterwards=LATER, patience=2), "after all steps, on whole weights", "Leave patience out"),
        (lambda: Training(afterwards=LATER, sharded=True), "after all steps, on whole weights", "sharded=False"),
    ],
)
def test_what_nothing_would_learn_from_is_refused(make: Any, sentence: str, remedy: str) -> None:
    with refused(ConfigError, sentence, remedy):
        make()
