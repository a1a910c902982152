"""The command line. Nothing heavy is imported before a command runs: ``continua --help`` answers at once."""

import os
import sys
from typing import Annotated, Any

import typer

from continua import __version__
from continua.cli.answering import predict
from continua.cli.datasets import app as datasets
from continua.cli.deploy import export, gather, plan, serve, studio
from continua.cli.failures import report
from continua.cli.learning import compare, finetune, fit, recipes, runs
from continua.cli.named import Late, named
from continua.cli.reading import classify, embed
from continua.cli.sizing import discretise, drift, elastic, lift, pareto
from continua.cli.speaking import chat, generate, transcribe
from continua.cli.starting import check, demo, inspect

PANELS = {
    "Begin": (demo, check, studio),
    "Train": (recipes, fit, finetune, runs, compare),
    "Other sizes": (pareto, drift, lift, discretise, elastic),
    "Use": (generate, chat, classify, embed, transcribe, predict),
    "Look inside": (inspect,),
    "Ship": (export, serve, plan, gather),
}
RECIPES: dict[str, Any] = {"help_option_names": []}  # fit has a --help of its own, which knows them

app = typer.Typer(
    help="Continua: Transformers whose every axis is continuous.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for panel, commands in PANELS.items():
    for command in commands:
        own = RECIPES if command is fit else None
        app.command(context_settings=own, rich_help_panel=panel)(command)
simulations = Late("continua.cli.simulate.command", "Tokens as particles: simulate, measure, draw and film them.")
app.add_typer(simulations, name="simulate", rich_help_panel="Look inside")
app.add_typer(datasets, name="data", rich_help_panel="Train")


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


def main() -> None:
    """Run a command; whatever ends it is answered with one sentence instead of a traceback."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin stop one another: benchmarks/threads.py
    debug = "--debug" in sys.argv[1:]
    words = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        named(app, words)(args=words)
    except Exception as error:
        sys.exit(report(error, debug))
