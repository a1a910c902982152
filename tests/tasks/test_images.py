"""Images with labels: training changes, other resolutions, missing pixels, point sets, files; an elastic model."""

import gzip
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from continua.convert import elastic
from continua.data.images import FASHION, observed_pixels, point_sets, read_idx, resampled
from continua.errors import ConfigError, ShapeError
from continua.models import Pixels, zoo
from continua.optim import AdamW, ByRole
from continua.tasks import Images, digits
from continua.tasks.images import fashion_mnist
from continua.tasks.task import generator_for
from continua.training import Elastic, fit
from tests.exact import gap, numbers
from tests.refusals import refused

EXACT = 1e-12  # float64
SINGLE = 1e-6  # float32


@pytest.mark.slow(reason="a training")
@pytest.mark.spec("B1")
def test_digits_are_images_with_labels_and_other_sizes_learn_them_too() -> None:
    task = digits(batch=32)
    assert task.pixels.shape == (1797, 1, 8, 8)
    assert task.classes == 10
    assert torch.equal(task.example(0, 3).target, task.example(0, 3).target)
    torch.manual_seed(0)
    model = elastic(zoo.vit(Pixels(8, 8, 1, patch=(2, 2)), d=32, heads=4, depth=2, labels=10))
    law, fast = Elastic(start=0.2), ByRole(AdamW(5e-3))
    fit(model, task, optimiser=fast, steps=150, elastic=law, watch=lambda at: None)
    model.eval()
    for wish in ({}, {"d": 16}, {"d": 16, "h": 2, "z": 1}):
        assert task.evaluate(model.at(**wish)).values["accuracy"] > 0.3, wish  # by chance: 0.1


@pytest.mark.spec("B1")
def test_images_move_by_whole_pixels_and_bad_ones_are_refused() -> None:
    pixels = torch.zeros(10, 1, 4, 4)
    pixels[:, :, 1, 1] = 1.0
    moved = Images(pixels, torch.zeros(10).long(), batch=64, shift=1).example(0, 0).batch.values
    assert moved.sum((1, 2, 3)).eq(1).all()
    assert len({tuple(m.flatten().tolist()) for m in moved}) == 9
    with refused(ConfigError, "images and labels do not fit", "n labels"):
        Images(torch.zeros(3, 4, 4), torch.zeros(3))
    with refused(ConfigError, "some images are held out", "got 1.5"):
        Images(pixels, torch.zeros(10).long(), held_out=1.5)
    with refused(ConfigError, "missing or moved, not all, got missing=1, warp=0", "below 1"):
        Images(pixels, torch.zeros(10).long(), missing=1.0)


# --- parts and changes -----------------------------------------------------------------------------------------------


@pytest.mark.spec("B6")
def test_held_out_images_are_neither_trained_on_nor_chosen_by() -> None:
    pixels = torch.arange(20.0).view(20, 1, 1, 1)
    task = Images(pixels, torch.zeros(20).long(), batch=500, held_out=0.25)
    held, labels = task.held
    assert held.flatten().tolist() == [15.0, 16.0, 17.0, 18.0, 19.0]
    assert len(labels) == 5
    assert set(task.example(0, 0).batch.values.flatten().tolist()) == set(range(15))
    choice = task.validation(0.2)
    assert choice.held[0].flatten().tolist() == [12.0, 13.0, 14.0]
    assert set(choice.example(0, 0).batch.values.flatten().tolist()) == set(range(12))


