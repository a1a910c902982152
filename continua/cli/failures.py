"""What ends a command is answered with one sentence; ``--debug`` adds the traceback."""

import sys
import traceback

import typer

from continua.errors import ContinuaError

REFUSED = 2  # something a user can mend
FAILED = 1  # anything else
FULL = ("out of memory", "can't allocate memory", "not enough memory")


def report(error: Exception, debug: bool) -> int:
    """Write the sentence, behind the traceback where it was asked for; return the exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    typer.echo(f"continua: {sentence(error)}", err=True)
    return REFUSED if isinstance(error, ContinuaError) else FAILED


def sentence(error: Exception) -> str:
    """What happened and what to do, on one line.

    >>> sentence(KeyError("d"))
    "this ended with KeyError: 'd'. Add --debug to see where, and please report it."
    """
    if isinstance(error, ContinuaError):
        return str(error)
    first = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(word in first for word in FULL)):
        return "this does not fit into memory. Use a smaller size, batch or context; --debug shows where."
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename is not None else ""
        return f"the system refused{where}: {error.strerror}. Mend that or choose another place; --debug shows where."
    got = f": {first}" if first else ""
    return f"this ended with {type(error).__name__}{got}. Add --debug to see where, and please report it."
