"""Attention in runs: queries in blocks along a sorted coordinate, each with the run of sources that it may see.

Blocks of about equal width are attended to together, so that crowded and empty stretches cost what they hold.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch

from continua.axes import Grid
from continua.axes.grid import absent
from continua.errors import MaskError
from continua.operators.attention.fused import fused_with
from continua.operators.attention.plan import Plan, Scores
from continua.typing import Tensor

ROWS = 128  # queries of one block: enough for the matrix products, few enough that a narrow run stays narrow
PAIRS = 1 << 21  # pairs at a time: bounds the bytes of their bias


@dataclass(frozen=True)
class Blocks:
    """Blocks of queries of like width, with the run of sources that each may see."""

    sample: Tensor  # whose they are [m]
    rows: Tensor  # queries [m, r]; n: none
    sources: Tensor  # [m, w]
    inside: Tensor  # whether each source is one of the run [m, w]


@dataclass(frozen=True)
class Runs:
    """All blocks, in groups of like width; ``samples`` is one where all samples share them."""

    groups: list[Blocks]
    samples: int


def stamps(grid: Grid, kernel: str) -> tuple[Tensor, Tensor]:
    """Times and presence [samples, n] (one sample where all share theirs), in float64."""
    if grid.nodes.shape[-1] != 1:
        got, remedy = f"{grid.nodes.shape[-1]}-dimensional points", "Use a 1-D time axis, or FewSources(…)."
        raise MaskError(f"{kernel} orders time", got=got, remedy=remedy)
    times, observed = torch.broadcast_tensors(grid.nodes[..., 0].detach().double(), grid.observed)
    return times.reshape(-1, len(grid)), observed.reshape(-1, len(grid))


def sorted_along(where: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """The coordinate in order and the numbers of its nodes; absent ones come last, at infinity."""
    found = torch.where(observed, where, torch.inf).sort(dim=-1, stable=True)
    return found.values, found.indices


def runs(
    queries: tuple[Tensor, Tensor], sources: tuple[Tensor, Tensor], before: float, after: float, most: Tensor
) -> Runs:
    """For blocks of sorted queries, the sources from ``before`` under the first to ``after`` over the last query.

    At most the first ``most`` [samples] sources of a run are taken, so that a circle
    is seen once.
    """
    (where, order), (found, numbers) = queries, sources
    samples, count = where.shape
    blocks = -(-count // ROWS)
    padded = torch.nn.functional.pad(where, (0, blocks * ROWS - count), value=torch.inf).view(samples, blocks, ROWS)
    rows = torch.nn.functional.pad(order, (0, blocks * ROWS - count), value=count).view(samples, blocks, ROWS)
    first = padded[..., 0].contiguous()
    last = torch.where(padded.isfinite(), padded, -torch.inf).amax(-1)
    start = torch.searchsorted(found.contiguous(), first - before, right=False)
    end = torch.searchsorted(found.contiguous(), last + after, right=True)
    wide = torch.minimum((end - start).clamp_min(1), most[:, None])
    wide, start, rows = wide.flatten(), start.flatten(), rows.flatten(0, 1)
    sample = torch.arange(samples, device=where.device).repeat_interleave(blocks)
    level = torch.ceil(torch.log2(wide.double()) * 2).long()  # widths within a factor √2 go together
    groups = []
    for each in level.unique().tolist():
        taken = (level == each).nonzero()[:, 0]
        span = int(wide[taken].max())
        place = start[taken, None] + torch.arange(span, device=where.device)
        inside = torch.arange(span, device=where.device) < wide[taken, None]
        inside = inside & (place < found.shape[-1])
        picked = numbers[sample[taken, None], place.clamp_max(found.shape[-1] - 1)]
        groups.append(Blocks(sample[taken], rows[taken], picked, inside))
    return Runs(groups, samples)


def attend_runs(q: Tensor, k: Tensor, v: Tensor, plan: Plan, scores: Scores) -> Tensor:
    """Softmax attention in every block, with the bias that ``plan`` gives its pairs."""
    b, h, n, e = q.shape
    flat = {"q": _rows(q), "k": _rows(k), "v": _rows(v)}
    targets, answers = [], []
    for group in _parts(scores.prepared, h, b):
        sample = group.sample
        rows = group.rows
        bias = bias_of(plan, scores, group, q)
        taken = flat["q"][sample[:, None] * n + rows.clamp_max(n - 1)].transpose(1, 2)
        keys, values = (flat[name][sample[:, None] * k.shape[2] + group.sources].transpose(1, 2) for name in "kv")
        mixed = fused_with(bias, taken, keys, values, plan.scale, h != k.shape[1])
        targets.append(torch.where(rows < n, sample[:, None] * n + rows, b * n).flatten())
        answers.append(_rows(mixed))
    # the last row takes what padded rows answer
    out = answers[0].new_zeros(b * n + 1, h, e).index_copy(0, torch.cat(targets), torch.cat(answers))
    return out[:-1].view(b, n, h, e).transpose(1, 2)


def bias_of(plan: Plan, scores: Scores, group: Blocks, like: Tensor) -> Tensor:
    """The bias of the pairs of some blocks: [blocks, 1 or h, r, w]."""
    sample = group.sample
    inside = group.inside
    sources = group.sources
    t = cast(Tensor, scores.t)

    def read(values: Tensor, picked: Tensor, tail: int) -> Tensor:
        """Entries of each block's own sample; one sample may serve all."""
        values = values.reshape(-1, *values.shape[values.dim() - 1 - tail :])
        place = sample if len(values) > 1 else torch.zeros_like(sample)
        return values[place[:, None], picked]

    nothing = absent(torch.float32)
    weights = read(cast(Tensor, scores.log_weights), sources, 0) if plan.weighted else inside.to(like.dtype) * 0
    left = read(cast(Tensor, scores.log_left), sources, 0) if plan.split_cell else None
    block = Scores(
        t=read(t, group.rows.clamp_max(t.shape[-2] - 1), 1),
        s=read(cast(Tensor, scores.s), sources, 1),
        position=scores.position,
        log_weights=torch.where(inside, weights, nothing),
        log_left=None if left is None else torch.where(inside, left, nothing),
    )
    return replace(plan, weighted=True).pair_bias(slice(0, group.rows.shape[-1]), like, block)