@pytest.mark.spec("B6")
def test_training_images_are_warped_and_lack_pixels_by_seed_and_step() -> None:
    smooth = torch.linspace(0, 1, 9)[:, None] + torch.linspace(0, 2, 9)
    task = Images(smooth.expand(10, 1, 9, 9), torch.zeros(10).long(), batch=6, warp=0.1, missing=0.5)
    first, again, other = task.example(0, 0), task.example(0, 0), task.example(0, 1)
    assert torch.equal(first.batch.values, again.batch.values)
    assert torch.equal(first.batch.observed, again.batch.observed)
    assert not torch.equal(first.batch.values, other.batch.values)
    assert first.batch.observed.shape == (81,)
    assert all(task.example(0, step).batch.observed.float().mean() >= 0.49 for step in range(20))
    apart = replace(task, apart=True).example(0, 0).batch.observed
    assert apart.shape == (6, 81)
    assert len(set(apart.sum(-1).tolist())) > 1  # each image lacks its own share
    assert apart.float().mean(-1).min() >= 0.49
    change = (first.batch.values - smooth).abs()
    assert change.amax((1, 2, 3)).min() > 0.01  # each is moved
    assert change.max() < 3 * 0.1 * 2.25  # three entries of 0.1 on coordinates up to 1, slopes of (1 + 2)·9/16 each


@pytest.mark.spec("B6")
def test_other_resolutions_lie_on_the_same_square() -> None:
    """A linear function of the square is read exactly between the centres of the pixels, growing or shrinking."""
    rows, columns = ((torch.arange(n, dtype=torch.float64) + 0.5) / n for n in (8, 8))
    image = (2 * rows[:, None] + columns)[None, None]
    for side in (16, 32):
        at = (torch.arange(side, dtype=torch.float64) + 0.5) / side
        inner = (at > 0.0626) & (at < 0.9374)  # within the first and last centres
        wanted = 2 * at[:, None] + at
        assert gap(resampled(image, side)[0, 0][inner][:, inner], wanted[inner][:, inner]) < EXACT
    at = (torch.arange(4, dtype=torch.float64) + 0.5) / 4
    inside = slice(1, 3)  # at the rim the triangle is cut
    assert gap(resampled(image, 4)[0, 0, inside, inside], (2 * at[:, None] + at)[inside, inside]) < EXACT
    assert torch.equal(resampled(image, 8), image)
    with refused(ShapeError, "images have shape [n, channels, height, width], got [8, 8]", "Add the dimension"):
        resampled(image[0, 0], 4)


@pytest.mark.spec("B6")
def test_pixels_are_missing_at_random_and_never_all() -> None:
    flags = observed_pixels(200, 64, 0.5, generator_for("test"))
    assert flags.sum(-1).eq(32).all()
    assert flags.float().sum(0).min() > 60
    assert flags.float().sum(0).max() < 140  # each pixel about 100 times, four deviations of 7
    assert observed_pixels(3, 4, 0.99, generator_for("test")).sum(-1).eq(1).all()
    with refused(ConfigError, "a share of the pixels is missing, not all, got 1.0", "share < 1"):
        observed_pixels(3, 4, 1.0, generator_for("test"))


@pytest.mark.spec("B6", "M11")
def test_point_sets_hold_what_the_flags_say() -> None:
    images = numbers(3, 2, 4, 6)
    flags = observed_pixels(3, 24, 0.5, generator_for("test"))
    batch = point_sets(images, flags)
    assert batch.values.shape == (3, 12, 2)
    row = (batch.grid.nodes[..., 0] * 4 - 0.5).round().long()
    column = (batch.grid.nodes[..., 1] * 6 - 0.5).round().long()
    for b in range(3):
        assert torch.equal(batch.values[b].mT, images[b, :, row[b], column[b]])
        assert flags[b][row[b] * 6 + column[b]].all()
    assert gap(batch.grid.weights, torch.full((3, 12), 1 / 24, dtype=torch.float64)) < EXACT
    flags[0] = True
    with refused(ShapeError, "every image needs the same number of observed pixels, got [24, 12, 12]", "pad"):
        point_sets(images, flags)


