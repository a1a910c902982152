"""The package keeps the house rules, and each rule flags what breaks it and nothing else."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.house.rules import (
    CHECKS,
    MAX_FILE,
    MAX_FUNCTION,
    MAX_POSITIONAL,
    ROOT,
    check_cycles,
    check_functions,
    check_habits,
    check_kinds,
    check_paths,
    check_rooms,
    check_sizes,
    modules,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_house(check: Callable[[Path], Iterator[str]]) -> None:
    problems = list(check(ROOT))
    if problems:
        pytest.fail("\n" + "\n".join(problems), pytrace=False)


def test_house_sees_the_package() -> None:
    assert modules(ROOT), "the house test found no file in continua/: is ROOT right?"


# --- the test of the test --------------------------------------------------------------------------------------------

LONG = "def f():\n" + "    x = 1\n" * MAX_FUNCTION
WIDE = ", ".join(f"p{i}" for i in range(MAX_POSITIONAL + 1))
NARROW = ", ".join(f"p{i}" for i in range(MAX_POSITIONAL))

BAD = [
    (check_rooms, "axes/grid.py", "from continua.models.transformer import Transformer", ":1: axes imports models"),
    (check_rooms, "axes/grid.py", "\nfrom ..models import transformer", ":2: axes imports models"),
    (check_rooms, "axes/grid.py", "from .. import models", ":1: axes imports models"),
    (check_rooms, "axes/grid.py", "import continua.cli", ":1: axes imports cli"),
    (check_rooms, "flow/solve.py", "def f():\n    from continua import operators", ":2: flow imports operators"),
    (check_rooms, "axes/grid.py", "m = importlib.import_module('continua.lab')", ":1: axes imports lab"),
    (check_rooms, "axes/grid.py", "from continua import Grid", ":1: axes imports the public names"),
    (check_rooms, "config.py", "def f():\n    from continua.axes import Grid", ":2: config imports the room axes"),
    (check_rooms, "errors.py", "from .axes import Grid", ":1: errors imports the room axes"),
    (check_rooms, "operators/attention.py", "from ..flow import solve", ":1: operators import continua.flow."),
    (check_rooms, "utils/misc.py", "", ":1: utils is not a room"),
    (check_rooms, "helpers.py", "", ":1: helpers is not a room"),
    (check_cycles, "models/a.py", "from continua.models.b import x", "models.b -> continua.models.a"),
    (check_cycles, "models/a.py", "def f():\n    from .b import x", "continua.models.a -> continua.models.b"),
    (check_sizes, "axes/grid.py", "x = 1\n" * (MAX_FILE + 1), f"grid.py:{MAX_FILE + 1}: {MAX_FILE + 1} lines"),
    (check_functions, "axes/grid.py", LONG, f":1: f has {MAX_FUNCTION + 1} lines"),
    (check_functions, "axes/grid.py", f"def f({WIDE}): ...", f":1: f has {MAX_POSITIONAL + 1} positional"),
    (check_functions, "axes/grid.py", f"def f({NARROW}, *rest): ...", f":1: f has {MAX_POSITIONAL + 1} positional"),
    (check_functions, "axes/grid.py", f"class A:\n    def __init__(self, {WIDE}): ...", ":2: __init__ has"),
    (check_habits, "axes/grid.py", "x = 1\nprint(x)", ":2: print in the library"),
    (check_habits, "axes/grid.py", "def f(x):\n    assert x", ":2: assert in the library"),
    (check_habits, "axes/grid.py", "from __future__ import annotations\nimport jaxtyping", ":1: postponed"),
    (check_habits, "axes/grid.py", "from __future__ import annotations\nfrom ..typing import X", ":1: postponed"),
    (check_habits, "axes/grid.py", "import pickle", ":1: pickle can run code"),
    (check_habits, "axes/grid.py", "def f():\n    from pickle import loads", ":2: pickle can run code"),
    (check_habits, "axes/grid.py", "import torch\ntorch.load('x', weights_only=False)", ":2: torch.load"),
    (check_habits, "axes/grid.py", "import torch\ntorch.load('x')", ":2: torch.load"),
    (check_habits, "axes/grid.py", "import torch\ntorch.save(x, 'x')", ":2: torch.save"),
    (check_habits, "axes/grid.py", "np.load('x', allow_pickle=True)", ":1: numpy.load"),
    (check_habits, "flow/solve.py", "x = getattr(solver, 'lag', False)", ":1: getattr probes"),
    (check_habits, "flow/solvers/sphere.py", "x = 1\nx = hasattr(solver, 'tableau')", ":2: hasattr probes"),
    (check_habits, "axes/grid.py", "x = 1\nclass Line(Protocol): ...", ":2: a protocol that no isinstance takes"),
    (check_kinds, "axes/grid.py", "@register\nclass Line: ...", ":2: MODULES in config.py has no module for"),
    (check_kinds, "config.py", "\nMODULES = {'axes.grid': 'Line'}", ":2: continua.axes.grid registers no Line"),
    (check_paths, "axes/grid.py", "x = 1\npath = '/ho" + "me/ada/model'", ":2: machine path"),
    (check_paths, "axes/grid.py", "# see /tm" + "p/out.png", ":1: machine path"),
    (check_paths, "axes/grid.py", "path = 'C:\\\\Us" + "ers\\\\ada'", ":1: machine path"),
]

GOOD = [
    (check_rooms, "models/transformer.py", "from continua.axes import Grid\nfrom ..flow.solve import solve"),
    (check_rooms, "axes/grid.py", "import torch\nfrom continua.errors import Wrong\nfrom .rules import Rule"),
    (check_rooms, "axes/grid.py", "from .. import config\nfrom continua import typing"),
    (check_rooms, "operators/attention.py", "from continua.flow.vectorfield import VectorField"),
    (check_rooms, "cli/main.py", "def f():\n    import continua as ct"),
    (check_rooms, "__init__.py", "from continua.models import Transformer"),
    (check_cycles, "models/a.py", "from continua.axes import Grid"),
    (check_functions, "axes/grid.py", f"class A:\n    def f(self, {NARROW}): ..."),
    (check_functions, "axes/grid.py", f"def f({NARROW}, *, {WIDE.replace('p', 'q')}): ..."),
    (check_habits, "cli/main.py", "print('hello')"),
    (check_habits, "axes/grid.py", "@runtime_checkable\nclass Line(Protocol[T]): ..."),
    (check_habits, "flow/solve.py", "x = solver.lag\ny = isinstance(solver, Wrapper)"),
    (check_habits, "axes/grid.py", "import torch\ntorch.load('x', weights_only=True)\nself.print()\n'print(x)'"),
    (check_habits, "axes/grid.py", "from __future__ import annotations\nimport torch"),
    (check_paths, "axes/grid.py", "#!/usr/bin/env python\nx = 'https://example.org/home/a'\ny = './home/a'"),
]


def house_with(folder: Path, path: str, source: str) -> Path:
    """A tiny house in which ``models.b`` imports ``models.a``, plus one file with the given source."""
    given = {"continua/models/b.py": "from .a import y", "continua/models/a.py": "", f"continua/{path}": source}
    for name, text in given.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("check", "path", "source", "expected"), BAD)
def test_checker_flags(check: Callable, path: str, source: str, expected: str, tmp_path: Path) -> None:
    problems = list(check(house_with(tmp_path, path, source)))
    assert len(problems) == 1
    assert problems[0].startswith("continua/")
    assert expected in problems[0]


def test_checker_flags_the_median(tmp_path: Path) -> None:
    house_with(tmp_path, "axes/grid.py", "x = 1\n" * MAX_FILE)
    (tmp_path / "continua/models/b.py").write_text("x = 1\n" * MAX_FILE, encoding="utf-8")
    assert "the median file has" in "".join(check_sizes(tmp_path))


@pytest.mark.parametrize(("check", "path", "source"), GOOD)
def test_checker_allows(check: Callable, path: str, source: str, tmp_path: Path) -> None:
    assert list(check(house_with(tmp_path, path, source))) == []
