"""Irregular series: real gaps filled with quantiles, and speakers told apart while points go missing.

    python examples/series.py      about three minutes on one core; writes runs/series-example/{gap,missing}.png

CO2 above Mauna Loa and JapaneseVowels are taken out of the packages statsmodels and aeon (20 MB, fetched once).
Needs scikit-learn (pip install 'continua-ml[series]').
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from continua.data.augmentation import Change
from continua.estimators import ContinuaClassifier, ContinuaForecaster, SeriesSettings
from continua.lab.canvas import COLOURS, FAINT
from continua.lab.figure import pyplot, save

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from series_data import co2, japanese_vowels

YEAR = 365.25
SHARES = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8)


def gap(steps: int, path: Path) -> Path:
    """Hide 78 weeks, learn from the rest, answer with quantiles there and a year beyond the end."""
    days, ppm = co2()
    hidden = (days > 26 * YEAR) & (days < 27.5 * YEAR)
    told = np.where(hidden, np.nan, ppm)
    settings = SeriesSettings(batch=32, periods=(YEAR,), window=160, share=0.6)
    model = ContinuaForecaster(steps=steps, settings=settings, random_state=0).fit(told[None], times=days)
    plt = pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    last = days[np.isfinite(told)][-1]
    views = (
        ("78 weeks hidden", (25 * YEAR, 28.5 * YEAR), np.arange(26 * YEAR, 27.5 * YEAR, 7.0)),
        ("beyond the end", (last - 3 * YEAR, last + YEAR), last + np.arange(7.0, YEAR, 7.0)),
    )
    for panel, (title, (start, end), asked) in zip(panels, views, strict=True):
        near = (days > start) & (days < end)
        low, middle, high = model.predict_quantiles(told[None, near], times=days[near], at=asked)[0, :, 0].T
        when = 1958 + asked / YEAR
        panel.fill_between(when, low, high, color=COLOURS[0], alpha=0.25, lw=0, label="quantiles 0.1 to 0.9")
        panel.plot(when, middle, color=COLOURS[0], lw=1.2, label="median")
        panel.plot(1958 + days[near] / YEAR, told[near], ".", ms=3, color="#22252a", label="told")
        truth = hidden & near & np.isfinite(ppm)
        if truth.any():
            panel.plot(1958 + days[truth] / YEAR, ppm[truth], ".", ms=3, color=COLOURS[1], label="hidden")
            found = np.interp(days[truth], asked, middle)
            straight = np.interp(days[truth], days[np.isfinite(told)], told[np.isfinite(told)])
            errors = [float(np.abs(guess - ppm[truth]).mean()) for guess in (found, straight)]
            print(f"hidden weeks: {errors[0]:.2f} ppm off, a straight line {errors[1]:.2f}")
            assert errors[0] < errors[1] or steps < 300, errors
        panel.set(title=title, xlabel="year", ylabel="CO$_2$ (ppm)")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(color=FAINT, lw=0.4)
        panel.legend(frameon=False, fontsize=8)
    return save(plt, figure, path)


def missing(steps: int, path: Path) -> Path:
    """One classifier, trained on thinned utterances; accuracy over the share of points that is missing."""
    (x, y), (x_test, y_test) = japanese_vowels("TRAIN"), japanese_vowels("TEST")
    settings = SeriesSettings(lr=6e-3, change=Change(thin=0.8, gap=0.8))
    model = ContinuaClassifier(depth=2, steps=steps, settings=settings, random_state=0).fit(x, y)
    draw = np.random.default_rng(0)
    found: dict[str, list[float]] = {"scattered": [], "in a row": []}
    for share in SHARES:
        for kind, scores in found.items():
            kept = [np.sort(picked(len(one), share, kind, draw)) for one in x_test]
            series = [one[k] for one, k in zip(x_test, kept, strict=True)]
            scores.append(model.score(series, y_test, times=[k.astype(float) for k in kept]))
    for kind, scores in found.items():
        shown = ", ".join(f"{100 * s:.0f} %: {100 * v:.1f}" for s, v in zip(SHARES, scores, strict=True))
        print(f"right with points missing {kind}: {shown}")
    assert found["scattered"][0] > 0.95 or steps < 300, found
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    for (kind, scores), colour in zip(found.items(), COLOURS, strict=False):
        panel.plot([100 * s for s in SHARES], [100 * v for v in scores], "o-", color=colour, label=f"missing {kind}")
    panel.set(xlabel="points missing (%)", ylabel="utterances told right (%)", title="JapaneseVowels, one model")
    panel.grid(color=FAINT, lw=0.4)
    panel.legend(frameon=False)
    return save(plt, figure, path)


def picked(count: int, share: float, kind: str, draw: np.random.Generator) -> np.ndarray:
    """The points that stay: all but some anywhere, or all but some in a row; one at least."""
    many = min(round(share * count), count - 1)
    if kind == "scattered":
        return draw.permutation(count)[many:]
    first = draw.integers(0, count - many + 1)
    return np.concatenate([np.arange(first), np.arange(first + many, count)])


def main() -> None:
    """Both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, default=Path("runs/series-example"))
    chosen = parser.parse_args()
    print(missing(chosen.steps, chosen.out / "missing.png"))
    print(gap(chosen.steps, chosen.out / "gap.png"))


if __name__ == "__main__":
    main()
