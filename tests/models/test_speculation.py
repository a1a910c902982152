"""Self-speculation (B12): a small size writes ahead, and what is written is what the model alone would have written."""

import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.flow import RK4
from continua.models import Batch, Greedy, Sample, zoo
from continua.models.draft_choice import StepTimes, best_ahead, choose_draft, expected_gain, overlap, smaller_sizes
from continua.models.drafts import Asked, Draft, same_keys, speculation
from continua.models.ragged import RaggedReader, compacted
from continua.models.speculate import Ending, speculated
from continua.operators import Causal, Window
from continua.operators.cache import RaggedCache
from tests.exact import EXACT, gap
from tests.exact import stirred as with_noise
from tests.models.test_generate import CASES, HOLES, IDS, B, N, prompt_for
from tests.refusals import refused
from tests.slow import IN_CPP, slow_but

TINY = 5  # words of a vocabulary whose pairs can be counted
DRAFTS = {
    "half width, the model's own keys": {"d": 8},
    "half of all": {"d": 8, "h": 2, "z": 1},
    "one step": {"z": 1},
    "half the heads": {"h": 2},
}


def elastic(vocab: int = 11, context: int = 48) -> ct.Transformer:
    torch.manual_seed(0)
    model = ct.elastic(zoo.gpt2(vocab=vocab, d=16, heads=4, depth=2, context=context)).eval().double()
    with_noise(model)
    return model


@pytest.fixture(scope="module")
def model() -> ct.Transformer:
    return elastic()


VERIFIED = (
    "continuous",
    "gpt2",
    "grouped, ALiBi",
    "density",
    "encoder-decoder",
    "position rotary",
    "encoding sinusoidal",
    f"mask {Causal() & Window(3.0)}",
)
PROMPT = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1], [1, 4, 1, 4, 2, 1, 3]])


@pytest.mark.spec("B12")
@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("name", DRAFTS)
def test_greedy_tokens_are_the_same_ones(model: ct.Transformer, name: str, ahead: int) -> None:
    wanted = model.generate(PROMPT, tokens=20)
    assert torch.equal(model.generate(PROMPT, tokens=20, draft=model.at(**DRAFTS[name]), ahead=ahead), wanted)


@pytest.mark.spec("B12")
@pytest.mark.parametrize("observed", [None, HOLES], ids=["full", "holes"])
@pytest.mark.parametrize("name", [*VERIFIED])
def test_any_causal_model_may_be_verified_with_any_draft(name: str, observed: Tensor | None) -> None:
    model = CASES[name]()
    model.eval().double()
    with_noise(model)
    prompt = prompt_for(model, observed)
    wanted = model.generate(prompt, tokens=9)
    draft = model.at(z=1)
    assert torch.equal(model.generate(prompt, tokens=9, draft=draft, ahead=3), wanted)


@pytest.mark.spec("B12")
def test_a_view_is_verified_as_a_model_is_and_another_model_may_write_ahead(model: ct.Transformer) -> None:
    view = model.at(d=12, h=3)
    wanted = view.generate(PROMPT, tokens=12)
    assert torch.equal(view.generate(PROMPT, tokens=12, draft=model.at(d=8), ahead=2), wanted)
    other = zoo.gpt2(vocab=11, d=8, heads=2, depth=1, context=64).eval().double()
    assert torch.equal(view.generate(PROMPT, tokens=12, draft=other, ahead=2), wanted)


@pytest.mark.spec("B12")
def test_the_end_of_the_position_table_and_stop_tokens_are_those_of_the_model_alone(model: ct.Transformer) -> None:
    draft = model.at(d=8, h=2, z=1)
    last = 48 + 1 - PROMPT.shape[1]
    assert torch.equal(model.generate(PROMPT, tokens=last, draft=draft, ahead=5), model.generate(PROMPT, tokens=last))
    free = model.generate(PROMPT, tokens=30)[:, PROMPT.shape[1] :]
    for stop in ([int(free[0, 3])], [int(free[0, 3]), int(free[1, 7]), int(free[2, 0])]):
        wanted = model.generate(PROMPT, tokens=30, stop=stop, pad=0)
        assert torch.equal(model.generate(PROMPT, tokens=30, stop=stop, pad=0, draft=draft, ahead=4), wanted)
    one = torch.tensor([[4]])  # a prompt of one token
    assert torch.equal(model.generate(one, tokens=9, draft=draft), model.generate(one, tokens=9))


@pytest.mark.spec("B12")
def test_a_repetition_penalty_sees_the_tokens_ahead_too(model: ct.Transformer) -> None:
    rule = Greedy(repetition_penalty=1.6)
    wanted = model.generate(PROMPT, tokens=24, sampling=rule)
    assert not torch.equal(wanted, model.generate(PROMPT, tokens=24))
    for draft in (model.at(d=8), model.at(z=1)):
        assert torch.equal(model.generate(PROMPT, tokens=24, sampling=rule, draft=draft, ahead=3), wanted)


