"""Phi-3 in Hugging Face's files: Llama with fused queries, keys and values, and with both maps of a gate fused."""

import math
from typing import Any

from continua.convert.architecture import Architecture, Settings
from continua.convert.llama import HEAD, LAYER, A, F, built, common_entries, described, style_of, windows_described
from continua.convert.names import Entry, Layout, NameMap
from continua.convert.rotations import ROPE, rope_of
from continua.errors import CheckpointError
from continua.models import Transformer
from continua.operators import LongStretch
from continua.settings import NonNegative, Positive, Size


def names(model: Transformer) -> NameMap:
    """Rows of queries, then of keys, then of values; rows that SiLU bends, then those they are multiplied with."""
    attention: Any = model.block.parts[0].inner
    heads: int = model.axes.h.n  # type: ignore[union-attr, assignment]
    groups = attention.groups or heads
    return NameMap(
        prefix="model.",
        ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
        bare=(HEAD,),
        entries=(
            *fused_heads(f"{A}.inner", f"{LAYER}.self_attn.qkv_proj", heads, groups),
            Entry(f"{F}.inner.w1.coefficients", f"{LAYER}.mlp.gate_up_proj.weight", Layout(part=(0, 2))),
            Entry(f"{F}.inner.gate.coefficients", f"{LAYER}.mlp.gate_up_proj.weight", Layout(part=(1, 2))),
            *common_entries(model),
        ),
    )


def fused_heads(ours: str, theirs: str, heads: int, groups: int) -> tuple[Entry, ...]:
    """Queries, keys and values in one matrix, one behind the other."""
    whole = heads + 2 * groups
    places = (("q", 0, heads), ("k", heads, groups), ("v", heads + groups, groups))
    return tuple(
        Entry(f"{ours}.{letter}.coefficients", f"{theirs}.weight", Layout(2, part=(start, whole), units=units))
        for letter, start, units in places
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """Llama with a window or without; long texts may have factors of their own."""
    rope = rope_of(config)
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("longrope", "su", "yarn"):
        plain = Settings({**config, "rope_scaling": None, ROPE: {**rope, "rope_type": "default"}})
        style = style_of(plain, stored, _long(config, rope), partial=True, window=_window(config))
        return built(config, style)
    return built(config, style_of(config, stored, partial=True, window=_window(config)))


def _window(config: Settings) -> int | None:
    window: int | None = config.take("sliding_window", Size, None)
    return window


def _long(config: Settings, rope: Settings) -> LongStretch:
    """The factors of short and of long texts; queries and keys grow with the logarithm of the stretch."""
    key = "original_max_position_embeddings"
    length = config.take(key, Positive, None) or rope.take(key, Positive)
    factor = rope.take("factor", Positive, config.take("max_position_embeddings", Positive) / length)
    usual = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    short = rope.take("short_factor", tuple[Positive, ...])
    long = rope.take("long_factor", tuple[Positive, ...])
    if not short or not long:
        remedy = "Write the folder again with save_pretrained."
        raise CheckpointError("config.json: every pair has a factor", got="none", remedy=remedy)
    return LongStretch(short, long, length, rope.take("attention_factor", NonNegative, usual))


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a Phi-3 as ``config.json`` spells them."""
    attention: Any = model.block.parts[0].inner
    found = described(model, "Phi3ForCausalLM")
    found |= {"sliding_window": windows_described(attention.mask, 1)["sliding_window"]}
    found |= {"bos_token_id": None, "eos_token_id": None}
    stretch = attention.position.stretch
    if isinstance(stretch, LongStretch):
        length = int(stretch.length)
        factors = {"short_factor": list(stretch.short), "long_factor": list(stretch.long)}
        rope = {**found[ROPE], **factors, "rope_type": "longrope", "attention_factor": stretch.gain, "factor": 2.0}
        found |= {ROPE: {**rope, "original_max_position_embeddings": length}}
        found |= {"original_max_position_embeddings": length, "max_position_embeddings": 2 * length}
    return found


PHI3 = Architecture("phi3", build, names, describe)
