"""DeiT in Hugging Face's files: with both of its classifiers, with one, or with none."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.labels import labels_of
from continua.convert.names import Entry, Layout, NameMap
from continua.convert.vit import described_images, image_names, pixels_of
from continua.models import Averaged, Transformer, zoo

BOTH = ("cls_classifier", "distillation_classifier")
ONE = "classifier"


def names(model: Transformer) -> NameMap:
    """ViT's names, the second token, and the classifiers."""
    readout: Any = model.readout
    width: Any = model.axes.d.n  # type: ignore[union-attr]
    token = Entry("embed.extra.coefficients", "embeddings.distillation_token", Layout(shape=(1, 1, width)))
    heads: tuple[Entry, ...] = ()
    if isinstance(readout, Averaged):
        heads = (*_linear("readout.heads.0", BOTH[0]), *_linear("readout.heads.1", BOTH[1]))
    elif readout.out:
        heads = _linear("readout", ONE)
    return image_names(model, "deit.", (token, *heads))


def _linear(ours: str, theirs: str) -> tuple[Entry, Entry]:
    return (
        Entry(f"{ours}.head.coefficients", f"{theirs}.weight"),
        Entry(f"{ours}.bias", f"{theirs}.bias", flat=True),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's DeiT with the sizes of ``config.json``; classifiers are those that the file has."""
    expect(config, hidden_act="gelu")
    both = f"{BOTH[0]}.weight" in stored
    return zoo.deit(
        pixels_of(config),
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        m=config["intermediate_size"],
        eps=config["layer_norm_eps"],
        labels=labels_of(config) if both or f"{ONE}.weight" in stored else None,
        distilled=both,
        qkv_bias=config.get("qkv_bias", True),
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a DeiT as ``config.json`` spells them."""
    readout: Any = model.readout
    one = "DeiTForImageClassification" if readout.out else "DeiTModel"
    both = "DeiTForImageClassificationWithTeacher"
    return described_images(model, both if isinstance(readout, Averaged) else one)


DEIT = Architecture("deit", build, names, describe)
