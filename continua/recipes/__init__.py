"""Shipped recipes, each a function."""

from continua.recipes.recipe import SHIPPED, Bundle, Recipe, build, parse, resume, start, tokens_of
from continua.recipes.text import TextSettings, text

__all__ = ["SHIPPED", "Bundle", "Recipe", "TextSettings", "build", "parse", "resume", "start", "text", "tokens_of"]
