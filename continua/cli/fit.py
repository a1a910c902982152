"""``continua fit``: train a recipe, or go on with a run."""

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import typer
from rich.console import Console

from continua.cli.again import code_of, goes_on
from continua.cli.recipes import dry_run
from continua.cli.sizes import parse_at
from continua.errors import ConfigError, ContinuaError
from continua.recipes import SHIPPED, changes_of
from continua.recipes.listing import from_file
from continua.recipes.runs import Prepared, prepare, prepare_again
from continua.settings.text import pairs
from continua.training import Run, Training
from continua.training.distributed import joined, leads
from continua.training.summaries import held_out_of


@dataclass(frozen=True)
class Options:
    """``again`` (resume, anew or ask) where the folder has a run, ``trust`` in what a run names, settings from a file
    (``config``), whether only to say what would happen (``dry``), and how many processes share a sample's tokens.
    """

    again: str = ""
    trust: bool = False
    config: Path | None = None
    dry: bool = False
    shard_tokens: int | None = None


def run(
    recipe: str,
    changes: list[str],
    text: Path | None,
    wish: str,
    folder: Path | None,
    resumed: Path | None,
    compiles: bool,
    device: torch.device,
    *,
    options: Options = Options(),  # noqa: B008  (frozen)
) -> None:
    """Start or resume, and say what to do next."""
    console = Console()
    settings: dict[str, object] = {
        **(from_file(options.config) if options.config is not None else {}),
        **pairs(changes),
    }
    recipe = recipe or str(settings.pop("recipe", ""))
    if text is not None:
        settings["text"] = str(text.absolute())
    if wish:
        settings["at"] = parse_at(wish)
    if compiles:
        settings["compile"] = True
    if options.shard_tokens is not None:
        settings["shard_tokens"] = options.shard_tokens
    if options.dry:
        if resumed is not None:
            remedy = "Look at the run with `continua inspect RUN`, or leave --dry-run out."
            raise ConfigError("--dry-run is for a run that starts", got="--resume", remedy=remedy)
        dry_run(_named(recipe), settings, _folder(recipe, folder))
        return
    with joined(str(device), _patience(settings, resumed or folder)) as world:
        with world.as_one():  # each machine has files of its own
            prepared = _prepared(console, recipe, settings, folder, resumed, options.again, options.trust)
        fitted = prepared.fit(str(device))
    code = code_of(console, fitted) if leads() else 0
    if not leads():  # one of many processes: the first one speaks
        return
    home = prepared.run.folder
    measured = [scores for line in fitted.history if (scores := held_out_of(line))]
    scores = measured[-1] if measured else {}
    shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
    console.print(f"{fitted.ended}: {home}" + (f"  held-out: {shown}" if shown else ""), markup=False)
    if fitted.ended == "interrupted":
        console.print(f"Go on with: {command_to_go_on(prepared.run)}", markup=False, soft_wrap=True)
    elif code == 0:
        _report(console, prepared)
        console.print(f"Look at it with: continua inspect {home}", markup=False)
    if code:
        raise typer.Exit(code)


def _prepared(
    console: Console,
    recipe: str,
    settings: dict[str, object],
    folder: Path | None,
    resumed: Path | None,
    again: str,
    trust: bool,
) -> Prepared:
    if resumed is not None:
        if again == "anew":
            remedy = "Say which: --resume RUN, or --folder RUN --again anew."
            raise ConfigError("--resume goes on with a run", got="--again anew", remedy=remedy)
        return prepare_again(resumed, settings, recipe, trust)
    folder = _folder(_named(recipe), folder)
    goes = goes_on(console, folder, again)
    if goes:
        return prepare_again(folder, settings, recipe, trust)
    return prepare(recipe, settings, folder, anew=goes is False)


def _patience(settings: Mapping[str, object], folder: Path | None) -> float:
    """How long processes wait for one another: as is asked for, or as the run that goes on has it."""
    said = settings.get("time_limit")
    if said is None and folder is not None:
        with suppress(ContinuaError):  # what is wrong with a run is said when it is prepared
            training = Run.open(folder).about.get("training")
            said = training.get("time_limit") if isinstance(training, dict) else None
    return float(said) if isinstance(said, int | float) and said > 0 else Training.time_limit


def _named(recipe: str) -> str:
    if not recipe:
        remedy = f"Shipped: {', '.join(SHIPPED)}. Or go on with a run: --resume RUN."
        raise ConfigError("fit needs a recipe", got="none", remedy=remedy)
    return recipe


def _folder(recipe: str, folder: Path | None) -> Path:
    return folder or Path("runs", Path(recipe.rpartition(":")[2] or recipe).stem)


def command_to_go_on(run: Run) -> str:
    """What goes on with a run; it names what the run itself may not: a recipe of one's own, a text outside of it."""
    words = ["continua", "fit"]
    recipe = str(run.about.get("recipe", ""))
    words += [recipe] if ":" in recipe else []
    words += ["--resume", str(run.folder)]
    text = changes_of(run).get("text")
    words += ["--text", text] if isinstance(text, str) and Path(text).is_absolute() else []
    return shlex.join(words)


def _report(console: Console, prepared: Prepared) -> None:
    """What the recipe says of its best model."""
    if prepared.bundle.report is not None:
        for line in prepared.bundle.report(prepared.run.model(), prepared.run.folder):
            console.print(line, markup=False, highlight=False)
