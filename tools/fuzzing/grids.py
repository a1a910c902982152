"""Rules, axes, masses and products: does a grid weigh what its axis weighs, inside its ends?"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from fuzzing import oracles
from fuzzing.case import Case
from fuzzing.draw import ODD, Draw, call, shown

RULES = (
    "Midpoint",
    "Trapezoid",
    "LeftEnd",
    "GaussLegendre",
    "ClenshawCurtis",
    "Nested",
    "Lattice",
    "Sobol",
    "MonteCarlo",
)
NONNEGATIVE = {*RULES}
SIZES = (1, 2, 3, 4, 5, 8, 16, 31, 64)


def axis_of(
    draw: Draw, name: str, kinds: tuple[str, ...] = ("Interval", "Circle", "Points")
) -> tuple[str, dict[str, Any]]:
    """A kind of axis and its arguments."""
    kind = draw.pick(f"{name}.kind", kinds)
    given: dict[str, Any] = {}
    if kind in ("Interval", "Times"):
        start = draw.pick(f"{name}.from", (0.0, -1.0, 2.5, 1e-3, -1e6))
        given["start"] = draw.spoil(f"{name}.start", start)
        given["end"] = draw.spoil(f"{name}.end", start + draw.pick(f"{name}.by", (1.0, 0.1, 3.0, 1e4)))
    elif kind == "Circle":
        given["length"] = draw.spoil(f"{name}.length", draw.pick(f"{name}.by", (1.0, 0.1, 2 * math.pi, 1e4)))
    elif kind == "Points":
        given["n"] = draw.spoil(f"{name}.n", draw.pick(f"{name}.by", SIZES))
    if kind in ("Interval", "Circle"):
        mass = draw.pick(f"{name}.weighs", (None, None, 1.0, 7.0, 1e-6))
        given["mass"] = draw.spoil(f"{name}.mass", mass, least=0.1)
    return kind, given


def grids(draw: Draw) -> Case:
    """One of: a rule on an axis, a product of them, given samples."""
    return draw.pick("what", (_rule, _rule, _product, _samples, _samples, _calculus))(draw)


def _rule(draw: Draw) -> Case:
    from continua import axes as ax

    kind, given = axis_of(draw, "axis")
    n = given.get("n") if kind == "Points" and isinstance(given.get("n"), int) else draw.pick("n", SIZES)
    rule = draw.pick("rule", ("Counting", "Nested") if kind == "Points" else RULES)
    rule = draw.spoil("rule", rule, (*RULES, "Counting", "ProductRule"))
    count = draw.spoil("count", n, least=0.1)
    seed = {"seed": draw.spoil("seed", 3)} if rule in ("Lattice", "Sobol", "MonteCarlo") else {}

    def build() -> Any:
        axis = getattr(ax, kind)(**given)
        chosen = getattr(ax, rule)((count,)) if rule == "ProductRule" else getattr(ax, rule)(count, **seed)
        return axis, chosen, ax.grid_on(axis, chosen)

    return Case(f"axes.grid_on({call(kind, **given)}, {rule}({shown(count)}))", build, _weighs)


def _weighs(answer: Any) -> Iterable[str]:
    from continua import axes as ax

    axis, rule, grid = answer
    if type(axis).__name__ == "Points" and axis.n is None:
        axis = ax.Points(len(grid))
    nodes, weights = grid.nodes.double(), grid.weights.double()
    if len(grid) != rule.n:
        yield f"count: {len(grid)} nodes of {rule.n}"
    if not (torch.isfinite(nodes).all() and torch.isfinite(weights).all()):
        yield "finite: nodes or weights are not numbers"
        return
    mass = ax.mass_of(axis)
    if not (isinstance(mass, int | float) and mass > 0 and math.isfinite(mass)):
        yield f"mass: an axis of mass {mass!r} was accepted"
    if abs(float(weights.sum()) - mass) > 1e-9 * max(1.0, abs(mass)):
        yield f"sum: weights sum to {float(weights.sum())}, mass {mass}"
    if (weights < -1e-12 * abs(mass)).any():
        yield "sign: negative weights"
    yield from _inside(axis, nodes)
    yield from _exact(axis, rule, nodes, weights)


def _inside(axis: Any, nodes: torch.Tensor) -> Iterable[str]:
    kind = type(axis).__name__
    if kind == "Points":
        low, high = 0.0, (axis.n or len(nodes)) - 1.0
    else:
        low, high = float(axis.start), float(axis.start) + float(axis.length)
    slack = 1e-9 * max(1.0, abs(low), abs(high))
    if nodes.min() < low - slack or nodes.max() > high + slack:
        yield f"inside: nodes from {float(nodes.min())} to {float(nodes.max())} on [{low}, {high}]"


def _exact(axis: Any, rule: Any, nodes: torch.Tensor, weights: torch.Tensor) -> Iterable[str]:
    """A dense reference: moments that Gauss and Clenshaw–Curtis integrate exactly."""
    degree = {"GaussLegendre": 2 * rule.n - 1, "ClenshawCurtis": rule.n - 1, "Midpoint": 1, "Trapezoid": 1}
    degree = degree.get(type(rule).__name__, 0)
    if type(axis).__name__ != "Interval" or not degree:
        return
    u = (nodes[:, 0] - axis.start) / axis.length
    share = weights / weights.sum()
    for power in range(min(degree, 6) + 1):
        if abs(float((share * u**power).sum()) - 1 / (power + 1)) > 1e-7:
            yield f"exact: the moment of degree {power} is wrong"


def _product(draw: Draw) -> Case:
    from continua import axes as ax

    count = draw.spoil("factors", draw.pick("dim", (2, 2, 3)), (0, 1, 4))
    factors = [axis_of(draw, f"axis{i}", ("Interval", "Circle")) for i in range(count)]
    sizes = [draw.spoil(f"n{i}", draw.pick(f"size{i}", (1, 2, 3, 5))) for i in range(count)]
    names = [draw.pick(f"rule{i}", RULES[:6]) for i in range(count)]
    extra = draw.spoil("rules", 0, (1, -1))
    mass = draw.spoil("mass", draw.pick("weighs", (None, 2.0)))
    odd = draw.spoil("factor", None, (*ODD, "Points", "Times"))

    def build() -> Any:
        made: list[Any] = [getattr(ax, kind)(**given) for kind, given in factors]
        if odd is not None and made:
            made[0] = getattr(ax, odd)() if isinstance(odd, str) and odd in ("Points", "Times") else odd
        axis = ax.Product(tuple(made), mass=mass)
        rules = tuple(getattr(ax, name)(n) for name, n in zip(names, sizes, strict=True))
        rules = rules[:extra] if extra < 0 else rules + rules[:extra]
        rule = ax.ProductRule(rules)
        return axis, rule, ax.grid_on(axis, rule)

    def judge(answer: Any) -> Iterable[str]:
        axis, rule, grid = answer
        weights = grid.weights
        if not torch.isfinite(weights).all() or not torch.isfinite(grid.nodes).all():
            yield "finite: nodes or weights are not numbers"
        total = ax.mass_of(axis)
        if not total > 0 or abs(float(weights.sum()) - total) > 1e-9 * total:
            yield f"sum: weights sum to {float(weights.sum())}, mass {total}"
        if len(grid) != rule.n or grid.nodes.shape[-1] != axis.dim:
            yield f"count: {list(grid.nodes.shape)} for {rule.n} nodes of dimension {axis.dim}"

    return Case(
        f"Product of {shown(factors)} with {shown(list(zip(names, sizes, strict=True)))}, mass={mass!r}", build, judge
    )


BAD_STAMPS: tuple[Any, ...] = (
    "nan", "inf", "unsorted", "equal", "outside", "empty", "list", "numpy", "int", "bool", "half", "3-d", "none",
    "text", "scalar", "complex", "object",
)  # fmt: skip


def stamps_of(draw: Draw, name: str, low: float, high: float, n: int, b: int = 0) -> Any:
    """Stamps in [low, high], sorted, or spoilt in one of the ways that data are."""
    shape = (b, n) if b else (n,)
    times = torch.rand(shape, generator=draw.tensors(name), dtype=torch.float64).sort(-1).values * (high - low) + low
    how = draw.spoil(name, None, BAD_STAMPS, least=0.3)
    if how is None:
        return times
    if how in ("nan", "inf"):
        times[..., n // 2] = math.nan if how == "nan" else math.inf
    odd: dict[str, Any] = {
        "unsorted": times.flip(-1),
        "equal": torch.full_like(times, (low + high) / 2),
        "outside": times + (high - low) * 1.7,
        "empty": times[..., :0],
        "list": times.tolist(),
        "numpy": times.numpy(),
        "int": times.round().long(),
        "bool": times > low,
        "half": times.half(),
        "3-d": times[None, None],
        "none": None,
        "text": "now",
        "scalar": 3.0,
        "complex": times.to(torch.complex64),
        "object": np.array([object()] * n),
    }
    return odd.get(how, times)


def _samples(draw: Draw) -> Case:
    from continua import axes as ax

    kind, given = axis_of(draw, "axis", ("Interval", "Circle", "Times"))
    if kind == "Times" and draw.chance("open", 0.6):
        given = {}
    n = draw.pick("n", (1, 2, 3, 5, 9))
    low = given.get("start", 0.0)
    low = float(low) if isinstance(low, int | float) and abs(low) < 1e30 else 0.0
    high = given.get("end")
    high = high if isinstance(high, int | float) and low < high < low + 1e30 else low + 1.0
    if kind == "Circle":
        length = given["length"]
        low, high = 0.0, length if isinstance(length, int | float) and 0 < length < 1e30 else 1.0
    times = stamps_of(draw, "times", low, float(high), n, draw.pick("b", (0, 0, 2)))
    observed = _observed(draw, times)
    order = draw.tensors("order")

    def build() -> Any:
        axis = getattr(ax, kind)(**given)
        return axis, ax.Samples().on(axis, times, observed)

    def judge(answer: Any) -> Iterable[str]:
        axis, grid = answer
        yield from _samples_weigh(axis, grid, times)
        if isinstance(times, torch.Tensor) and times.dim() and times.shape[-1] > 1:
            mixed = torch.randperm(times.shape[-1], generator=order)
            flags = None if observed is None else observed[..., mixed]
            again = ax.Samples().on(axis, times[..., mixed], flags)
            if oracles.apart(again.weights, grid.weights[..., mixed]) > 1e-6:
                yield "permutation: weights depend on the order of the stamps"

    return Case(f"Samples().on({call(kind, **given)}, {shown(times)}, {shown(observed)})", build, judge)


def _observed(draw: Draw, times: Any) -> Any:
    if not isinstance(times, torch.Tensor) or not draw.chance("gaps", 0.3):
        return None
    flags = torch.rand(times.shape, generator=draw.tensors("flags")) < 0.7
    flags[..., :1] = True
    return draw.spoil(
        "observed", flags, (flags[..., 1:], flags.float(), flags[None, None], [True], "x", torch.zeros_like(flags))
    )


def _samples_weigh(axis: Any, grid: Any, times: Any) -> Iterable[str]:
    weights = grid.weights.double()
    if not torch.isfinite(weights).all():
        yield "finite: weights are not numbers"
        return
    if (weights < 0).any():
        yield f"sign: negative weights {weights.tolist()}"
    kind = type(axis).__name__
    if kind == "Interval" or (kind == "Times" and axis.start is not None and axis.end is not None):
        if not all(isinstance(end, int | float) for end in (axis.start, axis.end)):
            yield f"ends: an axis from {axis.start!r} to {axis.end!r} was accepted"
            return
        mass = (axis.end - axis.start) if kind == "Times" or axis.mass is None else axis.mass
        total = weights.sum(-1)
        # stamps are kept in the dtype they came in
        eps = torch.finfo(grid.weights.dtype).eps
        slack = max(1e-5, 4 * eps) * abs(mass) + 1e-7 * max(abs(float(axis.start)), abs(float(axis.end)))
        if (total - mass).abs().max() > slack:
            yield f"sum: weights sum to {total.tolist()}, mass {mass}"


def _calculus(draw: Draw) -> Case:
    """What a grid can do with values: integrate, inner, norm, only, union."""
    from continua import axes as ax

    n = draw.pick("n", (1, 3, 8))
    verb = draw.pick("verb", ("integrate", "inner", "norm", "only", "union"))
    size = draw.spoil("size", n, (0, n + 1, 2 * n))
    dtype = draw.spoil("dtype", torch.float64, (torch.float32, torch.long, torch.bool, torch.complex64, torch.float16))
    values = draw.numbers("values", size, 3, dtype=torch.float64).to(dtype)
    values = draw.spoil("values", values, (None, "x", values.numpy(), values[:, 0], 3.0, [1.0] * n))

    def build() -> Any:
        grid = ax.grid_on(ax.Interval(), ax.Midpoint(n))
        if verb == "only":
            is_table = isinstance(values, torch.Tensor) and values.dim() == 2 and not values.is_complex()
            flags = values[:, 0] > 0 if is_table else values
            return grid.only(flags)
        if verb == "union":
            return grid.union(
                ax.grid_on(ax.Interval(), ax.Midpoint(size)) if isinstance(values, torch.Tensor) else values
            )
        return getattr(grid, verb)(*((values, values) if verb == "inner" else (values,)))

    def judge(answer: Any) -> Iterable[str]:
        if verb in ("integrate", "inner", "norm") and isinstance(values, torch.Tensor):
            f = values.double()
            wanted = {"integrate": f.mean(0), "inner": (f * f).mean(0), "norm": (f * f).mean(0).sqrt()}[verb]
            if answer.shape != wanted.shape or not torch.allclose(answer.double(), wanted, rtol=1e-3, atol=1e-3):
                yield f"dense: {verb} of {list(values.shape)} {values.dtype} is {shown(answer)}"

    return Case(f"Grid({n}).{verb}({shown(values)})", build, judge)
