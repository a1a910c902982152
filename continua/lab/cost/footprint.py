"""Bytes of a device at the fullest moment of a training step: weights, gradients, optimiser, and what is kept."""

from dataclasses import dataclass

from continua.lab.cost.complexity import Complexity
from continua.lab.cost.job import HALF, OPTIMISERS, Job, Mesh


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

    def extrapolated(self, second: "Bytes", steps: int) -> "Bytes":
        """The line through this one (1) and a ``second`` one (2), at ``steps``."""

        def at(first: float, then: float) -> float:
            return first + (steps - 1) * (then - first)

        return Bytes(
            at(self.weights, second.weights),
            at(self.optimiser, second.optimiser),
            at(self.gradients, second.gradients),
            at(self.activations, second.activations),
            at(self.meeting, second.meeting),
        )


def footprint(job: Job, mesh: Mesh, samples: int) -> Bytes:
    """The bytes of a device that takes ``samples`` at a time."""
    cost = job.cost(samples)
    weights = cost.parameters * cost.width
    states = cost.parameters * OPTIMISERS[job.optimiser]
    share = mesh.devices if mesh.sharded else 1
    meeting = 0.0
    if mesh.devices > 1:
        meeting = 2.0 * weights if mesh.sharded else 1.0 * weights  # what arrives and its copy; buckets
    kept = (_kept(job, cost, samples) + _passing(job, cost, samples)) / mesh.tokens
    copies = HALF * cost.parameters if job.half else 0
    twice = 2.0 * weights  # gradients of single depths are put together, and the optimiser works on copies
    return Bytes(weights / share, states / share, twice, kept + copies, meeting)


def _kept(job: Job, cost: Complexity, samples: int) -> float:
    """What the forward pass keeps.

    In half precision the state that norms see stays in full, and each of the maps of an attention keeps its own copy of
    its input: two more for keys and values, and one for the output.
    """
    if not job.half:
        return cost.bytes
    native = job.answering.native
    more = samples * job.context * (2 * native.d.n + native.h.n * native.e.n)
    kept = 0
    for item in cost.costs:
        width = cost.width if item.name.endswith("norm") else HALF
        kept += item.times * item.kept * width
        if item.name.endswith("attention: queries"):
            kept += item.times * more * HALF
    return kept


def _passing(job: Job, cost: Complexity, samples: int) -> float:
    """Answers with their gradients, or the gradient of the widest state: what the backward pass has beside the kept."""
    tokens = samples * job.context
    readout = job.answering.readout
    out = 0 if readout is None or readout.out is None else readout.out
    widest = max(job.answering.native.m.n, job.answering.native.d.n)
    return cost.width * tokens * (out + max(2 * out, widest))
