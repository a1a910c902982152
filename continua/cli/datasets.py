"""``continua data``: token files of texts, field files of arrays.

As in the command line itself, nothing heavy is imported before one runs.
"""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Texts and fields of any size as files, which training reads without loading them.")


@app.command()
def build(
    texts: Annotated[
        list[Path], typer.Argument(help="Files or folders: text, .jsonl, .parquet, .arrow, .feather or .tar.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; an interrupted one goes on.")],
    tokenizer: Annotated[
        str,
        typer.Option(help="characters, pairs:N (byte pairs learned here), a tokenizer.json, or a folder that has one."),
    ] = "characters",
    column: Annotated[str, typer.Option(help="The name of the text in tables and JSON.")] = "text",
    held_out: Annotated[float, typer.Option(help="The share of the documents that is measured on.")] = 0.05,
    separator: Annotated[
        str, typer.Option(help="A token to put behind each document, for example <|endoftext|>.")
    ] = "",
    jobs: Annotated[int, typer.Option(help="Processes that read side by side.")] = 1,
    unit: Annotated[int, typer.Option(help="Megabytes of text in a shard.")] = 64,
) -> None:
    """Write texts as shards of token numbers, hashed and resumable; continua fit text --text FOLDER reads them."""
    from continua.cli.data import Wishes
    from continua.cli.data import build as go

    go(texts, out, Wishes(tokenizer, column, held_out, separator, jobs, unit))


@app.command()
def fields(
    arrays: Annotated[
        list[Path], typer.Argument(help=".npy files or folders of them: [paths, times, *grid, channels].")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; an interrupted one goes on.")],
    domain: Annotated[
        str, typer.Option(help="Each direction of the grid: circle, interval (nodes at both ends) or cells of one.")
    ] = "circle",
    held_out: Annotated[float, typer.Option(help="The share of the paths that is measured on.")] = 0.1,
    jobs: Annotated[int, typer.Option(help="Processes that read side by side.")] = 1,
    unit: Annotated[int, typer.Option(help="Megabytes in a shard.")] = 256,
) -> None:
    """Write paths of fields as shards, hashed and resumable; continua fit fields --set folder=FOLDER reads them."""
    from continua.cli.data import build_fields as go

    go(arrays, out, domain, held_out, jobs, unit)


@app.command()
def show(folder: Annotated[Path, typer.Argument(help="A folder of token or field files.")]) -> None:
    """Say what token or field files hold."""
    from continua.cli.data import show as go

    go(folder)


@app.command()
def check(folder: Annotated[Path, typer.Argument(help="A folder of token or field files.")]) -> None:
    """Read every shard, and compare it with what was written."""
    from continua.cli.data import check as go

    go(folder)
