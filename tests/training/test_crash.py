"""A run that is killed again and again ends with the same bits; a run that is let alone is the same every time."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from continua.errors import RunError
from continua.training import JacobianNorm, KineticEnergy, Run, checkpoint, fit
from tests.forked import forked
from tests.refusals import refused
from tests.runs import FAST, silent, states, steps_of, timeless, tiny_model, tiny_task

ROOT = Path(__file__).resolve().parents[2]
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
HARD = {"optimiser": FAST, "penalties": 1e-3 * KineticEnergy() + 1e-3 * JacobianNorm(), "watch": silent}


def killed(count: int, seed: int) -> dict:
    words = [sys.executable, "tools/crash.py", "--kills", str(count), "--seed", str(seed)]
    done = subprocess.run(words, cwd=ROOT, env=ALONE, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.spec("T9")
def test_kills_at_random_moments_change_no_bit() -> None:
    said = killed(10, seed=0)
    assert said["identical"]
    assert said["kills"] >= 10
    assert said["inside writes"] >= 4


@pytest.mark.slow(reason="a hundred restarts; the quick one above has ten")
@pytest.mark.spec("T9")
def test_a_hundred_kills_change_no_bit() -> None:
    assert killed(100, seed=1)["identical"]


def test_the_numbers_of_a_step_depend_on_the_seed_and_the_step_alone(tmp_path) -> None:
    settings = {"steps": 3, "accumulate": 2, "evaluate_every": 2, "save_every": 2}
    first = fit(tiny_model(0.2), tiny_task(), run=tmp_path / "a", seed=3, **settings, **HARD)
    torch.manual_seed(99)
    torch.randn(17)
    again = fit(tiny_model(0.2), tiny_task(), seed=3, **settings, **HARD)
    other = fit(tiny_model(0.2), tiny_task(), seed=4, **settings, **HARD)
    assert timeless(first.history) == timeless(again.history)
    assert timeless(first.history) != timeless(other.history)
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(line["running"] > 0 for line in first.history)


def test_ctrl_c_stops_after_the_step_and_what_it_saved_goes_on_exactly(tmp_path) -> None:
    settings = {"steps": 8, "evaluate_every": 4, "save_every": 100}

    def stop(at) -> None:
        if at.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    given = {**HARD, **settings}
    handler = signal.getsignal(signal.SIGINT)  # a background job of a shell starts with SIGINT ignored
    calm = fit(tiny_model(0.2), tiny_task(), **given)
    fitted = fit(tiny_model(0.2), tiny_task(), run=tmp_path / "run", **{**given, "watch": stop})
    assert fitted.ended == "interrupted"
    assert [checkpoint.step_of(path) for path in states(tmp_path / "run")] == [4], "the step at hand is finished first"
    assert signal.getsignal(signal.SIGINT) is handler, "the handler is given back"
    resumed = fit(tiny_model(0.2), tiny_task(), run=Run.open(tmp_path / "run"), **given)
    assert resumed.ended == "done"
    assert timeless(resumed.history) == timeless(calm.history)
    for a, b in zip(resumed.model.parameters(), calm.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_interrupt_in_the_middle_of_an_update_saves_nothing_half(tmp_path, monkeypatch) -> None:
    real, calls = torch.optim.AdamW.step, []

    def step(self, *given, **named):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(self, *given, **named)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    fitted = fit(tiny_model(), tiny_task(), run=tmp_path, steps=9, save_every=1, watch=silent)
    assert fitted.ended == "interrupted"
    assert checkpoint.step_of(next(states(tmp_path))) < 6


def test_an_interrupt_between_updates_saves(tmp_path) -> None:
    def stop(at) -> None:
        if at.step == 2:
            raise KeyboardInterrupt

    fitted = fit(tiny_model(), tiny_task(), run=tmp_path, steps=9, watch=stop)
    assert fitted.ended == "interrupted"
    assert checkpoint.step_of(next(states(tmp_path))) == 2


def test_outside_the_main_thread_a_fit_just_runs() -> None:
    ended = []
    thread = threading.Thread(target=lambda: ended.append(fit(tiny_model(), tiny_task(), steps=1, watch=silent).ended))
    thread.start()
    thread.join()
    assert ended == ["done"]


# --- the history after a crash ----------------------------------------------------------------------------------------


@pytest.mark.spec("T9")
@pytest.mark.parametrize("save_every", [2, 100], ids=["saved", "killed before the first checkpoint"])
def test_after_a_resume_each_step_is_there_once_and_a_torn_line_does_no_harm(tmp_path, save_every) -> None:
    class Killed(Exception):
        pass

    def die(at) -> None:
        if at.step == 5:
            raise Killed

    settings = {"steps": 7, "save_every": save_every, "optimiser": FAST}
    with pytest.raises(Killed):
        fit(tiny_model(), tiny_task(), run=tmp_path, watch=die, **settings)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    assert [line["step"] for line in Run.open(tmp_path).history()] == [1, 2, 3, 4, 5]
    fitted = fit(tiny_model(), tiny_task(), run=Run.open(tmp_path), watch=silent, **settings)
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6, 7]
    assert fitted.history == Run.open(tmp_path).history()


# --- two on one folder ------------------------------------------------------------------------------------------------


def hold(folder: Path) -> None:
    """Another process has the run, and lives on."""
    run = Run.open(folder)
    run.lock()
    (folder / "held").touch()
    time.sleep(60)


@pytest.mark.spec("T9")
def test_a_second_process_refuses_and_names_the_first(tmp_path) -> None:
    Run.create(tmp_path, {})
    first = forked(hold, tmp_path, folder=tmp_path)
    try:
        first.wait_until((tmp_path / "held").exists)
        with refused(RunError, f"process {first.pid}", "Wait for it"):
            fit(tiny_model(), tiny_task(), run=Run.open(tmp_path), steps=1, watch=silent)
    finally:
        first.kill()
    assert fit(tiny_model(), tiny_task(), run=Run.open(tmp_path), steps=1, watch=silent).ended == "done"


def test_a_lock_ends_with_its_fit_even_one_that_failed(tmp_path) -> None:
    def fail(at) -> None:
        raise ZeroDivisionError

    run = Run.create(tmp_path, {})
    with pytest.raises(ZeroDivisionError):
        fit(tiny_model(), tiny_task(), run=run, steps=1, watch=fail)
    run.lock()
    run.lock()
    with refused(RunError, f"process {os.getpid()}", "Wait for it"):
        Run.open(tmp_path).lock()
    run.release()
