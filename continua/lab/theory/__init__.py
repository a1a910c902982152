"""What is known about particles: growth rates, theorems, the mean field, distances of measures, phase diagrams."""

from continua.lab.theory.chaos import Chaos, chaos
from continua.lab.theory.growth import crossovers, growth_rates, k_max, layer_factor, log_growth_rates, rotated_rates
from continua.lab.theory.meanfield import MeanField, mean_field
from continua.lab.theory.meanfield_sphere import SphereField, sphere_mean_field
from continua.lab.theory.phase import Cell, Phase, phase_diagram
from continua.lab.theory.theorems import consensus_rate, equiangular, equiangular_pre_norm, polygon_rates
from continua.lab.theory.wasserstein import (
    Density,
    circle_wasserstein,
    line_wasserstein,
    sliced_wasserstein,
    sphere_wasserstein,
)

__all__ = [
    "Cell",
    "Chaos",
    "Density",
    "MeanField",
    "Phase",
    "SphereField",
    "chaos",
    "circle_wasserstein",
    "consensus_rate",
    "crossovers",
    "equiangular",
    "equiangular_pre_norm",
    "growth_rates",
    "k_max",
    "layer_factor",
    "line_wasserstein",
    "log_growth_rates",
    "mean_field",
    "phase_diagram",
    "polygon_rates",
    "rotated_rates",
    "sliced_wasserstein",
    "sphere_mean_field",
    "sphere_wasserstein",
]
