"""One checkpoint at many sizes: loss, time, FLOPs and memory of each, and the front of those that nothing beats."""

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from continua.axes import Discretisation, at
from continua.devices import machine
from continua.errors import ConfigError
from continua.files import read_bytes, write_text
from continua.lab.cost.complexity import predict
from continua.lab.cost.memory import peak_bytes
from continua.lab.figure import pyplot, save
from continua.lab.progress import ReportCount
from continua.models import FrozenView, View
from continua.tasks import Example, Task
from continua.tree import tensors

EQUAL = 1e-6  # losses this close, in relative terms, are one: twice the width gives the native answers to round-off
CLOSE = 1.4  # ratio of costs whose names would touch
NEAR = 0.06  # of the range of losses: the same
BUDGETS = {"latency": "seconds", "flops": "flops", "memory": "bytes"}
UNITS = {
    "latency": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "flops": {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0},
    "memory": {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0},
}


@dataclass(frozen=True)
class Point:
    """One size: the held-out loss, and seconds, FLOPs and bytes of one sample going forward.

    ``bytes`` are those of the weights that this size reads and the most that are alive beside them during a pass.

    ``trained`` is False for sizes that training never drew, None where that is not known.
    """

    sizes: dict[str, int]
    loss: float
    seconds: float
    flops: int
    bytes: int
    trained: bool | None = None

    @property
    def name(self) -> str:
        """``d=64 h=2 z=3``."""
        return " ".join(f"{letter}={n}" for letter, n in self.sizes.items())

    @property
    def at(self) -> Discretisation:
        """The discretisation to ask a model for."""
        return at(**self.sizes)


