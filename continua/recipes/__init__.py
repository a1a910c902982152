"""Shipped recipes, each a function."""

from continua.recipes.cheatsheet import CheatsheetSettings, cheatsheet
from continua.recipes.recipe import SHIPPED, Bundle, Recipe, build, changes_of, parse, resume, start, tokens_of
from continua.recipes.text import TextSettings, text

__all__ = [
    "SHIPPED",
    "Bundle",
    "CheatsheetSettings",
    "Recipe",
    "TextSettings",
    "build",
    "changes_of",
    "cheatsheet",
    "parse",
    "resume",
    "start",
    "text",
    "tokens_of",
]
