"""Rotary positions in Hugging Face's ``config.json``: base, stretch, and the part of a head that is turned."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from continua.convert.architecture import Settings
from continua.errors import CheckpointError
from continua.operators import DynamicStretch, LinearStretch, Llama3Stretch, Rotary, Stretch, YarnStretch
from continua.settings import NonNegative, Positive, Share

ROPE = "rope_parameters"
KNOWN = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class Rotations:
    """What ``Rotary`` is made of."""

    base: float
    stretch: Stretch | None
    share: float


def rope_of(config: Settings) -> Settings:
    """The table of new files (``rope_parameters``) or of old ones (``rope_scaling``)."""
    table = Mapping[str, Any]
    return Settings(config.take(ROPE, table, {}) or config.take("rope_scaling", table, {}))


def rotations(config: Settings, share: float = 1.0) -> Rotations:
    """From new files and old ones (``rope_theta`` beside the table)."""
    rope = rope_of(config)
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if kind not in KNOWN or config.take("rope_interleaved", bool, False):
        got = "interleaved pairs" if kind in KNOWN else repr(kind)
        remedy = f"Known are {', '.join(KNOWN)}; other rotations are not in the zoo yet."
        raise CheckpointError("this stretch of rotary positions is not read", got=got, remedy=remedy)
    base = rope.take("rope_theta", Positive, config.take("rope_theta", Positive, 10000.0))
    part = rope.take("partial_rotary_factor", Share, config.take("partial_rotary_factor", Share, share))
    return Rotations(float(base), _stretch(str(kind), rope, config), float(part))


def _stretch(kind: str, rope: Settings, config: Settings) -> Stretch | None:
    if kind == "default":
        return None
    if kind == "dynamic":
        return DynamicStretch(rope.take("factor", Positive), config.take("max_position_embeddings", Positive))
    if kind == "linear":
        return LinearStretch(rope.take("factor", Positive))
    key = "original_max_position_embeddings"
    trained = rope if rope.get(key) is not None else config
    length = trained.take(key if trained.get(key) is not None else "max_position_embeddings", Positive)
    if kind == "llama3":
        low = rope.take("low_freq_factor", Positive)
        return Llama3Stretch(rope.take("factor", Positive), low, rope.take("high_freq_factor", Positive), length)
    factor = rope.take("factor", Positive, None)
    if factor is None:
        factor = config.take("max_position_embeddings", Positive) / length
    return YarnStretch(
        factor,
        length,
        rope.take("beta_fast", Positive, 32.0),
        rope.take("beta_slow", Positive, 1.0),
        rope.take("truncate", bool, True),
        _gain(rope, factor),
    )


def _gain(rope: Settings, factor: float) -> float:
    """YaRN's factor of queries and keys: given, or from the logarithm of the stretch."""
    given = rope.take("attention_factor", NonNegative, None)
    if given is not None:
        return float(given)
    over = rope.take("mscale", NonNegative, None)
    under = rope.take("mscale_all_dim", NonNegative, None)
    if over and under:
        return _logarithmic(factor, over) / _logarithmic(factor, under)
    return _logarithmic(factor, 1.0)


def _logarithmic(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rotations_described(position: Rotary) -> dict[str, Any]:
    """The entries of ``config.json``, for new and old readers."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": position.base}
    beside: dict[str, Any] = {"rope_theta": position.base}
    if position.share != 1:
        rope["partial_rotary_factor"] = position.share
    match position.stretch:
        case LinearStretch(factor):
            rope |= {"rope_type": "linear", "factor": factor}
        case DynamicStretch(factor, length):
            rope |= {"rope_type": "dynamic", "factor": factor}
            beside["max_position_embeddings"] = int(length)
        case Llama3Stretch(factor, low, high, length):
            rope |= {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high}
            rope["original_max_position_embeddings"] = int(length)
        case YarnStretch(factor, length, fast, slow, whole, gain):
            rope |= {"rope_type": "yarn", "factor": factor, "beta_fast": fast, "beta_slow": slow, "truncate": whole}
            rope |= {"original_max_position_embeddings": int(length), "attention_factor": gain}
    return {**beside, ROPE: rope}
