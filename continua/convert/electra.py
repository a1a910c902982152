"""ELECTRA's discriminator in Hugging Face's files, with a head of classes or none."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.bert import classifier, described_as, embedding_entries, layer_entries
from continua.convert.labels import head_of
from continua.convert.names import Entry, Layout, NameMap
from continua.models import Transformer, Widened, zoo

LIFT = "embeddings_project"


def names(model: Transformer) -> NameMap:
    """BERT's layers behind a map from the width of the words."""
    readout: Any = model.readout
    wide = isinstance(model.embed, Widened)
    lift = (
        Entry("embed.map.coefficients", f"{LIFT}.weight", Layout(1, True)),
        Entry("embed.bias.coefficients", f"{LIFT}.bias", flat=True),
    )
    tables = (*embedding_entries("embed.embed"), *lift) if wide else embedding_entries()
    head = () if readout is None else classifier(readout, "classifier.dense", "classifier.out_proj")
    return NameMap(
        prefix="electra.",
        ignored=("embeddings.position_ids", "discriminator_predictions.*"),
        bare=("classifier.*", "qa_outputs.*"),
        entries=(*tables, *layer_entries(), *head),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's ELECTRA with the sizes of ``config.json``; what tells replaced words apart is left out."""
    expect(config, hidden_act="gelu", is_decoder=False, type_vocab_size=2, pad_token_id=0)
    expect(config, position_embedding_type="absolute", add_cross_attention=False)
    head = head_of(config, stored, words="generator_lm_head.bias", pooled="classifier.dense.weight")
    return zoo.electra(
        vocab=config["vocab_size"],
        table_width=config["embedding_size"],
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        context=config["max_position_embeddings"],
        m=config["intermediate_size"],
        eps=config["layer_norm_eps"],
        labels=head.labels,
        each=head.each,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of an ELECTRA as ``config.json`` spells them."""
    outer: Any = model.embed
    words: Any = outer.embed if isinstance(outer, Widened) else outer
    width = outer.size if isinstance(outer, Widened) else model.axes.d.n  # type: ignore[union-attr]
    return {**described_as(model, "Electra", words), "embedding_size": width}


ELECTRA = Architecture("electra", build, names, describe, ("classifier.dense.weight", "classifier.out_proj.weight"))
