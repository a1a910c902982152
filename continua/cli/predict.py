"""``continua predict RUN --grid FILE``: answer functions that were observed at any points, once or again and again."""

import csv
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console

from continua.axes import Axis, Circle, factors
from continua.cli.out import refuse_unwritable, writing
from continua.cli.sizes import check_which
from continua.errors import ConfigError, GridError
from continua.models import Batch
from continua.models.latent import Latent, inside
from continua.tasks.estimates import Estimated, estimated
from continua.tasks.rollouts import RollOut, rollout
from continua.training import Run
from continua.training.progress import share_bar

SHAPES = (
    "An .npz holds points [n, k] and inputs [n], [n, c] or [count, n, c]; a .csv a column for each coordinate, then "
    "one for each value."
)


SUFFIXES = (".npz", ".csv")
# what numpy's reader of archives raises over files that are damaged, or whose heads promise too much
UNREADABLE = (ValueError, OSError, TypeError, AttributeError, KeyError, EOFError, SyntaxError, MemoryError,
              NotImplementedError, OverflowError, zipfile.BadZipFile, zlib.error)  # fmt: skip


class Observed(NamedTuple):
    """Points [n, k], and values [count, n, c] where there are some."""

    points: torch.Tensor
    inputs: torch.Tensor | None


class Repeated(NamedTuple):
    """How often a map is applied to its own answers, and the tolerance of adaptive time steps."""

    steps: int | None = None
    tolerance: float | None = None

    def check(self, out: Path, asked: Path | None) -> None:
        """Refuse what does not go together."""
        if self.steps is None and self.tolerance is not None:
            raise ConfigError("a tolerance is for roll-outs", got="no --steps", remedy="Write --steps 50 too.")
        if self.steps is not None and (asked is not None or out.suffix == ".csv"):
            got = "--asked" if asked is not None else out.name
            remedy = "Leave --asked out, and write an .npz: outputs are [count, steps, n, c]."
            raise ConfigError("a roll-out answers at the points of --grid, step by step", got=got, remedy=remedy)


def run(
    folder: Path,
    grid: Path,
    asked: Path | None,
    out: Path | None,
    which: str,
    device: torch.device,
    repeated: Repeated = Repeated(),  # noqa: B008  (immutable)
) -> None:
    """Read the file, answer, write."""
    console = Console()
    check_which(which)
    out = out or folder / f"{grid.stem}-answer.npz"
    refuse_suffix(out)
    refuse_unwritable(out)
    repeated.check(out, asked)
    opened = Run.open(folder)
    model = opened.model(which).to(device)
    axis = model.axes.t
    if not isinstance(model.embed, Latent):
        remedy = "Use a run of continua fit burgers, darcy, navier-stokes or turbulence."
        raise GridError("this run is not one of functions", got=folder, remedy=remedy)
    dim = axis.dim
    channels = model.embed.channels
    seen = read(grid, dim, channels)
    if seen.inputs is None:
        raise GridError("there is nothing to answer", got=f"{grid} has no inputs", remedy=SHAPES)
    in_domain(axis, seen.points)
    wanted = seen.points if asked is None else read(asked, dim, None).points
    in_domain(axis, wanted)
    if out.suffix == ".csv" and len(seen.inputs) != 1:
        raise GridError("a .csv holds one function", got=f"{len(seen.inputs)}", remedy="Write an .npz.")
    batch = Batch(seen.inputs, times=seen.points, asked=None if asked is None else wanted)
    if repeated.steps is not None:
        roll(console, model, batch, out, repeated.steps, repeated.tolerance)
        return
    with share_bar("predicting") as watch:
        found = estimated(model, batch, held_out_error(opened), watch)
    answer = found.answer.cpu().numpy()
    with writing(out):
        write(out, wanted.numpy(), answer, found)
    mean = float(answer.mean())
    spread = float(answer.std())
    console.print(
        f"{len(answer)} function(s) from {len(seen.points)} points, answered at {len(wanted)}: mean {mean:.4g}, "
        f"spread {spread:.4g}",
        highlight=False,
    )
    console.print(
        f"estimated relative error {float(found.error.mean()):.2g} (greatest {float(found.error.max()):.2g}): "
        f"{float(found.unseen.mean()):.1%} of the input is in waves that training did not have, "
        f"{float(found.unresolved.mean()):.1%} is left open by the points",
        highlight=False,
    )
    console.print(f"written: {out}", highlight=False, markup=False)


def held_out_error(run: Run) -> float:
    """The least error on held-out functions that the run wrote down; 0 where there is none."""
    lines = [line.get("validation_relative_l2") for line in run.history()]
    return min((float(x) for x in lines if isinstance(x, int | float)), default=0.0)


def roll(console: Console, model: Any, batch: Batch, out: Path, steps: int, tolerance: float | None) -> None:
    """Apply the map to its own answers, write them all, and say how far it went."""
    with share_bar("rolling out") as watch:
        rolled: RollOut = rollout(model, batch, steps, tolerance, watch)
    states = rolled.states.transpose(0, 1).cpu().numpy()
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        np.savez(out, points=batch.times.numpy(), outputs=states)  # type: ignore[union-attr]
    finite = torch.isfinite(rolled.states).flatten(2).all(-1).all(0)
    chosen = f", {sum(rolled.taken)} adaptive steps" if rolled.taken else ""
    said = f"{steps} steps{chosen}; {int(finite.sum())} of {len(finite)} roll-outs finite"
    console.print(said, highlight=False)
    console.print(f"written: {out}", highlight=False, markup=False)


