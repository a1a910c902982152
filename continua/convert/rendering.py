"""The program that renders chat templates, in a process of its own: ``python -I rendering.py SECONDS FOLDER…``.

A template comes with a model, and is a program. Here it runs in jinja's immutable sandbox, where it sees the messages,
changes nothing and reaches nothing else; with limits of the system on memory, on time of the processor for each text,
and on files. Whatever goes beyond ends this process and no other. It imports nothing of Continua, so that it starts at
once; a line of JSON comes in, one goes out.
"""

import contextlib
import json
import signal
import sys
from datetime import datetime
from typing import Any

MEMORY = 512 * 2**20  # bytes of this process
SECONDS = 2.0  # of the processor, for one text
LONGEST = 200_000  # characters of a text that a template may make
SAID = 200  # characters of what is said of a refusal


class TooLong(Exception):
    """A text that would not end."""


def limit() -> None:
    """Let the system end what takes too much; where it knows no such limits, the parent's patience is the only one."""
    with contextlib.suppress(ImportError):
        import resource

        for what, most in (("RLIMIT_AS", MEMORY), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                resource.setrlimit(getattr(resource, what), (most, most))


def surroundings() -> Any:
    """The sandbox, with what templates of Hugging Face expect: loop controls, the date, JSON, and a way to refuse."""
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %} … {% endgeneration %}`` marks what a model wrote, for training: here it is its content."""

        tags = {"generation"}  # noqa: RUF012  (as jinja declares it)

        def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
            """Its content."""
            next(parser.stream)
            found: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return found

    def refuse(words: Any) -> None:
        raise TemplateError(str(words))

    room = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    room.globals.pop("lipsum", None)
    room.globals["raise_exception"] = refuse
    room.globals["strftime_now"] = lambda form: datetime.now().strftime(str(form))
    room.filters["tojson"] = _as_json
    return room


def _as_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def rendered(room: Any, source: str, variables: dict[str, Any]) -> str:
    """The text, piece by piece until it is too long."""
    pieces: list[str] = []
    length = 0
    for piece in room.from_string(source).generate(**variables):
        pieces.append(piece)
        length += len(piece)
        if length > LONGEST:
            raise TooLong
    return "".join(pieces)


def answer(room: Any, line: str) -> dict[str, str]:
    """What is said of one line: a text, or why there is none."""
    asked = json.loads(line)
    try:
        return {"text": rendered(room, asked["source"], asked["variables"])}
    except TooLong:
        return {"refused": f"it makes a text of more than {LONGEST} characters"}
    except MemoryError:
        return {"refused": f"it needs more than {MEMORY // 2**20} MB"}
    except RecursionError:
        return {"refused": "it calls itself without an end"}
    except Exception as problem:  # a program of a stranger raises whatever it likes
        words = " ".join(str(problem).split()) or type(problem).__name__
        return {"refused": words[:SAID]}


def main() -> None:
    """Answer line by line until nobody asks any more."""
    seconds = float(sys.argv[1])
    sys.path.extend(sys.argv[2:])
    room = surroundings()
    limit()
    has_timer = hasattr(signal, "setitimer")
    for line in sys.stdin:
        if has_timer:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process, whatever it is doing
        said = answer(room, line)
        if has_timer:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
