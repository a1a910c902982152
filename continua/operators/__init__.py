"""Operators: maps of fields that know nothing of solvers."""

import warnings
from typing import Any

from continua.axes import Grids as _Grids
from continua.operators.activation import ELU, GELU, Activation, Identity, QuickGELU, ReLU, SiLU, Tanh
from continua.operators.alibi import ALiBi
from continua.operators.attention.head_norm import HeadNorm
from continua.operators.attention.latent import Gates, Slices
from continua.operators.attention.operator import Attention
from continua.operators.cache import Cache
from continua.operators.convolution import Convolution
from continua.operators.correction import Correction
from continua.operators.dropout import Drop
from continua.operators.experts import Experts
from continua.operators.kernels.features import PositiveFeatures
from continua.operators.kernels.kernel import Additive, Capped, InParts, Kernel, Softmax, Subquadratic, Uniform, Way
from continua.operators.kernels.local import Comb, Local
from continua.operators.kernels.nystrom import Nystrom
from continua.operators.kernels.sampled import FewSources, redraw
from continua.operators.kernels.sampling_error import Spread, spread
from continua.operators.kernels.stationary import Gaussian, Stationary
from continua.operators.mask import Both, ByDepth, Causal, Mask, Neighbours, Strided, Window
from continua.operators.norm import Constraint, LayerNorm, LayerScale, Project, RMSNorm, SphereProjection
from continua.operators.operator import (
    Beside,
    Chain,
    Context,
    FromDepth,
    InputsSeen,
    Operator,
    Parts,
    PreNorm,
    Recorded,
    Skip,
)
from continua.operators.pointwise import Apply, Integral, Pointwise
from continua.operators.position import (
    Encoding,
    Learned,
    Position,
    PositionByDepth,
    RelativeBias,
    Rotary,
    Sinusoidal,
    WaveBias,
)
from continua.operators.refit import Refit
from continua.operators.shared_expert import SharedExpert
from continua.operators.spectral import SpectralConvolution
from continua.operators.stretch import (
    DynamicStretch,
    LinearStretch,
    Llama3Stretch,
    LongStretch,
    Stretch,
    YarnStretch,
)
from continua.operators.symbols import SymbolProducts
from continua.operators.transport import SymbolTransport
from continua.operators.waves import Waves

__all__ = [
    "Correction",
    "SymbolProducts",
    "SymbolTransport",
    "Waves",
    "WaveBias",
    "SpectralConvolution",
    "Chain",
    "ALiBi",
    "Activation",
    "Additive",
    "Apply",
    "Attention",
    "Beside",
    "Both",
    "ByDepth",
    "Cache",
    "Capped",
    "Causal",
    "Comb",
    "Constraint",
    "Context",
    "Convolution",
    "Drop",
    "DynamicStretch",
    "ELU",
    "Encoding",
    "Experts",
    "Uniform",
    "FromDepth",
    "GELU",
    "Gates",
    "Gaussian",
    "HeadNorm",
    "Identity",
    "InputsSeen",
    "InParts",
    "Integral",
    "Kernel",
    "LayerNorm",
    "LayerScale",
    "Learned",
    "LinearStretch",
    "Llama3Stretch",
    "Local",
    "LongStretch",
    "Mask",
    "Neighbours",
    "Nystrom",
    "Operator",
    "Parts",
    "Pointwise",
    "Position",
    "PositionByDepth",
    "PositiveFeatures",
    "PreNorm",
    "Project",
    "Subquadratic",
    "RMSNorm",
    "QuickGELU",
    "ReLU",
    "Recorded",
    "Refit",
    "RelativeBias",
    "Rotary",
    "FewSources",
    "SharedExpert",
    "SiLU",
    "Sinusoidal",
    "Skip",
    "Slices",
    "Softmax",
    "SphereProjection",
    "Stationary",
    "Spread",
    "Stretch",
    "Strided",
    "Tanh",
    "Way",
    "Window",
    "YarnStretch",
    "redraw",
    "spread",
]

_RENAMED = {"Quick": "Subquadratic", "Flat": "Uniform"}


def __getattr__(name: str) -> Any:
    if name == "Grids":
        warnings.warn("Grids is in continua.axes now", DeprecationWarning, stacklevel=2)
        return _Grids
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{name} is called {_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
