"""The hidden width m and the width e of a head as axes of their own: gains along them, lessons, growth, old models."""

from typing import Any

import pytest
import torch

from continua.axes import at
from continua.config import from_plain, to_plain
from continua.convert import elastic
from continua.errors import ConfigError
from continua.models import Transformer, zoo
from continua.operators.calibration import HALF
from continua.optim import AdamW, ByRole
from continua.tasks.task import generator_for
from continua.training import Copied, Elastic, Growth, Run, Stage, fit
from continua.training.prolongation import Switch
from tests.refusals import refused
from tests.runs import calibrated, tiny_task

pytestmark = pytest.mark.spec("B1", "T11")


def gpt() -> Transformer:
    torch.manual_seed(0)
    task = tiny_task()
    return elastic(zoo.gpt2(vocab=task.tokens.size, d=16, heads=4, depth=2, context=task.context).double())


def ids() -> torch.Tensor:
    return torch.randint(10, (3, 7), generator=torch.Generator().manual_seed(2))


def before(plain: Any) -> Any:
    """A description as it was written when there were no gains along m and e."""
    if isinstance(plain, list):
        return [before(value) for value in plain]
    if not isinstance(plain, dict):
        return plain
    return {key: before(value) for key, value in plain.items() if key != "calibrated_along"}


def test_the_size_along_m_is_what_goes_beyond_that_of_d() -> None:
    model = gpt()
    own = model.block.parts[1].inner.calibration
    for wish, size in (({}, 0.0), ({"d": 8}, 0.0), ({"m": 32}, 1.0), ({"m": 16}, 2.0), ({"d": 8, "m": 64}, -1.0),
                       ({"d": 8, "m": 16}, 1.0), ({"m": 128}, 0.0), ({"d": 32}, 0.0), ({"d": 10}, 0.0)):  # fmt: skip
        assert own.sizes(model.structure(at(**wish)).grids)["m"] == pytest.approx(size, abs=1e-12), wish
    assert own.sizes(model.structure(at(e=2)).grids)["e"] == 1.0
    assert own.sizes(model.structure(at(e=8)).grids)["e"] == 0.0


def test_gains_along_m_scale_the_rows_and_columns_of_the_output_map() -> None:
    model = calibrated(gpt())
    part = model.block.parts[1].inner
    structure = model.structure(at(m=32))
    _, args = part.bind(structure.grids.with_depths(structure.depths[1]))
    rows, columns = (part.calibration.fields[f"w2 over {k} by m"].coefficients[0] for k in "dm")
    nodes = slice(None, None, 2)
    plain = part.w2.coefficients[0][:, nodes] * 2.0  # half of the nodes, each with twice the weight
    expected = plain * rows.exp()[:, None] * columns[nodes].exp()
    assert torch.allclose(args.weights.at(0.0)["w2"], expected, rtol=1e-12, atol=1e-14)
    fresh = gpt().block.parts[1].inner.calibration.fields
    assert (fresh["w2 over d by m"].coefficients - HALF).abs().max() < 1e-7, "rough weights"
    assert fresh["w2 over m by m"].coefficients.abs().max() == 0
    heads = gpt().block.parts[0].inner.calibration.fields
    assert (heads["o over h by e"].coefficients - HALF).abs().max() < 1e-7


def test_old_descriptions_load_and_compute_what_they_computed() -> None:
    model = calibrated(gpt())
    old = from_plain(before(to_plain(model))).double()
    later = (" by m.", " by e.", " by p.")
    state = {name: value for name, value in model.state_dict().items() if not any(by in name for by in later)}
    old.load_state_dict(state)  # strict: it has no such gains
    for wish in ({}, {"d": 8}, {"h": 2}, {"z": 1}, {"d": 10, "h": 3, "z": 1}, {"d": 32}, {"m": 128}):
        assert torch.equal(old.at(**wish)(ids()), model.at(**wish)(ids())), wish
    with torch.no_grad():
        for name, gain in model.named_parameters():
            if any(by in name for by in later):
                gain.zero_()
    for wish in ({"m": 32}, {"e": 2}, {"d": 8, "m": 64}, {"d": 10, "h": 3}):
        assert torch.allclose(old.at(**wish)(ids()), model.at(**wish)(ids()), rtol=0, atol=1e-14), wish
    finer = old.at(z=4)(ids())  # what version 0.1 taught at twice the steps are gains along z
    assert (finer - model.at(z=4)(ids())).abs().max() > 1e-3
    with torch.no_grad():
        for name, gain in old.named_parameters():
            if " by z." in name:
                gain.zero_()
    assert (finer - old.at(z=4)(ids())).abs().max() > 1e-3


def test_sizes_of_m_and_e_are_drawn_and_learn() -> None:
    law = Elastic(m=(16, 32, 64), e=(2, 4), start=0.0, draws=1, deep=0.0)
    model = gpt()
    plan = law.over(model)
    lessons = [one.at for step in range(300) for one in plan.draw(0.5, generator_for("size", 0, step))]
    assert {lesson.m for lesson in lessons} == {16, 32, 64}
    assert {lesson.e for lesson in lessons} == {2, 4}
    assert at(d=16, h=4, z=2, e=4, m=16) in lessons, "one axis alone"
    gains = {name: p.detach().clone() for name, p in model.named_parameters() if " by m." in name or " by e." in name}
    task = tiny_task()
    fit(model, task, steps=30, elastic=law, optimiser=ByRole(AdamW(1e-2)), watch=lambda at: None)
    for name, p in model.named_parameters():
        if name in gains:
            assert not torch.equal(p, gains[name]), name


def test_a_run_with_such_sizes_goes_on_with_the_same_bits(tmp_path) -> None:
    own = {"steps": 8, "save_every": 1, "elastic": Elastic(m=(32, 64), e=(2, 4), start=0.0)}
    whole = fit(gpt(), tiny_task(), watch=lambda at: None, **own)

    def stop(progress: Any) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    fit(gpt(), tiny_task(), run=tmp_path / "run", watch=stop, **own)
    again = fit(gpt(), tiny_task(), run=Run.open(tmp_path / "run"), watch=lambda at: None, **own)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


@pytest.mark.parametrize("coarse", [{"m": 32}, {"m": 16}, {"d": 8, "m": 16}, {"d": 8, "m": 64}])
def test_copied_hidden_nodes_leave_the_answer_as_it_was(coarse: dict[str, int]) -> None:
    model = calibrated(gpt())
    answer = model.at(**coarse)(ids())
    sizes = ((model.settle(at(**coarse)),), (model.settle(None),))
    optimisers = ByRole(AdamW(1e-2)).make(model)
    Copied(noise=0.0).prolong(Switch(model, optimisers, *sizes, seed=0))
    assert (model(ids()) - answer).abs().max() < 1e-12


def test_a_model_grows_along_its_hidden_width() -> None:
    grown = fit(gpt(), tiny_task(), steps=6, grow=Growth((Stage((at(m=32),), 0.5),)), watch=lambda at: None)
    assert [line["stage"] for line in grown.history] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("along", ["dhx", "dd"])
def test_gains_are_along_axes_that_there_are(along: str) -> None:
    def changed(plain: Any) -> Any:
        if isinstance(plain, list):
            return [changed(value) for value in plain]
        if not isinstance(plain, dict):
            return plain
        return {key: along if key == "calibrated_along" else changed(value) for key, value in plain.items()}

    with refused(ConfigError, "along some of d h z m e p", 'Write each once, as in "dhz"'):
        from_plain(changed(to_plain(gpt())))
