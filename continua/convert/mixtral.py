"""Mixtral and Qwen3-MoE in Hugging Face's files: a file names every expert of every layer."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.llama import (
    HEAD,
    LAYER,
    F,
    attention_entries,
    built,
    described,
    style_of,
    trunk_entries,
    windows_described,
)
from continua.convert.names import Entry, NameMap
from continua.models import Transformer, zoo
from continua.settings import Size

MIXTRAL_NAMES = ("block_sparse_moe", "w1", "w3", "w2")
QWEN_NAMES = ("mlp", "gate_proj", "up_proj", "down_proj")


def _names(model: Transformer, spelt: tuple[str, str, str, str]) -> NameMap:
    """The gate, and three maps of each expert: those that SiLU bends, those they are multiplied with, those behind."""
    readout: Any = model.readout
    place, *maps = spelt
    ours = ("w1", "gate", "w2")
    experts = [
        Entry(f"{F}.inner.{own}.coefficients", f"{LAYER}.{place}.experts.{{x}}.{theirs}.weight")
        for own, theirs in zip(ours, maps, strict=True)
    ]
    return NameMap(
        prefix="model.",
        ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
        bare=(HEAD,),
        entries=(
            *attention_entries(model),
            *trunk_entries(model),
            Entry(f"{F}.inner.choice.coefficients", f"{LAYER}.{place}.gate.weight"),
            *experts,
            *(() if readout.tied else (Entry("readout.head.coefficients", HEAD),)),
        ),
    )


def names(model: Transformer) -> NameMap:
    """Mixtral's names."""
    return _names(model, MIXTRAL_NAMES)


def qwen_names(model: Transformer) -> NameMap:
    """Qwen's names."""
    return _names(model, QWEN_NAMES)


def build(config: Settings, stored: set[str]) -> Transformer:
    """Llama with a mixture of experts, with a window or without."""
    expect(config, router_jitter_noise=0.0)
    mixture = zoo.Mixture(config.take("num_local_experts", Size), config.take("num_experts_per_tok", Size))
    config = Settings({"rope_theta": 1e6, **config})
    return built(config, style_of(config, stored, window=config.take("sliding_window", Size, None), experts=mixture))


def build_qwen(config: Settings, stored: set[str]) -> Transformer:
    """Qwen3 with a mixture of experts in all layers."""
    expect(config, decoder_sparse_step=1)
    expect({"mlp_only_layers": list(config.take("mlp_only_layers", list[int], []))}, mlp_only_layers=[])
    count = config.take("num_experts", Size, None) or config.take("num_local_experts", Size)
    top = config.take("num_experts_per_tok", Size)
    mixture = zoo.Mixture(count, top, config.take("norm_topk_prob", bool, False))
    slides = config.take("use_sliding_window", bool, False)
    own = {"bias": config.take("attention_bias", bool, False), "head_norm": True}
    own["window"] = config.take("sliding_window", Size, None) if slides else None
    config = Settings({**config, "intermediate_size": config["moe_intermediate_size"]})
    return built(config, style_of(config, stored, experts=mixture, **own))


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a Mixtral as ``config.json`` spells them."""
    attention: Any = model.block.parts[0].inner
    window = windows_described(attention.mask, 1)["sliding_window"]
    return {**_described(model, "MixtralForCausalLM"), "sliding_window": window}


def describe_qwen(model: Transformer) -> dict[str, Any]:
    """The sizes of a Qwen3-MoE as ``config.json`` spells them."""
    attention: Any = model.block.parts[0].inner
    feed: Any = model.block.parts[1]
    window = windows_described(attention.mask, 1)["sliding_window"]
    found = _described(model, "Qwen3MoeForCausalLM")
    return {
        **found,
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "num_experts": found["num_local_experts"],
        "moe_intermediate_size": found["intermediate_size"],
        "norm_topk_prob": feed.inner.gate_of_experts.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": attention.bq is not None,
    }


def _described(model: Transformer, name: str) -> dict[str, Any]:
    feed: Any = model.block.parts[1]
    return {
        **described(model, name),
        "num_local_experts": feed.inner.choice.coefficients.shape[-2],
        "num_experts_per_tok": feed.inner.gate_of_experts.top,
        "bos_token_id": None,
        "eos_token_id": None,
    }


MIXTRAL = Architecture("mixtral", build, names, describe)
QWEN3_MOE = Architecture("qwen3_moe", build_qwen, qwen_names, describe_qwen)
