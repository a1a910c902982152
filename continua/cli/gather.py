"""``continua gather``: the shards of a run's checkpoints as one file of weights each."""

from pathlib import Path

from rich.console import Console

from continua.training import Run


def run(folder: Path) -> None:
    """Gather, and say what was written."""
    console = Console()
    gathered = Run.open(folder).gather()
    for path in gathered:
        console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
    if not gathered:
        console.print(f"No checkpoint of {folder} lies in shards.", markup=False, soft_wrap=True)
