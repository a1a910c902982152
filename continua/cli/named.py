"""Only commands that are named get their options: building those of all of them is an eighth of ``continua --help``."""

import copy
import importlib
from collections.abc import Sequence
from typing import Any

import typer
from typer.models import CommandInfo, TyperInfo


class Late(typer.Typer):
    """A group of commands; ``module``, whose ``app`` has them, is imported when they are first asked for."""

    def __init__(self, module: str, text: str) -> None:
        super().__init__(help=text, no_args_is_help=True)
        self.module = module
        del self.registered_commands

    def __getattr__(self, name: str) -> Any:
        if name != "registered_commands":
            raise AttributeError(name)
        self.registered_commands = importlib.import_module(self.module).app.registered_commands
        return self.registered_commands


def named(app: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """The same command line, where a command that is none of these words has its name and its help alone."""
    part = copy.copy(app)
    part.registered_commands = [
        info if _name(info) in words else _without_options(info) for info in app.registered_commands
    ]
    part.registered_groups = [info if info.name in words else _without_commands(info) for info in app.registered_groups]
    return part


def _name(info: CommandInfo) -> str:
    return info.name or (info.callback.__name__.replace("_", "-") if info.callback else "")


def _without_options(info: CommandInfo) -> CommandInfo:
    def nothing() -> None: ...

    nothing.__doc__ = info.callback.__doc__
    short = copy.copy(info)
    short.name = _name(info)
    short.callback = nothing
    return short


def _without_commands(info: TyperInfo) -> TyperInfo:
    short = copy.copy(info)
    short.typer_instance = copy.copy(info.typer_instance)
    if short.typer_instance is not None:
        short.typer_instance.registered_commands = []
        short.typer_instance.registered_groups = []
    return short
