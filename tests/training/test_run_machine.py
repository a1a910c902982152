"""Runs as a state machine: started, killed at any write, resumed, amended, copied and damaged in any order.

What must hold at every moment: the folder is no run or a readable one, its history counts its steps once each, a run
that is gone on with ends with the bits of one that was left alone, and whatever fails is one sentence.
"""

import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from continua import files
from continua.errors import ContinuaError
from continua.models import store
from continua.training import Run, checkpoint, fit
from continua.training.run import RunHeader
from tests.runs import FAST, silent, states, timeless, tiny_model, tiny_task

LONGEST = 8
TASK = tiny_task()
WRITES = ((checkpoint, "save_file"), (checkpoint, "_flush"), (checkpoint, "_swap"), (files, "flush"), (os, "replace"))


class Killed(BaseException):
    """What SIGKILL is to a process: nothing handles it."""


class Deadly:
    """Dies at the n-th write from now on."""

    def __init__(self, moment: int) -> None:
        self.moment = moment
        self.patch = pytest.MonkeyPatch()

    def __enter__(self) -> None:
        for place, name in WRITES:
            self.patch.setattr(place, name, self._mortal(getattr(place, name)))
        self.patch.setattr(Run, "abandon", lambda run: None)  # the dead put nothing in order

    def __exit__(self, *problem: object) -> None:
        self.patch.undo()

    def _mortal(self, real: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            self.moment -= 1
            if self.moment < 0:
                raise Killed
            return real(*given, **named)

        return call


def left_alone() -> dict[int, Any]:
    """The history and the weights after each step of a run that nothing happened to."""
    found: dict[int, Any] = {}
    model = tiny_model(steps=1)

    def look(at: Any) -> None:
        found[at.step] = {name: value.clone() for name, value in model.state_dict().items()}

    fitted = fit(model, TASK, steps=LONGEST, watch=look, **GIVEN)
    found[0] = timeless(fitted.history)
    return found


GIVEN: dict[str, Any] = {"optimiser": FAST, "save_every": 2, "evaluate_every": 100, "schedule": None}


@pytest.fixture(scope="module", autouse=True)
def expected() -> dict[int, Any]:
    from continua.optim import Constant

    GIVEN["schedule"] = Constant()  # a run that is lengthened walks the same curve
    Runs.calm = left_alone()
    return Runs.calm


class Runs(RuleBasedStateMachine):
    """One folder, and what is done to it."""

    calm: dict[int, Any]

    @initialize()
    def begin(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.folder = self.home / "run"
        self.copies = 0
        self.notes = 0

    def teardown(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def is_run(self) -> bool:
        return (self.folder / "run.json").is_file()

    def fitted(self, steps: int, header: RunHeader | None = None) -> Any:
        run: Any = Run.open(self.folder) if self.is_run else self.folder
        if header is not None and isinstance(run, Run):
            run.header = header
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fit(tiny_model(steps=1), TASK, run=run, steps=steps, watch=silent, **GIVEN)

    def check_end(self, fitted: Any, steps: int) -> None:
        reached = max(steps, fitted.history[-1]["step"])
        assert timeless(fitted.history) == [line for line in self.trimmed() if line["step"] <= reached]
        for name, value in fitted.model.state_dict().items():
            assert torch.equal(value, self.calm[reached][name])

    def trimmed(self) -> list[dict[str, Any]]:
        """Of the calm history what does not depend on where a run ends: held-out data are read at the last step."""
        return [{k: v for k, v in line.items() if not k.startswith("validation")} for line in self.calm[0]]

    @rule(steps=st.integers(1, LONGEST))
    def start_or_go_on(self, steps: int) -> None:
        fitted = self.fitted(steps)
        assert fitted.kept
        fitted.history[:] = [
            {k: v for k, v in line.items() if not k.startswith("validation")} for line in fitted.history
        ]
        self.check_end(fitted, steps)

    @rule(steps=st.integers(1, LONGEST), moment=st.integers(0, 30))
    def killed(self, steps: int, moment: int) -> None:
        was = self.is_run
        try:
            with Deadly(moment):
                self.fitted(steps)
        except Killed:
            pass
        assert self.is_run or not was, "a run does not vanish"

    @precondition(lambda self: self.is_run)
    @rule(steps=st.integers(1, LONGEST), moment=st.integers(0, 6))
    def amended_and_killed(self, steps: int, moment: int) -> None:
        before = json.loads((self.folder / "run.json").read_text())
        self.notes += 1
        try:
            with Deadly(moment):
                self.fitted(steps, RunHeader({"note": self.notes}))
        except Killed:
            pass
        after = json.loads((self.folder / "run.json").read_text())
        assert after in (before, {**before, "note": self.notes})

    @precondition(lambda self: self.is_run)
    @rule()
    def amended_in_vain(self) -> None:
        before = (self.folder / "run.json").read_bytes()
        run = Run.open(self.folder)
        run.header = RunHeader({"note": "in vain"})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(ContinuaError):
                fit(tiny_model(steps=1), TASK, run=run, steps=LONGEST + 1, accumulate=99, watch=silent, **GIVEN)
        assert (self.folder / "run.json").read_bytes() == before

    @precondition(lambda self: self.is_run)
    @rule()
    def copied(self) -> None:
        self.copies += 1
        target = self.home / f"copy-{self.copies}"
        shutil.copytree(self.folder, target)
        self.folder = target

    @precondition(lambda self: self.is_run and any(states(self.folder)))
    @rule(place=st.integers(0, 10**6), bit=st.integers(0, 7), which=st.integers(0, 5))
    def damaged(self, place: int, bit: int, which: int) -> None:
        newest = next(states(self.folder))
        chosen = sorted(newest.iterdir())[which % len(list(newest.iterdir()))]
        content = bytearray(chosen.read_bytes())
        if content:
            content[place % len(content)] ^= 1 << bit
            chosen.write_bytes(content)

    @precondition(lambda self: self.is_run and (self.folder / "metrics.jsonl").exists())
    @rule(tail=st.binary(max_size=12))
    def torn_history(self, tail: bytes) -> None:
        with (self.folder / "metrics.jsonl").open("ab") as file:
            file.write(tail.replace(b"\n", b""))

    @precondition(lambda self: self.is_run)
    @rule()
    def locked_by_another(self) -> None:
        other = Run.open(self.folder)
        other.lock()
        before = sorted(self.folder.rglob("*"))
        with pytest.raises(ContinuaError, match="another process is training this run"):
            self.fitted(LONGEST)
        assert sorted(self.folder.rglob("*")) == before
        other.release()

    @invariant()
    def is_readable(self) -> None:
        if not self.is_run:
            return
        run = Run.open(self.folder)
        steps = [line["step"] for line in run.history()]
        assert steps == sorted(set(steps))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            newest = run.newest()
            if newest is not None:
                assert store.not_finite(run.model("last").state_dict()) is None


TestRuns = pytest.mark.spec("B17")(Runs.TestCase)
TestRuns.settings = settings(
    max_examples=8,
    stateful_step_count=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
