"""Commands that read texts with an encoder. Nothing heavy is imported before one runs."""

from pathlib import Path
from typing import Annotated

import typer

from continua.cli.options import Device, Threads, ready

Folder = Annotated[Path, typer.Argument(help="A Hugging Face folder, one of model.save(), or a run.")]
Lines = Annotated[Path, typer.Option(help="A file with a text on each line.")]
Size = Annotated[str, typer.Option(help="Another size, for example d=64,h=2,z=3.")]


def classify(
    folder: Folder,
    texts: Lines,
    out: Annotated[Path | None, typer.Option(help="A .csv of all classes; else the likeliest are shown.")] = None,
    at: Size = "",
    *,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Name the class of each text: its label and probability, or its number where there is one class alone."""
    from continua.cli.encoders import classify as go

    go(folder, texts, out, at, ready(device, threads))


def embed(
    folder: Folder,
    texts: Lines,
    out: Annotated[Path, typer.Option(help="The file: an .npz with embeddings [texts, d].")] = Path("embeddings.npz"),
    pool: Annotated[str, typer.Option(help="mean over the tokens, the first token, or the last one.")] = "mean",
    at: Size = "",
    *,
    normalise: Annotated[bool, typer.Option("--normalise", help="Vectors of length one.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Write a vector for each text: the states behind the last layer, pooled over its tokens.

    CLIP pools itself: its vectors are those of its tower of texts.
    """
    from continua.cli.encoders import embed as go

    go(folder, texts, out, pool, at, normalise, ready(device, threads))
