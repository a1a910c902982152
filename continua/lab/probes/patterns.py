"""Pattern detectors: how much a head copies, looks one step back, stays near, or looks everywhere, in real time."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from continua.lab.probes.attention import AttentionMap, mean_entropy
from continua.operators import Window
from continua.typing import Float, Tensor

PATTERNS = ("identity", "previous", "local", "global")  # the more special first
CLEAR = 0.5  # below this score no pattern is called dominant
NEARLY = 0.05  # local contains identity and previous: it must beat them by more than this
MIXED = "mixed"


@dataclass(frozen=True)
class Head:
    """One head at one depth: its mean entropy, the score of each pattern, and the dominant one."""

    name: str
    z: float
    head: int
    entropy: float
    scores: dict[str, float]
    pattern: str


def pattern_scores(one: AttentionMap, radius: float | None = None) -> dict[str, Float[Tensor, "h"]]:
    """Scores in [0, 1] for each head: 0 is what uniform attention over the allowed sources gets, 1 the pure pattern.

    For a set of sources P(t) with mass m = Σ_{s∈P} A and u = w(P)/w(allowed), the score of a row is (m − u)/(1 − u).
    ``identity``: the sources at the time of the query. ``previous``: the latest present stamp before it. ``local``:
    |t − s| ≤ ``radius`` (default: the median distance to the nearest token, one on counted tokens). ``global``:
    1 − TV(A, U)/max TV, the closeness to the uniform measure U = w/w(allowed). Rows without a choice take no part.
    """
    t = one.t.nodes
    s = one.s.nodes
    near = Window(_spacing(one) if radius is None else radius).allowed(t, s)
    return {
        "identity": _excess(one, (t[..., :, None, :] == s[..., None, :, :]).all(-1)),
        "previous": _excess(one, _previous(one)),
        "local": _excess(one, near),
        "global": _global(one),
    }


def head_table(maps: Sequence[AttentionMap], radius: float | None = None) -> list[Head]:
    """One line for each head of each map, in the order of depth."""
    table = []
    for one in maps:
        scores = pattern_scores(one, radius)
        means = mean_entropy(one).tolist()
        for head, mean in enumerate(means):
            own = {pattern: float(scores[pattern][head]) for pattern in PATTERNS}
            table.append(Head(one.name, one.z, head, mean, own, _dominant(own)))
    return table


def _dominant(scores: dict[str, float]) -> str:
    """The most special of the patterns that score about best."""
    best = max(scores.values())
    return next(name for name in PATTERNS if scores[name] >= best - NEARLY) if best >= CLEAR else MIXED


def _excess(one: AttentionMap, chosen: Tensor) -> Tensor:
    """The mean of (m − u)/(1 − u) over rows that have both a chosen and another source."""
    chosen = chosen[..., None, :, :]
    base = one.base.to(one.weights)
    uniform = (base * chosen).sum(-1) / base.sum(-1).clamp_min(torch.finfo(base.dtype).tiny)
    there = ((base > 0) & chosen).any(-1) & ((base > 0) & ~chosen).any(-1)
    got = ((one.weights * chosen).sum(-1) - uniform) / (1 - uniform).clamp_min(torch.finfo(base.dtype).eps)
    return one.mean(got, one.rows[:, None] * there).clamp(0, 1)


def _global(one: AttentionMap) -> Tensor:
    base = one.base.to(one.weights)
    uniform = base / base.sum(-1, keepdim=True).clamp_min(torch.finfo(base.dtype).tiny)
    distance = (one.weights - uniform).abs().sum(-1) / 2
    most = 1 - torch.where(base > 0, uniform, torch.inf).amin(-1)  # all mass on the lightest source
    choice = ((base > 0).sum(-1) > 1) & (most > 0)
    return one.mean(1 - distance / torch.where(choice, most, 1.0), one.rows[:, None] * choice).clamp(0, 1)


def _previous(one: AttentionMap) -> Tensor:
    """The sources at the latest present stamp before each query; nothing on domains without an order."""
    t = one.t.nodes
    s = one.s.nodes
    if t.shape[-1] != 1:
        return torch.zeros(len(one.t), len(one.s), dtype=torch.bool, device=t.device)
    stamps = torch.where((s.mT < t) & (one.s.weights > 0)[..., None, :], s.mT, -torch.inf)
    latest = stamps.amax(-1, keepdim=True)
    return torch.isfinite(latest) & (stamps == latest)


def _spacing(one: AttentionMap) -> float:
    """The median distance from a present token to the nearest other stamp."""
    gaps = torch.cdist(one.s.nodes, one.s.nodes, compute_mode="donot_use_mm_for_euclid_dist")
    here = one.s.observed
    usable = (here[..., :, None] & here[..., None, :]) & (gaps > 0)
    nearest = torch.where(usable, gaps, torch.inf).amin(-1)
    nearest = nearest[torch.isfinite(nearest)]
    return float(nearest.median()) if nearest.numel() else 0.0
