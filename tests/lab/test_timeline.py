"""Timelines of a step and rings of devices, against what is computed by hand and work by work."""

from dataclasses import replace
from typing import Any

import pytest

import continua as ct
from continua.errors import ConfigError
from continua.lab.cost.collectives import all_gather, all_reduce, ring_backward, ring_forward
from continua.lab.cost.events import Work, WorkKind, simulated
from continua.lab.cost.job import Job, Mesh
from continua.lab.cost.machines import Machine
from continua.lab.cost.steps import Section, StepParts, seconds_of, step_parts, step_seconds
from tests.refusals import refused

pytestmark = pytest.mark.spec("B15")
EVEN = Machine("even", 8e9, 1e12, 4, 1e9, 1e9, 1e-6, 1e-6, 1.0)
SLOW = replace(EVEN, outside=1e8)


def test_works_wait_for_their_stream_and_for_each_other() -> None:
    c = WorkKind.COMPUTE
    w = WorkKind.WEIGHTS
    line = simulated(
        [
            Work("a", "device", 3.0, c),
            Work("gather", "link", 5.0, w),
            Work("b", "device", 2.0, c, ("gather",)),
            Work("gather more", "link", 1.0, w, ("a",)),
            Work("c", "device", 1.0, c, ("gather more", "a")),
        ]
    )
    assert [(span.start, span.end) for span in line.spans] == [(0, 3), (0, 5), (5, 7), (5, 6), (7, 8)]
    assert line.end == 8
    assert line.busy("device", c) == 6
    assert line.idle("device", w) == 2
    assert line.idle("link", w) == 0
    assert simulated([]).end == 0
    with refused(ConfigError, "'b' after 'a'", "behind those"):
        simulated([Work("b", "device", 1.0, c, ("a",)), Work("a", "device", 1.0, c)])
    with refused(ConfigError, "'a' twice", "once"):
        simulated([Work("a", "device", 1.0, c), Work("a", "link", 1.0, c)])


def seconds(parts: StepParts) -> Any:
    line = simulated(parts.works())
    found = seconds_of(line)
    assert found.total == pytest.approx(line.end), "nothing of a step is left over"
    return found


def test_a_step_computed_by_hand() -> None:
    blocks = Section("blocks", 2.0, 4.0, 0.5, 1.0, meeting=3.0)
    readout = Section("readout", 1.0, 2.0, meeting=1.5)
    # there 2 + 0.5 + 1, back 2 + 4 + 1; the readout's gradients meet behind the blocks, theirs follow
    found = seconds(StepParts((blocks, readout), optimiser=0.25))
    assert (found.compute, found.tokens, found.weights, found.gradients, found.optimiser) == (9, 1.5, 0, 3, 0.25)
    # a meeting of 7 seconds of the readout's lasts 2 longer than the blocks' way back, and the next one waits for it
    slow = seconds(StepParts((blocks, replace(readout, meeting=7.0))))
    assert slow.gradients == 2 + 3
    # weights are gathered before each of two parts; gradients meet once
    twice = seconds(StepParts((blocks, readout), gather=0.75, accumulate=2))
    assert (twice.compute, twice.tokens, twice.weights, twice.gradients) == (18, 3, 1.5, 3)


def test_a_readout_of_its_own_meets_while_the_blocks_go_back() -> None:
    tied = Job(ct.zoo.gpt2(vocab=900, d=32, heads=2, depth=2, context=16), 4, 16)
    own = Job(ct.zoo.llama(vocab=900, d=32, heads=2, depth=2), 4, 16)
    assert tied.early_parameters() < 900 * 32 <= own.early_parameters()
    found = step_parts(own, Mesh(2), EVEN, 2, 1).sections
    size = 4 * own.cost(1).parameters
    early = 4 * own.early_parameters()
    assert found[1].meeting == pytest.approx(all_reduce(early, 2, EVEN))
    assert found[0].meeting == pytest.approx(all_reduce(size - early, 2, EVEN))
    quick = replace(EVEN, flops=1e6)  # slow enough that the readout's meeting is hidden
    whole = all_reduce(size, 2, quick)
    assert step_seconds(own, Mesh(2), quick, 2, 1).gradients < whole - 0.9 * all_reduce(early, 2, quick)
    sharded = step_seconds(own, Mesh(2, sharded=True), EVEN, 2, 1)
    assert sharded.gradients == pytest.approx(all_gather(size, 2, EVEN))
    assert sharded.weights == pytest.approx(all_gather(size, 2, EVEN))


