"""Shipped recipes, each a function."""

from continua.recipes.recipe import Bundle, Recipe, build, parse, resume, start, tokens_of
from continua.recipes.text import TextSettings, text

SHIPPED: dict[str, Recipe] = {"text": text}

__all__ = ["SHIPPED", "Bundle", "Recipe", "TextSettings", "build", "parse", "resume", "start", "text", "tokens_of"]
