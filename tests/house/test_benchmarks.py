"""Every script in benchmarks/ can be imported beside the library as it is now."""

import os
import subprocess
import sys

import pytest

from tests.house.rules import ROOT

SCRIPTS = sorted((ROOT / "benchmarks").glob("*.py"))
EACH = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:  # a peer that is not installed
        if (missing.name or "").split(".")[0] == "continua":
            raise
"""


@pytest.mark.slow(reason="ten seconds: every script and all that it imports")
def test_benchmarks_can_be_imported() -> None:
    """A name that the library takes for itself, or moves, is noticed here and not after an hour of training."""
    path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])
    names = [script.stem for script in SCRIPTS]
    command = [sys.executable, "-c", EACH, *names]
    surroundings = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
