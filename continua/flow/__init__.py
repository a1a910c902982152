"""Flow: an ODE library that knows nothing of attention."""

from continua.flow.adjoint import Adjoint, Checkpoint, Direct, Problem
from continua.flow.control import Control, Fixed
from continua.flow.runge_kutta import RK4, Euler, ExplicitMidpoint, Heun, Solver
from continua.flow.solve import depths, solve
from continua.flow.splitting import LieTrotter, Strang
from continua.flow.trajectory import SaveAt, Trajectory
from continua.flow.vectorfield import Flow, Projection, Sum, VectorField

__all__ = [
    "RK4",
    "Adjoint",
    "Checkpoint",
    "Control",
    "Direct",
    "Euler",
    "ExplicitMidpoint",
    "Fixed",
    "Flow",
    "Heun",
    "LieTrotter",
    "Problem",
    "Projection",
    "SaveAt",
    "Solver",
    "Strang",
    "Sum",
    "Trajectory",
    "VectorField",
    "depths",
    "solve",
]
