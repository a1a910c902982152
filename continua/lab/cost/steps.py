"""Seconds of a training step: a timeline of computing, of keys under way, of weights gathered and gradients summed.

Continua stores the weights of all depths in one tensor, so its gradient is whole when the backward pass has ended:
copies meet then, except for those of a readout of its own, which meet while the blocks are on their way back. Sharded
weights are gathered before each part of the samples, and let go of after it.
"""

from dataclasses import dataclass

from continua.lab.cost.collectives import all_gather, all_reduce, ring_backward, ring_forward
from continua.lab.cost.complexity import Complexity
from continua.lab.cost.events import Timeline, Work, WorkKind, simulated
from continua.lab.cost.job import HALF, OPTIMISERS, Job, Mesh
from continua.lab.cost.machines import Machine

DEVICE, LINK = "device", "link"


@dataclass(frozen=True)
class Seconds:
    """The parts of a step: what a device does, and for what it waits."""

    compute: float
    tokens: float  # keys and values under way that nothing hides
    weights: float  # gathered
    gradients: float  # summed
    optimiser: float

    @property
    def total(self) -> float:
        """A step."""
        return self.compute + self.tokens + self.weights + self.gradients + self.optimiser


@dataclass(frozen=True)
class Section:
    """A part of a model on its way there and back: computing, waiting for keys, and the meeting of its gradients."""

    name: str
    forward: float
    backward: float
    forward_wait: float = 0.0
    backward_wait: float = 0.0
    meeting: float = 0.0


@dataclass(frozen=True)
class StepParts:
    """All that a step is made of, in seconds; ``gather`` and the sections happen ``accumulate`` times."""

    sections: tuple[Section, ...]
    gather: float = 0.0
    optimiser: float = 0.0
    accumulate: int = 1

    def works(self) -> list[Work]:
        """The works of a step, in the order in which a device asks for them."""
        found: list[Work] = []
        before: tuple[str, ...] = ()
        for part in range(self.accumulate):
            last = part == self.accumulate - 1
            gathered = f"gather {part}"
            found.append(Work(gathered, LINK, self.gather, WorkKind.WEIGHTS, before))
            for section in self.sections:
                name = f"forward {part} {section.name}"
                found.append(Work(name, DEVICE, section.forward, WorkKind.COMPUTE, (gathered,)))
                found.append(Work(f"{name}, keys", DEVICE, section.forward_wait, WorkKind.TOKENS, (name,)))
            for section in reversed(self.sections):
                name = f"backward {part} {section.name}"
                found.append(Work(name, DEVICE, section.backward, WorkKind.COMPUTE))
                found.append(Work(f"{name}, keys", DEVICE, section.backward_wait, WorkKind.TOKENS, (name,)))
                before = (f"{name}, keys",)
                if last:
                    found.append(Work(f"meet {section.name}", LINK, section.meeting, WorkKind.GRADIENTS, before))
        met = tuple(f"meet {section.name}" for section in self.sections)
        return [*found, Work("optimiser", DEVICE, self.optimiser, WorkKind.OPTIMISER, met)]


def seconds_of(timeline: Timeline) -> Seconds:
    """How a device spends a step."""
    return Seconds(
        compute=timeline.busy(DEVICE, WorkKind.COMPUTE),
        tokens=timeline.busy(DEVICE, WorkKind.TOKENS),
        weights=timeline.idle(DEVICE, WorkKind.WEIGHTS),
        gradients=timeline.idle(DEVICE, WorkKind.GRADIENTS),
        optimiser=timeline.busy(DEVICE, WorkKind.OPTIMISER),
    )


def step_seconds(job: Job, mesh: Mesh, machine: Machine, samples: int, accumulate: int) -> Seconds:
    """A step of ``accumulate`` parts of ``samples`` samples on each device."""
    return seconds_of(simulated(step_parts(job, mesh, machine, samples, accumulate).works()))


def step_parts(job: Job, mesh: Mesh, machine: Machine, samples: int, accumulate: int) -> StepParts:
    """The parts of that step."""
    cost = job.cost(samples)
    weights = cost.parameters * cost.width
    early = job.early_parameters() * cost.width
    gather = 0.0
    if mesh.sharded:
        gather = all_gather(weights, mesh.devices, machine)
        meetings = (all_gather(weights, mesh.devices, machine), 0.0)
    else:
        meetings = (all_reduce(weights - early, mesh.devices, machine), all_reduce(early, mesh.devices, machine))
    waits = _waits(job, cost, mesh, machine, samples)
    head = [item for item in cost.costs if "readout" in item.name and "fields" not in item.name]
    forward = sum(item.times * item.forward for item in head)
    backward = sum(item.times * item.backward for item in head)
    speed = machine.speed(job.half) * mesh.tokens
    blocks = Section(
        "blocks", (cost.forward - forward) / speed, (cost.backward - backward) / speed, *waits, meeting=meetings[0]
    )
    readout = Section("readout", forward / speed, backward / speed, meeting=meetings[1])
    return StepParts((blocks, readout), gather, _optimiser(job, cost, mesh, machine), accumulate)


def _optimiser(job: Job, cost: Complexity, mesh: Mesh, machine: Machine) -> float:
    """Weights and states are read and written, gradients read; products that Muon makes are not counted."""
    if machine.bandwidth is None:
        return 0.0
    own = cost.parameters / (mesh.devices if mesh.sharded else 1)
    return own * (3 * cost.width + 2 * OPTIMISERS[job.optimiser]) / machine.bandwidth


def _waits(job: Job, cost: Complexity, mesh: Mesh, machine: Machine, samples: int) -> tuple[float, float]:
    """Seconds in which devices wait for keys and values, forward and backward, over all attentions.

    Attentions follow one another with nothing under way between them, so that each can be simulated by itself.
    """
    if mesh.tokens == 1:
        return 0.0, 0.0
    own = samples * job.context // mesh.tokens
    native = job.answering.native
    sent = 2 * own * native.h.n * native.e.n * (HALF if job.half else cost.width)
    forward = 0.0
    backward = 0.0
    for item in cost.costs:
        if item.name.endswith("attention: scores"):
            turn = item.forward / mesh.tokens**2 / machine.speed(job.half)
            back = item.backward / mesh.tokens**2 / machine.speed(job.half)
            forward += item.times * (ring_forward(turn, sent, mesh.tokens, machine) - mesh.tokens * turn)
            backward += item.times * (ring_backward(back, sent, mesh.tokens, machine) - mesh.tokens * back)
    return forward, backward
