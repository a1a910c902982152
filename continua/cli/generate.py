"""``continua generate``: let the model of a run write."""

from pathlib import Path

import torch
from rich.console import Console

from continua.cli.inspect import parse_at
from continua.errors import ConfigError
from continua.models import Greedy, Sample
from continua.recipes import tokens_of
from continua.training import Run


def run(path: Path, prompt: str, wish: str, count: int, temperature: float, seed: int, which: str) -> None:
    """Load the model, read the prompt, write on."""
    if which not in ("best", "last"):
        raise ConfigError("--which is best or last", got=which, remedy="Leave it out for the best.")
    opened = Run.open(path)
    model, tokens = opened.model(which), tokens_of(opened)
    ids = tokens.encode(prompt)[None]
    if ids.shape[1] == 0:
        raise ConfigError("a prompt needs at least one token", got=repr(prompt), remedy="Give --prompt TEXT.")
    sampling = Greedy() if temperature == 0 else Sample(temperature)
    generator = torch.Generator().manual_seed(seed)
    view = model.at(parse_at(wish))
    written = view.generate(ids, tokens=count, sampling=sampling, generator=generator)
    Console().print(tokens.decode(written[0]), markup=False, highlight=False)
