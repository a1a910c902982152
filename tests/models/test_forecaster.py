"""Forecasting at times that are not the history's, and words that look at observations."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.errors import GridError, ShapeError
from continua.operators import Window
from tests.cases_models import SMOOTH, described
from tests.measure import gap, random, slope, stirred
from tests.refusals import refused

EXACT = 1e-12  # float64 round-off
ASKED = torch.tensor([3.1, 3.5, 0.2, 4.0]).double()
SPAN = ct.Times(0.0, 3.0)


def forecaster(**choices) -> ct.EncoderDecoder:
    torch.manual_seed(0)
    return stirred(ct.zoo.forecaster(2, out=3, at=SMOOTH, t=SPAN, **choices))


def history(stamps: Tensor, **more) -> ct.Batch:
    """Two smooth signals read at [b, n] stamps."""
    return ct.Batch(torch.stack([(2 * stamps).sin(), (stamps**2 / 3).cos()], -1), times=stamps, **more)


def irregular(count: int = 12) -> Tensor:
    return (3 * random(2, count, low=0.0)).sort(-1).values


@pytest.mark.spec("A8")
@pytest.mark.parametrize("sees", [False, True], ids=["alone", "questions see each other"])
def test_refining_the_history_converges_with_order_two(sees) -> None:
    model = forecaster(self_attention=sees)

    def answer(count: int) -> Tensor:
        u = (torch.arange(count).double() + 0.5) / count
        stamps = 3 * (u + 0.15 * torch.sin(2 * torch.pi * u) / torch.pi)  # an uneven grid of the same span
        return model(ct.Batch(times=ASKED, source=history(stamps.expand(2, -1))))

    sizes, finest = [16, 32, 64, 128], answer(2048)
    errors = [gap(answer(n), finest) for n in sizes]
    assert errors[-1] < 1e-3
    assert slope(sizes, errors) > 1.85


@pytest.mark.spec("A8")
def test_the_order_in_which_the_history_is_told_does_not_matter() -> None:
    model, stamps = forecaster(), irregular()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    told, shuffled = (model(ct.Batch(times=ASKED, source=history(s))) for s in (stamps, stamps[:, order]))
    assert gap(shuffled, told) <= EXACT


@pytest.mark.spec("A8")
def test_a_missing_point_is_a_point_that_was_never_there() -> None:
    model, stamps = forecaster(), irregular()
    keep = torch.tensor([i not in (3, 7) for i in range(12)])
    source = history(stamps, observed=keep.expand(2, -1))
    source.values[:, ~keep] = torch.nan
    got = model(ct.Batch(times=ASKED, source=source))
    assert gap(got, model(ct.Batch(times=ASKED, source=history(stamps[:, keep])))) <= EXACT


@pytest.mark.spec("A8")
def test_questions_are_independent_unless_they_see_each_other() -> None:
    source = history(irregular())
    for sees in (False, True):
        model = forecaster(self_attention=sees)
        together = model(ct.Batch(times=ASKED, source=source))
        alone = torch.cat([model(ct.Batch(times=ASKED[i : i + 1], source=source)) for i in range(4)], 1)
        assert (gap(alone, together) <= EXACT) is not sees
    assert together.shape == (2, 4, 3)


@pytest.mark.spec("A8")
def test_questions_can_differ_by_sample_and_answers_are_smooth_in_time() -> None:
    model, source = forecaster(), history(irregular())
    own = torch.stack([ASKED, ASKED + 0.3])
    got = model(ct.Batch(times=own, source=source))
    assert gap(got[:1], model(ct.Batch(times=ASKED, source=source))[:1]) <= EXACT
    assert gap(got[1:], model(ct.Batch(times=ASKED + 0.3, source=source))[1:]) <= EXACT
    asked = ASKED.clone().requires_grad_()
    (rate,) = torch.autograd.grad(model(ct.Batch(times=asked, source=source))[0, 0, 0], asked)
    ahead, behind = (model(ct.Batch(times=ASKED + h, source=source))[0, 0, 0] for h in (1e-5, -1e-5))
    assert rate[0].item() == pytest.approx(((ahead - behind) / 2e-5).item(), rel=1e-6)


@pytest.mark.spec("A8", "A2")
def test_a_window_over_the_past_serves_questions_that_all_samples_share() -> None:
    """Shared times of the questions, times of each sample in the history: the mask sees pairs of both."""
    model = forecaster()
    for part in model.decoder.block:
        if getattr(part.inner, "cross", False):
            part.inner.mask = Window(2.0)
    source = history(irregular())
    near = model(ct.Batch(times=torch.tensor([2.0]).double(), source=source))
    assert torch.isfinite(near).all()


@pytest.mark.spec("A8")
def test_it_learns_to_continue_a_sine() -> None:
    torch.manual_seed(0)
    model = ct.zoo.forecaster(1, at=ct.at(d=16, h=2, z=1), t=ct.Times(0.0, 8.0))
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(120):
        stamps = (8 * torch.rand(16, 20, generator=generator)).sort(-1).values
        asked = 8 + 2 * torch.rand(16, 5, generator=generator)
        phase = 6.3 * torch.rand(16, 1, generator=generator)
        source = ct.Batch((stamps + phase).sin()[..., None], times=stamps)
        loss = ((model(ct.Batch(times=asked, source=source))[..., 0] - (asked + phase).sin()) ** 2).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.4 * sum(losses[:10])


@pytest.mark.spec("A8")
def test_a_question_without_times_or_source_is_refused() -> None:
    model = forecaster()
    with refused(GridError, "none", "times"):
        model(ct.Batch(source=history(irregular())))
    with refused(ShapeError, "none", "source"):
        model(ct.Batch(times=ASKED))
    with refused(ShapeError, "NoneType", "batch dimension"):
        ct.zoo.gat(3, d=8, heads=2)(ct.Batch())


# --- two modalities --------------------------------------------------------------------------------------------------


def captioner() -> ct.EncoderDecoder:
    torch.manual_seed(0)
    return stirred(ct.zoo.cross_modal(vocab=11, channels=2, d=8, heads=2, depth=2, context=16, observations=8))


@pytest.mark.spec("A8")
def test_words_look_at_observations_and_not_ahead() -> None:
    model, batch = captioner(), described()
    answer = model(batch)
    assert answer.shape == (2, 6, 11)
    seen = batch.source.values.clone()
    seen[:, 3] += 1.0
    assert ((model(replace(batch, source=ct.Batch(seen))) - answer).abs().amax(-1) > 1e-6).all()
    later = batch.values.clone()
    later[:, 4] = (later[:, 4] + 1) % 11
    assert torch.equal(model(replace(batch, values=later))[:, :4], answer[:, :4])


@pytest.mark.spec("A8")
def test_padding_of_the_observations_is_the_same_as_fewer() -> None:
    model, batch = captioner(), described()
    source = ct.Batch(batch.source.values, observed=torch.arange(5).expand(2, 5) < 4)
    fewer = ct.Batch(batch.source.values[:, :4])
    assert gap(model(replace(batch, source=source)), model(replace(batch, source=fewer))) <= EXACT
