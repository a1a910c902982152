"""``continua lift`` and ``continua discretise``: a model to one with all sizes, and to a plain one of a chosen size."""

import warnings
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from continua.cli.folders import Opened, new_folder, open_model, refuse_taken
from continua.cli.sizes import parse_at
from continua.cli.texts import Texts, batches, read_texts
from continua.convert import discretise, elastic, to_hf
from continua.convert.huggingface import require_expressible
from continua.errors import ConfigError
from continua.lab import size_name
from continua.models import lift

ROWS = 32  # texts in a batch of calibration


def run_lift(folder: Path, out: Path, file: Path | None, raw: bool, device: torch.device) -> None:
    """Lift, calibrate unless ``raw``, and save."""
    console = Console()
    if raw and file is not None:
        raise ConfigError("--texts calibrates, --raw does not", got="both", remedy="Leave one of them out.")
    refuse_taken(out)
    opened = open_model(folder)
    _require_discrete(opened)
    made = lift(opened.model) if raw else calibrated(console, opened, file, device)[0]
    with new_folder(out) as place:
        made.cpu().save(place)
        opened.write_tokeniser(place)
    if raw:
        _say(console, "Not calibrated: exact at its own size alone.")
    _say(console, f"written: {out}; continua drift {out} measures its sizes, continua discretise writes one.")


def run_discretise(folder: Path, out: Path, wish: str, file: Path | None, hf: bool, device: torch.device) -> None:
    """Make a plain model of one size, and write it as ours or for Hugging Face."""
    console = Console()
    at = parse_at(wish)
    refuse_taken(out)
    opened = open_model(folder)
    if not opened.is_discrete and file is not None:
        remedy = f"Leave --texts out; continua drift {folder} --texts FILE measures it."
        raise ConfigError("--texts calibrates a plain model", got="one on continuous axes", remedy=remedy)
    if opened.is_discrete:
        rough = discretise(lift(opened.model).at(at))  # what cannot be made or written is refused before the work
        if hf:
            require_expressible(rough)
        model = calibrated(console, opened, file, device)[0]
    else:
        model = opened.model
    small = discretise(model.at(at)).cpu()
    said = _written(opened, small, out, hf)
    numbers = sum(parameter.numel() for parameter in small.parameters())
    _say(console, f"{size_name(model, at)}: {numbers:,} parameters")
    for sentence in said:
        _say(console, sentence)
    loads = "transformers loads it" if hf else f'ct.load("{out}") loads it'
    _say(console, f"written: {out}; {loads}.")


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _written(opened: Opened, small: Any, out: Path, hf: bool) -> list[str]:
    """Write the folder; what the library warns of."""
    with new_folder(out) as place, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if hf:
            bos, eos = opened.ends()
            to_hf(small, place, bos=bos, eos=eos)
        else:
            small.save(place)
        opened.write_tokeniser(place)
    return [str(one.message) for one in caught if one.category is UserWarning]


def _require_discrete(opened: Opened) -> None:
    if not opened.is_discrete:
        remedy = "It has other sizes already: continua drift measures them, continua discretise writes one."
        raise ConfigError(f"{opened.folder} is on continuous axes", got=opened.model.native, remedy=remedy)


def calibrated(console: Console, opened: Opened, file: Path | None, device: torch.device) -> tuple[Any, Texts]:
    """The model with continuous axes, calibrated, on the device; and the texts."""
    tokens = opened.tokens()
    model = opened.model.to(device)
    with working(console, "reading texts"):
        texts = read_texts(file, tokens)
        data = batches(texts.calibration, tokens, model, device, ROWS)
    with working(console, f"calibrating with {len(texts.calibration)} texts"):
        made = elastic(model, calibrate=data)
    _say(console, f"calibrated with {len(texts.calibration)} texts ({texts.source}), no training")
    return made, texts


def working(console: Console, what: str) -> Progress:
    """A bar for work whose length is not known, with the time it has taken."""
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True)
    bar.add_task(what, total=None)
    return bar
