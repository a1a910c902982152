"""Five series of Beijing, 24 hours ahead, from histories with gaps: beside gradient boosting and a PatchTST.

    python benchmarks/series_weather.py             # 3 seeds, about 9 minutes of CPU time, one thread
    python benchmarks/series_weather.py --quick     # a smoke run

PM2.5, dew point, temperature, pressure and wind are asked for, 1 to 24 hours after a week of history. Histories are
whole (but for the hours that were never measured), silent in bursts (all five series together, 12 hours at a mean, 40 %
of the time), or lack high values (PM2.5 above a threshold is mostly missing: not at random). Every training window has
one of these three kinds, the same for all models; what is asked for is never hidden. All models minimise absolute
errors, have the same CPU seconds of training, and choose a learning rate (PatchTST also whether it mixes channels) on
2013, trained on the years before it with a quarter of the time; then they train on 2010 to 2013, and 2014 is
measured.
"""

import argparse
import math
import os
import time
from dataclasses import dataclass
from statistics import mean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from common import Row, environment, write
from series_data import beijing
from series_runs import CHOOSING, RATES, SEEDS, Runs, line, shown, steps_for, tried
from torch import Tensor, nn

from continua.data.augmentation import Change
from continua.estimators import ContinuaForecaster, SeriesSettings

WEEK = 168
AHEAD = np.arange(1, 25)
LAGS = np.concatenate([np.arange(-WEEK + 1, -48, 6), np.arange(-48, 1)])  # every sixth hour beyond two days
CYCLES = (24.0, 168.0, 8766.0)
SECONDS = 40.0
KINDS = {"whole": "whole histories", "bursts": "silent in bursts", "high": "high PM2.5 missing"}
CHANNELS = 5
ROWS = 50_000  # of a regression tree
BURST, SPEECH = 12.0, 18.0  # mean hours of silence, and between silences
STEEP = 4.0  # of the chance that a value above the threshold is missing, per unit of log PM2.5


@dataclass(frozen=True)
class Windows:
    """Histories [n, 168, 5] with gaps, their last hours [n], and what came after [n, 24, 5]."""

    x: np.ndarray
    ends: np.ndarray
    y: np.ndarray

    @property
    def seen(self) -> np.ndarray:
        """The hours that our model and the trees read [n, lags, 5]."""
        return self.x[:, WEEK - 1 + LAGS]


def windows(values: np.ndarray, first: int, last: int, stride: int) -> Windows:
    """All windows of some hours, without gaps but their own."""
    ends = np.arange(max(first, WEEK), last - 24, stride)
    x = values[ends[:, None] + np.arange(-WEEK + 1, 1)]
    y = values[ends[:, None] + AHEAD]
    good = np.isfinite(y[..., 0]).any(1) & np.isfinite(x[:, WEEK - 1 + LAGS, 0]).any(1)
    return Windows(x[good], ends[good], y[good])


def silent(count: int, draw: np.random.Generator) -> np.ndarray:
    """Flags [n, 168] of hours in bursts: a chain of two states."""
    state = draw.random(count) < BURST / (BURST + SPEECH)
    found = []
    for _ in range(WEEK):
        chance = np.where(state, 1 / BURST, 1 / SPEECH)
        state = state ^ (draw.random(count) < chance)
        found.append(state)
    return np.stack(found, 1)


def gapped(whole: Windows, kind: str, threshold: float, seed: int) -> Windows:
    """Windows with the gaps of one kind; the mixture of training has all three."""
    draw = np.random.default_rng(seed)
    x = whole.x.copy()
    bursts = silent(len(x), draw)
    chance = 1 / (1 + np.exp(-STEEP * (np.nan_to_num(x[..., 0]) - threshold)))
    high = draw.random(chance.shape) < chance
    which = draw.integers(0, 3, len(x)) if kind == "mixture" else np.full(len(x), list(KINDS).index(kind))
    x[bursts & (which == 1)[:, None]] = np.nan
    x[..., 0][high & (which == 2)[:, None]] = np.nan
    kept = np.isfinite(x[:, WEEK - 1 + LAGS]).any((1, 2))
    return Windows(x[kept], whole.ends[kept], whole.y[kept])


