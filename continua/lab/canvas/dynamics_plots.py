"""Pictures of what the probes found: cosines, energy, jumps, the ladder of R², spectra, and one layer iterated."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from continua.lab.figure import pyplot, save, whole_numbers
from continua.lab.probes.dynamics import Dynamics
from continua.lab.probes.iterate import Iteration, Substeps
from continua.lab.probes.ladder import RUNGS, Ladder
from continua.lab.probes.spectra import HeadSpectra
from continua.lab.probes.stack import ATTENTION

BLUE = "#0072b2"
ORANGE = "#d55e00"
GREEN = "#009e73"
PINK = "#cc79a7"
GREY = "0.45"
NAMES = {
    "identity": "identity SA, best β",
    "attention": "own QK and OV",
    "feed-forward": "+ feed-forward",
    "norm": "+ norm: the whole layer",
}
MOST_STEPS = 13  # states drawn as histograms; a deeper model is thinned


def plot_cosines(found: Dynamics, path: str | Path) -> Path:
    """The histograms of ⟨u_i, u_j⟩ over depth, raw and centred: each row is one depth, dark where many pairs are."""
    plt = pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(10.5, 4.6), layout="constrained", sharey=True)
    z = [state.z for state in found.states]
    both = (
        ("raw", [s.histogram for s in found.states], [s.cosine for s in found.states]),
        ("centred", [s.centred_histogram for s in found.states], [s.centred_cosine for s in found.states]),
    )
    image = None
    for panel, (name, counts, means) in zip(panels, both, strict=True):
        shares = np.array(counts, dtype=float)
        shares /= shares.sum(1, keepdims=True)
        edges = np.linspace(-1, 1, shares.shape[1] + 1)
        rows = np.arange(len(z) + 1) - 0.5
        image = panel.pcolormesh(edges, rows, shares, cmap="magma_r", vmin=0, vmax=np.quantile(shares, 0.99))
        panel.plot(means, range(len(z)), "o-", color=BLUE, ms=4, lw=1.4, label="mean")
        panel.set(xlabel="cosine of two tokens", title=name, ylim=(len(z) - 0.5, -0.5), xlim=(-1, 1))
        every = -(-len(z) // MOST_STEPS)
        panel.set_yticks(range(0, len(z), every), [f"{z[i]:g}" for i in range(0, len(z), every)])
    panels[0].set_ylabel("depth z")
    panels[0].legend(frameon=False, fontsize=9, loc="lower left")
    figure.colorbar(image, ax=panels, label="share of the pairs", pad=0.02)
    figure.suptitle("How alike the tokens of a text are, layer by layer")
    return save(plt, figure, path)


def plot_energy(found: Dynamics, path: str | Path) -> Path:
    """The energy E_β with its bounds, and effective rank and clusters, over depth."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    z = [state.z for state in found.states]
    left.plot(z, [state.energy for state in found.states], "o-", color=BLUE, ms=4)
    most = float(np.exp(found.beta)) / (2 * found.beta)
    left.axhline(most, color=GREY, ls="--", lw=1.2, label=r"all tokens alike: $e^\beta/2\beta$")
    left.axhline(1 / (2 * found.beta), color=GREY, ls=":", lw=1.2, label=r"many orthogonal tokens: $1/2\beta$")
    left.set(xlabel="depth z", ylabel=rf"energy $E_\beta$, $\beta={found.beta:g}$", title="Energy")
    left.legend(frameon=False, fontsize=9)
    lines = (
        ("effective rank", [s.rank for s in found.states], BLUE, "o-"),
        ("effective rank, centred", [s.centred_rank for s in found.states], BLUE, "o--"),
        (f"clusters at {found.angle:g} rad", [s.clusters for s in found.states], ORANGE, "s-"),
        (f"clusters at {found.angle:g} rad, centred", [s.centred_clusters for s in found.states], ORANGE, "s--"),
    )
    for name, values, colour, mark in lines:
        right.plot(z, values, mark, color=colour, ms=4, lw=1.3, label=name)
    most = found.tokens / found.texts
    right.axhline(most, color=GREY, ls="--", lw=1.2, label="tokens of a text")
    right.set(xlabel="depth z", ylabel="mean of the texts", title="Rank and clusters", ylim=(0, 1.08 * most))
    right.legend(frameon=False, fontsize=9)
    for panel in (left, right):
        panel.grid(alpha=0.25)
        whole_numbers(panel)
    return save(plt, figure, path)


