"""Calibration of a ViT that was trained by the recipe of digits: smaller sizes still tell them apart."""

import pytest
import torch

import continua as ct
from continua.models.patches import Pixels
from continua.recipes.vision import VisionSettings, optimiser_of
from continua.tasks.images import digits


@pytest.mark.spec("B11")
def test_a_vit_of_digits_keeps_its_accuracy_at_smaller_sizes() -> None:
    pytest.importorskip("sklearn")
    torch.manual_seed(0)
    model = ct.zoo.vit(Pixels(8, 8, 1, (4, 4)), d=32, heads=4, depth=2, labels=10)
    task = digits(64)
    taught = optimiser_of(VisionSettings())
    ct.fit(model, task, steps=100, optimiser=taught, evaluate_every=100, watch=lambda told: None)
    model.eval()
    made = ct.elastic(model, calibrate=[task.example(1, step).batch for step in range(8)])
    raw = ct.lift(model)
    native = task.evaluate(model).values["accuracy"]
    assert native > 0.9
    assert task.evaluate(made).values["accuracy"] == native
    for size in ({"m": 64}, {"h": 2}, {"m": 64, "h": 2}):
        kept = task.evaluate(made.at(**size)).values["accuracy"]
        lost = task.evaluate(raw.at(**size)).values["accuracy"]
        assert kept > 0.8 * native, f"{size}: {kept:.3f} of {native:.3f}"
        assert kept > lost, f"{size}: {kept:.3f}, raw {lost:.3f}"
