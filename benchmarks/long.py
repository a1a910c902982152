"""Attention without all pairs on long smooth fields: time beside fused attention, error, and slope of time over n.

    python benchmarks/long.py                  # about four minutes on one core

One sample, four heads of width 32, float32, one thread. Queries, keys and values are smooth functions of time that do
not come round, with scores that spread over ±6 or so. Time is CPU time of binding and attending, medians of interleaved
rounds beside ``scaled_dot_product_attention`` on the same tensors. Errors are relative to exact attention in float64 on
random rows, under the mask and position that the kernel stands for.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from common import Row, cpu_seconds, environment, interleaved, ratio, write
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import continua as ct
from continua.axes import (
    Axes,
    Counting,
    GaussLegendre,
    Grid,
    Interval,
    Lattice,
    Midpoint,
    MonteCarlo,
    Points,
    Samples,
    Sobol,
    Times,
    counting,
    grid_on,
)
from continua.fields import Legendre
from continua.models import Transformer
from continua.operators import (
    Causal,
    Comb,
    FewSources,
    Gaussian,
    Local,
    Mask,
    Nystrom,
    Position,
    PositiveFeatures,
    Stationary,
    Subquadratic,
    spread,
)
from continua.operators.attention.parts import Sources
from continua.operators.attention.plan import Plan, Scores, plan
from tests.measure import slope

LONG, SIZES, ROUNDS = 16_384, (4_096, 8_192, 16_384, 32_768, 65_536, 131_072), 3
WARM = 1
HEADS, WIDTH = 4, 32
RATIO, ERROR, SLOPE = 0.1, 1e-2, 1.15


def fields(n: int, seed: int = 0, times: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [1, heads, n, width]: random sums of eleven waves whose periods do not divide the interval."""
    generator = torch.Generator().manual_seed(seed)
    u = (torch.arange(n).double() + 0.5) / n if times is None else times.double()
    modes = torch.arange(1, 7).double()
    angle = 2 * math.pi * 0.83 * u[:, None] * modes
    waves = torch.cat([torch.ones_like(u[:, None]), angle[:, :5].cos(), angle[:, :5].sin()], -1)
    fall = torch.cat([torch.ones(1), 1 / (1 + modes[:5]), 1 / (1 + modes[:5])]).double()
    size = torch.randn(3, HEADS, waves.shape[-1], WIDTH, generator=generator, dtype=torch.float64) * fall[:, None]
    q, k, v = torch.einsum("nm,xhme->xhne", waves, size) / 0.83
    return 1.25 * q[None].float(), 1.25 * k[None].float(), v[None].float()


