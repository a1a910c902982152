"""Every finding of the trial of 0.1 has a test that carries ``@pytest.mark.finding("S1")``.

The marks are read from the source text: decorators, ``pytestmark`` and ``pytest.param(…, marks=…)`` alike.
"""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

IDS = {
    *(f"S{n}" for n in range(1, 14)),  # silently wrong
    *(f"X{n}" for n in range(1, 4)),  # security
    *(f"D{n}" for n in range(1, 13)),  # other defects
    *(f"N{n}" for n in range(1, 11)),  # the first hour
}

# Without a test as yet: take an id out in the commit that brings its test.
MISSING: set[str] = set()


def marks(path: Path) -> Iterator[str]:
    """The ids that ``pytest.mark.finding(…)`` names in a file."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if ".finding(" in text else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.finding":
            yield from (ast.literal_eval(argument) for argument in node.args)


@functools.cache  # two tests ask
def marked() -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for finding in marks(path):
            places[finding].append(path.relative_to(TESTS).as_posix())
    return places


def test_every_mark_names_a_finding() -> None:
    unknown = {finding: places for finding, places in marked().items() if finding not in IDS}
    assert not unknown, f"no such finding: {unknown}"


def test_every_finding_has_a_test_but_for_those_that_are_listed() -> None:
    without = IDS - set(marked())
    unlisted, mended = sorted(without - MISSING), sorted(MISSING - without)
    assert without == MISSING, f"without a test: {unlisted}; tested, so take them out of MISSING: {mended}"


def test_marks_are_read_wherever_they_stand(tmp_path: Path) -> None:
    source = (
        "pytestmark = [pytest.mark.finding('S1')]\n"
        "@pytest.mark.finding('S2', 'X1')\n"
        "def test(): pytest.param(1, marks=pytest.mark.finding('D1'))\n"
    )
    (tmp_path / "test_x.py").write_text(source)
    assert sorted(marks(tmp_path / "test_x.py")) == ["D1", "S1", "S2", "X1"]
