"""Operators: maps of fields that know nothing of solvers."""

from continua.operators.activation import ELU, GELU, Activation, Identity, ReLU, SiLU, Tanh
from continua.operators.attention import Attention
from continua.operators.cache import Cache
from continua.operators.depth import Grids, depth_grid
from continua.operators.dropout import Drop
from continua.operators.kernel import Additive, Kernel, Softmax
from continua.operators.mask import Both, Causal, Mask, Neighbours, Strided, Window
from continua.operators.norm import Constraint, LayerNorm, Project, RMSNorm, SphereProjection
from continua.operators.operator import Context, Operator, Parts, PreNorm, Recorded, Skip
from continua.operators.pointwise import Apply, Integral, Pointwise
from continua.operators.position import ALiBi, Encoding, Learned, Position, RelativeBias, Rotary, Sinusoidal

__all__ = [
    "ELU",
    "GELU",
    "ALiBi",
    "Activation",
    "Additive",
    "Apply",
    "Attention",
    "Both",
    "Cache",
    "Causal",
    "Constraint",
    "Context",
    "Drop",
    "Encoding",
    "Grids",
    "Identity",
    "Integral",
    "Kernel",
    "LayerNorm",
    "Learned",
    "Mask",
    "Neighbours",
    "Operator",
    "Parts",
    "Pointwise",
    "Position",
    "PreNorm",
    "Project",
    "RMSNorm",
    "ReLU",
    "Recorded",
    "RelativeBias",
    "Rotary",
    "SiLU",
    "Sinusoidal",
    "Skip",
    "Softmax",
    "SphereProjection",
    "Strided",
    "Tanh",
    "Window",
    "depth_grid",
]
