"""How the next token is chosen from its logits. The order of the steps is Hugging Face's, so that results agree:
repetition penalty → temperature → top-k → top-p → draw."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from continua.config import register
from continua.errors import ConfigError
from continua.session.sampling import LARGE, check_cuts, check_penalty
from continua.typing import Bool, Float, Int, Tensor


@runtime_checkable
class Sampling(Protocol):
    """A rule that picks one token of each sample."""

    @property
    def repetition_penalty(self) -> float:
        """By how much tokens that are already there are made less likely; one for not at all."""
        ...

    def choose(
        self, logits: Float[Tensor, "b v"], seen: Bool[Tensor, "b v"] | None, generator: torch.Generator | None
    ) -> Int[Tensor, "b"]:
        """Return the tokens; ``seen`` marks what each sample already holds (``None`` where no penalty asks for it)."""
        ...


@runtime_checkable
class Distribution(Protocol):
    """A sampling that can say what it draws from: speculation compares two of them."""

    def shares(self, logits: Float[Tensor, "b v"], seen: Bool[Tensor, "b v"] | None) -> Float[Tensor, "b v"]:
        """Return the probability of each token."""
        ...

    def draw(self, shares: Float[Tensor, "b v"], generator: torch.Generator | None) -> Int[Tensor, "b"]:
        """Return a token of each sample; shares need not add up to one."""
        ...


@register
@dataclass(frozen=True)
class Greedy:
    """The most likely token."""

    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_penalty(self.repetition_penalty)

    def choose(
        self, logits: Float[Tensor, "b v"], seen: Bool[Tensor, "b v"] | None, generator: torch.Generator | None
    ) -> Int[Tensor, "b"]:
        """The largest logit; the first of equal ones."""
        return penalised(logits, seen, self.repetition_penalty).argmax(-1)

    def shares(self, logits: Float[Tensor, "b v"], seen: Bool[Tensor, "b v"] | None) -> Float[Tensor, "b v"]:
        """All on the largest logit."""
        return torch.zeros_like(logits).scatter_(-1, self.choose(logits, seen, None)[..., None], 1.0)

    def draw(self, shares: Float[Tensor, "b v"], generator: torch.Generator | None) -> Int[Tensor, "b"]:
        """Nothing is drawn."""
        return shares.argmax(-1)


@register
@dataclass(frozen=True)
class Sample:
    """A draw from softmax(logits / temperature), cut to the ``top_k`` likeliest tokens and then to the smallest set
    of tokens whose probability reaches ``top_p``. A ``repetition_penalty`` above one makes tokens that were already
    there less likely (Keskar et al. 2019)."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_penalty(self.repetition_penalty)
        if not 0 < self.temperature < float("inf"):
            remedy = "Use a positive number, or Greedy() for the limit of zero."
            raise ConfigError("a temperature is above zero", got=self.temperature, remedy=remedy)
        check_cuts(self.top_k, self.top_p)

    def choose(
        self, logits: Float[Tensor, "b v"], seen: Bool[Tensor, "b v"] | None, generator: torch.Generator | None
    ) -> Int[Tensor, "b"]:
        """Draw from what is left."""
        return self.draw(self.shares(logits, seen), generator)

    def shares(self, logits: Float[Tensor, "b v"], seen: Bool[Tensor, "b v"] | None) -> Float[Tensor, "b v"]:
        """softmax of what is left."""
        return self.warped(logits, seen).softmax(-1)

    def draw(self, shares: Float[Tensor, "b v"], generator: torch.Generator | None) -> Int[Tensor, "b"]:
        """One token of each sample."""
        return torch.multinomial(shares, 1, generator=generator).squeeze(1)

    def warped(self, logits: Float[Tensor, "b v"], seen: Bool[Tensor, "b v"] | None = None) -> Float[Tensor, "b v"]:
        """The logits of the distribution that is drawn from; −∞ for tokens that are cut."""
        logits = penalised(logits, seen, self.repetition_penalty)
        if self.temperature != 1.0:
            logits = _cooled(logits, self.temperature)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            smallest = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < smallest, -torch.inf)
        if self.top_p < 1.0:
            rising, order = logits.sort(-1)
            cut = rising.softmax(-1).cumsum(-1) <= 1 - self.top_p
            cut[..., -1] = False  # the likeliest token always stays
            logits = logits.masked_fill(torch.zeros_like(cut).scatter_(-1, order, cut), -torch.inf)
        return logits


def penalised(logits: Tensor, seen: Tensor | None, penalty: float) -> Tensor:
    """Divide positive logits of seen tokens by the penalty, multiply negative ones with it."""
    if seen is None or penalty == 1.0:
        return logits
    most = min(LARGE, torch.finfo(logits.dtype).max)
    factor = _held(penalty, logits)
    changed = torch.where(logits < 0, logits * factor, logits / factor).clamp(-most, most)
    return torch.where(seen, changed, logits)


def _cooled(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature; where that could overflow, from the largest logit on, which softmax does not see."""
    held = _held(temperature, logits)
    if torch.finfo(logits.dtype).max * held < LARGE:
        logits = logits - logits.amax(-1, keepdim=True)
    return logits / held


def _held(number: float, like: Tensor) -> float:
    """The nearest positive number that the precision can hold."""
    known = torch.finfo(like.dtype)
    return min(max(number, known.tiny), known.max)
