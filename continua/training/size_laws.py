"""Laws of sizes beside ``SmallerSizes``: along the diagonal, by their gap to native, each at a share of the steps."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from continua.axes import Discretisation, at
from continua.config import register, to_plain
from continua.errors import ConfigError
from continua.flow import Fixed
from continua.settings import Count, NonNegative, PartialShare, Share
from continua.training.sizes import Lesson, native_sizes

COARSE = (0.25, 0.5, 1.0)  # shares of an axis in the usual list of ``ByGap``


@runtime_checkable
class LearningPlan(Protocol):
    """A plan of lessons that heeds how they went; what it knows is in every checkpoint."""

    def saw(self, lessons: Sequence[Lesson], gap: float) -> None:
        """Hear what the sizes of a step still got wrong, a mean over its lessons, equal on all processes."""
        ...

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        ...

    def recall(self, plain: Any) -> None:
        """Go on from what was kept; from nothing where that is of another law, or None."""
        ...


@register
@dataclass(frozen=True)
class Diagonal:
    """``draws`` different ones of a fixed list of sizes at each step from ``start`` on: all axes at the same share.

    ``shares`` are those of width, heads and steps together, so one number says how large a model is, and fewer sizes
    learn more each (Zhuang et al. 2024 do so with layers and dimensions). Each lesson is on one of ``parts`` blocks of
    the batch.
    """

    shares: tuple[PartialShare, ...] = (0.25, 0.5, 0.75)
    draws: Count = 1
    parts: Count = 2
    start: Share = 0.0

    def __post_init__(self) -> None:
        if not self.shares or min(self.shares) <= 0 or self.draws > len(set(self.shares)):
            remedy = "Use shares between 0 and 1, such as (0.25, 0.5), and no more draws than there are of them."
            raise ConfigError("a diagonal is a list of shares", got=self, remedy=remedy)

    def over(self, model: Any) -> "DiagonalPlan":
        """The sizes of one model."""
        full = native_sizes(model)
        wishes = [at(**{k: max(1, round(share * n)) for k, n in full.items()}) for share in self.shares]
        return DiagonalPlan(self, model, tuple(dict.fromkeys(wishes)))


@dataclass(frozen=True)
class DiagonalPlan:
    """The sizes of a diagonal."""

    law: Diagonal
    model: Any
    sizes: tuple[Discretisation, ...]

    def draw(self, progress: float, generator: torch.Generator) -> list[Lesson]:
        """Different sizes, each on a block of its own choice."""
        if progress < self.law.start:
            return []
        order = torch.randperm(len(self.sizes), generator=generator).tolist()
        parts = self.law.parts
        blocks = torch.randint(parts, (self.law.draws,), generator=generator).tolist()
        return [Lesson(self.sizes[i], block, parts) for i, block in zip(order, blocks, strict=False)]

    def drew(self, sizes: Mapping[str, Any]) -> bool:
        """Whether training may have drawn a size."""
        return is_listed(self.model, self.sizes, sizes)


@register
@dataclass(frozen=True)
class ByGap:
    """Sizes are drawn in proportion to gap^power, where gap is what each still gets wrong; ``even`` of them evenly.

    The gap of a size is a running mean over its lessons, KL(native ‖ size) by the usual imitation, of which each new
    one counts 1 − ``memory``; a size that had none counts as the one with the largest gap. With ``draws`` above 1 each
    lesson counts as the mean of its step; where each sees the whole batch (``parts=1``) they are of different sizes.
    ``sizes`` are what is drawn from; None is a quarter, half and all of width, heads and steps with each other, and
    twice the steps. Those that are ``brief``, too, learn from half of the rows that others do.
    """

    sizes: tuple[Discretisation, ...] | None = None
    draws: Count = 1
    parts: Count = 2
    start: Share = 0.0
    power: NonNegative = 1.0
    memory: PartialShare = 0.8
    even: Share = 0.25
    brief: tuple[Discretisation, ...] = ()

    def __post_init__(self) -> None:
        _require_listed(self.sizes, self.brief)

    def over(self, model: Any) -> "GapPlan":
        """The sizes of one model, of which nothing is known yet."""
        full = native_sizes(model)
        sizes = self.sizes
        if sizes is None:
            shares = [each for each in itertools.product(COARSE, repeat=3) if each != (1.0,) * 3] + [(1.0, 1.0, 2.0)]
            wishes = [
                {k: max(1, round(share * n)) for (k, n), share in zip(full.items(), each, strict=True)}
                for each in shares
            ]
            sizes = tuple(dict.fromkeys(at(**wish) for wish in wishes if wish != full))
        return GapPlan(self, model, sizes, [None for _ in sizes])


@dataclass
class GapPlan:
    """Sizes, and the running mean of what each gets wrong."""

    law: ByGap
    model: Any
    sizes: tuple[Discretisation, ...]
    gaps: list[float | None] = field(default_factory=list)

    def chances(self) -> list[float]:
        """How probable each size is."""
        law = self.law
        most = max((gap for gap in self.gaps if gap is not None), default=1.0)
        weights = [max(most if gap is None else gap, 0.0) ** law.power for gap in self.gaps]
        total = sum(weights)
        if total == 0:
            return [1 / len(weights) for _ in weights]
        return [law.even / len(weights) + (1 - law.even) * weight / total for weight in weights]

    def draw(self, progress: float, generator: torch.Generator) -> list[Lesson]:
        """Sizes by their gap, each on a block of its own choice."""
        law = self.law
        if progress < law.start:
            return []
        chances = torch.tensor(self.chances(), dtype=torch.float64)
        once = law.parts == 1 and 1 < law.draws <= len(self.sizes)  # the same lesson twice says nothing new
        drawn = torch.multinomial(chances, law.draws, replacement=not once, generator=generator).tolist()
        blocks = torch.randint(law.parts, (law.draws,), generator=generator).tolist()
        lessons = [Lesson(self.sizes[i], block, law.parts) for i, block in zip(drawn, blocks, strict=True)]
        return [_halved(one, generator) if one.at in law.brief else one for one in lessons]

    def drew(self, sizes: Mapping[str, Any]) -> bool:
        """Whether training may have drawn a size."""
        return is_listed(self.model, self.sizes, sizes)

    def saw(self, lessons: Sequence[Lesson], gap: float) -> None:
        """Let the running means of these sizes go on."""
        for lesson in lessons:
            i = self.sizes.index(lesson.at)
            before = self.gaps[i]
            self.gaps[i] = gap if before is None else self.law.memory * before + (1 - self.law.memory) * gap

    def plain(self) -> dict[str, Any]:
        """The law, and what is known."""
        return {"law": to_plain(self.law), "gaps": list(self.gaps)}

    def recall(self, plain: Any) -> None:
        """Go on from what was kept."""
        kept = plain if isinstance(plain, Mapping) and plain.get("law") == to_plain(self.law) else {}
        self.gaps = list(kept.get("gaps", [None for _ in self.sizes]))


@register
@dataclass(frozen=True)
class ByShare:
    """Every size learns at a share of the steps that is its own, from all of a batch; ``brief`` ones from half of it.

    ``shares`` are in the order of ``sizes``; which steps they are is drawn for each size alone. At a step that no size
    is drawn for, the one of the largest share learns.
    """

    sizes: tuple[Discretisation, ...]
    shares: tuple[Share, ...]
    brief: tuple[Discretisation, ...] = ()

    def __post_init__(self) -> None:
        _require_listed(self.sizes, self.brief)
        if len(self.shares) != len(self.sizes) or min(self.shares) <= 0:
            remedy = "Give one above 0 and up to 1 for each: sizes=(at(m=768), at(h=6)), shares=(1.0, 0.5)."
            raise ConfigError("each size has a share of the steps", got=self.shares, remedy=remedy)

    def over(self, model: Any) -> "SharePlan":
        """The same sizes for every model."""
        return SharePlan(self, model)


@dataclass(frozen=True)
class SharePlan:
    """Sizes, each at its share of the steps."""

    law: ByShare
    model: Any

    def draw(self, progress: float, generator: torch.Generator) -> list[Lesson]:
        """The sizes of a step."""
        law = self.law
        chances = torch.rand(len(law.sizes), generator=generator, dtype=torch.float64).tolist()
        drawn = [size for size, share, chance in zip(law.sizes, law.shares, chances, strict=True) if chance < share]
        lessons = [Lesson(size, 0, 1) for size in drawn or [law.sizes[law.shares.index(max(law.shares))]]]
        return [_halved(one, generator) if one.at in law.brief else one for one in lessons]

    def drew(self, sizes: Mapping[str, Any]) -> bool:
        """Whether training may have drawn a size."""
        return is_listed(self.model, self.law.sizes, sizes)


def _halved(lesson: Lesson, generator: torch.Generator) -> Lesson:
    """The same on one half of its rows."""
    half = int(torch.randint(2, (), generator=generator))
    return lesson._replace(block=2 * lesson.block + half, parts=2 * lesson.parts)


def _require_listed(sizes: tuple[Discretisation, ...] | None, brief: tuple[Discretisation, ...]) -> None:
    """Refuse lists of sizes that are empty or name one twice, and brief ones that are not among them."""
    if set(brief) - set(sizes or ()):
        remedy = "Name them among sizes, too."
        raise ConfigError("brief lessons are of sizes that are drawn from", got=brief, remedy=remedy)
    if sizes is not None and (not sizes or len(set(sizes)) < len(sizes)):
        remedy = "List different ones, (at(d=64), at(h=2)), or leave sizes out."
        raise ConfigError("sizes are what is drawn from", got=sizes, remedy=remedy)


def is_listed(model: Any, listed: Sequence[Discretisation], sizes: Mapping[str, Any]) -> bool:
    """Whether a size, numbers by letter (for joined steps their lengths), is the native one or on a list."""
    asked = {k: n if isinstance(n, int) else Fixed(len(n), lengths=n) for k, n in sizes.items()}
    return model.settle(at(**asked)) in {model.native, *(model.settle(size) for size in listed)}


def recalled(plan: Any, plain: Any) -> None:
    """Let a plan that heeds its lessons go on from a checkpoint."""
    if isinstance(plan, LearningPlan):
        plan.recall(plain)


def heard(plan: Any, lessons: Sequence[Lesson], terms: Mapping[str, float]) -> None:
    """Tell a plan that heeds its lessons how those of a step went."""
    if isinstance(plan, LearningPlan) and lessons and "elastic" in terms:
        plan.saw(lessons, terms["elastic"])


def kept(plan: Any) -> dict[str, Any]:
    """What a checkpoint keeps of a plan that heeds its lessons."""
    return {"lessons": plan.plain()} if isinstance(plan, LearningPlan) else {}
