"""Irregular series: MNIST-1D, JapaneseVowels, Beijing PM2.5, co2 and nafld2, with peers in the same run.

    python benchmarks/series.py                     # 3 seeds, about half an hour of CPU time, one thread
    python benchmarks/series.py --only vowels       # one of mnist1d, vowels, beijing, co2, nafld2
    python benchmarks/series.py --quick             # a smoke run of a few seconds each

Every training has a budget of CPU seconds. Two learning rates are tried on a part of the training set, for a quarter
of the budget, and measured on the rest of it; the better one then trains with three seeds on all of it. Peers have the
same batches, changes of them (thinning, rolling, trends) and loss. Finished runs are kept in
``results/series-runs.jsonl`` and not repeated; delete the file to start anew.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from common import RESULTS, Row, environment, write
from series_data import beijing, co2, japanese_vowels, mnist1d, nafld2
from series_peers import CDE, CNN, GRU, MTAN, train

from continua.recipes.estimators import ContinuaClassifier, ContinuaForecaster
from continua.recipes.series import SeriesSettings
from continua.tasks.changes import Change, drawing, scattered, stretch
from continua.tasks.ragged import Ragged
from continua.tasks.series import Classes, Scale
from continua.tasks.task import generator_for

SEEDS = (0, 1, 2)
RATES = (2e-3, 6e-3)
CHOOSING = 4  # rates are compared after this part of the budget
KEPT = RESULTS / "series-runs.jsonl"


class Runs:
    """Finished runs, one line each."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.path = KEPT.with_name("series-quick.jsonl") if quick else KEPT
        self.done: dict[str, Any] = {}
        if self.path.is_file() and not quick:
            lines = map(json.loads, self.path.read_text(encoding="utf-8").splitlines())
            self.done = {line["run"]: line["found"] for line in lines}

    def __call__(self, name: str, work: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What a run found, now or before."""
        if name not in self.done:
            start = time.process_time()
            found = work() | {"cpu": round(time.process_time() - start, 1)}
            RESULTS.mkdir(exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": name, "found": found}) + "\n")
            self.done[name] = found
            said = ", ".join(f"{key} {value:.4g}" for key, value in found.items())
            print(f"{name}: {said}", file=sys.stderr, flush=True)
        return self.done[name]

    def seconds(self, budget: float) -> float:
        return 2.0 if self.quick else budget


def tried(runs: Runs, name: str, measure: Callable[[float, int, bool], dict[str, float]]) -> list[dict[str, float]]:
    """The runs of all seeds at the better of two rates; ``measure(rate, seed, choosing)`` names what to minimise
    ``chosen`` when it is choosing."""
    marks = {r: runs(f"{name}, rate {r}, choosing", lambda r=r: measure(r, 0, True))["chosen"] for r in RATES}
    best = min(marks, key=lambda r: marks[r])
    return [runs(f"{name}, seed {seed}", lambda s=seed: measure(best, s, False) | {"rate": best}) for seed in SEEDS]


def steps_for(make: Callable[[int], Any], fit: Callable[[Any], Any], seconds: float) -> int:
    """How many steps fit into so many CPU seconds, by a short trial."""
    fit(make(3))  # what is made once
    start = time.process_time()
    fit(make(30))
    return max(int(30 * seconds / (time.process_time() - start)), 5)


def shown(found: list[float], percent: bool = True) -> str:
    scale = 100 if percent else 1
    return f"{scale * mean(found):.1f} ± {scale * stdev(found):.1f}" if len(found) > 1 else f"{scale * found[0]:.1f}"


def line(name: str, values: list[float], **rest: Any) -> Row:
    """A row: the mean over seeds, lowest and highest."""
    return Row(name, mean(values), min(values), max(values), **rest)


# --- MNIST-1D --------------------------------------------------------------------------------------------------------

LENGTHS = (40, 80, 160)
SHAPES_CHANGE = Change(thin=0.65, trend=0.4, stretch=0.1, wrap=0.2)
SHAPES_SECONDS = 90.0


def half(points: int, count: int) -> np.ndarray:
    """Which half of the points of each test series is there: NaN elsewhere."""
    order = torch.rand(count, points, generator=generator_for("half", points)).argsort(-1).argsort(-1)
    return np.where((order < points // 2).numpy(), 1.0, np.nan)


def shapes_measured(answer: Callable[[np.ndarray, np.ndarray], np.ndarray], sets: dict[int, Any]) -> dict[str, float]:
    found = {}
    for n, data in sets.items():
        for kind, mask in (("", 1.0), ("half of ", half(n, len(data.x_test)))):
            found[f"{kind}{n}"] = float((answer(data.x_test * mask, data.times) == data.y_test).mean())
    return found


def run_mnist1d(runs: Runs) -> list[Row]:
    sets = {n: mnist1d(n) for n in LENGTHS}
    own, seconds = sets[40], runs.seconds(SHAPES_SECONDS)

    def ours(rate: float, seed: int, choosing: bool, change: Change = SHAPES_CHANGE) -> dict[str, float]:
        settings = SeriesSettings(batch=100, lr=rate, position=False, change=change)
        x, y = (own.x[:3500], own.y[:3500]) if choosing else (own.x, own.y)

        def make(steps: int) -> ContinuaClassifier:
            return ContinuaClassifier(steps=steps, settings=settings, verbose=0, random_state=seed)

        steps = steps_for(make, lambda m: m.fit(x, y, times=own.times), seconds)
        model = make(steps // CHOOSING if choosing else steps).fit(x, y, times=own.times)
        if choosing:
            return {"chosen": 1 - model.score(own.x[3500:], own.y[3500:], times=own.times)}
        return shapes_measured(lambda x, t: model.predict(x, times=t), sets)

    def cnn(rate: float, seed: int, choosing: bool) -> dict[str, float]:
        x, y = (own.x[:3500], own.y[:3500]) if choosing else (own.x, own.y)
        series = Ragged.of(x, own.times)
        scale = Scale.of(series)
        task = Classes(series, torch.from_numpy(y), scale, 100, SHAPES_CHANGE)
        torch.manual_seed(seed)
        model = CNN(10, torch.linspace(0.0, 39.0, 40))
        train(model, task, rate, seconds / CHOOSING if choosing else seconds, seed)

        @torch.no_grad()
        def answer(x: np.ndarray, times: np.ndarray) -> np.ndarray:
            return model(scale.told(Ragged.of(x, times))).argmax(-1).numpy()

        if choosing:
            return {"chosen": float((answer(own.x[3500:], own.times) != own.y[3500:]).mean())}
        return shapes_measured(answer, sets)

    mine, theirs = tried(runs, "mnist1d, Continua", ours), tried(runs, "mnist1d, CNN", cnn)
    only = Change(thin=0.5, trend=0.4, stretch=0.1, wrap=0.2)
    rate = mine[0]["rate"]
    bound = runs("mnist1d, Continua for halves", lambda: ours(rate, 0, False, replace(only, thin=0.75)))
    bounds = {"40": 0.94, "80": 0.92, "160": 0.92, "half of 40": 0.85, "half of 80": 0.85, "half of 160": 0.85}
    rows = []
    for key, wanted in bounds.items():
        values = [100 * run[key] for run in mine]
        note = f"1-D CNN of the same budget {shown([run[key] for run in theirs])}"
        note += f"; trained to miss up to three quarters {100 * bound[key]:.1f}" if key == "half of 40" else ""
        held = mean(values) >= 100 * wanted
        rows.append(
            line(f"MNIST-1D, {key} points", values, unit="%", target=f"≥ {100 * wanted:.0f}", held=held, note=note)
        )
    return rows


# --- JapaneseVowels --------------------------------------------------------------------------------------------------

DROPS = (0.0, 0.3, 0.5, 0.7)
VOWELS_CHANGE = Change(thin=0.8, gap=0.8)
VOWELS_SECONDS = 15.0


def dropped(series: Ragged, share: float, in_a_row: bool) -> Ragged:
    """The test series without this share of their points, scattered or in one stretch."""
    draw = drawing(generator_for("drop", share, in_a_row))
    many = (share * series.present.sum(-1, keepdim=True)).round().long()
    hidden = (stretch if in_a_row else scattered)(series, many, draw)
    return series.keep(~hidden & series.present)


def as_lists(series: Ragged) -> tuple[list[np.ndarray], list[np.ndarray]]:
    pairs = [(v[p].numpy(), t[p].numpy()) for v, t, p in zip(series.values, series.times, series.present, strict=True)]
    return [v for v, _ in pairs], [t for _, t in pairs]


def run_vowels(runs: Runs) -> list[Row]:
    (x, y), (x_test, y_test) = japanese_vowels("TRAIN"), japanese_vowels("TEST")
    seconds, tests = runs.seconds(VOWELS_SECONDS), {}
    for share in DROPS:
        for in_a_row in (False, True) if share else (False,):
            name = f"{100 * share:.0f} % dropped" + (" in a row" if in_a_row else "")
            tests[name] = dropped(Ragged.of(x_test), share, in_a_row)
    apart = np.random.default_rng(0).permutation(len(x))
    held, rest = apart[:54], apart[54:]

    def pick(rows: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        return [x[i] for i in rows], y[rows]

    trial = dropped(Ragged.of(pick(held)[0]), 0.5, False)

    def ours(rate: float, seed: int, choosing: bool) -> dict[str, float]:
        settings = SeriesSettings(batch=64, lr=rate, change=VOWELS_CHANGE)
        data = pick(rest) if choosing else (x, y)

        def make(steps: int) -> ContinuaClassifier:
            return ContinuaClassifier(depth=2, steps=steps, settings=settings, verbose=0, random_state=seed)

        steps = steps_for(make, lambda m: m.fit(*data), seconds)
        model = make(steps // CHOOSING if choosing else steps).fit(*data)

        def right(series: Ragged, labels: np.ndarray) -> float:
            values, times = as_lists(series)
            return model.score(values, labels, times=times)

        if choosing:
            return {"chosen": 1 - right(trial, y[held])}
        return {name: right(series, y_test) for name, series in tests.items()}

    def peer(made: Callable[[int], Any]) -> Callable[[float, int, bool], dict[str, float]]:
        def measure(rate: float, seed: int, choosing: bool) -> dict[str, float]:
            values, labels = pick(rest) if choosing else (x, y)
            series = Ragged.of(values)
            scale = Scale.of(series)
            task = Classes(series, torch.from_numpy(labels - 1), scale, 64, VOWELS_CHANGE)
            torch.manual_seed(seed)
            model = train(made(scale.features), task, rate, seconds / CHOOSING if choosing else seconds, seed)

            @torch.no_grad()
            def right(series: Ragged, labels: np.ndarray) -> float:
                return float((model(scale.told(series)).argmax(-1).numpy() + 1 == labels).mean())

            if choosing:
                return {"chosen": 1 - right(trial, y[held])}
            return {name: right(series, y_test) for name, series in tests.items()}

        return measure

    peers = {
        "GRU-Δt": lambda f: GRU(f, 9),
        "mTAN": lambda f: MTAN(f, 9, span=28.0),
        "Neural CDE": lambda f: CDE(f, 9),
    }
    mine = tried(runs, "vowels, Continua", ours)
    theirs = {name: tried(runs, f"vowels, {name}", peer(made)) for name, made in peers.items()}
    rows = []
    for name in tests:
        values = [run[name] for run in mine]
        others = {who: [run[name] for run in found] for who, found in theirs.items()}
        best = max(others, key=lambda who: mean(others[who]))
        noise = 2 * ((stdev(values) ** 2 + stdev(others[best]) ** 2) / len(SEEDS)) ** 0.5
        note = ", ".join(f"{who} {shown(found)}" for who, found in others.items())
        held_to = mean(values) >= mean(others[best]) - noise
        percent = [100 * v for v in values]
        target = f"≥ {best} within noise"
        rows.append(line(f"JapaneseVowels, {name}", percent, unit="%", target=target, held=held_to, note=note))
    return rows


# --- Beijing ---------------------------------------------------------------------------------------------------------

LAGS = np.concatenate([np.arange(-168, -48, 6), np.arange(-48, 1)])  # hours before; every sixth beyond two days
AHEAD = np.arange(1, 25)
AIR_SECONDS = 60.0


def windows(values: np.ndarray, first: int, last: int, stride: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Histories [n, lags, 5], their last hours [n], and PM2.5 of the 24 hours after [n, 24]; some of it known."""
    ends = np.arange(max(first, 168), last - 24, stride)
    x, y = values[ends[:, None] + LAGS], values[ends[:, None] + AHEAD][..., 0]
    good = np.isfinite(y).any(1) & np.isfinite(x[..., 0]).any(1)
    return x[good], ends[good], y[good]


def air_error(log_median: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Mean absolute error in µg/m³ over all hours known, and 24 hours ahead alone."""
    off = np.abs(np.expm1(log_median) - np.expm1(y))
    return {"all": float(np.nanmean(off)), "24 h": float(np.nanmean(off[:, -1]))}


def naive(x: np.ndarray) -> np.ndarray:
    """The same hour of the day before; the newest value before it where that is missing."""
    pm, hours = x[..., 0], list(LAGS)
    found = []
    for h in AHEAD:
        column = hours.index(h - 24)
        value = pm[:, column].copy()
        for back in range(column - 1, -1, -1):
            value = np.where(np.isnan(value), pm[:, back], value)
        found.append(np.where(np.isnan(value), np.nanmedian(pm), value))
    return np.stack(found, 1)


def boosted(x: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Rows of lags and the hour of the day and year for every hour ahead: what gradient boosting reads."""
    pm = x[..., 0]
    weather = x[:, [-1, -7, -25], 1:].reshape(len(x), -1)
    base = np.concatenate([pm, weather], 1)
    rows = []
    for h in AHEAD:
        clock = ends + h
        when = np.stack([clock % 24, clock % 168, clock % 8766, np.full(len(x), h)], 1)
        same = pm[:, [list(LAGS).index(h - 24)]]
        rows.append(np.concatenate([base, same, when], 1))
    return np.stack(rows, 1)


def run_beijing(runs: Runs) -> list[Row]:
    from sklearn.ensemble import HistGradientBoostingRegressor

    air = beijing()
    cuts = [int(np.searchsorted(air.years, year)) for year in (2013, 2014)]
    choose, test = windows(air.values, cuts[0], cuts[1], 5), windows(air.values, cuts[1], len(air.values), 3)
    early, full = windows(air.values, 0, cuts[0], 3), windows(air.values, 0, cuts[1], 3)
    seconds = runs.seconds(AIR_SECONDS)

    def ours(rate: float, seed: int, choosing: bool) -> dict[str, float]:
        settings = SeriesSettings(batch=64, lr=rate, unit=1.0, periods=(24.0, 168.0, 8766.0), change=Change(thin=0.2))
        x, ends, y = early if choosing else full

        def make(steps: int) -> ContinuaForecaster:
            return ContinuaForecaster(steps=steps, settings=settings, verbose=0, random_state=seed)

        def fit(model: ContinuaForecaster, many: slice = slice(None)) -> ContinuaForecaster:
            where = {"times": ends[many, None] + LAGS, "y_times": ends[many, None] + AHEAD}
            return model.fit(x[many], y[many], **where)

        steps = steps_for(make, lambda m: fit(m, slice(0, 500)), seconds)
        model = fit(make(steps // CHOOSING if choosing else steps))

        def measured(data: tuple[np.ndarray, ...]) -> dict[str, float]:
            asked = {"times": data[1][:, None] + LAGS, "at": data[1][:, None] + AHEAD}
            found = model.predict_quantiles(data[0], **asked)[..., 0, :]
            inside = (found[..., 0] <= data[2]) & (data[2] <= found[..., 2])
            return air_error(found[..., 1], data[2]) | {"inside": float(inside[np.isfinite(data[2])].mean())}

        return {"chosen": measured(choose)["all"]} if choosing else measured(test)

    def boosting(rate: float, seed: int, choosing: bool) -> dict[str, float]:
        x, ends, y = early if choosing else full
        known = np.random.default_rng(seed).permutation(np.argwhere(np.isfinite(y)))[
            : 20_000 if runs.quick else 150_000
        ]
        rows = boosted(x, ends)
        model = HistGradientBoostingRegressor(
            loss="absolute_error", learning_rate=10 * rate, max_iter=300, max_leaf_nodes=63, random_state=seed
        )
        model.fit(rows[known[:, 0], known[:, 1]], y[known[:, 0], known[:, 1]])
        data = choose if choosing else test
        found = model.predict(boosted(data[0], data[1]).reshape(-1, rows.shape[-1])).reshape(data[2].shape)
        return {"chosen": air_error(found, data[2])["all"]} if choosing else air_error(found, data[2])

    mine, trees = tried(runs, "beijing, Continua", ours), tried(runs, "beijing, boosting", boosting)
    plain = runs("beijing, naive", lambda: air_error(naive(test[0]), test[2]))
    rows = []
    for key, name in (("all", "1 to 24 h ahead"), ("24 h", "24 h ahead alone")):
        values, others = [run[key] for run in mine], [run[key] for run in trees]
        note = f"gradient boosting {shown(others, False)}, seasonal naive {plain[key]:.1f}"
        held = mean(values) < min(mean(others), plain[key])
        options = {"unit": "µg/m³", "target": "< both peers", "held": held, "note": note}
        rows.append(line(f"Beijing PM2.5, {name}, mean absolute error", values, **options))
    inside = [100 * run["inside"] for run in mine]
    note = "80 is right"
    rows.append(line("Beijing PM2.5, truth between the quantiles 0.1 and 0.9", inside, unit="%", note=note))
    return rows


# --- co2 -------------------------------------------------------------------------------------------------------------


def run_co2(runs: Runs) -> list[Row]:
    days, ppm = co2()
    there = np.isfinite(ppm)
    hidden = (days > 365.25 * 26) & (days < 365.25 * 27.5)  # a stretch of 78 weeks in 1984 and 1985
    asked = hidden & there

    def ours(seed: int) -> dict[str, float]:
        settings = SeriesSettings(batch=32, periods=(365.25,), window=160, share=0.6)
        values = np.where(hidden, np.nan, ppm)[None]

        def make(steps: int) -> ContinuaForecaster:
            return ContinuaForecaster(steps=steps, settings=settings, verbose=0, random_state=seed)

        steps = steps_for(make, lambda m: m.fit(values, times=days), runs.seconds(20.0))
        model = make(steps).fit(values, times=days)
        near = (days > 365.25 * 25) & (days < 365.25 * 28.5)
        found = model.predict_quantiles(values[:, near], times=days[near], at=days[asked])[0, :, 0]
        inside = (found[:, 0] <= ppm[asked]) & (ppm[asked] <= found[:, 2])
        return {"mae": float(np.abs(found[:, 1] - ppm[asked]).mean()), "inside": float(inside.mean())}

    found = [runs(f"co2, seed {seed}", lambda s=seed: ours(s)) for seed in SEEDS]
    plain = float(np.abs(np.interp(days[asked], days[there & ~hidden], ppm[there & ~hidden]) - ppm[asked]).mean())
    note = f"a straight line across the gap {plain:.2f}; the 59 missing weeks stay missing"
    values = [run["mae"] for run in found]
    name = "co2, 78 weeks hidden in a row, mean absolute error"
    held = mean(values) < plain
    inside = [100 * run["inside"] for run in found]
    return [
        line(name, values, unit="ppm", target="< straight line", held=held, note=note),
        line("co2, truth between the quantiles 0.1 and 0.9", inside, unit="%", note="80 is right"),
    ]


# --- nafld2 ----------------------------------------------------------------------------------------------------------

TESTS = ("hdl", "chol", "sbp", "dbp", "fib4")


def patients(most: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Days [t] and values [t, 5] of patients with five days of tests or more; smoking is no number."""
    table = nafld2()
    order = np.lexsort((table["days"], table["id"]))
    who, days, test, value = (table[k][order] for k in ("id", "days", "test", "value"))
    number = np.array([TESTS.index(t) if t in TESTS else -1 for t in test])
    stamps, values = [], []
    for rows in np.split(np.arange(len(who)), np.flatnonzero(np.diff(who)) + 1):
        rows = rows[(number[rows] >= 0) & np.isfinite(value[rows])]
        when = np.unique(days[rows])
        if len(when) < 5:
            continue
        made = np.full((len(when), len(TESTS)), np.nan)
        made[np.searchsorted(when, days[rows]), number[rows]] = value[rows]
        made[:, 4] = np.log(np.maximum(made[:, 4], 1e-2))
        stamps.append(when[-40:].astype(float))
        values.append(made[-40:])
        if len(stamps) == most:
            break
    return stamps, values


def run_nafld2(runs: Runs) -> list[Row]:
    stamps, values = patients(400 if runs.quick else 4000)
    cut = int(0.8 * len(stamps))
    spread = np.nanstd(np.concatenate(values[:cut]), 0)
    history = [v[:-1] for v in values], [t[:-1] for t in stamps]
    next_values, next_times = np.stack([v[-1:] for v in values]), np.stack([t[-1:] for t in stamps])

    def ours(seed: int) -> dict[str, float]:
        settings = SeriesSettings(batch=64, unit=365.25)

        def make(steps: int) -> ContinuaForecaster:
            return ContinuaForecaster(steps=steps, settings=settings, verbose=0, random_state=seed)

        def fit(model: ContinuaForecaster) -> ContinuaForecaster:
            return model.fit(history[0][:cut], next_values[:cut], times=history[1][:cut], y_times=next_times[:cut])

        model = fit(make(steps_for(make, fit, runs.seconds(25.0))))
        found = model.predict(history[0][cut:], times=history[1][cut:], at=next_times[cut:])
        return {"error": error(found[:, 0])}

    truth = next_values[cut:, 0]
    last = np.full(truth.shape, np.nan)  # carried forward; a test that was never made has none
    for i, v in enumerate(history[0][cut:]):
        for c, column in enumerate(v.T):
            seen = column[np.isfinite(column)]
            last[i, c] = seen[-1] if len(seen) else np.nan

    def error(found: np.ndarray) -> float:
        """Where there is a value to carry forward."""
        off = np.abs(found - truth) / spread
        return float(off[np.isfinite(off) & np.isfinite(last)].mean())

    found = [runs(f"nafld2, seed {seed}", lambda s=seed: ours(s))["error"] for seed in SEEDS]
    plain = error(last)
    name = f"nafld2, next lab values of {len(stamps) - cut} new patients, mean absolute error in standard deviations"
    note = f"last value carried forward {plain:.3f}"
    return [line(name, found, target="< carried forward", held=mean(found) < plain, note=note)]


PARTS = {
    "mnist1d": run_mnist1d,
    "vowels": run_vowels,
    "beijing": run_beijing,
    "co2": run_co2,
    "nafld2": run_nafld2,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(chosen.quick)
    for name, part in PARTS.items():
        if chosen.only in (None, name):
            rows = part(runs)
            for row in rows:
                print(f"{row.name}: {row.shown} (wanted {row.target or 'nothing'}) {row.verdict}  {row.note}")
            if not chosen.quick:
                write("series", rows, part=True, environment=environment(), seeds=list(SEEDS), rates=list(RATES))
    if chosen.quick:
        runs.path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
