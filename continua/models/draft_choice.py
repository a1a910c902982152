"""Which size of a model should write ahead, and how far: measured on this machine, for this prompt."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from continua.axes import Discretisation, at
from continua.errors import ContinuaError
from continua.flow import Fixed
from continua.models.ragged import RaggedReader
from continua.models.sampling import Distribution
from continua.operators.cache import RaggedCache
from continua.timing import interleaved
from continua.tree import tensors
from continua.typing import Tensor

LOOKED_AT = 48  # new tokens on which α is measured
AHEAD = (1, 2, 3, 4, 6, 8)
LEAST = 1.05  # a gain below this is not worth a second cache
ROUNDS = 5
SHARES = (  # of d, h and z
    (0.5, 0.5, 0.5),
    (0.5, 1.0, 1.0),
    (1.0, 1.0, 0.5),
    (0.5, 1.0, 0.5),
    (1.0, 0.5, 0.5),
    (0.5, 0.5, 1.0),
    (0.5, 0.5, 0.25),
    (0.25, 0.5, 0.5),
    (0.25, 0.25, 0.25),
    (1.0, 1.0, 0.25),
)


@dataclass(frozen=True)
class DraftChoice:
    """A size that writes ``ahead`` tokens, how many of them are expected to be kept, and the gain in speed."""

    at: Discretisation
    ahead: int
    alpha: float
    gain: float


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one token of the model, of k + 1 at once for each k of ``AHEAD``, and of one of a draft."""

    plain: float
    verify: tuple[float, ...]
    draft: float


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """α = Σ min(p, q): the probability that a token drawn from q is kept, for each pair of distributions."""
    return torch.minimum(p, q).sum(-1)


def expected_gain(alpha: float, ahead: int, plain: float, verify: float, draft: float) -> float:
    """Tokens of a round, (1 − α^(k+1)) / (1 − α), in times of one plain token over the time of the round.

    >>> round(expected_gain(0.8, 4, plain=1.0, verify=1.2, draft=0.15), 2)
    1.87
    """
    alpha = min(alpha, 1 - 1e-9)
    tokens = (1 - alpha ** (ahead + 1)) / (1 - alpha)
    return tokens * plain / (ahead * draft + verify)


def best_ahead(alpha: float, times: StepTimes) -> tuple[int, float]:
    """How far to write ahead, and the gain of that."""
    gains = [
        (expected_gain(alpha, k, times.plain, verify, times.draft), k)
        for k, verify in zip(AHEAD, times.verify, strict=True)
    ]
    gain, ahead = max(gains)
    return ahead, gain


def smaller_sizes(model: Any, where: Discretisation) -> list[Discretisation]:
    """Parts of d, h and z that this model can be looked at with."""
    steps = where.z.steps if isinstance(where.z, Fixed) else None
    full = (where.d.n, where.h.n, steps)  # type: ignore[union-attr]
    found: dict[str, Discretisation] = {}
    for shares in SHARES:
        wish = {}
        for letter, n, share in zip("dhz", full, shares, strict=True):
            if n is not None and share < 1 and n > 1:
                wish[letter] = max(1, round(n * share))
        try:
            chosen = model.settle(_within(where, wish))
            model.structure(chosen)
        except ContinuaError:
            continue
        if wish:
            found.setdefault(str(chosen), chosen)
    return list(found.values())


def _within(where: Discretisation, wish: dict[str, int]) -> Discretisation:
    """Smaller sizes of some letters; m follows d where it is not named."""
    kept = {letter: getattr(where, letter) for letter in ("h", "e", "z") if letter not in wish}
    if "d" not in wish:
        kept |= {"d": where.d, "m": where.m}
    return at(**kept, **wish)


@torch.no_grad()
def choose_draft(
    model: Any,
    where: Discretisation,
    ids: Tensor,
    sampling: Distribution,
    text: Tensor,
    sizes: Sequence[Discretisation] | None = None,
    compile: bool = False,
) -> DraftChoice | None:
    """The draft with the largest predicted gain; None where none is predicted.

    ``text`` [b, n + new] continues the prompt ``ids`` [b, n]: α is measured behind its new tokens. Times are those of
    passes on this machine; where they are to be compiled, in proportion to the weights that a pass reads.
    """
    wanted = _shares(model, where, text, ids.shape[1], sampling)
    times = _weight_times if compile else _measured_times
    best: DraftChoice | None = None
    for size in smaller_sizes(model, where) if sizes is None else sizes:
        alpha = float(overlap(wanted, _shares(model, size, text, ids.shape[1], sampling)).mean())
        ahead, gain = best_ahead(alpha, times(model, where, size, ids))
        if gain > LEAST and (best is None or gain > best.gain):
            best = DraftChoice(size, ahead, alpha, gain)
    return best


def _shares(model: Any, where: Discretisation, text: Tensor, behind: int, sampling: Distribution) -> Tensor:
    """The distributions behind the prompt and each new token but the last: [b · new, v]."""
    logits: Tensor = model(text, where)
    return sampling.shares(logits[:, behind - 1 : -1].flatten(0, 1), None)


def _weight_times(model: Any, where: Discretisation, size: Discretisation, ids: Tensor) -> StepTimes:
    """A compiled pass of few tokens takes the time of reading its weights; a few tokens more take a little more."""
    draft = _weights(model, size) / _weights(model, where)
    return StepTimes(1.0, tuple(1.0 + 0.06 * k for k in AHEAD), draft + 0.03)


def _weights(model: Any, where: Discretisation) -> int:
    return sum({x.data_ptr(): x.numel() for x in tensors(model.read(where).parts)}.values())


def _measured_times(model: Any, where: Discretisation, size: Discretisation, ids: Tensor) -> StepTimes:
    """Medians of interleaved passes behind the prompt."""
    own = _reader(model, where, ids)
    draft = _reader(model, size, ids)
    one = ids[:, -1:]
    cases = [(own, one), (draft, one), *((own, one.expand(-1, k + 1)) for k in AHEAD)]
    seen = interleaved([lambda r=r, x=x: r.read(x) for r, x in cases], ROUNDS, ids.device)  # type: ignore[misc]
    plain, drafted, *verify = (statistics.median(times) for times in seen)
    return StepTimes(plain, tuple(verify), drafted)


def _reader(model: Any, where: Discretisation, ids: Tensor) -> RaggedReader:
    n = ids.shape[1]
    cache = RaggedCache(torch.zeros(len(ids), dtype=torch.long, device=ids.device), n + max(AHEAD) + 1)
    reader = RaggedReader(model, where, cache)
    reader.begin(ids, None)
    cache.place.fill_(n)
    return reader
