"""Will it fit, and how long will it take? Bytes of a device and seconds of a step, before anything is bought or run.

Bytes are those of ``footprint``, seconds those of the simulated timeline of ``steps``, of each mesh that divides a job.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from continua.errors import ConfigError
from continua.lab.cost.footprint import Bytes, footprint
from continua.lab.cost.job import Job, Mesh
from continua.lab.cost.machines import Machine
from continua.lab.cost.steps import Seconds, step_seconds


@dataclass(frozen=True)
class MeshCost:
    """What one mesh makes of one job, whose samples each device takes in ``accumulate`` parts."""

    mesh: Mesh
    accumulate: int
    bytes: Bytes
    seconds: Seconds
    samples: int
    context: int
    memory: float

    @property
    def fits(self) -> bool:
        """Whether a device has the memory."""
        return self.bytes.total <= self.memory

    @property
    def tokens_per_second(self) -> float:
        """Of all devices."""
        return self.samples * self.context / self.seconds.total


def planned(job: Job, machine: Machine, mesh: Mesh, accumulate: int = 1) -> MeshCost:
    """What a mesh of machines makes of a job."""
    samples = _samples(job, mesh, accumulate)
    return MeshCost(
        mesh=mesh,
        accumulate=accumulate,
        bytes=footprint(job, mesh, samples),
        seconds=step_seconds(job, mesh, machine, samples, accumulate),
        samples=job.batch,
        context=job.context,
        memory=machine.memory,
    )


def _samples(job: Job, mesh: Mesh, accumulate: int) -> int:
    """How many samples a device has at a time."""
    if job.batch % (mesh.data * accumulate) or job.context % mesh.tokens:
        got = f"{job.batch} samples in {accumulate} parts, {job.context} tokens on {mesh}"
        raise ConfigError("a mesh divides samples and tokens", got=got, remedy="Choose a mesh that divides both.")
    return job.batch // mesh.data // accumulate


def meshes(job: Job, devices: int) -> Iterator[Mesh]:
    """Every way to use ``devices`` devices that divides the job."""
    for tokens in range(1, devices + 1):
        data = devices // tokens
        if devices % tokens or job.batch % data or job.context % tokens:
            continue
        yield Mesh(data, tokens)
        if devices > 1:
            yield Mesh(data, tokens, sharded=True)


def plans(job: Job, machine: Machine, devices: int) -> list[MeshCost]:
    """All meshes of so many devices: those that fit first, the quickest before; then those that nearly do."""
    found = [planned(job, machine, mesh, fewest_parts(job, machine, mesh)[0]) for mesh in meshes(job, devices)]
    if not found:
        got = f"{devices} devices for {job.batch} samples of {job.context} tokens"
        remedy = "Choose a number that divides the product of samples and tokens."
        raise ConfigError("no mesh of these devices divides the job", got=got, remedy=remedy)
    return sorted(
        found, key=lambda plan: (0.0 if plan.fits else plan.bytes.total, plan.seconds.total, plan.bytes.total)
    )


def fewest_parts(job: Job, machine: Machine, mesh: Mesh) -> tuple[int, bool]:
    """The fewest parts of the samples with which a mesh fits, and True; one sample a part and False where none does."""
    own = job.batch // mesh.data
    for accumulate in (parts for parts in range(1, own + 1) if own % parts == 0):
        if footprint(job, mesh, _samples(job, mesh, accumulate)).total <= machine.memory:
            return accumulate, True
    return own, False


def largest(fitting: Callable[[int], bool], start: int = 1) -> int:
    """The largest whole number ≥ ``start`` that is ``fitting``, which all are up to some number; 0 if none is."""
    if not fitting(start):
        return 0
    low = start
    while fitting(2 * low):
        low *= 2
        if low > 2**40:
            return low
    high = 2 * low
    while high - low > max(1, low // 256):  # as fine as anybody plans
        middle = (low + high) // 2
        if fitting(middle):
            low = middle
        else:
            high = middle
    return low


def deepest(one: Job, two: Job, machine: Machine, devices: int) -> int:
    """How many layers fit on the best mesh, one sample at a time; ``one`` has one layer, ``two`` has two.

    Each part of the bytes grows in proportion to depth, so that two depths tell all.
    """

    def layers(mesh: Mesh) -> int:
        first = footprint(one, mesh, 1)
        more = footprint(two, mesh, 1)
        return largest(lambda depth: first.extrapolated(more, depth).total <= machine.memory)

    return max((layers(mesh) for mesh in meshes(one, devices)), default=0)


def largest_context(job: Job, machine: Machine, mesh: Mesh) -> int:
    """The longest context, in multiples of the token shards, that still fits with one sample at a time."""

    def fitting(turns: int) -> bool:
        longer = job.with_context(turns * mesh.tokens)
        return footprint(longer, mesh, 1).total <= machine.memory

    return largest(fitting) * mesh.tokens
