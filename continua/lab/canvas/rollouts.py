"""Pictures of roll-outs: fields over time, their spectra, and how long they stay with the truth."""

from pathlib import Path

from continua.lab.figure import pyplot, save
from continua.tasks.rollouts import correlation, spectrum
from continua.typing import Float, Tensor

SHOWN = 6  # times in a picture
LEAST = 0.8


def draw_rollout(
    states: Float[Tensor, "s n n"],
    truth: Float[Tensor, "s n n"],
    path: Path,
    others: dict[str, Float[Tensor, "s n n"]] | None = None,
) -> Path:
    """The true flow above the roll-out at some times; below, correlations over time and the spectra of the later half.

    ``others`` are further roll-outs of the same flow, drawn as curves.
    """
    plt = pyplot()
    steps = len(truth)
    count = min(SHOWN, steps)
    figure = plt.figure(figsize=(1.75 * count, 6.6), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3.6, 3.0))
    panels = above.subplots(2, count, squeeze=False)
    most = float(truth.abs().max())
    for column in range(count):
        step = round(column * (steps - 1) / max(1, count - 1))
        for row, fields in enumerate((truth, states)):
            field = fields[step].double().T.numpy()
            panels[row][column].imshow(field, cmap="RdBu_r", vmin=-most, vmax=most, origin="lower")
            panels[row][column].set_xticks([])
            panels[row][column].set_yticks([])
        panels[0][column].set_title(f"step {step + 1}", fontsize=9)
    panels[0][0].set_ylabel("true", fontsize=9)
    panels[1][0].set_ylabel("rolled out", fontsize=9)
    left, right = below.subplots(1, 2)
    named = {"rolled out": states, **(others or {})}
    for name, fields in named.items():
        known = correlation(fields.flatten(1)[..., None], truth.flatten(1)[..., None])
        left.plot(range(1, steps + 1), known.numpy(), label=name)
    left.axhline(LEAST, color="0.6", lw=0.8, ls="--")
    left.set(xlabel="step", ylabel="correlation with the truth", ylim=(-0.2, 1.02))
    left.legend(fontsize=8, frameon=False)
    late = slice(steps // 2, None)
    for name, fields in {"true": truth, **named}.items():
        energy = spectrum(fields[late]).mean(0)
        style = {"color": "k", "lw": 2.0, "alpha": 0.5} if name == "true" else {}
        right.loglog(range(1, len(energy) + 1), energy.clamp_min(1e-12).numpy(), label=name, **style)
    least = float(spectrum(truth[late]).mean(0).min())
    right.set(xlabel="wave number", ylabel="spectrum, later half", ylim=(0.1 * least, None))
    right.legend(fontsize=8, frameon=False)
    return save(plt, figure, path)
