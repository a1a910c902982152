"""One layer, many times: a model whose layers share their weights, followed beyond its depth and between its layers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from continua.axes import Discretisation
from continua.errors import ConfigError
from continua.lab.probes.dynamics import Recording, Sinks, angles, centred, effective_rank, linked, look, pairs_of
from continua.lab.progress import ReportCount
from continua.models import Batch, View
from continua.typing import Tensor


@dataclass(frozen=True)
class Beat:
    """The tokens after ``step`` layers. Means over the counted tokens, or over texts.

    ``jump``: the angle to the state before, in radians; ``again``: that to the state two before, which is small where
    the layer flips between two states. ``distance``: ‖x − x_L‖/‖x_L‖ from the end of the model's own depth L.
    ``agreement``: the share of tokens whose likeliest answer is that of the model itself (None without a vocabulary).
    """

    step: int
    jump: float | None
    again: float | None
    distance: float
    cosine: float
    centred_cosine: float
    rank: float
    clusters: float
    agreement: float | None


@dataclass(frozen=True)
class Iteration:
    """The layer iterated from the embedding on. ``depth`` is the model's own number of layers."""

    depth: int
    angle: float
    beats: tuple[Beat, ...]

    @property
    def rate(self) -> float:
        """The mean factor by which jumps shrink a layer, beyond the model's depth: below one, tokens come to rest."""
        jumps = [beat.jump for beat in self.beats[self.depth :] if beat.jump is not None]
        if len(jumps) < 2 or not jumps[0] or not jumps[-1]:
            return 0.0 if jumps and not jumps[-1] else 1.0
        return float((jumps[-1] / jumps[0]) ** (1.0 / (len(jumps) - 1)))

    def rows(self) -> list[dict[str, Any]]:
        """One line for each step."""
        return [asdict(beat) for beat in self.beats]

    def plain(self) -> dict[str, Any]:
        """Everything, as JSON writes it."""
        return {**asdict(self), "rate": self.rate}


@dataclass(frozen=True)
class Substeps:
    """The layer in s = ``parts`` parts: x ← x + (Φ(x) − x)/s, s times a layer.

    s = 1 is the model, s → ∞ the flow x' = Φ(x) − x. ``distances``: ‖x_s(l) − x(l)‖/‖x(l)‖ at the model's layers
    l = 0…L. ``change``: the same between the ends of this s and of the one before it in the table (None for the
    first), which shrinks like 1/s where a flow is reached.
    """

    parts: int
    distances: tuple[float, ...]
    change: float | None
    cosine: float
    clusters: float
    agreement: float | None


@torch.no_grad()
def iterate(
    model: nn.Module | View | Recording,
    batch: Batch | Tensor | None = None,
    steps: int = 48,
    *,
    at: Discretisation | None = None,
    angle: float = 0.5,
    sinks: Sinks | None = Sinks(),  # noqa: B008  (frozen)
    watch: ReportCount = lambda done, total: None,
) -> Iteration:
    """Apply the one layer of a model ``steps`` times: do its tokens come to rest, collapse, or go on?

    >>> from continua.models import zoo
    >>> model = zoo.albert(9, table_width=4, d=8, heads=2, depth=3, context=8)
    >>> found = iterate(model, torch.arange(8)[None], steps=6, sinks=None)
    >>> found.depth, len(found.beats), found.beats[3].distance
    (3, 7, 0.0)
    """
    seen = _shared(model, batch, at, sinks)
    own = len(seen.stack.steps)
    if steps < 1:
        raise ConfigError("a layer is iterated at least once", got=steps, remedy=f"Give steps={4 * own}.")
    path = [seen.states[0]]
    for done in range(steps):
        path.append(_layer(seen, path[-1]))
        watch(done + 1, steps)
    end = seen.states[own]
    said = _said(seen, seen.states[own])
    beats = []
    for k, x in enumerate(path):
        jump, again = (_jump(seen, path[k - back], x) if k >= back else None for back in (1, 2))
        numbers = _numbers(seen, x, angle)
        beats.append(Beat(k, jump, again, _distance(seen, x, end), *numbers, _agreement(seen, x, said)))
    return Iteration(own, angle, tuple(beats))