@pytest.mark.spec("B12")
def test_tokens_are_streamed_in_their_order_as_soon_as_every_sample_has_them(model: ct.Transformer) -> None:
    wanted = model.generate(PROMPT, tokens=10)[:, PROMPT.shape[1] :]
    stream = model.stream(PROMPT, tokens=10, draft=model.at(d=8), ahead=3)
    for i, token in enumerate(stream):
        assert torch.equal(token, wanted[:, i])
    assert i == 9


# --- in distribution --------------------------------------------------------------------------------------------------


@pytest.mark.spec("B12")
@pytest.mark.parametrize(
    "sampling",
    [Sample(), Sample(temperature=0.7, top_k=3), Sample(top_p=0.8, repetition_penalty=1.3)],
    ids=["plain", "top-k", "top-p and penalty"],
)
def test_samples_have_the_distribution_of_the_model(sampling: Sample) -> None:
    """χ² over all texts of three tokens, against the probabilities of the model itself."""
    model = elastic(TINY, 16)
    rows = 6000
    prompt = torch.tensor([[3, 1, 4]])
    draws = torch.Generator().manual_seed(1)
    new = model.generate(
        prompt.expand(rows, -1), tokens=3, sampling=sampling, generator=draws, draft=model.at(d=8, h=2, z=1), ahead=2
    )[:, 3:]
    counts = torch.bincount(new[:, 0] * TINY**2 + new[:, 1] * TINY + new[:, 2], minlength=TINY**3)
    expected = rows * text_probabilities(model, prompt, sampling)
    assert counts[expected == 0].sum() == 0
    often = expected >= 5
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
    freedom = int(often.sum()) - 1
    assert freedom >= 8
    assert statistic < freedom + 4.5 * (2 * freedom) ** 0.5  # mean and spread of χ²: one in a hundred thousand is above


def text_probabilities(model: ct.Transformer, prompt: Tensor, sampling: Sample) -> Tensor:
    """p of each of the TINY³ texts behind the prompt."""
    texts = torch.cartesian_prod(*[torch.arange(TINY)] * 3)
    ids = torch.cat([prompt.expand(len(texts), -1), texts], 1)
    with torch.no_grad():
        logits = model(ids)
    total = torch.ones(len(texts), dtype=torch.float64)
    for i in range(3):
        before = ids[:, : 3 + i]
        seen = torch.zeros(len(texts), TINY, dtype=torch.bool).scatter_(1, before, True)
        total *= sampling.shares(logits[:, 2 + i], seen).gather(1, texts[:, i : i + 1])[:, 0]
    assert abs(total.sum() - 1) < 1e-9
    return total


@pytest.mark.spec("B12")
def test_the_share_that_is_kept_is_the_overlap() -> None:
    """α = Σ min(p, q), counted over many first tokens ahead."""
    model = elastic(TINY, 16)
    rows = 4000
    at = model.settle(ct.at(d=8, h=2, z=1))
    prompt = torch.tensor([[3, 1, 4]]).expand(rows, -1)
    draws = torch.Generator().manual_seed(3)
    asked = Asked(Batch(prompt), Sample(), Ending((), 0, 2), draws, compile=False)
    made = speculation(model, model.native, Draft(model, at, 1), asked)
    list(speculated(made, prompt, torch.full((rows,), 3), None, True, asked.end))
    first = torch.arange(TINY)[:, None]
    text = torch.cat([prompt[:TINY], first], 1)
    with torch.no_grad():
        p = model(text)[:, -1].softmax(-1)
        q = model(text, at)[:, -1].softmax(-1)
        start = model(prompt[:1])[0, -1].softmax(-1)
    alpha = float((start * overlap(p, q)).sum())
    assert abs(made.kept / made.proposed - alpha) < 4 * (alpha * (1 - alpha) / rows) ** 0.5


# --- readers of ragged samples ----------------------------------------------------------------------------------------


@pytest.mark.spec("B12", "B13")
@pytest.mark.parametrize("name", ["continuous", "gpt2", "grouped, ALiBi", "position rotary", f"stepped by {RK4()}"])
def test_samples_of_other_lengths_are_read_as_alone(name: str) -> None:
    model = CASES[name]()
    model.eval().double()
    with_noise(model)
    lengths = torch.tensor([5, 2, 3])
    cache = RaggedCache(torch.zeros(B, dtype=torch.long), 16)
    reader = RaggedReader(model, model.native, cache)
    with torch.no_grad():
        first = reader.begin(IDS[:, :N], lengths)
        cache.place.copy_(lengths)
        cache.reach = 9
        new = reader.read(IDS[:, N : N + 3])
        for i, n in enumerate(lengths.tolist()):
            text = torch.cat([IDS[i, :n], IDS[i, N : N + 3]])[None]
            alone = model(text)[0]
            assert gap(first[i], alone[n - 1]) <= EXACT[torch.float64]
            assert gap(new[i], alone[n:]) <= EXACT[torch.float64]


