"""Optimisers by role, and schedules."""

from continua.optim.about import About, Unfolding, about
from continua.optim.bounded import Rescaled, SpectrallyNormalised
from continua.optim.kfac import KFAC
from continua.optim.mirror import DualAveraging, Mirror
from continua.optim.muon import Muon
from continua.optim.optimiser import AdamW, ByRole, Optimiser, Optimisers, clip
from continua.optim.roles import Role, roles
from continua.optim.schedule import Constant, CosineDecay, InverseSqrt, Schedule
from continua.optim.shampoo import SOAP, Shampoo
from continua.optim.stiefel import RiemannianAdam

Cosine = CosineDecay  # the short name; in configurations "Cosine" is the basis

__all__ = [
    "KFAC",
    "SOAP",
    "About",
    "AdamW",
    "ByRole",
    "Constant",
    "Cosine",
    "CosineDecay",
    "DualAveraging",
    "InverseSqrt",
    "Mirror",
    "Muon",
    "Optimiser",
    "Optimisers",
    "Rescaled",
    "RiemannianAdam",
    "Role",
    "Schedule",
    "Shampoo",
    "SpectrallyNormalised",
    "Unfolding",
    "about",
    "clip",
    "roles",
]
