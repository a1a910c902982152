"""Images as functions on the square: one model at any resolution and with pixels missing (B6)."""

from dataclasses import replace

import pytest
import torch

from continua.axes import Grid
from continua.data.images import SQUARE, observed_pixels, point_sets, resampled
from continua.errors import ConfigError, ShapeError
from continua.models import Batch, Transformer
from continua.recipes.recipe import SHIPPED, build
from continua.recipes.vision import VisionSettings, digits, model_of
from continua.tasks.task import generator_for
from continua.training import fit
from tests.exact import gap, numbers, stirred
from tests.refusals import refused

EXACT = 1e-12  # float64
SMALL = VisionSettings(d=16, heads=2, depth=2)


def small() -> Transformer:
    return stirred(model_of(SMALL, 10)).eval()  # type: ignore[return-value]


@pytest.mark.spec("B6", "M11")
def test_an_image_its_points_and_its_observed_pixels_are_one_thing() -> None:
    model, images = small(), numbers(3, 1, 8, 8)
    flags = observed_pixels(3, 64, 0.5, generator_for("test"))
    wanted = model(Batch(images, observed=flags))
    assert wanted.shape == (3, 10)
    assert gap(model(point_sets(images, flags)), wanted) < EXACT
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    batch = point_sets(images, flags)
    turned = Batch(batch.values[:, order], grid=Grid(batch.grid.nodes[:, order], batch.grid.weights[:, order]))
    assert gap(model(turned), wanted) < EXACT
    whole = observed_pixels(3, 64, 0.0, generator_for("test"))
    assert gap(model(point_sets(images, whole)), model(images)) < EXACT
    assert gap(wanted, model(images)) > 1e-3  # what is missing matters


@pytest.mark.spec("B6", "M11", "M10")
def test_answers_converge_as_the_picture_is_taken_with_more_pixels() -> None:
    model = small()

    def picture(side: int) -> torch.Tensor:
        x = (torch.arange(side, dtype=torch.float64) + 0.5) / side
        return ((4 * x[:, None]).sin() * (3 * x + 1).cos())[None, None]

    wanted = model(picture(256)).detach()
    errors = [gap(model(picture(side)).detach(), wanted) for side in (8, 16, 32, 64)]
    assert errors[-1] < 0.1 * errors[0], errors
    assert errors[-1] < 1e-2


@pytest.mark.spec("B6")
def test_oblong_images_are_read_too_and_other_channels_are_refused() -> None:
    model = small()
    assert model(numbers(2, 1, 8, 12)).shape == (2, 10)
    with refused(ShapeError, "values and points do not fit the cells, got [2, 64, 3]", "pixels [b, 1, …]"):
        model(numbers(2, 3, 8, 8))
    with refused(ConfigError, "a classifier needs cells and classes, got 2 and 1", "two classes"):
        model_of(SMALL, 1)


@pytest.mark.spec("B6")
def test_recipes_are_found_and_their_settings_reach_the_model() -> None:
    assert {"digits", "fashion"} <= set(SHIPPED)
    made = build("digits", {"cells": 4, "degree": 1, "d": 24, "missing": 0.25, "steps": 7})
    assert made.model.embed.tiling.counts == (4, 4)
    assert made.model.embed.tiling.axis == SQUARE
    assert made.model.embed.entries == 5
    assert (made.task.missing, made.training.steps) == (0.25, 7)
    with refused(ConfigError, "there is no such idx file, got train-images", "dataset-fashion-mnist"):
        build("fashion", {"folder": "nowhere"})


@pytest.mark.slow(reason="a training of its own")
@pytest.mark.spec("B6", "M11")
def test_digits_are_learned_at_one_resolution_and_read_at_others() -> None:
    """A short training: well above chance at its own size, and little lost at others and with pixels missing."""
    bundle = digits(replace(SMALL, lr=4e-3))
    task = bundle.task
    fit(bundle.model, task, optimiser=bundle.optimiser, steps=250, watch=lambda at: None, evaluate_every=10**6)
    bundle.model.eval()
    pixels, labels = task.held
    own = task.measure(bundle.model, pixels, labels).values["accuracy"]
    assert own > 0.7  # by chance: 0.1
    for side in (12, 16, 32):
        assert task.measure(bundle.model, resampled(pixels, side), labels).values["accuracy"] > own - 0.08
    flags = observed_pixels(len(pixels), 64, 0.25, generator_for("holes"))
    assert task.measure(bundle.model, pixels, labels, flags).values["accuracy"] > own - 0.25
