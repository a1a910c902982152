"""One-step maps: Runge–Kutta, splitting and reversible methods, and steps on a sphere."""

from continua.flow.solvers.reversible import ReversibleHeun, ReversibleSolver
from continua.flow.solvers.runge_kutta import RK4, Bosh3, Dopri5, Euler, ExplicitMidpoint, Heun, RungeKutta, Tsit5
from continua.flow.solvers.solver import (
    Embedded,
    LaggingMethod,
    OneStep,
    OnManifold,
    ReversibleMethod,
    Solver,
    Wrapper,
)
from continua.flow.solvers.sphere import OnSphere
from continua.flow.solvers.splitting import LieTrotter, Strang

__all__ = [
    "RK4",
    "Bosh3",
    "Dopri5",
    "Embedded",
    "Euler",
    "ExplicitMidpoint",
    "Heun",
    "LaggingMethod",
    "LieTrotter",
    "OnManifold",
    "OnSphere",
    "OneStep",
    "ReversibleHeun",
    "ReversibleMethod",
    "ReversibleSolver",
    "RungeKutta",
    "Solver",
    "Strang",
    "Tsit5",
    "Wrapper",
]
