"""NaN never hides: neither behind fused attention, nor in what is generated."""

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.checks import without_looking
from continua.errors import SolveFailed
from continua.models import Batch
from continua.operators import ALiBi, Causal, RelativeBias
from tests.cases import MODELS
from tests.cases_models import asked, discrete, encoder_decoder, paired
from tests.measure import stirred
from tests.refusals import refused

IDS = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])
NAN = float("nan")
GOT = "NaN, infinity or a number too large in block.parts.0"
REMEDY = "Go back to an earlier checkpoint"


def words(**choices: Any) -> Any:
    torch.manual_seed(0)
    return stirred(discrete(mask=Causal(), **choices)).float().eval()


def poison(model: Any, name: str, value: float = NAN) -> None:
    with torch.no_grad():
        model.get_parameter(f"block.parts.0.inner.{name}.coefficients").flatten()[0] = value


@pytest.mark.finding("S5")
@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf"), 3e38], ids=str)
@pytest.mark.parametrize("name", ["q", "k", "bq", "bk"])
def test_weights_of_scores_that_are_no_numbers_are_found(name: str, value: float) -> None:
    model = words()
    model(IDS)  # looked at once; the change is noticed all the same
    poison(model, name, value)
    runs: tuple[Callable[[], Any], ...] = (
        lambda: model(IDS),
        lambda: model.at(z=1)(IDS),
        lambda: model.states(IDS),
        lambda: model.at().held(),
        lambda: model.generate(IDS, tokens=2),
        lambda: copy.deepcopy(model)(IDS),
    )
    for run in runs:
        with refused(SolveFailed, f"{GOT}.inner.{name}", REMEDY):
            run()
    model.check = False
    assert model(IDS).shape == (2, 5, 11)


@pytest.mark.finding("S5")
def test_weights_that_are_mended_serve_again() -> None:
    model = words()
    weight = model.get_parameter("block.parts.0.inner.q.coefficients")
    good = weight.detach().clone()
    wanted = model(IDS)
    poison(model, "q")
    with refused(SolveFailed, GOT, REMEDY):
        model(IDS)
    with torch.no_grad():
        weight.copy_(good)
    assert torch.equal(model(IDS), wanted)
    model.load_state_dict({**model.state_dict(), "block.parts.0.inner.q.coefficients": good * NAN}, assign=True)
    with refused(SolveFailed, GOT, REMEDY):
        model(IDS)


@pytest.mark.finding("S5")
def test_positions_and_both_flows_are_looked_at() -> None:
    model = words(position=lambda w: RelativeBias(w.autonomous(), buckets=8))
    poison(model, "position.table")
    with refused(SolveFailed, f"{GOT}.inner.position.table", REMEDY):
        model(IDS)
    assert words(position=lambda w: ALiBi(w.axes))(IDS).isfinite().all()
    for flow in range(2):
        both = stirred(encoder_decoder())
        with torch.no_grad():
            attention = next(m for m in both.flows[flow].block.modules() if isinstance(m, ct.operators.Attention))
            attention.k.coefficients[0] = NAN
        with refused(SolveFailed, "NaN, infinity", REMEDY):
            both(paired())
        with refused(SolveFailed, "NaN, infinity", REMEDY):
            both.at().held()


@pytest.mark.finding("S5")
def test_fields_of_every_kind_are_looked_at() -> None:
    for name in ("spectral", "generated", "separable networks", "continuous series"):
        model = stirred(MODELS[name].build())
        batch = MODELS[name].batch()
        model(batch)
        attention = next(m for m in model.block.modules() if isinstance(m, ct.operators.Attention))
        with torch.no_grad():
            next(attention.q.parameters()).flatten()[0] = NAN
        with refused(SolveFailed, "NaN, infinity", REMEDY):
            model(batch)
    assert asked().source is not None


@pytest.mark.finding("S5")
def test_training_passes_over_a_step_with_broken_scores() -> None:
    model = words()
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):  # every step makes new versions, each looked at once
        model(IDS).sum().backward()
        optimiser.step()
    poison(model, "k")
    with refused(SolveFailed, GOT, REMEDY):
        model(IDS)


@pytest.mark.finding("S6")
@pytest.mark.parametrize("part", ["block.parts.1.inner.w2", "readout.head"])
def test_generation_refuses_what_forward_refuses(part: str) -> None:
    model = words()
    with torch.no_grad():
        weights = [p for name, p in model.named_parameters() if name.startswith(part)]
        weights[0].fill_(NAN)
    with pytest.raises(SolveFailed, match="no longer"):
        model.generate(IDS, tokens=3)
    model.check = False
    assert model.generate(IDS, tokens=3).shape == (2, 8)


@pytest.mark.finding("S6")
@pytest.mark.parametrize("compile", [False, True], ids=["eager", "compiled"])
def test_nan_on_the_way_is_found_in_graphs_too(compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph looks at no value; what it answers is looked at outside."""

    def in_a_graph(run: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def blindly(token: Tensor) -> Tensor:
            with without_looking():
                return run(token)

        return blindly

    monkeypatch.setattr(sys.modules["continua.models.generate"], "compiled_with_constants", in_a_graph)
    model = words()
    first = model.generate(IDS, tokens=1)[:, -1]
    with torch.no_grad():
        model.embed.table.coefficients[first[1]] = NAN  # reached with the first word that is written
    ids = IDS[1:]
    assert not bool((ids == first[1]).any())
    with pytest.raises(SolveFailed, match="no longer") as caught:
        model.generate(ids, tokens=4, compile=compile)
    assert caught.value.sample == 0
    if compile:
        assert "behind new token 1 in sample 0" in str(caught.value)


@pytest.mark.finding("S6")
def test_an_encoder_decoder_refuses_too() -> None:
    model = stirred(encoder_decoder()).float().eval()
    with torch.no_grad():
        next(model.decoder.readout.parameters()).fill_(NAN)
    batch = paired()
    with pytest.raises(SolveFailed, match="no longer"):
        model.generate(Batch(batch.values[:, :1], source=batch.source), tokens=2)
