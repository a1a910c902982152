"""Commands that take a model elsewhere. As in the command line itself, nothing heavy is imported before one runs."""

from pathlib import Path
from typing import Annotated

import typer

from continua.cli.options import Threads, ready


def export(
    folder: Annotated[Path, typer.Argument(help="A run, a folder of model.save() or one of Hugging Face.")],
    file: Annotated[
        Path, typer.Argument(help="FILE.onnx, FILE.pt2 (a program of torch), or a folder for transformers.")
    ],
    at: Annotated[str, typer.Option(help="One size alone, for example d=64,h=2,z=3; all of them if left out.")] = "",
    *,
    int8: Annotated[bool, typer.Option("--int8", help="Matrices in eight bits; the loss of that is printed.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Attention weights and states along depth as outputs.")
    ] = False,
    threads: Threads = None,
) -> None:
    """Write a model as one file that runs without torch, checked against torch before it gets its name."""
    from continua.cli.export import Wishes
    from continua.cli.export import run as go

    ready("cpu", threads)
    go(folder, file, Wishes(at, int8, probe))
