"""Fields: weights as functions, read on any grid."""

from continua.fields.basis import Basis, Truncatable
from continua.fields.field import Expansion, Field
from continua.fields.generated import Generated
from continua.fields.low_rank import Adapted, Factors, LowRank
from continua.fields.neural import Neural, Separable
from continua.fields.nodal import Cubic, Hold, Linear, Nodal, Trigonometric
from continua.fields.parametrisation import (
    ByBasis,
    ByNetwork,
    CorrectedNodes,
    Corrections,
    Parametrisation,
    RefitRanks,
    counted,
    kernel,
    kernel_std,
)
from continua.fields.role import HasRoles, Role, Use, roles
from continua.fields.spectral import BSpline, Cosine, Fourier, Legendre
from continua.fields.splines import NestedSpline

__all__ = [
    "Adapted",
    "CorrectedNodes",
    "Corrections",
    "BSpline",
    "Basis",
    "ByBasis",
    "ByNetwork",
    "Cosine",
    "Cubic",
    "Expansion",
    "Factors",
    "Field",
    "Fourier",
    "Generated",
    "HasRoles",
    "Hold",
    "Legendre",
    "Linear",
    "LowRank",
    "NestedSpline",
    "Neural",
    "Nodal",
    "Parametrisation",
    "RefitRanks",
    "Role",
    "Separable",
    "Trigonometric",
    "Truncatable",
    "Use",
    "counted",
    "kernel",
    "kernel_std",
    "roles",
]
