"""One checkpoint at many sizes: loss, time, FLOPs and memory of each, and the front of those that nothing beats."""

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from continua.axes import Discretisation, at
from continua.devices import machine
from continua.errors import ConfigError
from continua.files import read_bytes, write_text
from continua.lab.cost.acceptance import HeardView
from continua.lab.cost.beside import Beside
from continua.lab.cost.complexity import predict
from continua.lab.cost.memory import peak_bytes, uncollected
from continua.lab.cost.pareto_picture import draw, draw_many
from continua.lab.cost.point import Point, typed_size
from continua.lab.progress import ReportCount
from continua.models import FrozenView, View
from continua.tasks import Example, Task
from continua.timing import interleaved
from continua.tree import tensors

EQUAL = 1e-6  # losses this close, in relative terms, are one: twice the width gives the native answers to round-off
WIDTHS = (0.25, 0.5, 0.625, 0.75, 1.0)  # shares of d in a large grid
QUARTERS = (0.25, 0.5, 0.75, 1.0)  # those of h and z
BUDGETS = {"latency": "seconds", "flops": "flops", "memory": "bytes"}
UNITS = {
    "latency": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "flops": {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0},
    "memory": {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0},
}


@dataclass(frozen=True)
class Pareto:
    """The sizes that were measured, the native one first, and on what machine: times are not those of another.

    ``nats`` says that losses are nats a token, so that their exponentials are perplexities.
    """

    points: tuple[Point, ...]
    measured_on: str = ""
    nats: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether every size has its time."""
        return all(point.seconds is not None for point in self.points)

    def perplexity_ratio(self, point: Point) -> float | None:
        """The perplexity of a size over that of the native one, exp(loss − native loss); None where there is none."""
        return math.exp(min(point.loss - self.points[0].loss, 700.0)) if self.nats else None

    def front(self, cost: str = "seconds") -> list[Point]:
        """Sizes for which no other one is at most as costly and better (by more than round-off), by rising cost.

        Sizes whose cost was not measured are left out.
        """
        front: list[Point] = []
        known = [point for point in self.points if getattr(point, cost) is not None]
        for point in sorted(known, key=lambda p: (getattr(p, cost), p.loss)):
            if not front or point.loss < front[-1].loss - EQUAL * abs(front[-1].loss):
                front.append(point)
        return front

    def pick(self, **budget: float | int) -> Point:
        """The best size within ``latency`` (seconds), ``flops`` and ``memory`` (bytes) of one sample."""
        for name in budget:
            if name not in BUDGETS:
                remedy = f"Use {', '.join(BUDGETS)}."
                raise ConfigError("a budget is a limit for one sample", got=name, remedy=remedy)
        known = [p for p in self.points if all(getattr(p, BUDGETS[k]) is not None for k in budget)]
        fits = [p for p in known if all(getattr(p, BUDGETS[k]) <= limit for k, limit in budget.items())]
        if not fits:
            least = ", ".join(typed_budget(k, min(getattr(p, BUDGETS[k]) for p in known)) for k in budget)
            asked = ", ".join(typed_budget(k, v) for k, v in budget.items())
            raise ConfigError("no measured size fits", got=asked, remedy=f"The least that was measured: {least}.")
        return min(fits, key=lambda p: p.loss)

    def save(self, path: str | Path) -> Path:
        """Write the points as JSON."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        said = {"measured_on": self.measured_on, "nats": self.nats, "points": [asdict(point) for point in self.points]}
        write_text(path, json.dumps(said, indent=1))
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
        return cls(points, str(said.get("measured_on", "")), said.get("nats") is True)

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
        more = [point for point in earlier.points if point.sizes not in known]
        timed = {point.name: point for point in earlier.points if point.seconds is not None}
        own = [timed.get(point.name, point) if point.seconds is None else point for point in self.points]
        return replace(self, points=(*own, *more))

    def plot(self, path: str | Path, title: str = "One checkpoint, many sizes", beside: Sequence[Beside] = ()) -> Path:
        """Loss over time and over FLOPs, with the fronts; hollow marks are sizes that training never saw.

        Where not every size has a time, or other models are given (``beside``), loss over FLOPs alone, coloured by the
        number of steps, with the line through those models.
        """
        over_flops = self.front("flops")
        if self.is_timed and not beside:
            return draw(self.points, self.front(), over_flops, path, title, self.nats)
        return draw_many(self.points, over_flops, path, title, self.nats, beside)


def _point(line: dict[str, Any]) -> Point:
    """A point of a file, with numbers where numbers belong."""
    sizes = {str(k): tuple(map(int, n)) if isinstance(n, list) else int(n) for k, n in line["sizes"].items()}
    trained = line.get("trained")
    seconds = None if line["seconds"] is None else float(line["seconds"])
    peak = None if line["bytes"] is None else int(line["bytes"])
    known = trained if isinstance(trained, bool) else None
    alpha = None if line.get("alpha") is None else float(line["alpha"])
    return Point(sizes, float(line["loss"]), seconds, int(line["flops"]), peak, known, alpha)


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


