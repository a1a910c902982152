"""Gemma 3, its text model, in Hugging Face's files."""

from collections.abc import Mapping
from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.gemma2 import built, described, names
from continua.convert.llama import FULL, SLIDING, sliding_layers
from continua.convert.rotations import ROPE, Rotations, rotations, rotations_described
from continua.models import Transformer
from continua.operators import PositionByDepth
from continua.settings import Count, Positive

PATTERN = "sliding_window_pattern"


def build(config: Settings, stored: set[str]) -> Transformer:
    """Gemma 2 with norms of queries and keys, and rotations of their own in the layers that slide."""
    expect(config, attn_logit_softcapping=None)
    every = config.take(PATTERN, Count, config.take(f"_{PATTERN}", Count, 6))
    sliding = sliding_layers(config, stored, lambda layer: (layer + 1) % every != 0)
    whole = rotations_of_layers(config, FULL, "rope_theta", 1e6)
    local = rotations_of_layers(config, SLIDING, "rope_local_base_freq", 10000.0)
    expect({"local": local.stretch}, local=None)
    own = {"base": whole.base, "stretch": whole.stretch, "local_base": local.base, "head_norm": True}
    return built(config, stored, sliding=sliding, **own)


def rotations_of_layers(config: Settings, kind: str, key: str, usual: float) -> Rotations:
    """What one kind of layers says of its rotations: a table of each kind in new files, an entry ``key`` in old ones.

    A stretch of old files is that of layers with the whole past.
    """
    tables = config.take(ROPE, Mapping[str, Any], None)
    if tables is not None and kind in tables:
        return rotations(Settings({**config, ROPE: Settings(tables).take(kind, Mapping[str, Any])}))
    rope = config.take("rope_scaling", Mapping[str, Any], {}) if kind == FULL else {}
    base = config.take(key, Positive, usual)
    return rotations(Settings({**config, ROPE: None, "rope_theta": base, "rope_scaling": rope}))


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a Gemma 3 as ``config.json`` spells them, for new and old readers."""
    attention: Any = model.block.parts[0].norm.inner
    position = attention.position
    by_depth = isinstance(position, PositionByDepth)
    whole = position.positions[0] if by_depth else position
    local = position.positions[1] if by_depth else position
    turned = rotations_described(whole)
    tables = {FULL: turned[ROPE], SLIDING: rotations_described(local)[ROPE]}
    old = {"rope_theta": whole.base, "rope_local_base_freq": local.base}
    return {**described(model, "Gemma3ForCausalLM"), **turned, **old, ROPE: tables}


GEMMA3 = Architecture("gemma3_text", build, names, describe)
