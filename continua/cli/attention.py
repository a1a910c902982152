"""``continua inspect PATH --attention "some text"``: what each head of a model does with a text."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from continua.axes import Discretisation
from continua.cli.out import writing
from continua.cli.tokens import context_of, token_table
from continua.convert.tokenizer import read_tokeniser
from continua.errors import ConfigError, ShapeError
from continua.lab import (
    PATTERNS,
    Head,
    attention_maps,
    head_table,
    plot_attention,
    plot_entropy,
    plot_patterns,
    plot_rollout,
    rollout,
)
from continua.models import EncoderDecoder, Transformer
from continua.recipes import tokens_of
from continua.training import Run

BEST = 3  # heads shown for each pattern


def run(console: Console, model: Any, where: "Path | Run", text: str, wish: Discretisation, out: Path) -> None:
    """Tokenise, record, print the table of heads and write the figures."""
    if isinstance(model, EncoderDecoder) or not isinstance(model, Transformer):
        remedy = "Use continua.lab.attention_maps with a source for an encoder–decoder."
        raise ConfigError("--attention reads one text with one stack", got=type(model).__name__, remedy=remedy)
    ids, labels = tokenise(where, text)
    table = token_table(model)
    room = None if table is None else context_of(table)
    if room is not None and len(ids) > room:
        console.print(f"The text is cut after {room} tokens, the model's context.")
        ids = ids[:room]
        labels = labels[:room]
    maps = attention_maps(model, torch.tensor([ids], device=next(model.parameters()).device), model.settle(wish))
    heads = head_table(maps)
    _print_summary(console, heads, labels)
    with writing(out):
        figures = [
            plot_attention(maps, out / "attention.png", labels),
            plot_patterns(heads, out / "patterns.png"),
            plot_entropy(maps, out / "entropy.png"),
            plot_rollout(rollout([one for one in maps if one.is_self]), out / "rollout.png", labels),
        ]
    console.print("Figures: " + ", ".join(str(figure) for figure in figures), soft_wrap=True, markup=False)


def tokenise(where: "Path | Run", text: str) -> tuple[list[int], list[str]]:
    """Token numbers of ``text`` and their names, by the run's own tokeniser or the ``tokenizer.json`` of a folder."""
    if not text.strip():
        raise ShapeError("--attention needs a text", got=repr(text), remedy='Write --attention "some text".')
    if isinstance(where, Run) and where.about.get("tokens") is not None:
        tokens = tokens_of(where)
        row = tokens.encode(text)
        return row.tolist(), [_shown(tokens.decode(row[i : i + 1])) for i in range(len(row))]
    path = where.folder if isinstance(where, Run) else where
    encoded = read_tokeniser(path).made.encode(text)
    if not encoded.ids:
        raise ShapeError("--attention needs a text", got=repr(text), remedy='Write --attention "some text".')
    return list(encoded.ids), [_readable(token) for token in encoded.tokens]


def _shown(piece: str) -> str:
    """A piece of text with its spaces and line ends to be seen."""
    return piece.replace(" ", "·").replace("\n", "↵")


def _readable(token: str) -> str:
    """The marks of byte-level and sentence-piece vocabularies for a space and a new line."""
    return token.replace("Ġ", "·").replace("▁", "·").replace("Ċ", "↵")


def _print_summary(console: Console, heads: Sequence[Head], labels: Sequence[str]) -> None:
    """The clearest heads of each pattern, then how many heads do what and how widely each depth looks."""
    console.print(f"{len(labels)} tokens: {' '.join(labels)}", soft_wrap=True, markup=False, highlight=False)
    best = Table("depth", "head", "entropy", *PATTERNS, "dominant", title="the clearest heads of each pattern")
    for pattern in PATTERNS:
        for head in sorted(heads, key=lambda one: -one.scores[pattern])[:BEST]:
            best.add_row(*_cells(head, pattern))
        best.add_section()
    console.print(best)
    counts = Counter(head.pattern for head in heads)
    kinds = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    console.print(f"{len(heads)} heads: {kinds}.", highlight=False)
    depths = Table("depth", "entropy", "least", "most", "patterns", title="by depth (entropy in nats)")
    for z in sorted({head.z for head in heads}):
        here = [head for head in heads if head.z == z]
        values = [head.entropy for head in here]
        kinds = ", ".join(f"{n} {name}" for name, n in Counter(head.pattern for head in here).most_common())
        mean = sum(values) / len(values)
        depths.add_row(f"{z:g}", f"{mean:.2f}", f"{min(values):.2f}", f"{max(values):.2f}", kinds)
    console.print(depths)


def _cells(head: Head, pattern: str) -> list[str]:
    scores = [f"{head.scores[name]:.2f}" for name in PATTERNS]
    shown = [
        f"[bold]{score}[/bold]" if name == pattern else score for name, score in zip(PATTERNS, scores, strict=True)
    ]
    return [f"{head.z:g}", str(head.head), f"{head.entropy:.2f}", *shown, head.pattern]
