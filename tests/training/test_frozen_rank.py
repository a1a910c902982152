"""A process that does not answer any more is waited for so long and no longer."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from continua.errors import ConfigError
from continua.training import Training
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 5.0
PROGRAM = """
import os, signal, sys
from continua.training import fit
from tests.runs import silent, tiny_model, tiny_task

class Task(type(tiny_task())):
    def example(self, seed, step):
        if step == 2 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().example(seed, step)

task = tiny_task()
task = Task(task.corpus, task.tokens, task.context, task.batch, 2)
fit(tiny_model(), task, run=sys.argv[1], steps=9, watch=silent, time_limit=float(sys.argv[2]))
"""


@pytest.mark.finding("D11")
def test_a_frozen_process_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    alone = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
    }
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), str(LIMIT)]
    ranks = [
        subprocess.Popen(
            words,
            cwd=ROOT,
            env={**alone, "RANK": str(rank), "MASTER_PORT": str(port)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    began = time.monotonic()
    try:
        said = ranks[0].communicate(timeout=120)[1]
    finally:
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
        ranks[1].communicate()
    assert ranks[0].returncode == 1
    assert "another process of this run has gone" in said
    assert time.monotonic() - began < 90


def test_a_limit_is_a_time() -> None:
    assert Training().time_limit == 600
    with refused(ConfigError, "got", "."):
        Training(time_limit=0)
