"""DINOv2 in Hugging Face's files, with registers or without; what it answers are states."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.convert.vit import described_pixels, patch_entries, pixels_of
from continua.errors import CheckpointError
from continua.models import Transformer, zoo
from continua.settings import Count, Positive, Size

A, F = "block.parts.0", "block.parts.1"
LAYER = "encoder.layer.{z}"
LARGEST = 2**31  # a hidden width beyond it is a mistake


def names(model: Transformer) -> NameMap:
    """The names on disk: transformers gives some of these tensors other names in memory."""
    return _names(model, "dinov2.")


def register_names(model: Transformer) -> NameMap:
    """The same beside registers."""
    return _names(model, "dinov2_with_registers.")


def _names(model: Transformer, prefix: str) -> NameMap:
    own, feed = f"{A}.norm.inner", f"{F}.norm.inner"
    attention: Any = model.block.parts[0].norm.inner
    embed: Any = model.embed
    width: Any = model.axes.d.n  # type: ignore[union-attr]
    maps = [("q", "attention.attention.query"), ("k", "attention.attention.key"), ("v", "attention.attention.value")]
    heads = [Entry(f"{own}.{k}.coefficients", f"{LAYER}.{theirs}.weight", Layout(2)) for k, theirs in maps]
    given = maps if attention.bq is not None else []
    biases = [Entry(f"{own}.b{k}.coefficients", f"{LAYER}.{theirs}.bias", flat=True) for k, theirs in given]
    count = embed.learned - 1
    registers = Entry("embed.extra.coefficients", "embeddings.register_tokens", Layout(shape=(1, count, width)))
    return NameMap(
        prefix=prefix,
        ignored=("embeddings.mask_token",),
        entries=(
            *patch_entries(model),
            *((registers,) if count else ()),
            *norm(f"{A}.norm.norm", f"{LAYER}.norm1"),
            *heads,
            *biases,
            Entry(f"{own}.o.coefficients", f"{LAYER}.attention.output.dense.weight"),
            Entry(f"{own}.bo.coefficients", f"{LAYER}.attention.output.dense.bias", flat=True),
            Entry(f"{A}.inner.scale.coefficients", f"{LAYER}.layer_scale1.lambda1", flat=True),
            *norm(f"{F}.norm.norm", f"{LAYER}.norm2"),
            Entry(f"{feed}.w1.coefficients", f"{LAYER}.mlp.fc1.weight"),
            Entry(f"{feed}.b1.coefficients", f"{LAYER}.mlp.fc1.bias", flat=True),
            Entry(f"{feed}.w2.coefficients", f"{LAYER}.mlp.fc2.weight"),
            Entry(f"{feed}.b2.coefficients", f"{LAYER}.mlp.fc2.bias", flat=True),
            Entry(f"{F}.inner.scale.coefficients", f"{LAYER}.layer_scale2.lambda1", flat=True),
            *norm("readout.before.0", "layernorm"),
        ),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's DINOv2 with the sizes of ``config.json``."""
    return _built(config, 0)


def build_with_registers(config: Settings, stored: set[str]) -> Transformer:
    """The same beside registers: four unless said."""
    return _built(config, config.take("num_register_tokens", Count, 4))


def _built(config: Settings, registers: int) -> Transformer:
    expect(config, hidden_act="gelu", use_swiglu_ffn=False)
    width = config.take("hidden_size", Size)
    hidden = width * config.take("mlp_ratio", Positive, 4)
    if hidden > LARGEST:
        remedy = "Write the folder again with save_pretrained."
        raise CheckpointError("config.json: mlp_ratio is the hidden width over d", got=f"{hidden:g}", remedy=remedy)
    return zoo.dinov2(
        pixels_of(config),
        d=width,
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        m=int(hidden),
        eps=config["layer_norm_eps"],
        qkv_bias=config.get("qkv_bias", True),
        registers=registers,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a DINOv2 as ``config.json`` spells them."""
    return _described(model, "Dinov2Model", 0)


def describe_with_registers(model: Transformer) -> dict[str, Any]:
    """The same beside registers."""
    embed: Any = model.embed
    count = embed.learned - 1
    return {**_described(model, "Dinov2WithRegistersModel", count), "num_register_tokens": count}


def _described(model: Transformer, name: str, registers: int) -> dict[str, Any]:
    embed: Any = model.embed
    attention: Any = model.block.parts[0].norm.inner
    readout: Any = model.readout
    width: Any = model.axes.d.n  # type: ignore[union-attr]
    hidden: Any = model.axes.m.n  # type: ignore[union-attr]
    if hidden % width or embed.learned - 1 != registers:
        raise CheckpointError("DINOv2 has other sizes", got=f"m={hidden}", remedy="Use a multiple of d.")
    return {
        "architectures": [name],
        "hidden_act": "gelu",
        "use_swiglu_ffn": False,
        "hidden_size": width,
        "mlp_ratio": hidden // width,
        "num_attention_heads": model.axes.h.n,  # type: ignore[union-attr]
        "num_hidden_layers": model.native.z.steps,
        "layer_norm_eps": readout.before[0].eps,
        **described_pixels(embed.pixels),
        "qkv_bias": attention.bq is not None,
    }


DINOV2 = Architecture("dinov2", build, names, describe)
DINOV2_WITH_REGISTERS = Architecture(
    "dinov2_with_registers", build_with_registers, register_names, describe_with_registers
)
