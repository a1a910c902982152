"""A process that does not answer any more is waited for so long and no longer."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from continua.errors import ConfigError
from continua.tasks import Text
from continua.training import Training, fit
from tests.forked import ranks
from tests.refusals import refused
from tests.runs import silent, tiny_model, tiny_task

LIMIT = 5.0


class Frozen(Text):
    """Data that stop one of the processes at a step."""

    def example(self, seed: int, step: int) -> Any:
        if step == 2 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().example(seed, step)


def work(run: Path) -> None:
    task = tiny_task()
    frozen = Frozen(task.corpus, task.tokens, task.context, task.batch, task.limit)
    fit(tiny_model(), frozen, run=run, steps=9, save_every=1, watch=silent, time_limit=LIMIT, sharded=True)


@pytest.mark.finding("D11")
def test_a_frozen_process_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    first, frozen, third = ranks(work, tmp_path / "run", folder=tmp_path, count=3)
    try:
        codes = [one.ended(90) for one in (first, third)]
    finally:
        for one in (first, frozen, third):
            one.kill()
    assert codes == [1, 1]
    said = [one.err.read_text().strip().splitlines()[-1] for one in (first, third)]
    assert said[0] == said[1], "the same sentence"
    assert "another process of this run has gone, got a link that closed or timed out" in said[0]


def test_a_limit_is_a_time() -> None:
    assert Training().time_limit == 600
    with refused(ConfigError, "got", "."):
        Training(time_limit=0)
