"""Operators: maps of fields that know nothing of solvers."""

from continua.operators.activation import ELU, GELU, Activation, Identity, ReLU, SiLU, Tanh
from continua.operators.attention import Attention
from continua.operators.cache import Cache
from continua.operators.depth import Grids, depth_grid
from continua.operators.dropout import Drop
from continua.operators.features import PositiveFeatures
from continua.operators.kernel import Additive, Flat, Kernel, Quick, Softmax
from continua.operators.local import Comb, Local
from continua.operators.mask import Both, Causal, Mask, Neighbours, Strided, Window
from continua.operators.norm import Constraint, LayerNorm, Project, RMSNorm, SphereProjection
from continua.operators.nystrom import Nystrom
from continua.operators.operator import Chain, Context, Operator, Parts, PreNorm, Recorded, Skip
from continua.operators.pointwise import Apply, Integral, Pointwise
from continua.operators.position import (
    ALiBi,
    Encoding,
    Learned,
    Position,
    RelativeBias,
    Rotary,
    Sinusoidal,
    WaveBias,
)
from continua.operators.sources import FewSources, redraw
from continua.operators.spectral import SpectralConvolution
from continua.operators.spread import Spread, spread
from continua.operators.stationary import Gaussian, Stationary
from continua.operators.waves import Waves

__all__ = [
    "Waves",
    "WaveBias",
    "SpectralConvolution",
    "Chain",
    "ALiBi",
    "Activation",
    "Additive",
    "Apply",
    "Attention",
    "Both",
    "Cache",
    "Causal",
    "Comb",
    "Constraint",
    "Context",
    "Drop",
    "ELU",
    "Encoding",
    "Flat",
    "GELU",
    "Gaussian",
    "Grids",
    "Identity",
    "Integral",
    "Kernel",
    "LayerNorm",
    "Learned",
    "Local",
    "Mask",
    "Neighbours",
    "Nystrom",
    "Operator",
    "Parts",
    "Pointwise",
    "Position",
    "PositiveFeatures",
    "PreNorm",
    "Project",
    "Quick",
    "RMSNorm",
    "ReLU",
    "Recorded",
    "RelativeBias",
    "Rotary",
    "FewSources",
    "SiLU",
    "Sinusoidal",
    "Skip",
    "Softmax",
    "SphereProjection",
    "Stationary",
    "Spread",
    "Strided",
    "Tanh",
    "Window",
    "depth_grid",
    "redraw",
    "spread",
]
