"""The lab: instruments that look at models and at what they do."""

from continua.lab.attention import AttentionMap, attention_maps, attribution, entropy, mean_entropy, rollout
from continua.lab.complexity import Complexity, Cost, predict
from continua.lab.interaction import INTERACTIONS, Hardmax, Interaction, SelfAttention, Sinkhorn, Unnormalised
from continua.lab.pareto import Pareto, Point, pareto, size_grid
from continua.lab.particles import Particles
from continua.lab.patterns import PATTERNS, Head, head_table, pattern_scores
from continua.lab.plots import plot_attention, plot_entropy, plot_patterns, plot_rollout
from continua.lab.simulate import Norm, Simulation, free, layers, simulate
from continua.lab.sums import ByFourier, ByHarmonics, Dense, Fused
from continua.lab.tolerance import Depth, depth_front, plot_depth

__all__ = [
    "INTERACTIONS",
    "PATTERNS",
    "AttentionMap",
    "ByFourier",
    "ByHarmonics",
    "Complexity",
    "Cost",
    "Dense",
    "Depth",
    "Fused",
    "Hardmax",
    "Head",
    "Interaction",
    "Norm",
    "Pareto",
    "Particles",
    "Point",
    "SelfAttention",
    "Simulation",
    "Sinkhorn",
    "Unnormalised",
    "attention_maps",
    "attribution",
    "depth_front",
    "entropy",
    "free",
    "head_table",
    "layers",
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
    "simulate",
    "size_grid",
]
