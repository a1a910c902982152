"""Shipped recipes, each a function."""

from continua.recipes.cheatsheet import CheatsheetSettings, cheatsheet
from continua.recipes.elastic import ElasticSettings, elastic
from continua.recipes.functions import (
    BurgersSettings,
    DarcySettings,
    FunctionSettings,
    VorticitySettings,
    burgers,
    darcy,
    navier_stokes,
)
from continua.recipes.recipe import SHIPPED, Bundle, Recipe, build, changes_of, parse, resume, start, tokens_of
from continua.recipes.text import TextSettings, text

__all__ = [
    "BurgersSettings",
    "DarcySettings",
    "FunctionSettings",
    "VorticitySettings",
    "burgers",
    "darcy",
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
    "parse",
    "resume",
    "start",
    "text",
    "tokens_of",
]