def test_the_optimiser_takes_the_time_of_the_bytes_it_touches() -> None:
    job = Job(ct.zoo.gpt2(vocab=50, d=16, heads=2, depth=2, context=16), 4, 16)
    machine = replace(EVEN, bandwidth=1e9)
    numbers = job.cost(1).parameters
    assert step_seconds(job, Mesh(2), machine, 2, 1).optimiser == pytest.approx(numbers * 28 / 1e9)
    assert step_seconds(job, Mesh(2, sharded=True), machine, 2, 1).optimiser == pytest.approx(numbers * 14 / 1e9)


def test_rings_take_the_time_of_their_closed_form_where_links_are_alike() -> None:
    for ranks in (2, 3, 4):
        once = 1e-6 + 1e6 / ranks / 1e9
        assert all_reduce(1e6, ranks, EVEN) == pytest.approx(2 * (ranks - 1) * once)
        assert all_gather(1e6, ranks, EVEN) == pytest.approx((ranks - 1) * once)
        send = 1e-6 + 1e-3
        for turn in (1e-4, 5e-3):  # links slower than turns, and quicker
            assert ring_forward(turn, 1e6, ranks, EVEN) == pytest.approx(turn + (ranks - 1) * max(turn, send))
        # gradients follow each turn; the last ones have a way home that nothing hides
        assert ring_backward(5e-3, 1e6, ranks, EVEN) == pytest.approx(ranks * 5e-3 + send)
    assert ring_backward(1e-9, 1e6, 3, EVEN) == pytest.approx(5 * send), "two of keys, three of gradients"
    assert all_reduce(1e6, 1, EVEN) == 0.0
    assert ring_backward(1.0, 1e6, 1, EVEN) == ring_forward(1.0, 1e6, 1, EVEN) == 1.0


def test_cases_are_joined_by_a_ring_through_each_device() -> None:
    assert all_reduce(1e6, 4, SLOW) == pytest.approx(all_reduce(1e6, 4, EVEN))
    assert all_reduce(1e6, 8, SLOW) == pytest.approx(14 * (1e-6 + 1e6 / 8 / 4 / 1e8), rel=0.15)
    keys = 1e-6 + 1e6 / 1e8
    assert ring_forward(0.0, 1e6, 8, SLOW) == pytest.approx(7 * keys, rel=0.15), "keys go from one device to one"


def messages(ranks: int, machine: Machine, size: float) -> list[float]:
    def one(rank: int) -> float:
        apart = rank // machine.node != (rank + 1) % ranks // machine.node
        return (
            machine.latency_outside + size / machine.outside
            if apart
            else machine.latency_inside + size / machine.inside
        )

    return [one(rank) for rank in range(ranks)]


@pytest.mark.parametrize("turn", [0.0, 2e-3, 2e-2])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_arrays_of_a_ring_are_its_works_one_by_one(ranks: int, turn: float) -> None:
    sends = messages(ranks, SLOW, 1e6)
    forward: list[Work] = []
    backward: list[Work] = []
    for index in range(ranks):
        for rank in range(ranks):
            behind = (rank - 1) % ranks
            keys = (f"keys {index - 1} {behind}",) if index else ()
            grads = (f"grads {index - 1} {behind}",) if index else ()
            send = Work(f"keys {index} {rank}", f"link {rank}", sends[rank], WorkKind.TOKENS, keys)
            forward.append(Work(f"turn {index} {rank}", f"device {rank}", turn, WorkKind.COMPUTE, keys))
            backward.append(Work(f"turn {index} {rank}", f"device {rank}", turn, WorkKind.COMPUTE, keys))
            if index < ranks - 1:
                forward.append(send)
                backward.append(send)
            added = Work(f"add {index} {rank}", f"device {rank}", 0.0, WorkKind.COMPUTE, grads)
            home = Work(f"grads {index} {rank}", f"link {rank}", sends[rank], WorkKind.TOKENS, (added.name,))
            backward += [added, home]
    ends = [span.end for span in simulated(forward).spans if span.work.kind == WorkKind.COMPUTE]
    assert ring_forward(turn, 1e6, ranks, SLOW) == pytest.approx(max(ends))
    assert ring_backward(turn, 1e6, ranks, SLOW) == pytest.approx(simulated(backward).end)


def test_a_sum_over_devices_is_its_messages_one_by_one() -> None:
    ranks = 8
    once = messages(ranks, replace(SLOW, outside=SLOW.outside * SLOW.node), 1e6 / ranks)
    works = [
        Work(
            f"{step} {rank}",
            f"link {rank}",
            once[rank],
            WorkKind.GRADIENTS,
            (f"{step - 1} {(rank - 1) % ranks}",) * (step > 0),
        )
        for step in range(2 * (ranks - 1))
        for rank in range(ranks)
    ]
    assert all_reduce(1e6, ranks, SLOW) == pytest.approx(simulated(works).end)
