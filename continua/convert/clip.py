"""CLIP in Hugging Face's files: both towers, or one of them with its projection or without."""

from collections.abc import Mapping
from typing import Any

from continua.convert.activations import activation, activation_described
from continua.convert.architecture import Architecture, Settings
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.convert.vit import described_pixels, pixels_of
from continua.models import Transformer, TwoTowers, zoo
from continua.models.two_towers import LOG_SCALE
from continua.models.zoo.clip import END
from continua.settings import Size, Whole

LAYER = "encoder.layers.{z}"
TEXTS, IMAGES = "text_model.", "vision_model."
TEXT_HEAD, IMAGE_HEAD = "text_projection.weight", "visual_projection.weight"
UNUSED = ("embeddings.position_ids",)
OLD_END = 2  # written before the end of a text had a number: the highest token of a text is meant
# what older files leave out because it is the usual value
TEXT_SIZES = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "projection_dim": 512,
}
IMAGE_SIZES = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "projection_dim": 512,
}


def _layers(ours: str, theirs: str) -> tuple[Entry, ...]:
    """Attention and feed-forward maps of one tower, each behind a norm."""
    own, feed, layer = f"{ours}block.parts.0", f"{ours}block.parts.1", f"{theirs}{LAYER}"
    maps = (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"))
    heads = [Entry(f"{own}.inner.{k}.coefficients", f"{layer}.self_attn.{name}.weight", Layout(2)) for k, name in maps]
    biases = [
        Entry(f"{own}.inner.b{k}.coefficients", f"{layer}.self_attn.{name}.bias", flat=True)
        for k, name in (*maps, ("o", "out_proj"))
    ]
    return (
        *norm(f"{own}.norm", f"{layer}.layer_norm1"),
        *heads,
        *biases,
        Entry(f"{own}.inner.o.coefficients", f"{layer}.self_attn.out_proj.weight"),
        *norm(f"{feed}.norm", f"{layer}.layer_norm2"),
        Entry(f"{feed}.inner.w1.coefficients", f"{layer}.mlp.fc1.weight"),
        Entry(f"{feed}.inner.b1.coefficients", f"{layer}.mlp.fc1.bias", flat=True),
        Entry(f"{feed}.inner.w2.coefficients", f"{layer}.mlp.fc2.weight"),
        Entry(f"{feed}.inner.b2.coefficients", f"{layer}.mlp.fc2.bias", flat=True),
    )


def _head(ours: str, tower: Any, theirs: str) -> tuple[Entry, ...]:
    return (Entry(f"{ours}readout.head.coefficients", theirs),) if tower.readout.out else ()


def _text_entries(tower: Transformer, ours: str = "", theirs: str = "") -> tuple[Entry, ...]:
    return (
        Entry(f"{ours}embed.table.coefficients", f"{theirs}embeddings.token_embedding.weight"),
        Entry(f"{ours}embed.position.table.coefficients", f"{theirs}embeddings.position_embedding.weight"),
        *_layers(ours, theirs),
        *norm(f"{ours}readout.before.0", f"{theirs}final_layer_norm"),
        *_head(ours, tower, TEXT_HEAD),
    )


def _image_entries(tower: Transformer, ours: str = "", theirs: str = "") -> tuple[Entry, ...]:
    pixels: Any = tower.embed.pixels
    width: Any = tower.axes.d.n  # type: ignore[union-attr]
    kernel = Layout(1, True, shape=(width, pixels.channels, *pixels.patch))
    return (
        Entry(f"{ours}embed.table.coefficients", f"{theirs}embeddings.patch_embedding.weight", kernel),
        Entry(f"{ours}embed.first.coefficients", f"{theirs}embeddings.class_embedding", flat=True),
        Entry(f"{ours}embed.position.table.coefficients", f"{theirs}embeddings.position_embedding.weight"),
        *norm(f"{ours}embed.norm", f"{theirs}pre_layrnorm"),
        *_layers(ours, theirs),
        *norm(f"{ours}readout.before.0", f"{theirs}post_layernorm"),
        *_head(ours, tower, IMAGE_HEAD),
    )


def names(model: TwoTowers) -> NameMap:
    """Both towers, their projections and the scale."""
    return NameMap(
        ignored=(f"{TEXTS}{UNUSED[0]}", f"{IMAGES}{UNUSED[0]}"),
        entries=(
            Entry("log_scale", "logit_scale"),
            *_text_entries(model.texts, "texts.", TEXTS),
            *_image_entries(model.images, "images.", IMAGES),
        ),
    )


def text_names(model: Transformer) -> NameMap:
    """The tower of texts alone."""
    return NameMap(_text_entries(model), prefix=TEXTS, ignored=UNUSED, bare=(TEXT_HEAD,))


def image_names(model: Transformer) -> NameMap:
    """The tower of images alone."""
    return NameMap(_image_entries(model), prefix=IMAGES, ignored=UNUSED, bare=(IMAGE_HEAD,))


def _part(config: Settings, side: str) -> dict[str, Any]:
    """What is said of one tower; very old files say it twice, and the second counts."""
    found = dict(config.take(f"{side}_config", Mapping[str, Any], {}))
    return found | dict(config.take(f"{side}_config_dict", Mapping[str, Any], {}))


def build(config: Settings, stored: set[str]) -> TwoTowers:
    """The zoo's CLIP with the sizes of both towers."""
    out = config.take("projection_dim", Size, 512)
    texts = Settings({**_part(config, "text"), "projection_dim": out})
    images = Settings({**_part(config, "vision"), "projection_dim": out})
    return TwoTowers(build_images(images, {IMAGE_HEAD}), build_texts(texts, {TEXT_HEAD}))


def build_texts(config: Settings, stored: set[str]) -> Transformer:
    """The tower of texts; without a projection its states."""
    config = Settings({**TEXT_SIZES, **config})
    vocab = config.take("vocab_size", Size)
    end = config.take("eos_token_id", Whole, END)
    pooled = TEXT_HEAD in stored
    return zoo.clip_texts(
        vocab,
        context=config["max_position_embeddings"],
        out=config.take("projection_dim", Size) if pooled else None,
        end=min(END, vocab - 1) if end == OLD_END else end,
        side=_side(config),
    )


def build_images(config: Settings, stored: set[str]) -> Transformer:
    """The tower of images; without a projection the state of its class token."""
    config = Settings({**IMAGE_SIZES, **config})
    out = config.take("projection_dim", Size) if IMAGE_HEAD in stored else None
    return zoo.clip_images(pixels_of(config), out=out, side=_side(config))


def _side(config: Settings) -> zoo.ClipSide:
    return zoo.ClipSide(
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        m=config["intermediate_size"],
        phi=activation(config, "hidden_act", "quick_gelu"),
        eps=config.get("layer_norm_eps", 1e-5),
    )


def describe(model: TwoTowers) -> dict[str, Any]:
    """Both towers as ``config.json`` spells them."""
    readout: Any = model.texts.readout
    texts = {**describe_texts(model.texts), "model_type": CLIP_TEXTS.kind}
    images = {**describe_images(model.images), "model_type": CLIP_IMAGES.kind}
    for side in (texts, images):
        del side["architectures"]
    return {
        "architectures": ["CLIPModel"],
        "projection_dim": readout.out,
        "text_config": texts,
        "vision_config": images,
        "logit_scale_init_value": LOG_SCALE,
    }


def describe_texts(model: Transformer) -> dict[str, Any]:
    """The tower of texts as ``config.json`` spells it."""
    embed: Any = model.embed
    readout: Any = model.readout
    return {
        "architectures": ["CLIPTextModelWithProjection" if readout.out else "CLIPTextModel"],
        **_described(model),
        "vocab_size": embed.vocab,
        "max_position_embeddings": embed.position.count,
        **({} if embed.end is None else {"eos_token_id": embed.end}),
        "bos_token_id": None,
        "pad_token_id": None,
    }


def describe_images(model: Transformer) -> dict[str, Any]:
    """The tower of images as ``config.json`` spells it."""
    embed: Any = model.embed
    readout: Any = model.readout
    name = "CLIPVisionModelWithProjection" if readout.out else "CLIPVisionModel"
    return {"architectures": [name], **_described(model), **described_pixels(embed.pixels)}


def _described(model: Transformer) -> dict[str, Any]:
    feed: Any = model.block.parts[1].inner
    readout: Any = model.readout
    return {
        "hidden_act": activation_described(feed.phi1),
        "hidden_size": model.axes.d.n,  # type: ignore[union-attr]
        "num_attention_heads": model.axes.h.n,  # type: ignore[union-attr]
        "num_hidden_layers": model.native.z.steps,
        "intermediate_size": model.axes.m.n,  # type: ignore[union-attr]
        "layer_norm_eps": readout.before[0].eps,
        **({"projection_dim": readout.out} if readout.out else {}),
    }


CLIP = Architecture("clip", build, names, describe)
CLIP_TEXTS = Architecture("clip_text_model", build_texts, text_names, describe_texts)
CLIP_IMAGES = Architecture("clip_vision_model", build_images, image_names, describe_images)
