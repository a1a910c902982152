"""Optimisers by role, and schedules."""

import warnings
from typing import Any

from continua.fields import Role, Use, roles
from continua.optim.bounded import Rescaled, SpectrallyNormalised
from continua.optim.kfac import KFAC
from continua.optim.mirror import DualAveraging, Mirror
from continua.optim.muon import Muon
from continua.optim.optimiser import AdamW, ByRole, MatrixOptimiser, Optimiser, Optimisers, clip
from continua.optim.parameters import Block, Blocks, ParameterInfo, Unfolding, parameter_info
from continua.optim.schedule import Constant, CosineDecay, InverseSqrt, Schedule
from continua.optim.shampoo import SOAP, Shampoo
from continua.optim.stiefel import RiemannianAdam

Cosine = CosineDecay  # the short name; in configurations "Cosine" is the basis

__all__ = [
    "KFAC",
    "SOAP",
    "AdamW",
    "Block",
    "Blocks",
    "ByRole",
    "Constant",
    "Cosine",
    "CosineDecay",
    "DualAveraging",
    "InverseSqrt",
    "MatrixOptimiser",
    "Mirror",
    "Muon",
    "Optimiser",
    "Optimisers",
    "ParameterInfo",
    "Rescaled",
    "RiemannianAdam",
    "Role",
    "Schedule",
    "Shampoo",
    "SpectrallyNormalised",
    "Unfolding",
    "Use",
    "clip",
    "parameter_info",
    "roles",
]

_RENAMED = {"About": "ParameterInfo", "about": "parameter_info"}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{name} is called {_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
