"""``continua generate``: let the model of a run, or of a folder, write."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

from continua import memory
from continua.cli.folders import open_model
from continua.cli.pareto import sizes_for
from continua.cli.sizes import check_which, parse_at
from continua.cli.tokens import token_table
from continua.convert.hub import located
from continua.convert.tokenizer import read_tokeniser
from continua.errors import ConfigError
from continua.models import Batch, EncoderDecoder, Greedy, Sample, Sampling, View
from continua.models.drafts import AUTO
from continua.recipes import tokens_of
from continua.serve.writing import TextWriter
from continua.tasks import Tokeniser
from continua.training import Run
from continua.training.run import ABOUT

SEEDS = 2**63
PER_TOKEN = 16  # bytes: a row of tokens and the one that it grows into


@dataclass(frozen=True)
class Writing:
    """How much to write and how: the options of the command, checked."""

    tokens: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    samples: int = 1
    draft: str = ""
    ahead: int = 4
    compiles: bool = False

    def __post_init__(self) -> None:
        for name, count in (("--tokens", self.tokens), ("--samples", self.samples), ("--ahead", self.ahead)):
            if count < 1:
                raise ConfigError(f"{name} counts from one", got=count, remedy=f"Give {name} 1 or more.")
        memory.require(PER_TOKEN * self.tokens, f"a text of {self.tokens} tokens", "Ask for fewer: --tokens 200.")
        if not 0 <= self.seed <= SEEDS - self.samples:
            raise ConfigError("a seed is a whole number from 0 on", got=self.seed, remedy="Leave it out for 0.")
        Sample(self.temperature or 1.0, self.top_k, self.top_p)  # refuses what is out of range
        if self.temperature == 0 and (self.top_k is not None or self.top_p < 1 or self.samples > 1):
            got = "--temperature 0 with --top-k, --top-p or --samples"
            raise ConfigError("temperature 0 always takes the likeliest token", got=got, remedy="Leave one out.")

    @property
    def sampling(self) -> Sampling:
        """How a token is chosen."""
        return Greedy() if self.temperature == 0 else Sample(self.temperature, self.top_k, self.top_p)

    def draft_of(self, view: View) -> Any:
        """What writes ahead of a view: nothing, a choice by measurement, or a size of the same model."""
        if not self.draft or self.draft == AUTO:
            return self.draft or None
        return view.model.at(parse_at(self.draft))


@dataclass(frozen=True)
class Author:
    """What writes: a model on one discretisation, its tokeniser, the tokens that end a text, and those with which the
    decoder beside an encoder starts (none: a language model, which goes on with the prompt)."""

    view: View
    tokens: Tokeniser
    ends: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    @property
    def room(self) -> int | None:
        """How many tokens the positions of the decoder have room for; None where they do not end."""
        found: int | None = self.view.model.flows[-1].embed.room
        return found


def run(
    path: Path,
    prompt: str,
    wish: str,
    which: str,
    writing: Writing,
    streams: bool,
    device: torch.device,
    trust: bool = False,
) -> None:
    """Load the model, read the prompt, write on."""
    check_which(which)
    place = located(path)
    if (place / ABOUT).is_file():
        author = _of_run(place, wish, which, device, trust)
    else:
        author = _of_folder(place, wish, which, device)
    for index in range(writing.samples):
        if writing.samples > 1:
            typer.echo(f"{chr(10) if index else ''}--- sample {index + 1} of {writing.samples} ---")
        ids = written(author, prompt, writing, index)
        for piece in texts(author.tokens, ids) if streams else [author.tokens.decode(torch.tensor(list(ids)))]:
            typer.echo(piece, nl=False)  # a rich console would wrap lines
        typer.echo()


def _of_run(path: Path, wish: str, which: str, device: torch.device, trust: bool) -> Author:
    opened = Run.open(path)
    model = opened.model(which).to(device)
    tokens = read_tokeniser(path) if opened.about.get("tokens") is None else tokens_of(opened)
    return Author(model.at(sizes_for(Console(stderr=True), path, wish, device, trust)), tokens)


def _of_folder(path: Path, wish: str, which: str, device: torch.device) -> Author:
    """A folder of Hugging Face or of ``model.save``."""
    if which != "best":
        raise ConfigError("--which chooses a checkpoint of a run", got=path, remedy="Leave it out.")
    opened = open_model(path)
    model = opened.model.to(device).eval()
    found = opened.special()
    if not isinstance(model, EncoderDecoder):
        return Author(model.at(parse_at(wish)), opened.tokens(), found.ends)
    if token_table(model.encoder) is None:
        remedy = "A Whisper hears: continua transcribe FOLDER FILE.wav."
        raise ConfigError("a prompt is read by an encoder of text", got=f"{path}, which reads none", remedy=remedy)
    if not found.start:
        remedy = "Copy the generation_config.json of the model into its folder."
        raise ConfigError("a decoder beside an encoder starts with decoder_start_token_id", got="none", remedy=remedy)
    return Author(model.at(parse_at(wish)), read_tokeniser(opened.folder), found.ends, found.start)


def written(author: Author, prompt: str, writing: Writing, sample: int = 0) -> Iterator[int]:
    """The numbers of the prompt, then those of each token that is written behind it.

    Beside an encoder the prompt is the source, and the numbers are those of the answer alone.
    """
    device = next(author.view.model.parameters()).device
    ids = author.tokens.encode(prompt)[None].to(device)
    if ids.shape[1] == 0:
        raise ConfigError("a prompt needs at least one token", got=repr(prompt), remedy="Give --prompt TEXT.")
    generator = torch.Generator(device).manual_seed(writing.seed + sample)
    if author.start:
        yield from _answer(author, ids, writing, generator)
    else:
        yield from ids[0].tolist()
        yield from _numbers(author, ids, writing, generator)


def texts(tokens: Tokeniser, ids: Iterable[int]) -> Iterator[str]:
    """The text of each token as it comes; bytes of one character wait for one another."""
    writer = TextWriter(tokens)
    for token in ids:
        piece = writer.add([token])
        if piece:
            yield piece
    rest = writer.end()
    if rest:
        yield rest


def _answer(author: Author, source: torch.Tensor, writing: Writing, generator: torch.Generator) -> Iterator[int]:
    """What a decoder answers to a source."""
    start = torch.tensor([author.start], device=source.device)
    asked = Batch(start, source=Batch(source))
    count = writing.tokens
    if author.room is not None:
        count = max(1, min(count, author.room - start.shape[1] + 1))
    yield from until_the_end(author, asked, count, writing, generator)


def _numbers(author: Author, ids: torch.Tensor, writing: Writing, generator: torch.Generator) -> Iterator[int]:
    """New tokens; behind the end of its positions a model goes on from the second half of what it sees."""
    count = writing.tokens
    room = author.room
    while count > 0:
        seen = ids if room is None or ids.shape[1] + count - 1 <= room else ids[:, -max(1, room // 2) :]
        piece = count if room is None else min(count, room - seen.shape[1] + 1)
        new = list[int]()
        for token in until_the_end(author, Batch(seen), piece, writing, generator):
            new.append(token)
            yield token
        if len(new) < piece:
            return  # the text has ended
        ids = torch.cat([ids, torch.tensor([new], device=ids.device)], 1)
        count -= piece


def until_the_end(
    author: Author, prompt: Batch, count: int, writing: Writing, generator: torch.Generator
) -> Iterator[int]:
    """Up to ``count`` tokens; the one that ends the text is not among them."""
    for token in author.view.stream(
        prompt,
        tokens=count,
        sampling=writing.sampling,
        stop=author.ends,
        generator=generator,
        compile=writing.compiles,
        draft=writing.draft_of(author.view),
        ahead=writing.ahead,
    ):
        if int(token) in author.ends:
            return
        yield int(token)
