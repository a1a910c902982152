"""Short distillation: the native size teaches smaller ones, and does not change itself."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from continua.axes import Discretisation, Nested, Points, at
from continua.config import from_plain
from continua.convert.calibrate import batches_of, elastic
from continua.convert.corrections import with_corrections
from continua.convert.joining import best_left_out, start_joined
from continua.data.tokens import Tokeniser
from continua.errors import ConfigError
from continua.fields import CorrectedNodes, Corrections
from continua.flow import Fixed
from continua.models import Batch
from continua.models.model import Model
from continua.models.readout import Readout
from continua.operators.calibration import Calibration
from continua.operators.correction import corrections_of
from continua.optim import AdamW, ByRole, CosineDecay
from continua.settings import Count, NonNegative, Positive, Seed, Share, checked
from continua.tasks import Sentences, Unlabelled
from continua.tasks.task import device_of
from continua.training import ByGap, ByShare, Elastic, Fitted, Objective, Run, StateImitation, Training, Whole
from continua.training import train as trained
from continua.training.progress import OnProgress

TEXTS = 32  # in one batch
WHOLE_RATE = 4e-4  # of whole maps
RANK_RATE = 2e-3  # of maps of a few functions
INNER = 3.0  # the share of states behind inner steps, beside the last ones
MEANS = 10.0  # the share of the means of texts, which is what embeddings are compared by
SCHEDULE = CosineDecay(floor=0.0)  # lessons end with steps of no length: their noise goes
TOGETHER = 3  # sizes that share the answers of one native pass
CALIBRATED = 16  # batches that calibrate, where the model is not calibrated yet
MEASURED = 8  # of so many batches one is held out
MOST_MEASURED = 8  # batches that are held out at most
MEASURED_STEPS = 2  # batches by which steps are joined
MOST = 0.5  # of the cost of a native pass: sizes above it learn from half of the texts
WARM = 2  # steps that are timed, after one that is not
EVALUATIONS = 10  # in a run


@dataclass(frozen=True)
class Distillation:
    """All that a fit of smaller sizes needs: the model, with the native size frozen, its task, and how it is taught."""

    model: Any
    task: Sentences | Unlabelled
    training: Training
    optimiser: ByRole

    def in_minutes(self, minutes: float) -> "Distillation":
        """The same, of as many steps as take about so long on this machine."""
        steps = max(1, int(60 * minutes / _seconds(self)))
        every = max(1, steps // EVALUATIONS)
        return replace(self, training=replace(self.training, steps=steps, evaluate_every=every))


@checked
def distil(
    model: Any,
    texts: Iterable[Any],
    *,
    tokens: Tokeniser | None = None,
    sizes: Sequence[Discretisation] | None = None,
    shares: Sequence[Share] | None = None,
    minutes: Positive = 20.0,
    steps: Count | None = None,
    rank: Count | None = None,
    lr: NonNegative | None = None,
    seed: Seed = 0,
    precision: str = "float32",
    run: Run | str | Path | None = None,
    watch: OnProgress | None = None,
    device: str = "auto",
) -> Fitted:
    """Let the native size of a model teach smaller ones for some ``minutes``, or ``steps``; it stays as it is.

    ``model`` is a discrete one, which is calibrated first, or one of ``continua.elastic``. ``texts`` (with ``tokens``)
    or batches need no answers: states are taught token by token, in the mean and behind inner steps, classes by
    KL(native ‖ size). What is learned is read by other sizes alone: gains, and a correction for every map and axis that
    gets smaller, a whole one or of ``rank`` functions. ``lr`` is 4e-4 for the former, 2e-3 for the latter. Steps that
    are joined start as if the layers behind the first were left out, where that is closer to native.
    ``sizes`` are those that learn; unless given, half of the hidden width, of the heads, of both, of the width d as
    well, and two thirds of the steps. ``shares`` are those of the steps at which each size learns; unless given, three
    sizes learn at each step. ``precision`` "bfloat16" computes lessons in half precision, which takes less time where a
    processor has instructions for it. ``run`` is a folder, or an opened run to go on with.

    >>> import continua as ct
    >>> plain = ct.zoo.gpt2(vocab=8, d=8, heads=2, depth=2, context=16)
    >>> batches = [torch.randint(8, (4, 16), generator=torch.Generator().manual_seed(i)) for i in range(4)]
    >>> fitted = distil(plain, batches, sizes=[at(m=16)], steps=2, rank=2, watch=lambda progress: None)
    >>> bool((fitted.model(batches[0]) - plain(batches[0])).abs().max() < 1e-5)
    True
    """
    if isinstance(run, Run):
        sizes = sizes_of(run)
    made = distillation(
        model, texts, tokens=tokens, sizes=sizes, shares=shares, rank=rank, lr=lr, seed=seed, precision=precision
    )
    if isinstance(run, Run):
        made = replace(made, training=_training_of(run))
    elif steps is not None:
        made = replace(made, training=replace(made.training, steps=steps, evaluate_every=steps))
    else:
        made = made.in_minutes(minutes)
    try:
        return trained(
            made.model,
            made.task,
            made.training,
            run=run,
            optimiser=made.optimiser,
            schedule=SCHEDULE,
            watch=watch,
            device=device,
        )
    finally:
        made.model.requires_grad_(True)


def distillation(
    model: Any,
    texts: Iterable[Any],
    *,
    tokens: Tokeniser | None = None,
    sizes: Sequence[Discretisation] | None = None,
    shares: Sequence[float] | None = None,
    rank: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    precision: str = "float32",
) -> Distillation:
    """What ``distil`` trains: the calibrated model with corrections, and lessons for its sizes."""
    given = _by_length(texts)
    rows = min(TEXTS, max(1, math.ceil(len(given) / 2)))  # two batches at least: one to learn from, one held out
    batches = [Batch.of(batch) for batch in batches_of(given, tokens, model, rows)]
    held_out = batches[::MEASURED][:MOST_MEASURED] if len(batches) > 1 else []
    learned = [batch for batch in batches if not any(batch is other for other in held_out)]
    if isinstance(model, Model) and _is_counted(model):
        model = elastic(model, calibrate=learned[:: max(1, len(learned) // CALIBRATED)] or batches)
    chosen = tuple(_usual(model, held_out or batches) if sizes is None else sizes)
    along = _axes_of(model, chosen, rank is None)
    stored = _stored(model, chosen, along) if rank is None else ()
    alone = _alone(model, chosen, along) if rank is None else ""
    made = with_corrections(model, Corrections(rank, along, stored=stored, alone=alone), seed)
    for size in chosen:
        start_joined(made, size, (held_out or batches)[:MEASURED_STEPS])
    embeds = _embeds(made)
    task = (Sentences if embeds else Unlabelled)(tuple(learned), tuple(held_out), chosen)
    law = _law(chosen, shares, _costly(made, chosen))
    lessons = Elastic(law=law, weight=1.0, imitation=StateImitation(INNER, MEANS) if embeds else None)
    training = Training(seed=seed, precision=precision, elastic=lessons)
    rate = lr if lr is not None else WHOLE_RATE if rank is None else RANK_RATE
    return Distillation(frozen(made), task, training, ByRole(AdamW(rate, decay=0.0, fused=True)))


def _by_length(texts: Iterable[Any]) -> list[Any]:
    """Texts of about one length beside each other, so that little is filled up; batches as they are."""
    given: list[Any] = [texts] if isinstance(texts, str) else list(texts)
    return sorted(given, key=len) if given and isinstance(given[0], str) else given


def frozen(model: Any) -> Any:
    """Let nothing learn but what the native size does not read; returns the model."""
    model.requires_grad_(False)
    gains: list[nn.Module] = [module for module in model.modules() if isinstance(module, Calibration)]
    for module in (*gains, *corrections_of(model)):
        module.requires_grad_(True)
    return model


def _is_counted(model: Any) -> bool:
    return all(
        isinstance(flow.axes[letter], Points) and not isinstance(getattr(flow.native, letter), Nested)
        for flow in model.flows
        for letter in "dhem"
    )


def _embeds(model: Any) -> bool:
    """Whether a model answers with its states."""
    readout = model.flows[-1].readout
    return readout is None or (isinstance(readout, Readout) and readout.out is None)


def _usual(model: Any, batches: Sequence[Batch]) -> list[Discretisation]:
    """Half of m, of h, of both, of d too, and two thirds of the steps, joined where that loses least."""
    native = model.native
    halves = {k: max(1, getattr(native, k).n // 2) for k in "dhm"}
    found = [
        at(m=halves["m"]),
        at(h=halves["h"]),
        at(m=halves["m"], h=halves["h"]),
        at(d=halves["d"], m=halves["m"], h=halves["h"]),
    ]
    if isinstance(native.z, Fixed) and native.z.steps > 2:
        steps = math.ceil(native.z.steps * 2 / 3)
        found.append(at(z=best_left_out(model, batches[:MEASURED_STEPS], steps)))
    return list(dict.fromkeys(found))


def _axes_of(model: Any, sizes: Sequence[Discretisation], fewest: bool = False) -> str:
    """The axes along which some size is not the native one; the ``fewest`` that tell sizes apart as all of them do."""
    each = _smaller(model, sizes)
    found = "".join(k for k in "dhemz" if any(k in own for own in each))
    if not found:
        remedy = "Name sizes that are smaller: sizes=[at(m=768, h=6)]."
        raise ConfigError("smaller sizes are taught", got="the native one alone", remedy=remedy)
    for k in "mehd" if fewest else "":
        left = found.replace(k, "")
        if _told_apart(each, left) == _told_apart(each, found):
            found = left
    return found


def _smaller(model: Any, sizes: Sequence[Discretisation]) -> list[set[str]]:
    """The axes along which each size is not the native one."""
    native = model.native
    settled = [model.settle(size) for size in sizes]
    return [{k for k in "dhemz" if getattr(size, k) != getattr(native, k)} for size in settled]


def _alone(model: Any, sizes: Sequence[Discretisation], along: str) -> str:
    """The axes along which some size is corrected and no other, where another one has a correction besides."""
    each = [own & set(along) for own in _smaller(model, sizes)]
    return "".join(k for k in along if {k} in each and any(k in own for own in each if len(own) > 1))


def _stored(model: Any, sizes: Sequence[Discretisation], along: str) -> tuple[CorrectedNodes, ...]:
    """The nodes that sizes along each axis read, where no size reads them all: the others have nothing to learn."""
    native = model.native
    settled = [model.settle(size) for size in sizes]
    found = []
    for k in along:
        own = [size for size in settled if getattr(size, k) != getattr(native, k)]
        for axis in "dhm":
            most = max(getattr(size, axis).n for size in own)
            if most < getattr(native, axis).n:
                found.append(CorrectedNodes(k, axis, most))
    return tuple(found)


def _costly(model: Any, sizes: Sequence[Discretisation]) -> tuple[Discretisation, ...]:
    """The sizes whose passes cost more than half of a native one, where others cost less: nearest, as a rule."""
    shares = {size: _numbers(model.settle(size)) / _numbers(model.native) for size in sizes}
    found = tuple(size for size, share in shares.items() if share > MOST)
    return found if len(found) < len(shares) else ()


def _numbers(size: Any) -> float:
    """About as many as all maps of the layers have."""
    steps = size.z.steps if isinstance(size.z, Fixed) else 1
    return float(steps * size.d.n * (4 * size.h.n * size.e.n + 2 * size.m.n))


def _law(
    sizes: tuple[Discretisation, ...], shares: Sequence[float] | None, brief: tuple[Discretisation, ...]
) -> ByGap | ByShare:
    """Each size at its share of the steps; without shares, some at each step."""
    if shares is not None:
        return ByShare(sizes, tuple(shares), brief)
    return ByGap(sizes=sizes, draws=min(TOGETHER, len(sizes)), parts=1, brief=brief)


def _told_apart(sizes: Sequence[set[str]], along: str) -> int:
    """How many kinds of sizes differ from native, and from each other, along some axes."""
    return len({frozenset(own & set(along)) for own in sizes} - {frozenset()})


def _training_of(run: Run) -> Training:
    """How a run is trained, as it says itself."""
    made = from_plain(run.about.get("training", {}))
    if not isinstance(made, Training) or made.elastic is None:
        remedy = "Name a run of distil, or a new folder."
        raise ConfigError("this run teaches no sizes", got=run.folder, remedy=remedy)
    return made


def sizes_of(run: Run) -> tuple[Discretisation, ...]:
    """The sizes that a run of ``distil`` teaches."""
    lessons = _training_of(run).elastic
    law = None if lessons is None else lessons.law
    return law.sizes or () if isinstance(law, ByGap | ByShare) else ()


def _seconds(own: Distillation) -> float:
    """What a step takes: gradients of lessons as they will be drawn, without a change of any weight."""
    lessons = own.training.elastic
    if lessons is None:
        raise ConfigError("lessons are what is timed", got="none", remedy="Use distillation(…).")
    objective = Objective(own.model, own.task)
    objective.elastic = lessons
    plan = lessons.over(own.model)
    started = 0.0
    for step in range(WARM + 1):
        if step == 1:
            started = time.perf_counter()
        objective.lessons = plan.draw(0.0, torch.Generator().manual_seed(step))
        example = own.task.example(own.training.seed, step)
        with own.training.autocast_on(device_of(own.model)):
            loss = objective(example, Whole.of(example))[0]
        loss.backward()
    own.model.zero_grad(set_to_none=True)
    return (time.perf_counter() - started) / WARM
