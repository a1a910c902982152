"""``continua check``: exactness, refinement and one model on many grids, with a figure."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from continua.axes import Discretisation, GaussLegendre, Interval, Midpoint, Trapezoid
from continua.cli import parity
from continua.cli.out import folder_for, writing
from continua.errors import install
from continua.flow import RK4, LieTrotter, Solver, Strang
from continua.models import Batch, Transformer
from continua.models.refine import (
    Refinement,
    refine_depth,
    refine_samples,
    refine_time,
    refine_width,
    smooth_input,
    smooth_model,
)
from continua.operators import Causal

BATCH = Batch(smooth_input)


def run(out: Path) -> None:
    """Print the tables, write ``refinement.png`` and a small model into ``out``."""
    console = Console()
    start = time.perf_counter()
    folder_for(out)
    _parity(console)
    with torch.no_grad():
        found = _refinement(console)
        model = _sizes(console)
    from continua.cli.figure import draw

    with writing(out):
        model.save(out / "model")
        draw(found, smooth_model(Interval(), Causal()), out / "refinement.png")
    console.print(f"\nFigure: {out / 'refinement.png'}   model: {out / 'model'}", markup=False)
    console.print(f"Look inside it: continua inspect {out / 'model'} --at d=16,z=2", markup=False)
    console.print(f"Done in {time.perf_counter() - start:.0f} s.")


def _parity(console: Console) -> None:
    table = Table("reference", "dtype", "outputs", "all gradients", title="1. Exactness: largest difference, relative")
    with console.status("comparing with torch.nn and Hugging Face …"):
        seen = list(parity.rows())
    for row in seen:
        table.add_row(row.name, str(row.dtype).removeprefix("torch."), f"{row.output:.1e}", f"{row.gradient:.1e}")
    console.print(table)
    if not any("GPT-2" in row.name for row in seen):
        console.print(f"GPT-2 and BERT rows need transformers: {install('hf')}.")


def _refinement(console: Console) -> list[Refinement]:
    """Refine every axis of one smooth model, alone."""
    model = smooth_model(Interval())
    causal = smooth_model(Interval(), Causal())
    fine = GaussLegendre(16)
    exact, exact_causal = (m(BATCH, at=Discretisation(t=GaussLegendre(256))) for m in (model, causal))

    def warped(n: int) -> torch.Tensor:
        return ((torch.arange(n, dtype=torch.float64) + 0.5) / n) ** 1.7

    sizes = (16, 32, 64, 128)
    jobs = [
        ("", lambda: refine_time(model, [Midpoint(n) for n in sizes], exact, BATCH)),
        ("", lambda: refine_time(model, [GaussLegendre(n) for n in (2, 3, 4, 5)], exact, BATCH)),
        ("causal", lambda: refine_time(causal, [GaussLegendre(n) for n in sizes], exact_causal, BATCH)),
        ("causal, warped stamps", lambda: refine_samples(causal, warped, sizes, exact_causal)),
        *[("", _width(model, letter, fine)) for letter in "dhem"],
        *[("", _depth(model, solver)) for solver in (LieTrotter(), Strang(), RK4())],
    ]
    table = Table("axis", "rule or solver", "nodes", "error", "slope", "declared", title="2. Refinement, axis by axis")
    found = []
    with console.status("refining …") as status:
        for note, job in jobs:
            result = job()
            status.update(f"refining … {result.letter} done")
            if note:
                result = replace(result, name=f"{result.name}, {note}", declared=min(result.declared, 2.0))
            found.append(result)
            table.add_row(
                result.letter,
                result.name,
                f"{result.sizes[0]} → {result.sizes[-1]}",
                f"{result.errors[0]:.1e} → {result.errors[-1]:.1e}",
                f"{result.slope:.2f}",
                "spectral" if math.isinf(result.declared) else f"{result.declared:g}",
            )
    console.print(table)
    return found


def _width(model: Transformer, letter: str, t: GaussLegendre) -> Callable[[], Refinement]:
    return lambda: refine_width(model, letter, [Trapezoid(n) for n in (17, 33, 65, 129)], BATCH, t)


def _depth(model: Transformer, solver: Solver) -> Callable[[], Refinement]:
    return lambda: refine_depth(model, solver, (8, 16, 32), BATCH, GaussLegendre(8))


def _sizes(console: Console) -> Transformer:
    """One continuous language model (untrained): the same weights on two grids."""
    torch.manual_seed(0)
    model = Transformer.continuous(vocab=96, at=Discretisation(d=64, h=4, z=6))
    table = Table("native", "at(d=32, h=2, z=3): the same weights", title="3. One model, any size")
    view = model.at(d=32, h=2, z=3)
    table.add_row(str(model.at()), str(view))
    console.print(table)
    tokens = torch.randint(96, (1, 32), generator=torch.Generator().manual_seed(0))
    console.print(f"logits {list(model(tokens).shape)} natively, {list(view(tokens).shape)} at the smaller size")
    return model
