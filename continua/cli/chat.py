"""``continua chat``: talk with a model whose folder has a chat template."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import typer

from continua.cli.folders import open_model
from continua.cli.generate import Author, Writing, texts, until_the_end
from continua.cli.sizes import parse_at
from continua.convert.chat import ChatTemplate, chat_ends, require_template
from continua.errors import ShapeError
from continua.models import Batch

ASKS = "you> "
STRANGE = "continua: a message is text in UTF-8; this line is left out."
ENDS = "A line is a message; Ctrl-D ends the chat, Ctrl-C an answer."


@dataclass
class Chat:
    """The messages so far, and who answers. Where they grow longer than the model reads, the oldest are left out."""

    author: Author
    template: ChatTemplate
    writing: Writing
    messages: list[dict[str, str]] = field(default_factory=list)
    answers: int = 0

    def ask(self, words: str) -> Iterator[str]:
        """Say something; the answer comes piece by piece, and is remembered as far as it came."""
        self.messages.append({"role": "user", "content": words})
        prompt = self._prompt()
        count = self.writing.tokens
        if self.author.room is not None:
            count = min(count, self.author.room - len(prompt) + 1)
        device = next(self.author.view.model.parameters()).device
        generator = torch.Generator(device).manual_seed(self.writing.seed + self.answers)
        self.answers += 1
        said: list[str] = []
        try:
            ids = until_the_end(self.author, Batch(prompt[None].to(device)), count, self.writing, generator)
            for piece in texts(self.author.tokens, ids):
                said.append(piece)
                yield piece
        finally:
            self.messages.append({"role": "assistant", "content": "".join(said)})

    def _prompt(self) -> torch.Tensor:
        """The tokens of the messages; the oldest exchange is left out until they fit."""
        kept = list(self.messages)
        first = 1 if kept[0]["role"] == "system" else 0
        room = self.author.room
        ids = self.template.ids(kept, self.author.tokens)
        while room is not None and len(ids) > room and len(kept) - first > 2:
            del kept[first : first + 2]
            ids = self.template.ids(kept, self.author.tokens)
        if len(ids) == 0 or (room is not None and len(ids) > room):
            self.messages.pop()
            got = f"{len(ids)} tokens for {room}"
            raise ShapeError("a message fits into what the model reads", got=got, remedy="Say it shorter.")
        self.messages = kept
        return ids


def run(path: Path, system: str, at: str, writing: Writing, device: torch.device) -> None:
    """Read messages line by line, from a terminal or a pipe, and print each answer as it is written."""
    opened = open_model(path)
    template = require_template(opened.folder)
    tokens = opened.tokens()
    model = opened.model.to(device).eval()
    ends = chat_ends(template, tokens, opened.special())
    chat = Chat(Author(model.at(parse_at(at)), tokens, ends), template, writing)
    if system:
        chat.messages.append({"role": "system", "content": system})
    talks = sys.stdin.isatty()
    if talks:
        typer.echo(ENDS, err=True)
    for line in _lines(talks):
        try:
            for piece in chat.ask(line):
                typer.echo(piece, nl=False)
        except ShapeError as long:
            typer.echo(f"continua: {long}", err=True)
        except KeyboardInterrupt:
            typer.echo(" …", nl=False)
        typer.echo()


def _lines(talks: bool) -> Iterator[str]:
    """What is typed or piped in, without empty lines, until it ends."""
    while True:
        try:
            line = input(ASKS) if talks else sys.stdin.readline()
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return
        except UnicodeDecodeError:
            typer.echo(STRANGE, err=True)
            continue
        if not talks and not line:
            return
        if not _is_text(line):
            typer.echo(STRANGE, err=True)
        elif line.strip():
            yield line.strip()


def _is_text(line: str) -> bool:
    """Whether it can be written in UTF-8: bytes that are no text come in as halves of pairs."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True
