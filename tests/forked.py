"""Processes of their own, forked from one interpreter that has everything imported.

A start of the interpreter and of torch takes two seconds of a processor; a fork takes none.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

RANKS = 2
PATIENCE = 300.0  # seconds
IMPORTED = [
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "continua.training",
    "continua.cli.fit",
    "tests.cases",
]


@dataclass(frozen=True)
class Fork:
    """A process, and the files with what it says."""

    process: BaseProcess
    out: Path
    err: Path

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid or 0

    def ended(self, patience: float = PATIENCE) -> int | None:
        """Wait for its end: the exit code, if it ended."""
        self.process.join(patience)
        return self.process.exitcode

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Wait until something happened, or the process ended."""
        for _ in range(1200):
            if happened() or not self.process.is_alive():
                break
            time.sleep(0.05)

    def send(self, which: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, which)

    def kill(self) -> None:
        """End it, also where it is stopped."""
        if self.process.is_alive():
            self.send(signal.SIGKILL)
        self.process.join()


def forked(work: Callable[..., None], *given: Any, folder: Path, name: str = "fork") -> Fork:
    """Begin ``work(*given)`` in a process of its own; what it says goes into files in ``folder``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    out.touch()
    err.touch()
    process = context.Process(target=_begin, args=(out, err, work, given), daemon=True)
    process.start()
    return Fork(process, out, err)


def _begin(out: Path, err: Path, work: Callable[..., None], given: tuple[Any, ...]) -> None:
    for path, number in ((out, 1), (err, 2)):
        with path.open("w") as file:
            os.dup2(file.fileno(), number)
    torch.set_num_threads(1)
    work(*given)


# --- the command line -------------------------------------------------------------------------------------------------


def commanded(*words: str, folder: Path) -> Fork:
    """``continua WORDS`` in ``folder``."""
    return forked(_command, folder, words, folder=folder.parent, name=f"{folder.name}-command")


def _command(folder: Path, words: tuple[str, ...]) -> None:
    from continua.cli import main

    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may mute it
    sys.argv = ["continua", *words]
    main()


# --- several that work together ---------------------------------------------------------------------------------------


def ranks(work: Callable[..., None], *given: Any, folder: Path, count: int = RANKS) -> list[Fork]:
    """Begin ``work(*given)`` in each of some processes, in surroundings as ``torchrun`` makes them."""
    port = _free_port()
    return [
        forked(_take_part, rank, count, port, work, given, folder=folder, name=f"rank-{rank}") for rank in range(count)
    ]


def together(work: Callable[..., None], *given: Any, folder: Path, count: int = RANKS) -> None:
    """Do ``work(*given)`` in each of some processes, to the end."""
    begun = ranks(work, *given, folder=folder, count=count)
    try:
        codes = [rank.ended() for rank in begun]
    finally:
        for rank in begun:
            rank.kill()
    assert codes == [0] * count, "\n".join(rank.err.read_text()[-3000:] for rank in begun)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def _take_part(rank: int, count: int, port: int, work: Callable[..., None], given: tuple[Any, ...]) -> None:
    surroundings = {"RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in surroundings.items()})
    work(*given)
