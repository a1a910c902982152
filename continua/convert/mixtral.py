"""Mixtral, Qwen2-MoE and Qwen3-MoE in Hugging Face's files: a file names every expert of every layer."""

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
from continua.convert.names import Entry, Layout, NameMap
from continua.convert.qwen import qwen_windows
from continua.errors import CheckpointError
from continua.models import Transformer, zoo
from continua.operators import Beside
from continua.settings import Size, Whole

MIXTRAL_NAMES = ("block_sparse_moe", "w1", "w3", "w2")
OURS = ("w1", "gate", "w2")
QWEN_NAMES = ("mlp", "gate_proj", "up_proj", "down_proj")


def _names(model: Transformer, spelt: tuple[str, str, str, str]) -> NameMap:
    """The gate, and three maps of each expert: those that SiLU bends, those they are multiplied with, those behind."""
    readout: Any = model.readout
    place, *maps = spelt
    feed: Any = model.block.parts[1]
    shared = isinstance(feed.inner, Beside)
    first = f"{F}.inner.first" if shared else f"{F}.inner"
    experts = [
        Entry(f"{first}.{own}.coefficients", f"{LAYER}.{place}.experts.{{x}}.{theirs}.weight")
        for own, theirs in zip(OURS, maps, strict=True)
    ]
    return NameMap(
        prefix="model.",
        ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
        bare=(HEAD,),
        entries=(
            *attention_entries(model),
            *trunk_entries(model),
            Entry(f"{first}.choice.coefficients", f"{LAYER}.{place}.gate.weight"),
            *experts,
            *(_shared_entries(model) if shared else ()),
            *(() if readout.tied else (Entry("readout.head.coefficients", HEAD),)),
        ),
    )


def _shared_entries(model: Transformer) -> tuple[Entry, ...]:
    """The expert of all tokens: its pieces are one matrix in the file."""
    own = f"{F}.inner.second"
    theirs = f"{LAYER}.mlp.shared_expert"
    row = Layout(shape=(1, model.axes.d.n))  # type: ignore[union-attr, arg-type]
    return (
        Entry(f"{own}.w1.coefficients", f"{theirs}.gate_proj.weight", Layout(2)),
        Entry(f"{own}.gate.coefficients", f"{theirs}.up_proj.weight", Layout(2)),
        Entry(f"{own}.w2.coefficients", f"{theirs}.down_proj.weight"),
        Entry(f"{own}.share.coefficients", f"{LAYER}.mlp.shared_expert_gate.weight", row),
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


def _mixture(config: Settings, shared: int = 0) -> zoo.Mixture:
    """Experts in all layers."""
    expect(config, decoder_sparse_step=1)
    expect({"mlp_only_layers": list(config.take("mlp_only_layers", list[int], []))}, mlp_only_layers=[])
    count = config.take("num_experts", Size, None) or config.take("num_local_experts", Size)
    return zoo.Mixture(
        count, config.take("num_experts_per_tok", Size), config.take("norm_topk_prob", bool, False), shared
    )


def build_qwen2(config: Settings, stored: set[str]) -> Transformer:
    """Qwen2 with a mixture of experts and a shared one, as wide as some of them, in all layers."""
    own = config.take("moe_intermediate_size", Size)
    wide = config.take("shared_expert_intermediate_size", Size)
    if wide % own:
        remedy = "Models whose shared expert is not as wide as a whole number of experts are not in the zoo yet."
        got = f"{wide} and {own}"
        raise CheckpointError("this shared expert is a whole number of experts wide", got=got, remedy=remedy)
    settled = Settings({**config, "intermediate_size": own})
    most = config.take("max_window_layers", Whole, 28)
    windows = qwen_windows(config, stored, lambda layer: layer % 2 == 0 and layer < most)
    bias = ("q", "k", "v") if config.take("qkv_bias", bool, True) else ()
    return built(settled, style_of(settled, stored, bias=bias, experts=_mixture(config, wide // own), **windows))


def build_qwen(config: Settings, stored: set[str]) -> Transformer:
    """Qwen3 with a mixture of experts in all layers."""
    mixture = _mixture(config)
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


def describe_qwen2(model: Transformer) -> dict[str, Any]:
    """The sizes of a Qwen2-MoE as ``config.json`` spells them."""
    attention: Any = model.block.parts[0].inner
    feed: Any = model.block.parts[1]
    windows = windows_described(attention.mask, model.native.z.steps)
    found = _described_qwen(model, "Qwen2MoeForCausalLM")
    return {
        **found,
        **windows,
        "use_sliding_window": windows["sliding_window"] is not None,
        "shared_expert_intermediate_size": feed.inner.second.pieces * found["moe_intermediate_size"],
        "qkv_bias": attention.bq is not None,
    }


def describe_qwen(model: Transformer) -> dict[str, Any]:
    """The sizes of a Qwen3-MoE as ``config.json`` spells them."""
    attention: Any = model.block.parts[0].inner
    window = windows_described(attention.mask, 1)["sliding_window"]
    return {
        **_described_qwen(model, "Qwen3MoeForCausalLM"),
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "attention_bias": attention.bq is not None,
    }


def _described_qwen(model: Transformer, name: str) -> dict[str, Any]:
    found = _described(model, name)
    return {
        **found,
        "num_experts": found["num_local_experts"],
        "moe_intermediate_size": found["intermediate_size"],
        "norm_topk_prob": _experts_of(model).gate_of_experts.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _experts_of(model: Transformer) -> Any:
    feed: Any = model.block.parts[1]
    return feed.inner.first if isinstance(feed.inner, Beside) else feed.inner


def _described(model: Transformer, name: str) -> dict[str, Any]:
    experts = _experts_of(model)
    return {
        **described(model, name),
        "num_local_experts": experts.choice.coefficients.shape[-2],
        "num_experts_per_tok": experts.gate_of_experts.top,
        "bos_token_id": None,
        "eos_token_id": None,
    }


MIXTRAL = Architecture("mixtral", build, names, describe)
QWEN2_MOE = Architecture("qwen2_moe", build_qwen2, qwen_names, describe_qwen2)
QWEN3_MOE = Architecture("qwen3_moe", build_qwen, qwen_names, describe_qwen)