@dataclass(frozen=True)
class Pareto:
    """The sizes that were measured, the native one first, and on what machine: times are not those of another."""

    points: tuple[Point, ...]
    measured_on: str = ""

    def front(self, cost: str = "seconds") -> list[Point]:
        """Sizes for which no other one is at most as costly and better (by more than round-off), by rising cost."""
        front: list[Point] = []
        for point in sorted(self.points, key=lambda p: (getattr(p, cost), p.loss)):
            if not front or point.loss < front[-1].loss - EQUAL * abs(front[-1].loss):
                front.append(point)
        return front

    def pick(self, **budget: float | int) -> Point:
        """The best size within ``latency`` (seconds), ``flops`` and ``memory`` (bytes) of one sample."""
        for name in budget:
            if name not in BUDGETS:
                remedy = f"Use {', '.join(BUDGETS)}."
                raise ConfigError("a budget is a limit for one sample", got=name, remedy=remedy)
        fits = [p for p in self.points if all(getattr(p, BUDGETS[k]) <= limit for k, limit in budget.items())]
        if not fits:
            least = ", ".join(typed_budget(k, min(getattr(p, BUDGETS[k]) for p in self.points)) for k in budget)
            asked = ", ".join(typed_budget(k, v) for k, v in budget.items())
            raise ConfigError("no measured size fits", got=asked, remedy=f"The least that was measured: {least}.")
        return min(fits, key=lambda p: p.loss)

    def save(self, path: str | Path) -> Path:
        """Write the points as JSON."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(
            path,
            json.dumps({"measured_on": self.measured_on, "points": [asdict(point) for point in self.points]}, indent=1),
        )
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Pareto":
        """Read what ``save`` wrote."""
        try:
            said = json.loads(read_bytes(Path(path)))
            points = tuple(_point(line) for line in said["points"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            remedy = "Delete it and measure again: continua pareto RUN."
            raise ConfigError(f"{path} is no table of sizes", got=repr(problem), remedy=remedy) from problem
        if not points:
            raise ConfigError(f"{path} is no table of sizes", got="none in it", remedy="Delete it and measure again.")
        return cls(points, str(said.get("measured_on", "")))

    def joined(self, earlier: "Pareto") -> "Pareto":
        """These points and those of ``earlier`` at other sizes, if both measured the native size of one model alike
        on one machine.

        Where the native loss is another one, the model has learned since or other data were read: then nothing of
        ``earlier`` can be compared with this.
        """
        native = self.points[0]
        before = earlier.points[0]
        if earlier.measured_on != self.measured_on:
            return self
        if before.sizes != native.sizes or abs(before.loss - native.loss) > EQUAL * abs(native.loss):
            return self
        known = [point.sizes for point in self.points]
        more = (point for point in earlier.points if point.sizes not in known)
        return Pareto((*self.points, *more), self.measured_on)

    def plot(self, path: str | Path, title: str = "One checkpoint, many sizes") -> Path:
        """Loss over time and over FLOPs, with the fronts; hollow marks are sizes that training never saw."""
        plt = pyplot()
        figure, panels = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
        for panel, cost, unit, label in (
            (panels[0], "seconds", 1e3, "milliseconds for one sample"),
            (panels[1], "flops", 1e-6, "million FLOPs for one sample"),
        ):
            front = self.front(cost)
            panel.plot([getattr(p, cost) * unit for p in front], [p.loss for p in front], color="0.75", zorder=1)
            for i, point in enumerate(self.points):
                fill = "white" if point.trained is False else "#0072b2" if i else "#d55e00"
                edge = "#0072b2" if i else "#d55e00"
                panel.scatter(getattr(point, cost) * unit, point.loss, s=46, color=fill, edgecolors=edge, zorder=2)
            self._name(panel, front, cost, unit)
            panel.set(xlabel=label, xscale="log")
            panel.margins(x=0.25)
            panel.xaxis.set_major_formatter(plt.FuncFormatter(lambda value, _: f"{value:g}"))
            panel.xaxis.set_minor_formatter(plt.FuncFormatter(lambda value, _: _round(value)))
            panel.tick_params(axis="x", which="both", labelsize=8)
            panel.grid(alpha=0.25)
        panels[0].set_ylabel("held-out loss")
        figure.suptitle(f"{title}  (orange: native; hollow: never trained)", fontsize=12)
        return save(plt, figure, path)

    def _name(self, panel: Any, front: list[Point], cost: str, unit: float) -> None:
        """Names to the left below their marks; to the right above where that of the neighbour is in the way."""
        losses = [p.loss for p in self.points]
        near = NEAR * (max(losses) - min(losses))
        moved = False
        for before, p in zip([None, *front], front, strict=False):
            touch = before is not None and getattr(p, cost) < CLOSE * getattr(before, cost)
            moved = not moved and touch and before is not None and before.loss - p.loss < near
            shift, side = ((6, 5), "left") if moved else ((-5, -9), "right")
            place = (getattr(p, cost) * unit, p.loss)
            panel.annotate(p.name, place, shift, textcoords="offset points", fontsize=7, ha=side)


def _point(line: dict[str, Any]) -> Point:
    """A point of a file, with numbers where numbers belong."""
    sizes = {str(letter): int(n) for letter, n in line["sizes"].items()}
    trained = line.get("trained")
    known = trained if isinstance(trained, bool) else None
    cost = (float(line["loss"]), float(line["seconds"]), int(line["flops"]), int(line["bytes"]))
    return Point(sizes, *cost, known)


def _round(value: float) -> str:
    """2, 3 and 5 of each decade are named, the others would touch."""
    return f"{value:g}" if f"{value:e}"[0] in "235" else ""


def size_grid(model: Any) -> list[Discretisation]:
    """The native size, less of one axis, of two and of all three, twice the steps and twice the width."""
    native = model.native
    d = native.d.n
    h = native.h.n
    z = native.z.steps

    eighths = [(8, 8, 8), (5, 8, 8), (4, 8, 8), (8, 6, 8), (8, 4, 8), (8, 8, 6), (8, 8, 4), (4, 4, 8), (4, 8, 4)]
    eighths += [(8, 4, 4), (5, 6, 6), (4, 4, 4), (8, 8, 16), (16, 8, 8)]
    wishes = [tuple(max(1, round(n * k / 8)) for n, k in zip((d, h, z), each, strict=True)) for each in eighths]
    return [at(d=a, h=b, z=c) for a, b, c in dict.fromkeys(wishes)]


@torch.no_grad()
def pareto(
    model: Any,
    task: Task,
    sizes: Iterable[Discretisation] | None = None,
    trained: Callable[[dict[str, int]], bool] | None = None,
    rounds: int = 5,
    watch: ReportCount | None = None,
) -> Pareto:
    """Measure ``model`` at each of ``sizes`` (``size_grid`` if None) on the held-out data of ``task``.

    Times are medians of ``rounds`` interleaved forward passes of one sample with weights that are held, after one
    that is not counted.
    ``trained`` tells of sizes by letter whether training drew them.
    """
    asked = list(size_grid(model) if sizes is None else sizes)
    if not asked:
        raise ConfigError("a Pareto table needs sizes", got="none", remedy="Leave sizes out for the usual grid.")
    device = next(model.parameters()).device
    sample = task.example(0, 0).rows(slice(0, 1)).to(device)
    was = model.training
    total = len(asked) * 2
    done = 0
    model.eval()
    views = [model.at(wish) for wish in asked]
    frozen = [view.held() for view in views]
    seconds = _interleaved(frozen, sample, rounds)
    points = []
    for view, held, took in zip(views, frozen, seconds, strict=True):
        named = _sizes(model.settle(view.discretisation))
        loss = task.evaluate(view).main
        done += 1
        if watch is not None:
            watch(done, total)
        work = predict(view, 1, *_tokens(view, sample))
        peak = _bytes(held, sample)
        done += 1
        points.append(Point(named, loss, took, work.forward, peak, None if trained is None else trained(named)))
        if watch is not None:
            watch(done, total)
    model.train(was)
    return Pareto(tuple(points), machine(device))


def _bytes(held: FrozenView, sample: Example) -> int:
    """The weights that a view holds, and what a pass needs beside them."""
    weights = {(x.data_ptr(), x.shape): x.nbytes for x in tensors(held.reads)}
    return sum(weights.values()) + peak_bytes(lambda: held(sample.batch))


def typed_budget(name: str, value: float) -> str:
    """A limit for one sample as it is typed, rounded up to three digits.

    >>> typed_budget("latency", 0.0021301), typed_budget("flops", 2.5e7), typed_budget("memory", 3e6)
    ('latency=2.14ms', 'flops=25M', 'memory=3MB')
    """
    unit, scale = next(
        ((unit, size) for unit, size in UNITS[name].items() if value >= size), [*UNITS[name].items()][-1]
    )
    shown = value / scale
    digits = 2 - math.floor(math.log10(shown)) if shown > 0 else 0
    return f"{name}={math.ceil(round(shown * 10**digits, 6)) / 10**digits:g}{unit}"


def _sizes(chosen: Discretisation) -> dict[str, int]:
    """What a settled discretisation is called: d, h and z, which ``at`` understands again."""
    return {"d": chosen.d.n, "h": chosen.h.n, "z": chosen.z.steps}  # type: ignore[union-attr]


def _tokens(view: View, sample: Example) -> tuple[int, Discretisation, int]:
    """How many tokens the flow that answers walks, on what, and how many there are in the source beside it."""
    where = view.discretisation
    source = sample.batch.source
    beside = 0 if source is None else view.model.flows[0].states(source, where).final.shape[1]
    return view.states(sample.batch).final.shape[1], where, beside


def _interleaved(views: Sequence[Any], sample: Example, rounds: int) -> list[float]:
    """The median seconds of each view; every round asks all of them."""
    seen: list[list[float]] = [[] for _ in views]
    for round_ in range(rounds + 1):
        for view, times in zip(views, seen, strict=True):
            _wait(sample)
            start = time.perf_counter()
            view(sample.batch)
            _wait(sample)
            if round_:
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seen]


def _wait(sample: Example) -> None:
    if sample.target.is_cuda:
        torch.cuda.synchronize(sample.target.device)
