"""Predicted cost against measured scaling, and where attention becomes dearer than a recurrent net of its width.

    python benchmarks/complexity.py            # about one minute on one core

One attention layer and one ``nn.GRU`` of the same width, forward + backward, float32, one thread, CPU time in
interleaved rounds over growing n. The cost model (``continua.lab.predict``) knows FLOPs, not seconds: the speed of
linear maps, of scores and of a recurrent step is fitted on every second size, and the other sizes are predicted.
"""

import argparse
import math
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from common import RESULTS, Row, cpu_seconds, environment, estimate, interleaved, peak_bytes, write
from rich.console import Console
from rich.table import Table
from torch import nn

import continua as ct
from continua.fields import counted
from continua.lab import predict
from continua.models import States
from continua.models.build import discrete_axes
from continua.operators import Parts

WIDTH, HEADS, BATCH = 128, 4, 8  # a recurrent net alone in its batch multiplies vectors: eight make it a fair fight
SIZES = (32, 64, 128, 256, 512, 1024, 2048)
LONG = 256  # exponents are those of the sizes from here on: below, fixed costs of a call are seen
WITHIN = 0.15
ATTENTION, RNN = "attention", "RNN"


# --- the work --------------------------------------------------------------------------------------------------------


def attention() -> ct.Transformer:
    axes, native = discrete_axes(WIDTH, HEADS, WIDTH, 1)
    return ct.Transformer(axes, native, States(), Parts((ct.Attention(counted(axes, 1)),)))


def steps() -> dict[str, Callable[[int], Callable[[], object]]]:
    """For each kind a function of n that returns one forward + backward."""
    torch.manual_seed(0)
    layer, recurrent = attention(), nn.GRU(WIDTH, WIDTH, batch_first=True)

    def attend(n: int) -> Callable[[], object]:
        x = torch.randn(BATCH, n, WIDTH, requires_grad=True)
        return lambda: layer(x).sum().backward()

    def recur(n: int) -> Callable[[], object]:
        x = torch.randn(BATCH, n, WIDTH, requires_grad=True)
        return lambda: recurrent(x)[0].sum().backward()

    return {ATTENTION: attend, RNN: recur}


