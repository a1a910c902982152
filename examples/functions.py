"""One operator, any grid: Burgers' equation learned on 64 nodes, asked on other grids; a stirred fluid rolled out.

    python examples/functions.py      about two minutes on one core; writes runs/functions/*.png

It asserts what it shows: an answer does not depend on the grid that a function was observed on, a shifted start has a
shifted end, and a map of one time unit can be applied again.
"""

import argparse
from pathlib import Path

import torch

from continua.data.navier_stokes import TORUS, vorticity_paths
from continua.data.store import generated
from continua.lab.canvas import draw_functions, draw_path, draw_resolution
from continua.models import Batch
from continua.recipes import BurgersSettings, VorticitySettings
from continua.recipes.functions import model_of, optimiser_of, some_points, task_of
from continua.tasks.functions import predict, relative, roll_out, scattered
from continua.training import fit


def burgers(out: Path, steps: int) -> None:
    """Learn on 64 nodes; errors on others, and from 256 random points."""
    settings = BurgersSettings(train=400, held_out=50, fine=512)
    whole = generated("burgers", 450, n=512)
    task = task_of(whole, settings)
    model = model_of(task, settings)
    fit(model, task, optimiser=optimiser_of(settings), steps=steps, evaluate_every=steps, clip=None)
    unseen = whole.part(slice(400, None))
    curve = {n: float(task.errors(model, unseen.every(512 // n)).mean()) for n in (64, 128, 256, 512)}
    points = some_points(unseen, 256)
    inputs, outputs, grid = scattered(unseen, points)
    answer = predict(model, Batch(inputs, grid=grid))
    cloud = float(relative(answer, outputs, grid.weights.float()).mean())
    print("Burgers, relative L2 error of unseen functions")
    print("\n".join(f"  {n:>4} uniform nodes   {error:.4f}" for n, error in curve.items()))
    print(f"   256 random points   {cloud:.4f}")
    if not (curve[512] < 1.05 * curve[64] and cloud < 1.05 * curve[64]):
        raise SystemExit("the error depends on the grid")
    start = unseen.every(8).inputs[:5]
    shifted = predict(model, Batch(start.roll(9, 1))) - predict(model, Batch(start)).roll(9, 1)
    if float(shifted.abs().max()) > 1e-4:
        raise SystemExit("a shifted start does not have a shifted end")
    print(draw_functions(model, unseen, out / "functions.png", points))
    print(draw_resolution(curve, 64, (256, cloud), out / "functions-resolution.png"))


def fluid(out: Path, steps: int) -> None:
    """Learn one time unit of a stirred fluid, then roll it out over eight."""
    settings = VorticitySettings(train=920, held_out=40, nodes=32, fine=64, depth=3, batch=16)
    whole = generated("navier-stokes", 960, n=64, times=9)
    task = task_of(whole, settings)
    model = model_of(task, settings)
    fit(model, task, optimiser=optimiser_of(settings), steps=steps, evaluate_every=steps, clip=None)
    truth = vorticity_paths(1, n=64, times=9, seed=1).float()[0, :, ::2, ::2]
    start = Batch(truth[:1].reshape(1, -1, 1), grid=task.train.grid)
    path = roll_out(model, start, 8)[:, 0, :, 0].reshape(8, 32, 32)
    errors = [float((p - t).norm() / t.norm()) for p, t in zip(path, truth[1:, ..., 0], strict=True)]
    print(f"Navier-Stokes on {TORUS.factors[0].length:g} × {TORUS.factors[1].length:g}, rolled out")
    print("\n".join(f"  step {i}   relative error {error:.4f}" for i, error in enumerate(errors, 1)))
    still = [float((truth[0, ..., 0] - t).norm() / t.norm()) for t in truth[1:, ..., 0]]
    if not all(error < rest for error, rest in zip(errors, still, strict=True)):
        raise SystemExit("standing still would be as good")
    print(draw_path(truth[1:, ..., 0], path, out / "functions-roll-out.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/functions"))
    parser.add_argument("--steps", type=int, default=900, help="of training Burgers; half as many for the fluid")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    burgers(given.out, given.steps)
    fluid(given.out, given.steps // 2)
