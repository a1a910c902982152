"""Growth along t: functions on coarse grids, images of few pixels and short contexts first."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from continua.axes import Circle, Interval, Midpoint, Product, at
from continua.data.pairs import Pairs, lattice
from continua.errors import ConfigError
from continua.models import Batch
from continua.models.zoo import function_map, image_classifier
from continua.optim import AdamW, ByRole
from continua.tasks import Example, Functions, Images, Score, Task, digits
from continua.training import Growth, Run, Stage, fit
from tests.measure import gap
from tests.refusals import refused
from tests.runs import silent, timeless, tiny_model, tiny_task

FAST = ByRole(AdamW(1e-2))
EXACT = 1e-12  # float64
pytestmark = [pytest.mark.spec("B1"), pytest.mark.spec("B3")]


def waves(n: int = 16, count: int = 12) -> Pairs:
    """Sums of two waves, and their slopes."""
    draw = torch.Generator().manual_seed(0)
    a = torch.randn(count, 2, 1, generator=draw, dtype=torch.float64)
    x = torch.arange(n, dtype=torch.float64) / n
    angle = 2 * math.pi * torch.arange(1, 3, dtype=torch.float64)[:, None] * x
    u, y = (a * angle.sin()).sum(1), (a * angle.cos()).sum(1)
    return Pairs("waves", Circle(), u[..., None], y[..., None], lattice(Circle(), x))


def functions() -> Functions:
    pairs = waves()
    return Functions(pairs.part(slice(0, 8)), pairs.part(slice(8, None)), batch=4)


def operator() -> Any:
    torch.manual_seed(0)
    return function_map(Circle(), 16, at=at(d=8, h=2, e=4, m=8, z=2), modes=3, attention=True).double()


def stages(*counts: tuple[int, float]) -> Growth:
    return Growth(tuple(Stage((at(t=count),), until) for count, until in counts))


def trained(model: Any, task: Any, grow: Growth | None, **given: Any) -> Any:
    return fit(
        model, task, **{"optimiser": FAST, "steps": 6, "evaluate_every": 100, "watch": silent, "grow": grow, **given}
    )


# --- functions --------------------------------------------------------------------------------------------------------


def test_functions_are_thinned_with_their_measure_and_their_slopes() -> None:
    task = functions()
    whole = task.example(0, 0)
    half = task.coarsened(whole, 8)
    assert torch.equal(half.batch.values, whole.batch.values[:, ::2])
    assert torch.equal(half.target, whole.target[:, ::2])
    assert half.count == whole.count
    assert float(half.batch.grid.weights.sum()) == pytest.approx(float(whole.batch.grid.weights.sum()))
    assert task.coarsened(whole, 16) is whole
    wrong = [1.1 * example.target + 0.3 for example in (whole, half)]
    losses = [task.loss(answer, example) for answer, example in zip(wrong, (whole, half), strict=True)]
    assert gap(*losses) < EXACT, "both grids resolve these functions: the loss in H¹ is the same integral"
    flat = task.loss(wrong[1], Example(Batch(half.batch.values), half.target))
    assert abs(float(flat - losses[1])) > 1e-3, "without slopes it would be another"


def test_the_state_of_an_operator_lives_on_the_coarse_nodes() -> None:
    task, model = functions(), operator()
    half = task.coarsened(task.example(0, 0), 8)
    answer, path, t = model.run(half.batch)
    assert path.final.shape[1] == t.count == answer.shape[1] == 8
    seen: list[int] = []
    model.register_forward_pre_hook(lambda module, given: seen.append(given[0].values.shape[1]))
    trained(model, task, stages((4, 0.3), (8, 0.6)), evaluate_every=1)
    assert seen == [4, 16, 4, 16, 8, 16, 8, 16, 16, 16, 16, 16], "held-out functions stay as they are"


def test_planes_are_thinned_along_both_directions() -> None:
    line = torch.linspace(0, 1, 9, dtype=torch.float64)
    square = Product((Interval(), Interval()))
    values = torch.randn(3, 9, 9, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = Pairs("square", square, values, values + 1, lattice(square, line, line))
    task = Functions(pairs, pairs, batch=2)
    coarse = task.coarsened(task.example(0, 0), 5)
    whole = task.example(0, 0).batch.values.unflatten(1, (9, 9))
    assert torch.equal(coarse.batch.values, whole[:, ::2, ::2].flatten(1, 2))
    assert torch.isfinite(task.loss(coarse.target + 0.1, coarse))
    with refused(ConfigError, "functions on [9, 9] nodes are thinned evenly, got 4", "every second"):
        task.coarsened(task.example(0, 0), 4)


# --- images and texts -------------------------------------------------------------------------------------------------


def test_pixels_are_means_of_those_they_cover() -> None:
    task = digits(batch=5)
    whole = task.example(0, 0)
    half = task.coarsened(whole, 4)
    assert torch.allclose(half.batch.values, whole.batch.values.unflatten(3, (4, 2)).unflatten(2, (4, 2)).mean((3, 5)))
    holes = digits(batch=5, missing=0.9, apart=True)
    seen = holes.example(0, 0)
    coarse = holes.coarsened(seen, 4)
    flags = seen.batch.observed.unflatten(1, (4, 2, 4, 2)).permute(0, 1, 3, 2, 4).flatten(3)
    assert torch.equal(coarse.batch.observed, flags.any(-1).flatten(1))
    pixels = seen.batch.values[:, 0].unflatten(2, (4, 2)).unflatten(1, (4, 2)).permute(0, 1, 3, 2, 4).flatten(3)
    wanted = (pixels * flags).sum(-1) / flags.sum(-1).clamp_min(1)
    assert torch.allclose(coarse.batch.values[:, 0], wanted, atol=1e-6)
    shared = digits(batch=5, missing=0.5)
    assert shared.coarsened(shared.example(0, 0), 4).batch.observed.shape == (16,)


def test_a_classifier_learns_from_few_pixels_first() -> None:
    torch.manual_seed(0)
    model = image_classifier(10, d=16, heads=2, depth=1)
    seen: list[int] = []
    model.register_forward_pre_hook(lambda module, given: seen.append(given[0].values.shape[-1]))
    trained(model, digits(batch=8), stages((4, 0.5)), evaluate_every=100)
    assert seen[:6] == [4, 4, 4, 8, 8, 8]


def test_a_text_begins_with_short_contexts() -> None:
    task = tiny_task()
    example = task.example(0, 0)
    short = task.coarsened(example, 3)
    assert torch.equal(short.batch.values, example.batch.values[:, :3])
    assert short.count == 3 * example.samples
    model = tiny_model()
    positions = model.embed.position.table.coefficients
    before = positions.detach().clone()
    rows: list[torch.Tensor] = []
    trained(model, task, stages((3, 0.5)), watch=lambda progress: rows.append(positions.detach().clone()),
            optimiser=ByRole(AdamW(1e-2, decay=0.0)))  # fmt: skip
    assert torch.equal(rows[2][3:], before[3:]), "places that no token has stood at"
    assert not torch.equal(rows[2][:3], before[:3])
    assert not torch.equal(rows[5][3:8], before[3:8])


# --- runs and refusals ------------------------------------------------------------------------------------------------


def test_a_run_on_coarse_data_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    law = Growth((Stage((at(t=4, z=1), at(t=8)), 0.5),))
    whole = trained(operator(), functions(), law, save_every=1)

    def stop(progress: Any) -> None:
        if progress.step == 2:
            raise KeyboardInterrupt

    assert trained(operator(), functions(), law, run=tmp_path / "run", watch=stop, save_every=1).ended == "interrupted"
    rest = trained(operator(), functions(), law, run=Run.open(tmp_path / "run"), save_every=1)
    assert timeless(rest.history) == timeless(whole.history)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), rest.model.parameters(), strict=True))


class Whole:
    """A task that knows of no coarser data."""

    def __init__(self, inner: Task) -> None:
        self.inner = inner

    def example(self, seed: int, step: int) -> Example:
        return self.inner.example(seed, step)

    def loss(self, answer: torch.Tensor, example: Example) -> torch.Tensor:
        return self.inner.loss(answer, example)

    def evaluate(self, model: Any) -> Score:
        return self.inner.evaluate(model)


def test_data_that_cannot_be_thinned_are_refused_before_training() -> None:
    with refused(ConfigError, "this task has no coarser data, got Whole", "coarsened(example, count)"):
        trained(tiny_model(), Whole(tiny_task()), stages((4, 0.5)))
    with refused(ConfigError, "a shorter context has fewer tokens, got 9", "8 at most"):
        trained(tiny_model(), tiny_task(), stages((9, 0.5)))
    with refused(ConfigError, "functions on [16] nodes are thinned evenly, got 5", "half of them"):
        trained(operator(), functions(), stages((5, 0.5)))
    with refused(ConfigError, "8 × 8 pixels have no such means, got 3 × 3", "divisor"):
        trained(image_classifier(10, d=8, heads=2, depth=1), digits(batch=4), stages((3, 0.5)))
    with refused(ConfigError, "t shrinks while training grows, got 8, then 4", "from coarse to fine"):
        trained(operator(), functions(), stages((8, 0.3), (4, 0.6)))
    with refused(ConfigError, "t shrinks while training grows, got inf, then 4", "the data as they come"):
        trained(operator(), functions(), Growth((Stage((at(z=1),), 0.3), Stage((at(t=4),), 0.6))))
    with refused(ConfigError, "a stage thins its data to a number", "at(t=32)"):
        Stage((at(t=Midpoint(4)),), 0.5)
    assert isinstance(digits(batch=4), Images)