def many_sizes(model: Any) -> list[Discretisation]:
    """The native size, and quarters to all of d, h, z and m with each other; more of one axis, and twice the steps.

    The hidden width m follows d, or is half of that, but never less than a quarter of the native one. Of a model with
    4 heads and 4 steps these are more than a hundred sizes.
    """
    native = model.native
    full = (native.d.n, native.h.n, native.z.steps)
    shares = [*itertools.product(WIDTHS, QUARTERS, QUARTERS, (1.0, 0.5))]
    shares += [(d, 1.0, 2.0, 1.0) for d in WIDTHS]
    shares += [(2.0, 1.0, 1.0, 1.0), (1.0, 2.0, 1.0, 1.0), (1.0, 1.0, 1.0, 2.0), (1.0, 1.0, 1.0, 0.25)]
    found = [model.native]
    for *of_three, hidden in sorted(shares, key=lambda each: each != (1.0,) * 4):
        d, h, z = (max(1, round(n * share)) for n, share in zip(full, of_three, strict=True))
        if hidden == 1.0:
            found.append(at(d=d, h=h, z=z))
        elif hidden * of_three[0] >= QUARTERS[0]:
            found.append(at(d=d, h=h, z=z, m=max(1, round(native.m.n * hidden * of_three[0]))))
    return list({point_name(model, wish): wish for wish in reversed(found)}.values())[::-1]


@torch.no_grad()
def pareto(
    model: Any,
    task: Task,
    sizes: Iterable[Discretisation] | None = None,
    trained: Callable[[dict[str, Any]], bool] | None = None,
    rounds: int = 5,
    watch: ReportCount | None = None,
    *,
    front_only: bool = False,
) -> Pareto:
    """Measure ``model`` at each of ``sizes`` (``size_grid`` if None) on the held-out data of ``task``.

    Times are medians of ``rounds`` interleaved forward passes of one sample with weights that are held, after one
    that is not counted. ``front_only`` measures times and memory of the native size and of those on the front over
    FLOPs alone: for grids of many sizes, such as ``many_sizes``. ``trained`` tells of sizes by letter whether training
    drew them.
    """
    asked = list(size_grid(model) if sizes is None else sizes)
    if not asked:
        raise ConfigError("a Pareto table needs sizes", got="none", remedy="Leave sizes out for the usual grid.")
    device = next(model.parameters()).device
    sample = task.example(0, 0).rows(slice(0, 1)).to(device)
    was = model.training
    model.eval()
    views = [model.at(wish) for wish in asked]
    points = []
    nats = False
    native = HeardView(model, views[0].discretisation)
    for done, view in enumerate(views, 1):
        named = _sizes(model, model.settle(view.discretisation))
        heard = HeardView(model, view.discretisation) if done > 1 else native
        score = task.evaluate(heard)
        nats = "perplexity" in score.values
        work = predict(view, 1, *_tokens(view, sample))
        known = None if trained is None else trained(named)
        alpha = heard.alpha(native) if nats else None
        points.append(Point(named, score.main, None, work.forward, None, known, alpha))
        if watch is not None:
            watch(done, len(asked) if front_only else 2 * len(asked))
    found = _timed(views, Pareto(tuple(points), machine(device), nats), sample, rounds, watch, front_only)
    model.train(was)
    return found


def _timed(
    views: Sequence[View], found: Pareto, sample: Example, rounds: int, watch: ReportCount | None, front_only: bool
) -> Pareto:
    """Seconds and bytes of the native size and of the front, or of all."""
    front = {id(point) for point in (found.points[0], *found.front("flops"))}
    chosen = [i for i, point in enumerate(found.points) if not front_only or id(point) in front]
    frozen = [views[i].held() for i in chosen]
    seen = interleaved([lambda view=view: view(sample.batch) for view in frozen], rounds, sample.target.device)  # type: ignore[misc]
    seconds = [statistics.median(times) for times in seen]
    points = list(found.points)
    with uncollected():
        for done, (i, held, took) in enumerate(zip(chosen, frozen, seconds, strict=True), 1):
            points[i] = replace(points[i], seconds=took, bytes=_bytes(held, sample))
            if watch is not None:
                watch(len(points) + done, len(points) + len(chosen))
    return replace(found, points=tuple(points))


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


def _sizes(model: Any, chosen: Discretisation) -> dict[str, int | tuple[int, ...]]:
    """What a settled discretisation is called, so that ``at`` understands it again.

    d, h and z (lengths of steps where they are named), and m and e where they are not what follows from these.
    """
    sizes: dict[str, Any] = {"d": chosen.d.n, "h": chosen.h.n, "z": steps_of(model, chosen.z)}  # type: ignore[union-attr]
    usual = model.settle(at(d=chosen.d))
    return sizes | {k: getattr(chosen, k).n for k in "me" if getattr(chosen, k).n != getattr(usual, k).n}


def steps_of(model: Any, z: Any) -> int | tuple[int, ...]:
    """The number of steps, or their lengths where these are not those that the number alone gives."""
    if z.lengths is None:
        return int(z.steps)
    usual = model.settle(at(z=z.steps)).z.walk((0.0, 1.0))
    same = all(math.isclose(one[0], two[0]) for one, two in zip(z.walk((0.0, 1.0)), usual, strict=True))
    return int(z.steps) if same else tuple(z.lengths)


def point_name(model: Any, wish: Discretisation) -> str:
    """What a size of a model is called."""
    return " ".join(f"{letter}={typed_size(n)}" for letter, n in _sizes(model, model.settle(wish)).items())


def _tokens(view: View, sample: Example) -> tuple[int, Discretisation, int]:
    """How many tokens the flow that answers walks, on what, and how many there are in the source beside it."""
    where = view.discretisation
    source = sample.batch.source
    beside = 0 if source is None else view.model.flows[0].states(source, where).final.shape[1]
    return view.states(sample.batch).final.shape[1], where, beside
