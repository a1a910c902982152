"""``continua inspect PATH --dynamics``: how the tokens of a text move through the layers of a model."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from continua.axes import Discretisation
from continua.cli.tokens import context_of, token_table
from continua.errors import CheckpointError, ConfigError, ContinuaError, ShapeError, install
from continua.flow import Fixed, LieTrotter
from continua.lab.canvas.dynamics_plots import (
    plot_cosines,
    plot_energy,
    plot_iteration,
    plot_jumps,
    plot_ladder,
    plot_spectra,
)
from continua.lab.probes.dynamics import Dynamics, Recording, dynamics, look
from continua.lab.probes.iterate import Iteration, Substeps, iterate, substeps
from continua.lab.probes.ladder import RUNGS, Ladder, ladder
from continua.lab.probes.spectra import HeadSpectra, spectra
from continua.lab.progress import ReportCount
from continua.models import Batch, EncoderDecoder
from continua.recipes import tokens_of
from continua.studio.real import real_model
from continua.tasks import Characters
from continua.training import Run

TEXTS = (
    "The cat sleeps on the sofa, and nobody in the whole house dares to wake it up before dinner.",
    "Stock markets fell sharply today, as investors grew nervous about rising interest rates.",
    "When water is heated it expands, and at a hundred degrees it begins to boil.",
    "She opened the old wooden box, found her grandfather's letters, and read them until the morning.",
)
REACTIONS = (
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "CC(=O)OC(C)=O.Nc1ccc(O)cc1.O>>CC(=O)Nc1ccc(O)cc1",
    "Brc1ccccc1.OB(O)c1ccccc1.C1CCOC1.O=C([O-])[O-].[Na+].[Na+]>>c1ccc(-c2ccccc2)cc1",
    "CCO.O=C(O)c1ccccc1.O=S(=O)(O)O>>CCOC(=O)c1ccccc1",
)
DRAWN = (4, 32)  # texts and tokens of random numbers, where there is no tokeniser
PRECISE = ("energy", "fit", "drift", "shuffled", *RUNGS)  # shown with three digits
FURTHER = 4  # times its depth that a shared layer is iterated


@dataclass(frozen=True)
class Findings:
    """All that is measured."""

    dynamics: Dynamics
    ladder: Ladder
    spectra: list[HeadSpectra]
    iteration: Iteration | None = None
    substeps: tuple[Substeps, ...] = ()


def run(
    console: Console,
    model: Any,
    where: "Path | Run",
    text: str | None,
    wish: Discretisation,
    out: Path,
    page: Path | None = None,
) -> None:
    """Read the text, measure with a bar, print the tables and write figures and numbers; ``page`` is for the studio."""
    if isinstance(model, EncoderDecoder):
        console.print("An encoder–decoder: its encoder is looked at.")
        model = model.encoder
    batch, labels = read(console, model, where, text)
    at = _layered(console, model, wish)
    with Progress(console=console, transient=True) as bar:
        shown = bar.add_task("running the model", total=None)
        seen = look(model.double(), batch, at)

        def watch(name: str) -> ReportCount:
            return lambda done, total: bar.update(shown, description=name, completed=done, total=total)

        found = measure(seen, watch)
        bar.update(shown, description="drawing", total=None)
        try:
            made = draw(found, out)
        except OSError as problem:
            got = problem.strerror or str(problem)
            remedy = "Choose a folder that can be written: --out FOLDER."
            raise ConfigError(f"the figures cannot be written to {out}", got=got, remedy=remedy) from problem
    if page is not None:
        name = where.folder.name if isinstance(where, Run) else where.resolve().name
        made = [*made, real_model(name, seen, found.dynamics, labels).save(page)]
    show(console, found, labels)
    console.print("Written: " + ", ".join(str(path) for path in made), soft_wrap=True, markup=False)


def measure(seen: Recording, watch: Callable[[str], ReportCount]) -> Findings:
    """Probes, ladder, spectra; and, where all layers are one, that layer iterated."""
    moved = dynamics(seen, watch=watch("states"))
    rungs = ladder(seen, watch=watch("ladder"))
    watch("spectra")(0, 1)
    heads = spectra(seen.stack.model, seen.stack.at)
    if not seen.stack.is_shared:
        return Findings(moved, rungs, heads)
    steps = FURTHER * len(seen.stack.steps)
    again = iterate(seen, steps=steps, watch=watch("iterating the layer"))
    return Findings(moved, rungs, heads, again, tuple(substeps(seen, watch=watch("parts of the layer"))))


# --- what the model reads --------------------------------------------------------------------------------------------


def read(console: Console, model: Any, where: "Path | Run", text: str | None) -> tuple[Batch, list[list[str]]]:
    """The texts as one batch, padded, and the names of their tokens."""
    table = token_table(model)
    if table is None:
        remedy = "From Python, continua.lab.dynamics(model, batch) takes any batch."
        raise ConfigError("--dynamics reads tokens", got=f"a model of {type(model.embed).__name__}", remedy=remedy)
    room = context_of(table)
    if text is not None and not text.strip():
        raise ShapeError("--dynamics needs a text", got=repr(text), remedy='Write --text "some text", or leave it out.')
    ids, names = _numbers(console, where, None if text is None else (text,), table.vocab)
    if room is not None and max(map(len, ids)) > room:
        console.print(f"Texts are cut after {room} tokens, the model's context.")
        ids = [row[:room] for row in ids]
        names = [row[:room] for row in names]
    length = max(map(len, ids))
    there = torch.tensor([[i < len(row) for i in range(length)] for row in ids])
    values = torch.tensor([row + [0] * (length - len(row)) for row in ids])
    return Batch(values, observed=None if bool(there.all()) else there), names


def _numbers(
    console: Console, where: "Path | Run", texts: Sequence[str] | None, vocabulary: int | None
) -> tuple[list[list[int]], list[list[str]]]:
    """Token numbers and names, by the run's own tokeniser, tokenizer.json, vocab.txt, or drawn at random."""
    if isinstance(where, Run):
        tokens = tokens_of(where)
        if texts is None:
            known = set(tokens.alphabet) if isinstance(tokens, Characters) else None
            texts = ["".join(c for c in text if known is None or c in known) for text in TEXTS]
        rows = [tokens.encode(text) for text in texts]
        return [row.tolist() for row in rows], [
            [tokens.decode(row[i : i + 1]) for i in range(len(row))] for row in rows
        ]
    if (where / "tokenizer.json").is_file() or (where / "vocab.txt").is_file():
        tokenizer, usual = _tokeniser(where)
        return _split(tokenizer, usual if texts is None else texts)
    if texts is not None:
        remedy = "Copy the tokenizer.json of the model into its folder, or leave --text out."
        raise CheckpointError("--text needs a tokeniser", got=f"no tokenizer.json in {where}", remedy=remedy)
    console.print(
        f"No tokeniser in {where}: {DRAWN[0]} texts of {DRAWN[1]} random tokens are read.", soft_wrap=True, markup=False
    )
    drawn = torch.randint(vocabulary or 1, DRAWN, generator=torch.Generator().manual_seed(0)).tolist()
    return drawn, [[str(number) for number in row] for row in drawn]


