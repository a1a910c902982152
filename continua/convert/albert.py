"""ALBERT in Hugging Face's files, with one of its heads or none: one set of weights for all steps in depth."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.bert import classifier
from continua.convert.labels import described_head, head_of
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.errors import CheckpointError, nearest
from continua.models import Narrowed, Transformer, zoo
from continua.operators import GELU, Activation, ReLU

A = "block.parts.0"
UNUSED = ("embeddings.position_ids", "predictions.decoder.*", "sop_classifier.*")
ACTIVATIONS: dict[str, Activation] = {"gelu_new": GELU(tanh=True), "gelu": GELU(), "relu": ReLU()}


def names(model: Transformer) -> NameMap:
    """No name has a layer number: the field does not change along z."""
    layer = "encoder.albert_layer_groups.0.albert_layers.0"
    heads = [
        entry
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value"))
        for entry in (
            Entry(f"{A}.{letter}.coefficients", f"{layer}.attention.{name}.weight", Layout(2)),
            Entry(f"{A}.b{letter}.coefficients", f"{layer}.attention.{name}.bias", flat=True),
        )
    ]
    readout: Any = model.readout
    words_head = (
        Entry("readout.map.coefficients", "predictions.dense.weight"),
        Entry("readout.bias", "predictions.dense.bias", flat=True),
        *norm("readout.readout.before.1", "predictions.LayerNorm"),
        Entry("readout.readout.bias", "predictions.bias", flat=True),
    )
    is_words = isinstance(readout, Narrowed)
    head = () if readout is None else words_head if is_words else classifier(readout, "pooler")
    pooled = readout is not None and not is_words and readout.first
    words, feed, lift = "embed.embed", "block.parts.2", "encoder.embedding_hidden_mapping_in"
    return NameMap(
        prefix="albert.",
        ignored=UNUSED if pooled else ("pooler.*", *UNUSED),
        bare=("predictions.*", "classifier.*", "qa_outputs.*"),
        entries=(
            Entry(f"{words}.table.coefficients", "embeddings.word_embeddings.weight"),
            Entry(f"{words}.position.table.coefficients", "embeddings.position_embeddings.weight"),
            Entry(f"{words}.types.coefficients", "embeddings.token_type_embeddings.weight"),
            *norm(f"{words}.norm", "embeddings.LayerNorm"),
            Entry("embed.map.coefficients", f"{lift}.weight", Layout(1, True)),
            Entry("embed.bias.coefficients", f"{lift}.bias", flat=True),
            *heads,
            Entry(f"{A}.o.coefficients", f"{layer}.attention.dense.weight"),
            Entry(f"{A}.bo.coefficients", f"{layer}.attention.dense.bias", flat=True),
            *norm("block.parts.1.norm", f"{layer}.attention.LayerNorm"),
            Entry(f"{feed}.w1.coefficients", f"{layer}.ffn.weight"),
            Entry(f"{feed}.b1.coefficients", f"{layer}.ffn.bias", flat=True),
            Entry(f"{feed}.w2.coefficients", f"{layer}.ffn_output.weight"),
            Entry(f"{feed}.b2.coefficients", f"{layer}.ffn_output.bias", flat=True),
            *norm("block.parts.3.norm", f"{layer}.full_layer_layer_norm"),
            *head,
        ),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's ALBERT with the sizes of ``config.json``; the head is there if the file has it."""
    expect(config, num_hidden_groups=1, inner_group_num=1, type_vocab_size=2, pad_token_id=0)
    expect(config, layer_norm_eps=1e-12, tie_word_embeddings=True, position_embedding_type="absolute")
    phi = config.take("hidden_act", str)
    if phi not in ACTIVATIONS:
        remedy = nearest(str(phi), list(ACTIVATIONS))
        raise CheckpointError("this activation is not known", got=repr(phi), remedy=remedy)
    head = head_of(config, stored, words="predictions.bias", pooled="albert.pooler.weight")
    is_classifier = head.labels is not None and any(name.startswith(("classifier.", "qa_outputs.")) for name in stored)
    return zoo.albert(
        vocab=config["vocab_size"],
        table_width=config["embedding_size"],
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        context=config["max_position_embeddings"],
        m=config["intermediate_size"],
        phi=ACTIVATIONS[phi],
        masked_lm=head.masked_lm,
        labels=head.labels if is_classifier else None,
        each=head.each,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of an ALBERT as ``config.json`` spells them."""
    words: Any = model.embed.embed
    feed: Any = model.block.parts[2]
    spelt = {phi: name for name, phi in ACTIVATIONS.items()}
    return {
        **described_head(model, "Albert"),
        "hidden_act": spelt[feed.phi1],
        "vocab_size": words.vocab,
        "embedding_size": model.embed.size,
        "hidden_size": model.axes.d.n,  # type: ignore[union-attr]
        "num_attention_heads": model.axes.h.n,  # type: ignore[union-attr]
        "num_hidden_layers": model.native.z.steps,
        "max_position_embeddings": words.position.count,
        "intermediate_size": model.axes.m.n,  # type: ignore[union-attr]
        "layer_norm_eps": words.norm.eps,
        "type_vocab_size": words.type_count,
        "pad_token_id": words.pad,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    }


ALBERT = Architecture("albert", build, names, describe, ("classifier.weight", "albert.pooler.weight"))
