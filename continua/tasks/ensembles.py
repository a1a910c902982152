"""Uncertainty of functions: several answers to one question, as their mean and spread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from continua.axes import Discretisation
from continua.errors import ConfigError
from continua.models import Batch
from continua.tasks.functions import predict
from continua.typing import Float, Tensor


@dataclass(frozen=True, eq=False)
class Answers:
    """The mean [b, n, c] of several answers and the spread around it; ``each`` [k, b, n, c] are the answers."""

    mean: Tensor
    spread: Tensor
    each: Tensor


def ensemble(model: Any, sizes: Sequence[Discretisation] = (), others: Sequence[Any] = ()) -> "Ensemble":
    """One model at its native size and at ``sizes``, and ``others`` beside it (a deep ensemble), asked together.

    >>> from continua.axes import Circle, at
    >>> from continua.models.zoo import function_map
    >>> model = function_map(Circle(), 16, at=at(d=8, h=2, m=8, z=2), modes=4)
    >>> ensemble(model, [at(d=4), at(z=1)]).answer(Batch(torch.zeros(1, 16, 1))).mean.shape
    torch.Size([1, 16, 1])
    """
    members = (model, *(model.at(size) for size in sizes), *others)
    if len(members) < 2:
        remedy = "Name sizes, such as [at(d=32), at(z=2)], or other models."
        raise ConfigError("a spread needs two answers", got=len(members), remedy=remedy)
    return Ensemble(members)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Models, or sizes of one, that answer the same question. Call it as a model for the mean."""

    members: tuple[Any, ...]

    def __call__(self, batch: Batch) -> Float[Tensor, "b n c"]:
        """The mean."""
        return self.answer(batch).mean

    def answer(self, batch: Batch) -> Answers:
        """Mean and spread (with k − 1 in the denominator) of all answers."""
        each = torch.stack([predict(member, batch) for member in self.members])
        return Answers(each.mean(0), each.std(0), each)


def coverage(answers: Answers, truth: Float[Tensor, "b n c"], width: float = 2.0) -> float:
    """The share of points whose truth lies within ``width`` spreads of the mean."""
    return float(((truth - answers.mean).abs() <= width * answers.spread).double().mean())


def spread_tells_error(answers: Answers, truth: Float[Tensor, "b n c"]) -> float:
    """The rank correlation, over functions, of the root mean square spread and the root mean square error."""
    error = (answers.mean - truth).double().square().mean((1, 2))
    spread = answers.spread.double().square().mean((1, 2))
    ranks = [x.argsort().argsort().double() for x in (error, spread)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])