def _split(tokenizer: Any, texts: Sequence[str]) -> tuple[list[list[int]], list[list[str]]]:
    read = [tokenizer(text) for text in texts]
    if any(not ids for ids, _ in read):
        raise ShapeError("--dynamics needs a text", got="one without tokens", remedy="Use words the tokeniser knows.")
    return [ids for ids, _ in read], [names for _, names in read]


def _tokeniser(folder: Path) -> tuple[Callable[[str], tuple[list[int], list[str]]], Sequence[str]]:
    """From a text to numbers and names; and the texts to read when none is given."""
    vocabulary = folder / "vocab.txt"
    words = vocabulary.read_text(encoding="utf-8").split("\n") if vocabulary.is_file() else []
    usual = REACTIONS if ">>" in words else TEXTS
    if not (folder / "tokenizer.json").is_file() and not any(word.startswith("##") for word in words):
        return _longest({word: i for i, word in enumerate(words) if word}), usual
    try:
        from tokenizers import BertWordPieceTokenizer, Tokenizer
    except ImportError as missing:
        raise ContinuaError("--dynamics tokenises text", remedy=f"Install the extra: {install('text')}.") from missing
    file = folder / "tokenizer.json" if (folder / "tokenizer.json").is_file() else vocabulary
    try:
        made = Tokenizer.from_file(str(file)) if file.suffix == ".json" else BertWordPieceTokenizer(str(file))
    except Exception as unreadable:  # the package raises bare Exception
        got = str(unreadable)
        remedy = "Fetch the file again."
        raise CheckpointError(f"{file.name} is not a tokeniser", got=got, remedy=remedy) from unreadable
    made.no_padding()

    def split(text: str) -> tuple[list[int], list[str]]:
        encoded = made.encode(text)
        return list(encoded.ids), list(encoded.tokens)

    return split, usual


def _longest(numbers: dict[str, int]) -> Callable[[str], tuple[list[int], list[str]]]:
    """The longest word of a plain vocabulary at each place (SMILES); [CLS] before and [SEP] behind, where they are."""
    most = max(map(len, numbers), default=1)

    def split(text: str) -> tuple[list[int], list[str]]:
        names = [word for word in ("[CLS]",) if word in numbers]
        place = 0
        while place < len(text):
            ends = range(min(len(text), place + most), place, -1)
            word = next((text[place:end] for end in ends if text[place:end] in numbers), None)
            if word is None:
                remedy = "Use words of its vocab.txt."
                raise ShapeError("the model does not know this character", got=repr(text[place]), remedy=remedy)
            names.append(word)
            place += len(word)
        names += [word for word in ("[SEP]",) if word in numbers]
        return [numbers[name] for name in names], names

    return split


