"""Heads that share keys and values, and what of attention is calibrated and corrected because of it."""

from dataclasses import replace

from continua.axes import Counting, Points
from continua.errors import ConfigError
from continua.fields import ByBasis, Nodal, Parametrisation
from continua.operators.correction import Map


def of_heads(groups: int | None, whole: bool) -> dict[str, int]:
    """Where weights have the nodes of their heads; those that are shared have none, and a refit takes those of o."""
    own = {"q": -2, "bq": -1}
    each = own if groups is not None else {**own, "k": -2, "v": -2, "bk": -1, "bv": -1}
    return {**each, "o": -1} if whole else each


def maps(groups: int | None) -> dict[str, Map]:
    """The maps that are corrected; keys and values that heads share stay."""
    own = {"q": Map("he", "c"), "o": Map("d", "he")}
    return own if groups is not None else {**own, "k": Map("he", "c"), "v": Map("he", "c")}


def vectors(groups: int | None, bias: tuple[str, ...]) -> dict[str, str]:
    """The shifts that are corrected; those of shared keys and values stay."""
    own = {"q": "he", "o": "d"} if groups is not None else {"q": "he", "k": "he", "v": "he", "o": "d"}
    return {f"b{name}": letters for name, letters in own.items() if name in bias}


def grouped(weights: Parametrisation, groups: int | None) -> Parametrisation:
    """The parametrisation of shared keys and values: constant on groups of heads."""
    if groups is None:
        return weights
    heads = weights.axes.h.n if isinstance(weights.axes.h, Points) else None
    if heads is None or not isinstance(weights, ByBasis):
        raise ConfigError("groups share the heads of a counted axis", got=weights.axes.h, remedy="Use h=Points(n).")
    if groups < 1 or heads % groups:
        raise ConfigError(f"{heads} heads do not split into equal groups", got=groups, remedy="Choose a divisor.")
    axes = replace(weights.axes, h=Points(groups))
    return replace(weights, axes=axes, bases={**weights.bases, "h": Nodal(Counting(groups))})
