"""``continua simulate circle|sphere|meanfield|phase``: one command for each kind of settings.

Torch is imported when a command runs, not before: help answers at once.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from continua.cli.options import Threads, ready
from continua.cli.simulate.settings import Circle, MeanField, Phase, Shared, Sphere, asked
from continua.errors import ConfigError, nearest

app = typer.Typer()
AGAIN = ("resume", "anew")
FIRST = ("beta", "d", "n", "until", "interaction", "seed")  # the order in which help names them; the others follow


def _command(kind: type[Shared]) -> Callable[..., None]:
    """A command whose options are the fields of its settings: one place says what can be set."""

    def go(**given: Any) -> None:
        from continua.cli.simulate.run import run

        out = given.pop("out")
        again = given.pop("again")
        changes = given.pop("change") or []
        threads = given.pop("threads")
        if again not in AGAIN:
            raise ConfigError("--again is resume or anew", got=again, remedy=nearest(again, [*AGAIN]))
        ready("cpu", threads)
        run(asked(kind, given, changes), out, again == "anew")

    options: dict[str, tuple[Any, Any]] = {}
    for one in sorted(fields(kind), key=lambda one: FIRST.index(one.name) if one.name in FIRST else len(FIRST)):
        flags = [f"--{one.name}", *one.metadata["names"]]
        shown = typer.Option(*flags, help=one.metadata["help"], show_default=one.metadata["shown"])
        options[one.name] = (Annotated[one.type, shown], one.default)
    change = typer.Option("--set", help="The same as an option: --set beta=9. May be repeated.")
    where = typer.Option(help=f"The folder. By default runs/simulate-{kind.name} and what was set.")
    again = typer.Option(help="Where it was simulated before: resume (what is done is not repeated) or anew.")
    options["change"] = (Annotated[list[str] | None, change], None)
    options["out"] = (Annotated[Path | None, where], None)
    options["again"] = (Annotated[str, again], "resume")
    options["threads"] = (Threads, None)
    go.__name__ = kind.name
    go.__doc__ = kind.__doc__
    go.__annotations__ = {key: hint for key, (hint, _) in options.items()} | {"return": None}
    go.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for key, (hint, default) in options.items()
        ]
    )
    return go


for _kind in (Circle, Sphere, MeanField, Phase):
    app.command(_kind.name)(_command(_kind))