def _layered(console: Console, model: Any, wish: Discretisation) -> Discretisation:
    """Lie–Trotter steps, which layers are; a model with another solver is read with as many of those."""
    at: Discretisation = model.settle(wish)
    if isinstance(at.z, Fixed) and at.z.solver == LieTrotter():
        return at
    steps = at.z.steps if isinstance(at.z, Fixed) else max(1, round(model.axes.z.end - model.axes.z.start))
    console.print(f"Depth is walked in {steps} layers (Lie–Trotter steps) instead of {at.z}.")
    return at.replace(z=Fixed(steps, LieTrotter()))


# --- what is printed and written -------------------------------------------------------------------------------------


def show(console: Console, found: Findings, labels: Sequence[Sequence[str]]) -> None:
    """The tables: states and moves, the ladder, spectra, and the iterated layer."""
    moved = found.dynamics
    sinks = sorted({labels[b][t] for b, t in moved.sinks})
    left_out = f"; left out as attention sinks: {len(moved.sinks)} ({', '.join(sinks)})" if sinks else "; no sinks"
    kind = "post-norm" if moved.post_norm else "pre-norm"
    said = f"{moved.tokens} tokens of {moved.texts} texts, {kind}{left_out}"
    console.print(said, soft_wrap=True, markup=False, highlight=False)
    table = Table(title=f"tokens over depth (energy at β={moved.beta:g}, clusters at {moved.angle:g} rad)")
    _fill(table, moved.rows(), {"centred cosine": "centred", "beta": "β", "fit": "R² of β"})
    console.print(table)
    table = Table(title="what explains a layer's displacements (R²)")
    _fill(table, found.ladder.rows(), {"drift": "null: drift", "shuffled": "null: shuffled", "beta": "β of identity"})
    console.print(table)
    names = ("layer", "QK radius", "symmetric", "sign", "OV radius", "symmetric", "sign")
    table = Table(*names, title="spectra (medians of the heads)")
    for layer in sorted({head.layer for head in found.spectra}):
        own = [head for head in found.spectra if head.layer == layer]
        cells = [(head.qk.radius, head.qk.symmetric, head.qk.sign) for head in own]
        other = [(head.ov.radius, head.ov.symmetric, head.ov.sign) for head in own]
        values = [statistics.median(column) for each in (cells, other) for column in zip(*each, strict=True)]
        table.add_row("all" if found.iteration else str(layer), *(f"{value:.2f}" for value in values))
    console.print(table)
    if found.iteration is not None:
        _show_iteration(console, found.iteration, found.substeps)


def _fill(table: Table, rows: Sequence[dict[str, Any]], names: dict[str, str]) -> None:
    for key in rows[0]:
        table.add_column(names.get(key, key), justify="right")
    for row in rows:
        table.add_row(*(_cell(key, value) for key, value in row.items()))


def _cell(key: str, value: float | int | None) -> str:
    if value is None:
        return ""
    return f"{value:g}" if key in ("z", "step") else f"{value:.{3 if key in PRECISE else 2}f}"


def _show_iteration(console: Console, found: Iteration, parts: Sequence[Substeps]) -> None:
    table = Table(title=f"the one layer, beyond its {found.depth} times")
    chosen = [beat for beat in found.rows() if int(beat["step"] or 0) % max(1, found.depth // 2) == 0]
    _fill(table, chosen, {"centred_cosine": "centred"})
    console.print(table)
    table = Table(
        "parts", "distance at the end", "change", "cosine", "clusters", "agreement", title="the layer in parts"
    )
    for one in parts:
        change, agreement = ("" if v is None else f"{v:.3f}" for v in (one.change, one.agreement))
        cells = (f"{one.distances[-1]:.3f}", change, f"{one.cosine:.2f}", f"{one.clusters:.1f}", agreement)
        table.add_row(str(one.parts), *cells)
    console.print(table)


def draw(found: Findings, out: Path) -> list[Path]:
    """The figures and dynamics.json."""
    moved = found.dynamics
    made = [
        plot_cosines(moved, out / "cosines.png"),
        plot_energy(moved, out / "energy.png"),
        plot_jumps(moved, out / "jumps.png"),
        plot_ladder(found.ladder, out / "ladder.png"),
        plot_spectra(found.spectra, out / "spectra.png"),
    ]
    numbers: dict[str, Any] = {"dynamics": moved.plain(), "ladder": found.ladder.plain()}
    numbers["spectra"] = [head.plain() for head in found.spectra]
    if found.iteration is not None:
        made.append(plot_iteration(found.iteration, found.substeps, out / "iteration.png"))
        numbers["iteration"] = found.iteration.plain()
    path = out / "dynamics.json"
    path.write_text(json.dumps(numbers) + "\n", encoding="utf-8")
    return [*made, path]
