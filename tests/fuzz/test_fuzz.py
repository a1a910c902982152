"""The fuzzing campaign in small: the same tool and the same cases as ``make fuzz``."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

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


def _tools(*names: str) -> list[Any]:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return [importlib.import_module(f"fuzzing.{name}") for name in names]
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_complex_inputs_are_compared_with_themselves() -> None:
    (oracles,) = _tools("oracles")
    x = torch.tensor([1.0 + 2.0j, float("nan") + 1.0j], dtype=torch.complex128)
    assert list(oracles.untouched([x], [x.clone()])) == []
    assert list(oracles.untouched([x], [x.conj().resolve_conj()])) != []
    assert oracles.apart(x[:1], x[:1].conj()) > 1


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is not known here")
def test_an_answer_may_be_as_large_as_it_was_asked_for() -> None:
    (case,) = _tools("case")
    big = 2 * case.ALLOWED_BYTES
    for asked, kind in ((0, "memory"), (big, "right")):
        made = case.Case("large", lambda: torch.ones(big // 8, dtype=torch.float64), asked=asked)
        assert case.attempt(0, "api", lambda made=made: made, {}).kind == kind
