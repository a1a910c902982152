"""Continua: Transformers whose every axis is continuous.

Names are imported when first used, so that ``import continua`` and ``continua --help`` stay quick.
"""

import importlib
from typing import Any

__version__ = "0.2.0"

# What most users write; the rest is one step further: continua.axes.Sobol, continua.flow.Heun, …
_ROOMS = {
    "session": "Session",
    "axes": (
        "Axes Circle ClenshawCurtis Counting Discretisation GaussLegendre Grid Interval Midpoint Points "
        "Product ProductRule Samples Times Trapezoid at"
    ),
    "fields": "BSpline ByBasis Cosine Cubic Fourier Generated Legendre Linear Nodal Trigonometric",
    "flow": (
        "RK4 Adaptive Checkpoint Direct Dopri5 Euler Fixed Flow Lean LieTrotter Recompute Reversible "
        "ReversibleSolver SaveAt Strang Tsit5 solve"
    ),
    "operators": (
        "ALiBi Attention Causal Constraint GELU LayerNorm Learned Pointwise RMSNorm ReLU "
        "RelativeBias Rotary SiLU Sinusoidal Softmax Strided Window"
    ),
    "models": "Batch EncoderDecoder Greedy Sample Transformer generate lift merged stream with_lora zoo",
    "optim": "",
    "data": "",
    "tasks": "",
    "training": "Elastic KineticEnergy Run fit load",
    "lab": "pareto",
    "convert": "discretise distil elastic export from_gguf from_hf from_torch to_hf transcribe",
    "recipes": "",
    "estimators": "ContinuaClassifier ContinuaForecaster",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"continua.{name}")
    if name not in _HOME:
        from continua.errors import nearest

        raise AttributeError(f"module 'continua' has no attribute {name!r}. {nearest(name, list(_HOME))}")
    value = getattr(importlib.import_module(f"continua.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
