"""Waves on domains, convolution by waves, and the bias of displacement."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from continua.axes import (
    Axis,
    Circle,
    Depths,
    Grid,
    Grids,
    Interval,
    Midpoint,
    Points,
    Product,
    ProductRule,
    Samples,
    Trapezoid,
    at,
    corrected,
    grid_on,
)
from continua.errors import ConfigError
from continua.fields import ByBasis
from continua.models import Batch
from continua.models.build import continuous_axes, smooth_bases
from continua.models.zoo import mesh_map
from continua.operators import GELU, Chain, Pointwise, SpectralConvolution, WaveBias, Waves
from continua.operators import waves as waves_room
from continua.operators.waves import ByBlocks, ByMatrix, Transform
from tests.refusals import refused

EXACT = 1e-12  # float64 round-off of sums over a few hundred nodes
TORUS = Product((Circle(), Circle()))
BOX = Product((Interval(), Circle(2.0), Interval(-1.0, 1.0)))
IN_BOX = Waves(BOX, (3, 2, 3), stretch=1.5)


def weights(t: Axis, d: int = 6) -> ByBasis:
    axes, native = continuous_axes(at(d=d, h=2, e=2, m=8, z=2), t=t)
    return ByBasis(axes, smooth_bases(axes, native, 2)).autonomous()


def grids(operator: SpectralConvolution, t: Grid, d: int = 6) -> Grids:
    axes, native = continuous_axes(at(d=d, h=2, e=2, m=8, z=2), t=operator.waves.axis)
    return replace(native.grids(axes), t=t, z=Depths((0.0,)))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.spec("M11")
def test_waves_of_a_torus_are_those_of_the_fft() -> None:
    grid = grid_on(TORUS, ProductRule((Trapezoid(12), Trapezoid(10))))
    x = normal(2, 120, 3)
    transform, (there, back) = Waves(TORUS, (4, 3)).bind(grid)
    found = transform.analyse(x, there)
    spectrum = torch.fft.rfft2(x.view(2, 12, 10, 3), dim=(1, 2), norm="forward")
    wanted = spectrum[:, [k % 12 for k in range(-3, 4)]][:, :, :3].reshape(2, -1, 3)
    assert (torch.complex(found[:, 0], found[:, 1]) - wanted).abs().max() < EXACT
    kept = torch.zeros_like(spectrum)
    rows = torch.tensor([k % 12 for k in range(-3, 4)])
    kept[:, rows, :3] = spectrum[:, rows, :3]
    smooth = torch.fft.irfft2(kept, s=(12, 10), dim=(1, 2), norm="forward")
    assert (transform.synthesise(found, back) - smooth.reshape(2, 120, 3)).abs().max() < EXACT


@pytest.mark.spec("M11")
@pytest.mark.parametrize("axis", [TORUS, BOX], ids=["torus", "box"])
def test_direction_by_direction_equals_one_product_over_all_nodes(axis: Product) -> None:
    sizes = (7, 6, 5)[: axis.dim]
    rules = tuple(Trapezoid(n) if f.periodic else Midpoint(n) for f, n in zip(axis.factors, sizes, strict=True))
    grid = grid_on(axis, ProductRule(rules))
    waves = Waves(axis, (3, 2, 3)[: axis.dim], stretch=1.5)
    by_lines, (there, back) = waves.bind(grid)
    dense, (all_there, all_back) = waves.bind(replace(grid, lines=None), exact=False)
    x, v = normal(2, len(grid), 3), normal(2, 2, len(waves.numbers), 3)
    assert (by_lines.analyse(x, there) - dense.analyse(x, all_there)).abs().max() < EXACT
    assert (by_lines.synthesise(v, back) - dense.synthesise(v, all_back)).abs().max() < EXACT


def in_one_and_in_blocks(
    monkeypatch: pytest.MonkeyPatch, grid: Grid, size: int
) -> tuple[tuple[Transform, Any], tuple[Transform, Any]]:
    whole = IN_BOX.bind(grid, whole=False)
    assert isinstance(whole[0], ByMatrix)
    monkeypatch.setattr(waves_room, "BLOCK", size)
    parts = IN_BOX.bind(grid, whole=False)
    assert isinstance(parts[0], ByBlocks)
    return whole, parts


@pytest.mark.spec("M11", "B16")
@pytest.mark.parametrize("shape", [(23, 3), (2, 23, 3)], ids=["one grid", "a grid of each sample"])
@pytest.mark.parametrize("size", [1, 7, 22])
def test_block_by_block_equals_one_product_over_all_nodes(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], size: int
) -> None:
    random = torch.Generator().manual_seed(4)
    points = torch.rand(*shape, generator=random, dtype=torch.float64).requires_grad_()
    mass = torch.rand(*shape[:-1], generator=random, dtype=torch.float64).requires_grad_()
    whole, parts = in_one_and_in_blocks(monkeypatch, Grid(points, mass), size)
    x = normal(2, 23, 4).requires_grad_()
    v = normal(2, 2, len(IN_BOX.numbers), 4, seed=1).requires_grad_()
    found = []
    for transform, (there, back) in (whole, parts):
        analysed = transform.analyse(x, there)
        answered = transform.synthesise(v, back)
        loss = (analysed * normal(*analysed.shape, seed=2)).sum() + (answered * normal(*answered.shape, seed=3)).sum()
        found.append((analysed, answered, *torch.autograd.grad(loss, (x, v, points, mass))))
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() < 100 * EXACT  # derivatives by the nodes are a hundred times larger


@pytest.mark.spec("M11", "B16")
def test_sums_over_blocks_in_half_precision_are_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.rand(2000, 3, generator=torch.Generator().manual_seed(4))
    whole, parts = in_one_and_in_blocks(monkeypatch, Grid(points, torch.full((2000,), 1 / 2000)), 10)
    x = (1 + normal(1, 2000, 2).float()).bfloat16()
    wanted = whole[0].analyse(x.float(), whole[1][0])
    step = torch.finfo(torch.bfloat16).eps
    off = (parts[0].analyse(x, parts[1][0]).float() - wanted).abs().max()
    assert off < step * wanted.abs().max()


@pytest.mark.spec("M11", "B16")
def test_an_exported_map_serves_meshes_of_more_nodes_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves_room, "BLOCK", 40)
    size = at(d=6, h=2, m=8, z=2)
    model = mesh_map(Product((Interval(), Interval())), channels=2, at=size, modes=2, tokens=4).double().eval()

    class Answers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor, points: torch.Tensor, mass: torch.Tensor) -> Any:
            return self.model(Batch(x, grid=Grid(points, mass)))

    def given(n: int) -> tuple[torch.Tensor, ...]:
        points = torch.rand(1, n, 2, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        return normal(1, n, 2), points, torch.full((1, n), 1 / n, dtype=torch.float64)

    nodes = torch.export.Dim("nodes", min=65)  # sums over fewer are taken in float64
    dynamic = ({1: nodes}, {1: nodes}, {1: nodes})
    program = torch.export.export(Answers(), given(90), dynamic_shapes=dynamic).module()
    for n in (65, 90, 170):
        assert (program(*given(n)) - Answers()(*given(n))).abs().max() < EXACT


@pytest.mark.spec("B3")
def test_corrected_weights_integrate_the_waves_of_scattered_nodes_exactly() -> None:
    points = torch.rand(200, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    scattered = Samples().on(Circle(), points)
    waves = Waves(Circle(), (9,))
    v = normal(1, 2, 9, 1)
    uniform, (there, back) = waves.bind(grid_on(Circle(), Trapezoid(64)))
    wanted = uniform.analyse(uniform.synthesise(v, back), there)
    plain, (rough, at_points) = waves.bind(scattered, exact=False)
    field = plain.synthesise(v, at_points)
    right, (fine, _) = waves.bind(scattered)
    error = (right.analyse(field, fine) - wanted).abs().max() / wanted.abs().max()
    assert error < 1e-10  # the Gram matrix of 65 waves at 200 nodes has condition 1e3
    assert (plain.analyse(field, rough) - wanted).abs().max() / wanted.abs().max() > 1e-3  # half-gaps alone do not


@pytest.mark.spec("B3")
def test_the_correction_is_the_smallest_and_leaves_absent_nodes_absent() -> None:
    w = torch.rand(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w[4] = 0.0
    m, e = normal(5, 30), normal(5, seed=1)
    found = corrected(w, m, e)
    assert (m @ found - e).abs().max() < 1e-10
    assert found[4] == 0.0
    # the change y√w of least Σ y² that does it, by a pseudo-inverse
    root = w.sqrt()
    least = torch.linalg.pinv(m * root) @ (e - m @ w)
    assert (found - w - least * root).abs().max() < 1e-10


@pytest.mark.spec("B3")
def test_on_equal_nodes_the_convolution_is_that_of_the_fft() -> None:
    torch.manual_seed(0)
    operator = SpectralConvolution(weights(Circle()), modes=5, beside=False).double()
    t = grid_on(Circle(), Trapezoid(16))
    x = normal(3, 16, 6)
    f, args = operator.bind(grids(operator, t))
    found = f(0.0, x, args)
    real, imaginary = operator.kernel.coefficients.view(2, 5, 6, 6).unbind(0)
    spectrum = torch.fft.rfft(x, dim=1)
    mixed = torch.zeros_like(spectrum)
    mixed[:, :5] = torch.einsum("bkc,kdc->bkd", spectrum[:, :5], torch.complex(real, imaginary))
    assert (found - torch.fft.irfft(mixed, 16, dim=1)).abs().max() < EXACT


@pytest.mark.spec("B3")
def test_the_same_function_is_convolved_on_every_grid() -> None:
    torch.manual_seed(0)
    operator = SpectralConvolution(weights(Circle()), modes=5).double()
    v = normal(1, 2, 5, 6)
    points = torch.rand(90, generator=torch.Generator().manual_seed(1), dtype=torch.float64).sort().values
    answers = []
    for grid in (grid_on(Circle(), Trapezoid(40)), Samples().on(Circle(), points)):
        transform, (there, back) = Waves(Circle(), (5,)).bind(grid)
        f, args = operator.bind(grids(operator, grid))
        answers.append(transform.analyse(f(0.0, transform.synthesise(v, back), args), there))
    assert (answers[0] - answers[1]).abs().max() < 1e-9


@pytest.mark.spec("B3")
def test_a_shifted_function_has_a_shifted_answer() -> None:
    torch.manual_seed(0)
    first = SpectralConvolution(weights(Circle()), modes=4, phi=GELU())
    operator = Chain(first, Pointwise(weights(Circle()))).double()
    f, args = operator.bind(grids(first, grid_on(Circle(), Trapezoid(12))))
    x = normal(2, 12, 6)
    assert (f(0.0, x.roll(5, 1), args) - f(0.0, x, args).roll(5, 1)).abs().max() < EXACT


@pytest.mark.spec("B3")
def test_gradients_flow_through_the_convolution() -> None:
    torch.manual_seed(0)
    operator = SpectralConvolution(weights(Circle(), d=2), modes=3).double()
    f, args = operator.bind(grids(operator, grid_on(Circle(), Trapezoid(7)), d=2))
    x = normal(1, 7, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: f(0.0, x, args), (x,))


@pytest.mark.spec("M11")
def test_the_bias_of_displacement_is_the_sum_of_its_waves() -> None:
    position = WaveBias(weights(TORUS), 3).double()
    torch.nn.init.normal_(position.table.coefficients, generator=torch.Generator().manual_seed(0))
    axes, native = continuous_axes(at(d=6, h=2, e=2, m=8, z=2), t=TORUS)
    made = native.grids(axes)
    args = position.bind(made.h, made.e)
    t, s = torch.rand(5, 2, dtype=torch.float64), torch.rand(4, 2, dtype=torch.float64)
    numbers = torch.tensor(position.waves.numbers, dtype=torch.float64)
    angles = 2 * torch.pi * (t[:, None] - s[None]) @ numbers.T
    table = args
    wanted = torch.einsum("tsk,kh->hts", angles.cos(), table[: len(numbers)])
    wanted = wanted + torch.einsum("tsk,kh->hts", angles.sin(), table[len(numbers) :])
    assert (position.pair_bias(t, s, args) - wanted).abs().max() < EXACT
    moved = position.pair_bias((t + 0.3) % 1.0, (s + 0.3) % 1.0, args)
    assert (moved - wanted).abs().max() < 1e-11


@pytest.mark.spec("B3")
def test_refusals() -> None:
    with refused(ConfigError, "Points", "t=Circle()"):
        Waves(Points(4), (2,))
    with refused(ConfigError, "(2,)", "2 whole numbers"):
        Waves(TORUS, (2,))
    with refused(ConfigError, "stretch=0.5", "1 or more"):
        Waves(Interval(), (2,), stretch=0.5)
