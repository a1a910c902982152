"""Optimisers by role, and schedules."""

from continua.optim.optimiser import AdamW, ByRole, Optimiser, Optimisers, clip
from continua.optim.roles import Role, roles
from continua.optim.schedule import Constant, Cosine, InverseSqrt, Schedule

__all__ = [
    "AdamW",
    "ByRole",
    "Constant",
    "Cosine",
    "InverseSqrt",
    "Optimiser",
    "Optimisers",
    "Role",
    "Schedule",
    "clip",
    "roles",
]
