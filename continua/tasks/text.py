"""Language modelling: predict the next token."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.nn.functional import cross_entropy

from continua.data.corpus import Corpus
from continua.data.generation import generator_for
from continua.data.tokens import Tokeniser
from continua.errors import ConfigError
from continua.models import Batch
from continua.tasks.task import Example, Score, device_of, divergence
from continua.typing import Tensor


class NextToken:
    """What tasks of language share: each token's target is the one behind it.

    A task of this kind has ``tokens``, ``context``, ``batch`` and ``limit``, and gives windows of its held-out text.
    """

    tokens: Tokeniser
    context: int
    batch: int
    limit: int | None
    sums_over_tokens: ClassVar[bool] = True

    def held_out_windows(self) -> Tensor:
        """Windows [n, context + 1] of the held-out text, ``limit`` of them at most."""
        raise NotImplementedError

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """The sum of −log p of the right tokens."""
        exact = answer.float() if answer.dtype in _HALF else answer
        return cross_entropy(exact.flatten(0, 1), example.target.flatten(), reduction="sum")

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        """Σ KL(teacher ‖ answer) over the tokens: how far the answers of one size are from those of another."""
        return divergence(answer, teacher).sum()

    def coarsened(self, example: Example, count: int) -> Example:
        """The first ``count`` tokens of each window: a text has no coarser tokens, but a shorter context."""
        if count > self.context:
            remedy = f"Use {self.context} at most."
            raise ConfigError("a shorter context has fewer tokens", got=count, remedy=remedy)
        return example.first(count)

    @torch.no_grad()
    def evaluate(self, model: Any) -> Score:
        """Nats a token, perplexity, and bits a byte of the held-out text."""
        ids = self.held_out_windows()
        targets = ids[:, 1:]
        device = device_of(model)
        total = 0.0
        for start in range(0, len(ids), self.batch):
            rows = slice(start, start + self.batch)
            example = Example(Batch(ids[rows, :-1]), targets[rows]).to(device)
            total += float(self.loss(model(example.batch), example))
        nats = total / targets.numel()
        written = len(self.tokens.decode(targets.flatten()).encode())
        return Score(
            {"loss": nats, "perplexity": math.exp(min(nats, 700)), "bits_per_byte": total / written / math.log(2)}
        )


def spread_windows(count: int, context: int, limit: int | None) -> list[int]:
    """Where windows of ``context`` tokens start, one behind the other, or ``limit`` of them from everywhere."""
    windows = (count - 1) // context
    if limit is None or limit >= windows:
        return [window * context for window in range(windows)]
    chosen = torch.linspace(0, windows - 1, limit).round().long()  # one text is not all of one kind
    return [int(window) * context for window in chosen]


@dataclass(frozen=True)
class Text(NextToken):
    """Windows of ``context`` tokens at random places, ``batch`` of them a step; measured on the held-out text.

    ``evaluate`` reads the whole held-out text in windows one behind the other, or ``limit`` of them, evenly spread.
    """

    corpus: Corpus
    tokens: Tokeniser
    context: int = 128
    batch: int = 16
    limit: int | None = None
    train: Tensor = field(init=False, repr=False, compare=False)
    validation: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", self.tokens.encode(self.corpus.train))
        object.__setattr__(self, "validation", self.tokens.encode(self.corpus.validation))
        require_longer("training text", len(self.train), self.context)
        require_longer("held-out text", len(self.validation), self.context)

    def example(self, seed: int, step: int) -> Example:
        """Random windows; each token's target is the one behind it."""
        last = len(self.train) - self.context
        starts = torch.randint(last, (self.batch, 1), generator=generator_for("text", seed, step))
        ids = self.train[starts + torch.arange(self.context + 1)]
        return Example(Batch(ids[:, :-1]), ids[:, 1:])

    def held_out_windows(self) -> Tensor:
        """Windows of the held-out text."""
        starts = torch.tensor(spread_windows(len(self.validation), self.context, self.limit))
        return self.validation[starts[:, None] + torch.arange(self.context + 1)]


def require_longer(what: str, tokens: int, context: int) -> None:
    """Refuse a text that has no whole window."""
    if tokens <= context:
        remedy = "Use a longer text or a shorter context."
        raise ConfigError(f"the {what} is shorter than the context", got=f"{tokens} tokens", remedy=remedy)


_HALF = (torch.bfloat16, torch.float16)
