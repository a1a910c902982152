"""Flow: an ODE library that knows nothing of attention."""

from continua.flow.adjoints import Adjoint, Backsolve, Checkpoint, Direct, Lean, Mixed, Recompute, Reversible
from continua.flow.controls import Adaptive, Control, Fixed, Problem
from continua.flow.solve import depths, solve
from continua.flow.solvers import (
    RK4,
    Bosh3,
    Dopri5,
    Euler,
    ExplicitMidpoint,
    Heun,
    LieTrotter,
    OnSphere,
    ReversibleHeun,
    ReversibleSolver,
    Solver,
    Strang,
    Tsit5,
)
from continua.flow.trajectory import SaveAt, Trajectory
from continua.flow.vectorfield import Bound, Flow, Projection, Sum, VectorField

__all__ = [
    "RK4",
    "Adaptive",
    "Adjoint",
    "Backsolve",
    "Bosh3",
    "Bound",
    "Checkpoint",
    "Control",
    "Direct",
    "Dopri5",
    "Euler",
    "ExplicitMidpoint",
    "Fixed",
    "Flow",
    "Heun",
    "Lean",
    "LieTrotter",
    "Mixed",
    "OnSphere",
    "Problem",
    "Projection",
    "Recompute",
    "Reversible",
    "ReversibleHeun",
    "ReversibleSolver",
    "SaveAt",
    "Solver",
    "Strang",
    "Sum",
    "Trajectory",
    "Tsit5",
    "VectorField",
    "depths",
    "solve",
]
