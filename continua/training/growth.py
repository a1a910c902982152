"""Growth: training begins on coarse grids and goes on to finer ones, whose new nodes join a network that works."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

from continua.axes import WIDTHS, Discretisation
from continua.config import register
from continua.errors import ConfigError
from continua.flow import Fixed
from continua.settings import PartialShare, Positive, SomeShare
from continua.training.modes import ALL, Modes, refuse_modes
from continua.training.prolongation import AsMade, Prolongation, refuse_unnested


@register
@dataclass(frozen=True)
class Stage:
    """Sizes that are trained until a share of all steps is done, one a step in turn.

    ``sizes`` are discretisations, what they leave open being native; ``until`` is that share. ``modes`` says how many
    functions smooth fields have while it lasts. A whole number for t thins the data: nodes of functions and pixels
    along each direction, the first tokens of texts (``tasks.Coarsens``); held-out data stay as they are. ``rate`` is a
    factor of the learning rates while it lasts: on a coarse grid each weight counts for several, so that an update of
    the same length goes further. ``batch`` is the share of the examples of each step that is used, the first of them:
    early on few suffice. A stage may be of the native size, for the sake of its data: lessons begin with it.
    """

    sizes: tuple[Discretisation, ...]
    until: PartialShare
    modes: Modes = ALL
    rate: Positive = 1.0
    batch: SomeShare = 1.0

    def __post_init__(self) -> None:
        if not self.sizes:
            raise ConfigError("a stage trains some size", got="none", remedy="Write Stage((at(d=64, z=2),), 0.2).")
        for size in self.sizes:
            if size.t is not None and not isinstance(size.t, int):
                remedy = "Write at(t=32): so many nodes along each direction of what the task gives."
                raise ConfigError("a stage thins its data to a number", got=size.t, remedy=remedy)


@register
@dataclass(frozen=True)
class Growth:
    """``stages`` from coarse to fine, then the native size to the end: cascadic multigrid for weights.

    Coarse steps are cheap, and the sizes they train stay good models of their own. ``prolongation`` says what the
    nodes that are new at a switch start with.

    >>> from continua.axes import at
    >>> growth = Growth((Stage((at(d=64, h=2, z=2),), 0.15), Stage((at(d=64),), 0.35)))
    >>> growth.ends
    0.35
    """

    stages: tuple[Stage, ...]
    prolongation: Prolongation = AsMade()  # noqa: RUF009  (frozen)

    def __post_init__(self) -> None:
        ends = [stage.until for stage in self.stages]
        if not ends or ends[0] <= 0 or any(b <= a for a, b in itertools.pairwise(ends)):
            remedy = "Write Growth((Stage((at(d=64),), 0.2), Stage((at(d=96),), 0.4)))."
            raise ConfigError("stages end one after another", got=ends, remedy=remedy)

    @property
    def ends(self) -> float:
        """The share of all steps after which the native size is trained."""
        return self.stages[-1].until

    def over(self, model: Any) -> "GrowthPlan":
        """The schedule of one model; refuses what shrinks, is finer than native, or has nodes that do not nest."""
        refuse_modes(model, [stage.modes for stage in self.stages])
        _refuse_thinning([[size.t for size in stage.sizes] for stage in self.stages])
        places = tuple(tuple(size.replace(t=None) for size in stage.sizes) for stage in self.stages)
        settled = [tuple(_settled(model, wish) for wish in stage) for stage in places]
        settled.append((model.settle(None),))
        for before, after in itertools.pairwise(settled):
            _refuse_shrinking(before, after)
            for flow in model.flows:
                refuse_unnested(flow, before, after)
        return GrowthPlan(self, places, tuple(settled))


@dataclass(frozen=True)
class GrowthPlan:
    """The stages of one model, the native size being the last; a stage is known by its number.

    ``places`` are its sizes as they were named, without t, ``sizes`` the same with all that was left open, and the
    native one.
    """

    law: Growth
    places: tuple[tuple[Discretisation, ...], ...]
    sizes: tuple[tuple[Discretisation, ...], ...]

    @property
    def last(self) -> int:
        """The number of the native stage."""
        return len(self.law.stages)

    def stage(self, progress: float) -> int:
        """The stage of a step, ``progress`` being its share of the run."""
        return sum(progress >= stage.until for stage in self.law.stages)

    def place(self, stage: int, step: int) -> Discretisation | None:
        """What is trained at a step; None is the native size."""
        if stage == self.last:
            return None
        own = self.places[stage]
        return own[step % len(own)]

    def thinned(self, stage: int, step: int) -> int | None:
        """How many nodes along each direction the data of a step have; None leaves them as they are."""
        if stage == self.last:
            return None
        own = self.law.stages[stage].sizes
        t = own[step % len(own)].t
        return t if isinstance(t, int) else None

    def rate(self, stage: int) -> float:
        """A factor of the learning rates."""
        return 1.0 if stage == self.last else self.law.stages[stage].rate

    def examples(self, stage: int, samples: int) -> int:
        """How many of the samples of a step are used."""
        return samples if stage == self.last else ceil(self.law.stages[stage].batch * samples)

    def is_native(self, stage: int) -> bool:
        """Whether a stage trains the native size with all of its modes, be it on coarse data or few."""
        return self.modes(stage) == ALL and all(size == self.sizes[-1][0] for size in self.sizes[stage])

    def modes(self, stage: int) -> Modes:
        """How many functions fields have."""
        return ALL if stage == self.last else self.law.stages[stage].modes

    def finest(self, stage: int) -> Discretisation | None:
        """What held-out data are measured on: the last size of a stage."""
        return None if stage == self.last else self.places[stage][-1]


def _settled(model: Any, wish: Discretisation) -> Discretisation:
    settled: Discretisation = model.settle(wish)
    if not isinstance(settled.z, Fixed):
        raise ConfigError("a stage counts its steps", got=settled.z, remedy="Write at(z=2).")
    return settled


def _sizes(settled: Discretisation) -> dict[str, int]:
    return {**{letter: getattr(settled, letter).n for letter in WIDTHS}, "z": settled.z.steps}


def _refuse_thinning(stages: Sequence[Sequence[Any]]) -> None:
    """Data become finer from stage to stage; None is as fine as they are."""
    most = [max(inf if t is None else t for t in sizes) for sizes in stages]
    for was, becomes in itertools.pairwise(most):
        if becomes < was:
            remedy = "Order the stages from coarse to fine; one without t has the data as they come."
            raise ConfigError("t shrinks while training grows", got=f"{was:g}, then {becomes:g}", remedy=remedy)


def _refuse_shrinking(before: Sequence[Discretisation], after: Sequence[Discretisation]) -> None:
    """Along every axis the largest size of a stage is at least that of the one before."""
    coarse, fine = ([_sizes(each) for each in stage] for stage in (before, after))
    for letter in (*WIDTHS, "z"):
        was, becomes = (max(sizes[letter] for sizes in stage) for stage in (coarse, fine))
        if becomes < was:
            remedy = "Order the stages from coarse to fine, none finer than the native size."
            raise ConfigError(f"{letter} shrinks while training grows", got=f"{was}, then {becomes}", remedy=remedy)
