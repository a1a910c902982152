"""Continuous batching (B13): texts join and leave between tokens, and each is written as if it were alone."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import continua as ct
from continua.errors import ConfigError
from continua.models import Greedy, Sample, Sampling
from continua.serve import (
    Ask,
    Decoder,
    Demand,
    Engine,
    Front,
    Full,
    Job,
    Limits,
    Load,
    Metrics,
    Said,
    SizeCost,
    by_slack,
    front_of,
)
from continua.serve.choice import Lately, Pace
from continua.serve.service import Served, measured_front, size_name

PROMPTS = [(3, 4, 5), (6,), (9, 8, 7, 6, 5, 4, 3), (5, 5), (4, 4, 4, 4), (10, 11)]


def cost(name: str, model: ct.Transformer, seconds: float, loss: float, **sizes: int) -> SizeCost:
    return SizeCost(name, model.settle(ct.at(**sizes)), loss, (1, 4), (seconds, 2 * seconds), seconds / 10)


@pytest.fixture(scope="module")
def front(model: ct.Transformer) -> Front:
    sizes = [cost("native", model, 0.4, 1.0), cost("narrow", model, 0.2, 1.1, d=8), cost("flat", model, 0.1, 1.2, z=2)]
    return front_of(sizes)


@pytest.fixture
def made(model: ct.Transformer, front: Front) -> Iterator[Callable[..., Engine]]:
    engines = []

    def make(choose: Any = None, **limits: int) -> Engine:
        kept = Limits(**{"batch": 4, "queue": 8, **limits})
        engines.append(Engine(Decoder(model, kept.batch, 48), front, kept, Metrics(), choose).start())
        return engines[-1]

    yield make
    for engine in engines:
        engine.stop(drain=False, timeout=5)


class Listener:
    """A job and its end."""

    def __init__(self, ask: Ask, streams: bool = False, **rest: Any) -> None:
        self.said: list[Said] = []
        self.over = threading.Event()
        self.job = Job(ask, self.tell, streams=streams, **rest)

    def tell(self, said: Said) -> None:
        self.said.append(said)
        if said.finish is not None:
            self.over.set()

    def done(self) -> Job:
        assert self.over.wait(30)
        return self.job


def alone(view: Any, ask: Ask) -> list[int]:
    draws = None if ask.seed is None else torch.Generator().manual_seed(ask.seed)
    rest = {"sampling": ask.sampling, "generator": draws, "stop": sorted(ask.stop)}
    text = ct.generate(view, torch.tensor([ask.ids]), tokens=ask.tokens, **rest)
    return text[0, len(ask.ids) :].tolist()


@pytest.mark.spec("B13")
@pytest.mark.parametrize(
    "sampling", [Greedy(), Sample(0.9, top_k=9), Greedy(1.5), Sample(top_p=0.8, repetition_penalty=1.2)], ids=str
)
def test_a_text_in_a_batch_is_the_text_alone(
    model: ct.Transformer, made: Callable[..., Engine], sampling: Sampling
) -> None:
    engine = made()
    asks = [Ask(ids, 5 + 3 * i, sampling, seed=i) for i, ids in enumerate(PROMPTS)]
    listeners = [Listener(ask, streams=i % 2 == 0) for i, ask in enumerate(asks)]
    for listener in listeners:  # six texts, four places: they join and leave on the way
        engine.submit(listener.job)
    for listener, ask in zip(listeners, asks, strict=True):
        job = listener.done()
        assert job.finish == "length"
        assert job.new == alone(model, ask)
        assert job.sizes == {"native": ask.tokens}
        told = [said.token for said in listener.said]
        assert told == (job.new if job.streams else job.new[-1:])


@pytest.mark.spec("B13")
def test_pinned_sizes_share_a_batch_and_stop_tokens_end_a_text(
    model: ct.Transformer, made: Callable[..., Engine]
) -> None:
    engine = made()
    assert engine.pin("mine", model.settle(ct.at(d=12, h=2, z=3)))
    views = {"narrow": model.at(d=8), "flat": model.at(z=2), "mine": model.at(d=12, h=2, z=3), "native": model}
    asks = {name: Ask((3, 4, 5), 12, size=name) for name in views}
    listeners = {name: Listener(ask) for name, ask in asks.items()}
    for listener in listeners.values():
        engine.submit(listener.job)
    for name, view in views.items():
        assert listeners[name].done().new == alone(view, asks[name])
        assert listeners[name].job.main_size == name
    third = alone(model, asks["native"])[2]
    ends = Listener(replace(asks["native"], stop=frozenset({third})))
    engine.submit(ends.job)
    assert ends.done().finish == "stop"
    assert ends.job.new == alone(model, asks["native"])[: alone(model, asks["native"]).index(third) + 1]


@pytest.mark.spec("B13")
def test_a_text_goes_on_at_another_size(
    model: ct.Transformer, made: Callable[..., Engine], front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another family its tokens are read again, exactly; in its own family the keys stay."""
    plan = ["native", "native", "flat", "flat", "native"]

    def planned(front: Front, load: Load) -> SizeCost:
        return front[plan[len(load.jobs[0].new)]]

    engine = made(planned)
    monkeypatch.setattr("continua.serve.engine.DOWN", 0.0)
    monkeypatch.setattr("continua.serve.engine.UP", 0.0)
    listener = Listener(Ask((3, 4, 5), len(plan)))
    engine.submit(listener.job)
    job = listener.done()
    text = [3, 4, 5]
    for i, name in enumerate(plan):
        with torch.no_grad():
            token = int(model(torch.tensor([text]), front[name].at)[0, -1].argmax())
        assert job.new[i] == token
        text.append(token)
    assert job.sizes == {"native": 3, "flat": 2}
    assert (engine.metrics.reread, engine.metrics.switched) == (2, 2)
    plan[:] = ["native", "narrow", "narrow", "native", "native"]
    narrow = Listener(Ask((3, 4, 5), len(plan)))
    engine.submit(narrow.job)
    assert narrow.done().sizes == {"native": 3, "narrow": 2}
    assert (engine.metrics.reread, engine.metrics.switched) == (2, 4), "the keys of the native size were used"