def refuse_suffix(out: Path) -> None:
    """An answer is an .npz or a .csv: exactly the file that is named is written."""
    if out.suffix not in SUFFIXES:
        got = f"{out.name!r}"
        raise ConfigError(
            "answers are written as .npz or .csv", got=got, remedy=f"Write --out {out.stem or 'out'}.npz."
        )


def in_domain(axis: Axis, points: torch.Tensor) -> None:
    """Refuse points outside the domain, and points of a circle that lie more than a turn apart."""
    inside(axis, points)
    for i, line in enumerate(factors(axis)):
        if isinstance(line, Circle) and len(points):
            low = float(points[:, i].min())
            high = float(points[:, i].max())
            if not high - low <= line.length:
                remedy = f"A turn is {line.length:g} long: take the points modulo that."
                raise GridError("points of a circle lie within one turn", got=f"{low:g} to {high:g}", remedy=remedy)


def read(path: Path, dim: int, channels: int | None) -> Observed:
    """Points and values of a file; ``channels`` None reads points alone."""
    if not path.is_file():
        raise GridError("there is no such file", got=path, remedy=SHAPES)
    points, inputs = _from_csv(path, dim) if path.suffix == ".csv" else _from_npz(path)
    points = points[:, None] if points.ndim == 1 and dim == 1 else points
    if points.ndim != 2 or points.shape[1] != dim or not len(points):
        remedy = f"The functions of this run live in {dim} dimension(s). {SHAPES}"
        raise GridError(f"points need shape [n, {dim}]", got=f"{list(points.shape)} in {path}", remedy=remedy)
    if channels is None or inputs is None:
        return Observed(torch.from_numpy(points), None)
    if inputs.ndim == 1:
        inputs = inputs[None, :, None]
    elif inputs.ndim == 2 and inputs.shape == (len(points), channels):
        inputs = inputs[None]
    elif inputs.ndim == 2 and inputs.shape[1] == len(points) and channels == 1:
        inputs = inputs[..., None]
    if inputs.ndim != 3 or inputs.shape[1:] != (len(points), channels):
        wanted = f"[{len(points)}, {channels}] or [count, {len(points)}, {channels}]"
        raise GridError(f"inputs need shape {wanted}", got=f"{list(inputs.shape)} in {path}", remedy=SHAPES)
    for what, values in (("points", points), ("inputs", inputs)):
        if not np.isfinite(values).all():
            got = f"NaN or infinity in {path}"
            remedy = "Leave the missing points out: any points will do."
            raise GridError(f"{what} must be finite", got=got, remedy=remedy)
    return Observed(torch.from_numpy(points), torch.from_numpy(inputs).float())


def _from_npz(path: Path) -> tuple[Any, Any]:
    try:
        # opened here: numpy leaves the file of a damaged archive open
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            if "points" not in found:
                raise GridError("the file has no points", got=f"{path}: {', '.join(found)}", remedy=SHAPES)
            return found["points"].astype(np.float64), found["inputs"].astype(np.float64) if "inputs" in found else None
    except GridError:
        raise
    except UNREADABLE as broken:
        raise GridError("this file cannot be read", got=f"{path}: {broken}", remedy=SHAPES) from broken


def _from_csv(path: Path, dim: int) -> tuple[Any, Any]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, ValueError, csv.Error) as broken:
        raise GridError("this file cannot be read", got=f"{path}: {broken}", remedy=SHAPES) from broken
    try:
        float(rows[0][0])
    except (ValueError, IndexError):
        rows = rows[1:]  # a head line
    if len({len(row) for row in rows}) > 1:
        got = f"{path}: rows of {', '.join(str(n) for n in sorted({len(row) for row in rows}))} entries"
        raise GridError("a table has rows of one length", got=got, remedy=SHAPES)
    try:
        values = np.array(rows, dtype=np.float64)
    except ValueError as broken:
        raise GridError("a table of numbers is wanted", got=f"{path}: {broken}", remedy=SHAPES) from broken
    if values.ndim != 2 or values.shape[1] < dim:
        remedy = f"Give {dim} coordinate column(s) first. {SHAPES}"
        raise GridError("the table has too few columns", got=f"{list(values.shape)} in {path}", remedy=remedy)
    return values[:, :dim], values[:, dim:] if values.shape[1] > dim else None


def write(path: Path, points: Any, answer: Any, about: Estimated | None = None) -> None:
    """The answers [count, n, c] with their points: .npz, with estimated errors, or .csv for a single function."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".csv":
        arrays: dict[str, Any] = {"points": points, "outputs": answer}
        if about is not None:
            arrays["errors"] = about.error.cpu().numpy()
            arrays["unseen"] = about.unseen.cpu().numpy()
        np.savez(path, **arrays)
        return
    if len(answer) != 1:
        raise GridError("a .csv holds one function", got=f"{len(answer)}", remedy="Write an .npz.")
    np.savetxt(path, np.concatenate([points, answer[0]], 1), delimiter=",")