def test_observed_tokens_come_first() -> None:
    ids, lengths = compacted(IDS[:, :N], HOLES)
    assert lengths.tolist() == HOLES.sum(1).tolist()
    for row, there, whole, n in zip(ids, HOLES, IDS[:, :N], lengths, strict=True):
        assert torch.equal(row[:n], whole[there])


# --- which draft ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B12")
def test_a_draft_is_chosen_by_what_is_kept_and_what_it_costs() -> None:
    assert abs(expected_gain(0.5, 1, plain=1.0, verify=1.0, draft=0.5) - 1.0) < 1e-12
    quick = StepTimes(1.0, (1.1, 1.2, 1.3, 1.4, 1.6, 1.8), 0.05)
    assert best_ahead(0.95, quick)[0] > best_ahead(0.5, quick)[0]
    slow = StepTimes(1.0, (1.1, 1.2, 1.3, 1.4, 1.6, 1.8), 0.9)
    assert best_ahead(0.8, slow)[1] < 1


@pytest.mark.spec("B12")
def test_auto_writes_the_same_tokens_and_declines_where_nothing_is_gained(
    model: ct.Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = model.generate(PROMPT[:1], tokens=8)
    assert torch.equal(model.generate(PROMPT[:1], tokens=8, draft="auto"), wanted)
    text = model.generate(PROMPT[:1], tokens=16)
    sizes = smaller_sizes(model, model.native)
    assert {(size.d.n, size.h.n, size.z.steps) for size in sizes} >= {(8, 2, 1), (8, 4, 2), (16, 4, 1)}  # type: ignore[union-attr]

    def times(share: float) -> Any:
        return lambda *_: StepTimes(1.0, (1.1,) * 6, share)

    where = "continua.models.draft_choice._measured_times"
    monkeypatch.setattr(where, times(2.0))
    assert choose_draft(model, model.native, PROMPT[:1], Greedy(), text) is None
    monkeypatch.setattr(where, times(0.01))
    found = choose_draft(model, model.native, PROMPT[:1], Sample(), text)
    assert found is not None
    assert found.gain > 1.05
    assert 0 < found.alpha <= 1


def test_keys_are_shared_where_heads_and_steps_are_the_same(model: ct.Transformer) -> None:
    at = [model.at(**sizes).discretisation for sizes in ({"d": 8}, {"z": 1}, {"h": 2}, {"d": 8, "m": 9})]
    assert [same_keys(model, model.native, one) for one in at] == [True, False, False, True]


@dataclass(frozen=True)
class Own:
    """A sampling that does not say what it draws from."""

    repetition_penalty: float = 1.0

    def choose(self, logits: Tensor, seen: Tensor | None, generator: torch.Generator | None) -> Tensor:
        return logits.argmin(-1)


@pytest.mark.spec("B12")
def test_what_cannot_write_ahead_is_refused(model: ct.Transformer) -> None:
    with refused(ct.errors.ConfigError, "a draft is a view of the model, got 'small'", 'draft="auto"'):
        model.generate(PROMPT, tokens=2, draft="small")
    with refused(ct.errors.ConfigError, "a draft is a model, got int", "model.at"):
        model.generate(PROMPT, tokens=2, draft=3)
    with refused(ct.errors.ConfigError, "at least one token ahead, got 0", "ahead=k"):
        model.generate(PROMPT, tokens=2, draft=model.at(d=8), ahead=0)
    with refused(ct.errors.ConfigError, "compares distributions, got Own", "shares and draw"):
        model.generate(PROMPT, tokens=2, draft=model.at(d=8), sampling=Own())
    with refused(ct.errors.ConfigError, "a draft has the tokens of the model, got 7 and 11", "view"):
        model.generate(PROMPT, tokens=2, draft=zoo.gpt2(vocab=7, d=8, heads=2, depth=1))
    short = zoo.gpt2(vocab=11, d=8, heads=2, depth=1, context=10).double()
    with refused(ct.errors.ShapeError, "the position table has 10 rows", "at most 4"):
        model.generate(PROMPT, tokens=9, draft=short)


# --- compiled ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B12", "B9")
@pytest.mark.parametrize("backend", slow_but(["aot_eager"], ["aot_eager", "inductor"], IN_CPP))
@pytest.mark.parametrize("name", slow_but(["half of all"], [*DRAFTS], "a compilation each"))
def test_compiled_passes_write_what_eager_ones_write(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    model = elastic().float()
    wanted = model.generate(PROMPT[:2], tokens=14)
    got = model.generate(PROMPT[:2], tokens=14, draft=model.at(**DRAFTS[name]), ahead=2, compile=True)
    assert torch.equal(got, wanted)
