"""Retrieval: find a text by another one that means the same, by the cosine of their embeddings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from continua.data.docstrings import Docstring
from continua.errors import ShapeError
from continua.tasks.task import Score
from continua.typing import Tensor

Embed = Callable[[Sequence[str]], Tensor]  # n texts → [n, d]


@dataclass(frozen=True)
class Retrieval:
    """Find the body of each docstring by its summary, among the bodies of all: argmax_j cos(e(sᵢ), e(bⱼ)) = i.

    An answer counts only if it is ahead of every other body, so equal embeddings find nothing.

    >>> import torch
    >>> pair = Docstring("a.f", "Add two numbers together.", "…"), Docstring("a.g", "Open a file to read.", "…")
    >>> Retrieval(pair).evaluate(lambda texts: torch.eye(2)).values["accuracy"]
    1.0
    """

    docs: tuple[Docstring, ...]

    def __post_init__(self) -> None:
        if len(self.docs) < 2:
            remedy = "Give two docstrings or more, for example continua.data.docstrings().validation."
            raise ShapeError("retrieval tells texts apart", got=f"{len(self.docs)} of them", remedy=remedy)

    @torch.no_grad()
    def evaluate(self, embed: Embed) -> Score:
        """The share that is missed, the share that is found (accuracy@1), and the mean reciprocal rank."""
        asked = self._embedded(embed, [one.summary for one in self.docs])
        answers = self._embedded(embed, [one.body for one in self.docs])
        if asked.shape != answers.shape:
            remedy = "Return as many features for every text."
            raise ShapeError("embeddings have one width", got=f"{asked.shape[1]} and {answers.shape[1]}", remedy=remedy)
        alike = normalize(asked, dim=1) @ normalize(answers, dim=1).T
        ranks = (alike >= alike.diagonal()[:, None]).sum(1)  # the right one is as good as itself: 1 is the best rank
        found = float((ranks == 1).double().mean())
        return Score({"error": 1 - found, "accuracy": found, "reciprocal_rank": float((1 / ranks.double()).mean())})

    def _embedded(self, embed: Embed, texts: Sequence[str]) -> Tensor:
        made = embed(texts)
        if made.dim() != 2 or len(made) != len(texts):
            remedy = "Return a row for each text, [n, d]."
            raise ShapeError(f"{len(texts)} texts have as many embeddings", got=list(made.shape), remedy=remedy)
        if not made.isfinite().all():
            raise ShapeError("embeddings are finite", got="NaN or infinity", remedy="Look at the weights of the model.")
        return made.double()
