"""The gallery: each picture has a script that makes it and asserts its caption."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gallery" / "lab.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"\(\.\./images/(lab-[\w-]+\.(?:png|gif))\)", PAGE)
SCRIPTS = sorted(set(re.findall(r"`examples/(lab_\w+)\.py`", PAGE)))
LARGEST = 300_000  # bytes: a page of them loads at once


def test_the_other_pictures_are_there_and_name_their_scripts() -> None:
    page = (ROOT / "docs" / "gallery" / "index.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\(\.\./images/([\w-]+\.png)\)", page)
    scripts = re.findall(r"`(?:examples|benchmarks)/\w+\.py`", page)
    assert len(pictures) >= 8
    assert len(scripts) >= len(pictures)
    assert all((ROOT / "docs" / "images" / name).is_file() for name in pictures)
    assert all((ROOT / script.strip("`")).is_file() for script in scripts)


@pytest.mark.spec("L10")
def test_every_picture_is_there_and_small() -> None:
    assert len(SHOWN) == len(set(SHOWN)) >= 10
    for name in SHOWN:
        assert 5000 < (ROOT / "docs" / "images" / name).stat().st_size < LARGEST, name


@pytest.mark.spec("L10")
def test_every_picture_has_its_script() -> None:
    assert {name.partition(".")[0].replace("-", "_") for name in SHOWN} == set(SCRIPTS)
    for name in SCRIPTS:
        text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        assert "    assert " in text, f"{name} asserts what its caption tells"


@pytest.mark.slow(reason="whole examples, which simulate and draw")
@pytest.mark.spec("L10", "L5", "L6", "L7")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_keeps_its_promises(name: str, tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--out", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    own = [shown for shown in SHOWN if shown.startswith(name.replace("_", "-") + ".")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(own)
    for shown in own:
        assert (tmp_path / shown).stat().st_size > 5000, shown
