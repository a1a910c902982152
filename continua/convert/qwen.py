"""Qwen2 and Qwen3 in Hugging Face's files."""

from collections.abc import Callable
from typing import Any

from continua.convert.architecture import Architecture, Settings
from continua.convert.llama import built, described, names, sliding_layers, style_of, windows_described
from continua.models import Transformer
from continua.settings import Size, Whole


def _windows(config: Settings, stored: set[str]) -> dict[str, Any]:
    first = config.take("max_window_layers", Whole, 28)
    return qwen_windows(config, stored, lambda layer: layer >= first)


def qwen_windows(config: Settings, stored: set[str], by_default: Callable[[int], bool]) -> dict[str, Any]:
    """The window of some layers, where ``use_sliding_window`` asks for it."""
    if not config.take("use_sliding_window", bool, False):
        return {}
    sliding = sliding_layers(config, stored, by_default)
    return {"window": config.take("sliding_window", Size, None), "sliding": sliding}


def build_2(config: Settings, stored: set[str]) -> Transformer:
    """Llama with biases of queries, keys and values."""
    return built(config, style_of(config, stored, bias=("q", "k", "v"), **_windows(config, stored)))


def build_3(config: Settings, stored: set[str]) -> Transformer:
    """Llama with a norm of queries and keys in each head, of 128 coordinates unless said."""
    config = Settings({**config, "head_dim": config.get("head_dim") or 128})
    bias = config.take("attention_bias", bool, False)
    return built(config, style_of(config, stored, bias=bias, head_norm=True, **_windows(config, stored)))


def _described(model: Transformer, name: str) -> dict[str, Any]:
    attention: Any = model.block.parts[0].inner
    windows = windows_described(attention.mask, model.native.z.steps)
    return {**described(model, name), **windows, "use_sliding_window": windows["sliding_window"] is not None}


def describe_2(model: Transformer) -> dict[str, Any]:
    """The sizes of a Qwen2 as ``config.json`` spells them."""
    return _described(model, "Qwen2ForCausalLM")


def describe_3(model: Transformer) -> dict[str, Any]:
    """The sizes of a Qwen3 as ``config.json`` spells them."""
    attention: Any = model.block.parts[0].inner
    return {**_described(model, "Qwen3ForCausalLM"), "attention_bias": attention.bq is not None}


QWEN2 = Architecture("qwen2", build_2, names, describe_2)
QWEN3 = Architecture("qwen3", build_3, names, describe_3)
