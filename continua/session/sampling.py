"""How the next token is chosen, by numpy: the steps of ``continua.models.sampling`` in the same order."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from continua.errors import ConfigError

LARGE = 1e8  # a logit beyond decides alone
SMALL = float(np.finfo(np.float32).tiny)

Logits = NDArray[np.float32]


def check_cuts(top_k: int | None, top_p: float) -> None:
    """Refuse cuts that leave nothing, here and in ``continua.models.sampling``."""
    if top_k is not None and top_k < 1:
        raise ConfigError("top_k keeps at least one token", got=top_k, remedy="Leave it out to keep all.")
    if not 0 < top_p <= 1:
        remedy = "Use 0.9 to cut the unlikely tenth, or leave it out to keep all."
        raise ConfigError("top_p is a probability in (0, 1]", got=top_p, remedy=remedy)


def check_penalty(penalty: float) -> None:
    """Refuse what is no factor, here and in ``continua.models.sampling``."""
    if not 0 < penalty < float("inf"):
        remedy = "Use 1.0 for none, 1.2 to discourage repeats."
        raise ConfigError("a repetition penalty is a positive factor", got=penalty, remedy=remedy)


@dataclass(frozen=True)
class Choice:
    """Temperature 0 takes the likeliest token; above, one is drawn as by ``ct.Sample`` with the same numbers."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            got = self.temperature
            raise ConfigError("a temperature is zero or above", got=got, remedy="Use 0 for the likeliest token.")
        check_cuts(self.top_k, self.top_p)
        check_penalty(self.repetition_penalty)
        if self.temperature == 0 and (self.top_k is not None or self.top_p < 1):
            remedy = "Leave them out, or give a temperature."
            raise ConfigError(
                "temperature 0 always takes the likeliest token", got="it with top_k or top_p", remedy=remedy
            )

    def token(self, logits: Logits, seen: NDArray[np.bool_] | None, draw: np.random.Generator) -> NDArray[np.int64]:
        """One token for each row of logits [b, v]; ``seen`` marks what each sample already holds."""
        logits = penalised(logits, seen, self.repetition_penalty)
        if self.temperature == 0:
            return logits.argmax(-1)
        return drawn(self.shares(logits), draw)

    def shares(self, logits: Logits) -> NDArray[np.float64]:
        """The probabilities that are drawn from: those of tokens that are cut are zero."""
        cooled = logits.astype(np.float64) / max(self.temperature, SMALL)
        if self.top_k is not None and self.top_k < cooled.shape[-1]:
            smallest = np.partition(cooled, -self.top_k, -1)[..., [-self.top_k]]
            cooled = np.where(cooled < smallest, -np.inf, cooled)
        if self.top_p < 1.0:
            order = cooled.argsort(-1, kind="stable")
            rising = np.take_along_axis(cooled, order, -1)
            cut = softmax(rising).cumsum(-1) <= 1 - self.top_p
            cut[..., -1] = False  # the likeliest token always stays
            gone = np.zeros_like(cut)
            np.put_along_axis(gone, order, cut, -1)
            cooled = np.where(gone, -np.inf, cooled)
        return softmax(cooled)


def penalised(logits: Logits, seen: NDArray[np.bool_] | None, penalty: float) -> Logits:
    """Divide positive logits of seen tokens by the penalty, multiply negative ones with it."""
    if seen is None or penalty == 1.0:
        return logits
    factor = np.float32(max(penalty, SMALL))
    with np.errstate(over="ignore"):
        changed = np.where(logits < 0, logits * factor, logits / factor)
    found: Logits = np.where(seen, changed.clip(-LARGE, LARGE), logits)
    return found


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """exp(x) over its sum, along the last axis."""
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    found: NDArray[np.float64] = raised / raised.sum(-1, keepdims=True)
    return found


def drawn(shares: NDArray[np.float64], draw: np.random.Generator) -> NDArray[np.int64]:
    """One token of each row, as likely as its share of the row."""
    ends = shares.cumsum(-1)
    place = draw.random((len(shares), 1)) * ends[:, -1:]
    found: NDArray[np.int64] = np.minimum((ends <= place).sum(-1), shares.shape[-1] - 1)
    return found
