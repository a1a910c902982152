"""``continua inspect``: what a saved model is."""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from continua.axes import Discretisation
from continua.cli.run import show
from continua.cli.sizes import parse_at
from continua.convert.folders import model_in
from continua.errors import ConfigError
from continua.fields import Expansion, Neural, Separable
from continua.models import EncoderDecoder, Transformer, TwoTowers
from continua.operators import Beside, Operator, PreNorm, Project, Skip


def run(path: Path, wish: str, text: str | None, out: Path, device: torch.device, trust: bool = False) -> None:
    """Load the folder and print its tables, or what its attention does with ``text``."""
    console = Console()
    found = model_in(path)
    opened = found.run
    model = found.model.to(device)
    at = parse_at(wish) if opened is None else _asked(console, found.folder, wish, device, trust)
    if text is not None:
        from continua.cli.attention import run as look

        look(console, model, opened or found.folder, text, at, out)
        return
    for name, side in _sides(model):
        _describe(console, name, side, at)
    if opened is not None and wish:
        from continua.cli.pareto import WINDOWS, measure
        from continua.cli.pareto import show as table

        table(console, measure(console, opened, [Discretisation(), at], WINDOWS, device, trust))
    elif opened is not None:
        show(console, opened, model, trust)


def _sides(model: Any) -> list[tuple[str, Any]]:
    """The flows of a model by their names; one alone has none."""
    if isinstance(model, EncoderDecoder):
        return [("encoder", model.encoder), ("decoder", model.decoder)]
    if isinstance(model, TwoTowers):
        return [("texts", model.texts), ("images", model.images)]
    return [("", model)]


def look_closer(
    path: Path,
    wish: str,
    asked: bool,
    text: str | None,
    out: Path,
    device: torch.device,
    trust: bool = False,
    *,
    page: Path | None = None,
) -> None:
    """Load the folder and measure, in float64 on the processor, how tokens move through its layers."""
    from continua.cli.dynamics import run as measure

    if not asked:
        got = "--for-page alone" if text is None else "--text alone"
        raise ConfigError("--text and --for-page belong to --dynamics", got=got, remedy="Add --dynamics.")
    console = Console()
    found = model_in(path)
    at = parse_at(wish) if found.run is None else _asked(console, found.folder, wish, device, trust)
    measure(console, found.model, found.run or found.folder, text, at, out, page)


def _asked(console: Console, path: Path, wish: str, device: torch.device, trust: bool) -> Discretisation:
    """A size, or the best one within a budget."""
    from continua.cli.pareto import sizes_for

    return sizes_for(console, path, wish, device, trust)


def _describe(console: Console, name: str, model: Transformer, wish: Discretisation) -> None:
    count = sum(parameter.numel() for parameter in model.parameters())
    title = f"{name} " if name else ""
    console.print(f"[bold]{title}Transformer[/bold]  {count:,} parameters, {next(model.parameters()).dtype}")
    view = model.at(wish)
    grid = Table("axis", "grid", title="discretisation" + ("" if view.discretisation == model.native else " (asked)"))
    for line in str(view).splitlines():
        grid.add_row(*line.split("  ", 1))
    console.print(grid)
    parts = Table("part", "kind", "made of", title="field: flows and projections")
    for index, part in enumerate(model.block):
        parts.add_row(str(index), "flow" if part.is_flow else "projection", _made_of(part))
    console.print(parts)
    table = Table("field", "functions of", "basis", "numbers", title="weights")
    for place, module in model.named_modules():
        if isinstance(module, Expansion):
            bases = sorted({type(basis).__name__ for basis in module.bases.values()})
            numbers = sum(parameter.numel() for parameter in module.parameters())
            table.add_row(place, " ".join(module.letters), ", ".join(bases), f"{numbers:,}")
        elif isinstance(module, Neural | Separable):
            numbers = sum(parameter.numel() for parameter in module.parameters())
            table.add_row(place, " ".join(module.letters), type(module).__name__, f"{numbers:,}")
    console.print(table)


def _made_of(part: Operator) -> str:
    """The operators of a part, outermost first."""
    if isinstance(part, Skip):
        return f"{part.gamma:g}·x + {_made_of(part.inner)}"
    if isinstance(part, PreNorm):
        return f"{_made_of(part.inner)} ∘ {_made_of(part.norm)}"
    if isinstance(part, Beside):
        return f"({_made_of(part.first)} + {_made_of(part.second)})"
    if isinstance(part, Project):
        return _made_of(part.norm)
    return type(part).__name__
