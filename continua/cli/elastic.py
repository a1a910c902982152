"""``continua elastic``: calibrate a pretrained model, then let its native size teach smaller ones for some minutes."""

from collections.abc import Sequence
from pathlib import Path

import torch
import typer
from rich.console import Console

from continua.axes import Discretisation
from continua.cli.again import code_of
from continua.cli.drift import measured, show
from continua.cli.folders import Opened, open_model
from continua.cli.lift import working
from continua.cli.out import writing
from continua.cli.sizes import parse_at
from continua.cli.texts import batches, lines_of, read_texts
from continua.convert import distil
from continua.convert.distil import sizes_of
from continua.data import docstrings, package_docstrings, sentences
from continua.models import lift
from continua.training import Fitted, Run, Training


def run(
    folder: Path,
    file: Path | None,
    minutes: float,
    wishes: Sequence[str],
    place: Path | None,
    precision: str,
    device: torch.device,
) -> None:
    """Start, or go on where the run folder has a run; then measure, print and draw."""
    console = Console()
    Training(precision=precision)  # refuses one that is not known, before the work
    asked = [parse_at(wish) for wish in wishes]
    home = place or Path("runs/elastic") / folder.resolve().name
    opened = open_model(folder)
    _refuse_sizes(opened, asked)
    tokens = opened.tokens()
    with working(console, "reading texts"):
        known = read_texts(file, tokens)  # refuses what is no text, or too little
        lines = lines_of(file) if file is not None else _sentences()
    there = (home / "run.json").is_file()
    fitted = distil(
        opened.model.to(device),
        [line for line in lines if line not in set(known.held_out)],
        tokens=tokens,
        sizes=asked or None,
        minutes=minutes,
        precision=precision,
        run=Run.open(home) if there else home,
        device=str(device),
    )
    code = code_of(console, fitted)
    console.print(f"{fitted.ended}: {home}", markup=False, soft_wrap=True)
    if fitted.ended == "interrupted":
        console.print("Go on with the same command.", markup=False)
    if code:
        raise typer.Exit(code)
    opened.write_tokeniser(home)
    held_out = batches(known.held_out, tokens, fitted.model, device)
    name = folder.resolve().name
    found = measured(console, fitted.model, held_out, asked or _taught(fitted))
    show(console, found, f"{name}, taught: {len(known.held_out)} texts held out ({known.source})")
    drawn = home / "sizes.png"
    with writing(drawn):
        found.plot(drawn, f"{name} at other sizes, taught by its native one")
    console.print(
        f"written: {drawn}; continua discretise {home} OUT --at … writes one size.", markup=False, soft_wrap=True
    )


def _sentences() -> list[str]:
    """Of the docstrings of Python's library, without the files that are measured on, and of torch and numpy."""
    docs = docstrings()
    unseen = sentences(docs.validation)
    return list(sentences((*docs.train, *package_docstrings()), without=unseen))


def _refuse_sizes(opened: Opened, asked: Sequence[Discretisation]) -> None:
    """A size that a model has not is refused before the work."""
    model = lift(opened.model) if opened.is_discrete else opened.model
    for wish in asked:
        model.structure(model.settle(wish))


def _taught(fitted: Fitted) -> list[Discretisation]:
    """The sizes of the lessons, as the run remembers them."""
    return [] if fitted.run is None else list(sizes_of(fitted.run))
