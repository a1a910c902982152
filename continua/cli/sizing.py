"""Commands that give a model other sizes. Nothing heavy is imported before one runs."""

from pathlib import Path
from typing import Annotated

import typer

from continua.cli.options import Device, Threads, ready


def pareto(
    run: Annotated[Path, typer.Argument(help="A run of an elastic recipe (any run will do).")],
    size: Annotated[
        list[str] | None,
        typer.Option(help="A size such as d=64,h=2,z=3 or z=2+1+1. May be repeated; the usual grid if left out."),
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option(help="How many held-out windows to read for each size; 0 reads all. By default 64, of many 16."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the picture goes. By default RUN/pareto.png.")] = None,
    *,
    many: Annotated[
        bool, typer.Option("--many", help="More than a hundred sizes; times of those that nothing beats.")
    ] = False,
    beside: Annotated[
        Path | None, typer.Option(help="A .json with other models to draw: a list of name, flops and loss.")
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the recipe file that the run names, and read the paths it names.")
    ] = False,
) -> None:
    """Measure one checkpoint at many sizes: loss, time, FLOPs, memory, and which sizes nothing beats."""
    from continua.cli.pareto import run as go

    go(run, size or [], windows, out, ready(device, threads), trust, many=many, beside=beside)


def lift(
    folder: Annotated[Path, typer.Argument(help="A Hugging Face folder, one of model.save(), or a run.")],
    out: Annotated[Path, typer.Argument(help="A new folder for the model with continuous axes.")],
    texts: Annotated[
        Path | None, typer.Option(help="Calibrate with these, one on each line; else with docstrings of Python.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not calibrate: exact at its own size alone.")] = False,
    *,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Give a pretrained model continuous axes: the same at its own size, useful at smaller ones, without training."""
    from continua.cli.lift import run_lift

    run_lift(folder, out, texts, raw, ready(device, threads))


def discretise(
    folder: Annotated[Path, typer.Argument(help="A folder of continua lift, of Hugging Face or a run.")],
    out: Annotated[Path, typer.Argument(help="A new folder for the plain model.")],
    at: Annotated[str, typer.Option(help="The size, for example m=768,h=6.")],
    hf: Annotated[bool, typer.Option("--hf", help="Write a folder that transformers loads.")] = False,
    texts: Annotated[
        Path | None, typer.Option(help="Calibrate with these, one on each line; else with docstrings of Python.")
    ] = None,
    *,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Write a plain model of a chosen size, with everything folded into ordinary weights."""
    from continua.cli.lift import run_discretise

    run_discretise(folder, out, at, texts, hf, ready(device, threads))


def drift(
    folder: Annotated[Path, typer.Argument(help="A folder of continua lift, of Hugging Face or a run.")],
    at: Annotated[
        list[str] | None, typer.Option(help="A size such as m=768,h=6. May be repeated; the usual ones if left out.")
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="Texts, one on each line: three of four calibrate, the others are measured.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The picture. By default runs/drift/FOLDER.png.")] = None,
    *,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Measure what a pretrained model loses at other sizes, without training, and what these cost."""
    from continua.cli.drift import run as go

    go(folder, at or [], texts, out, ready(device, threads))


def elastic(
    folder: Annotated[Path, typer.Argument(help="A Hugging Face folder, one of model.save() or of continua lift.")],
    texts: Annotated[
        Path | None, typer.Option(help="Texts to learn from, one on each line; else docstrings of Python.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="About how long to teach, on this machine.")] = 20.0,
    at: Annotated[
        list[str] | None, typer.Option(help="A size to teach, such as m=768,h=6. May be repeated; else the usual ones.")
    ] = None,
    place: Annotated[
        Path | None, typer.Option("--folder", "--run", help="The run folder. By default runs/elastic/FOLDER.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Of the lessons of a new run: float32, bfloat16 (half as precise, quicker) or float64.")
    ] = "float32",
    *,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Make a pretrained model elastic: calibrate it, then let its native size, which stays, teach smaller ones.

    The same command goes on with a run that was stopped. Exit codes: 0 done, 130 interrupted, 3 not kept.
    """
    from continua.cli.elastic import run as go

    go(folder, texts, minutes, at or [], place, precision, ready(device, threads))
