"""The preset of the cheat-sheet: it uses what it says, learns, resumes, and its gradients are exact."""

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from continua.axes import GaussLegendre, Interval, at
from continua.errors import ConfigError
from continua.fields import Expansion, Generated
from continua.flow import Adaptive, Checkpoint, Direct, Dopri5, Fixed
from continua.optim import AdamW, Shampoo, Use, roles
from continua.recipes import SHIPPED, Bundle, CheatsheetSettings, build, cheatsheet, resume, start
from continua.recipes.recipe import keys
from continua.training import Objective, Penalties, Run, Sampled, SpectralNorm, Whole, fit
from continua.training.penalty import penalties
from tests.measure import gap, random
from tests.refusals import refused
from tests.runs import silent, steps_of, tiny_text
from tests.training.test_at import Replay

SMALL = {"d": 16, "modes": 3, "context": 8, "batch": 4, "save_every": 2, "evaluate_every": 100}


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> dict:
    pytest.importorskip("pytorch_optimizer")
    path: Path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(tiny_text(), encoding="utf-8")
    return {"text": str(path), **SMALL}


def step(made: Bundle, place=None, adjoint=None) -> tuple[dict, list[torch.Tensor]]:
    """The terms and gradients of its first training step."""
    objective, example = Objective(made.model, made.task, penalties(made.penalties)), made.task.example(0, 0)
    objective.places = ((place or made.training.at, 1.0),)
    objective.generator = torch.Generator().manual_seed(3)
    made.model.adjoint = adjoint or made.training.adjoint
    share, told = objective(example, Whole.of(example))
    return told, list(torch.autograd.grad(share, list(made.model.parameters())))


@pytest.mark.spec("T12", "B5")
def test_the_preset_is_what_the_cheat_sheet_says(given) -> None:
    made = build("cheatsheet", given)
    depth = made.training.at.z
    assert (type(depth), depth.solver, depth.rtol, depth.atol) == (Adaptive, Dopri5(), 1e-4, 1e-4)
    assert made.training.adjoint == Checkpoint(0.1)
    assert made.penalties == Penalties((Sampled(SpectralNorm(), weight=1e-4),)).terms[0]
    native = made.model.native
    assert native.h == GaussLegendre(4)
    assert 4 <= native.h.n <= 8
    assert native.z == Fixed(4, Dopri5())
    assert made.model.axes.z == Interval(0.0, 1.0)
    kernels = [f for f in made.model.block.modules() if isinstance(f, Expansion)]
    assert all(isinstance(f.bases["z"], Generated) and f.bases["z"].size == 3 for f in kernels)
    assert SHIPPED["cheatsheet"] is cheatsheet
    assert keys(cheatsheet) == list(CheatsheetSettings.__dataclass_fields__)


@pytest.mark.spec("T12", "T6")
def test_adamw_trains_the_hypernetwork_and_shampoo_the_kernels(given) -> None:
    made = build("cheatsheet", given)
    trained = {name: part.chosen for part in made.optimiser.make(made.model).parts for name in part.names}
    of = roles(made.model)
    assert set(trained) == set(of)
    for name, role in of.items():
        assert isinstance(trained[name], Shampoo if role.use is Use.KERNEL else AdamW), name
    assert {Use.KERNEL, Use.NETWORK, Use.TABLE, Use.GAIN, Use.SHIFT} <= {role.use for role in of.values()}


@pytest.mark.spec("T12", "T3", "T6")
def test_to_shampoo_nodal_values_on_a_circle_are_their_spectrum() -> None:
    """Equal nodes and waves differ by a rotation, and Shampoo rotates with it: nothing is lost by storing values."""
    pytest.importorskip("pytorch_optimizer")
    left, right = (torch.linalg.qr(random(6, 6, seed=i))[0] for i in (1, 2))
    start, target = random(6, 6, seed=3), random(6, 6, seed=4)
    found = []
    for turn in (lambda w: w, lambda w: left @ w @ right.T):
        weight = torch.nn.Parameter(turn(start).clone())
        optimiser = Shampoo(0.1).make([weight])
        for _ in range(3):
            optimiser.zero_grad()
            (weight - turn(target)).square().sum().backward()
            optimiser.step()
        found.append(weight.detach())
    assert gap(left @ found[0] @ right.T, found[1]) < 1e-9
    assert gap(found[0], start) > 0.05


@pytest.mark.spec("T12", "D4")
def test_its_gradients_are_those_of_plain_backprop_on_the_steps_it_found(given) -> None:
    made = build("cheatsheet", given)
    made.model.double()
    with torch.no_grad():
        path = made.model.states(made.task.example(0, 0).batch, made.training.at)
    nodes = path.z
    assert path.stats["accepted"] == len(nodes) - 1 > 2
    known = at(z=Replay(Dopri5(), steps=tuple((a, b - a) for a, b in itertools.pairwise(nodes))))
    told, got = step(made)
    plain, wanted = step(made, known, Direct())
    assert told["evaluations"] > 2 * 6 * (len(nodes) - 1)
    assert told["running"] == pytest.approx(float(plain["running"]), rel=1e-10)
    assert all(gap(a, b) < 1e-10 for a, b in zip(got, wanted, strict=True))


@pytest.mark.spec("T12", "T9")
def test_it_learns_and_a_resumed_run_goes_on(given, tmp_path) -> None:
    fitted = start("cheatsheet", {**given, "steps": 6}, tmp_path / "run")
    assert fitted.history[-1]["loss"] < 0.9 * fitted.history[0]["loss"]
    assert all(line["evaluations"] > 24 and line["running"] > 0 for line in fitted.history)
    resume(tmp_path / "run", {"steps": 8})
    assert steps_of(tmp_path / "run") == [*range(1, 9)]
    model = Run.open(tmp_path / "run").model()
    written = model.generate(torch.tensor([[1, 2, 3]]), tokens=2)
    assert written.shape == (1, 5), "the native steps are known, so there is a cache"


@pytest.mark.spec("T12", "T9")
def test_the_same_preset_makes_the_same_run(given) -> None:
    histories = []
    for _ in range(2):
        made = build("cheatsheet", given)
        task = replace(made.task, limit=1)
        done = fit(made.model, task, optimiser=made.optimiser, penalties=made.penalties, steps=2, watch=silent,
                   at=made.training.at, adjoint=made.training.adjoint)  # fmt: skip
        histories.append([line["loss"] for line in done.history])
    assert histories[0] == histories[1]


@pytest.mark.spec("T12")
def test_without_shampoos_library_it_says_so_before_anything_is_written(given, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with refused(ConfigError, "got no such package", "pip install 'continua-ml[optim]'"):
        start("cheatsheet", given, tmp_path / "run")
    assert not (tmp_path / "run").exists()
