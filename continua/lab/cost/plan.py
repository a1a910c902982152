"""Will it fit, and how long will it take? Bytes of a device and seconds of a step, before anything is bought or run.

Bytes are those of weights, gradients, the optimiser and of what the forward pass keeps (``predict``). Seconds are FLOPs
over the speed that is reached, and the rings of ``collectives``. Continua stores the weights of all depths in one
tensor, so its gradient is whole when the backward pass has ended: copies meet then, and sharded weights are gathered
before the step, not layer by layer. Keys and values of sharded tokens travel while others are attended to.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from continua.errors import ConfigError
from continua.lab.cost.collectives import all_gather, all_reduce, ring_step
from continua.lab.cost.complexity import Complexity, predict
from continua.lab.cost.machines import Machine
from continua.lab.figure import pyplot, save

OPTIMISERS = {"adamw": 8, "muon": 4, "sgd": 0}  # bytes of state for each parameter


@dataclass(frozen=True)
class Mesh:
    """``data`` groups that read different samples; in each, ``tokens`` devices that share a sample's tokens.

    ``sharded``: weights, gradients and the optimiser's states are cut among all devices.
    """

    data: int = 1
    tokens: int = 1
    sharded: bool = False

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.data * self.tokens

    def __str__(self) -> str:
        parts = [f"data {self.data}", f"tokens {self.tokens}"]
        return " × ".join(parts) + (", weights sharded" if self.sharded else "")


@dataclass(frozen=True)
class Job:
    """What is trained: a model, the samples of a step over all devices, and their tokens."""

    model: Any
    batch: int
    context: int
    optimiser: str = "adamw"
    width: int | None = None  # bytes of a number; those of the model if None

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            remedy = f"Use one of {', '.join(OPTIMISERS)}."
            raise ConfigError("the bytes of this optimiser are not known", got=self.optimiser, remedy=remedy)
        if self.batch < 1 or self.context < 1:
            got = f"{self.batch} samples of {self.context} tokens"
            raise ConfigError("a step has samples with tokens", got=got, remedy="Use 1 or more of both.")

    def cost(self, batch: int) -> Complexity:
        """What ``batch`` samples cost on one device."""
        found = predict(self.model, batch, self.context)
        return found if self.width is None else replace(found, width=self.width)


@dataclass(frozen=True)
class Bytes:
    """What one device holds at the fullest moment of a step."""

    weights: float
    optimiser: float
    gradients: float
    activations: float
    meeting: float  # buckets of copies, weights gathered from shards

    @property
    def total(self) -> float:
        """All of it: gradients grow while activations go, so the larger of the two counts."""
        return self.weights + self.optimiser + self.meeting + max(self.gradients, self.activations)


@dataclass(frozen=True)
class Seconds:
    """The parts of a step, one after the other."""

    compute: float
    tokens: float  # keys and values under way that nothing hides
    weights: float  # gathered
    gradients: float  # summed

    @property
    def total(self) -> float:
        """A step."""
        return self.compute + self.tokens + self.weights + self.gradients


@dataclass(frozen=True)
class Plan:
    """One mesh for one job, whose samples each device takes in ``accumulate`` parts."""

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


def planned(job: Job, machine: Machine, mesh: Mesh, accumulate: int = 1) -> Plan:
    """What a mesh of machines makes of a job."""
    if job.batch % (mesh.data * accumulate) or job.context % mesh.tokens:
        got = f"{job.batch} samples in {accumulate} parts, {job.context} tokens on {mesh}"
        raise ConfigError("a mesh divides samples and tokens", got=got, remedy="Choose a mesh that divides both.")
    samples = job.batch // mesh.data // accumulate
    cost = job.cost(samples)
    return Plan(
        mesh=mesh,
        accumulate=accumulate,
        bytes=_bytes(job, cost, mesh, samples),
        seconds=_seconds(job, cost, mesh, machine, samples, accumulate),
        samples=job.batch,
        context=job.context,
        memory=machine.memory,
    )


def _bytes(job: Job, cost: Complexity, mesh: Mesh, samples: int) -> Bytes:
    weights = cost.parameters * cost.width
    gradients = cost.parameters * cost.width
    states = cost.parameters * OPTIMISERS[job.optimiser]
    share = mesh.devices if mesh.sharded else 1
    meeting = 0.0
    if mesh.devices > 1:
        meeting = 2 * weights if mesh.sharded else gradients  # what arrives and its copy; buckets
    kept = (cost.bytes + _passing(job, cost, samples)) / mesh.tokens
    twice = 2.0 * gradients  # those of single depths are put together, and the optimiser works on copies
    return Bytes(weights / share, states / share, twice, kept, float(meeting))


def _passing(job: Job, cost: Complexity, samples: int) -> float:
    """Answers with their gradients, or the gradient of the widest state: what the backward pass has beside the kept."""
    tokens = samples * job.context
    out = getattr(job.model.readout, "out", None) or 0
    widest = max(job.model.native.m.n, job.model.native.d.n)
    return cost.width * tokens * (out + max(2 * out, widest))


def _seconds(job: Job, cost: Complexity, mesh: Mesh, machine: Machine, samples: int, accumulate: int) -> Seconds:
    weights = cost.parameters * cost.width
    compute = accumulate * cost.flops / mesh.tokens / machine.speed
    gather = 0.0
    if mesh.sharded:
        gather = accumulate * all_gather(weights, mesh.devices, machine)  # anew for each part
        summed = all_gather(weights, mesh.devices, machine)
    else:
        summed = all_reduce(weights, mesh.devices, machine)
    waited = accumulate * _ring(job, cost, mesh, machine, samples)
    return Seconds(compute, waited, gather, summed)


def _ring(job: Job, cost: Complexity, mesh: Mesh, machine: Machine, samples: int) -> float:
    """Seconds in which devices wait for keys and values, forward and backward, of every attention.

    In each of ``tokens`` turns a device attends to what it has while the next part is under way. On the way back the
    gradients of keys and values travel too.
    """
    if mesh.tokens == 1:
        return 0.0
    own = samples * job.context // mesh.tokens
    sent = 2 * own * job.model.native.h.n * job.model.native.e.n * cost.width
    waited = 0.0
    for item in cost.costs:
        if not item.name.endswith("attention: scores"):
            continue
        for flops, size in ((item.forward, sent), (item.backward, 2 * sent)):
            turn = flops / mesh.tokens**2 / machine.speed
            passing = ring_step(size, mesh.tokens, machine)
            waited += item.times * (mesh.tokens - 1) * max(0.0, passing - turn)
    return waited


def meshes(job: Job, devices: int) -> Iterator[Mesh]:
    """Every way to use ``devices`` devices that divides the job."""
    for tokens in range(1, devices + 1):
        data = devices // tokens
        if devices % tokens or job.batch % data or job.context % tokens:
            continue
        yield Mesh(data, tokens)
        if devices > 1:
            yield Mesh(data, tokens, sharded=True)


def plans(job: Job, machine: Machine, devices: int) -> list[Plan]:
    """All meshes of so many devices: those that fit first, the quickest before."""
    found = [_in_parts(job, machine, mesh) for mesh in meshes(job, devices)]
    if not found:
        got = f"{devices} devices for {job.batch} samples of {job.context} tokens"
        remedy = "Choose a number that divides the product of samples and tokens."
        raise ConfigError("no mesh of these devices divides the job", got=got, remedy=remedy)
    return sorted(found, key=lambda plan: (not plan.fits, plan.seconds.total, plan.bytes.total))


def _in_parts(job: Job, machine: Machine, mesh: Mesh) -> Plan:
    """The plan with as few parts of the samples as fit; one sample at a time where none does."""
    own = job.batch // mesh.data
    for accumulate in (parts for parts in range(1, own + 1) if own % parts == 0):
        plan = planned(job, machine, mesh, accumulate)
        if plan.fits:
            return plan
    return plan


def largest(fits: Callable[[int], bool], start: int = 1) -> int:
    """The largest whole number ≥ ``start`` for which ``fits`` holds, which it does up to some number; 0 if for none."""
    if not fits(start):
        return 0
    low = start
    while fits(2 * low):
        low *= 2
        if low > 2**40:
            return low
    high = 2 * low
    while high - low > max(1, low // 256):  # as fine as anybody plans
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def largest_context(job: Job, machine: Machine, mesh: Mesh) -> int:
    """The longest context, in multiples of the token shards, that still fits with one sample at a time."""

    def fits(turns: int) -> bool:
        longer = replace(job, context=turns * mesh.tokens)
        return planned(longer, machine, mesh, job.batch // mesh.data).fits

    return largest(fits) * mesh.tokens


def draw_scaling(found: Sequence[Plan], path: str | Path, title: str) -> Path:
    """Tokens a second, the parts of a step and the bytes of a device over the number of devices."""
    plt = pyplot()
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    counts = [plan.mesh.devices for plan in found]
    first = found[0]
    panels[0].plot(counts, [plan.tokens_per_second for plan in found], marker="o", label="planned")
    ideal = [first.tokens_per_second * count / counts[0] for count in counts]
    panels[0].plot(counts, ideal, color="0.7", linestyle="--", label="in proportion")
    panels[0].set(xscale="log", yscale="log", ylabel="tokens a second")
    panels[0].legend(frameon=False)
    below = [0.0] * len(found)
    for name in ("compute", "tokens", "weights", "gradients"):
        share = [100 * getattr(plan.seconds, name) / plan.seconds.total for plan in found]
        panels[1].fill_between(counts, below, [a + b for a, b in zip(below, share, strict=True)], label=name, alpha=0.8)
        below = [a + b for a, b in zip(below, share, strict=True)]
    panels[1].set(xscale="log", ylabel="% of a step", ylim=(0, 100))
    panels[1].legend(frameon=True, loc="lower left")
    panels[2].plot(counts, [plan.bytes.total / 1e9 for plan in found], marker="o")
    panels[2].axhline(first.memory / 1e9, color="0.7", linestyle="--")
    panels[2].annotate("memory of a device", (counts[0], first.memory / 1e9), va="bottom", color="0.4")
    panels[2].set(xscale="log", yscale="log", ylabel="gigabytes a device")
    for panel in panels:
        panel.set_xlabel("devices")
        panel.set_xticks(counts, [f"{count:,}" for count in counts], rotation=45)
        panel.minorticks_off()
    figure.suptitle(f"{title}: a simulation by published figures", fontsize=12)
    return save(plt, figure, path)
