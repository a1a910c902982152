"""How long a group of devices takes to meet: rings, simulated message by message.

Every device sends to the next one. A message leaves when its content has arrived and the link is free; a link between
two cases is slower than one inside. What is simulated is the moment at which each device has what it waits for.
"""

import functools

import numpy as np

from continua.lab.cost.machines import Machine


def all_reduce(size: float, ranks: int, machine: Machine) -> float:
    """Seconds until all of ``ranks`` devices in a row have the sum of ``size`` bytes each."""
    return _passed(size / max(ranks, 1), ranks, 2 * (ranks - 1), machine)


def all_gather(size: float, ranks: int, machine: Machine) -> float:
    """Seconds until all have ``size`` bytes of which each had a part; as long as spreading the sums of all parts."""
    return _passed(size / max(ranks, 1), ranks, ranks - 1, machine)


def ring_step(size: float, ranks: int, machine: Machine) -> float:
    """Seconds for every device to hand ``size`` bytes to its neighbour once."""
    return _passed(size, ranks, 1, machine)


@functools.lru_cache(maxsize=4096)
def _passed(chunk: float, ranks: int, steps: int, machine: Machine) -> float:
    if ranks <= 1:
        return 0.0
    place = np.arange(ranks)
    behind = np.roll(place, -1)
    apart = place // machine.node != behind // machine.node
    seconds = np.where(
        apart, machine.latency_outside + chunk / machine.outside, machine.latency_inside + chunk / machine.inside
    )
    has = np.zeros(ranks)  # when a device may send what it passes on next
    free = np.zeros(ranks)  # when its link is free again
    for _ in range(steps):
        arrives = np.maximum(has, free) + seconds
        free = arrives
        has = np.roll(arrives, 1)
    return float(has.max())