def measure(rounds: int) -> dict[str, dict[int, list[float]]]:
    """CPU seconds; short calls are repeated within one measurement."""
    cases = {}
    for kind, make in steps().items():
        for n in SIZES:
            work, times = make(n), max(1, 1024 // n)
            cases[f"{kind} {n}"] = lambda work=work, times=times: (
                cpu_seconds(lambda: [work() for _ in range(times)]) / times
            )
    found = interleaved(cases, rounds, warmup=1)
    return {kind: {n: found[f"{kind} {n}"] for n in SIZES} for kind in (ATTENTION, RNN)}


def rnn_flops(n: int) -> float:
    """Three gates, each with a product of the input and of the state; twice that on the way back."""
    return 3 * BATCH * n * 2 * 3 * 2 * WIDTH * WIDTH


# --- the model of time -----------------------------------------------------------------------------------------------


def features(kind: str, n: int) -> list[float]:
    """What time is a sum of: calls, linear maps and scores for attention; calls and steps for the RNN."""
    if kind == RNN:
        return [1.0, rnn_flops(n)]
    cost = predict(MODEL, BATCH, n)
    scores = cost.of("scores")
    return [1.0, cost.flops - scores, scores]


def fitted(kind: str, sizes: Sequence[int], seconds: Sequence[float]) -> np.ndarray:
    """Seconds for each unit of work: least squares of relative errors, none below zero."""
    rows = np.array([features(kind, n) for n in sizes])
    scale = rows.max(0)
    a, b = rows / scale / np.array(seconds)[:, None], np.ones(len(sizes))
    kept = list(range(rows.shape[1]))
    while True:
        x = np.linalg.lstsq(a[:, kept], b, rcond=None)[0]
        if (x >= 0).all():
            break
        kept.pop(int(x.argmin()))
    out = np.zeros(rows.shape[1])
    out[kept] = x / scale[kept]
    return out


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def crossover(first: Callable[[float], float], second: Callable[[float], float]) -> float:
    """The n at which ``first`` overtakes ``second``, by bisection of log n; nan if it does not between the ends."""
    low, high = math.log(SIZES[0]), math.log(SIZES[-1])
    if (first(math.exp(low)) > second(math.exp(low))) or (first(math.exp(high)) < second(math.exp(high))):
        return math.nan
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if first(math.exp(middle)) > second(math.exp(middle)) else (middle, high)
    return math.exp(low)


def interpolated(seconds: dict[int, float]) -> Callable[[float], float]:
    logs = np.log(list(seconds)), np.log(list(seconds.values()))
    return lambda n: float(np.exp(np.interp(math.log(n), *logs)))


def smooth(kind: str, rates: np.ndarray) -> Callable[[float], float]:
    """Predicted seconds at any real n: features are polynomials in n, read at whole ones."""
    return lambda n: float(np.dot(features(kind, round(n)), rates))


# --- results ---------------------------------------------------------------------------------------------------------


def memory_rows() -> list[Row]:
    sizes = [n for n in SIZES if n >= LONG]
    make = steps()[ATTENTION]
    measured = slope(sizes, [peak_bytes(make(n)) for n in sizes])
    predicted = slope(sizes, [predict(MODEL, BATCH, n).bytes for n in sizes])
    return [held("attention: exponent of peak bytes", predicted, measured)]


def held(name: str, predicted: float, measured: float) -> Row:
    share = predicted / measured
    note = f"{predicted:.3f} / {measured:.3f}"
    return Row(name, share, target=f"within {WITHIN:.0%}", held=abs(share - 1) <= WITHIN, note=note)


def rows_of(median: dict[str, dict[int, float]]) -> tuple[list[Row], dict[str, np.ndarray]]:
    rows, rates, long = [], {}, [n for n in SIZES if n >= LONG]
    work = {ATTENTION: lambda n: predict(MODEL, BATCH, n).flops, RNN: rnn_flops}
    for kind in (ATTENTION, RNN):
        flops = slope(long, [work[kind](n) for n in long])
        rows.append(held(f"{kind}: exponent of n", flops, slope(long, [median[kind][n] for n in long])))
        seen = SIZES[::2]
        rates[kind] = fitted(kind, seen, [median[kind][n] for n in seen])
        for n in (n for n in SIZES[1::2] if n > SIZES[0]):
            guess = float(np.dot(features(kind, n), rates[kind]))
            rows.append(held(f"{kind}: ms at n = {n}, not fitted", 1e3 * guess, 1e3 * median[kind][n]))
    at_flops = crossover(lambda n: work[ATTENTION](round(n)), lambda n: work[RNN](round(n)))
    at_time = crossover(interpolated(median[ATTENTION]), interpolated(median[RNN]))
    guessed = crossover(smooth(ATTENTION, rates[ATTENTION]), smooth(RNN, rates[RNN]))
    rows.append(Row("crossover in FLOPs", at_flops, unit="tokens", note=f"12/14 of the width, {WIDTH}"))
    rows.append(held("crossover in time: tokens", guessed, at_time))
    return rows, rates


def draw(median: dict[str, dict[int, float]], rates: dict[str, np.ndarray], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 4.8), layout="constrained")
    line = np.unique(np.geomspace(SIZES[0], SIZES[-1], 120).round())
    for kind, colour in ((ATTENTION, "C3"), (RNN, "C0")):
        name = f"one attention layer, {HEADS} heads" if kind == ATTENTION else "nn.GRU"
        milliseconds = [1e3 * median[kind][n] for n in SIZES]
        fit = [n in SIZES[::2] for n in SIZES]
        predicted = [1e3 * smooth(kind, rates[kind])(n) for n in line]
        panel.loglog(line, predicted, "-", color=colour, lw=1.5, label=f"{name}: predicted from FLOPs")
        for marker, used, what in (("o", True, "measured, fitted"), ("D", False, "measured, not fitted")):
            points = [(n, ms) for n, ms, here in zip(SIZES, milliseconds, fit, strict=True) if here is used]
            face = colour if used else "white"
            panel.plot(*zip(*points, strict=True), marker, color=colour, mfc=face, ms=6, label=f"{name}: {what}")
    at = crossover(interpolated(median[ATTENTION]), interpolated(median[RNN]))
    if not math.isnan(at):
        panel.axvline(at, color="0.5", lw=1, ls="--")
        where = (at, panel.get_ylim()[0])
        panel.annotate(
            f"crossover at n ≈ {at:.0f}", where, xytext=(-6, 8), textcoords="offset points", ha="right", color="0.3"
        )
    panel.set(xlabel="tokens n", ylabel="CPU time of forward + backward [ms]")
    panel.set_title(f"Attention against a recurrent net of the same width ({WIDTH}), one thread")
    panel.set_xticks(SIZES, [str(n) for n in SIZES])
    panel.minorticks_off()
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=140)
    plt.close(figure)


MODEL = attention()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    given, console = parser.parse_args(), Console(width=110)
    torch.set_num_threads(1)
    where = environment()
    times = measure(given.rounds)
    median = {kind: {n: estimate(values).median for n, values in sizes.items()} for kind, sizes in times.items()}
    rows, rates = rows_of(median)
    rows += memory_rows()
    table = Table("what", "ratio", "predicted / measured", "target", "", title="the cost model against the clock")
    for line in rows:
        table.add_row(line.name, line.shown, line.note, line.target, line.verdict)
    console.print(table)
    if where["load_average"] > 1:
        console.print(f"the machine was busy (load {where['load_average']}): run it again when it is quiet.")
    shape = {"width": WIDTH, "heads": HEADS, "batch": BATCH, "sizes": SIZES, "rounds": given.rounds}
    seconds = {kind: {str(n): value for n, value in sizes.items()} for kind, sizes in median.items()}
    path = write("complexity", rows, environment=where, shape=shape, median_cpu_seconds=seconds)
    draw(median, rates, RESULTS / "complexity.png")
    console.print(f"written to benchmarks/results/{path.name} and complexity.png")
    return int(any(line.held is False for line in rows))


if __name__ == "__main__":
    sys.exit(main())
