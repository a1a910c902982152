"""How long a group of devices takes to meet: rings, simulated message by message for all devices at once.

Every device sends to the next one. A message leaves when its content has arrived and the link is free; a link between
two cases is slower than one inside. What is simulated is the moment at which each device has what it waits for; these
are the events of ``events`` for a ring, as arrays over its devices.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from continua.lab.cost.machines import Machine

Times = NDArray[np.float64]


def all_reduce(size: float, ranks: int, machine: Machine) -> float:
    """Seconds until all of ``ranks`` devices in a row have the sum of ``size`` bytes each."""
    return _passed(size / max(ranks, 1), ranks, 2 * (ranks - 1), machine)


def all_gather(size: float, ranks: int, machine: Machine) -> float:
    """Seconds until all have ``size`` bytes of which each had a part; as long as spreading the sums of all parts."""
    return _passed(size / max(ranks, 1), ranks, ranks - 1, machine)


@functools.lru_cache(maxsize=4096)
def _passed(chunk: float, ranks: int, steps: int, machine: Machine) -> float:
    """``steps`` messages of every device; cases are joined by a ring through each device, which share the bytes."""
    if ranks <= 1:
        return 0.0
    seconds = _messages(chunk, chunk / machine.node, ranks, machine)
    has = np.zeros(ranks)  # when a device may send what it passes on next
    free = np.zeros(ranks)  # when its link is free again
    for _ in range(steps):
        free = np.maximum(has, free) + seconds
        has = np.roll(free, 1)
    return float(has.max())


def _messages(inside: float, outside: float, ranks: int, machine: Machine) -> Times:
    """Seconds of a message from each device to the next one, of so many bytes inside a case or out of it."""
    place = np.arange(ranks)
    apart = place // machine.node != np.roll(place, -1) // machine.node
    near = machine.latency_inside + inside / machine.inside
    far = machine.latency_outside + outside / machine.outside
    found: Times = np.where(apart, far, near)
    return found


@functools.lru_cache(maxsize=4096)
def ring_forward(turn: float, size: float, ranks: int, machine: Machine) -> float:
    """Seconds of an attention whose keys and values, ``size`` bytes a device, go round once.

    In each of ``ranks`` turns a device passes on what it has and attends to it for ``turn`` seconds meanwhile.
    """
    seconds = _messages(size, size, ranks, machine)
    free = np.zeros(ranks)  # when a device has attended to all it had
    keys = np.zeros(ranks)  # when the next keys and values are there
    sent = np.zeros(ranks)  # when its link is free
    for index in range(ranks):
        begun = np.maximum(free, keys)
        free = begun + turn
        if index < ranks - 1:
            sent = np.maximum(keys, sent) + seconds
            keys = np.roll(sent, 1)
    return float(free.max())


@functools.lru_cache(maxsize=4096)
def ring_backward(turn: float, size: float, ranks: int, machine: Machine) -> float:
    """The way back: behind the keys and values walk their gradients, which come home with one message more.

    A device sends the gradients of a turn when that has ended and those of the turn before have arrived, and then the
    next keys and values: messages leave in the order in which torch's ring asks for them.
    """
    if ranks <= 1:
        return turn
    seconds = _messages(size, size, ranks, machine)
    free = np.zeros(ranks)
    keys = np.zeros(ranks)
    gradients = np.zeros(ranks)  # when those of the turn before are there
    sent = np.zeros(ranks)
    for index in range(ranks):
        begun = np.maximum(free, keys)
        if index < ranks - 1:
            sent = np.maximum(keys, sent) + seconds
            keys = np.roll(sent, 1)
        free = np.maximum(begun + turn, gradients)
        sent = np.maximum(free, sent) + seconds
        gradients = np.roll(sent, 1)
    return float(gradients.max())
