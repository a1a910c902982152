"""Lifting and its inverse, over every discrete model: the same numbers at the nodes, a plain model at any size."""

from typing import Any

import pytest
import torch

import continua as ct
from continua.axes import Interval, Nested, Points, grid_on, taken_first
from continua.config import from_plain, to_plain
from continua.errors import CheckpointError, ConfigError, GridError
from continua.fields import Cubic
from continua.flow import Fixed, LieTrotter
from tests.cases import MODELS, made
from tests.lazy import Lazily
from tests.measure import EXACT, gap
from tests.refusals import refused

transformers = Lazily("transformers")
DISCRETE = [name for name in MODELS if all(isinstance(f.axes.d, Points) for f in made(name)[0].flows)]
SIZES = {"m": 5, "h": 1, "d": 4, "z": 1}
SMALL = {"vocab": 23, "d": 16, "heads": 4, "depth": 3, "context": 12, "m": 40}


@pytest.fixture(params=DISCRETE)
def name(request) -> str:
    return request.param


@pytest.mark.spec("B2")
def test_a_lifted_model_is_the_same_on_its_own_grid(name) -> None:
    model, batch, wanted = made(name)
    assert gap(ct.lift(model)(batch), wanted) <= EXACT


@pytest.mark.spec("B2")
def test_discretise_is_the_inverse_of_lift(name) -> None:
    model, batch, wanted = made(name)
    back = ct.discretise(ct.lift(model))
    assert to_plain(back) == to_plain(model)
    assert gap(back(batch), wanted) <= EXACT
    if name != "density":  # which is folded into the output map
        ours = back.state_dict()
        assert all(torch.equal(ours[key], tensor) for key, tensor in model.state_dict().items())


@pytest.mark.spec("B2")
def test_a_discretised_view_is_a_plain_model_with_its_numbers(name) -> None:
    model, batch, _ = made(name)
    lifted = ct.lift(model)
    refusing = {letter for letter in SIZES if _refuses(lifted, letter)}
    assert refusing == expected_refusals(name)
    sizes = {letter: n for letter, n in SIZES.items() if letter not in refusing}
    if name == "layer":
        del sizes["d"]  # its state comes with the batch
    view = lifted.at(**sizes)
    plain = ct.discretise(view)
    assert plain.native.is_discrete
    assert gap(plain(batch), view(batch)) <= EXACT


def _refuses(lifted: Any, letter: str) -> bool:
    try:
        ct.discretise(lifted, **{letter: SIZES[letter]})
    except ConfigError as refusal:
        return "Keep" in str(refusal)  # the remedy
    return False


def expected_refusals(name: str) -> set[str]:
    """Skip factors and second nonlinearities with other steps, solvers that read layers twice, places that count."""
    steps = name in ("graph attention", "phi2", "skip") or "RK4" in name or "Heun" in name
    heads = "ALiBi" in name or "Gaussian" in name
    return {letter for letter, refused in (("z", steps), ("h", heads), ("d", name == "sinusoidal")) if refused}


@pytest.mark.spec("B2")
@pytest.mark.parametrize("size", [{"e": 2}, {"z": 4}, {"m": 24}, {"d": 16}, {"h": 4}], ids=str)
def test_other_sizes_are_folded_too(size) -> None:
    model, batch, _ = made("gpt2")
    view = ct.lift(model).at(**size)
    assert gap(ct.discretise(view)(batch), view(batch)) <= EXACT


@pytest.mark.spec("B2")
def test_smooth_weights_between_layers_leave_the_layers_alone() -> None:
    model, batch, wanted = made("gpt2")
    lifted = ct.lift(model, Cubic())
    assert gap(lifted(batch), wanted) <= EXACT
    assert gap(lifted.at(z=4)(batch), ct.lift(model).at(z=4)(batch)) > 1e-3
    with refused(ConfigError, "RK4", "between=Hold()"):
        ct.lift(made("stepped by RK4")[0], Cubic())


@pytest.mark.spec("B2")
def test_steps_of_other_lengths_are_folded_in() -> None:
    model, batch, _ = made("bert")
    model = ct.zoo.bert(vocab=11, d=8, heads=2, depth=3, context=16, m=12)
    view = ct.lift(model).at(z=Fixed(2, LieTrotter(), lengths=(1, 2)))
    plain = ct.discretise(view)
    assert plain.native.z.steps == 2
    assert gap(plain(batch), view(batch)) <= EXACT


@pytest.mark.spec("B2")
def test_grouped_heads_stay_grouped_where_groups_keep_as_many() -> None:
    model = ct.zoo.llama(vocab=11, d=8, heads=4, depth=2, m=12, groups=2)
    batch = torch.arange(10).view(2, 5)
    lifted = ct.lift(model)
    for heads, groups in ((4, 2), (2, 2), (3, None)):
        view = lifted.at(h=heads)
        plain = ct.discretise(view)
        assert plain.block.parts[0].inner.groups == groups
        assert gap(plain(batch), view(batch)) <= EXACT


