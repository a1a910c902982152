"""Twice the load that the native size can answer (B13): the engine on a clock that only passes move."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from continua.axes import Discretisation, at
from continua.serve import Ask, Engine, Front, Job, Limits, Metrics, Said, SizeCost
from continua.serve.choice import Load, always_native, by_slack

PLACES = 8
TOKENS = 16
ALONE = 0.005  # seconds of a token of one text at the native size; eight take twice as long


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Passes:
    """A decoder whose passes cost what the table says, a little more or less."""

    samples = PLACES

    def __init__(self, clock: Clock, front: Front) -> None:
        self.clock = clock
        self.costs = {size.at: size for size in front.sizes}
        self.draws = random.Random(0)

    def family(self, where: Discretisation) -> tuple[Any, ...]:
        return (where.z,)

    def begin(self, where: Discretisation, texts: Sequence[Sequence[int]], slots: Sequence[int]) -> torch.Tensor:
        return self._spent(self.costs[where].reading * sum(map(len, texts)), len(texts))

    def step(self, where: Discretisation, last: Sequence[int], lengths: Any, slots: Any) -> torch.Tensor:
        return self._spent(self.costs[where].seconds(len(last)), len(last))

    def move(self, where: Discretisation, source: int, target: int, length: int) -> None:
        assert source > target >= 0
        assert length > 0

    def _spent(self, seconds: float, count: int) -> torch.Tensor:
        self.clock.now += seconds * self.draws.uniform(0.9, 1.3)
        return torch.zeros(count, 3)


def sizes(*depths: int) -> Front:
    """Half the steps take half the time; each that is left out costs a hundredth of the loss."""

    def cost(z: int) -> SizeCost:
        share = z / 8
        steps = (share * ALONE, 2 * share * ALONE)
        return SizeCost(f"z={z}", at(z=z), 1 + (8 - z) / 100, (1, PLACES), steps, share * ALONE / 10)

    return Front(tuple(cost(z) for z in depths))


def asked(engine: Engine, clock: Clock, rate: float, latency: float, seconds: float = 4.0) -> list[Job]:
    """Texts that come at random, until all are over."""
    draws = random.Random(1)
    jobs: list[Job] = []
    start = clock.now
    coming = start + draws.expovariate(rate)
    while coming < start + seconds or engine.active or engine.metrics.waiting:
        while coming <= clock.now and coming < start + seconds:
            jobs.append(Job(Ask((1,) * 4, TOKENS, latency=latency), _unheard, arrived=coming))
            engine.submit(jobs[-1])
            coming += draws.expovariate(rate)
        if engine.active or engine.metrics.waiting:
            engine.round()
        else:
            clock.now = coming
    return jobs


def _unheard(said: Said) -> None:
    return


@dataclass(frozen=True)
class Outcome:
    in_time: float  # share of all
    rise: float  # of the loss of their texts
    wasted: int  # texts that were begun and given up, or late


def outcome(front: Front, choose: Any, load: float = 2.0) -> Outcome:
    clock = Clock()
    engine = Engine(Passes(clock, front), front, Limits(PLACES, 500), Metrics(), choose, clock)  # type: ignore[arg-type]
    capacity = PLACES / (front.native.whole(4, TOKENS, PLACES) * 1.1)
    jobs = asked(engine, clock, load * capacity, latency=3 * TOKENS * ALONE)
    good = [job for job in jobs if job.finish == "length" and job.ended <= job.deadline]  # type: ignore[operator]
    losses = [sum(front[name].loss * n for name, n in job.sizes.items()) / TOKENS for job in good]  # type: ignore[operator]
    wasted = sum(1 for job in jobs if job.new and job not in good)
    return Outcome(len(good) / len(jobs), sum(losses) / len(losses) - 1, wasted)


@pytest.mark.spec("B13")
def test_smaller_sizes_answer_what_the_native_one_cannot() -> None:
    every = sizes(8, 7, 6, 5, 4, 3, 2)
    native = outcome(every, always_native)
    free = outcome(every, by_slack)
    bounded = outcome(sizes(8, 7, 6, 5, 4), by_slack)
    calm = outcome(every, by_slack, load=0.2)
    assert native.in_time < 0.6
    assert free.in_time > 0.95
    assert 0 < free.rise < 0.06, "the quickest size, with twice that, is not needed"
    assert bounded.in_time > 1.5 * native.in_time
    assert bounded.rise <= 0.04, "no size that is not in the table"
    assert calm.in_time == 1.0
    assert calm.rise < 0.005, "where nobody is late the native size writes"


@pytest.mark.spec("B13")
def test_little_that_is_begun_is_given_up() -> None:
    native = sizes(8)
    assert outcome(native, always_native).wasted <= 5
    flooded = outcome(native, always_native, load=4.0)
    assert flooded.in_time > 0.15, "four times too much: a quarter at best"


def test_a_choice_sees_places_and_demand() -> None:
    seen: list[Load] = []

    def choose(front: Front, load: Load) -> SizeCost:
        seen.append(load)
        return front.native

    outcome(sizes(8, 4), choose)
    assert {load.places for load in seen} == {PLACES}
    assert max(load.demand.writing for load in seen) > TOKENS
