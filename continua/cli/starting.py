"""Commands of the first day, and those that look into a model. Nothing heavy is imported before one runs."""

from pathlib import Path
from typing import Annotated

import typer

from continua.cli.options import Device, Threads, ready


def demo(
    out: Annotated[
        Path | None, typer.Option(help="The run folder; pictures go there too. By default runs/demo.")
    ] = None,
    again: Annotated[str, typer.Option(help="Where a demo ran before: ask, resume or anew.")] = "ask",
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of the recipe, for example --set steps=200.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny model in half a minute, into runs/demo-quick: does all of it run?")
    ] = False,
    *,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train one elastic text model, print and draw all its sizes, and let it write at two of them (four minutes)."""
    from continua.cli.demo import run

    run(out, again, change or [], quick, ready(device, threads))


def check(
    out: Annotated[Path, typer.Option(help="Where the figure and a small model are written.")] = Path("runs/check"),
    threads: Threads = None,
) -> None:
    """Show exactness and refinement on a small continuous Transformer, in under a minute."""
    from continua.cli.check import run

    ready("cpu", threads)
    run(out)


def inspect(
    path: Annotated[Path, typer.Argument(help="A run, or a folder written by model.save() or by Hugging Face.")],
    at: Annotated[
        str, typer.Option(help="Another size, for example d=64,h=2,z=3; of a run also a budget such as latency=5ms.")
    ] = "",
    attention: Annotated[
        str | None, typer.Option(help="A text: show what every attention head does with it, and draw it.")
    ] = None,
    dynamics: Annotated[
        bool, typer.Option("--dynamics", help="Measure how tokens move through the layers, and draw it.")
    ] = False,
    text: Annotated[str | None, typer.Option(help="What --dynamics reads; a few sentences if left out.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where figures go. By default runs/attention or runs/dynamics.")
    ] = None,
    *,
    page: Annotated[
        Path | None, typer.Option("--for-page", help="With --dynamics: a .json of the tokens' paths, for the studio.")
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the recipe file that the run names, and read the paths it names.")
    ] = False,
) -> None:
    """Print what a model is: axes, grid, parts, fields and parameters; or what it does with a text."""
    from continua.cli.inspect import look_closer, run

    closer = dynamics or text is not None or page is not None
    place = ready(device, threads)
    if attention is not None or not closer:
        run(path, at, attention, out or Path("runs/attention"), place, trust)
    if closer:
        look_closer(path, at, dynamics, text, out or Path("runs/dynamics"), place, trust, page=page)
