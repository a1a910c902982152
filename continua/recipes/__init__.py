"""Shipped recipes, each a function."""

import warnings
from typing import Any

import continua
from continua.recipes.cheatsheet import CheatsheetSettings, cheatsheet
from continua.recipes.elastic import ElasticSettings, elastic
from continua.recipes.functions import (
    BurgersSettings,
    DarcySettings,
    FieldSettings,
    FunctionSettings,
    OperatorSettings,
    VorticitySettings,
    burgers,
    darcy,
    fields,
    navier_stokes,
)
from continua.recipes.meshes import (
    DiffusionSettings,
    ElasticitySettings,
    MeshSettings,
    PoissonSettings,
    diffusion3d,
    elasticity,
    poisson,
)
from continua.recipes.recipe import SHIPPED, Bundle, Recipe, build, parse
from continua.recipes.runs import changes_of, resume, start, tokens_of
from continua.recipes.text import TextSettings, text
from continua.recipes.turbulence import TurbulenceSettings, turbulence
from continua.recipes.vision import FashionSettings, VisionSettings, digits, fashion

__all__ = [
    "FashionSettings",
    "VisionSettings",
    "digits",
    "fashion",
    "BurgersSettings",
    "DarcySettings",
    "FieldSettings",
    "FunctionSettings",
    "OperatorSettings",
    "VorticitySettings",
    "burgers",
    "darcy",
    "fields",
    "navier_stokes",
    "SHIPPED",
    "Bundle",
    "CheatsheetSettings",
    "ElasticSettings",
    "Recipe",
    "TextSettings",
    "build",
    "changes_of",
    "cheatsheet",
    "elastic",
    "DiffusionSettings",
    "ElasticitySettings",
    "MeshSettings",
    "PoissonSettings",
    "parse",
    "diffusion3d",
    "elasticity",
    "poisson",
    "resume",
    "start",
    "text",
    "tokens_of",
    "TurbulenceSettings",
    "turbulence",
]

_ESTIMATORS = ("ContinuaClassifier", "ContinuaForecaster")


def __getattr__(name: str) -> Any:
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'continua.recipes' has no attribute {name!r}")
    warnings.warn(f"{name} has moved: import it from continua.estimators.", DeprecationWarning, stacklevel=2)
    return getattr(continua, name)
