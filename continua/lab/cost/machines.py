"""Machines to plan for: memory, speed and links of one device, as published, as measured, or as a file says."""

import json
from dataclasses import dataclass
from pathlib import Path

from continua.errors import ConfigError, nearest
from continua.files import read_bytes
from continua.settings import Count, NonNegative, Positive, checked

GIGA = 10**9
EXAMPLE = '{"name": "mine", "memory": 24e9, "flops": 70e12, "node": 4, "inside": 25e9, "outside": 3e9}'


@checked
@dataclass(frozen=True)
class Machine:
    """One device and how it reaches others, in bytes, FLOPs and seconds.

    ``flops`` are those of dense matrix products in a second, in half precision; ``full`` those in float32 (the same if
    None). ``node`` devices stand in one case: each sends ``inside`` bytes a second to the next one, and ``outside``
    by its own link to another case. A message takes ``latency_inside`` or ``latency_outside`` seconds before its first
    byte arrives. ``efficiency`` is the share of FLOPs that a training step reaches. ``bandwidth`` are the bytes that
    the optimiser reads and writes in a second (None: its time is not counted).
    """

    name: str
    memory: Positive
    flops: Positive
    node: Count
    inside: Positive
    outside: Positive
    latency_inside: NonNegative = 5e-6
    latency_outside: NonNegative = 1.5e-5
    efficiency: Positive = 0.4
    full: Positive | None = None
    bandwidth: Positive | None = None

    def __post_init__(self) -> None:
        if self.efficiency > 1.0:
            remedy = "Use 0 < efficiency ≤ 1."
            raise ConfigError("a share of the FLOPs is reached", got=self.efficiency, remedy=remedy)

    def speed(self, half: bool) -> float:
        """FLOPs a second that are reached, in half precision or in float32."""
        most = self.flops if half or self.full is None else self.full
        return most * self.efficiency


# Data sheets of NVIDIA (A100 80 GB SXM 2021, H100 SXM 2023, H200 SXM 2024, DGX B200 2024) and AMD (MI300X 2023):
# memory; dense bfloat16 without sparsity; links of the makers' own eight-device systems, one way, and the 200 or
# 400 Gb/s of each device between them; float32 without TF32, which torch uses only if told to; bytes/s of the memory.
PUBLISHED = {
    "a100": Machine("A100 80 GB", 80e9, 312e12, 8, 300e9, 25e9, full=19.5e12, bandwidth=2.039e12),
    "h100": Machine("H100 80 GB", 80e9, 989e12, 8, 450e9, 50e9, full=67e12, bandwidth=3.35e12),
    "h200": Machine("H200 141 GB", 141e9, 989e12, 8, 450e9, 50e9, full=67e12, bandwidth=4.8e12),
    "b200": Machine("B200 180 GB", 180e9, 2250e12, 8, 900e9, 50e9, full=75e12, bandwidth=8e12),
    "mi300x": Machine("MI300X 192 GB", 192e9, 1307e12, 8, 448e9, 50e9, full=163.4e12, bandwidth=5.3e12),
}


def machine(name: str) -> Machine:
    """A published machine by its name, or the one that a ``.json`` file describes by the names of ``Machine``."""
    if name.endswith(".json"):
        return described(Path(name))
    if name not in PUBLISHED:
        remedy = f"{nearest(name, list(PUBLISHED))} Or name a .json file that describes one."
        raise ConfigError("no figures of this device are known", got=name, remedy=remedy)
    return PUBLISHED[name]


def described(path: Path) -> Machine:
    """The machine of a file."""
    remedy = f"Write its figures in bytes and FLOPs a second, such as {EXAMPLE}."
    try:
        said = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as problem:
        raise ConfigError(f"{path} describes no device", got=str(problem), remedy=remedy) from problem
    if not isinstance(said, dict):
        raise ConfigError(f"{path} describes no device", got=type(said).__name__, remedy=remedy)
    return Machine(**said)
