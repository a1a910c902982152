"""The package as it is built, installed and started."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import continua as ct

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHOWN = ("continua", "docs", "examples", "tools", "benchmarks")


@pytest.mark.finding("N1")
def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "continua", "--version"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"continua {ct.__version__}"


@pytest.mark.finding("N2")
def test_the_distribution_has_a_name_of_its_own():
    assert PROJECT["name"] == "continua-ml"
    assert PROJECT["version"] == ct.__version__
    assert PROJECT["authors"] == [{"name": "The Continua developers"}]
    assert PROJECT["urls"]["Homepage"].startswith("https://")
    assert "Programming Language :: Python :: 3.11" in PROJECT["classifiers"]


@pytest.mark.finding("N2")
def test_every_hint_names_the_distribution_and_an_extra_that_exists():
    hint = re.compile(r"(continua[\w-]*)\[(\w+)\]'")
    texts = [path for folder in SHOWN for end in ("py", "md") for path in (ROOT / folder).rglob(f"*.{end}")]
    found = [
        (path.name, *match) for path in [*texts, *ROOT.glob("*.md")] for match in hint.findall(path.read_text("utf-8"))
    ]
    assert len(found) > 5
    wrong = [one for one in found if one[1] != "continua-ml" or one[2] not in PROJECT["optional-dependencies"]]
    assert not wrong
    calls = re.compile(r"\binstall\('(\w+)'\)")
    extras = {name for path in (ROOT / "continua").rglob("*.py") for name in calls.findall(path.read_text("utf-8"))}
    assert {"space", "text", "series"} <= extras <= set(PROJECT["optional-dependencies"])
