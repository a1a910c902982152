"""Widths that vary with depth: views, plain models with them, and the best ones for a budget."""

from typing import Any

import pytest
import torch

import continua as ct
from continua.convert import best_profile, best_steps
from continua.convert.profiles import spent
from continua.errors import ConfigError, GridError
from continua.operators import Pointwise
from tests.measure import EXACT, gap
from tests.refusals import refused
from tests.slow import slow_but


def words(seed: int = 0) -> torch.Tensor:
    return torch.randint(11, (4, 24), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def plain() -> Any:
    torch.manual_seed(0)
    return ct.zoo.gpt2(vocab=11, d=16, heads=4, depth=3, context=32, m=24).double()


@pytest.fixture(scope="module")
def model(plain) -> Any:
    return ct.elastic(plain, calibrate=[words(seed) for seed in range(3)])


@pytest.mark.spec("B11")
def test_a_profile_reads_each_layer_at_its_own_width(model) -> None:
    ids = words(9)
    profile = model.at(m=(24, 6, 12))
    feed = next(module for module in model.modules() if isinstance(module, Pointwise))
    structure = model.structure(profile.discretisation)
    read = feed.read(structure.grids.with_depths(structure.depths[1])).weights
    assert [read.at(float(z))["w2"].shape[1] for z in range(3)] == [24, 6, 12]
    for z, size in enumerate((24, 6, 12)):
        alone = model.structure(ct.at(m=size))
        wanted = feed.read(alone.grids.with_depths(alone.depths[1])).weights.at(float(z))
        assert all(torch.equal(value, wanted[name]) for name, value in read.at(float(z)).items())
    assert gap(model.at(m=(12, 12, 12))(ids), model.at(m=12)(ids)) <= EXACT
    assert gap(model.at(m=lambda z: 24 if z == 0 else 18 - 6 * z)(ids), model.at(m=(24, 12, 6))(ids)) <= EXACT
    assert gap(profile.held()(ids), profile(ids)) <= EXACT
    assert "Profile(24, 6, 12)" in str(profile.discretisation)


@pytest.mark.spec("B11", "B2")
@pytest.mark.parametrize("lifted", [True, False], ids=["lifted", "calibrated"])
def test_a_profile_becomes_a_plain_model_with_zeros(lifted, plain, model, tmp_path) -> None:
    ids = words(9)
    source = ct.lift(plain) if lifted else model
    view = source.at(m=(6, 12, 9), h=2)
    small = ct.discretise(view)
    assert small.axes.m.n == 12
    assert gap(small(ids), view(ids)) <= EXACT
    again = ct.load(small.save(tmp_path / "small"))
    assert gap(again(ids), view(ids)) <= EXACT


@pytest.mark.spec("B11")
def test_the_best_profile_loses_no_more_than_the_uniform_one(model) -> None:
    data = [words(seed) for seed in range(5, 8)]
    found = best_profile(model, data, 0.5, parts=4)
    assert sum(found) <= 36
    assert min(found) >= 1

    def lost(sizes: Any) -> float:
        return sum(float((model.at(m=sizes)(ids) - model(ids)).detach().square().sum()) for ids in data)

    assert lost(found) <= 1.02 * lost((12, 12, 12))
    assert best_profile(model, data, 1.0, parts=2) == (24, 24, 24)


@pytest.mark.spec("B11")
def test_a_budget_is_spent_where_it_helps_most() -> None:
    """Against all choices."""
    losses = [[5.0, 2.0, 0.0], [9.0, 1.0, 0.0], [0.5, 0.4, 0.0]]
    every = [(a, b, c) for a in (1, 2, 3) for b in (1, 2, 3) for c in (1, 2, 3)]
    for budget in range(3, 10):
        least = min(sum(losses[i][p - 1] for i, p in enumerate(one)) for one in every if sum(one) <= budget)
        chosen = spent(losses, budget)
        assert sum(chosen) <= budget
        assert sum(losses[i][p - 1] for i, p in enumerate(chosen)) == pytest.approx(least)


@pytest.mark.spec("B11")
def test_steps_are_joined_where_least_is_lost(model) -> None:
    data = [words(seed) for seed in range(5, 7)]
    found = best_steps(model, data, 2)
    assert sorted(found.lengths) == [1, 2]
    other = ct.Fixed(2, found.solver, lengths=found.lengths[::-1])

    def lost(z: Any) -> float:
        return sum(float((model.at(z=z)(ids) - model(ids)).detach().square().sum()) for ids in data)

    assert lost(found) <= lost(other)
    assert best_steps(model, data, 3).lengths == (1, 1, 1)


@pytest.mark.spec("B11")
def test_profiles_that_do_not_fit_are_refused(model) -> None:
    with refused(GridError, "2 sizes for 3", "as many sizes as steps"):
        model.at(m=(12, 6))(words())
    with refused(GridError, "one of d", "at(d=64)"):
        model.at(d=(12, 6, 4))
    with refused(GridError, "()", "for each step"):
        model.at(m=())
    with refused(ConfigError, "a share of 0 in 8 parts", "up to 1"):
        best_profile(model, [words()], 0.0)
    with refused(ConfigError, "none", "Give batches"):
        best_profile(model, [], 0.5)
    with refused(ConfigError, "1 parts", "Spend 2"):
        spent([[1.0], [1.0]], 1)
    with refused(ConfigError, "got 9", "1 to 3"):
        best_steps(model, [words()], 9)
    autonomous = ct.lift(ct.zoo.albert(11, table_width=5, d=8, heads=2, depth=2, context=32, m=12))
    with refused(ConfigError, "one set for all depths", "one size"):
        ct.discretise(autonomous, m=(12, 6))


@pytest.mark.spec("B11")
@pytest.mark.parametrize(
    "size", slow_but([{"m": (24, 6, 12)}], [{"m": 12, "h": 2}, {"m": (24, 6, 12)}], "seconds of tracing"), ids=str
)
def test_refits_and_profiles_are_constants_of_a_graph(model, size) -> None:
    ids = words(9)
    view = model.at(**size)
    run = torch.compile(lambda x: model(x, view.discretisation), fullgraph=True, backend="eager")
    assert gap(run(ids), view(ids)) <= EXACT
