"""Generation whose step is compiled whole, and held views: weights that are read once."""

import functools

import pytest
import torch

import continua as ct
from continua.models import Batch, zoo
from tests.measure import gap
from tests.refusals import refused
from tests.slow import IN_CPP, slow_but

HALF = ct.at(d=8, h=2, z=1)
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1]])


def elastic() -> ct.Transformer:
    torch.manual_seed(0)
    return ct.elastic(zoo.gpt2(vocab=11, d=16, heads=4, depth=2, context=32)).eval()


@pytest.mark.spec("B9", "A8")
@pytest.mark.parametrize("backend", slow_but(["aot_eager"], ["aot_eager", "inductor"], IN_CPP))
@pytest.mark.parametrize("at", slow_but([HALF], [HALF, ct.at()], "a compilation each"), ids=str)
def test_a_compiled_step_writes_what_an_eager_one_writes(
    at: ct.Discretisation, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    view = elastic().at(at)
    wanted = view.generate(IDS, tokens=12)
    assert torch.equal(view.generate(IDS, tokens=12, compile=True), wanted)


@pytest.mark.slow(reason="a compilation each")
@pytest.mark.spec("B9", "A8")
@pytest.mark.parametrize(
    "model",
    [
        zoo.llama(11, d=16, heads=2, depth=2, m=24, groups=1),
        ct.Transformer.continuous(vocab=11, at=ct.at(d=16, h=2, z=ct.Fixed(2, ct.RK4())), context=32),
    ],
    ids=["rotary, shared keys", "RK4"],
)
def test_compiled_steps_of_other_models(model: ct.Transformer) -> None:
    model.eval()
    wanted = model.generate(IDS, tokens=12)
    assert torch.equal(model.generate(IDS, tokens=12, compile=True), wanted)


@pytest.mark.spec("B9")
def test_a_compiled_step_refuses_what_it_cannot_know() -> None:
    model = elastic()
    observed = torch.ones_like(IDS, dtype=torch.bool)
    observed[0, -2:] = False
    with refused(ct.errors.ConfigError, "a compiled step reads tokens of its own", "compile=False"):
        model.generate(IDS, tokens=2, observed=observed, compile=True)
    pair = zoo.t5(11, d=8, heads=2, depth=2, m=12, e=4)
    with refused(ct.errors.ConfigError, "attention to a source", "compile=False"):
        pair.generate(Batch(IDS[:, :1], source=Batch(IDS)), tokens=2, compile=True)


@pytest.mark.spec("B9", "B1")
@pytest.mark.parametrize("backend", slow_but(["aot_eager"], ["aot_eager", "inductor"], "four programs in C++"))
def test_compiled_held_views_do_not_take_one_another_for_themselves(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    model = elastic()
    views = [model.at(d=8, h=2, z=1), model.at(d=16, h=4, z=1)]
    programs = [view.held().compiled() for view in views]
    for view, program in zip(views, programs, strict=True):
        for ids in (IDS, IDS[:1, :4]):
            assert gap(program(ids), view(ids)) < 1e-5


@pytest.mark.spec("B1")
def test_a_held_view_says_where_numbers_end_on_its_own_grid() -> None:
    model = elastic()
    with torch.no_grad():
        model.block.parts[1].inner.w2.coefficients.fill_(float("nan"))
    held = model.at(d=8, h=2, z=1).held()
    for _ in range(2):  # bound at the first call, kept at the second
        with refused(ct.errors.SolveFailed, "no longer a number, got NaN or infinity at z=2", "Look at this sample"):
            held(IDS)
