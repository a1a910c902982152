"""Recipes and their settings as people read them, and settings from a file."""

import tomllib
from pathlib import Path
from typing import Any

from continua.errors import ConfigError
from continua.recipes.recipe import SHIPPED, find, settings_of
from continua.settings.text import Setting, Typed, listed
from continua.training import Training

# of training with the settings as they are shipped, on one core; benchmarks/recipes.py measures them
MINUTES = {
    "text": 5.0,
    "cheatsheet": 5.0,
    "elastic": 5.0,
    "burgers": 1.5,
    "darcy": 9.0,
    "navier-stokes": 8.0,
    "digits": 0.5,
}
EXTENSIONS = (".toml", ".yaml", ".yml")


def summary(name: str) -> str:
    """The first sentence of a recipe's docstring."""
    lines = (find(name).__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""


def time_of(name: str) -> str:
    """How long a shipped recipe trains, in words; empty for others."""
    minutes = MINUTES.get(name)
    if minutes is None:
        return ""
    return f"about {minutes:.0f} minutes" if minutes > 1.5 else f"about {60 * minutes:.0f} seconds"


def recipes() -> list[tuple[str, str, str]]:
    """Name, what it trains and how long that takes, for each shipped recipe."""
    return [(name, summary(name), time_of(name)) for name in SHIPPED]


def settings_listed(name: str) -> tuple[list[Setting], list[Setting]]:
    """The settings of a recipe itself, and those of ``Training`` that it does not have."""
    own = listed(settings_of(find(name)))
    names = {setting.name for setting in own}
    return own, [setting for setting in listed(Training) if setting.name not in names]


def from_file(path: str | Path) -> dict[str, Any]:
    """Settings of a TOML or YAML file: one ``key = value`` each; those of a table ``[training]`` stand beside them."""
    path = Path(path)
    if path.suffix.lower() not in EXTENSIONS:
        raise ConfigError("settings come as TOML or YAML", got=path.name, remedy="Name it settings.toml.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} cannot be read", got=str(problem), remedy="Check the path.") from problem
    plain = _toml(path, text) if path.suffix.lower() == ".toml" else _yaml(path, text)
    if not isinstance(plain, dict) or not isinstance(plain.get("training", {}), dict):
        remedy = "Write one key = value for each setting."
        raise ConfigError(f"{path} holds no settings", got=type(plain).__name__, remedy=remedy)
    flat = {**{key: value for key, value in plain.items() if key != "training"}, **plain.get("training", {})}
    return {str(key): Typed(value) if isinstance(value, str) else value for key, value in flat.items()}


def _toml(path: Path, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigError(f"{path} is not TOML", got=str(wrong), remedy="Write lines such as steps = 500.") from wrong


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError as missing:
        remedy = "Write the settings as TOML, or pip install pyyaml."
        raise ConfigError("YAML is read by pyyaml", got="it is not installed", remedy=remedy) from missing
    try:
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError) as wrong:
        got = " ".join(str(wrong).split())
        raise ConfigError(f"{path} is not YAML", got=got, remedy="Write lines such as steps: 500.") from wrong