def check_runs(plan: Plan, scores: Scores, t: Grid) -> None:
    """Every observed query must see at least one observed source."""
    like = t.weights
    _, observed = stamps(t, "attention in runs")
    for group in _parts(scores.prepared, 1, len(observed)):
        seen = (bias_of(plan, scores, group, like) > absent(like.dtype) / 2).any(-1).any(1)
        rows = group.rows
        here = (rows < len(t)) & observed[group.sample[:, None], rows.clamp_max(len(t) - 1)]
        if bool((here & ~seen).any()):
            blind = (here & ~seen).nonzero()[0].tolist()
            raise MaskError(
                "an observed query has no key left to attend to",
                got=f"query {int(rows[blind[0], blind[1]])} of sample {int(group.sample[blind[0]])}",
                remedy="Allow it at least one key, or mark the query itself as absent with observed=False.",
            )


def _rows(x: Tensor) -> Tensor:
    """[b, h, n, e] → [b·n, h, e]."""
    return x.transpose(1, 2).flatten(0, 1)


def _parts(made: Runs, heads: int, samples: int) -> list[Blocks]:
    """The groups in pieces of bounded size; blocks that all samples share are repeated for each."""
    pieces = []
    for group in made.groups:
        if made.samples == 1 and samples > 1:
            group = _repeated(group, samples)
        step = max(1, PAIRS // (group.rows.shape[-1] * group.sources.shape[-1] * heads))
        for i in range(0, len(group.sample), step):
            some = slice(i, i + step)
            pieces.append(Blocks(group.sample[some], group.rows[some], group.sources[some], group.inside[some]))
    return pieces


def _repeated(group: Blocks, samples: int) -> Blocks:
    """The blocks once for each sample."""
    owner = torch.arange(samples, device=group.sample.device).repeat_interleave(len(group.sample))
    rows, sources, inside = (x.repeat(samples, 1) for x in (group.rows, group.sources, group.inside))
    return Blocks(owner, rows, sources, inside)
