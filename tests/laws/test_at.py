"""Laws of ``at``: any grid runs, weights are shared, gradients flow, the native view is the model itself."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from torch import nn

from continua.axes import (
    Circle,
    Counting,
    Discretisation,
    GaussLegendre,
    Interval,
    Midpoint,
    Nested,
    Points,
    Product,
    ProductRule,
    Times,
    Trapezoid,
    at,
)
from continua.convert import from_torch
from continua.errors import ConfigError
from continua.flow import RK4, Euler, Fixed, LieTrotter
from continua.models import Batch, Transformer
from continua.models.batch import place
from continua.operators import Context
from tests.bound import leaves
from tests.cases import MODELS, made
from tests.cases_models import CHANNELS, SMOOTH, STEPS, words
from tests.measure import gap, random

OTHER = {"d": 6, "h": 1, "e": 2, "m": 5, "z": 3}


# one of each kind of field, axis and head
KINDS = ["gpt2", "continuous series", "spectral", "separable networks", "density", "grouped heads", "position rotary"]


def read_at(name: str, wish: Discretisation) -> tuple[torch.Tensor, torch.Tensor]:
    """The answer on another discretisation, and the native one."""
    model, batch, answer = made(name)
    if name == "layer" and wish.d is not None:  # a layer on its own is handed its state on the d grid of the call
        batch = Batch(random(2, 6, wish.d))
    return model(batch, at=wish), answer


@pytest.mark.spec("M10")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("letter", OTHER)
def test_any_axis_alone_can_have_another_size(name, letter) -> None:
    got, answer = read_at(name, at(**{letter: OTHER[letter]}))
    assert got.shape == answer.shape
    assert torch.isfinite(got).all()
    assert gap(got, answer) > 1e-9, f"at({letter}=…) changed nothing"


@pytest.mark.spec("M10")
@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs_at_any_size_with_its_one_set_of_weights(name) -> None:
    got, answer = read_at(name, at(**OTHER))
    assert got.shape[:-1] == answer.shape[:-1]
    assert torch.isfinite(got).all()
    named = dict(made(name)[0].named_parameters())
    grads = torch.autograd.grad((got * random(*got.shape)).sum(), named.values(), allow_unused=True)
    missing = [path for path, grad in zip(named, grads, strict=True) if grad is None]
    assert not missing, "gradients flow through the view into the weights"


@pytest.mark.spec("M10")
@pytest.mark.parametrize("name", MODELS)
def test_the_native_view_is_bit_equal_to_the_model(name) -> None:
    model, batch, answer = made(name)
    assert torch.equal(model(batch, at=at(d=8, h=2, e=4, m=12, z=STEPS)), answer)
    if name in KINDS:
        assert torch.equal(model.at()(batch), answer)
        assert torch.equal(model.at(model.native)(batch), answer)


def reads_only_layers(model: Any) -> bool:
    """Whether every weight is read at whole depths, where the layers of a counted model are stored."""
    solver = model.native.z.solver
    stays = solver == LieTrotter() or (solver == Euler() and all(model.block.kinds))  # Euler projects at a step's end
    return model.native.is_discrete and stays


COUNTED = [
    name
    for name in MODELS
    if isinstance(model := made(name)[0], Transformer) and reads_only_layers(model) and name != "density"
]


@pytest.mark.spec("M10", "M5")
@pytest.mark.parametrize("name", COUNTED)
def test_on_the_native_grid_bound_weights_are_the_stored_numbers_themselves(name) -> None:
    model, batch, _ = made(name)
    structure = model.structure()
    _, args = model.bind(model.prepare(batch, structure)[1], structure, Context())
    stored = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    weights = [leaf for path, leaf in leaves(args).items() if {"fixed", "depth"} & set(path.split("."))]
    assert weights
    assert all(leaf.untyped_storage().data_ptr() in stored for leaf in weights)


@pytest.mark.spec("M10", "M5")
@pytest.mark.parametrize("name", COUNTED)
def test_on_the_native_grid_weights_that_are_read_to_be_kept_are_the_parameters_themselves(name) -> None:
    model, _, _ = made(name)
    stored = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    learned = [leaf for leaf in leaves(model.read()).values() if leaf.requires_grad]  # slopes and frequencies are not
    assert learned
    assert all(leaf.untyped_storage().data_ptr() in stored for leaf in learned), "no copy, no cost"


@pytest.mark.spec("M10", "M5", "B1")
@pytest.mark.parametrize("name", MODELS)
def test_a_held_view_keeps_its_answer_while_parameters_change_and_a_view_follows_them(name) -> None:
    model, batch = MODELS[name].model().eval(), MODELS[name].batch()
    if name == "layer":
        batch = Batch(random(2, 6, OTHER["d"]))
    view = model.at(**OTHER)
    held = view.held()
    with torch.no_grad():
        before = view(batch)
    assert torch.equal(held(batch), before)
    assert not held(batch).requires_grad
    themselves = {leaf.untyped_storage().data_ptr() for leaf in leaves(held.reads).values()}  # stored there: no copy
    changed = [p for p in model.parameters() if p.untyped_storage().data_ptr() not in themselves]
    assert changed
    with torch.no_grad():
        for parameter in changed:
            parameter.mul_(1.5)
    assert torch.equal(held(batch), before)
    assert gap(view(batch), before) > 1e-3


@pytest.mark.spec("M10")
def test_width_alone_scales_the_hidden_width_and_leaves_heads_and_inner_width() -> None:
    model = Transformer.continuous(vocab=7, at=SMOOTH)
    seen = model.at(d=4).discretisation
    assert {k: getattr(seen, k).n for k in "dhem"} == {"d": 4, "h": 2, "e": 4, "m": 6}
    assert {k: getattr(model.at(h=1).discretisation, k).n for k in "dhem"} == {"d": 8, "h": 1, "e": 4, "m": 12}
    assert model.at(d=4, m=9).discretisation.m.n == 9
    assert model.at(d=8).discretisation == model.native
    assert model.at(z=5).discretisation.z == Fixed(5, LieTrotter())
    assert model.at(z=Fixed(3, RK4())).discretisation.z == Fixed(3, RK4())
    assert model.at(z=Fixed(3)).discretisation.z == Fixed(3, LieTrotter())


@pytest.mark.spec("M10")
def test_the_nodes_of_another_width_carry_the_same_mass() -> None:
    for model in (MODELS["gpt2"].build(), Transformer.continuous(vocab=7, at=SMOOTH)):
        for n in (3, 5, 8):
            grids = model.at(d=n, m=n + 1, e=2, h=1).discretisation.grids(model.axes)
            assert {k: round(grids[k].mass.item(), 12) for k in "dhem"} == {"d": 8, "h": 2, "e": 4, "m": 12}
    counted = MODELS["gpt2"].build().at(d=4).discretisation
    assert counted.d == Nested(4)
    assert not counted.is_discrete
    assert MODELS["gpt2"].build().native.is_discrete


@pytest.mark.spec("M10")
def test_any_rule_serves_any_continuous_axis() -> None:
    model, batch, _ = made("continuous series")
    rules = at(d=GaussLegendre(7), h=GaussLegendre(3), e=Trapezoid(5), m=Nested(9), z=Fixed(4, RK4()))
    answer = model.at(rules)(batch)
    assert torch.isfinite(answer).all()
    assert model.at(rules).discretisation == rules
    near = model.at(d=Trapezoid(64), m=Trapezoid(64))(batch)
    assert gap(near, model.at(d=Trapezoid(32), m=Trapezoid(64))(batch)) < gap(near, answer)


@pytest.mark.spec("M10", "M11", "M4")
@pytest.mark.parametrize(
    ("axis", "rules"),
    [
        (Interval(0.0, 2.0), [5, Midpoint(9), GaussLegendre(4)]),
        (Circle(2.0), [5, Trapezoid(9)]),
        (Times(0.0, 2.0), [5, Trapezoid(9)]),
        (Product((Interval(), Circle())), [9, ProductRule((GaussLegendre(3), Midpoint(4)))]),
        (Product((Interval(), Circle(), Interval())), [8, ProductRule((Midpoint(2), Midpoint(3), Midpoint(2)))]),
        (Points(), [5, Counting(7)]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_function_is_read_on_any_token_grid(axis, rules) -> None:
    model = Transformer.continuous(channels=CHANNELS, t=axis, at=SMOOTH).double()

    def function(nodes: torch.Tensor) -> torch.Tensor:
        wave = (nodes * torch.arange(1, axis.dim + 1)).sum(-1, keepdim=True)
        return torch.cat([wave.sin(), wave.cos()], -1).expand(2, -1, -1)

    for rule in rules:
        view = model.at(t=rule)
        count = rule if isinstance(rule, int) else rule.n
        assert view(Batch(function)).shape == (2, count, CHANNELS)


@pytest.mark.spec("M10")
def test_a_view_is_frozen_shares_weights_and_is_no_module() -> None:
    model, batch = MODELS["continuous words"].model(), words()
    view = model.at(d=4, z=3)
    assert not isinstance(view, nn.Module)
    with pytest.raises(FrozenInstanceError):
        view.discretisation = model.native
    before = view(batch).detach()
    with torch.no_grad():
        next(model.block.parameters()).add_(0.5)
    assert gap(view(batch), before) > 1e-6
    called = []
    handle = model.register_forward_hook(lambda *_: called.append(1))
    view(batch)
    handle.remove()
    assert called == [1], "a view goes through the module's own call"
    with pytest.raises(ConfigError, match="a discretisation or sizes, got both"):
        model.at(view.discretisation, d=3)


@pytest.mark.spec("M10", "M1")
def test_the_path_through_depth_is_kept_on_any_discretisation() -> None:
    model, batch, _ = made("gpt2")
    path = model.states(batch)
    assert path.z == (0.0, 1.0, 2.0)
    fine = model.at(z=6, d=5).states(batch, every=3)
    assert fine.z == (0.0, 1.0, 2.0)
    assert fine.final.shape == (2, 6, 5)
    placed, t = place(batch, model.axes.t, None, next(model.parameters()))
    assert torch.equal(path.x[0], model.embed(placed, replace(model.native.grids(model.axes), t=t)))


@pytest.mark.spec("M10")
def test_a_discretisation_prints_readably() -> None:
    assert str(at(d=64, h=2, z=3)) == "at(d=64, h=2, z=3)"
    assert str(at()) == "at()"
    assert str(at(t=Midpoint(5), z=Fixed(3, RK4()))) == "at(t=Midpoint(5), z=3 steps of RK4)"
    model = Transformer.continuous(channels=1, t=Interval(), at=SMOOTH)
    assert str(model.at(d=4, t=GaussLegendre(7))).splitlines() == [
        "t  GaussLegendre(n=7)  on Interval(start=0.0, end=1.0, mass=None)",
        "d  4 nodes (Trapezoid on Circle, weight 2 each)",
        "h  2 nodes (Midpoint on Interval, weight 1 each)",
        "e  4 nodes (Midpoint on Interval, weight 1 each)",
        "m  6 nodes (Trapezoid on Circle, weight 2 each)",
        "z  2 steps of LieTrotter(Euler) on [0, 2]",
    ]
    assert "unequal weights" in str(model.at(d=GaussLegendre(4)))
    assert (
        str(model.native)
        == "at(d=Trapezoid(8), h=Midpoint(2), e=Midpoint(4), m=Trapezoid(12), z=2 steps of LieTrotter(Euler))"
    )
    assert "Points" in str(MODELS["gpt2"].build().at())


@pytest.mark.spec("M10")
def test_replace_changes_some_axes() -> None:
    wish = at(d=4, z=3)
    assert wish.replace(d=5) == at(d=5, z=3)
    assert replace(wish, z=None) == at(d=4)
    with pytest.raises(ConfigError, match="axes t, d, h, e, m, z, got w"):
        wish.replace(w=3)


@pytest.mark.spec("M10", "A4")
def test_a_view_of_an_encoder_decoder_equals_the_call_with_at():
    model = from_torch(nn.Transformer(8, 2, 2, 3, 16, dropout=0.0, batch_first=True, dtype=torch.float64))
    source, target = random(2, 5, 8), random(2, 4, 8, seed=1)
    batch = Batch(target, source=Batch(source))
    view = model.at(h=1, z=2)
    assert torch.equal(view(batch), model(batch, at=at(h=1, z=2)))
    assert "h  1 nodes" in str(view)
    assert len(view.states(batch).x) == 3
