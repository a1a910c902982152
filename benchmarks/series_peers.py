"""What irregular series are usually given to, written small: a 1-D CNN, GRU-Δt, mTAN and a Neural CDE.

Each reads the same tokens as our model: ``Batch(values [b, t, c], times [b, t], observed [b, t])``, where c holds
standardised values, and with several channels also flags and ages.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from continua.models import Batch


def onto_grid(batch: Any, grid: Tensor) -> Tensor:
    """Straight lines between observed points, constant beyond them: values [b, n, c] at the times of a grid."""
    times = batch.times.expand(batch.values.shape[:2])
    there = torch.ones_like(times, dtype=torch.bool) if batch.observed is None else batch.observed
    last = torch.where(there, times, -torch.inf).amax(-1, keepdim=True)
    stamps = torch.where(there, times, last + 1.0).contiguous()  # present points come first, padding behind
    right = torch.searchsorted(stamps, grid.expand(len(stamps), -1).contiguous(), right=True)
    most = there.sum(-1, keepdim=True) - 1
    high, low = torch.minimum(right, most), torch.minimum((right - 1).clamp_min(0), most)
    t0, t1 = stamps.gather(1, low), stamps.gather(1, high)
    share = torch.where(t1 > t0, (grid - t0) / (t1 - t0).clamp_min(1e-9), 0.0).clamp(0, 1)[..., None]
    wide = (-1, -1, batch.values.shape[-1])
    v0, v1 = batch.values.gather(1, low[..., None].expand(wide)), batch.values.gather(1, high[..., None].expand(wide))
    share = share.to(v0)  # stamps are double
    return v0 * (1 - share) + v1 * share


def distances(batch: Any, grid: Tensor) -> Tensor:
    """log(1 + distance) from the times of a grid to the nearest observed point [b, n, 1]."""
    gaps = (grid[:, None] - batch.times[:, None]).abs()
    return torch.where(batch.observed[:, None], gaps, torch.inf).amin(-1, keepdim=True).log1p().to(batch.values)


class CNN(nn.Module):
    """Three strided convolutions and a linear layer, as published with MNIST-1D, wider; other samplings are
    interpolated to its own grid first, and how far the nearest point is comes as a second channel."""

    def __init__(self, classes: int, grid: Tensor, width: int = 64) -> None:
        super().__init__()
        self.register_buffer("grid", grid)
        self.one = nn.Conv1d(2, width, 5, stride=2, padding=1)
        self.two = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.three = nn.Conv1d(width, width, 3, stride=2, padding=1)
        with torch.no_grad():
            flat = self._features(torch.zeros(1, 2, len(grid))).shape[1]
        self.head = nn.Linear(flat, classes)

    def _features(self, x: Tensor) -> Tensor:
        return relu(self.three(relu(self.two(relu(self.one(x)))))).flatten(1)

    def forward(self, batch: Batch) -> Tensor:
        told = torch.cat([onto_grid(batch, self.grid), distances(batch, self.grid)], -1)
        return self.head(self._features(told.mT))


class GRU(nn.Module):
    """GRU-Δt: a gated recurrent net that is told the time since the point before; the state behind the last point."""

    def __init__(self, features: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.cell = nn.GRU(features + 1, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, batch: Any) -> Tensor:
        before = torch.cat([batch.times[:, :1], batch.times[:, :-1]], 1)
        states, _ = self.cell(torch.cat([batch.values, (batch.times - before)[..., None]], -1))
        last = batch.observed.sum(-1) - 1
        return self.head(states[torch.arange(len(states)), last])


class MTAN(nn.Module):
    """Multi-time attention (Shukla and Marlin 2021): learned embeddings of time attend from reference times to the
    observations, channel by channel; a GRU reads what they found."""

    def __init__(self, features: int, classes: int, span: float, width: int = 64) -> None:
        super().__init__()
        heads, dim, references = 4, 32, 24
        self.heads, self.dim = heads, dim
        self.wave, self.line = nn.Linear(1, heads * (dim - 1)), nn.Linear(1, heads)
        self.query, self.key = nn.Linear(heads * dim, heads * dim), nn.Linear(heads * dim, heads * dim)
        self.mix = nn.Linear(heads * features, width)
        self.register_buffer("places", torch.linspace(0.0, span, references))
        self.cell = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, classes))

    def _told(self, times: Tensor) -> Tensor:
        t = times[..., None] / self.places[-1]
        return torch.cat([self.line(t), self.wave(t).sin()], -1)

    def forward(self, batch: Any) -> Tensor:
        q, k = self.query(self._told(self.places)), self.key(self._told(batch.times))
        q = q.view(-1, self.heads, self.dim).transpose(0, 1)
        k = k.view(*k.shape[:2], self.heads, self.dim).transpose(1, 2)
        scores = q @ k.mT / math.sqrt(self.dim)  # [b, h, places, t]
        weights = scores.masked_fill(~batch.observed[:, None, None], -torch.inf).softmax(-1)
        found = (weights @ batch.values[:, None]).transpose(1, 2).flatten(2)
        states, _ = self.cell(self.mix(found))
        return self.head(states.mean(1))


class CDE(nn.Module):
    """A Neural CDE (Kidger et al. 2020): dh = f(h) dX along straight lines between observations, time among the
    channels of X; one Heun step for each."""

    def __init__(self, features: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.start = nn.Linear(features + 1, width)
        self.field = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width * (features + 1)), nn.Tanh()
        )
        self.head = nn.Linear(width, classes)

    def forward(self, batch: Any) -> Tensor:
        path = torch.cat([batch.values, batch.times[..., None] / 10.0], -1)
        steps = path.diff(dim=1) * batch.observed[:, 1:, None]  # padding stands still
        h = self.start(path[:, 0])
        for dx in steps.unbind(1):
            first = self._along(h, dx)
            h = h + 0.5 * (first + self._along(h + first, dx))
        return self.head(h)

    def _along(self, h: Tensor, dx: Tensor) -> Tensor:
        return (self.field(h).unflatten(-1, (h.shape[-1], -1)) @ dx[..., None])[..., 0]


def train(
    model: nn.Module, task: Any, lr: float, seconds: float, seed: int, tick: Callable[[str], None] = lambda said: None
) -> nn.Module:
    """AdamW on the batches of a task for so many CPU seconds, a cosine in what is left of them."""
    optimiser = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.05)
    start, step = time.process_time(), 0
    while (share := (time.process_time() - start) / seconds) < 1:
        factor = share / 0.05 if share < 0.05 else 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (share - 0.05) / 0.95))
        for group in optimiser.param_groups:
            group["lr"] = lr * factor
        example = task.example(seed, step)
        loss = task.loss(model(example.batch), example) / example.count
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step % 100 == 0:
            tick(f"step {step}, {100 * share:.0f} % of {seconds:.0f} CPU s, loss {loss.item():.3f}")
    return model.eval()
