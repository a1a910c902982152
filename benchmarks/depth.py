"""The depth engine against torchdiffeq, torchode and diffrax: overhead, gradients, memory, weights, evaluations.

    python benchmarks/depth.py                   # about ten minutes on one core;  --quick: a look, about a minute

One field in two sizes: causal pre-norm attention and feed-forward with four heads, whose weights are K = 6 Legendre
functions of depth. CPU time, one thread; a solve and the bare evaluations it is compared with alternate, and the median
of their ratios is given with its interval. Peers get the same field (diffrax: the same in JAX, compared with its own).
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import gc
import importlib.metadata
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import depth_peers as peers
import torch
from common import Estimate, Row, cpu_seconds, environment, estimate, interleaved, peak_bytes, ratio, row, write
from depth_case import MEDIUM, MODES, SIZES, SMALL, SPAN, Case, Size
from depth_peers import STEPS, TOLERANCE
from rich.console import Console
from rich.table import Table
from torch import Tensor

from continua import flow
from continua.axes import Interval
from continua.fields import Legendre
from continua.flow import RK4, Adaptive, Direct, Dopri5, Fixed, Lean, Recompute, Reversible, ReversibleSolver, solve
from continua.tree import tensors

LATE = 1e-2  # rtol and atol with weights over depth: as many evaluations as TOLERANCE takes with the same everywhere
SCAN = [10 ** (-k / 4) for k in range(4, 21)]  # rtol; atol is the same or a hundredth


def limited(name: str, got: Estimate | float, limit: float, **rest: Any) -> Row:
    """A row that holds where it stays at or below the limit."""
    rest |= {"target": f"≤ {limit:g}", "held": getattr(got, "median", got) <= limit}
    return (row if isinstance(got, Estimate) else Row)(name, got, **rest)  # type: ignore[operator]


# --- overhead --------------------------------------------------------------------------------------------------------


def fixed_pair(case: Case) -> tuple[Callable[[], float], int]:
    """RK4 with weights over depth that were read before: one evaluation at the ends, two at each node between."""
    field, args = case.bind(Fixed(STEPS, RK4()))
    depths = [z for z in args[0].inner.weights.depth for _ in range(1 if z in SPAN else 2)]
    bare = peers.evaluating(lambda z, x: field(z, x, args), case.x, depths)
    run = lambda: solve(field, case.x, SPAN, args=args, solver=RK4(), control=Fixed(STEPS))  # noqa: E731
    return peers.paired(bare, run), len(depths)


def by_hand(case: Case) -> tuple[Callable[[], float], int]:
    """The same steps as one would write them with torch alone: what no solver can go below."""
    field, args = case.bind(Fixed(STEPS, RK4()))
    nodes, h = list(args[0].inner.weights.depth), 1 / STEPS
    depths = [z for z in nodes for _ in range(1 if z in SPAN else 2)]

    def run() -> Tensor:
        x = case.x
        for start, middle, end in zip(nodes[:-1:2], nodes[1::2], nodes[2::2], strict=True):
            first = field(start, x, args)
            second = field(middle, torch.add(x, first, alpha=h / 2), args)
            third = field(middle, torch.add(x, second, alpha=h / 2), args)
            fourth = field(end, torch.add(x, third, alpha=h), args)
            x = torch.add(x, first, alpha=h / 6).add_(second, alpha=h / 3).add_(third, alpha=h / 3)
            x = x.add_(fourth, alpha=h / 6)
        return x

    return peers.paired(peers.evaluating(lambda z, x: field(z, x, args), case.x, depths), run), len(depths)


def adaptive_pair(case: Case, late: bool) -> tuple[Callable[[], float], int]:
    """Dopri5 with the same weights at every depth, or with weights over depth that are made on the way."""
    f, tolerance = case.frozen(), LATE if late else TOLERANCE
    control = Adaptive(rtol=tolerance, atol=tolerance)
    field, args = case.bind() if late else (lambda z, x, args: f(z, x), None)
    run = lambda: solve(field, case.x, SPAN, args=args, solver=Dopri5(), control=control)  # noqa: E731
    count = run().stats["evaluations"]
    return peers.paired(peers.evaluating(f, case.x, [0.5] * count), run), count


@torch.no_grad()
def overhead(size: Size, rounds: int, child: peers.Diffrax | None, missing: list[str]) -> Iterator[Row]:
    """Time of a solve over that of its bare evaluations, minus one."""
    case = Case(size)
    jobs = {
        "RK4, Continua": fixed_pair(case),
        "RK4, a loop written by hand": by_hand(case),
        "Dopri5, Continua": adaptive_pair(case, late=False),
        "Dopri5, Continua, weights made on the way": adaptive_pair(case, late=True),
    }
    for name, method in peers.CONTEST:
        if name not in missing:
            label = {"rk4": "RK4", "dopri5": "Dopri5"}[method.lower()]
            jobs[f"{label}, {name}"] = peers.overhead(name, method, size.name, case.frozen(), case.x, child)
    seen = interleaved({name: pair for name, (pair, _) in jobs.items()}, rounds, 2)
    for name, (_, count) in jobs.items():
        title, got = f"overhead, {size.name}, {name}", estimate(seen[name])
        rest: dict[str, Any] = {"unit": "%", "note": f"{count} evaluations"}
        yield row(title, got, **rest)


# --- evaluations and batches -----------------------------------------------------------------------------------------


@torch.no_grad()
def evaluations(child: peers.Diffrax | None, missing: list[str], scan: list[float]) -> Iterator[Row]:
    """Evaluations for a relative forward error of 5e-4, by a scan over methods and steps or tolerances."""
    case = Case(SMALL)
    truth, (field, args) = case.truth(), case.bind()

    def ours(method: str, choices: dict[str, Any]) -> tuple[int, float]:
        control = Fixed(**choices) if "steps" in choices else Adaptive(**choices)
        path = solve(field, case.x, SPAN, args=args, solver=getattr(flow, method)(), control=control)
        return path.stats["evaluations"], peers.error(path.final, truth)

    names = ["Continua", *(name for name in peers.PEERS if name not in missing)]
    for kind, name in ((kind, name) for kind in ("fixed", "adaptive") for name in names):
        attempt = ours if name == "Continua" else peers.attempting(name, case.varying(), case.x, truth, child)
        count, how = peers.fewest(attempt, peers.METHODS[name], [] if kind == "fixed" else scan)
        limit, title = {"fixed": 32, "adaptive": 38}[kind], f"evaluations to 5e-4, {kind}, {name}"
        yield limited(title, count, limit, note=how) if name == "Continua" else Row(title, count, note=how)


@torch.no_grad()
def batches() -> Iterator[Row]:
    """A sample alone and among others."""
    for size in SIZES:
        case = Case(size)
        field, args = case.bind()
        for control in (Fixed(STEPS, RK4()), Adaptive(Dopri5(), rtol=1e-4, atol=1e-4, per_sample=True)):
            choices = {"args": args, "solver": control.solver, "control": control}
            together, *alone = (solve(field, x, SPAN, **choices).final for x in (case.x, *case.x.split(1)))
            off, title = (together - torch.cat(alone)).abs(), f"a sample alone and in a batch, {size.name}, "
            if isinstance(control, Fixed):
                apart, note = 1e6 * float(off.max() / together.abs().max()), "largest difference over largest entry"
                yield limited(f"{title}fixed steps", apart, 1.0, unit="·1e-6", note=note)
            else:
                off, note = off / (control.atol + control.rtol * together.abs()), "the worst sample, rtol = atol = 1e-4"
                worst = float(off.square().mean((1, 2)).sqrt().max())
                yield limited(f"{title}adaptive per sample", worst, 1.0, unit="tolerances", note=note)


# --- gradients -------------------------------------------------------------------------------------------------------


def forward(case: Case, adjoint: Any) -> Callable[[], Tensor]:
    """Up to the loss, with the gradients of the step before dropped."""
    case.x.requires_grad_()

    def run() -> Tensor:
        case.model.adjoint, case.x.grad = adjoint, None
        case.model.zero_grad(set_to_none=True)
        return case.model(case.x).square().mean()

    return run


def measured(case: Case, adjoints: tuple[Any, ...], rounds: int) -> list[tuple[Estimate, int, int]]:
    """For each adjoint: time of a training step over that of the first one, saved bytes, peak bytes."""
    runs = {str(a): forward(case, a) for a in adjoints}
    steps = {name: lambda run=run: run().backward() for name, run in runs.items()}  # type: ignore[misc]
    seen = interleaved({n: lambda job=job: cpu_seconds(job) for n, job in steps.items()}, rounds, 1)  # type: ignore[misc]
    plain = seen[str(adjoints[0])]
    return [(ratio(seen[n], plain), peers.saved_bytes(run), peak_bytes(steps[n])) for n, run in runs.items()]


def training(size: Size, rounds: int) -> Iterator[Row]:
    """Lean and Recompute over plain backpropagation."""
    found = measured(Case(size), (Direct(), Lean(), Recompute()), rounds)
    (_, all_saved, all_peak), (lean, saved, lean_peak), (again, again_saved, peak) = found
    note = f"{saved / 1e6:.0f} of {all_saved / 1e6:.0f} MB; its peak {lean_peak / all_peak:.2f}×"
    yield limited(f"training step, {size.name}, Lean / plain", lean, 1.05)
    yield limited(f"saved bytes, {size.name}, Lean / plain", saved / all_saved, 0.6, note=note)
    note = f"{peak / 1e6:.0f} of {all_peak / 1e6:.0f} MB; it saves {again_saved / all_saved:.2f}×"
    yield limited(f"training step, {size.name}, Recompute / plain", again, 1.3)
    yield limited(f"peak bytes, {size.name}, Recompute / plain", peak / all_peak, 0.25, note=note)


def reversible(size: Size, rounds: int) -> Iterator[Row]:
    """Memory over the number of steps, and time over plain backpropagation of the same solver."""
    for solver, steps in ((ReversibleSolver(flow.Heun()), STEPS), (flow.ReversibleHeun(), 4 * STEPS)):
        few, many = (peers.saved_bytes(forward(Case(size, solver, n), Reversible())) for n in (8, 128))
        note = f"{few / 1e6:.1f} and {many / 1e6:.1f} MB"
        yield limited(f"saved bytes, {size.name}, {solver}, 128 / 8 steps", many / few, 1.1, note=note)
        (_, _, whole), (got, _, peak) = measured(Case(size, solver, steps), (Direct(), Reversible()), rounds)
        note = f"{steps} steps, about 32 evaluations; peak {peak / whole:.2f}×"
        yield limited(f"training step, {size.name}, {solver}, Reversible / plain", got, 1.45, note=note)


def choosing(size: Size, rounds: int) -> Iterator[tuple[str, str, Estimate, float, float]]:
    """Every adjoint; a reversible one against plain backpropagation of its own solver."""
    every = (Direct(), Lean(), Recompute(), flow.Checkpoint(3), flow.Checkpoint(8, True), flow.Mixed(3))
    for solver, adjoints in ((RK4(), (*every, flow.Backsolve())), (ReversibleSolver(RK4()), (Direct(), Reversible()))):
        for a, (got, saved, peak) in zip(adjoints, measured(Case(size, solver), adjoints, rounds), strict=True):
            yield (
                str(a).replace(", clip=None", "").replace("clip=None", ""),
                str(solver),
                got,
                round(saved / 1e6, 1),
                round(peak / 1e6, 1),
            )


def gradient(case: Case, adjoint: Any) -> Tensor:
    """By all parameters, as one vector."""
    case.model.adjoint = adjoint
    found = torch.autograd.grad(case.model(case.x).square().mean(), list(case.model.parameters()))
    return torch.cat([g.flatten() for g in found]).double()


def gradient_errors(scales: tuple[int, ...], seeds: int, missing: list[str]) -> Iterator[Row]:
    """Error of float32 gradients over that of plain backpropagation in float32; float64 is the truth."""
    ours = (Lean(), Recompute(), flow.Checkpoint(3), flow.Mixed(3), flow.Backsolve())
    found: dict[str, dict[int, list[float]]] = {}
    for scale, seed in ((scale, seed) for scale in scales for seed in range(seeds)):
        got: dict[str, float] = {}
        for solver, adjoints in ((RK4(), ours), (ReversibleSolver(RK4()), (Reversible(),))):
            case = Case(SMALL, solver, scale=scale, seed=seed)
            truth = gradient(case.double(), Direct())
            plain = peers.error(gradient(case, Direct()), truth)
            got |= {type(a).__name__: peers.error(gradient(case, a), truth) / plain for a in adjoints}
        if "torchdiffeq" not in missing:
            truth = peers.torchdiffeq_gradient(case.double(), False)
            plain = peers.error(peers.torchdiffeq_gradient(case, False), truth)
            got["torchdiffeq.odeint_adjoint"] = peers.error(peers.torchdiffeq_gradient(case, True), truth) / plain
        for name, value in got.items():
            found.setdefault(name, {}).setdefault(scale, []).append(value)
    for name, by_scale in found.items():
        middle = {scale: statistics.median(values) for scale, values in by_scale.items()}
        note = "weights " + ", ".join(f"×{scale}: {value:.3g}" for scale, value in middle.items())
        worst, free = max(middle.values()), name in ("Backsolve", "torchdiffeq.odeint_adjoint")
        title = f"gradient error / float32 rounding, {name}"
        yield Row(title, worst, note=note + "; not recommended") if free else limited(title, worst, 2.0, note=note)


def weights(size: Size, rounds: int) -> Iterator[Row]:
    """Making the weights of all evaluations, forward and backward, over the whole training step."""
    case = Case(size)
    run, parameters, control = forward(case, Direct()), list(case.model.parameters()), Fixed(STEPS, RK4())
    numbers = sum(p.numel() for p in parameters) // MODES
    like = [torch.randn_like(t) for t in tensors(case.bind(control)[1]) if t.requires_grad]
    flat = torch.nn.Parameter(torch.randn(MODES, numbers))
    network = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, numbers))
    g, depths = torch.randn(numbers), [i / (4 * STEPS) for i in range(4 * STEPS)]

    def ours() -> None:
        made = [t for t in tensors(case.bind(control)[1]) if t.requires_grad]
        torch.autograd.grad(made, parameters, like)

    def basis() -> None:
        made = [Legendre(MODES).matrix(Interval(*SPAN), torch.tensor([[z]]))[0] @ flat for z in depths]
        torch.autograd.grad(made, [flat], [g] * len(made))

    def emitted() -> None:
        made = [network(torch.tensor([z])) for z in depths]
        torch.autograd.grad(made, list(network.parameters()), [g] * len(made))

    jobs = {"step": lambda: run().backward(), "ours": ours, "basis": basis, "emitted": emitted}
    seen = interleaved({name: lambda job=job: cpu_seconds(job) for name, job in jobs.items()}, rounds, 1)  # type: ignore[misc]
    share = {name: ratio([100 * v for v in seen[name]], seen["step"]) for name in jobs}
    title, note = f"weights over depth / training step, {size.name}", "17 depths of 32 evaluations, with binding"
    yield limited(f"{title}, all depths by one product", share["ours"], 2.0, unit="%", note=note)
    yield row(f"{title}, basis under autograd", share["basis"], unit="%", note="at each of 32 evaluations")
    yield row(f"{title}, a network emits them", share["emitted"], unit="%", note=f"1 → 64 → {numbers}, each time")


def sections(quick: bool, rounds: int, child: peers.Diffrax | None, missing: list[str]) -> Iterator[tuple[str, Any]]:
    for size in SIZES[:1] if quick else SIZES:
        often, less = (rounds, rounds // 2 + 1) if size is SMALL else (max(2, rounds // 4), max(2, rounds // 8))
        yield f"overhead, {size.name}", overhead(size, often, child, missing)
        yield f"training, {size.name}", training(size, less)
        yield f"reversible, {size.name}", reversible(size, less)
        yield f"weights, {size.name}", weights(size, less)
    yield "gradient errors", gradient_errors((1, 8) if quick else (1, 2, 4, 8), 3 if rounds > 30 else 1, missing)
    yield "evaluations", evaluations(child, missing, SCAN[::3] if quick else SCAN)
    yield "batches", batches()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small field, few rounds, nothing is written")
    parser.add_argument(
        "--rounds", type=int, default=60, help="pairs of the small field; the medium one gets a quarter"
    )
    parser.add_argument("--only", default="", help="the sections whose name begins so, such as overhead")
    options = parser.parse_args()
    quick, rounds = options.quick, 3 if options.quick else options.rounds
    torch.set_num_threads(1)
    console, missing, rows = Console(width=150), peers.absent(), []
    with tempfile.TemporaryDirectory() as folder:
        with torch.no_grad():
            for size in SIZES:
                Case(size).store(Path(folder))
        child = None if "diffrax" in missing else peers.Diffrax(Path(folder))
        gc.freeze()
        for name, found in sections(quick, rounds, child, missing):
            if not name.startswith(options.only):
                continue
            start = time.perf_counter()
            for each in found:
                rows.append(each)
                console.print(f"{each.name}: {each.shown} {each.verdict}", style="dim", soft_wrap=True)
            console.print(f"{name}: {time.perf_counter() - start:.0f} s", style="bold")
        if child is not None:
            child.close()
    choices = [] if options.only else list(choosing(SMALL if quick else MEDIUM, max(2, rounds // 12)))
    table = Table("depth engine", "median [95 % interval]", "target", "", "")
    for r in rows:
        table.add_row(r.name, r.shown, r.target, r.verdict, r.note)
    console.print(table)
    table = Table("Choosing: 8 steps", "solver", "time / plain", "saved MB", "peak MB")
    for line in choices:
        table.add_row(*map(str, line))
    console.print(table)
    versions = {name: importlib.metadata.version(name) for name in (*peers.PEERS, "jax") if name not in missing}
    console.print(f"peers: {versions}; absent: {missing or 'none'}")
    if not quick:
        also: dict[str, Any] = {"rounds": rounds, "peers": versions, "absent": missing}
        if choices:
            keys = ("adjoint", "solver", "time", "saved_mb", "peak_mb")
            also["choosing"] = [dict(zip(keys, (*c[:2], str(c[2]), *c[3:]), strict=True)) for c in choices]
        path = write("depth", rows, part=bool(options.only), environment=environment(), **also)
        console.print(f"written to {path}")
    return 0 if all(each.held is not False for each in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
