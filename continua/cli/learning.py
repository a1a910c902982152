"""Commands that train models and look after their runs. Nothing heavy is imported before one runs."""

from pathlib import Path
from typing import Annotated

import typer

from continua.cli.options import Device, Threads, ready


def recipes(
    recipe: Annotated[str, typer.Argument(help="One of them, or FILE.py:FUNCTION: list its settings.")] = "",
) -> None:
    """List the recipes, or the settings of one with their defaults, ranges and meanings."""
    from continua.cli.recipes import run

    run(recipe)


def fit(
    context: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(help="A shipped recipe (text, elastic, burgers, darcy, navier-stokes, …), or FILE.py:FUNCTION."),
    ] = "",
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, for example --set steps=500. May be repeated.")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="Train on this text file (recipes text and cheatsheet).")] = None,
    at: Annotated[
        str, typer.Option(help="Compute the loss on these sizes instead of the native ones, for example d=64,z=3.")
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", "--run", help="The run folder. By default runs/RECIPE. (torchrun takes --run for its own.)"
        ),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run.")] = None,
    compiles: Annotated[
        bool, typer.Option("--compile", help="Compile the model, forward and backward (torch.compile).")
    ] = False,
    *,
    config: Annotated[
        Path | None, typer.Option(help="Settings from a TOML or YAML file; --set counts after it.")
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Check settings, say what would happen, write nothing.")
    ] = False,
    helps: Annotated[bool, typer.Option("--help", help="Show this message; with a RECIPE its settings too.")] = False,
    device: Device = "auto",
    threads: Threads = None,
    again: Annotated[
        str, typer.Option(help="Where the folder has a run already: resume goes on, anew replaces it, ask asks.")
    ] = "",
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the recipe file that the run names, and read the paths it names.")
    ] = False,
    parts: Annotated[int | None, typer.Option("--shard-tokens", help="Processes that share a sample's tokens.")] = None,
) -> None:
    """Train a recipe, or go on with a run. It can be stopped at any moment and resumed with nothing lost.

    Exit codes: 0 done, 130 interrupted (Ctrl-C or SIGTERM; saved), 3 the last state could not be kept.
    """
    if helps:
        _help(context, recipe)
        return
    from continua.cli.fit import Options
    from continua.cli.fit import run as go

    place = ready(device, threads)
    options = Options(again, trust, config, dry, parts)
    go(recipe, change or [], text, at, folder, resume, compiles, place, options=options)


def _help(context: typer.Context, recipe: str) -> None:
    """The usual help of a command; with a recipe its settings too."""
    typer.echo(context.get_help())
    if recipe:
        from continua.cli.recipes import run as list_settings

        list_settings(recipe)


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


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that holds them.")] = Path("runs"),
) -> None:
    """List the runs in a folder: recipe, steps, best held-out loss, when, size and state."""
    from continua.cli.runs import run as go

    go(folder)


def compare(
    first: Annotated[Path, typer.Argument(help="A run.")],
    second: Annotated[Path, typer.Argument(help="Another run.")],
    out: Annotated[Path | None, typer.Option(help="The picture. By default runs/compare/FIRST-SECOND.png.")] = None,
) -> None:
    """Say how two runs differ: their settings, their losses, and a picture of both."""
    from continua.cli.runs import compare as go

    go(first, second, out)
