"""Sizes as they are typed."""

from typing import Any

from continua.axes import Discretisation, at
from continua.errors import ConfigError


def check_which(which: str) -> None:
    """Refuse a model of a run that is neither its best nor its last."""
    if which not in ("best", "last"):
        raise ConfigError("--which is best or last", got=which, remedy="Leave it out for the best.")


def parse_at(text: str) -> Discretisation:
    """Read ``d=64,h=2,z=3``.

    >>> print(parse_at("d=64,z=3"))
    at(d=64, z=3)
    """
    sizes: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        letter, equals, size = item.partition("=")
        if not equals or not size.isdigit():
            raise ConfigError("--at takes sizes such as d=64,h=2,z=3", got=item, remedy="Use whole numbers.")
        sizes[letter.strip()] = int(size)
    return at(**sizes)
