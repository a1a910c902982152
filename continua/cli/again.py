"""What a fit leaves for the shell, and what becomes of a run that is there already."""

import sys
from pathlib import Path

import typer
from rich.console import Console

from continua.errors import ConfigError
from continua.training import Fitted, Run

INTERRUPTED = 130  # what a shell calls a program that Ctrl-C ended
NOT_KEPT = 3
AGAIN = ("", "ask", "resume", "anew")


def goes_on(console: Console, folder: Path, again: str) -> bool | None:
    """Whether a run that is in ``folder`` is gone on with (True) or replaced (False); None where there is none.

    Where nothing was said (``again`` is empty) a run that is there is nobody's to touch: starting is refused later.
    """
    if again not in AGAIN:
        raise ConfigError("--again is ask, resume or anew", got=again, remedy="Leave it out for a new folder.")
    if not again or not (folder / "run.json").is_file():
        return None
    if again != "ask":
        return again == "resume"
    done = len([line for line in Run.open(folder).history() if "loss" in line])
    console.print(f"There is a run of {done} steps in {folder}.", markup=False)
    if not sys.stdin.isatty():
        console.print("Going on with it; --again anew starts over.", markup=False)
        return True
    return not typer.confirm("Start anew and forget it? (No goes on with it.)", default=False)


def code_of(console: Console, fitted: Fitted) -> int:
    """The exit code of a fit, and a word where its end is not on the disk: 0 done, 130 interrupted, 3 not kept."""
    if not fitted.kept:
        folder = "its folder" if fitted.run is None else fitted.run.folder
        console.print(f"The last state was not kept: {folder} cannot be written or is not there.", markup=False)
        return NOT_KEPT
    return INTERRUPTED if fitted.ended == "interrupted" else 0
