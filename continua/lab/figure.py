"""Figures without a screen, saved to files: what every picture of the lab begins and ends with."""

from pathlib import Path
from typing import Any


def pyplot() -> Any:
    """Matplotlib without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(plt: Any, figure: Any, path: str | Path) -> Path:
    """Write a figure, make its folder, and let go of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return path


def whole_numbers(panel: Any) -> None:
    """Ticks of the horizontal axis at whole numbers only: there is no layer 0.5."""
    panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
