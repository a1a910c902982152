"""Geometry: the sets that states are kept on."""

from continua.geometry.sphere import retract, tangent

__all__ = ["retract", "tangent"]