@pytest.mark.spec("B13")
def test_texts_move_into_the_slots_that_others_left(model: ct.Transformer, front: Front) -> None:
    engine = Engine(Decoder(model, 4, 48), front, Limits(4, 8), Metrics())
    asks = [Ask(ids, tokens) for ids, tokens in zip(PROMPTS, (3, 20, 5, 20), strict=False)]
    jobs = [Listener(ask).job for ask in asks]
    for each in jobs:
        engine.submit(each)
    slots = []
    while not all(each.finish for each in jobs):
        engine.round()
        slots.append(sorted(each.slot for each in engine.active))
    assert [0, 1, 2, 3] in slots
    assert slots.count([0, 1]) > 5, "two are left, in a row"
    for each, ask in zip(jobs, asks, strict=True):
        assert each.new == alone(model, ask)
    assert sorted(engine._free) == [0, 1, 2, 3]
    engine.stop()


@pytest.mark.spec("B13")
def test_what_nobody_waits_for_is_dropped_and_its_place_is_free(made: Callable[..., Engine]) -> None:
    engine = made(batch=1)
    first = Listener(Ask((3,), 40), streams=True)
    engine.submit(first.job)
    waits = Listener(Ask((4,), 40))
    engine.submit(waits.job)
    while not first.said:
        time.sleep(0.001)
    first.job.cancel()
    waits.job.cancel()
    assert first.done().finish == "cancelled"
    assert waits.done().finish == "cancelled"
    last = Listener(Ask((5,), 3))
    engine.submit(last.job)
    assert last.done().finish == "length"
    engine.stop()
    assert last.job.slot == -1


@pytest.mark.spec("B13")
def test_a_full_queue_says_when_to_come_again(model: ct.Transformer, front: Front) -> None:
    engine = Engine(Decoder(model, 1, 48), front, Limits(1, 2), Metrics())  # not started: nothing leaves
    for _ in range(2):
        engine.submit(Listener(Ask((3,), 4)).job)
    with pytest.raises(Full) as full:
        engine.submit(Listener(Ask((3,), 4)).job)
    assert full.value.seconds >= 1
    engine.stop()


