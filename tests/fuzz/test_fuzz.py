"""The fuzzing campaign in small: the same tool and the same cases as ``make fuzz``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = 2000
PAST_VALIDATION = 0.3  # of the cases; a fuzzer whose cases are all refused tests the refusals only

pytestmark = pytest.mark.spec("B17")


def test_two_thousand_cases(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = [sys.executable, ROOT / "tools" / "fuzz.py", "--cases", str(CASES), "--quiet", "--json", report]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["cases"] == CASES
    assert found["past validation"] >= PAST_VALIDATION
    assert found["outcomes"].get("unmade", 0) == 0, "cases that the fuzzer itself could not make"


def test_every_kind_has_a_configuration() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from fuzzing.corpus import LATER, by_kind
    finally:
        sys.path.remove(str(ROOT / "tools"))
    from continua.config import KINDS

    unfuzzed = {"BytePairs", "Position"}  # a whole tokeniser as text; a base class
    assert set(KINDS) - set(by_kind()) - {part["kind"] for part in LATER} == unfuzzed