@pytest.mark.spec("B2")
@pytest.mark.parametrize("family", ["gpt2", "bert"])
@pytest.mark.parametrize("size", [{"m": 20, "h": 2}, {"h": 3}, {"d": 8, "h": 2, "z": 2}], ids=str)
@pytest.mark.usefixtures("quiet_hugging_face")
def test_transformers_loads_what_was_discretised(family, size, tmp_path) -> None:
    model = getattr(ct.zoo, family)(**SMALL).double()
    small = ct.discretise(ct.lift(model), **size)
    if small.axes.e.n * small.axes.h.n == small.axes.d.n:
        ct.to_hf(small, tmp_path)
    else:
        with pytest.warns(UserWarning, match="padded with zeros"):
            ct.to_hf(small, tmp_path)
    ids = torch.randint(1, 23, (2, 7), generator=torch.Generator().manual_seed(0))
    auto = transformers.AutoModelForCausalLM if family == "gpt2" else transformers.AutoModel
    theirs = auto.from_pretrained(tmp_path, dtype=torch.float64)
    answer = theirs.eval()(ids)
    got = answer.logits if family == "gpt2" else answer.last_hidden_state
    assert gap(got, small(ids)) <= EXACT


@pytest.mark.spec("B2")
def test_heads_that_are_too_wide_for_a_family_are_refused(tmp_path) -> None:
    narrow = ct.discretise(ct.lift(ct.zoo.bert(**SMALL)), d=8)  # four heads of four in a width of eight
    with refused(CheckpointError, "Transformer", "at most d/h wide"):
        ct.to_hf(narrow, tmp_path / "bert")
    with refused(CheckpointError, "on continuous axes (see discretise)", "discrete families"):
        ct.to_hf(ct.lift(ct.zoo.bert(**SMALL)), tmp_path / "lifted")
    assert not list(tmp_path.iterdir())


@pytest.mark.spec("B2")
def test_what_cannot_be_lifted_or_discretised_is_refused() -> None:
    model = ct.zoo.gpt2(**SMALL)
    with refused(ConfigError, "Linear", "models.zoo"):
        ct.lift(torch.nn.Linear(2, 2))
    with refused(ConfigError, "Interval", "counted axes"):
        ct.lift(ct.lift(model))
    with refused(ConfigError, "Linear", "discretise(model, m=512)"):
        ct.discretise(torch.nn.Linear(2, 2))
    with refused(ConfigError, "m", "discretise(model, d=…)"):
        ct.discretise(ct.lift(model).at(m=20), m=10)
    with refused(ConfigError, "adaptive steps", "at(z=6)"):
        ct.discretise(ct.lift(model).at(z=ct.Adaptive()))
    with refused(ConfigError, "SpectralConvolution", "ct.export"):
        ct.discretise(ct.zoo.function_map(ct.Circle(), 8, at=ct.at(d=4, h=2, m=4, z=2), modes=2))
    with refused(GridError, "8 nodes", "n ≤ 4"):  # grouped heads are counted: there is no rule to refine them
        ct.lift(ct.zoo.llama(vocab=8, d=8, heads=4, depth=1, m=8, groups=2)).at(h=8)(torch.zeros(1, 2).long())


@pytest.mark.spec("B2")
@pytest.mark.parametrize("axis", [Points(6), Interval()], ids=str)
def test_an_order_of_nodes_is_nested(axis: Any) -> None:
    order = (4, 0, 5, 2, 1, 3)
    native = Nested(6, order)
    fine = grid_on(axis, native).nodes[:, 0].tolist()
    for n in range(1, 7):
        taken = grid_on(axis, native.resized(n))
        assert taken.nodes[:, 0].tolist() == [fine[i] for i in sorted(order[:n])]
        assert taken.weights.sum() == pytest.approx(grid_on(axis, native).weights.sum())
    assert taken_first(axis, native).tolist() == list(order)
    if isinstance(axis, Interval):
        finer = grid_on(axis, native.resized(8)).nodes[:, 0].tolist()
        assert set(finer) - set(fine) == {4.5 / 6, 0.5 / 6}
    plain = Nested(6)
    for n in range(1, 7):
        nodes = grid_on(axis, plain).nodes[:, 0].tolist()
        chosen = sorted(taken_first(axis, plain)[:n].tolist())
        assert grid_on(axis, plain.resized(n)).nodes[:, 0].tolist() == [nodes[i] for i in chosen]
    assert from_plain(to_plain(native)) == native
    with refused(GridError, "(0, 0)", "once"):
        Nested(2, (0, 0))
