"""The solvers behind the data of operator learning: errors against exact solutions, and CPU seconds a pair.

python benchmarks/pde_data.py      about two minutes on one core; writes results/pde_data.json
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from common import Row, environment, write
from rich.console import Console
from rich.table import Table

from continua.data import neuraloperator_files as packaged
from continua.data.burgers import burgers, burgers_pairs, cole_hopf
from continua.data.darcy import darcy, darcy_pairs, flux_balance
from continua.data.navier_stokes import navier_stokes, torus_field, usual_forcing, vorticity_paths, waves
from continua.data.pairs import Pairs
from continua.typing import Tensor
from tools.packages import NEURALOPERATOR, Unavailable, fetch

DRAWS = {"burgers": 64, "darcy": 48, "vorticity": 4}


def errors(found: Tensor, wanted: Tensor) -> Tensor:
    """Relative L2 of each sample."""
    found, wanted = found.double().flatten(1), wanted.double().flatten(1)
    return (found - wanted).norm(dim=1) / wanted.norm(dim=1)


def timed(make: Callable[[], Pairs | Tensor], count: int) -> tuple[Pairs | Tensor, float]:
    """What was made, and the CPU seconds of one."""
    start = time.process_time()
    made = make()
    return made, (time.process_time() - start) / count


def held(name: str, value: float, most: float, note: str = "") -> Row:
    """A number that must stay below a promise."""
    return Row(name, value, target=f"≤ {most:g}", held=value <= most, note=note)


def of_burgers() -> list[Row]:
    """Against Cole and Hopf, and against twice as many steps."""
    pairs, seconds = timed(lambda: burgers_pairs(DRAWS["burgers"]), DRAWS["burgers"])
    assert isinstance(pairs, Pairs)
    start = pairs.inputs[..., 0]
    exact = cole_hopf(start, 0.01, 1.0)
    many = burgers(start, 0.01, 1.0, steps=4096)
    return [
        held("Burgers: relative L2 from Cole–Hopf, worst draw", float(errors(pairs.outputs[..., 0], exact).max()), 1e-6,
             "kept in float32"),
        held("Burgers: the same from 4,096 steps, worst draw", float(errors(pairs.outputs[..., 0], many).max()), 1e-6),
        Row("Burgers, 1,024 nodes: CPU seconds a pair", seconds, unit="s"),
    ]  # fmt: skip


def manufactured(cells: int) -> float:
    """The greatest error for u = sin πx sin 2πy with a smooth coefficient."""
    line = torch.linspace(0, 1, cells + 1, dtype=torch.float64)
    x, y = torch.meshgrid(line, line, indexing="ij")
    a = 1 + x + 0.5 * (2 * x).sin() * (3 * y).cos()
    u = (math.pi * x).sin() * (2 * math.pi * y).sin()
    u_x = math.pi * (math.pi * x).cos() * (2 * math.pi * y).sin()
    u_y = 2 * math.pi * (math.pi * x).sin() * (2 * math.pi * y).cos()
    a_x, a_y = 1 + (2 * x).cos() * (3 * y).cos(), -1.5 * (2 * x).sin() * (3 * y).sin()
    return float((darcy(a, -(a_x * u_x + a_y * u_y - 5 * math.pi**2 * a * u)) - u).abs().max())


def of_darcy() -> list[Row]:
    """Order, residual, and what a finer solve says of the same medium."""
    order = math.log2(manufactured(64) / manufactured(128))
    pairs, seconds = timed(lambda: darcy_pairs(DRAWS["darcy"]), DRAWS["darcy"])
    assert isinstance(pairs, Pairs)
    a = pairs.inputs[:8, ..., 0].double()
    residual = flux_balance(a, darcy(a)[:, 1:-1, 1:-1]) - 1
    rows = [Row("Darcy: order for a smooth coefficient", order, target="2 ± 0.05", held=abs(order - 2) < 0.05)]
    rows.append(held("Darcy: relative residual, worst of 8", float(residual.flatten(1).norm(dim=1).max()) / 139, 2e-10))
    finest = darcy_pairs(6, refine=4).outputs
    for grid, outputs in ((141, pairs.outputs[:6]), (281, darcy_pairs(6, refine=2).outputs)):
        name = f"Darcy: solved on {grid}² instead of 561² nodes, relative L2"
        rows.append(Row(name, float(errors(outputs, finest).mean()), note="mean of 6; a finer medium too"))
    return [*rows, Row("Darcy, 141² nodes: CPU seconds a pair", seconds, unit="s")]


def of_vorticity() -> list[Row]:
    """Taylor–Green, balances, a finer grid."""
    n, viscosity, short = 64, 1e-3, 1e-3
    line = torch.arange(n, dtype=torch.float64) / n
    x, y = torch.meshgrid(line, line, indexing="ij")
    start = ((2 * math.pi * x).cos() * (2 * math.pi * y).cos())[None]
    decay = float(
        (navier_stokes(start, viscosity, 10.0) - start * math.exp(-viscosity * 8 * math.pi**2 * 10)).abs().max()
    )
    paths, seconds = timed(lambda: vorticity_paths(DRAWS["vorticity"]), DRAWS["vorticity"] * 19)
    assert isinstance(paths, Tensor)
    fine = vorticity_paths(2, refine=2)
    later = errors(paths[:2, 1:].flatten(0, 1), fine[:, 1:].flatten(0, 1))
    field, push, k = 5 * torus_field(n, torch.Generator().manual_seed(0))[None], usual_forcing(n), waves(n)
    before, middle, after = (navier_stokes(field, viscosity, t, push, steps=16) for t in (1e-9, short, 2 * short))
    slopes = [torch.fft.irfft2(1j * each * torch.fft.rfft2(middle), s=(n, n)).square().mean() for each in (k.x, k.y)]
    wanted = -viscosity * float(sum(slopes)) + float((middle * push).mean())
    found = float((after.square() - before.square()).mean()) / (4 * short)
    return [
        held("Navier–Stokes: Taylor–Green after 10 units, greatest error", decay, 1e-12),
        held(
            "Navier–Stokes: enstrophy balance, relative", abs(found / wanted - 1), 1e-4, "a central difference in time"
        ),
        held("Navier–Stokes: 64² against 128² nodes, ν = 10⁻³, worst of 38", float(later.max()), 1e-6),
        Row("Navier–Stokes, 64² nodes: CPU seconds a unit of time", seconds, unit="s"),
    ]


def of_packages() -> list[Row]:
    """How near our solutions come to the files of a package; the inputs are coarse samples, so not very near."""
    try:
        folder = fetch(NEURALOPERATOR)
    except Unavailable as why:
        print(why)
        return []
    fine = packaged.darcy(folder).fine
    nearest = (torch.arange(129) / 4).round().clamp_max(31).long()
    medium, theirs = fine.inputs[:, nearest][:, :, nearest, 0] > 0, fine.outputs[..., 0].double()
    found = {}
    for contrast in (4.0, 12.0, 16.0, 18.0, 20.0, 24.0):
        ours = darcy(torch.where(medium, contrast, 1.0))[:, :128:4, :128:4]
        found[contrast] = float(errors(ours * ((ours * theirs).sum() / ours.square().sum()), theirs).mean())
    best = min(found, key=found.__getitem__)
    pairs = packaged.burgers(folder)
    coarse = torch.fft.rfft(pairs.inputs[:200, :, 0].double())
    coarse[:, -1] /= 2
    ours = burgers(torch.fft.irfft(coarse * 64, 1024), 0.01, 1.0)[:, ::64]
    median = float(errors(ours, pairs.outputs[:200, :, 0]).median())
    contrasts = ", ".join(f"{value:.3f} at {contrast:g}" for contrast, value in found.items())
    name = f"packaged Darcy 32²: our solution with materials 1 : {best:g}, relative L2"
    return [
        Row(name, found[best], note=f"mean of 50; {contrasts}"),
        Row("packaged Burgers: our solution from its 16 points, relative L2", median, note="median of 200"),
    ]


def main() -> None:
    """Measure, show, write."""
    torch.set_num_threads(1)
    rows = [*of_burgers(), *of_darcy(), *of_vorticity(), *of_packages()]
    table = Table("", "measured", "promised", "", "")
    for row in rows:
        table.add_row(row.name, f"{row.value:.3g} {row.unit}", row.target, row.verdict, row.note)
    Console().print(table)
    print(write("pde_data", rows, draws=DRAWS, environment=environment()))


if __name__ == "__main__":
    main()
