"""Commands that train a model one has. Nothing heavy is imported before one runs."""

from pathlib import Path
from typing import Annotated

import typer

from continua.cli.options import Device, Threads, ready


def finetune(
    folder: Annotated[Path, typer.Argument(help="A Hugging Face folder, one of model.save(), or a run.")],
    data: Annotated[Path, typer.Option(help="A .csv of texts and labels (classifier), or a .txt (language model).")],
    lora: Annotated[
        int | None, typer.Option(help="Train a low-rank addition of this rank (8, say); else all weights.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the model. By default RUN/model.")] = None,
    text: Annotated[str | None, typer.Option(help="The column of the texts; found where its name is usual.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of the labels; found where its name is usual.")] = None,
    place: Annotated[
        Path | None, typer.Option("--folder", "--run", help="The run folder. By default runs/finetune/FOLDER-DATA.")
    ] = None,
    *,
    steps: Annotated[
        int | None, typer.Option(help="Steps. By default three passes over a .csv, 300 of a .txt.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts a step.")] = 16,
    lr: Annotated[float | None, typer.Option(help="The learning rate. By default 1e-4; with --lora 1e-3.")] = None,
    context: Annotated[int, typer.Option(help="Tokens of a text that are read at most.")] = 128,
    seed: Annotated[int, typer.Option(help="Of the order of texts, and of what is drawn.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Fine-tune a pretrained model on one's own texts, and write a folder that continua and transformers read.

    A tenth of a .csv, the last twentieth of a .txt, is held out and measured on. The same command goes on with a run
    that was stopped. Exit codes: 0 done, 130 interrupted, 3 not kept.
    """
    from continua.cli.finetune import Wishes
    from continua.cli.finetune import run as go

    go(folder, data, Wishes(text, label, lora, steps, batch, lr, context, seed), place, out, ready(device, threads))