def errors(found: np.ndarray, data: Windows, spread: np.ndarray) -> dict[str, float]:
    """Mean absolute error of PM2.5 in µg/m³, and of all series in standard deviations."""
    pm = np.abs(np.expm1(found[..., 0]) - np.expm1(data.y[..., 0]))
    scaled = np.nanmean(np.abs(found - data.y), (0, 1)) / spread
    return {"pm": float(np.nanmean(pm)), "scaled": float(scaled.mean())}


def filled(x: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """The last value before, or the usual one where there is none."""
    places = np.where(np.isfinite(x), np.arange(x.shape[1])[:, None], -1)
    last = np.maximum.accumulate(places, 1)
    found = np.take_along_axis(x, np.maximum(last, 0), 1)
    return np.where(last >= 0, found, usual)


def naive(data: Windows, usual: np.ndarray) -> np.ndarray:
    """The same hour of the day before, the newest value before it where that is missing."""
    return filled(data.x, usual)[:, WEEK - 24 + AHEAD - 1]


# --- the models ------------------------------------------------------------------------------------------------------


def by_continua(train: Windows, rate: float, seed: int, seconds: float, share: int) -> Any:
    """A forecaster of all five series."""
    settings = SeriesSettings(batch=64, lr=rate, unit=1.0, periods=CYCLES, change=Change(thin=0.2))

    def make(steps: int) -> ContinuaForecaster:
        return ContinuaForecaster(steps=steps, settings=settings, verbose=0, random_state=seed)

    def fit(model: ContinuaForecaster, many: slice = slice(None)) -> ContinuaForecaster:
        hours = train.ends[many, None]
        return model.fit(train.seen[many], train.y[many], times=hours + LAGS, y_times=hours + AHEAD)

    steps = steps_for(make, lambda m: fit(m, slice(0, 500)), seconds)
    model = fit(make(steps // share))
    return lambda data: model.predict(data.seen, times=data.ends[:, None] + LAGS, at=data.ends[:, None] + AHEAD)


def tabled(data: Windows, channel: int, which: np.ndarray, ahead: np.ndarray) -> np.ndarray:
    """Rows of lags of one series, the others now, 6 and 24 hours before, the same hour a day before, and the clock."""
    seen = data.seen[which]
    own = seen[..., channel]
    others = seen[:, [-1, -7, -25]].reshape(len(own), -1)
    same = data.x[which, WEEK - 25 + ahead, channel]
    clock = data.ends[which] + ahead
    when = np.stack([clock % 24, clock % WEEK, clock % 8766, ahead, same], 1)
    return np.concatenate([own, others, when], 1).astype(np.float32)


def by_boosting(train: Windows, rate: float, seed: int, seconds: float, share: int) -> Any:
    """Trees for each series, as many rounds as fit into its part of the time by those of the first."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    options: dict[str, Any] = {"loss": "absolute_error", "learning_rate": 20 * rate, "max_leaf_nodes": 63}

    def fitted(channel: int, rounds: int) -> Any:
        y = train.y[..., channel]
        known = np.random.default_rng(seed).permutation(np.argwhere(np.isfinite(y)))[:ROWS]
        rows = tabled(train, channel, known[:, 0], AHEAD[known[:, 1]])
        wanted = y[known[:, 0], known[:, 1]]
        return HistGradientBoostingRegressor(max_iter=rounds, random_state=seed, **options).fit(rows, wanted)

    marks = []
    for rounds in (5, 25):
        start = time.process_time()
        fitted(0, rounds)
        marks.append(time.process_time() - start)
    each = max((marks[1] - marks[0]) / 20, 1e-3)
    rounds = max(5, int((seconds / share / CHANNELS - marks[0]) / each))
    models = [fitted(channel, rounds) for channel in range(CHANNELS)]

    def answer(data: Windows) -> np.ndarray:
        which, ahead = (part.ravel() for part in np.meshgrid(np.arange(len(data.ends)), AHEAD, indexing="ij"))
        found = [model.predict(tabled(data, channel, which, ahead)) for channel, model in enumerate(models)]
        return np.stack(found, -1).reshape(-1, len(AHEAD), CHANNELS)

    return answer


class PatchTST(nn.Module):
    """Patches of 16 hours, every 8, are tokens of an encoder; a linear map of all of them answers (Nie et al. 2023).

    Each window is normalised by its own mean and spread. Channels are read one by one by the same weights, or, mixed,
    in one patch. Flags of what was observed stand beside values; the clock is told to every token.
    """

    def __init__(self, mixed: bool, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.mixed = mixed
        together = CHANNELS if mixed else 1
        patches = WEEK // 8  # the last hour is repeated at the end, as it was published
        self.embed = nn.Linear(2 * 16 * together, width)
        self.place = nn.Parameter(0.02 * torch.randn(patches, width))
        self.clock = nn.Linear(2 * len(CYCLES), width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(patches * width, len(AHEAD) * together)

    def forward(self, x: Tensor, seen: Tensor, clock: Tensor) -> Tensor:
        """Filled histories, flags [b, 168, 5] and the clock [b, 6] to answers [b, 24, 5]."""
        count = seen.sum(1, keepdim=True).clamp_min(1.0)
        centre = (x * seen).sum(1, keepdim=True) / count
        spread = (((x - centre) * seen).square().sum(1, keepdim=True) / count + 1e-2).sqrt()
        both = torch.stack([(x - centre) / spread, seen], -1)  # [b, t, c, 2]
        both = torch.cat([both, both[:, -1:].expand(-1, 8, -1, -1)], 1)
        cut = both.unfold(1, 16, 8)  # [b, p, c, 2, 16]
        cut = cut.flatten(2) if self.mixed else cut.transpose(1, 2).flatten(3).flatten(0, 1)
        told = self.clock(clock)
        told = told if self.mixed else told.repeat_interleave(CHANNELS, 0)
        found = self.head(self.encoder(self.embed(cut) + self.place + told[:, None]).flatten(1))
        found = found.view(len(x), *((len(AHEAD), CHANNELS) if self.mixed else (CHANNELS, len(AHEAD))))
        return centre + spread * (found if self.mixed else found.mT)


@dataclass(frozen=True)
class Scaled:
    """Tensors of windows, in standard deviations of the training years."""

    centre: np.ndarray
    spread: np.ndarray

    def inputs(self, data: Windows) -> tuple[Tensor, Tensor, Tensor]:
        """Filled histories, flags and the clock."""
        x = (filled(data.x, self.centre) - self.centre) / self.spread
        angles = 2 * np.pi * data.ends[:, None] / np.array(CYCLES)
        parts = (x, np.isfinite(data.x), np.concatenate([np.sin(angles), np.cos(angles)], 1))
        return tuple(torch.from_numpy(np.ascontiguousarray(part)).float() for part in parts)  # type: ignore[return-value]


def by_patches(train: Windows, rate: float, seed: int, seconds: float, share: int, mixed: bool) -> Any:
    """A PatchTST, trained as our model is."""
    torch.manual_seed(seed)
    flat = train.x.reshape(-1, CHANNELS)
    scale = Scaled(np.nanmean(flat, 0), np.nanstd(flat, 0))
    x, seen, clock = scale.inputs(train)
    y = torch.from_numpy((train.y - scale.centre) / scale.spread).float()
    model = PatchTST(mixed)
    rate = rate / 2  # it wants smaller ones than ours
    optimiser = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.05)
    start = time.process_time()
    while (part := (time.process_time() - start) / (seconds / share)) < 1:
        rows = torch.randint(len(x), (64,))
        thinned = seen[rows] * (torch.rand(64, WEEK, 1) >= 0.2 * torch.rand(64, 1, 1))  # as ours are
        off = (model(x[rows], thinned, clock[rows]) - y[rows]).abs()
        optimiser.zero_grad()
        off[y[rows].isfinite()].mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, part / 0.05 + 0.01) * 0.5 * (1 + math.cos(math.pi * part))
        optimiser.step()
    model.eval()

    @torch.no_grad()
    def answer(data: Windows) -> np.ndarray:
        parts = zip(*(part.split(500) for part in scale.inputs(data)), strict=True)
        return torch.cat([model(*part) for part in parts]).numpy() * scale.spread + scale.centre

    return answer


# --- the rows --------------------------------------------------------------------------------------------------------


def run_weather(runs: Runs) -> list[Row]:
    """Train what is missing; a row for each kind of gaps and each error."""
    air = beijing()
    cuts = [int(np.searchsorted(air.years, year)) for year in (2013, 2014)]
    known = air.values[: cuts[0]]
    threshold = float(np.nanquantile(known[:, 0], 0.7))
    usual, spread = np.nanmedian(known, 0), np.nanstd(known, 0)

    def part(first: int, last: int, stride: int, kind: str, seed: int) -> Windows:
        return gapped(windows(air.values, first, last, stride), kind, threshold, seed)

    early, full = part(0, cuts[0], 3, "mixture", 1), part(0, cuts[1], 3, "mixture", 1)
    choose = [part(cuts[0], cuts[1], 25, kind, 2) for kind in KINDS]
    tests = {kind: part(cuts[1], len(air.values), 7, kind, 3) for kind in KINDS}
    seconds = runs.seconds(SECONDS)

    def measure(by: Any, **options: Any) -> Any:
        def one(rate: float, seed: int, choosing: bool) -> dict[str, float]:
            answer = by(early if choosing else full, rate, seed, seconds, CHOOSING if choosing else 1, **options)
            if choosing:
                return {"chosen": mean(errors(answer(data), data, spread)["scaled"] for data in choose)}
            found = {kind: errors(answer(data), data, spread) for kind, data in tests.items()}
            return {f"{kind} {key}": value for kind, each in found.items() for key, value in each.items()}

        return one

    def mixing() -> bool:
        """Whether PatchTST mixes channels, by its better learning rate of each."""
        marks = {
            mixed: min(
                runs(f"PatchTST, mixed {mixed}, rate {r}, choosing", lambda m=mixed, r=r: one_of(m)(r, 0, True))[
                    "chosen"
                ]
                for r in RATES
            )
            for mixed in (False, True)
        }
        return marks[True] < marks[False]

    def one_of(mixed: bool) -> Any:
        return measure(by_patches, mixed=mixed)

    ours = tried(runs, "Continua", measure(by_continua))
    trees = tried(runs, "boosting", measure(by_boosting))
    mixed = mixing()
    patches = tried(runs, f"PatchTST, mixed {mixed}", one_of(mixed))
    plain = {kind: errors(naive(data, usual), data, spread) for kind, data in tests.items()}
    rows = []
    for kind, name in KINDS.items():
        for key, what, unit, size in (
            ("pm", "PM2.5", "µg/m³", 1),
            ("scaled", "all five series", "hundredths of a standard deviation", 100),
        ):
            values, boosted, patched = (
                [size * run[f"{kind} {key}"] for run in part] for part in (ours, trees, patches)
            )
            others = f"gradient boosting {shown(boosted, False)}, PatchTST {shown(patched, False)}"
            note = f"{others}, seasonal naive {size * plain[kind][key]:.1f}"
            held = mean(values) < min(mean(boosted), mean(patched))
            title = f"Beijing, {name}: {what}, 1 to 24 h ahead, mean absolute error"
            rows.append(line(title, values, unit=unit, target="< both peers", held=held, note=note))
    return rows


def main() -> None:
    """Run what is missing, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(chosen.quick, "series-weather")
    rows = run_weather(runs)
    for row in rows:
        print(f"{row.name}: {row.shown} (wanted {row.target or 'nothing'}) {row.verdict}  {row.note}")
    if chosen.quick:
        runs.path.unlink(missing_ok=True)
    else:
        options = {"seeds": list(SEEDS), "rates": list(RATES), "seconds": SECONDS}
        write("series_weather", rows, environment=environment(), **options)


if __name__ == "__main__":
    main()
