"""Names of 0.1 work for one version more, and say what to write."""

import pytest

from continua import axes, operators

MOVED = {
    "Quick": (operators.Subquadratic, "Quick is called Subquadratic now"),
    "Flat": (operators.Uniform, "Flat is called Uniform now"),
    "Grids": (axes.Grids, "Grids is in continua.axes now"),
}


@pytest.mark.parametrize("name", MOVED)
def test_names_of_0_1(name: str) -> None:
    found, sentence = MOVED[name]
    with pytest.warns(DeprecationWarning, match=sentence):
        assert getattr(operators, name) is found
