"""Pictures of attention, drawn without a screen and saved to files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from continua.errors import ShapeError
from continua.lab.figure import pyplot, save, whole_numbers
from continua.lab.probes.attention import AttentionMap, entropy
from continua.lab.probes.patterns import MIXED, PATTERNS, Head
from continua.typing import Float, Tensor

MOST_LABELS = 40  # beyond this many tokens every second, third, … is named
COLOURS = {"identity": "#0072b2", "previous": "#e69f00", "local": "#009e73", "global": "#cc79a7", MIXED: "#d9d9d9"}


def plot_attention(
    maps: Sequence[AttentionMap], path: str | Path, labels: Sequence[str] | None = None, sample: int = 0
) -> Path:
    """Heat maps of every head (columns) at every depth (rows): queries downwards, sources to the right."""
    plt = pyplot()
    kept, names = _shown(maps[0], labels, sample)
    depth = len(maps)
    heads = maps[0].weights.shape[1]
    size = max(1.3, 0.115 * min(len(names), MOST_LABELS))
    figure, panels = plt.subplots(
        depth, heads, figsize=(size * heads + 2.2, size * depth + 1.6), layout="constrained", squeeze=False
    )
    image = None
    for row, one in enumerate(maps):
        for column in range(heads):
            panel = panels[row][column]
            values = one.weights[sample, column][kept][:, kept].detach().float().cpu().numpy()
            image = panel.imshow(values, vmin=0, vmax=1, cmap="magma_r", aspect="equal", interpolation="nearest")
            panel.set(xticks=[], yticks=[])
            for edge in panel.spines.values():
                edge.set(color="0.8", linewidth=0.6)
            if row == 0:
                panel.set_title(f"head {column}", fontsize=9)
            if row == depth - 1:
                _name(panel, "x", names, size)
        _name(panels[row][0], "y", names, size)
        panels[row][0].set_ylabel(f"z = {one.z:g}", fontsize=10)
    bar = figure.colorbar(image, ax=panels, shrink=0.6, aspect=40, pad=0.01)
    bar.set_label("attention weight of a source (columns) for a query (rows)", fontsize=9)
    figure.suptitle("Attention of every head at every depth", fontsize=13)
    return save(plt, figure, path)


def plot_entropy(maps: Sequence[AttentionMap], path: str | Path) -> Path:
    """The mean entropy of each head over depth, their mean, and what uniform attention would have."""
    plt = pyplot()
    z = [one.z for one in maps]
    values = torch.stack([one.mean(entropy(one)) for one in maps]).float().cpu().numpy()
    most = [float(one.mean(_uniform_entropy(one))[0]) for one in maps]
    figure, panel = plt.subplots(figsize=(7, 4.4), layout="constrained")
    colours = plt.colormaps["viridis"]
    for head in range(values.shape[1]):
        share = head / max(1, values.shape[1] - 1)
        panel.plot(z, values[:, head], "o-", color=colours(0.92 * share), ms=4, lw=0.9, alpha=0.75)
    panel.plot(z, values.mean(1), "k-", lw=2.4, label="mean over heads")
    panel.plot(z, most, "--", color="0.45", lw=1.4, label="uniform attention")
    lines = plt.cm.ScalarMappable(plt.Normalize(0, max(1, values.shape[1] - 1)), colours)
    figure.colorbar(lines, ax=panel, label="head", pad=0.02, ticks=plt.MaxNLocator(integer=True))
    panel.set(xlabel="depth z", ylabel="entropy  −∫ α log α dμ(s)   [nats]", title="How widely each head looks")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=9, frameon=False)
    whole_numbers(panel)
    return save(plt, figure, path)


def plot_rollout(
    rolled: Float[Tensor, "b t s"], path: str | Path, labels: Sequence[str] | None = None, sample: int = 0
) -> Path:
    """The rollout of one sample: how much of each source reaches each token at the end of depth."""
    from matplotlib import colors

    plt = pyplot()
    names = [str(i) for i in range(rolled.shape[-1])] if labels is None else list(labels)
    if len(names) > rolled.shape[-1]:
        remedy = "Give one label for each token."
        raise ShapeError(f"{rolled.shape[-1]} tokens need as many labels", got=len(names), remedy=remedy)
    values = rolled[sample, : len(names), : len(names)].detach().float().cpu().numpy()
    size = max(4.5, 0.3 * len(names))
    figure, panel = plt.subplots(figsize=(size + 1.6, size + 0.6), layout="constrained")
    # a root scale: one token that everybody looks at must not bleach the rest
    scale = colors.PowerNorm(0.5, vmin=0.0, vmax=float(values.max()))
    image = panel.imshow(values, norm=scale, cmap="magma_r", interpolation="nearest")
    _name(panel, "x", names, size)
    _name(panel, "y", names, size)
    panel.set(
        xlabel="source", ylabel="token at the end of depth", title=r"Attention rollout  $\tilde{A}_L\cdots\tilde{A}_1$"
    )
    figure.colorbar(image, ax=panel, shrink=0.8, label="share of the source (rows sum to one)")
    return save(plt, figure, path)


def plot_patterns(table: Sequence[Head], path: str | Path) -> Path:
    """The dominant pattern of every head at every depth, with its score in percent; for mixed heads the best one's."""
    plt = pyplot()
    places = sorted({(head.z, head.name) for head in table})
    heads = 1 + max(head.head for head in table)
    figure, panel = plt.subplots(figsize=(0.55 * heads + 2.6, 0.55 * len(places) + 1.5), layout="constrained")
    for head in table:
        row = places.index((head.z, head.name))
        box = plt.Rectangle((head.head - 0.48, row - 0.48), 0.96, 0.96, color=COLOURS[head.pattern], lw=0)
        panel.add_patch(box)
        best = max(PATTERNS, key=lambda name: head.scores[name]) if head.pattern == MIXED else head.pattern
        score = f"{100 * head.scores[best]:.0f}"
        colour = COLOURS[best] if head.pattern == MIXED else "white"
        panel.text(head.head, row, score, ha="center", va="center", fontsize=8, color=colour)
    panel.set(xlim=(-0.6, heads - 0.4), ylim=(len(places) - 0.4, -0.6), aspect="equal", xlabel="head", ylabel="depth z")
    panel.set(xticks=range(heads), yticks=range(len(places)), yticklabels=[f"{z:g}" for z, _ in places])
    panel.tick_params(length=0, labelsize=8)
    panel.set_frame_on(False)
    keys = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[name], lw=0) for name in (*PATTERNS, MIXED)]
    panel.legend(keys, (*PATTERNS, MIXED), loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False)
    panel.set_title("Dominant pattern of each head (score in %)", fontsize=11)
    return save(plt, figure, path)