def plot_jumps(found: Dynamics, path: str | Path) -> Path:
    """How far a layer turns its tokens, and the β that its heads seem to have."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    z = np.array([move.z for move in found.moves])
    jumps = np.array([(move.jump, move.least_jump, move.most_jump) for move in found.moves])
    left.fill_between(z, jumps[:, 1], jumps[:, 2], color=BLUE, alpha=0.15, lw=0, label="smallest to largest")
    left.plot(z, jumps[:, 0], "o-", color=BLUE, ms=4, label="mean")
    left.set(xlabel="layer", ylabel="angle [rad]", title="Jump of a token in one layer")
    left.set_ylim(bottom=0)
    left.legend(frameon=False, fontsize=9)
    places = np.concatenate([np.full(len(move.beta), move.z) for move in found.moves])
    values = np.concatenate([move.beta for move in found.moves])
    fits = np.concatenate([move.fit for move in found.moves])
    shown = right.scatter(places, values, c=fits, cmap="viridis", s=22, vmin=0, vmax=max(0.05, float(fits.max())))
    right.axhline(0, color=GREY, lw=1)
    right.set_yscale("symlog", linthresh=1.0)
    sizes = (1, 3, 10, 30, 100) if np.abs(values).max() > 1 else (0.1, 0.25, 0.5)
    ticks = [sign * size for sign in (-1, 1) for size in sizes]
    right.set_yticks([0, *(v for v in ticks if values.min() < v < values.max())])
    right.yaxis.set_major_formatter("{x:g}")
    right.yaxis.set_minor_locator(plt.NullLocator())
    right.set(xlabel="layer", ylabel=r"effective $\beta$ of a head", title=r"log attention over cosine: slope $\beta$")
    figure.colorbar(shown, ax=right, label="R² of that line", pad=0.02)
    for panel in (left, right):
        panel.grid(alpha=0.25)
        whole_numbers(panel)
    return save(plt, figure, path)


def plot_ladder(found: Ladder, path: str | Path) -> Path:
    """R² of the rungs in every layer, with both nulls."""
    plt = pyplot()
    figure, panel = plt.subplots(figsize=(min(14.0, max(7.5, 0.6 * len(found.layers) + 3)), 4.6), layout="constrained")
    places = np.arange(len(found.layers))
    width = 0.2
    for i, (name, colour) in enumerate(zip(RUNGS, (ORANGE, BLUE, GREEN, "0.75"), strict=True)):
        values = [layer[name].r2 for layer in found.layers]
        panel.bar(places + (i - 1.5) * width, values, width, color=colour, label=NAMES[name])
    drift = [layer.drift for layer in found.layers]
    shuffled = [layer[ATTENTION].shuffled for layer in found.layers]
    for values, colour, name in (
        (drift, "k", "the mean displacement"),
        (shuffled, PINK, "own QK and OV of other tokens"),
    ):
        panel.hlines(values, places - 2 * width, places + 2 * width, color=colour, lw=2, label=f"null: {name}")
    panel.set(xlabel="layer", ylabel="R² of the displacement", ylim=(0, 1.05), xlim=(-0.7, len(places) - 0.3))
    panel.set_xticks(places)
    panel.set_xticklabels([f"{layer.z:g}" for layer in found.layers])
    panel.grid(alpha=0.25, axis="y")
    panel.set_title("What explains a layer's displacements")
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", fontsize=9, frameon=False, ncols=3)
    return save(plt, figure, path)


def plot_spectra(heads: Sequence[HeadSpectra], path: str | Path) -> Path:
    """Eigenvalues of QK and OV of all heads, coloured by layer; below, the sign of each head over depth."""
    plt = pyplot()
    figure, panels = plt.subplots(2, 2, figsize=(10.5, 8.4), layout="constrained", height_ratios=(1.35, 1))
    layers = [head.layer for head in heads]
    places, axis = (layers, "layer") if max(layers) > 0 else ([head.head for head in heads], "head")
    colours = plt.cm.ScalarMappable(plt.Normalize(0, max(1, *layers)), plt.colormaps["viridis"])
    meanings = ("+1 like looks at like, −1 at unlike", "+1 attracts, −1 repels")
    for column, (name, title) in enumerate((("qk", r"QK  $\tau W_Q^\top W_K$"), ("ov", r"OV  $W_O W_V$"))):
        own = [getattr(head, name) for head in heads]
        _plane(panels[0][column], own, [colours.to_rgba(layer) for layer in layers])
        panels[0][column].set_title(f"{title}: eigenvalues")
        shares = [one.symmetric for one in own]
        below = panels[1][column]
        shown = below.scatter(places, [one.sign for one in own], c=shares, cmap="cividis", s=20, vmin=0.4, vmax=1)
        below.axhline(0, color=GREY, lw=1)
        below.set(xlabel=axis, ylim=(-1.08, 1.08), ylabel="sign of the symmetric part")
        below.set_title(meanings[column], fontsize=11)
        below.grid(alpha=0.25)
        whole_numbers(below)
        if column:
            figure.colorbar(shown, ax=panels[1].tolist(), label="share of the symmetric part", pad=0.02)
    if max(layers) > 0:
        figure.colorbar(colours, ax=panels[0].tolist(), label="layer", pad=0.02, ticks=plt.MaxNLocator(integer=True))
    return save(plt, figure, path)


def _plane(panel: Any, own: Sequence[Any], colours: Sequence[Any]) -> None:
    """Eigenvalues of many matrices; the few largest must not squeeze the rest, so roots of the lengths are drawn."""
    for one, colour in zip(own, colours, strict=True):
        values = np.array(one.eigenvalues)
        values = values / np.sqrt(np.maximum(np.abs(values), 1e-300))
        panel.plot(values.real, values.imag, ".", color=colour, ms=3.5, alpha=0.7)
    reach = 1.08 * max(np.sqrt(one.radius) for one in own)
    ticks = [v for v in (0.1, 0.3, 1, 3, 10, 30, 100) if np.sqrt(v) < reach][-3:]
    turn = np.linspace(0, 2 * np.pi, 181)
    for value in ticks:
        panel.plot(np.sqrt(value) * np.cos(turn), np.sqrt(value) * np.sin(turn), color="0.8", lw=0.8, zorder=0)
        panel.text(0, np.sqrt(value), f"{value:g}", fontsize=8, color=GREY, ha="center", va="bottom")
    panel.axhline(0, color="0.8", lw=0.8, zorder=0)
    panel.axvline(0, color="0.8", lw=0.8, zorder=0)
    panel.set(aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[])
    panel.set_xlabel("circles: |λ| (roots are drawn)", fontsize=9)


def plot_iteration(found: Iteration, parts: Sequence[Substeps], path: str | Path) -> Path:
    """One layer beyond its depth, and in parts of itself."""
    plt = pyplot()
    figure, panels = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    steps = [beat.step for beat in found.beats]
    lines = (
        ("jump [rad]", [beat.jump for beat in found.beats], ORANGE),
        ("mean cosine", [beat.cosine for beat in found.beats], BLUE),
        ("distance from the model's end", [beat.distance for beat in found.beats], GREEN),
        ("answers like the model's", [beat.agreement for beat in found.beats], PINK),
    )
    for name, values, colour in lines:
        if any(value is not None for value in values):
            known = [np.nan if value is None else value for value in values]
            panels[0].plot(steps, known, "-", color=colour, lw=1.6, label=name)
    panels[0].set(xlabel="layers", title="One layer, again and again", ylim=(0, None))
    panels[1].plot(steps, [beat.rank for beat in found.beats], color=BLUE, label="effective rank")
    name = f"clusters at {found.angle:g} rad"
    panels[1].plot(steps, [beat.clusters for beat in found.beats], color=ORANGE, label=name)
    panels[1].set(xlabel="layers", title="Does it collapse?")
    panels[1].set_ylim(bottom=0)
    for panel in panels[:2]:
        panel.axvline(found.depth, color=GREY, ls="--", lw=1.2, label="the model's own depth")
    shades = plt.colormaps["viridis"](np.linspace(0, 0.9, len(parts)))
    for one, shade in zip(parts, shades, strict=True):
        panels[2].plot(one.distances, ".-", color=shade, label=f"{one.parts} part{'s' if one.parts > 1 else ''}")
    panels[2].set(xlabel="layers", ylabel="distance from the model's own state", title="A layer in parts")
    for panel in panels:
        panel.grid(alpha=0.25)
        panel.legend(frameon=False, fontsize=8)
        whole_numbers(panel)
    return save(plt, figure, path)
