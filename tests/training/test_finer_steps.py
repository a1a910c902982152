"""Steps that are parts of native ones: a finer walk begins as the native one."""

import pytest
import torch

from continua.axes import at
from continua.convert import elastic
from continua.flow import RK4, Fixed
from continua.operators.calibration import LEAD
from tests.runs import calibrated
from tests.training.test_elastic import gpt, ids


@pytest.mark.spec("B1")
@pytest.mark.parametrize("finer", [8, 16, Fixed(5, lengths=(2, 1, 1, 2, 2))], ids=str)
def test_finer_steps_begin_as_the_native_walk(finer) -> None:
    """The first part of a step does nearly all of it; where it does everything, the walk is the native one."""
    model = elastic(gpt())
    with torch.no_grad():
        for name, own in model.named_parameters():
            if name.endswith("bias.coefficients") or ".b2." in name or ".bo." in name:
                own.add_(torch.randn(own.shape, generator=torch.Generator().manual_seed(4), dtype=own.dtype))
    answer = model(ids())
    nearly = (model.at(z=finer)(ids()) - answer).norm() / answer.norm()
    assert 1e-6 < nearly < 0.05
    with torch.no_grad():
        for name, own in model.named_parameters():
            if name.endswith("over d by p.coefficients") and (own == LEAD).all():
                own.fill_(-200.0)
    assert (model.at(z=finer)(ids()) - answer).abs().max() < 1e-12


@pytest.mark.spec("B1")
@pytest.mark.parametrize("wish", [Fixed(8, RK4()), Fixed(5)], ids=str)
def test_steps_that_are_no_equal_parts_of_native_ones_are_walked_as_they_are(wish) -> None:
    """They are read at several depths each, or go on beyond the end of a native step."""
    model = calibrated(elastic(gpt()))
    structure = model.structure(at(z=wish))
    depths = structure.depths[0]
    assert (depths.begins is None) == isinstance(wish.solver, RK4)
    norm = model.block.parts[0].norm
    _, args = norm.bind(structure.grids.with_depths(depths))
    assert torch.equal(args.weights.at(depths.nodes[1])["scale"], norm.scale.coefficients[0])
