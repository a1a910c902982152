"""The lab: instruments that look at models and at what they do, and tokens as particles."""

from continua.lab.along import Along, Course
from continua.lab.attention import AttentionMap, attention_maps, attribution, entropy, mean_entropy, rollout
from continua.lab.chaos import Chaos, chaos
from continua.lab.clusters import (
    Clusters,
    Plateau,
    causal_limit,
    clusters,
    collapse_rate,
    hardmax_leaders,
    leaders,
    parked,
    plateaus,
)
from continua.lab.complexity import Complexity, Cost, predict
from continua.lab.densities import plot_density, plot_globe
from continua.lab.dynamics_plots import plot_cosines, plot_energy, plot_iteration, plot_jumps, plot_ladder, plot_spectra
from continua.lab.energy import energies, energy, energy_gradient, energy_rate, log_energy, mean_cosine, sinkhorn_energy
from continua.lab.films import film
from continua.lab.fixed_points import (
    Branch,
    Verdict,
    antipodal,
    clustered,
    continuation,
    fixed_point,
    jacobian,
    spectrum,
    stability,
    synchronised,
)
from continua.lab.growth import crossovers, growth_rates, k_max, layer_factor, log_growth_rates, rotated_rates
from continua.lab.harmonics import Harmonics
from continua.lab.interaction import INTERACTIONS, Hardmax, Interaction, SelfAttention, Sinkhorn, Unnormalised
from continua.lab.iterate import Iteration, Substeps, iterate, substeps
from continua.lab.ladder import Ladder, ladder
from continua.lab.meanfield import MeanField, mean_field
from continua.lab.meanfield_sphere import SphereField, sphere_mean_field
from continua.lab.pareto import Pareto, Point, pareto, size_grid
from continua.lab.particles import Particles
from continua.lab.patterns import PATTERNS, Head, head_table, pattern_scores
from continua.lab.phase import Cell, Phase, phase_diagram
from continua.lab.pictures import plot_counts, plot_growth, plot_paths, plot_phase, plot_staircase
from continua.lab.plots import plot_attention, plot_entropy, plot_patterns, plot_rollout
from continua.lab.probes import Dynamics, Sinks, dynamics, look
from continua.lab.simulate import Norm, Simulation, free, layers, simulate
from continua.lab.spectra import HeadSpectra, spectra
from continua.lab.sums import ByFourier, ByHarmonics, Dense, Fused
from continua.lab.theory import consensus_rate, equiangular, equiangular_pre_norm, polygon_rates
from continua.lab.tolerance import Depth, depth_front, plot_depth
from continua.lab.use import Separation, controlled, overclustered, separation
from continua.lab.wasserstein import (
    Density,
    circle_wasserstein,
    line_wasserstein,
    sliced_wasserstein,
    sphere_wasserstein,
)

__all__ = [
    "INTERACTIONS",
    "PATTERNS",
    "Along",
    "AttentionMap",
    "Branch",
    "ByFourier",
    "ByHarmonics",
    "Cell",
    "Chaos",
    "Clusters",
    "Complexity",
    "Cost",
    "Course",
    "Dense",
    "Density",
    "Depth",
    "Dynamics",
    "Fused",
    "Hardmax",
    "Harmonics",
    "Head",
    "HeadSpectra",
    "Interaction",
    "Iteration",
    "Ladder",
    "MeanField",
    "Norm",
    "Pareto",
    "Particles",
    "Phase",
    "Plateau",
    "Point",
    "SelfAttention",
    "Separation",
    "Simulation",
    "Sinkhorn",
    "Sinks",
    "SphereField",
    "Substeps",
    "Unnormalised",
    "Verdict",
    "antipodal",
    "attention_maps",
    "attribution",
    "causal_limit",
    "chaos",
    "circle_wasserstein",
    "clustered",
    "clusters",
    "collapse_rate",
    "consensus_rate",
    "continuation",
    "controlled",
    "crossovers",
    "depth_front",
    "dynamics",
    "energies",
    "energy",
    "energy_gradient",
    "energy_rate",
    "entropy",
    "equiangular",
    "equiangular_pre_norm",
    "film",
    "fixed_point",
    "free",
    "growth_rates",
    "hardmax_leaders",
    "head_table",
    "iterate",
    "jacobian",
    "k_max",
    "ladder",
    "layer_factor",
    "layers",
    "leaders",
    "line_wasserstein",
    "log_energy",
    "log_growth_rates",
    "look",
    "mean_cosine",
    "mean_entropy",
    "mean_field",
    "overclustered",
    "pareto",
    "parked",
    "pattern_scores",
    "phase_diagram",
    "plateaus",
    "plot_attention",
    "plot_cosines",
    "plot_counts",
    "plot_density",
    "plot_depth",
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
    "polygon_rates",
    "predict",
    "rollout",
    "rotated_rates",
    "separation",
    "simulate",
    "sinkhorn_energy",
    "size_grid",
    "sliced_wasserstein",
    "spectra",
    "spectrum",
    "sphere_mean_field",
    "sphere_wasserstein",
    "stability",
    "substeps",
    "synchronised",
]
