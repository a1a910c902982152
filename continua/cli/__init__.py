"""The command line. Nothing heavy is imported before a command runs: ``continua --help`` answers at once."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from continua import __version__
from continua.cli.answering import predict
from continua.cli.datasets import app as datasets
from continua.cli.deploy import export, gather, plan, serve, studio
from continua.cli.failures import report
from continua.cli.learning import finetune
from continua.cli.named import Late, named
from continua.cli.options import Device, Threads, ready
from continua.cli.reading import classify, embed
from continua.cli.speaking import chat, generate, transcribe

app = typer.Typer(
    help="Continua: Transformers whose every axis is continuous.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
simulations = Late("continua.cli.simulate.command", "Tokens as particles: simulate, measure, draw and film them.")
app.add_typer(simulations, name="simulate")
app.add_typer(datasets, name="data")
for command in (export, gather, plan, serve, studio, classify, embed, generate, finetune, transcribe, chat, predict):
    app.command()(command)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"continua {__version__}")
        raise typer.Exit()
    return wanted


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of a failure. May stand behind the command too.")
    ] = False,
) -> None:
    """Continua: Transformers whose every axis is continuous."""


@app.command()
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


@app.command()
def check(
    out: Annotated[Path, typer.Option(help="Where the figure and a small model are written.")] = Path("runs/check"),
    threads: Threads = None,
) -> None:
    """Show exactness and refinement on a small continuous Transformer, in under a minute."""
    from continua.cli.check import run

    ready("cpu", threads)
    run(out)


@app.command()
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


@app.command(context_settings={"help_option_names": []})
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


@app.command()
def recipes(
    recipe: Annotated[str, typer.Argument(help="One of them, or FILE.py:FUNCTION: list its settings.")] = "",
) -> None:
    """List the recipes, or the settings of one with their defaults, ranges and meanings."""
    from continua.cli.recipes import run

    run(recipe)


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that holds them.")] = Path("runs"),
) -> None:
    """List the runs in a folder: recipe, steps, best held-out loss, when, size and state."""
    from continua.cli.runs import run as go

    go(folder)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A run.")],
    second: Annotated[Path, typer.Argument(help="Another run.")],
    out: Annotated[Path | None, typer.Option(help="The picture. By default runs/compare/FIRST-SECOND.png.")] = None,
) -> None:
    """Say how two runs differ: their settings, their losses, and a picture of both."""
    from continua.cli.runs import compare as go

    go(first, second, out)


def main() -> None:
    """Run a command; whatever ends it is answered with one sentence instead of a traceback."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin stop one another: benchmarks/threads.py
    debug = "--debug" in sys.argv[1:]
    words = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        named(app, words)(args=words)
    except Exception as error:
        sys.exit(report(error, debug))
