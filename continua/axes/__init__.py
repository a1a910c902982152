"""Axes, grids and quadrature rules: where every sum becomes an integral."""

from continua.axes.axis import ALIASES, WIDTHS, Axes, Axis, Circle, Interval, Points, Product, Times, mass_of, with_mass
from continua.axes.corrected import corrected
from continua.axes.discretisation import Discretisation, at
from continua.axes.grid import Grid, counting
from continua.axes.rules import (
    ClenshawCurtis,
    Counting,
    GaussLegendre,
    LeftEnd,
    Midpoint,
    Nested,
    ProductRule,
    Rule,
    Trapezoid,
    default_rule,
    grid_key,
    grid_on,
)
from continua.axes.sampled import Lattice, MonteCarlo, Samples, Sobol

__all__ = [
    "ALIASES",
    "WIDTHS",
    "Axes",
    "Axis",
    "Circle",
    "ClenshawCurtis",
    "Counting",
    "Discretisation",
    "GaussLegendre",
    "Grid",
    "Interval",
    "Lattice",
    "LeftEnd",
    "Midpoint",
    "MonteCarlo",
    "Nested",
    "Points",
    "Product",
    "ProductRule",
    "Rule",
    "Samples",
    "Sobol",
    "Times",
    "Trapezoid",
    "at",
    "corrected",
    "counting",
    "default_rule",
    "grid_key",
    "grid_on",
    "mass_of",
    "with_mass",
]