@torch.no_grad()
def substeps(
    model: nn.Module | View | Recording,
    batch: Batch | Tensor | None = None,
    parts: Sequence[int] = (1, 2, 4, 8, 16),
    *,
    at: Discretisation | None = None,
    angle: float = 0.5,
    sinks: Sinks | None = Sinks(),  # noqa: B008  (frozen)
    watch: ReportCount = lambda done, total: None,
) -> list[Substeps]:
    """Walk the depth of a model in parts of its layer, and say how far that leads from its own states."""
    seen = _shared(model, batch, at, sinks)
    if not parts or min(parts) < 1:
        raise ConfigError("a layer has a whole number of parts", got=list(parts), remedy="Give parts=(1, 2, 4, 8).")
    said = _said(seen, seen.states[-1])
    found = []
    before: Tensor | None = None
    for done, s in enumerate(parts):
        x = seen.states[0]
        distances = [0.0]
        for own in seen.states[1:]:
            for _ in range(s):
                moved = _layer(seen, x)
                x = moved if s == 1 else x + (moved - x) / s
            distances.append(_distance(seen, x, own))
        change = None if before is None else _distance(seen, x, before)
        cosine, _, _, clusters = _numbers(seen, x, angle)
        found.append(Substeps(s, tuple(distances), change, cosine, clusters, _agreement(seen, x, said)))
        before = x
        watch(done + 1, len(parts))
    return found


def _shared(model: Any, batch: Any, at: Discretisation | None, sinks: Sinks | None) -> Recording:
    if isinstance(model, Recording):
        seen = model
    elif batch is None:
        raise ConfigError("a layer is iterated on a batch", got="none", remedy="Pass iterate(model, batch).")
    else:
        seen = look(model, batch, at, sinks)
    if not seen.stack.is_shared:
        remedy = "Use a model of one layer such as zoo.albert, or look at each layer with ladder(model, batch)."
        got = f"{len(seen.stack.steps)} layers of their own"
        raise ConfigError("only a layer that all depths share can be iterated", got=got, remedy=remedy)
    return seen


def _layer(seen: Recording, x: Tensor) -> Tensor:
    """Φ(x), by the model's own operators in its own precision."""
    z, dz = seen.stack.steps[0]
    root = seen.stack.root
    like = next(seen.stack.model.parameters())
    moved = seen.stack.advance(z, dz, x.to(like) / root.to(like))
    return (moved * root.to(like)).double().cpu()


def _distance(seen: Recording, x: Tensor, y: Tensor) -> float:
    return float((x - y)[seen.counted].norm() / y[seen.counted].norm())


def _jump(seen: Recording, x: Tensor, y: Tensor) -> float:
    return float(angles(x[seen.counted], y[seen.counted]).mean())


def _numbers(seen: Recording, x: Tensor, angle: float) -> tuple[float, float, float, float]:
    """Mean cosine, centred mean cosine, effective rank and clusters."""
    texts = seen.texts(x)
    raw, middle = ([normalize(one, dim=-1) for one in each] for each in (texts, centred(texts)))
    cosine, other = (float(torch.cat([pairs_of(u) for u in each]).mean()) for each in (raw, middle))
    ranks = [effective_rank(u) for u in raw]
    groups = [linked(u, angle) for u in raw]
    return cosine, other, sum(ranks) / len(ranks), sum(groups) / len(groups)


def _said(seen: Recording, x: Tensor) -> Tensor | None:
    """The likeliest answer for each counted token, of a model with a vocabulary."""
    stack = seen.stack
    like = next(stack.model.parameters())
    answer = stack.answer(x.to(like) / stack.root.to(like))
    return None if answer is None or answer.shape[:2] != x.shape[:2] else answer.argmax(-1)[seen.counted]


def _agreement(seen: Recording, x: Tensor, said: Tensor | None) -> float | None:
    now = _said(seen, x)
    return None if said is None or now is None else float((now == said).double().mean())
