"""The loop of a fit: steps, evaluations and checkpoints, alone or among many processes."""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from continua.errors import ConfigError, RunError, SolveFailed
from continua.models.store import description
from continua.optim import ByRole, Optimisers, Schedule, clip
from continua.tasks import Example, Score, Task, generator_for
from continua.training import checkpoint, stored
from continua.training.afterwards import refuse_other_ending
from continua.training.board import Board
from continua.training.compiled import Compiled, compiling, refuse_uncompilable
from continua.training.discretisations import Always, discretisations
from continua.training.distributed import World, gathered, quiet, wrapped
from continua.training.draws import Draws
from continua.training.growing import growing, refuse_other_growth
from continua.training.interrupt import Interrupt
from continua.training.keeping import keeper, let_go
from continua.training.objective import Objective, Whole
from continua.training.penalty import penalties as as_penalties
from continua.training.progress import Bar, Closing, OnProgress, Progress, wrong
from continua.training.recalling import load_optimisers, newest_checkpoint, other_optimiser, refuse_misfit
from continua.training.run import Run
from continua.training.settings import Training
from continua.training.size_laws import heard, kept, recalled
from continua.training.state import State
from continua.training.tokens import refuse_running

SKIPS = 3  # bad steps in a row before going back
ROLLBACKS = 2  # times of going back before giving up


@dataclass(frozen=True)
class Fitted:
    """What a fit leaves: the model, its history, why it ended, and its folder if it has one.

    ``kept`` is False where the last state could not be written into the folder, or the folder is not there any more.
    """

    model: Any
    history: list[dict[str, Any]]
    ended: str
    run: Run | None = None
    kept: bool = True