@dataclass(frozen=True)
class Case:
    """A kernel (of n), its mask and position, and the stamps."""

    kernel: Callable[[int], Any]
    mask: Mask | None = None
    position: Position | None = None
    irregular: bool = False

    def grid(self, n: int) -> Grid:
        """Counted tokens, or irregular stamps with their cells as weights."""
        if not self.irregular:
            return counting(n, torch.zeros(()))
        steps = 0.1 + torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return Samples().on(Times(), (steps.cumsum(0) / steps.sum()).float())

    def fields(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Functions of these stamps."""
        return fields(n, times=self.grid(n).nodes[:, 0] if self.irregular else None)

    def plan(self, n: int, exact: bool = False, dtype: torch.dtype = torch.float32) -> tuple[Plan, Scores]:
        """As ``Attention`` would plan, or for the plain kernel that this one stands for."""
        kernel: Subquadratic = self.kernel(n)
        plain, mask = kernel.plain(self.mask)
        position, grid = self.position or Position(), self.grid(n).to(torch.zeros((), dtype=dtype))
        heads = grid_on(Points(HEADS), Counting(HEADS))
        return plan(
            grid, Sources(grid), mask=mask, position=position, placed=position.bind(heads, heads),
            kernel=plain if exact else kernel, scale=WIDTH**-0.5, pairs=None, itself=True,
        )  # fmt: skip

    def attend(self, n: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Bind and attend."""
        made, args = self.plan(n)
        return made.attend(q, k, v, args)

    def error(self, n: int, rows: int) -> float:
        """Relative, in the mean square, over random rows."""
        q, k, v = self.fields(n)
        got = self.attend(n, q, k, v)
        some = torch.randperm(n, generator=torch.Generator().manual_seed(2))[:rows].sort().values
        made, args = self.plan(n, exact=True, dtype=torch.float64)
        few = replace(args, t=args.t[..., some, :])
        bias = made.pair_bias(slice(None), q.double()[:, :, :1], few)
        scores = made.kernel.scores(q[:, :, some].double(), k.double(), made.scale)
        wanted = (scores + bias).softmax(-1) @ v.double()
        return float((got[:, :, some] - wanted).norm() / wanted.norm())


HEAD_AXES = Axes(t=Points(), d=Points(8), h=Points(HEADS), e=Points(WIDTH), m=Points(8), z=Interval())
NEAR_AND_FAR = Gaussian(HEAD_AXES, near=64.0, far=512.0)
CASES: dict[str, Case] = {
    "quadrature, 32 Gauss nodes": Case(lambda n: FewSources(GaussLegendre(32))),
    "quadrature, 64 midpoints": Case(lambda n: FewSources(Midpoint(64))),
    "quadrature, 32 Gauss nodes, irregular stamps": Case(lambda n: FewSources(GaussLegendre(32)), irregular=True),
    "quadrature, 32 Gauss nodes of the past, causal": Case(lambda n: FewSources(GaussLegendre(32)), Causal()),
    "Nyström, 32 landmarks": Case(lambda n: Nystrom(GaussLegendre(32))),
    "Nyström, 32 landmarks, irregular stamps": Case(lambda n: Nystrom(GaussLegendre(32)), irregular=True),
    "Monte Carlo, 256 sources": Case(lambda n: FewSources(MonteCarlo(256))),
    "Monte Carlo, 64 sources, 64 controls": Case(lambda n: FewSources(MonteCarlo(64), control=64)),
    "Sobol, 256 sources": Case(lambda n: FewSources(Sobol(256))),
    "lattice, 256 sources": Case(lambda n: FewSources(Lattice(256))),
    "Sobol, 64 sources, 64 controls": Case(lambda n: FewSources(Sobol(64), control=64)),
    "positive features, 256": Case(lambda n: PositiveFeatures(256)),
    "positive features, 256, causal": Case(lambda n: PositiveFeatures(256), Causal()),
    "local, radius 128": Case(lambda n: Local(128.0)),
    "local, radius 128, causal": Case(lambda n: Local(128.0), Causal()),
    "comb, stride √n": Case(lambda n: Comb(float(math.isqrt(n)))),
    "stationary, Gaussian of 64 to 512": Case(lambda n: Stationary(), position=NEAR_AND_FAR),
    "stationary, causal": Case(lambda n: Stationary(), Causal(), NEAR_AND_FAR),
}


def timed(names: list[str], n: int, peers: bool, tick: Callable[[], None]) -> dict[str, list[float]]:
    """CPU seconds of every case at one size, round by round."""
    data = {irregular: Case(CASES[names[0]].kernel, irregular=irregular).fields(n) for irregular in (False, True)}
    jobs: dict[str, Callable[[], float]] = {
        name: lambda case=CASES[name]: cpu_seconds(lambda: case.attend(n, *data[case.irregular])) for name in names
    }
    if peers:
        for causal in (False, True):
            jobs[f"SDPA{', causal' if causal else ''}"] = lambda causal=causal: cpu_seconds(
                lambda: scaled_dot_product_attention(*data[False], is_causal=causal)
            )
    return interleaved(jobs, rounds_of(n), WARM, tick)


def rounds_of(n: int) -> int:
    """Long calls need no crowd: two rounds tell the slope."""
    return ROUNDS if n <= LONG else 2


def of_kernels(tick: Callable[[], None]) -> tuple[list[Row], dict[str, Any]]:
    """One row for each kernel: time beside fused attention; error and slope in the note."""
    names, rows, raw = list(CASES), [], {}
    times = {n: timed(names, n, peers=n == LONG, tick=tick) for n in SIZES}
    for name in names:
        case = CASES[name]
        peer = "SDPA, causal" if case.mask is not None else "SDPA"
        beside = ratio(times[LONG][name], times[LONG][peer])
        errors = {n: case.error(n, rows=24 if n > LONG else 128) for n in (LONG, SIZES[-1])}
        tick()
        steep = -slope(SIZES, [statistics.median(times[n][name]) for n in SIZES])
        held = beside.median <= RATIO and max(errors.values()) <= ERROR and steep <= SLOPE
        note = f"error {errors[LONG]:.1e} ({errors[SIZES[-1]]:.1e} at n = 131,072), slope {steep:.2f}"
        rows.append(Row(name, beside.median, beside.low, beside.high, "× SDPA", "≤ 0.1", held, note))
        seconds = {n: statistics.median(times[n][name]) for n in SIZES}
        raw[name] = {"errors": errors, "slope": steep, "seconds": seconds}
    raw["SDPA"] = {"seconds": {LONG: statistics.median(times[LONG]["SDPA"])}}
    return rows, raw


# --- bias and variance -----------------------------------------------------------------------------------------------

DRAWS, SHORT = 128, 512
SPREADS = {
    **{f"Monte Carlo, m = {m}": FewSources(MonteCarlo(m)) for m in (8, 32, 128)},
    **{f"Monte Carlo, m = {m}, 16 controls": FewSources(MonteCarlo(m), control=16) for m in (8, 32, 128)},
    **{f"Sobol, m = {m}": FewSources(Sobol(m)) for m in (8, 32, 128)},
    **{f"lattice, m = {m}": FewSources(Lattice(m)) for m in (8, 32, 128)},
}


def of_draws(tick: Callable[[], None]) -> tuple[list[Row], dict[str, Any]]:
    """Deviation and bias over draws, measured and predicted."""
    q, k, v = (x.double() for x in fields(SHORT))
    rows, raw = [], {}
    for name, kernel in SPREADS.items():
        found = spread(kernel, q, k, v, draws=DRAWS)
        note = (
            f"independent draws: {found.predicted_deviation:.1e}; bias {found.bias:.1e} ± {found.bias_noise:.0e}, "
            f"predicted {found.predicted_bias:.1e}"
        )
        rows.append(Row(f"deviation: {name}", found.deviation, note=note))
        raw[name] = vars(found)
        tick()
    return rows, raw


# --- heads -----------------------------------------------------------------------------------------------------------

NODES, REFERENCE = (2, 4, 6, 8, 12, 16), 32


def of_heads(tick: Callable[[], None]) -> tuple[list[Row], dict[str, Any]]:
    """The heads of a smooth model as a continuous axis: relative error of the answer over the number of Gauss nodes."""
    times = torch.linspace(0, 1, 64).double()
    batch = ct.Batch(torch.stack([torch.sin(7 * times), torch.cos(4 * times)], -1)[None], times=times)
    rows, raw = [], {}
    for degree in (1, 2):
        torch.manual_seed(0)
        native = ct.at(d=32, h=8, e=8, z=2)
        bases = {"h": Legendre(degree + 1)}
        model = Transformer.continuous(channels=2, t=Times(), at=native, bases=bases).double()
        wanted = model(batch, at=ct.at(h=GaussLegendre(REFERENCE)))
        for n in NODES:
            got = model(batch, at=ct.at(h=GaussLegendre(n)))
            raw[f"degree {degree}, {n} nodes"] = off = float((got - wanted).norm() / wanted.norm())
            rows.append(Row(f"heads: {n} Gauss node{'s' * (n > 1)}, fields of degree {degree} in h", off))
            tick()
    return rows, raw


def main() -> int:
    torch.set_num_threads(1)
    console = Console()
    calls = sum(len(CASES) * (rounds_of(n) + WARM) for n in SIZES) + 2 * (ROUNDS + WARM)
    steps = calls + len(CASES) + len(SPREADS) + 2 * len(NODES)
    with Progress(console=console, transient=True) as progress, torch.no_grad():
        task = progress.add_task("measuring", total=steps)
        tick = lambda: progress.advance(task)  # noqa: E731
        heads, head_errors = of_heads(tick)
        rows, raw = of_kernels(tick)
        write("long", rows, kernels=raw)  # what was long in the making, whatever comes after
        draws, spreads = of_draws(tick)
    table = Table("long attention", "measured", "target", "", "")
    for row in [*rows, *draws, *heads]:
        table.add_row(row.name, row.shown, row.target, row.verdict, row.note)
    console.print(table)
    write(
        "long", [*rows, *draws, *heads], environment=environment(), tokens=LONG, sizes=SIZES, heads=HEADS, width=WIDTH,
        kernels=raw, spreads=spreads, head_nodes=head_errors,
    )  # fmt: skip
    return 0 if any(row.held for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
