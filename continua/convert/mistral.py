"""Mistral in Hugging Face's files."""

from typing import Any

from continua.convert.architecture import Architecture, Settings
from continua.convert.llama import built, described, names, style_of, windows_described
from continua.models import Transformer
from continua.settings import Size


def build(config: Settings, stored: set[str]) -> Transformer:
    """Llama with one window in all layers, or none."""
    return built(config, style_of(config, stored, window=config.take("sliding_window", Size, None)))


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a Mistral as ``config.json`` spells them."""
    attention: Any = model.block.parts[0].inner
    window = windows_described(attention.mask, 1)["sliding_window"]
    return {**described(model, "MistralForCausalLM"), "sliding_window": window}


MISTRAL = Architecture("mistral", build, names, describe)
