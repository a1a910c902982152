"""Beijing PM2.5, co2 and nafld2: values at times that were not observed."""

from statistics import mean

import numpy as np
from common import Row
from series_data import beijing, co2, nafld2
from series_runs import CHOOSING, SEEDS, Runs, line, shown, steps_for, tried

from continua.data.augmentation import Change
from continua.estimators import ContinuaForecaster, SeriesSettings

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
    right = 78 <= mean(inside) <= 82
    name = "Beijing PM2.5, truth between the quantiles 0.1 and 0.9"
    rows.append(line(name, inside, unit="%", target="78 to 82", held=right, note=note))
    return rows


# --- co2 -------------------------------------------------------------------------------------------------------------


STRETCH = (69, 26, 33, 156)  # weeks from one hidden stretch to the next, in it, how many there are, weeks around one


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

    def stretches(seed: int) -> dict[str, float]:
        """Half a year hidden again and again; each is asked for with quantiles that all the others calibrate."""
        number = np.arange(len(days)) // STRETCH[0]
        gone = (np.arange(len(days)) % STRETCH[0] < STRETCH[1]) & (number < STRETCH[2])
        settings = SeriesSettings(batch=32, periods=(365.25,), window=160, share=0.6)
        values = np.where(gone, np.nan, ppm)

        def make(steps: int) -> ContinuaForecaster:
            return ContinuaForecaster(steps=steps, settings=settings, verbose=0, random_state=seed)

        def part(which: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
            """The points around a hidden stretch, its days and its values."""
            own = gone & (number == which)
            near = np.argsort(np.abs(days - days[own].mean()), kind="stable")[: STRETCH[3]]
            near.sort()
            return values[near], days[near], days[own], ppm[own]

        steps = steps_for(make, lambda m: m.fit(values[None], times=days), runs.seconds(20.0))
        model = make(steps).fit(values[None], times=days)
        told, when, asked, truth = [np.stack(one) for one in zip(*map(part, range(STRETCH[2])), strict=True)]

        def inside(rows: np.ndarray) -> np.ndarray:
            """Of the known values, which lie within."""
            found = model.predict_quantiles(told[rows], times=when[rows], at=asked[rows])[:, :, 0]
            right = (found[..., 0] <= truth[rows]) & (truth[rows] <= found[..., 2])
            return right[np.isfinite(truth[rows])]

        every = np.arange(STRETCH[2])
        before = inside(every)
        each = []
        for one in every:
            rest = every != one
            model.calibrate(told[rest], truth[rest], times=when[rest], y_times=asked[rest])
            each.append(inside(every[~rest]))
        return {"before": float(before.mean()), "inside": float(np.concatenate(each).mean())}

    found = [runs(f"co2, seed {seed}", lambda s=seed: ours(s)) for seed in SEEDS]
    covered = [runs(f"co2, stretches, seed {seed}", lambda s=seed: stretches(s)) for seed in SEEDS]
    plain = float(np.abs(np.interp(days[asked], days[there & ~hidden], ppm[there & ~hidden]) - ppm[asked]).mean())
    note = f"a straight line across the gap {plain:.2f}; the 59 missing weeks stay missing"
    values = [run["mae"] for run in found]
    name = "co2, 78 weeks hidden in a row, mean absolute error"
    held = mean(values) < plain
    inside = [100 * run["inside"] for run in found]
    return [
        line(name, values, unit="ppm", target="< straight line", held=held, note=note),
        line("co2, truth between the quantiles 0.1 and 0.9", inside, unit="%", note="80 is right"),
        _covered(covered),
    ]


def _covered(found: list[dict[str, float]]) -> Row:
    """Coverage of 80 % intervals over many hidden stretches, calibrated by the others of them."""
    values = [100 * run["inside"] for run in found]
    before = mean([100 * run["before"] for run in found])
    held = 75 <= mean(values) <= 85
    name = f"co2, {STRETCH[2]} hidden half years, truth between the quantiles 0.1 and 0.9, calibrated"
    return line(name, values, unit="%", target="75 to 85", held=held, note=f"{before:.0f} before calibration")


# --- nafld2 ----------------------------------------------------------------------------------------------------------

TESTS = ("hdl", "sbp", "fib4")  # in this file chol repeats the values of hdl, and dbp those of sbp


def patients(most: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Days [t] and values [t, 3] of patients with five days of tests or more; smoking is no number."""
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
        made[:, 2] = np.log(np.maximum(made[:, 2], 1e-2))
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
