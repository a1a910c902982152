"""``continua generate``: let the model of a run write."""

from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

from continua.cli.pareto import sizes_for
from continua.cli.tokens import context_of, token_table
from continua.errors import ConfigError
from continua.models import Greedy, Sample, View
from continua.recipes import tokens_of
from continua.tasks import Tokeniser
from continua.training import Run


def run(path: Path, prompt: str, wish: str, count: int, temperature: float, seed: int, which: str) -> None:
    """Load the model, read the prompt, write on."""
    if which not in ("best", "last"):
        raise ConfigError("--which is best or last", got=which, remedy="Leave it out for the best.")
    opened = Run.open(path)
    model = opened.model(which)
    tokens = tokens_of(opened)
    view = model.at(sizes_for(Console(stderr=True), path, wish))
    typer.echo(written(model, tokens, prompt, view, count, temperature, seed))  # a rich console would wrap lines


def written(model: Any, tokens: Tokeniser, prompt: str, view: View, count: int, temperature: float, seed: int) -> str:
    """The prompt and ``count`` tokens behind it."""
    ids = tokens.encode(prompt)[None]
    if ids.shape[1] == 0:
        raise ConfigError("a prompt needs at least one token", got=repr(prompt), remedy="Give --prompt TEXT.")
    sampling = Greedy() if temperature == 0 else Sample(temperature)
    generator = torch.Generator().manual_seed(seed)
    table = token_table(model)
    room = None if table is None else context_of(table)
    while count > 0:  # behind the end of its positions a model goes on from the second half of what it sees
        seen = ids if room is None or ids.shape[1] + count - 1 <= room else ids[:, -max(1, room // 2) :]
        piece = count if room is None else min(count, room - seen.shape[1] + 1)
        made = view.generate(seen, tokens=piece, sampling=sampling, generator=generator)
        ids = torch.cat([ids, made[:, seen.shape[1] :]], 1)
        count -= piece
    return tokens.decode(ids[0])
