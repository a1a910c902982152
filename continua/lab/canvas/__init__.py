"""Pictures and films of what the other parts of the lab find."""

from continua.lab.canvas.attention_plots import plot_attention, plot_entropy, plot_patterns, plot_rollout
from continua.lab.canvas.canvas import COLOURS, FAINT, INK, LINE, Camera
from continua.lab.canvas.densities import plot_density, plot_globe
from continua.lab.canvas.dynamics_plots import (
    plot_cosines,
    plot_energy,
    plot_iteration,
    plot_jumps,
    plot_ladder,
    plot_spectra,
)
from continua.lab.canvas.films import film
from continua.lab.canvas.functions import draw_functions, draw_path, draw_resolution
from continua.lab.canvas.pictures import plot_counts, plot_growth, plot_paths, plot_phase, plot_staircase

__all__ = [
    "COLOURS",
    "FAINT",
    "INK",
    "LINE",
    "Camera",
    "draw_functions",
    "draw_path",
    "draw_resolution",
    "film",
    "plot_attention",
    "plot_cosines",
    "plot_counts",
    "plot_density",
    "plot_energy",
    "plot_entropy",
    "plot_globe",
    "plot_growth",
    "plot_iteration",
    "plot_jumps",
    "plot_ladder",
    "plot_paths",
    "plot_patterns",
    "plot_phase",
    "plot_rollout",
    "plot_spectra",
    "plot_staircase",
]
