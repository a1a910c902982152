"""BERT in Hugging Face's files, with one of its heads or none."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.labels import Head, described_head, head_of, is_span
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.models import Transformer, zoo

A, F = "block.parts.0", "block.parts.2"


def layer_entries(layer: str = "encoder.layer.{z}") -> tuple[Entry, ...]:
    """The four parts of a layer: attention, norm, feed-forward, norm. Matrices are [out, in]."""
    heads = [
        entry
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value"))
        for entry in (
            Entry(f"{A}.{letter}.coefficients", f"{layer}.attention.self.{name}.weight", Layout(2)),
            Entry(f"{A}.b{letter}.coefficients", f"{layer}.attention.self.{name}.bias", flat=True),
        )
    ]
    return (
        *heads,
        Entry(f"{A}.o.coefficients", f"{layer}.attention.output.dense.weight"),
        Entry(f"{A}.bo.coefficients", f"{layer}.attention.output.dense.bias", flat=True),
        *norm("block.parts.1.norm", f"{layer}.attention.output.LayerNorm"),
        Entry(f"{F}.w1.coefficients", f"{layer}.intermediate.dense.weight"),
        Entry(f"{F}.b1.coefficients", f"{layer}.intermediate.dense.bias", flat=True),
        Entry(f"{F}.w2.coefficients", f"{layer}.output.dense.weight"),
        Entry(f"{F}.b2.coefficients", f"{layer}.output.dense.bias", flat=True),
        *norm("block.parts.3.norm", f"{layer}.output.LayerNorm"),
    )


def embedding_entries(ours: str = "embed") -> tuple[Entry, ...]:
    """The three tables and their norm."""
    return (
        Entry(f"{ours}.table.coefficients", "embeddings.word_embeddings.weight"),
        Entry(f"{ours}.position.table.coefficients", "embeddings.position_embeddings.weight"),
        Entry(f"{ours}.types.coefficients", "embeddings.token_type_embeddings.weight"),
        *norm(f"{ours}.norm", "embeddings.LayerNorm"),
    )


def linear(ours: str, theirs: str) -> tuple[Entry, Entry]:
    """An ``Integral`` and the linear map it is."""
    return (
        Entry(f"{ours}.kernel.coefficients", f"{theirs}.weight"),
        Entry(f"{ours}.bias.coefficients", f"{theirs}.bias", flat=True),
    )


def classifier(readout: Any, pooled: str, theirs: str = "classifier") -> tuple[Entry, ...]:
    """The head of classes: behind ``pooled`` for a text, on its own for each token."""
    name = "qa_outputs" if is_span(readout) else theirs if readout.first else "classifier"
    return (
        *(linear("readout.before.0", pooled) if readout.first else ()),
        Entry("readout.head.coefficients", f"{name}.weight"),
        Entry("readout.bias", f"{name}.bias", flat=True),
    )


def names(model: Transformer) -> NameMap:
    """BERT's layers, its pooler and ``cls.predictions``."""
    readout: Any = model.readout
    pooled = readout is not None and readout.first
    words = (
        *linear("readout.before.0", "cls.predictions.transform.dense"),
        *norm("readout.before.2", "cls.predictions.transform.LayerNorm"),
        Entry("readout.bias", "cls.predictions.bias", flat=True),
    )
    head = () if readout is None else words if readout.tied else classifier(readout, "pooler.dense")
    unused = ("embeddings.position_ids", "cls.predictions.decoder.*", "cls.seq_relationship.*")
    return NameMap(
        prefix="bert.",
        ignored=unused if pooled else ("pooler.*", *unused),
        bare=("cls.*", "classifier.*", "qa_outputs.*"),
        entries=(*embedding_entries(), *layer_entries(), *head),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's BERT with the sizes of ``config.json``; the head is the one that the file has."""
    expect(config, hidden_act="gelu", is_decoder=False, type_vocab_size=2, tie_word_embeddings=True)
    expect(config, position_embedding_type="absolute", add_cross_attention=False, pad_token_id=0)
    head = _head(config, stored)
    return zoo.bert(
        vocab=config["vocab_size"],
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        context=config["max_position_embeddings"],
        m=config["intermediate_size"],
        eps=config["layer_norm_eps"],
        masked_lm=head.masked_lm,
        labels=head.labels,
        each=head.each,
    )


def _head(config: Settings, stored: set[str]) -> Head:
    """Old classifiers of tokens were saved with a pooler that they do not use: the name of the class tells."""
    of_tokens = any("ForTokenClassification" in str(name) for name in config.take("architectures", list[str], []))
    pooler = next((name for name in stored if name.endswith("pooler.dense.weight")), "")
    pooled = "" if of_tokens or "classifier.weight" not in stored else pooler
    return head_of(config, stored, words="cls.predictions.bias", pooled=pooled)


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a BERT as ``config.json`` spells them."""
    return described_as(model, "Bert", model.embed)


def described_as(model: Transformer, family: str, embed: Any) -> dict[str, Any]:
    """The sizes of an encoder that spells them as BERT does; ``embed`` has the tables of its words."""
    return {
        **described_head(model, family),
        "hidden_act": "gelu",
        "vocab_size": embed.vocab,
        "hidden_size": model.axes.d.n,  # type: ignore[union-attr]
        "num_attention_heads": model.axes.h.n,  # type: ignore[union-attr]
        "num_hidden_layers": model.native.z.steps,
        "max_position_embeddings": embed.position.count,
        "intermediate_size": model.axes.m.n,  # type: ignore[union-attr]
        "layer_norm_eps": embed.norm.eps,
        "type_vocab_size": embed.type_count,
        "pad_token_id": embed.pad,
    }


BERT = Architecture("bert", build, names, describe, ("classifier.weight", "bert.pooler.dense.weight"))
