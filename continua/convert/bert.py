"""BERT in Hugging Face's files, with or without its masked-LM head."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.models import Transformer, zoo

A = "block.parts.0"


def names(model: Transformer) -> NameMap:
    """BERT stores matrices as [out, in]; its four parts are attention, norm, feed-forward, norm."""
    layer = "encoder.layer.{z}"
    heads = [
        entry
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value"))
        for entry in (
            Entry(f"{A}.{letter}.coefficients", f"{layer}.attention.self.{name}.weight", Layout(2)),
            Entry(f"{A}.b{letter}.coefficients", f"{layer}.attention.self.{name}.bias", flat=True),
        )
    ]
    head = (
        Entry("readout.before.0.kernel.coefficients", "cls.predictions.transform.dense.weight"),
        Entry("readout.before.0.bias.coefficients", "cls.predictions.transform.dense.bias", flat=True),
        *norm("readout.before.2", "cls.predictions.transform.LayerNorm"),
        Entry("readout.bias", "cls.predictions.bias", flat=True),
    )
    feed = "block.parts.2"
    return NameMap(
        prefix="bert.",
        ignored=("pooler.*", "embeddings.position_ids", "cls.predictions.decoder.*", "cls.seq_relationship.*"),
        bare=("cls.*",),
        entries=(
            Entry("embed.table.coefficients", "embeddings.word_embeddings.weight"),
            Entry("embed.position.table.coefficients", "embeddings.position_embeddings.weight"),
            Entry("embed.types.coefficients", "embeddings.token_type_embeddings.weight"),
            *norm("embed.norm", "embeddings.LayerNorm"),
            *heads,
            Entry(f"{A}.o.coefficients", f"{layer}.attention.output.dense.weight"),
            Entry(f"{A}.bo.coefficients", f"{layer}.attention.output.dense.bias", flat=True),
            *norm("block.parts.1.norm", f"{layer}.attention.output.LayerNorm"),
            Entry(f"{feed}.w1.coefficients", f"{layer}.intermediate.dense.weight"),
            Entry(f"{feed}.b1.coefficients", f"{layer}.intermediate.dense.bias", flat=True),
            Entry(f"{feed}.w2.coefficients", f"{layer}.output.dense.weight"),
            Entry(f"{feed}.b2.coefficients", f"{layer}.output.dense.bias", flat=True),
            *norm("block.parts.3.norm", f"{layer}.output.LayerNorm"),
            *(head if model.readout is not None else ()),
        ),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's BERT with the sizes of ``config.json``; the head is there if the file has it."""
    expect(config, hidden_act="gelu", is_decoder=False, type_vocab_size=2, tie_word_embeddings=True)
    expect(config, position_embedding_type="absolute", add_cross_attention=False, pad_token_id=0)
    return zoo.bert(
        vocab=config["vocab_size"],
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        context=config["max_position_embeddings"],
        m=config["intermediate_size"],
        eps=config["layer_norm_eps"],
        masked_lm="cls.predictions.bias" in stored,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a BERT as ``config.json`` spells them."""
    embed: Any = model.embed
    return {
        "architectures": ["BertModel" if model.readout is None else "BertForMaskedLM"],
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


BERT = Architecture("bert", build, names, describe)
