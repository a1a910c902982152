"""Pictures and films show what they were given, readably."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from continua.errors import ConfigError, ShapeError
from continua.lab import Particles, SelfAttention, Simulation, simulate
from continua.lab.canvas import densities
from continua.lab.canvas import pictures as drawn
from continua.lab.canvas.canvas import COLOURS, Camera, crowded, in_space, shown, tints
from continua.lab.canvas.films import film
from continua.lab.figure import pyplot, whole_numbers
from continua.lab.theory.meanfield_sphere import SphereField
from tests.refusals import refused

SMALLEST_FONT = 8.0  # points: below that a printed page is hard to read


@pytest.fixture(scope="module")
def circle() -> Simulation:
    start = Particles.uniform(40, 2, torch.Generator().manual_seed(0))
    return simulate(SelfAttention(4.0), start, 6.0, save=7)


@pytest.fixture(scope="module")
def ball() -> Simulation:
    start = Particles.uniform(30, 3, torch.Generator().manual_seed(0))
    return simulate(SelfAttention(4.0), start, 6.0, save=7)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures behind the files."""
    kept: list[Any] = []

    def keep(plt: Any, figure: Any, path: str | Path) -> Path:
        figure.savefig(path, dpi=100)
        kept.append(figure)
        return Path(path)

    for module in (drawn, densities):
        monkeypatch.setattr(module, "save", keep)
    yield kept
    pyplot().close("all")


def pixels_of(path: Path, colour: str) -> int:
    """How many pixels of the first frame have exactly this colour."""
    with Image.open(path) as image:
        pixels = numpy.asarray(image.convert("RGB"))
    return int((pixels == [round(255 * part) for part in to_rgb(colour)]).all(-1).sum())


def globe(tilt: float = 0.1) -> SphereField:
    """(1 + 3·tilt·z)/4π at all times."""
    a = torch.zeros(3, 5, 5, dtype=torch.complex128)
    a[:, 0, 0] = 1 / math.sqrt(4 * math.pi)
    a[:, 1, 0] = 3 * tilt * math.sqrt(4 * math.pi / 3) / (4 * math.pi)
    return SphereField(torch.tensor([0.0, 3.0, 6.0], dtype=torch.float64), a, SelfAttention(4.0))


def all_pictures(folder: Path, circle: Simulation, ball: Simulation) -> dict[str, Path]:
    """One of each."""
    times = torch.logspace(-2, 2, 40, dtype=torch.float64)
    climb = 1 + (times / 0.3).tanh() + (times / 20).tanh()
    rates = torch.tensor([0.0, 0.1, 0.35, 0.6, 0.7, 0.66, 0.5], dtype=torch.float64)
    modes = torch.tensor([1, 3, 4])
    stays = [drawn.Stay(1.0, 5.0, "4 clusters"), drawn.Stay(50.0, 100.0, "1 cluster")]
    flat = torch.full((7, 32), 1 / (2 * math.pi), dtype=torch.float64)
    steps = torch.where(times < 1, 9, torch.where(times < 20, 4, 1))
    return {
        "angles": drawn.plot_paths(circle, folder / "angles.png", torch.arange(40) % 3),
        "ways": drawn.plot_paths(ball, folder / "ways.png", title="Tokens on the sphere"),
        "growth": drawn.plot_growth({"β = 9": rates}, {"β = 9": (modes, 1.001 * rates[modes])}, folder / "growth.png"),
        "density": densities.plot_density(circle.times, flat, folder / "density.png", circle, "Both"),
        "globe": densities.plot_globe(globe(), folder / "globe.png", ball, 3, "Both"),
        "stairs": drawn.plot_staircase(times, climb, folder / "stairs.png", steps, stays),
        "tokens": drawn.plot_staircase(ball.times, climb[:7], folder / "tokens.png", None, stays[:1], "", ball),
        "counts": drawn.plot_counts(torch.tensor([3, 4, 4, 5]), folder / "counts.png", 4.0),
        "phase": drawn.plot_phase(torch.arange(1.0, 9).view(2, 4), (1, 2, 4, 9), (2, 3), folder / "phase.png"),
    }


def writing(panel: Any) -> list[Any]:
    """The texts of a panel that can be seen: titles, labels, and those ticks that lie within its limits."""
    found = [panel.title, panel.xaxis.label, panel.yaxis.label, *panel.texts]
    for axis, (low, high) in ((panel.xaxis, sorted(panel.get_xlim())), (panel.yaxis, sorted(panel.get_ylim()))):
        found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in found if text.get_text() and text.get_visible()]