@pytest.mark.spec("B13")
def test_a_pass_that_fails_ends_its_texts_and_not_the_engine(
    model: ct.Transformer, made: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = made()
    real = engine.decoder.begin
    monkeypatch.setattr(engine.decoder, "begin", lambda *_: 1 / 0)
    listener = Listener(Ask((3,), 4))
    engine.submit(listener.job)
    assert listener.done().finish == "failed"
    assert "ZeroDivisionError" in listener.said[-1].problem
    monkeypatch.setattr(engine.decoder, "begin", real)
    again = Listener(Ask((3, 4), 4))
    engine.submit(again.job)
    assert again.done().new == alone(model, again.job.ask)
    assert engine.metrics.failures == 1


@pytest.mark.spec("B13")
def test_a_stop_writes_to_the_end_what_is_under_way(made: Callable[..., Engine]) -> None:
    engine = made()
    listener = Listener(Ask((3,), 30))
    engine.submit(listener.job)
    engine.stop(drain=True)
    assert listener.job.finish == "length"
    with pytest.raises(Full):
        engine.submit(Listener(Ask((3,), 4)).job)


# --- which size -------------------------------------------------------------------------------------------------------


def job(tokens: int, latency: float | None, arrived: float = 0.0) -> Job:
    return Job(Ask((3,), tokens, latency=latency), lambda said: None, arrived=arrived)


@pytest.mark.spec("B13")
def test_the_most_urgent_text_decides_the_size(front: Front) -> None:
    assert [size.name for size in front.sizes] == ["native", "narrow", "flat"]

    def chosen(*jobs: Job, waiting: Sequence[Job] = (), now: float = 0.0, pace: float = 1.0) -> str:
        return by_slack(front, Load(jobs, waiting, now, pace)).name

    assert chosen(job(10, None)) == "native"
    assert chosen(job(10, 6.0)) == "native"  # 10 × 0.4 s within 0.85 × 6 s
    assert chosen(job(10, 6.0), now=2.0) == "narrow", "two seconds are gone"
    assert chosen(job(10, 6.0), pace=3.0) == "flat", "the machine is busy"
    assert chosen(job(10, None), job(10, 3.5), job(10, 60.0)) == "flat", "three at once are slower, one is urgent"
    assert chosen(job(10, 0.1)) == "flat", "nothing is quick enough: the quickest"
    assert chosen(job(10, 6.0), waiting=[job(10, 7.0)]) == "narrow", "the next one waits for this one"
    assert chosen(job(2, 6.0), waiting=[job(10, 7.0)]) == "native", "not for long"


@pytest.mark.spec("B13")
def test_families_are_not_changed_at_every_token(model: ct.Transformer, front: Front) -> None:
    engine = Engine(Decoder(model, 2, 48), front, Limits(2, 2), Metrics())
    native, narrow, flat = front.sizes
    going = replace_size(job(10, 5.0), "native")
    assert engine._settled(narrow, [going], 10.0) is narrow, "the same heads and steps: nothing is read again"
    assert engine._settled(flat, [going], 10.0) is flat
    engine._size = flat
    going.size = "flat"
    assert engine._settled(native, [going], 12.5) is flat, "a better family has to wait"
    assert engine._settled(native, [going], 13.5) is native
    engine._size = native
    going.size = "native"
    assert engine._settled(flat, [going], 13.7) is native
    assert engine._settled(flat, [going], 14.1) is flat, "a quicker one not for long"
    engine._next = [job(10, 5.0)]
    assert engine._settled(native, [going], 99.0) is native, "it has the keys of the native family"
    going.size = "flat"
    engine._size = flat
    assert engine._settled(native, [going], 99.0) is flat, "somebody waits"
    assert engine._settled(native, [job(10, 5.0)], 99.0) is native, "a text that begins is read anyway"
    engine.stop()


def replace_size(job: Job, name: str) -> Job:
    job.size = name
    return job


def test_the_pace_is_learned_and_forgotten() -> None:
    pace = Pace()
    pace.forget(0.0)
    pace.learn(100.0)
    assert 1 < pace.value < 2, "one round that was stopped"
    for _ in range(100):
        pace.learn(3.0)
    assert pace.value == pytest.approx(3.0, rel=0.01)
    pace.forget(60.0)
    assert pace.value == pytest.approx(1.0, abs=1e-6)
    pace.learn(0.01)
    assert pace.value == 1.0


@pytest.mark.spec("B13")
def test_the_size_keeps_up_with_what_is_asked_lately(front: Front) -> None:
    """With four places a token of each takes 0.8, 0.4 and 0.2 s: the sizes write 5, 10 and 20 tokens a second."""
    lately = Lately()
    for i in range(80):
        lately.add(job(2, 4.0, arrived=i / 4))  # eight tokens a second
    lately.add(job(1000, None, arrived=20.0))  # without a deadline: no hurry
    asked = lately.demand(20.0)
    assert asked.writing == pytest.approx(8.0, rel=0.1)
    assert asked.reading == pytest.approx(4.0, rel=0.1)
    assert lately.demand(60.0).writing < 0.01, "that was long ago"

    def chosen(writing: float, pace: float = 1.0, jobs: Sequence[Job] = (job(2, 1e3),)) -> str:
        return by_slack(front, Load(jobs, (), 0.0, pace, places=4, demand=Demand(0.0, writing))).name

    sizes = [chosen(writing) for writing in (0.0, 4.9, 5.1, 10.1, 99.0)]
    assert sizes == ["native", "native", "narrow", "flat", "flat"]
    assert chosen(4.9, pace=1.2) == "narrow", "the machine is busy"


@pytest.mark.spec("B13")
def test_a_change_that_reads_texts_again_has_to_be_worth_it(front: Front) -> None:
    def chosen(writing: float, again: dict[str, float], latency: float = 1e3) -> str:
        asked = Demand(0.0, writing)
        return by_slack(front, Load((job(10, latency),), (), 0.0, 1.0, 4, asked, again)).name

    assert chosen(7.0, {}) == "narrow"
    assert chosen(9.0, {"narrow": 0.1, "flat": 0.1}) == "flat", "narrow would not keep up for long"
    assert chosen(7.0, {"narrow": 0.1, "flat": 0.1}) == "narrow"
    assert chosen(0.0, {}, latency=3.0) == "narrow"
    assert chosen(0.0, {"narrow": 1.0, "flat": 1.0}, latency=3.0) == "flat", "the quickest makes up for it"
    assert chosen(0.0, {"narrow": 9.0, "flat": 9.0}, latency=3.0) == "native", "nothing does"


@pytest.mark.spec("B13")
def test_nobody_joins_where_others_would_be_late(model: ct.Transformer, front: Front) -> None:
    """At the quickest size a token takes 0.1 s alone, 0.133 s in twos, and a prompt token 0.01 s."""
    engine = Engine(Decoder(model, 4, 48), front, Limits(4, 8), Metrics())
    now = time.monotonic()
    engine.active = [job(20, 2.7, arrived=now)]
    coming = [job(5, 60.0, arrived=now), job(5, 60.0, arrived=now)]
    assert engine._room_among(coming, now) == 0, "20 × 0.133 s are too many"
    engine.active = [job(20, 3.0, arrived=now)]
    assert engine._room_among(coming, now) == 1
    engine.active = [job(20, None, arrived=now)]
    assert engine._room_among(coming, now) == 2, "it has time"
    engine.stop()


@pytest.mark.spec("B13")
def test_what_cannot_be_in_time_any_more_is_given_up(made: Callable[..., Engine]) -> None:
    """The table says 0.1 s a token at the quickest size."""
    engine = made()
    late = Listener(Ask((3,), 40, latency=2.0))
    hopeful = Listener(Ask((3,), 40, latency=60.0))
    engine.submit(late.job)
    engine.submit(hopeful.job)
    assert late.done().finish == "late"
    assert "no size is quick enough" in late.said[-1].problem
    assert hopeful.done().finish == "length"
    engine.stop()
    assert (engine.metrics.in_time, engine.metrics.too_late) == (1, 1)


def test_sizes_that_others_beat_are_left_out(model: ct.Transformer) -> None:
    sizes = [cost("native", model, 0.4, 1.0), cost("worse and slower", model, 0.5, 1.5), cost("quick", model, 0.1, 2.0)]
    assert [size.name for size in front_of(sizes).sizes] == ["native", "quick"]


def test_a_line_joins_the_times_that_were_measured(model: ct.Transformer) -> None:
    one = SizeCost("one", model.native, None, (1, 2, 4), (1.0, 1.2, 2.0), 0.1)
    assert [one.seconds(n) for n in (1, 2, 3, 4, 8)] == pytest.approx([1.0, 1.2, 1.6, 2.0, 4.0])
    assert one.whole(10, 5, 2) == pytest.approx(1.0 + 6.0)


@pytest.mark.spec("B13")
def test_the_table_is_measured_at_the_start(served: Served, model: ct.Transformer) -> None:
    heard: list[tuple[int, int]] = []
    front = measured_front(served, Decoder(model, 2, 48), lambda *at: heard.append(at))
    assert heard[-1] == (7, 7), "rounds over all sizes"
    assert front.native.name == size_name(model.native) == "d=16,h=4,z=4"
    assert all(size.step[0] > 0 and size.reading > 0 and not math.isnan(size.step[-1]) for size in front.sizes)
    assert all(a.loss < b.loss for a, b in zip(front.sizes, front.sizes[1:], strict=False))  # type: ignore[operator]


@pytest.mark.spec("B13")
def test_sizes_that_lose_too_much_are_not_in_the_table(served: Served, model: ct.Transformer) -> None:
    native = served.losses[size_name(model.native)][1]
    losses = {name: loss / native - 1 for name, (_, loss) in served.losses.items()}
    bound = sorted(losses.values())[1]
    front = measured_front(served, Decoder(model, 2, 48), worst=bound)
    assert {size.name for size in front.sizes} <= {name for name, rise in losses.items() if rise <= bound}
    assert len(measured_front(served, Decoder(model, 1, 48), worst=0.0).sizes) == 1, "the native one alone"
    with pytest.raises(ConfigError, match="continua pareto"):
        measured_front(replace(served, losses={}), Decoder(model, 1, 48), worst=0.05)
