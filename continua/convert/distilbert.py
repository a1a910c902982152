"""DistilBERT in Hugging Face's files, with one of its heads or none."""

from typing import Any

from continua.convert.albert import ACTIVATIONS
from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.bert import classifier, linear
from continua.convert.labels import described_head, head_of
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.errors import CheckpointError, nearest
from continua.models import Transformer, zoo
from continua.settings import Whole

A, F = "block.parts.0", "block.parts.2"


def names(model: Transformer) -> NameMap:
    """Its own names for BERT's layers."""
    layer = "transformer.layer.{z}"
    readout: Any = model.readout
    words = (
        *linear("readout.before.0", "vocab_transform"),
        *norm("readout.before.2", "vocab_layer_norm"),
        Entry("readout.bias", "vocab_projector.bias", flat=True),
    )
    head = () if readout is None else words if readout.tied else classifier(readout, "pre_classifier")
    heads = [
        entry
        for letter in "qkv"
        for entry in (
            Entry(f"{A}.{letter}.coefficients", f"{layer}.attention.{letter}_lin.weight", Layout(2)),
            Entry(f"{A}.b{letter}.coefficients", f"{layer}.attention.{letter}_lin.bias", flat=True),
        )
    ]
    return NameMap(
        prefix="distilbert.",
        ignored=("embeddings.position_ids", "vocab_projector.weight"),
        bare=("vocab_*", "pre_classifier.*", "classifier.*", "qa_outputs.*"),
        entries=(
            Entry("embed.table.coefficients", "embeddings.word_embeddings.weight"),
            Entry("embed.position.table.coefficients", "embeddings.position_embeddings.weight"),
            *norm("embed.norm", "embeddings.LayerNorm"),
            *heads,
            Entry(f"{A}.o.coefficients", f"{layer}.attention.out_lin.weight"),
            Entry(f"{A}.bo.coefficients", f"{layer}.attention.out_lin.bias", flat=True),
            *norm("block.parts.1.norm", f"{layer}.sa_layer_norm"),
            Entry(f"{F}.w1.coefficients", f"{layer}.ffn.lin1.weight"),
            Entry(f"{F}.b1.coefficients", f"{layer}.ffn.lin1.bias", flat=True),
            Entry(f"{F}.w2.coefficients", f"{layer}.ffn.lin2.weight"),
            Entry(f"{F}.b2.coefficients", f"{layer}.ffn.lin2.bias", flat=True),
            *norm("block.parts.3.norm", f"{layer}.output_layer_norm"),
            *head,
        ),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's DistilBERT with the sizes of ``config.json``; sinusoidal positions are in the file like others."""
    expect(config, tie_word_embeddings=True)
    phi = config.take("activation", str, "gelu")
    if phi not in ACTIVATIONS:
        raise CheckpointError("this activation is not known", got=repr(phi), remedy=nearest(phi, list(ACTIVATIONS)))
    head = head_of(config, stored, words="vocab_projector.bias", pooled="pre_classifier.weight")
    return zoo.distilbert(
        vocab=config["vocab_size"],
        d=config["dim"],
        heads=config["n_heads"],
        depth=config["n_layers"],
        context=config["max_position_embeddings"],
        m=config["hidden_dim"],
        phi=ACTIVATIONS[phi],
        pad=config.take("pad_token_id", Whole, 0),
        masked_lm=head.masked_lm,
        labels=head.labels,
        each=head.each,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a DistilBERT as ``config.json`` spells them."""
    embed: Any = model.embed
    feed: Any = model.block.parts[2]
    spelt = {phi: name for name, phi in ACTIVATIONS.items()}
    return {
        **described_head(model, "DistilBert"),
        "activation": spelt[feed.phi1],
        "vocab_size": embed.vocab,
        "dim": model.axes.d.n,  # type: ignore[union-attr]
        "n_heads": model.axes.h.n,  # type: ignore[union-attr]
        "n_layers": model.native.z.steps,
        "max_position_embeddings": embed.position.count,
        "hidden_dim": model.axes.m.n,  # type: ignore[union-attr]
        "pad_token_id": embed.pad,
    }


DISTILBERT = Architecture("distilbert", build, names, describe, ("pre_classifier.weight", "classifier.weight"))