@pytest.mark.spec("L10")
def test_every_picture_is_readable(tmp_path, circle, ball, figures) -> None:
    """No writing is cut off, is tiny, or lies on other writing of its panel."""
    for name, path in all_pictures(tmp_path, circle, ball).items():
        assert path.stat().st_size > 4000, name
    for figure in figures:
        pen = figure.canvas.get_renderer()
        room = figure.bbox
        for panel in figure.axes:
            seen = [(text, text.get_window_extent(pen)) for text in writing(panel)]
            for text, box in seen:
                assert text.get_fontsize() >= SMALLEST_FONT, text.get_text()
                assert room.x0 - 1 <= box.x0 <= box.x1 <= room.x1 + 1, text.get_text()
                assert room.y0 - 1 <= box.y0 <= box.y1 <= room.y1 + 1, text.get_text()
            for i, (text, box) in enumerate(seen):
                for other, beside in seen[:i]:
                    assert not box.shrunk(0.9, 0.9).overlaps(beside), (text.get_text(), other.get_text())


@pytest.mark.spec("L10", "L7")
def test_growth_shows_the_curve_the_points_and_their_distance(tmp_path, circle, ball, figures) -> None:
    all_pictures(tmp_path, circle, ball)
    upper, lower = figures[2].axes
    curve, points = upper.lines[0], upper.lines[1]
    assert curve.get_xdata()[3] == 4
    assert curve.get_ydata()[3] == pytest.approx(0.7, abs=1e-12)
    assert points.get_ydata().tolist() == pytest.approx([0.1001, 0.6006, 0.7007], abs=1e-12)
    assert lower.lines[0].get_ydata().tolist() == pytest.approx([1e-3] * 3, rel=1e-9)


@pytest.mark.spec("L10", "L6")
def test_the_histogram_beside_a_density_has_mass_one(circle) -> None:
    cells = densities._histogram(circle)
    assert cells.shape == (7, densities.CELLS)
    numpy.testing.assert_allclose(cells.sum(1) * 2 * math.pi / densities.CELLS, 1, rtol=1e-12)
    tops = numpy.bincount(
        numpy.rint(circle.final.angles.numpy() * densities.CELLS / (2 * math.pi)).astype(int) % densities.CELLS
    )
    assert int(cells[-1].argmax()) == int(tops.argmax())


