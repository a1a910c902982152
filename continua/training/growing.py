"""Where the growth of a run is: it goes on by itself, is kept in checkpoints, and resumed to the bit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from continua.axes import Discretisation
from continua.config import from_plain, to_plain
from continua.errors import ConfigError, RunError
from continua.optim import Blocks, Optimisers
from continua.tasks import Coarsens, Example, Task
from continua.training.growth import GrowthPlan
from continua.training.modes import ALL, clear_gradients, leave_modes
from continua.training.prolongation import Switch, blocks_of
from continua.training.settings import Training


@dataclass
class Growing:
    """A model on the stages of its growth. The stage, unlike the step, is one of the weights: they are prolonged once.

    A step that was passed over, or interrupted before its update, leaves a stage that has begun already.
    """

    plan: GrowthPlan
    model: Any
    optimisers: Optimisers
    training: Training
    stage: int = 0
    begun: bool = False  # whether what the first stage leaves out is zero
    read: dict[tuple[int, Discretisation], Blocks] = field(default_factory=dict)  # by a stage and one of its sizes

    @property
    def is_native(self) -> bool:
        """Whether the native size is trained."""
        return self.plan.is_native(self.stage)

    @property
    def finest(self) -> Discretisation | None:
        """What held-out data are measured on."""
        return self.plan.finest(self.stage)

    @property
    def rate(self) -> float:
        """A factor of the learning rates."""
        return self.plan.rate(self.stage)

    def place(self, step: int) -> Discretisation | None:
        """What is trained at a step; None is the native size."""
        return self.plan.place(self.stage, step)

    def advance(self, step: int) -> None:
        """Go on to the stage of a step, if it is a new one: new nodes get their start. Optimisers look at its size."""
        if not self.begun:
            for flow in self.model.flows:
                leave_modes(flow, self.plan.modes(self.stage))
            self.begun = True
        stage = self.plan.stage(step / self.training.steps)
        while self.stage < stage:
            coarse, fine = (self.plan.sizes[k] for k in (self.stage, self.stage + 1))
            for flow in self.model.flows:
                switch = Switch(flow, self.optimisers, coarse, fine, self.training.seed)
                self.plan.law.prolongation.prolong(switch)
            self.stage += 1
        self.optimisers.focus(self._blocks(step))

    def thinned(self, task: Task, example: Example, step: int) -> Example:
        """The data of a step as its stage has them: on fewer nodes, and fewer of them."""
        example = example.rows(slice(0, self.plan.examples(self.stage, example.samples)))
        count = self.plan.thinned(self.stage, step)
        return example if count is None or not isinstance(task, Coarsens) else task.coarsened(example, count)

    def clear_gradients(self) -> None:
        """Forget what modes would learn that are not trained yet."""
        modes = self.plan.modes(self.stage)
        for flow in self.model.flows if modes != ALL else ():
            clear_gradients(flow, modes)

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"stage": self.stage, "law": to_plain(self.plan.law)}

    def recall(self, plain: Mapping[str, Any]) -> None:
        """Go on from what was kept."""
        self.stage = int(plain["stage"])

    def _blocks(self, step: int) -> Blocks:
        """What the size of a step reads of each weight; sizes that take turns have parts of their own."""
        size = self.place(step)
        if size is None:
            return {}
        if (self.stage, size) not in self.read:
            self.read[self.stage, size] = blocks_of(self.model, (size,), self.plan.modes(self.stage))
        return self.read[self.stage, size]


def growing(training: Training, model: Any, optimisers: Optimisers, task: Task, shares: int = 1) -> Growing | None:
    """The growth that a training asks for, if it does; refuses data that the task does not make coarser.

    ``shares`` is how many processes share a batch: a stage leaves each of them an example at least.
    """
    if training.grow is None:
        return None
    plan = training.grow.over(model)
    if any(stage.batch < 1 for stage in training.grow.stages):
        _refuse_few(plan, task.example(training.seed, 0).samples, training.accumulate * shares)
    counts = {size.t for stage in training.grow.stages for size in stage.sizes if isinstance(size.t, int)}
    if counts and not isinstance(task, Coarsens):
        remedy = "Leave t out of the stages, or give the task a method coarsened(example, count)."
        raise ConfigError("this task has no coarser data", got=type(task).__name__, remedy=remedy)
    example = task.example(training.seed, 0) if counts else None
    for count in sorted(counts):
        task.coarsened(example, count)  # type: ignore[attr-defined]  # refuses what there is not
    return Growing(plan, model, optimisers, training)


def _refuse_few(plan: GrowthPlan, samples: int, parts: int) -> None:
    """Every micro-batch of every process has an example in all stages."""
    least = min(plan.examples(stage, samples) for stage in range(plan.last))
    if least < parts:
        remedy = "Use a larger batch or share of it, fewer processes, or accumulate less."
        raise ConfigError(f"a stage has too few examples for {parts} micro-batches", got=least, remedy=remedy)


def refuse_other_growth(own: Growing | None, kept: Any, step: int) -> None:
    """A run goes on with the stages it was started with: others would train other nodes."""
    law = None if own is None else own.plan.law
    before = from_plain(kept.get("law")) if isinstance(kept, Mapping) else None  # settings that are new since: usual
    if own is None and before is None:
        return
    due = 0 if own is None else own.plan.stage(step / own.training.steps)
    if law == before and isinstance(kept, Mapping) and kept.get("stage", 0) <= due:
        return
    got = f"stage {kept['stage'] + 1} at step {step}" if law == before else "another one"
    remedy = "Leave grow and steps as they were, or start a new run."
    raise RunError("a run grows by the schedule it was started with", got=got, remedy=remedy)