@pytest.mark.spec("B6")
def test_classes_that_were_never_seen_are_refused() -> None:
    labels = torch.tensor([0, 1, 0, 1, 2])
    with refused(ConfigError, "classes that training never sees, got [2]", "Shuffle"):
        Images(torch.zeros(5, 1, 4, 4), labels, held_out=0.2)
    task = Images(torch.zeros(5, 1, 4, 4), labels % 2, held_out=0.2)
    model = zoo.vit(Pixels(4, 4, 1, patch=(2, 2)), d=8, heads=2, depth=1, labels=2)
    assert task.measure(model, torch.zeros(2, 1, 4, 4), torch.tensor([0, 1])).values["accuracy"] == 0.5
    with refused(ConfigError, "the model knows the classes 0 to 1, got 0 to 7", "Train on all classes"):
        task.measure(model, torch.zeros(2, 1, 4, 4), torch.tensor([0, 7]))


# --- files -----------------------------------------------------------------------------------------------------------


def idx(*shape: int, values: bytes | None = None) -> bytes:
    """An idx file of bytes."""
    count = 1
    for n in shape:
        count *= n
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + (values or bytes(range(count)))


@pytest.mark.spec("B6")
def test_idx_files_are_read_packed_or_not(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(idx(2, 3, 4))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(idx(2, 3, 4)))
    wanted = torch.arange(24, dtype=torch.uint8).view(2, 3, 4)
    assert torch.equal(read_idx(tmp_path / "plain"), wanted)
    assert torch.equal(read_idx(tmp_path / "packed.gz"), wanted)


@pytest.mark.spec("B6")
def test_idx_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with refused(ConfigError, "there is no such idx file, got gone", "dataset-fashion-mnist"):
        read_idx(tmp_path / "gone")
    cases = {
        "short": (idx(2, 3, 4)[:-1], "cut short or too long, got 23 bytes for [2, 3, 4]", "Fetch it again"),
        "long": (idx(2, 3, 4) + b"1", "cut short or too long, got 25 bytes for [2, 3, 4]", "Fetch it again"),
        "head": (idx(2, 3, 4)[:7], "cut short or too long, got 0 bytes for []", "Fetch it again"),
        "empty": (b"", "this is no idx file of bytes, got empty beginning with nothing", "Give an idx file"),
        "text": (b"hello", "got text beginning with 68656c6c", "Give an idx file"),
        "cut.gz": (gzip.compress(idx(2, 3, 4))[:-9], "this file is damaged, got cut.gz", "Fetch it again"),
        "no.gz": (idx(2, 3, 4), "this file is damaged, got no.gz", "Fetch it again"),
    }
    for name, (content, got, remedy) in cases.items():
        (tmp_path / name).write_bytes(content)
        with refused(ConfigError, got, remedy):
            read_idx(tmp_path / name)


def files(folder: Path, labels: int = 6) -> None:
    """A Fashion-MNIST of six and three images."""
    for part, n, kinds in (("train", 6, labels), ("t10k", 3, 3)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(n, 2, 2, values=bytes(range(0, 40 * n, 10))))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(kinds, values=bytes([0, 1, 2] * 2)[:kinds]))


@pytest.mark.spec("B6")
def test_fashion_mnist_is_read_from_its_four_files(tmp_path: Path) -> None:
    files(tmp_path)
    task = fashion_mnist(tmp_path, batch=3, missing=0.5)
    assert (task.pixels.shape, task.classes, task.missing) == ((9, 1, 2, 2), 3, 0.5)
    assert gap(task.held[0][0, 0], torch.tensor([[0.0, 10.0], [20.0, 30.0]]) / 127.5 - 1) < SINGLE
    assert len(fashion_mnist(tmp_path, images=3).pixels) == 6
    assert len(fashion_mnist(tmp_path, images=3).held[0]) == 3
    files(tmp_path, labels=5)
    with refused(ConfigError, "train needs pictures [n, 28, 28] and n labels, got [6, 2, 2] and [5]", "one set"):
        fashion_mnist(tmp_path)


@pytest.mark.spec("B6")
def test_the_real_fashion_mnist() -> None:
    if not FASHION.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed here")
    task = fashion_mnist()
    assert task.pixels.shape == (70_000, 1, 28, 28)
    assert task.labels[:60_000].bincount().eq(6000).all()
    assert len(task.held[0]) == 10_000
