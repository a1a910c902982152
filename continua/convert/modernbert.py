"""ModernBERT in Hugging Face's files, with one of its heads or none."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.gemma3 import rotations_of_layers
from continua.convert.labels import described_head, labels_of
from continua.convert.llama import FULL, SLIDING, depth_of, sliding_layers
from continua.convert.names import Entry, Layout, NameMap, scale
from continua.convert.rotations import ROPE, rotations_described
from continua.models import Transformer, zoo
from continua.models.zoo.heads import ANSWER_SPAN
from continua.operators import ByDepth, PositionByDepth
from continua.settings import Count, Size

A, F = "block.parts.0", "block.parts.1"
LAYER = "layers.{z}"
BIAS = "decoder.bias"
CLASSES = "classifier.weight"
NONE = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), False)


def names(model: Transformer) -> NameMap:
    """Queries, keys and values in one matrix, both maps of a gate in another; no norm before the first attention."""
    readout: Any = model.readout
    fused = f"{LAYER}.attn.Wqkv.weight"
    gate = f"{LAYER}.mlp.Wi.weight"
    heads = [Entry(f"{A}.inner.{k}.coefficients", fused, Layout(2, part=(i, 3))) for i, k in enumerate("qkv")]
    begins = Entry(f"{A}.norm.inner.scale.coefficients", f"{LAYER}.attn_norm.weight", flat=True, begins=1)
    head = (
        Entry("readout.before.1.kernel.coefficients", "head.dense.weight"),
        scale("readout.before.3", "head.norm"),
        Entry("readout.bias", BIAS if readout.tied else "classifier.bias", flat=True),
    )
    classes = () if readout.tied else (Entry("readout.head.coefficients", CLASSES),)
    return NameMap(
        prefix="model.",
        ignored=("decoder.weight",),
        bare=("head.*", "decoder.*", "classifier.*"),
        entries=(
            Entry("embed.table.coefficients", "embeddings.tok_embeddings.weight"),
            scale("embed.norm", "embeddings.norm"),
            begins,
            *heads,
            Entry(f"{A}.inner.o.coefficients", f"{LAYER}.attn.Wo.weight"),
            scale(f"{F}.norm", f"{LAYER}.mlp_norm"),
            Entry(f"{F}.inner.w1.coefficients", gate, Layout(part=(0, 2))),
            Entry(f"{F}.inner.gate.coefficients", gate, Layout(part=(1, 2))),
            Entry(f"{F}.inner.w2.coefficients", f"{LAYER}.mlp.Wo.weight"),
            scale("readout.before.0", "final_norm"),
            *((*head, *classes) if readout.out else ()),
        ),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's ModernBERT; all layers but every third slide unless ``layer_types`` says otherwise."""
    expect(config, hidden_activation="gelu", classifier_activation="gelu", decoder_bias=True, tie_word_embeddings=True)
    expect(config, **NONE)
    every = config.take("global_attn_every_n_layers", Count, 3)
    whole = rotations_of_layers(config, FULL, "global_rope_theta", 160000.0)
    local = rotations_of_layers(config, SLIDING, "local_rope_theta", 10000.0)
    expect({"whole": whole.stretch, "local": local.stretch}, whole=None, local=None)
    style = zoo.ModernBertStyle(
        base=whole.base,
        local_base=local.base,
        radius=config.take("local_attention", Size, 128) // 2,
        sliding=sliding_layers(config, stored, lambda layer: layer % every != 0),
        eps=config["norm_eps"],
        pad=config.get("pad_token_id"),
        mean=config.take("classifier_pooling", str, "cls") == "mean",
    )
    task = " ".join(config.take("architectures", list[str], []))
    is_span = "ForQuestionAnswering" in task
    labels = None
    if CLASSES in stored:
        labels = ANSWER_SPAN if is_span else labels_of(config)
    return zoo.modernbert(
        vocab=config["vocab_size"],
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=depth_of(config, stored),
        m=config["intermediate_size"],
        masked_lm=BIAS in stored,
        labels=labels,
        each=is_span or "ForTokenClassification" in task,
        style=style,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a ModernBERT as ``config.json`` spells them."""
    embed: Any = model.embed
    readout: Any = model.readout
    attention: Any = model.block.parts[0].inner
    mask = attention.mask
    depth = model.native.z.steps
    position = attention.position
    by_depth = isinstance(position, PositionByDepth)
    tables = {
        FULL: rotations_described(position.positions[0] if by_depth else position)[ROPE],
        SLIDING: rotations_described(position.positions[1] if by_depth else position)[ROPE],
    }
    masks: tuple[Any, ...] = mask.masks if isinstance(mask, ByDepth) else (mask,) * depth
    near = next((one for one in masks if one is not None), None)
    return {
        **(described_head(model, "ModernBert") if readout.out else {"architectures": ["ModernBertModel"]}),
        "classifier_pooling": "mean" if readout.pool else "cls",
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "vocab_size": embed.vocab,
        "hidden_size": model.axes.d.n,  # type: ignore[union-attr]
        "num_attention_heads": model.axes.h.n,  # type: ignore[union-attr]
        "num_hidden_layers": depth,
        "intermediate_size": model.axes.m.n,  # type: ignore[union-attr]
        "norm_eps": embed.norm.eps,
        "local_attention": 2 * round(near.radius) if near is not None else 128,
        "layer_types": [FULL if one is None else SLIDING for one in masks],
        ROPE: tables,
        **NONE,
        "decoder_bias": True,
        "tie_word_embeddings": True,
        "pad_token_id": embed.pad,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    }


MODERNBERT = Architecture("modernbert", build, names, describe, (CLASSES,))
