"""Flow: an ODE library that knows nothing of attention."""

from continua.flow.adjoints.backsolve import Backsolve
from continua.flow.adjoints.direct import Adjoint, Direct
from continua.flow.adjoints.recompute import Checkpoint, Lean, Mixed, Recompute
from continua.flow.adjoints.reversible import Reversible
from continua.flow.controls.adaptive import Adaptive
from continua.flow.controls.control import Control, Fixed, Problem
from continua.flow.solve import depths, solve
from continua.flow.solvers.reversible import ReversibleHeun, ReversibleSolver
from continua.flow.solvers.runge_kutta import RK4, Bosh3, Dopri5, Euler, ExplicitMidpoint, Heun, Tsit5
from continua.flow.solvers.solver import Solver
from continua.flow.solvers.sphere import OnSphere
from continua.flow.solvers.splitting import LieTrotter, Strang
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
