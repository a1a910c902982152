"""Batches made step by step by hypothesis, and oracles for what a model answers to them.

Values, stamps (equal ones, shifted ones, lists), absent tokens, given pairs, questions beside a source and points that
are asked for, on domains of one to three dimensions. An accepted batch must obey: tokens in another order are answered
in that order, a sample is answered as if alone, what is absent or later changes nothing, equal stamps share their cell,
and nothing that was given is written to. A refusal is a sentence with a remedy.
"""

import functools
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch import Tensor

import continua as ct
from continua.errors import ContinuaError
from continua.models import Batch
from continua.models.batch import place
from tests.cases_models import CHANNELS, WORDS
from tests.measure import gap, random, stirred

pytest.importorskip("scipy")  # weights of scattered points

NEAR = 1e-6  # float64 stamps of 1e9 tell 2e-7 of a unit apart
SIZE = ct.at(d=8, h=2, e=4, m=8, z=1)
LINE, PLANE, BOX = ct.Interval(0.0, 8.0), *(ct.Product((ct.Interval(), ct.Circle(), ct.Interval())[:k]) for k in (2, 3))
DOMAINS = {"times": ct.Times(), "past": ct.Times(), "line": LINE, "ring": ct.Circle(8.0), "plane": PLANE, "box": BOX}
SETTINGS = settings(
    phases=[Phase.generate],
    max_examples=150,
    stateful_step_count=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@functools.cache
def model(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "words":
        return stirred(ct.zoo.bert(vocab=WORDS, d=8, heads=2, depth=1, context=16, m=8)).eval()
    if kind == "questions":
        return stirred(ct.zoo.forecaster(CHANNELS, at=SIZE, self_attention=True)).eval()
    mask = ct.Causal() if kind == "past" else None
    return stirred(ct.Transformer.continuous(channels=CHANNELS, t=DOMAINS[kind], at=SIZE, mask=mask)).eval()


def points(kind: str, samples: int, tokens: int, seed: int) -> Tensor:
    """Stamps in the domain; along a line in halves of a unit, so that every clock holds them."""
    axis = DOMAINS["times" if kind == "questions" else kind]
    if axis.dim > 1:
        return random(samples, tokens, axis.dim, seed=seed, low=0.0)
    found = torch.randint(0, 16, (samples, tokens), generator=torch.Generator().manual_seed(seed)) / 2
    return found.sort(-1).values.double()


def tensors_of(batch: Any) -> dict[str, Tensor]:
    found = {}
    for f in fields(batch):
        value = getattr(batch, f.name)
        if isinstance(value, Tensor):
            found[f.name] = value
        elif isinstance(value, Batch):
            found |= {f"source.{name}": one for name, one in tensors_of(value).items()}
    return found


def changed(batch: Batch, how: Callable[[str, Tensor], Tensor]) -> Batch:
    """The batch with every tensor changed by its name."""
    new = {f.name: how(f.name, v) for f in fields(batch) if isinstance(v := getattr(batch, f.name), Tensor)}
    return replace(batch, **new)


class BatchMachine(RuleBasedStateMachine):
    """A batch that is made step by step, and answered after each step that asks for it."""

    kind: str
    batch: Batch

    @initialize(
        kind=st.sampled_from([*DOMAINS, "words", "questions"]),
        samples=st.integers(1, 3),
        tokens=st.integers(1, 6),
        seed=st.integers(0, 99),
    )
    def begin(self, kind: str, samples: int, tokens: int, seed: int) -> None:
        self.kind = kind
        self.shifted = False
        if kind == "words":
            ids = torch.randint(WORDS, (samples, tokens), generator=torch.Generator().manual_seed(seed))
            self.batch = Batch(ids)
            return
        known = Batch(random(samples, tokens, CHANNELS, seed=seed), times=points(kind, samples, tokens, seed))
        if kind == "questions":
            known = Batch(times=points(kind, samples, tokens, seed + 1), source=known)
        self.batch = known

    # --- changes ------------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        known = self.batch.times if self.batch.values is None else self.batch.values
        return known.shape[0], known.shape[1]  # type: ignore[union-attr]

    @rule(seed=st.integers(0, 99))
    def hide(self, seed: int) -> None:
        """Some tokens are absent; those that are left may be none."""
        draw = torch.rand(self.shape, generator=torch.Generator().manual_seed(seed))
        self.batch = replace(self.batch, observed=draw > 0.3)

    @precondition(lambda self: self.batch.source is not None)
    @rule(seed=st.integers(0, 99))
    def hide_in_the_source(self, seed: int) -> None:
        source = self.batch.source
        assert source is not None
        draw = torch.rand(source.values.shape[:2], generator=torch.Generator().manual_seed(seed))  # type: ignore[union-attr]
        self.batch = replace(self.batch, source=replace(source, observed=draw > 0.2))

    @precondition(lambda self: self.batch.times is not None)
    @rule(i=st.integers(0, 5), j=st.integers(0, 5))
    def repeat(self, i: int, j: int) -> None:
        """Two tokens get one stamp; a causal model wants them in order."""
        times = self.batch.times.clone()  # type: ignore[union-attr]
        times[:, i % self.shape[1]] = times[:, j % self.shape[1]]
        self.batch = replace(self.batch, times=times.sort(1).values if self.kind == "past" else times)

    @precondition(lambda self: self.kind in ("times", "past"))
    @rule(origin=st.sampled_from([-3.0, 1e6, 1.7e9]))
    def shift(self, origin: float) -> None:
        """Another clock, in which a model without positions answers the same."""
        self.shifted = True
        self.batch = replace(self.batch, times=self.batch.times + origin)  # type: ignore[operator]

    @precondition(lambda self: self.batch.times is not None)
    @rule()
    def list_stamps(self) -> None:
        given = self.batch.times.tolist()  # type: ignore[union-attr]
        listed = replace(self.batch, times=given)
        assert torch.equal(listed.times, self.batch.times)  # type: ignore[arg-type]
        self.batch = listed

    @precondition(lambda self: self.kind in ("times", "words", "plane"))
    @rule(seed=st.integers(0, 99))
    def restrict(self, seed: int) -> None:
        """Some pairs are forbidden, never a token and itself."""
        n = self.shape[1]
        draw = torch.rand(self.shape[0], n, n, generator=torch.Generator().manual_seed(seed))
        self.batch = replace(self.batch, pairs=(draw > 0.4) | torch.eye(n, dtype=torch.bool))

    @precondition(lambda self: self.kind != "past")
    @rule(seed=st.integers(0, 99))
    def shuffle(self, seed: int) -> None:
        self.batch = self.reordered(seed)[0]

    # --- oracles ------------------------------------------------------------------------------------------------------

    def reordered(self, seed: int) -> tuple[Batch, Tensor]:
        order = torch.randperm(self.shape[1], generator=torch.Generator().manual_seed(seed))

        def move(name: str, value: Tensor) -> Tensor:
            if name == "pairs":
                return value[:, order][:, :, order]
            return value[:, order]

        return changed(self.batch, move), order

    @torch.no_grad()
    def answer(self, batch: Batch | None = None) -> Tensor | None:
        """What the model says; None where it refuses with a remedy."""
        try:
            found: Tensor = model(self.kind)(self.batch if batch is None else batch)
        except ContinuaError as refusal:
            refused = str(refusal)
        else:
            assert bool(found.isfinite().all())
            return found
        assert ". " in refused, f"without a remedy: {refused}"
        return None

    @property
    def flags(self) -> Tensor:
        return torch.ones(self.shape, dtype=torch.bool) if self.batch.observed is None else self.batch.observed

    @rule(seed=st.integers(0, 99))
    def ask(self, seed: int) -> None:
        before = {name: one.clone() for name, one in tensors_of(self.batch).items()}
        answer = self.answer()
        after = tensors_of(self.batch)
        assert all(torch.equal(one, after[name]) for name, one in before.items()), "what was given was written to"
        alive = bool(self.flags.any(-1).all())
        source = self.batch.source
        if source is not None and source.observed is not None:
            alive = alive and bool(source.observed.any(-1).all())
        if answer is None:
            assert not alive or self.batch.pairs is not None, "a good batch was refused"
            return
        assert alive, "a sample without any token was answered"
        self.check_weights()
        self.check_order(answer, seed)
        self.check_alone(answer, seed)
        self.check_absent(answer)
        if self.kind == "past":
            self.check_future(answer, seed)

    def check_weights(self) -> None:
        """No weight is negative, the absent have none, and equal stamps share their cell."""
        if self.batch.times is None:
            return
        flow = model(self.kind).flows[-1]
        _, grid = place(self.batch, flow.axes.t, None, torch.empty((), dtype=torch.float64))
        weights = grid.weights.expand(self.shape)
        assert bool((weights >= 0).all())
        assert bool((weights[~self.flags] == 0).all())
        if grid.nodes.shape[-1] == 1:
            stamps = grid.nodes[..., 0].expand(self.shape)
            same = (stamps[:, :, None] == stamps[:, None]) & self.flags[:, :, None] & self.flags[:, None]
            off = (weights[:, :, None] - weights[:, None]).abs()
            assert float(torch.where(same, off, 0.0).max()) <= NEAR
        if self.kind == "line":
            assert gap(weights.sum(-1), torch.full((self.shape[0],), 8.0, dtype=weights.dtype)) < NEAR

    def check_order(self, answer: Tensor, seed: int) -> None:
        if self.kind in ("past", "words"):  # words are counted: their order is their place
            return
        batch, order = self.reordered(seed)
        moved = self.answer(batch)
        assert moved is not None
        assert gap(moved, answer[:, order]) < NEAR

    def check_alone(self, answer: Tensor, seed: int) -> None:
        one = slice(seed % self.shape[0], seed % self.shape[0] + 1)
        batch = changed(self.batch, lambda name, value: value[one])
        if batch.source is not None:
            batch = replace(batch, source=changed(batch.source, lambda name, value: value[one]))
        alone = self.answer(batch)
        assert alone is not None
        assert gap(alone, answer[one]) < NEAR

    def check_absent(self, answer: Tensor) -> None:
        """Whatever is written at an absent token changes nothing."""
        values = self.batch.values
        if not isinstance(values, Tensor) or bool(self.flags.all()):
            return
        junk = values.clone()
        junk[~self.flags] = float("nan") if values.is_floating_point() else 7
        found = self.answer(replace(self.batch, values=junk))
        assert found is not None
        assert torch.equal(found, answer)

    def check_future(self, answer: Tensor, seed: int) -> None:
        """Bit by bit: what comes later is not seen."""
        token = seed % self.shape[1]
        values = self.batch.values.clone()  # type: ignore[union-attr]
        values[:, token] += 3.0
        found = self.answer(replace(self.batch, values=values))
        assert found is not None
        past = self.batch.times < self.batch.times[:, token : token + 1]  # type: ignore[operator, index]
        assert torch.equal(found[past], answer[past])


BatchMachine.TestCase.settings = SETTINGS
TestBatchMachine = pytest.mark.spec("B17")(pytest.mark.finding("S1", "S2")(BatchMachine.TestCase))


@pytest.mark.finding("S1")
@given(samples=st.integers(0, 2), tokens=st.integers(0, 2), kind=st.sampled_from([*DOMAINS, "words"]))
@settings(SETTINGS, max_examples=20)
def test_empty_batches_are_refused(samples: int, tokens: int, kind: str) -> None:
    dim = 1 if kind == "words" else DOMAINS[kind].dim
    values = (
        torch.zeros(samples, tokens, dtype=torch.long) if kind == "words" else torch.rand(samples, tokens, CHANNELS)
    )
    times = None if kind == "words" else torch.rand(samples, tokens, dim).double().cumsum(1) / 8
    batch = Batch(values, times=times)
    if samples and tokens:
        assert model(kind)(batch).shape[:2] == (samples, tokens)
        return
    with pytest.raises(ContinuaError, match=r"Drop|Add|Give"):
        model(kind)(batch)


@pytest.mark.finding("S2")
@given(
    stamps=st.lists(st.floats(-20, 20), min_size=1, max_size=6),
    kind=st.sampled_from(["line", "ring", "times"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(SETTINGS, max_examples=40)
def test_stamps_anywhere_have_weights_or_are_refused(stamps: list[float], kind: str, dtype: torch.dtype) -> None:
    times = torch.tensor(stamps, dtype=dtype)
    span = max(stamps) - min(stamps)
    if (kind == "line" and (min(stamps) < -1e-5 or max(stamps) > 8 + 1e-5)) or (kind == "ring" and span > 8 + 1e-5):
        with pytest.raises(ContinuaError, match=r"Widen|modulo"):
            ct.Samples().on(DOMAINS[kind], times)
        return
    if (kind == "line" and (min(stamps) < 0 or max(stamps) > 8)) or (kind == "ring" and span > 8):
        return  # a hair outside may be rounding
    grid = ct.Samples().on(DOMAINS[kind], times)
    assert bool((grid.weights >= 0).all())
    if kind in ("line", "ring"):
        assert float(grid.mass) == pytest.approx(8.0, rel=1e-5)


@pytest.mark.finding("S1")
@given(seed=st.integers(0, 999), count=st.integers(1, 9), asked=st.integers(1, 5))
@settings(SETTINGS, max_examples=8)
@torch.no_grad()
def test_asked_points_are_answered_in_their_order(seed: int, count: int, asked: int) -> None:
    net = functions()
    values = random(2, count + 3, CHANNELS, seed=seed)
    times = random(2, count + 3, seed=seed + 1, low=0.0)
    where = random(2, asked, 1, seed=seed + 2, low=0.0)
    batch = Batch(values, times=times, asked=where)
    answer = net(batch)
    assert answer.shape[:2] == (2, asked)
    order = torch.randperm(asked, generator=torch.Generator().manual_seed(seed))
    assert gap(net(replace(batch, asked=where[:, order])), answer[:, order]) < NEAR
    shuffled = torch.randperm(count + 3, generator=torch.Generator().manual_seed(seed))
    assert gap(net(replace(batch, values=values[:, shuffled], times=times[:, shuffled])), answer) < 1e-4


@functools.cache
def functions() -> Any:
    from tests.cases import MODELS

    torch.manual_seed(0)
    return stirred(MODELS["functions on a circle"].build()).eval()
