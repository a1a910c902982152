"""Sizes as they are typed."""

from typing import Any

from continua.axes import Discretisation, at
from continua.errors import ConfigError
from continua.flow import Fixed


def check_which(which: str) -> None:
    """Refuse a model of a run that is neither its best nor its last."""
    if which not in ("best", "last"):
        raise ConfigError("--which is best or last", got=which, remedy="Leave it out for the best.")


def parse_at(text: str) -> Discretisation:
    """Read ``d=64,h=2,z=3``; steps may be joined, ``z=2+1+1`` are four of them walked as three.

    >>> print(parse_at("d=64,z=3"))
    at(d=64, z=3)
    >>> print(parse_at("z=2+1+1"))
    at(z=steps 2+1+1)
    """
    sizes: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        letter, equals, size = item.partition("=")
        numbers = size.split("+")
        joined = letter.strip() == "z" and len(numbers) > 1
        if not equals or not all(number.isdecimal() for number in numbers) or (len(numbers) > 1 and not joined):
            remedy = "Use whole numbers; steps of depth may be joined, z=2+1+1."
            raise ConfigError("--at takes sizes such as d=64,h=2,z=3", got=item, remedy=remedy)
        lengths = tuple(int(number) for number in numbers)
        sizes[letter.strip()] = Fixed(len(lengths), lengths=lengths) if joined else lengths[0]
    return at(**sizes)
