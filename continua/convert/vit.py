"""ViT in Hugging Face's files, with or without its classifier."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.labels import described_labels, labels_of
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.models import Pixels, Transformer, zoo
from continua.settings import Size

A, F = "block.parts.0", "block.parts.1"


def names(model: Transformer) -> NameMap:
    """One class token, and a classifier or none."""
    linear = (
        Entry("readout.head.coefficients", "classifier.weight"),
        Entry("readout.bias", "classifier.bias", flat=True),
    )
    readout: Any = model.readout
    return image_names(model, "vit.", linear if readout.out else ())


def image_names(model: Transformer, prefix: str, more: tuple[Entry, ...]) -> NameMap:
    """The names on disk: transformers gives these tensors other names in memory."""
    layer = "encoder.layer.{z}"
    attention: Any = model.block.parts[0].inner
    heads = [
        Entry(f"{A}.inner.{letter}.coefficients", f"{layer}.attention.attention.{name}.weight", Layout(2))
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value"))
    ]
    biases = [
        Entry(f"{A}.inner.b{letter}.coefficients", f"{layer}.attention.attention.{name}.bias", flat=True)
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value"))
        if getattr(attention, f"b{letter}") is not None
    ]
    return NameMap(
        prefix=prefix,
        ignored=("pooler.*",),
        bare=("*classifier.*",),
        entries=(
            *patch_entries(model),
            *norm(f"{A}.norm", f"{layer}.layernorm_before"),
            *heads,
            *biases,
            Entry(f"{A}.inner.o.coefficients", f"{layer}.attention.output.dense.weight"),
            Entry(f"{A}.inner.bo.coefficients", f"{layer}.attention.output.dense.bias", flat=True),
            *norm(f"{F}.norm", f"{layer}.layernorm_after"),
            Entry(f"{F}.inner.w1.coefficients", f"{layer}.intermediate.dense.weight"),
            Entry(f"{F}.inner.b1.coefficients", f"{layer}.intermediate.dense.bias", flat=True),
            Entry(f"{F}.inner.w2.coefficients", f"{layer}.output.dense.weight"),
            Entry(f"{F}.inner.b2.coefficients", f"{layer}.output.dense.bias", flat=True),
            *norm("readout.before.0", "layernorm"),
            *more,
        ),
    )


def patch_entries(model: Transformer) -> tuple[Entry, ...]:
    """The map of a patch, the class token and the positions."""
    embed: Any = model.embed
    pixels = embed.pixels
    width: int = model.axes.d.n or 0  # type: ignore[union-attr]
    patches = "embeddings.patch_embeddings.projection"
    kernel = Layout(1, True, shape=(width, pixels.channels, *pixels.patch))
    places = Layout(shape=(1, embed.position.count, width))
    return (
        Entry("embed.table.coefficients", f"{patches}.weight", kernel),
        Entry("embed.bias.coefficients", f"{patches}.bias", flat=True),
        Entry("embed.first.coefficients", "embeddings.cls_token", Layout(shape=(1, 1, width))),
        Entry("embed.position.table.coefficients", "embeddings.position_embeddings", places),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's ViT with the sizes of ``config.json``; the classifier is there if the file has it."""
    expect(config, hidden_act="gelu")
    return zoo.vit(
        pixels_of(config),
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        m=config["intermediate_size"],
        eps=config["layer_norm_eps"],
        labels=labels_of(config) if "classifier.weight" in stored else None,
        qkv_bias=config.get("qkv_bias", True),
    )


def pixels_of(config: Settings) -> Pixels:
    """Images and patches as ``config.json`` has them."""
    height, width = _pair(config, "image_size")
    return Pixels(height, width, config["num_channels"], _pair(config, "patch_size"))


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a ViT as ``config.json`` spells them."""
    readout: Any = model.readout
    return described_images(model, "ViTForImageClassification" if readout.out else "ViTModel")


def described_images(model: Transformer, name: str) -> dict[str, Any]:
    """The sizes of a model of images, under the name of its class."""
    pixels: Any = model.embed.pixels
    attention: Any = model.block.parts[0].inner
    readout: Any = model.readout
    known = {
        "architectures": [name],
        "hidden_act": "gelu",
        "hidden_size": model.axes.d.n,  # type: ignore[union-attr]
        "num_attention_heads": model.axes.h.n,  # type: ignore[union-attr]
        "num_hidden_layers": model.native.z.steps,
        "intermediate_size": model.axes.m.n,  # type: ignore[union-attr]
        "layer_norm_eps": readout.before[0].eps,
        **described_pixels(pixels),
        "qkv_bias": attention.bq is not None,
    }
    if readout.out:
        known |= described_labels(readout)
    return known


def described_pixels(pixels: Pixels) -> dict[str, Any]:
    """Images and patches as ``config.json`` has them."""
    return {
        "image_size": _one(pixels.height, pixels.width),
        "patch_size": _one(*pixels.patch),
        "num_channels": pixels.channels,
    }


def _pair(config: Settings, key: str) -> tuple[int, int]:
    """One number stands for two equal ones."""
    size: int | tuple[int, int] = config.take(key, Size | tuple[Size, Size])
    return (size, size) if isinstance(size, int) else size


def _one(first: int, second: int) -> int | list[int]:
    return first if first == second else [first, second]


VIT = Architecture("vit", build, names, describe)
