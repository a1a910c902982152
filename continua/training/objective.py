"""J(θ) = mean loss + ∫ running costs + penalties of the weights."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from continua.axes import Discretisation, Grid, Sharded
from continua.flow import SaveAt
from continua.tasks import Example, Task
from continua.training.compiled import Compiled
from continua.training.elastic import Elastic
from continua.training.imitation import InnerImitation, Study, Walk
from continua.training.penalty import Cost, Penalties, Penalty, Seen
from continua.training.sizes import Lesson, block
from continua.training.tokens import brought_together, in_parts, loss_of
from continua.typing import Tensor


@dataclass(frozen=True)
class Whole:
    """The batch of which an example is a part: losses are averaged over all of it, whoever computes them."""

    count: int
    samples: int
    parts: int = 1  # how many processes and micro-batches share it

    @classmethod
    def of(cls, example: Example, parts: int = 1) -> "Whole":
        """The size of an example."""
        return cls(example.count, example.samples, parts)


@dataclass(frozen=True)
class Evaluated:
    """What J is made of on one discretisation: its terms, evaluations where steps were searched for, and the walk."""

    terms: dict[str, Tensor]
    evaluations: int
    walk: Walk


class Objective(nn.Module):
    """The objective of a model on a task: one module, so that data-parallel wrappers see one forward.

    ``places`` are the discretisations it is computed on, with their weights; None is the native one. ``lessons`` are
    other sizes that learn from the answers on the first of these (``elastic``). ``compiled`` answers in place of the
    model where the answer alone is asked for.
    """

    def __init__(self, model: nn.Module, task: Task, penalties: Penalties = Penalties()) -> None:  # noqa: B008
        super().__init__()
        self.model = model
        self.task = task
        self.penalties = penalties
        self.generator: torch.Generator | None = None
        self.places: Sequence[tuple[Discretisation | None, float]] = ((None, 1.0),)
        self.elastic: Elastic | None = None
        self.lessons: Sequence[Lesson] = ()
        self.compiled: Compiled | None = None
        self.tokens: Sharded | None = None  # where this process has a part of the tokens

    def forward(self, example: Example, whole: Whole) -> tuple[Tensor, dict[str, Tensor]]:
        """This part's share of J, and its terms: the shares of all parts add up to J.

        Where steps are searched for, ``evaluations`` of the field are told beside the terms, a mean over the parts.
        """
        terms: dict[str, Tensor] = {}
        walks: list[Walk] = []
        searched = 0
        for at, weight in self.places:
            found = self._on(at, example, whole)
            searched += found.evaluations
            walks.append(found.walk)
            for name, value in found.terms.items():
                terms[name] = weight * value + terms.get(name, 0.0)
        if self.elastic is not None and self.lessons:
            terms["elastic"] = self._taught(self.elastic, walks[0], example, whole)
        for term in self.penalties:
            of_weights = term.of_weights(self.model)
            if of_weights is not None:
                terms[type(term).__name__] = term.weight * of_weights / whole.parts
        told = {name: value.detach() for name, value in terms.items()}
        if searched:
            told["evaluations"] = torch.tensor(searched / whole.parts, device=terms["loss"].device)
        return torch.stack(list(terms.values())).sum(), told

    def _taught(self, elastic: Elastic, native: Walk, example: Example, whole: Whole) -> Tensor:
        """What other sizes still get wrong; they learn from the answers of the first place, and the way to these.

        Where tokens are in parts, their answers are brought together, and each process has an equal share.
        """
        teacher = brought_together(native.answer.detach(), example, self.tokens)
        states = [brought_together(x.detach(), example, self.tokens) for x in native.x]
        total = teacher.new_zeros(())
        for lesson in self.lessons:
            rows = block(len(teacher), lesson)
            own = example.rows(rows)
            part = Walk(teacher[rows], native.z, tuple(x[rows] for x in states))
            if lesson.tokens is not None:
                own = own.first(lesson.tokens)
                first = slice(0, lesson.tokens)
                part = Walk(part.answer[:, first], part.z, tuple(x[:, first] for x in part.x))
            answer = partial(self._answer, own, lesson.at)
            walk = partial(self._walk, own, lesson.at) if self._looks_inside else None
            total = total + elastic.teaching.loss(Study(self.model, self.task, own, part, lesson.at, answer, walk))
        parts = sum(1 / lesson.parts for lesson in self.lessons)
        shares = 1 if self.tokens is None else int(self.tokens.mesh.size())
        return total * (elastic.weight / (whole.count * parts * shares))

    @property
    def _looks_inside(self) -> bool:
        """Whether other sizes learn from states on the way."""
        taught = None if self.elastic is None or not self.lessons else self.elastic.teaching
        return isinstance(taught, InnerImitation) and taught.looks_inside

    def _on(self, at: Discretisation | None, example: Example, whole: Whole) -> Evaluated:
        """Loss and running costs on one discretisation, and the answer."""
        model: Any = self.model
        at = in_parts(at, self.tokens)
        running = self.penalties.running_terms
        sampled = self.penalties.sampled_terms
        inside = self._looks_inside
        if self.compiled is not None and not (running or sampled or inside) and _steps_are_known(model, at):
            answer = self.compiled(example.batch, at)
            return Evaluated({"loss": self.task.loss(answer, example) / whole.count}, 0, Walk(answer))
        keep = SaveAt(every=1) if sampled or inside else SaveAt()
        with _plain(running):
            answer, path, t = model.run(example.batch, at, cost=self._cost if running else None, keep=keep)
        terms = {"loss": loss_of(self.task, answer, example, self.tokens) / whole.count}
        costs = [] if path.cost is None else [path.cost]
        if sampled:
            seen = self._seen(t, model.flows[-1].structure(at).grids.d)
            with _plain(sampled):
                costs += [
                    term.weight * term.along(path, lambda z, x: model.velocity(example.batch, z, x, at), seen)
                    for term in sampled
                ]
        if costs:
            terms["running"] = sum(cost.sum() for cost in costs) / whole.samples
        walk = Walk(answer, path.z, path.x) if inside else Walk(answer)
        return Evaluated(terms, path.stats["evaluations"] if "accepted" in path.stats else 0, walk)

    def _answer(self, example: Example, at: Discretisation | None) -> Tensor:
        """The answers of all tokens at another size."""
        if self.compiled is not None and _steps_are_known(self.model, at):
            return self.compiled(example.batch, at)
        model: Any = self.model
        answer: Tensor = model.run(example.batch, in_parts(at, self.tokens))[0]
        return brought_together(answer, example, self.tokens)

    def _walk(self, example: Example, at: Discretisation | None) -> Walk:
        """The answers of all tokens at another size, and the states on the way."""
        model: Any = self.model
        answer, path, _ = model.run(example.batch, in_parts(at, self.tokens), keep=SaveAt(every=1))
        states = tuple(brought_together(x, example, self.tokens) for x in path.x)
        return Walk(brought_together(answer, example, self.tokens), path.z, states)

    def _cost(self, t: Grid, d: Grid) -> Cost | None:
        return self.penalties.cost(self._seen(t, d))

    def _seen(self, t: Grid, d: Grid) -> Seen:
        share = None if d.is_uniform else d.weights / d.mass
        return Seen(t.observed if t.has_gaps else None, share, self.generator)


def _steps_are_known(model: Any, at: Discretisation | None) -> bool:
    """Whether depth is walked in steps that are decided before."""
    return all(flow.structure(at).steps is not None for flow in model.flows)


def _plain(terms: Sequence[Penalty]) -> Any:
    """Fused attention has no second derivative."""
    return sdpa_kernel(SDPBackend.MATH) if any(term.twice for term in terms) else nullcontext()
