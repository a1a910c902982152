"""Machines to plan for: memory, speed and links of one device, by the makers' published figures or as measured here."""

from dataclasses import dataclass

from continua.errors import ConfigError, nearest

GIGA = 10**9


@dataclass(frozen=True)
class Machine:
    """One device and how it reaches others.

    ``flops`` are those of dense matrix products in a second; ``node`` devices stand in one case and send ``inside``
    bytes a second each way, ``outside`` between cases; a message takes ``latency_inside`` or ``latency_outside``
    seconds before its first byte arrives. ``efficiency`` is the share of ``flops`` that a training step reaches.
    """

    name: str
    memory: float
    flops: float
    node: int
    inside: float
    outside: float
    latency_inside: float = 5e-6
    latency_outside: float = 1.5e-5
    efficiency: float = 0.4

    @property
    def speed(self) -> float:
        """FLOPs a second that are reached."""
        return self.flops * self.efficiency


# Dense bfloat16 FLOP/s without sparsity, memory, and the links of the makers' own eight-device systems, one way:
# data sheets of NVIDIA (A100 80 GB SXM 2021, H100 SXM 2023, H200 SXM 2024, DGX B200 2024) and AMD (MI300X 2023).
PUBLISHED = {
    "a100": Machine("A100 80 GB", 80 * GIGA, 312e12, 8, 300 * GIGA, 25 * GIGA),
    "h100": Machine("H100 80 GB", 80 * GIGA, 989e12, 8, 450 * GIGA, 50 * GIGA),
    "h200": Machine("H200 141 GB", 141 * GIGA, 989e12, 8, 450 * GIGA, 50 * GIGA),
    "b200": Machine("B200 180 GB", 180 * GIGA, 2250e12, 8, 900 * GIGA, 50 * GIGA),
    "mi300x": Machine("MI300X 192 GB", 192 * GIGA, 1307e12, 8, 448 * GIGA, 50 * GIGA),
}


def machine(name: str) -> Machine:
    """A published machine by its name."""
    if name not in PUBLISHED:
        raise ConfigError("no figures of this device are known", got=name, remedy=nearest(name, list(PUBLISHED)))
    return PUBLISHED[name]
