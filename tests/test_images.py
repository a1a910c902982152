"""Images with labels, and an elastic model of them."""

import pytest
import torch

from continua.errors import ConfigError
from continua.models import Pixels, elastic, zoo
from continua.optim import AdamW, ByRole
from continua.tasks import Images, digits
from continua.training import Elastic, fit
from tests.refusals import refused


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
