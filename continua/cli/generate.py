"""``continua generate``: let the model of a run write."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

from continua import memory
from continua.cli.pareto import sizes_for
from continua.cli.sizes import check_which, parse_at
from continua.cli.tokens import context_of, token_table
from continua.errors import ConfigError
from continua.models import Greedy, Sample, Sampling, View
from continua.models.drafts import AUTO
from continua.recipes import tokens_of
from continua.session.tokens import texts as pieces
from continua.tasks import Tokeniser
from continua.training import Run

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
    opened = Run.open(path)
    model = opened.model(which).to(device)
    tokens = tokens_of(opened)
    view = model.at(sizes_for(Console(stderr=True), path, wish, device, trust))
    for index in range(writing.samples):
        if writing.samples > 1:
            typer.echo(f"{chr(10) if index else ''}--- sample {index + 1} of {writing.samples} ---")
        ids = written(model, tokens, prompt, view, writing, index)
        for piece in texts(tokens, ids) if streams else [tokens.decode(torch.tensor(list(ids)))]:
            typer.echo(piece, nl=False)  # a rich console would wrap lines
        typer.echo()


def written(model: Any, tokens: Tokeniser, prompt: str, view: View, writing: Writing, sample: int = 0) -> Iterator[int]:
    """The numbers of the prompt, then those of each token that is written behind it."""
    device = next(model.parameters()).device
    ids = tokens.encode(prompt)[None].to(device)
    if ids.shape[1] == 0:
        raise ConfigError("a prompt needs at least one token", got=repr(prompt), remedy="Give --prompt TEXT.")
    generator = torch.Generator(device).manual_seed(writing.seed + sample)
    table = token_table(model)
    room = None if table is None else context_of(table)
    yield from ids[0].tolist()
    yield from _numbers(view, ids, writing, room, generator)


def texts(tokens: Tokeniser, ids: Iterable[int]) -> Iterator[str]:
    """The text of each token as it comes; bytes of one character wait for one another."""
    return pieces(lambda some: tokens.decode(torch.tensor(some)), ids)


def _numbers(
    view: View, ids: torch.Tensor, writing: Writing, room: int | None, generator: torch.Generator
) -> Iterator[int]:
    """New tokens; behind the end of its positions a model goes on from the second half of what it sees."""
    count = writing.tokens
    draft = writing.draft_of(view)
    while count > 0:
        seen = ids if room is None or ids.shape[1] + count - 1 <= room else ids[:, -max(1, room // 2) :]
        piece = count if room is None else min(count, room - seen.shape[1] + 1)
        for token in view.stream(
            seen,
            tokens=piece,
            sampling=writing.sampling,
            generator=generator,
            compile=writing.compiles,
            draft=draft,
            ahead=writing.ahead,
        ):
            ids = torch.cat([ids, token[:, None]], 1)
            yield int(token)
        count -= piece
