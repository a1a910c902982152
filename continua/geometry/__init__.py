"""Geometry: the sets that states and weights are kept on."""

from continua.geometry import simplex, sphere, stiefel
from continua.geometry.sphere import retract, tangent

__all__ = ["retract", "simplex", "sphere", "stiefel", "tangent"]
