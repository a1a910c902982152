"""The package as it is built, installed and started."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
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


@pytest.mark.finding("N5")
def test_the_readme_begins_with_what_elasticity_needs():
    first = (ROOT / "README.md").read_text(encoding="utf-8").split("```")[0]
    for words in ("Elastic training", ".held()", "half of everything 46 %", "docs/start/elasticity.md"):
        assert words in first
    assert "any width" not in first.split("*read*")[0], "sizes are read, not promised to be good"


@pytest.mark.finding("N4")
def test_no_page_names_a_latency_as_if_it_were_every_machines():
    commands = re.compile(r"^\$ .*latency=", re.MULTILINE)
    pages = [ROOT / "README.md", *(ROOT / "docs" / "start").glob("*.md")]
    assert not [page.name for page in pages if commands.search(page.read_text(encoding="utf-8"))]


def done(*words: object, cwd: Path) -> str:
    """The output of a command that does not see this clone."""
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CONTINUA"))}
    found = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, cwd=cwd, env=surroundings
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def built(place: Path) -> Path:
    """The wheel, by the hatchling that is here, or by one that pip fetches."""
    here = importlib.util.find_spec("hatchling") is not None
    alone = ["--no-build-isolation"] if here else []
    done(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", *alone, "-w", place, ROOT, cwd=place)
    (wheel,) = place.glob("*.whl")
    return wheel


@pytest.mark.slow(reason="builds the wheel, makes an environment and trains the quick demo in it: half a minute")
@pytest.mark.finding("N2")
def test_the_wheel_runs_in_an_environment_of_its_own(tmp_path):
    wheel = built(tmp_path)
    assert wheel.name == f"continua_ml-{ct.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert "continua/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks"))]
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps"]
    done(*pip, wheel, cwd=tmp_path)
    # what the wheel depends on is lent by this environment, so that nothing is fetched
    own = Path(done(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=tmp_path).strip())
    (own / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    assert done(python, "-c", "import continua; print(continua.__file__)", cwd=tmp_path).startswith(str(tmp_path))
    said = done(tmp_path / "env" / "bin" / "continua", "demo", "--quick", cwd=tmp_path)
    assert "one checkpoint, many sizes" in said
    assert "Done in" in said
    assert {"pareto.png", "loss.png", "run.json"} <= {
        path.name for path in (tmp_path / "runs" / "demo-quick").iterdir()
    }
