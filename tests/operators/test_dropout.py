"""Dropout: off at rest, masks that are functions of a seed and of depth, the same for whoever walks again."""

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.config import from_plain, to_plain
from continua.errors import ConfigError
from continua.flow import (
    RK4,
    Adaptive,
    Bosh3,
    Checkpoint,
    Direct,
    Fixed,
    Heun,
    Lean,
    Mixed,
    Recompute,
    Reversible,
    ReversibleSolver,
)
from continua.models.build import pre_norm
from continua.operators import Attention, Context, Drop, LayerNorm, Parts, Pointwise
from continua.operators.manual_backward import by_hand
from tests.bound import COUNTED, DEPTHS, counted_grids, double
from tests.cases import MODELS
from tests.cases_models import discrete, unnormed, words
from tests.exact import gradients, worst
from tests.measure import gap, random
from tests.refusals import refused

RATE = 0.3
NAMES = ["dropout", "dropout, constant in depth"]
ADJOINTS = [Lean(), Recompute(), Checkpoint(1), Checkpoint(4, recursive=True), Mixed(2), Reversible()]


def bound(constant: bool = False, seed: int = 0, training: bool = True, tokens: int = 200):
    """Pointwise with dropout on many tokens, and the same without."""
    inner = double(Pointwise(COUNTED))
    operator = Drop(inner, RATE, constant).train(training)
    grids = counted_grids(tokens)
    f, args = operator.bind(grids, Context(generator=torch.Generator().manual_seed(seed)))
    plain, own = inner.bind(grids)
    x = random(4, tokens, 8)
    return (lambda z: f(z, x, args)), (lambda z: plain(z, x, own))


def test_at_rest_nothing_is_dropped() -> None:
    dropped, plain = bound(training=False)
    assert torch.equal(dropped(DEPTHS[0]), plain(DEPTHS[0]))
    inner = Pointwise(COUNTED)
    f, g = (by_hand(*Drop(inner, rate).bind(counted_grids())) for rate in (0.0, RATE))
    assert f is not None
    assert g is not None
    assert type(f) is not type(g), "a rate of zero adds nothing to the way"
    model, batch = MODELS["dropout"].model(), MODELS["dropout"].batch()
    assert torch.equal(model.eval()(batch), model(batch))
    assert gap(model.train()(batch), model(batch)) > 1e-3


def test_a_share_is_dropped_and_the_mean_stays() -> None:
    dropped, plain = bound()
    got, wanted = dropped(DEPTHS[0]), plain(DEPTHS[0])
    gone = got == 0
    spread = (RATE * (1 - RATE) / gone.numel()) ** 0.5
    assert abs(gone.double().mean().item() - RATE) < 4 * spread
    assert gap(got[~gone], wanted[~gone] / (1 - RATE)) < 1e-14


def test_masks_differ_from_depth_to_depth_or_stay() -> None:
    for constant in (False, True):
        dropped, _ = bound(constant)
        first, second = ((dropped(z) == 0) for z in DEPTHS)
        assert torch.equal(first, second) == constant
        assert torch.equal(dropped(DEPTHS[0]), dropped(DEPTHS[0])), "a function of depth"
    dropped, _ = bound()
    alike = ((dropped(DEPTHS[0]) == 0) == (dropped(DEPTHS[1]) == 0)).double().mean()
    assert abs(alike - (RATE**2 + (1 - RATE) ** 2)) < 0.03, "masks of two depths are independent"


@pytest.mark.parametrize("name", NAMES)
def test_a_generator_repeats_it(name) -> None:
    model, batch = MODELS[name].model().train(), MODELS[name].batch()

    def drawn(seed: int | None) -> Tensor:
        model.generator = None if seed is None else torch.Generator().manual_seed(seed)
        return model(batch).detach()

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    torch.manual_seed(3)
    first, second = drawn(None), drawn(None)
    assert not torch.equal(first, second), "each pass draws anew"
    torch.manual_seed(3)
    assert torch.equal(first, drawn(None)), "without a generator torch's own numbers are used"
    state = torch.get_rng_state()
    drawn(1)
    assert torch.equal(state, torch.get_rng_state()), "and with one they are left alone"


@pytest.mark.spec("D4")
@pytest.mark.parametrize(
    ("name", "place"),
    [(name, place) for name in NAMES for place in ("native", "undoable", "RK4")] + [(NAMES[1], "adaptive")],
)  # a mask for each depth leaves no smooth path for adaptive steps to follow
def test_every_adjoint_meets_the_same_masks(name, place) -> None:
    model, batch = MODELS[name].model().train(), MODELS[name].batch()
    steps = {
        "native": None,
        "undoable": ct.at(z=Fixed(2, ReversibleSolver(Heun()))),
        "RK4": ct.at(z=Fixed(3, RK4())),
        "adaptive": ct.at(z=Adaptive(Bosh3(), rtol=0.1, atol=0.1)),
    }[place]

    def run(adjoint) -> dict[str, Tensor]:
        model.adjoint, model.generator = adjoint, torch.Generator().manual_seed(5)
        answer = model(batch, at=steps)
        return {"answer": answer, **gradients(answer.square().sum(), dict(model.named_parameters()))}

    wanted = run(Direct())
    for adjoint in ADJOINTS:
        if place == "undoable" or not isinstance(adjoint, Reversible):
            assert worst(run(adjoint), wanted) < 1e-10, adjoint


def test_dropping_around_the_norm_or_inside_it_is_dropping_the_branch() -> None:
    def model(inside: bool) -> ct.Transformer:
        torch.manual_seed(0)
        if inside:
            return discrete(branches=lambda w: (Drop(Attention(w), RATE), Drop(Pointwise(w), RATE)))
        return discrete(
            branches=lambda w: tuple(
                Drop(part, RATE) for part in pre_norm((Attention(w), Pointwise(w)), lambda: LayerNorm(w))
            ),
            place=unnormed,
        )

    answers = []
    for inside in (False, True):
        one = model(inside)
        one.generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for i, parameter in enumerate([*one.embed.parameters(), *one.block.parameters()]):
                parameter.copy_(0.3 * random(*parameter.shape, seed=i))
        answers.append(one.states(words()).final.detach())
    assert torch.equal(*answers)


def test_the_configuration_comes_back() -> None:
    parts = Parts((Drop(Pointwise(COUNTED), RATE), Drop(Attention(COUNTED), 0.1, constant=True)))
    again = from_plain(to_plain(parts))
    assert [(part.rate, part.constant) for part in again] == [(RATE, False), (0.1, True)]
    assert to_plain(again) == to_plain(parts)


@pytest.mark.parametrize("rate", [1.0, -0.1, 1.5, float("nan")])
def test_a_rate_that_is_no_rate_is_refused(rate) -> None:
    with refused(ConfigError, f"got {rate}", "0.1 is usual"):
        Drop(Pointwise(COUNTED), rate)
