"""What a size of a model learns from the native one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch.nn.functional import cosine_similarity

from continua.axes import Discretisation
from continua.config import register
from continua.errors import ConfigError
from continua.tasks import Example, Task
from continua.tasks.sentences import pooled, shared_coordinates
from continua.typing import Tensor


@dataclass(frozen=True)
class Study:
    """One lesson: the ``example`` of its rows, the native answers there (``teacher``), and the size, ``at``.

    ``answer()`` is what the model answers at this size; whoever needs more asks ``model``.
    """

    model: Any
    task: Task
    example: Example
    teacher: Tensor
    at: Discretisation
    answer: Callable[[], Tensor]


@runtime_checkable
class Imitation(Protocol):
    """Says what a size has to learn; frozen and registered, so that a run remembers it."""

    def loss(self, study: Study) -> Tensor:
        """What the size still gets wrong: a sum over the answers that count."""
        ...


@runtime_checkable
class Imitable(Protocol):
    """A task that knows how far answers are from those of a teacher."""

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        """The sum over the answers that count of how far each is from the teacher's."""
        ...


@register
@dataclass(frozen=True)
class AnswerImitation:
    """(1 − distil) loss + distil · (the task's ``imitation``, for classes KL(native ‖ size))."""

    distil: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.distil <= 1:
            raise ConfigError("distil is a share", got=self.distil, remedy="Use distil between 0 and 1.")

    def loss(self, study: Study) -> Tensor:
        """The data and the native answers, in their shares."""
        task = study.task
        if self.distil == 0:
            return task.loss(study.answer(), study.example)
        if not isinstance(task, Imitable):
            remedy = "Give the task a method imitation(answer, teacher, example), or use Elastic(distil=0)."
            raise ConfigError("this task has no way to imitate answers", got=type(task).__name__, remedy=remedy)
        answer = study.answer()
        taught = self.distil * task.imitation(answer, study.teacher, study.example)
        return taught if self.distil == 1 else (1 - self.distil) * task.loss(answer, study.example) + taught


@register
@dataclass(frozen=True)
class EmbeddingImitation:
    """Σ 1 − cos(e, native e), e being the mean of the states at the tokens that are there.

    A size of fewer coordinates d is compared with the native embedding at these.
    """

    def loss(self, study: Study) -> Tensor:
        """How far the embeddings of this size are from the native ones."""
        there = study.example.batch.observed
        teacher = shared_coordinates(study.model, study.at, study.teacher)
        return (1 - cosine_similarity(pooled(study.answer(), there), pooled(teacher, there), dim=-1)).sum()


@register
@dataclass(frozen=True)
class StateImitation:
    """Σ over texts of Σ_t |x − native x|² / Σ_t |native x|², t being its tokens, and of 1 − cos of the mean states.

    Every token of a text says where it went wrong, not their mean alone. A size of fewer coordinates d is compared with
    the native states at these. Answers without tokens are compared as they are.
    """

    def loss(self, study: Study) -> Tensor:
        """How far the states of this size are from the native ones, and their means."""
        there = study.example.batch.observed
        wanted = shared_coordinates(study.model, study.at, study.teacher)
        found = study.answer()
        count = there[..., None].to(found) if there is not None and found.dim() == 3 else found.new_ones(())
        lost = ((found - wanted).square() * count).flatten(1).sum(1)
        size = (wanted.square() * count).flatten(1).sum(1)
        apart = 1 - cosine_similarity(pooled(found, there), pooled(wanted, there), dim=-1)
        return (lost / size + apart).sum()
