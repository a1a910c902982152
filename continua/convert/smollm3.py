"""SmolLM3 in Hugging Face's files."""

from typing import Any

from continua.convert.architecture import Architecture, Settings
from continua.convert.llama import (
    built,
    depth_of,
    described_without_positions,
    names,
    sliding_layers,
    style_of,
    windows_described,
)
from continua.convert.rotations import rotations_described
from continua.errors import CheckpointError
from continua.models import Transformer
from continua.operators import PositionByDepth
from continua.settings import Count, Size


def build(config: Settings, stored: set[str]) -> Transformer:
    """Llama with rotations in the layers that are 1 in ``no_rope_layers``: all but every fourth unless said."""
    depth = depth_of(config, stored)
    every = config.take("no_rope_layer_interval", Count, 4)
    given = config.take("no_rope_layers", tuple[int, ...], None)
    usual = tuple((layer + 1) % every != 0 for layer in range(depth))
    turned = usual if given is None else tuple(map(bool, given))[:depth]
    if len(turned) < depth:
        remedy = "Write the folder again with save_pretrained."
        raise CheckpointError(f"no_rope_layers needs {depth} entries", got=len(turned), remedy=remedy)
    own: dict[str, Any] = {"bias": config.take("attention_bias", bool, False), "turned": turned}
    if config.take("use_sliding_window", bool, False):
        own["window"] = config.take("sliding_window", Size, None)
        own["sliding"] = sliding_layers(config, stored, lambda layer: not turned[layer])
    config = Settings({"rope_theta": 2000000.0, **config})
    return built(config, style_of(config, stored, **own))


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a SmolLM3 as ``config.json`` spells them."""
    attention: Any = model.block.parts[0].inner
    position = attention.position
    by_depth = isinstance(position, PositionByDepth)
    depth = model.native.z.steps
    windows = windows_described(attention.mask, depth)
    return {
        **described_without_positions(model, "SmolLM3ForCausalLM"),
        **rotations_described(position.positions[0] if by_depth else position),
        **windows,
        "no_rope_layers": [int(not other) for other in position.order] if by_depth else [1] * depth,
        "use_sliding_window": windows["sliding_window"] is not None,
        "attention_bias": attention.bq is not None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


SMOLLM3 = Architecture("smollm3", build, names, describe)
