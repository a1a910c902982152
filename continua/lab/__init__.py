"""The lab: instruments that look at models and at what they do."""

from continua.lab.attention import AttentionMap, attention_maps, attribution, entropy, mean_entropy, rollout
from continua.lab.complexity import Complexity, Cost, predict
from continua.lab.pareto import Pareto, Point, pareto, size_grid
from continua.lab.patterns import PATTERNS, Head, head_table, pattern_scores
from continua.lab.plots import plot_attention, plot_entropy, plot_patterns, plot_rollout
from continua.lab.tolerance import Depth, depth_front, plot_depth

__all__ = [
    "PATTERNS",
    "AttentionMap",
    "Complexity",
    "Cost",
    "Depth",
    "Head",
    "Pareto",
    "Point",
    "attention_maps",
    "attribution",
    "depth_front",
    "entropy",
    "head_table",
    "mean_entropy",
    "pareto",
    "pattern_scores",
    "plot_attention",
    "plot_depth",
    "plot_entropy",
    "plot_patterns",
    "plot_rollout",
    "predict",
    "rollout",
    "size_grid",
]