def _reseed(seed: int, device: torch.device) -> None:
    """Seed torch's own numbers; ``manual_seed`` writes down the call stack for every kind of device that is absent."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@dataclass
class Loop:
    """One fit."""

    model: Any
    task: Task
    training: Training
    folder: Run | None
    world: World
    at: State = field(default_factory=State)
    history: list[dict[str, Any]] = field(default_factory=list)
    interrupt: Interrupt = field(default_factory=Interrupt)
    board: Board | None = None
    bad: int = 0  # bad steps in a row
    backs: int = 0  # times of going back since the newest checkpoint
    saved: int = -1  # the step of the newest checkpoint
    between: bool = True  # whether weights, optimiser and step belong together

    def run(self, optimiser: ByRole, schedule: Schedule, penalties: Any, watch: OnProgress | None) -> Fitted:
        """From where the run is to its end."""
        training = self.training
        self.model.to(self.world.device, torch.float64 if training.precision == "float64" else None)
        if training.adjoint is not None:
            self.model.execution.adjoint = training.adjoint
        self.schedule = schedule
        self.watch = watch or Bar()
        self.where = discretisations(training.at)
        self.measured = self.model.at(self.where.discretisation) if isinstance(self.where, Always) else self.model
        self.sizes = None if training.elastic is None else training.elastic.over(self.model)
        self.draws = Draws(self.model)
        self.objective = Objective(self.model, self.task, as_penalties(penalties))
        self.objective.elastic = training.elastic
        self.objective.tokens = refuse_running(self.world.tokens, self.objective.penalties)
        self.module = wrapped(self.objective, self.world, training.sharded)
        self.keeper = keeper(self.folder, self.world, training)
        self._take(optimiser.make(self.model))  # sharding puts other parameters in their places
        if training.compile:
            refuse_uncompilable(self.model, self.optimisers)
            self.objective.compiled = Compiled(self.model)
        self.growing = growing(training, self.model, self.optimisers, self.task, self.world.shares)
        self.first = self.optimisers  # of all steps but those afterwards
        after = training.afterwards
        self.correcting = None if after is None else after.over(self.model, training.steps)
        if not self._recall() and self.folder is not None and self.world.leads and not self.folder.is_new:
            self.folder.forget_after(0)
        self.model.train()
        checked = self.model.execution.check
        self.model.execution.check = False  # a step that is not finite is passed over, not an error
        try:
            with self.interrupt, compiling(self.model) if training.compile else nullcontext():
                ended = self._go()
        finally:
            let_go(self.keeper)
            self.model.execution.check = checked
            self.draws.restore()
            self._finish_correcting()
            for shown in (self.watch, self.board):
                if isinstance(shown, Closing):
                    shown.close()
        return Fitted(self.model, self.history, ended, self.folder, self._is_kept(ended))

    def _go(self) -> str:
        """Step until the end, and say which end it is."""
        training = self.training
        ended = "done"
        try:
            if self.at.unmeasured is not None:
                self._after(self.at.unmeasured, wrong(self.at.unmeasured))
            while self.at.step < training.total and ended == "done":
                if training.patience is not None and self.at.waited >= training.patience:
                    ended = "stopped early"
                elif self._step():
                    ended = "interrupted"
        except KeyboardInterrupt:
            if not self.between or self.world.size > 1:  # half a step is not saved, and processes save together
                self._settle()
                return "interrupted"
            ended = "interrupted"
        self._settle()
        if self.saved != self.at.step or self.at.unmeasured is not None:
            self._save(False)
        self._settle()
        self._begin()  # where no step was left to do
        return ended

    def _is_kept(self, ended: str) -> bool:
        """Whether the folder holds the state in which this ended; half a step is never kept."""
        if self.folder is None:
            return True
        stopped = ended == "interrupted" and (not self.between or self.world.size > 1)
        whole = self.saved == self.at.step or (stopped and self.saved >= 0)
        return whole and (not self.world.leads or self.folder.is_here)

    def _step(self) -> bool:
        """One batch: gradients, the update, and what is due after it. Says whether somebody asked to stop."""
        started = time.perf_counter()
        step = self.at.step
        training = self.training
        example = self.task.example(training.seed + 7919 * self.at.salt, step)
        drawn = example.samples  # a stage may use fewer
        if self.growing is not None:
            self.between = False
            self.growing.advance(step)
            self.between = True
            example = self.growing.thinned(self.task, example, step)
        if self.correcting is not None and self.correcting.is_due(step) and not self.correcting.begun:
            self._take(self.correcting.begin())
        with self.world.reaching():
            terms = self._gradients(example, step)
        asked = terms.pop("asked", 0.0) > 0
        if self.growing is not None:
            self.growing.clear_gradients()
        norm = clip(self.learning, training.clip)
        loss = wrong(terms)
        if not (math.isfinite(norm) and all(map(math.isfinite, terms.values()))):
            self._refuse(step, loss)
            return asked
        factor = self._factor(step, drawn)
        self.between = False
        self._update(factor)
        heard(self.sizes, self.objective.lessons, terms)
        self._begin()
        self.at.step = step + 1
        self.bad = 0
        self.between = True
        line = {"step": self.at.step, **terms, "norm": norm, "factor": factor, "seconds": time.perf_counter() - started}
        if self.growing is not None:
            line["stage"] = self.growing.stage
        self._after(line, loss)
        return asked

    def _factor(self, step: int, samples: int) -> float:
        """Of the learning rates; steps afterwards have the schedule to themselves."""
        own = self.correcting
        if own is not None and own.begun:
            return self.schedule.factor((step + 1 - own.begins) * samples, own.steps * samples)
        factor = self.schedule.factor((step + 1) * samples, self.training.steps * samples)
        return factor if self.growing is None else factor * self.growing.rate

    def _update(self, factor: float) -> None:
        """Step the optimisers; what a checkpoint kept of other ones does not serve these."""
        try:
            self.optimisers.step(factor)
        except (KeyError, AttributeError, TypeError) as problem:
            if self.saved < 0 or self.at.step != self.saved:
                raise
            raise other_optimiser(problem) from problem

    def _begin(self) -> None:
        """With the first step done the run is what it was planned to be: from here on its folder is written."""
        if self.folder is None or not self.world.leads:
            return
        self.folder.commit()
        if self.training.tensorboard and self.board is None:
            self.board = Board(self.folder.folder / "curves", self.at.step)

    def _gradients(self, example: Example, step: int) -> dict[str, float]:
        """The gradients of this process's share of the batch, and the terms of J over all of it."""
        training = self.training
        world = self.world
        parts = training.accumulate
        size = Whole(example.count, example.samples, parts * world.size)
        if parts * world.shares > size.samples:
            remedy = "Use a larger batch, fewer processes or accumulate less."
            got = f"{size.samples} samples"
            raise ConfigError(f"{parts * world.shares} micro-batches need as many samples", got=got, remedy=remedy)
        mine = example.rows(slice(world.share, None, world.shares)).to(world.device)
        _reseed(generator_for("torch", training.seed, step, world.share).initial_seed(), world.device)
        if not self.model.training:  # after an evaluation
            self.model.train()
        self.draws.at(step)
        if not training.compile:  # a graph draws dropout by torch's own generator, seeded above
            self.model.execution.generator = self._generator("model", step)
        self.objective.generator = self._generator("objective", step)
        if self.where is not None:
            self.objective.places = self.where.draw(step, generator_for("at", training.seed, step))
        if self.growing is not None:
            self.objective.places = ((self.growing.place(step), 1.0),)
        if self.correcting is not None and self.correcting.begun:
            self.objective.places = ((self.correcting.place(training.seed, step), 1.0),)
            self.objective.lessons = ()
        elif self.sizes is not None and (self.growing is None or self.growing.is_native):
            self.objective.lessons = self.sizes.draw(step / training.steps, generator_for("size", training.seed, step))
        self.optimisers.zero_grad()
        totals: dict[str, torch.Tensor] = {}
        for i in range(parts):
            with quiet(self.module, last=i + 1 == parts), self.training.autocast_on(self.world.device):
                try:
                    share, terms = self.module(mine.rows(slice(i, None, parts)), size)
                except SolveFailed:
                    if world.size > 1:  # the others wait for this one's gradients
                        raise
                    return {"loss": math.nan}
                (share * world.size).backward()  # wrappers average over processes; shares are to be added up
            for name, value in terms.items():
                totals[name] = totals.get(name, 0.0) + value
        totals["asked"] = torch.tensor(float(self.interrupt.asked), device=world.device)  # all stop at the same step
        summed = world.sum(torch.stack([value.double() for value in totals.values()]))
        return dict(zip(totals, summed.tolist(), strict=True))

    def _generator(self, what: str, step: int) -> torch.Generator:
        """Its numbers depend on the step and the process alone."""
        seed = generator_for(what, self.training.seed, step, self.world.share).initial_seed()
        return torch.Generator(device=self.world.device).manual_seed(seed)

    def _after(self, line: dict[str, Any], loss: float) -> None:
        """Measure, write and show what is due at this step."""
        done = self.at.step
        training = self.training
        last = done == training.total
        improved = False
        scores: dict[str, float] = {}
        if last or done % training.evaluate_every == 0:
            self.at.unmeasured = line
            score = self._evaluate()
            self.at.unmeasured = None
            scores = {f"validation_{name}": value for name, value in score.values.items()}
            corrected = self.correcting is not None and self.correcting.begun  # what is measured stays as it was
            improved = score.main < self.at.best or (corrected and score.main == self.at.best)
            self.at.best = score.main if improved else self.at.best
            self.at.waited = 0 if improved else self.at.waited + 1
        line.update(scores)
        self._log(line)
        if last or improved or done % training.save_every == 0:
            self._save(improved)
        if self.world.leads:
            main = dict(list(scores.items())[:1])
            self.watch(
                Progress(
                    done, training.total, loss, {k.replace("validation_", "held-out "): v for k, v in main.items()}
                )
            )

    def _evaluate(self) -> Score:
        self.model.eval()
        self.draws.restore()  # as the model is saved
        with self.training.autocast_on(self.world.device), gathered(self.module):
            try:
                return self.task.evaluate(self._measured())
            except SolveFailed as failed:  # no end of a run: no best score, and steps that follow may mend it
                note = f"step {self.at.step} could not be measured: {failed}"
        self._log({"step": self.at.step, "note": note})
        if self.world.leads:
            self.watch(Progress(self.at.step, self.training.total, math.nan, {}, note))
        return Score({"loss": math.nan})

    def _measured(self) -> Any:
        """What held-out data are given to: while a model grows, the finest size of its stage."""
        return self.measured if self.growing is None else self.model.at(self.growing.finest)

    def _log(self, line: dict[str, Any]) -> None:
        self.history.append(line)
        if self.folder is not None and self.world.leads:
            self.folder.log(line)
        if self.board is not None:
            self.board(line)

    def _save(self, improved: bool) -> None:
        if self.keeper is None:
            return
        self._settle()  # one at a time
        grown = {} if self.growing is None else {"growth": self.growing.plain()}
        corrected = {} if self.correcting is None else {"afterwards": self.correcting.plain()}
        state = {
            "model": self.model.state_dict(),
            "optimiser": self.optimisers.state(),
            "config": description(self.model),
            "progress": {**self.at.plain(), **grown, **corrected, **kept(self.sizes)},
        }
        self.keeper.begin(self.at.step, state, improved)

    def _settle(self) -> None:
        """See to a checkpoint that is being written."""
        step = None if self.keeper is None else self.keeper.settle()
        if step is not None:
            self.saved = step
            self.backs = 0

    def _recall(self) -> bool:
        """Go to the newest whole checkpoint, if there is one."""
        folder = self.folder
        path = None if folder is None else newest_checkpoint(folder, self.world)
        if folder is None or path is None:
            return False
        like = dict(self.model.named_parameters())
        progress = checkpoint.read_text(path, "progress")
        refuse_other_growth(self.growing, progress.get("growth"), State.of(progress).step)
        refuse_other_ending(self.correcting, progress.get("afterwards"))
        with self.world.as_one():
            tensors = stored.tensors(path, "model", like.get)
            refuse_misfit(tensors, self.model.state_dict())
        self.model.load_state_dict(tensors)
        self._finish_correcting()
        if self.correcting is not None and progress.get("afterwards", {}).get("begun"):
            self._take(self.correcting.begin())
        with self.world.as_one():
            load_optimisers(self.optimisers, path, like)
        if self.growing is not None:
            self.growing.recall(progress["growth"])
        recalled(self.sizes, progress.get("lessons"))
        self.at = State.of(progress)
        folder.best = checkpoint.best_of(path)
        self.saved = self.at.step
        if self.world.leads:
            folder.forget_after(self.at.step)
        self.history = [line for line in folder.history() if line["step"] <= self.at.step]
        return True

    def _finish_correcting(self) -> None:
        """Let all weights learn again, by the optimisers of before."""
        if self.correcting is not None and self.correcting.begun:
            self.correcting.end()
            self._take(self.first)

    def _take(self, optimisers: Optimisers) -> None:
        """Go on with these, and with what learns now; to look for it at every step takes longer than small steps do."""
        self.optimisers = optimisers
        self.learning = [own for own in self.model.parameters() if own.requires_grad]

    def _refuse(self, step: int, loss: float) -> None:
        """A step that is not finite: pass over it; after some of them go back; after that give up."""
        self.bad += 1
        note = f"step {step + 1} gave loss {loss}: passed over"
        if self.bad <= SKIPS:
            self.at.step = step + 1
        else:
            self._settle()
            self.backs += 1
            self.bad = 0
            salt = self.at.salt + 1
            if self.backs > ROLLBACKS or not self._recall():
                remedy = (
                    "Lower the learning rate, clip gradients, or look at the data; the last good checkpoint is kept."
                )
                raise RunError("the loss is not finite any more", got=f"step {step + 1}", remedy=remedy)
            self.at.salt = salt
            note = f"{SKIPS + 1} bad steps in a row: back to step {self.at.step}, with other data"
        self._log({"step": self.at.step, "note": note})
        if self.world.leads:
            self.watch(Progress(self.at.step, self.training.total, loss, {}, note))
