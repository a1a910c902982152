"""Elastic training: one set of weights for many sizes, the native size teaching the others."""

from dataclasses import dataclass
from typing import Any

from continua.config import register
from continua.errors import ConfigError
from continua.settings import Count, Share, SomeShare
from continua.training.imitation import AnswerImitation, Imitation
from continua.training.sizes import Lesson, LessonPlan, SizeLaw, Sizes, SmallerSizes, block

__all__ = ["Elastic", "Lesson", "Sizes", "block"]


@register
@dataclass(frozen=True)
class Elastic:
    """J + weight · mean over sizes of what each has to learn: (1 − distil) loss + distil KL(native ‖ size).

    The native size learns from the data as ever, at every step; until ``start`` (a share of all steps) it is alone.
    Then at each step ``draws`` sizes are drawn, each sees one of ``parts`` equal blocks of the batch and learns to
    answer as the native size does. ``d … often`` are those of ``SmallerSizes``, ``distil`` that of
    ``AnswerImitation``; ``law`` and ``imitation`` put others in the place of these two.
    """

    d: tuple[int, ...] | None = None
    h: tuple[int, ...] | None = None
    z: tuple[int, ...] | None = None
    e: tuple[int, ...] | None = None
    m: tuple[int, ...] | None = None
    t: tuple[int, ...] | None = None
    draws: Count = SmallerSizes.draws
    parts: Count = SmallerSizes.parts
    start: Share = SmallerSizes.start
    weight: Share = 0.6
    distil: Share = AnswerImitation.distil
    deep: Share = SmallerSizes.deep
    joined: Share = SmallerSizes.joined
    quarters: Share = SmallerSizes.quarters
    mix: str = SmallerSizes.mix
    often: SomeShare = SmallerSizes.often
    law: SizeLaw | None = None
    imitation: Imitation | None = None

    def __post_init__(self) -> None:
        named = self._sizes()  # refuses what is no law
        taught = AnswerImitation(self.distil)
        if self.law is not None and (not isinstance(self.law, SizeLaw) or named != SmallerSizes()):
            remedy = "Say it there: law=SmallerSizes(d=(64, 128), draws=1), or another object with over(model)."
            raise ConfigError("law is a SizeLaw and takes the place of d … often", got=self, remedy=remedy)
        if self.imitation is not None and (not isinstance(self.imitation, Imitation) or taught != AnswerImitation()):
            remedy = "Say it there: imitation=AnswerImitation(distil=0.5), or another object with loss(study)."
            raise ConfigError("imitation is an Imitation and takes the place of distil", got=self, remedy=remedy)

    @property
    def teaching(self) -> Imitation:
        """What sizes learn from the native one."""
        return AnswerImitation(self.distil) if self.imitation is None else self.imitation

    def over(self, model: Any) -> LessonPlan:
        """The lessons of one model."""
        law: SizeLaw = self._sizes() if self.law is None else self.law
        return law.over(model)

    def _sizes(self) -> SmallerSizes:
        return SmallerSizes(
            d=self.d,
            h=self.h,
            z=self.z,
            e=self.e,
            m=self.m,
            t=self.t,
            draws=self.draws,
            parts=self.parts,
            start=self.start,
            deep=self.deep,
            joined=self.joined,
            quarters=self.quarters,
            mix=self.mix,
            often=self.often,
        )
