"""What a model costs: FLOPs, bytes and seconds over its sizes, and evaluations over tolerances."""

from continua.lab.cost import experts as _experts  # noqa: F401  (registers its costs)
from continua.lab.cost import latent as _latent  # noqa: F401  (registers its costs)
from continua.lab.cost.beside import Beside, line_through, read_beside, write_beside
from continua.lab.cost.complexity import Complexity, CostItem, predict
from continua.lab.cost.drift import Drift, DriftPoint, drift, size_name, usual_sizes
from continua.lab.cost.job import Job, Mesh
from continua.lab.cost.machines import Machine, machine
from continua.lab.cost.pareto import Pareto, many_sizes, pareto, size_grid
from continua.lab.cost.plan import MeshCost, largest_context, planned, plans
from continua.lab.cost.point import Point
from continua.lab.cost.tolerance import Depth, depth_front, plot_depth

__all__ = [
    "Beside",
    "Complexity",
    "CostItem",
    "Depth",
    "Drift",
    "DriftPoint",
    "Job",
    "Machine",
    "Mesh",
    "MeshCost",
    "Pareto",
    "Point",
    "depth_front",
    "drift",
    "largest_context",
    "line_through",
    "machine",
    "many_sizes",
    "pareto",
    "planned",
    "plans",
    "plot_depth",
    "predict",
    "read_beside",
    "size_grid",
    "size_name",
    "usual_sizes",
    "write_beside",
]
