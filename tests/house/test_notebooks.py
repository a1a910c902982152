"""The four tours run, and the notebooks are made of their cells."""

import re
from pathlib import Path

import matplotlib
import pytest

from tools.notebooks import TOURS, cells, is_current, notebook

SHORT = {"STEPS": "4", "TOKENS": "40", "UNTIL": "1.0"}


def shortened(text: str) -> str:
    """The same tour with a training of four steps, or few particles for a short time."""
    return re.sub(r"^(STEPS|TOKENS|UNTIL) = .*$", lambda found: f"{found[1]} = {SHORT[found[1]]}", text, flags=re.M)


def outputs(made: dict[str, list[dict[str, object]]], kind: str) -> int:
    return sum(out["output_type"] == kind for cell in made["cells"] for out in cell.get("outputs", []))  # type: ignore[union-attr,attr-defined]


def test_there_is_a_tour_for_each_reader() -> None:
    assert [tour.stem for tour in TOURS] == ["tour_lab", "tour_operator", "tour_series", "tour_text"]


@pytest.mark.parametrize("tour", TOURS, ids=lambda tour: tour.stem)
def test_a_tour_runs_from_top_to_bottom(tour: Path) -> None:
    matplotlib.use("agg")
    made = notebook(shortened(tour.read_text(encoding="utf-8")))
    assert outputs(made, "stream") >= 2
    assert outputs(made, "display_data") >= 1


@pytest.mark.parametrize("tour", TOURS, ids=lambda tour: tour.stem)
def test_the_notebook_is_made_of_the_tour(tour: Path) -> None:
    assert is_current(tour), "run python tools/notebooks.py"


def test_cells_are_read_as_written() -> None:
    text = "# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\nx = 1\n\n# %%\nprint(x)\nx + 1\n"
    assert cells(text) == [("markdown", "# Title\n\nWords."), ("code", "x = 1"), ("code", "print(x)\nx + 1")]
    last = notebook(text)["cells"][-1]
    assert last["outputs"][0]["text"] == ["1\n"]
    assert last["outputs"][1]["data"] == {"text/plain": ["2"]}
