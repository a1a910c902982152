"""What a model costs: FLOPs, bytes and seconds over its sizes, and evaluations over tolerances."""

from continua.lab.cost.complexity import Complexity, CostItem, predict
from continua.lab.cost.pareto import Pareto, Point, pareto, size_grid
from continua.lab.cost.tolerance import Depth, depth_front, plot_depth

__all__ = [
    "Complexity",
    "CostItem",
    "Depth",
    "Pareto",
    "Point",
    "depth_front",
    "pareto",
    "plot_depth",
    "predict",
    "size_grid",
]