@pytest.mark.spec("L10", "L6")
def test_a_globe_is_seen_from_where_its_camera_stands() -> None:
    values, inside = densities._seen(globe(), torch.tensor([0, 2]))
    image = numpy.full(inside.shape, numpy.nan)
    image[inside] = values[1]
    middle = densities.PIXELS // 2
    up = Camera().matrix[:, 2]  # the part of z along right, up and towards
    assert image[middle, middle] == pytest.approx(1 + 0.3 * up[2], abs=5e-3), "a pixel wide"
    assert image[-1 - middle // 20, middle] > image[middle // 20, middle], "north is up"
    assert inside.mean() == pytest.approx(math.pi / 4, abs=1e-2)


@pytest.mark.spec("L10", "L5")
def test_a_staircase_shows_where_tokens_rest(tmp_path, circle, ball, figures) -> None:
    stays = [drawn.Stay(0.5, 1.5, "a"), drawn.Stay(3.5, 4.5, "b")]
    for found in (circle, ball):
        energy = torch.linspace(0.1, 0.9, 7)
        drawn.plot_staircase(found.times, energy, tmp_path / "a.png", torch.arange(7, 0, -1), stays, "", found)
        top, low, *spheres = figures[-1].axes
        assert [panel.get_title() for panel in spheres] == ["t = 0", "t = 1", "t = 4"]
        assert [patch.get_x() for patch in top.patches] == [0.5, 3.5]
        assert "1 at consensus" in top.get_ylabel()
        assert low.lines[0].get_ydata().tolist() == [7, 6, 5, 4, 3, 2, 1]
        assert top.get_xscale() == "linear"


@pytest.mark.spec("L10", "L5")
def test_a_phase_diagram_of_wide_range_has_a_logarithmic_scale(tmp_path, figures) -> None:
    table = torch.tensor([[1.0, 2.0], [30.0, math.nan]])
    drawn.plot_phase(table, (1.0, 9.0), (2, 3), tmp_path / "a.png")
    panel, bar = figures[0].axes
    assert [text.get_text() for text in panel.texts] == ["1", "2", "30"], "what is not known is left white"
    assert bar.get_yscale() == "log"


@pytest.mark.spec("L10")
def test_heavier_tokens_are_heavier_in_the_histogram() -> None:
    start = Particles.circle([0.0, math.pi], torch.tensor([0.75, 0.25], dtype=torch.float64))
    cells = densities._histogram(simulate(SelfAttention(1.0), start, 1.0, save=2))
    assert cells[0][0] / cells[0][densities.CELLS // 2] == pytest.approx(3.0)


@pytest.mark.spec("L10")
def test_a_token_that_passes_two_pi_comes_in_again(tmp_path, figures) -> None:
    times = torch.linspace(0, 1, 9, dtype=torch.float64)
    x = Particles.circle((6.0 + times)[:, None]).x
    drawn.plot_paths(Simulation(times, x, None, SelfAttention(1.0)), tmp_path / "turn.png")
    (lines,) = figures[0].axes[0].collections
    ends = sorted(float(path.vertices[-1, 1]) for path in lines.get_paths())
    assert len(ends) == 2
    assert ends == pytest.approx([7.0 - 2 * math.pi, 7.0])


# --- films ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L10")
@pytest.mark.parametrize("which", ["circle", "ball"])
def test_a_gif_has_a_frame_for_each_time_and_rests_at_the_end(tmp_path, request, which) -> None:
    found = request.getfixturevalue(which)
    lengths = []
    with Image.open(film(found, tmp_path / "film.gif", rate=10.0, inches=2.0)) as made:
        assert made.n_frames == 7
        for frame in range(7):
            made.seek(frame)
            lengths.append(made.info["duration"])
        assert made.convert("RGB").getpixel((1, made.height // 2)) == (255, 255, 255), "white stays white"
    assert lengths == [100] * 6 + [800]


@pytest.mark.spec("L10")
def test_films_show_the_groups_in_their_colours(tmp_path, circle, ball) -> None:
    for found, count in ((circle, 40), (ball, 30)):
        path = film(found, tmp_path / "one.gif", torch.arange(count) % 3, inches=2.0)
        many = [pixels_of(path, colour) for colour in COLOURS]
        assert min(many[:3]) > 60 > max(many[3:]), many


@pytest.mark.spec("L10")
def test_a_strip_has_five_pictures_and_their_captions_change(tmp_path, ball) -> None:
    path = film(ball, tmp_path / "strip.png", captions=[f"frame {i}" for i in range(7)])
    with Image.open(path) as opened:
        image = numpy.asarray(opened.convert("L"))
    gaps = (image == 255).all(0)
    starts = int((gaps[:-1] & ~gaps[1:]).sum()) + int(not gaps[0])
    assert starts == 5
    assert image.shape[1] > 4 * image.shape[0]


@pytest.mark.spec("L10")
def test_more_than_three_dimensions_are_seen_along_the_principal_ones(tmp_path, generator) -> None:
    found = simulate(SelfAttention(1.0), Particles.uniform(20, 6, generator), 8.0, save=4)
    path, _ = shown(found)
    seen = in_space(path)
    assert seen.shape == (4, 20, 3)
    lengths = numpy.linalg.norm(seen, axis=-1)
    assert lengths.max() <= 1 + 1e-12
    assert lengths[-1].min() > 0.9, "at the end there is about one cluster, in the first principal direction"
    assert film(found, tmp_path / "six.png").stat().st_size > 10_000


@pytest.mark.spec("L10")
def test_of_many_tokens_some_are_drawn_one_by_one(generator) -> None:
    found = simulate(SelfAttention(1.0), Particles.uniform(5000, 2, generator), 0.1, save=2)
    path, kept = shown(found)
    assert path.shape == (2, 600, 2)
    assert (kept[0], kept[-1], len(set(kept.tolist()))) == (0, 4999, 600)
    batch = simulate(SelfAttention(1.0), Particles.uniform(8, 2, generator, runs=3), 0.1, save=2)
    numpy.testing.assert_allclose(shown(batch)[0], batch.x[:, 0].numpy(), atol=1e-15)


@pytest.mark.spec("L10")
def test_the_camera_turns_and_tells_front_from_behind() -> None:
    camera = Camera(40.0, 15.0)
    numpy.testing.assert_allclose(camera.matrix @ camera.matrix.T, numpy.eye(3), atol=1e-15)
    assert numpy.linalg.det(camera.matrix) == pytest.approx(1.0)
    places, near = camera.see(numpy.stack([camera.matrix[2], -camera.matrix[2]]))
    numpy.testing.assert_allclose(places, 0, atol=1e-15)
    numpy.testing.assert_allclose(near, [1, -1])


@pytest.mark.spec("L10")
def test_tokens_in_one_place_are_drawn_large() -> None:
    points = numpy.array([[1.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0]])
    numpy.testing.assert_allclose(crowded(points), [4.0, 4.0, 1.0])
    assert crowded(points[:1]).tolist() == [1.0]


@pytest.mark.spec("L10")
def test_real_groups_are_a_scale() -> None:
    scale = tints(torch.linspace(0, 1, 5), numpy.arange(5))
    assert len({tuple(one) for one in scale}) == 5
    assert sum(scale[0][:3]) < sum(scale[-1][:3]), "from dark to light"


@pytest.mark.finding("N10")
def test_a_few_dots_keep_the_colour_of_their_cluster(tmp_path) -> None:
    """Six clusters on a ball, one of few tokens: by area alone its colour would be lost."""
    places = torch.nn.functional.normalize(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), dim=-1)
    labels = torch.tensor([0] * 60 + [1] * 60 + [2] * 60 + [3] * 4 + [4] * 2 + [5])
    start = torch.nn.functional.normalize(
        places[labels] + 0.6 * torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(2)), dim=-1
    )
    share = torch.linspace(0, 1, 9)[:, None, None]
    path = torch.nn.functional.normalize((1 - share) * start + share * places[labels], dim=-1).double()
    found = Simulation(share[:, 0, 0].double(), path, None, SelfAttention(9.0))
    with Image.open(drawn.plot_paths(found, tmp_path / "paths.png", labels)) as image:
        pixels = numpy.asarray(image.convert("RGB")).astype(int)
    for label, colour in enumerate(COLOURS[:6]):
        near = numpy.abs(pixels - [round(255 * part) for part in to_rgb(colour)]).max(-1) < 40
        assert near.sum() > 40, f"cluster {label} is not drawn in {colour}"


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L10")
def test_films_refuse_with_a_remedy(tmp_path, circle, monkeypatch) -> None:
    with refused(ConfigError, "film.gfi", "Did you mean '.gif'?"):
        film(circle, tmp_path / "film.gfi")
    with refused(ConfigError, "got 2", "Give 7 of them"):
        film(circle, tmp_path / "film.gif", captions=["a", "b"])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with refused(ConfigError, "ffmpeg, got none", "apt install ffmpeg), or write film.gif"):
        film(circle, tmp_path / "film.mp4")
    with refused(ShapeError, "[3] for 40 or more tokens", "one number for each token"):
        film(circle, tmp_path / "film.gif", torch.arange(3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("L10")
@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_a_mp4_is_written_where_ffmpeg_is(tmp_path, circle) -> None:
    path = film(circle, tmp_path / "film.mp4", inches=2.0)
    assert path.read_bytes()[4:8] == b"ftyp"


@pytest.mark.spec("L10")
def test_pictures_refuse_with_a_remedy(tmp_path, circle) -> None:
    with refused(ShapeError, "[7, 32, 1]", "one row of values for each time"):
        densities.plot_density(circle.times, torch.ones(7, 32, 1), tmp_path / "a.png")
    with refused(ShapeError, "[2, 3] for 3 rows and 2 columns", "Give values [rows, columns]"):
        drawn.plot_phase(torch.ones(2, 3), (1, 2), (2, 3, 4), tmp_path / "a.png")


@pytest.mark.finding("N10")
@pytest.mark.parametrize("layers", [2, 3, 12])
def test_layers_are_whole_numbers(layers) -> None:
    plt = pyplot()
    _, panel = plt.subplots()
    panel.plot(range(layers), range(layers))
    whole_numbers(panel)
    low, high = panel.get_xlim()
    ticks = [tick for tick in panel.get_xticks() if low <= tick <= high]
    assert ticks
    assert all(tick == round(tick) for tick in ticks)
    plt.close("all")
