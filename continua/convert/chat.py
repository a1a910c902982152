"""From the messages of a chat to one prompt, by the template that a folder of Hugging Face has."""

import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from continua.convert import rendering
from continua.convert.special_tokens import SpecialTokens
from continua.convert.tokenizer import SETTINGS, Pieces
from continua.data.tokens import Tokeniser
from continua.errors import CheckpointError, ConfigError
from continua.files import read_bytes
from continua.typing import Tensor

ALONE = "chat_template.jinja"
LARGEST = 256 * 2**10  # characters of a template: ten times the longest that is in use
PATIENCE = 60.0  # seconds, where the system does not end what takes too long
REMEDY = "Templates are programs of strangers: mend it, or use continua generate."


class Renderer:
    """A process that renders templates, started when it is needed; one that ends is started anew.

    ``seconds`` of the processor are what one text may take.
    """

    def __init__(self, seconds: float = rendering.SECONDS) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._ended: weakref.finalize[Any, Any] | None = None

    def render(self, source: str, variables: Mapping[str, Any]) -> str:
        """The text; what goes beyond the limits is refused, and so is what the template itself refuses."""
        line = json.dumps({"source": source, "variables": variables}).encode() + b"\n"
        with self._lock:
            child = self._running()
            said = self._answer(child, line)
            if said is None:
                self._end()
                got = f"one that takes more than {self.seconds:g} s or {rendering.MEMORY // 2**20} MB"
                raise ConfigError("a chat template ends soon", got=got, remedy=REMEDY)
        answered = json.loads(said)
        if "refused" in answered:
            remedy = "Change the messages, or use continua generate."
            raise ConfigError("the chat template refuses these messages", got=answered["refused"], remedy=remedy)
        return str(answered["text"])

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._child is None or self._child.poll() is not None:
            self._end()
            self._child = subprocess.Popen(
                [sys.executable, "-I", rendering.__file__, str(self.seconds), *_home_of_jinja()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the chat
            )
            self._ended = weakref.finalize(self, _end, self._child)
        return self._child

    def _answer(self, child: "subprocess.Popen[bytes]", line: bytes) -> bytes | None:
        """A line of the child; None where it ended, or takes too long."""
        if child.stdin is None or child.stdout is None:
            return None
        try:
            child.stdin.write(line)
            child.stdin.flush()
        except OSError:  # it has ended
            return None
        until = time.monotonic() + PATIENCE
        got = bytearray()
        while not got.endswith(b"\n"):
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(child.stdout.fileno(), 2**16) if ready else b""
            if not piece:
                return None
            got += piece
        return bytes(got)

    def _end(self) -> None:
        if self._ended is not None:
            self._ended()
        self._child = None


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a process that this one started, and wait for it."""
    child.kill()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # what was not written yet
                continue
    child.wait()


def _home_of_jinja() -> list[str]:
    """The folders of jinja2 and of what it needs; they are looked for, not imported."""
    found = []
    for name in ("jinja2", "markupsafe"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            remedy = "Install it: pip install jinja2."
            raise ConfigError("chat templates are rendered by jinja2", got=f"no {name}", remedy=remedy)
        found.append(str(Path(spec.origin).parents[1]))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class ChatTemplate:
    """A template of Hugging Face's kind, with the texts of the tokens that begin and end a text.

    It comes with a folder, so it is rendered in a process of its own, see ``rendering``.
    """

    source: str
    begin: str = ""
    end: str = ""

    @cached_property
    def _renderer(self) -> Renderer:
        return Renderer()

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of a chat, open for the answer."""
        if len(self.source) > LARGEST:
            got = f"{len(self.source):,} characters"
            raise ConfigError(f"a chat template has {LARGEST:,} characters at most", got=got, remedy=REMEDY)
        variables = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": True,
            "bos_token": self.begin,
            "eos_token": self.end,
            "tools": None,
            "documents": None,
        }
        return self._renderer.render(self.source, variables)

    def ids(self, messages: Sequence[Mapping[str, str]], tokens: Tokeniser) -> Tensor:
        """The tokens of a chat [n]; the template itself writes those that begin and end texts."""
        return encoded_part(self.prompt(messages), tokens)


def encoded_part(text: str, tokens: Tokeniser) -> Tensor:
    """Tokens of a text, to which nothing is added."""
    return tokens.encode_part(text) if isinstance(tokens, Pieces) else tokens.encode(text)


def template_in(folder: Path) -> ChatTemplate | None:
    """The template that a folder names: a file of its own, or in ``tokenizer_config.json``; None where there is none.

    Files that are damaged or strange have none: a server goes on without it.
    """
    try:
        said = json.loads(read_bytes(folder / SETTINGS)) if (folder / SETTINGS).is_file() else {}
        alone = read_bytes(folder / ALONE).decode("utf-8") if (folder / ALONE).is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    source = alone or said.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = [one for one in source if isinstance(one, dict) and one.get("name") == "default"]
        source = named[0].get("template") if named else None
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, _token(said.get("bos_token")), _token(said.get("eos_token")))


def require_template(folder: Path) -> ChatTemplate:
    """The template of a folder; a folder without one is refused."""
    found = template_in(folder)
    if found is None:
        got = f"none in {folder / SETTINGS} and no {ALONE}"
        remedy = "Use a model that was trained to talk; continua generate writes with any other."
        raise CheckpointError("a chat needs a template", got=got, remedy=remedy)
    return found


def chat_ends(template: ChatTemplate | None, tokens: Tokeniser, special: SpecialTokens) -> tuple[int, ...]:
    """The tokens that end an answer: those of the folder, and the one that ends a text of the template."""
    own: tuple[int, ...] = ()
    if template is not None and template.end and isinstance(tokens, Pieces):
        number = tokens.made.token_to_id(template.end)
        own = () if number is None else (int(number),)
    return tuple(dict.fromkeys((*special.ends, *own)))


def _token(said: Any) -> str:
    if isinstance(said, dict):
        said = said.get("content")
    return said if isinstance(said, str) else ""