def _uniform_entropy(one: AttentionMap) -> Tensor:
    """log w(allowed sources) of each row: [b, 1, t]."""
    mass = one.base.sum(-1).expand(len(one.weights), -1, -1)
    return torch.where(one.rows[:, None] > 0, mass.clamp_min(torch.finfo(mass.dtype).tiny).log(), 0.0)


def _shown(one: AttentionMap, labels: Sequence[str] | None, sample: int) -> tuple[Tensor, list[str]]:
    """The present tokens of a sample and their names: given ones, or their times."""
    present = one.t.observed if one.t.observed.dim() == 1 else one.t.observed[sample % len(one.t.observed)]
    kept = present.nonzero()[:, 0]
    if labels is None:
        nodes = one.t.nodes if one.t.nodes.dim() == 2 else one.t.nodes[sample % len(one.t.nodes)]
        return kept, [", ".join(f"{x:.3g}" for x in nodes[i].tolist()) for i in kept.tolist()]
    if len(labels) not in (len(present), len(kept)):
        remedy = "Give one label for each token."
        raise ShapeError(f"{len(present)} tokens need as many labels", got=len(labels), remedy=remedy)
    return kept, list(labels) if len(labels) == len(kept) else [labels[i] for i in kept.tolist()]


def _name(panel: Any, side: str, names: Sequence[str], inches: float) -> None:
    """Token labels, thinned where there are too many to read."""
    every = -(-len(names) // MOST_LABELS)
    places = range(0, len(names), every)
    font = max(3.5, min(9.0, 0.8 * 72 * inches / len(names) * every))
    shown = [name if len(name) <= 14 else name[:13] + "…" for name in (names[i] for i in places)]
    shown = [name.replace("$", r"\$") for name in shown]  # matplotlib reads $…$ as mathematics
    if side == "x":
        panel.set_xticks(places, shown, rotation=90, fontsize=font)
    else:
        panel.set_yticks(places, shown, fontsize=font)
    panel.tick_params(length=0, pad=1)
