"""Which items of the specification have tests, and which do not.

Collects the whole test suite (slow tests too) without running it, reads the ``spec`` markers, and prints
a table id → number of tests. Fails if the suite cannot be collected or a test names an id that does not exist.
"""

import contextlib
import io
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def read_ids(path: Path) -> dict[str, str]:
    """The ids and titles of a list like ``spec_ids.txt``, in the order of the file."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return dict(pairs)


class Markers:
    """A pytest plugin that counts the spec ids of the collected tests."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.places: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)  # before -m throws the slow tests out
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for spec_id in {id_ for marker in item.iter_markers("spec") for id_ in marker.args}:
                self.tests[spec_id] += 1
                self.places.setdefault(spec_id, item.nodeid)


def collect(root: Path) -> Markers:
    """Collect the tests under ``root``; on failure show what pytest said and stop."""
    plugin, said = Markers(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.chdir(root):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(root)], plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        errors = said.getvalue().split("= ERRORS =")[-1].strip("=\n ")
        sys.exit(f"{errors}\n\nThe tests could not be collected, so nothing can be counted. Fix the error above.")
    return plugin


def main() -> None:
    titles = read_ids(ROOT / "tools" / "spec_ids.txt")
    found = collect(ROOT)

    print("id    tests  title")
    for spec_id in (id_ for id_ in titles if found.tests[id_]):
        print(f"{spec_id:<5} {found.tests[spec_id]:>5}  {titles[spec_id]}")

    missing = [id_ for id_ in titles if not found.tests[id_]]
    print(f"\n{len(titles) - len(missing)} of {len(titles)} items have tests.")
    if missing:
        print(f"Without a test: {' '.join(missing)}")

    if unknown := sorted(set(found.tests) - set(titles)):
        places = "\n".join(f"  {id_}: {found.places[id_]}" for id_ in unknown)
        sys.exit(f"These ids are not in tools/spec_ids.txt. Correct the marker or add the item.\n{places}")


if __name__ == "__main__":
    main()
