"""How the gains of a calibration are read at other sizes."""

from typing import Any

import pytest
import torch

from continua.axes import at
from continua.convert import elastic
from continua.flow import Fixed
from continua.models import Transformer, zoo
from continua.operators.calibration import Calibration
from tests.runs import calibrated


def made() -> Transformer:
    torch.manual_seed(0)
    return calibrated(elastic(zoo.gpt2(vocab=20, d=16, heads=4, depth=4, context=16).double()))


@pytest.mark.spec("T11")
@pytest.mark.parametrize("wish", [{"d": 8, "h": 2, "z": 2}, {"m": 32, "e": 2, "z": 8}], ids=str)
def test_a_calibrated_size_is_one_graph(wish: dict[str, int]) -> None:
    model = made()
    view = model.at(**wish)
    ids = torch.randint(20, (3, 7), generator=torch.Generator().manual_seed(2))
    run = torch.compile(lambda data: model(data, view.discretisation), fullgraph=True, backend="eager")
    assert torch.allclose(run(ids), view(ids), rtol=0, atol=1e-12)


@pytest.mark.spec("T11")
def test_gains_of_axes_whose_sizes_are_known_are_read_as_one() -> None:
    model = made()
    own: Calibration = model.block.parts[0].norm.calibration

    def read(late: bool = False, **wish: Any) -> set[str]:
        structure = model.structure(at(**wish))
        return set(own.weights(structure.grids.with_depths(structure.depths[0]), late))

    assert read() == set()
    assert read(d=8) == read(d=8, h=2, z=2) == {"scale over d by sizes", "shift over d by sizes"}
    mixed = read(d=8, z=Fixed(3, lengths=(2, 1, 1)))
    assert {name for name in mixed if name.startswith("scale")} == {"scale over d by sizes", "scale over d by z"}
    late = read(late=True, d=8, h=2)
    assert {name for name in late if name.startswith("scale")} == {"scale over d by d", "scale over d by h"}
