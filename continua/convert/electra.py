"""ELECTRA in Hugging Face's files: the discriminator with a head of classes or none, the generator with its words."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.bert import classifier, described_as, embedding_entries, layer_entries
from continua.convert.labels import head_of
from continua.convert.names import Entry, Layout, NameMap, norm
from continua.models import Narrowed, Transformer, Widened, zoo

LIFT = "embeddings_project"
GENERATOR = "generator_predictions"


def names(model: Transformer) -> NameMap:
    """BERT's layers behind a map from the width of the words."""
    readout: Any = model.readout
    wide = isinstance(model.embed, Widened)
    lift = (
        Entry("embed.map.coefficients", f"{LIFT}.weight", Layout(1, True)),
        Entry("embed.bias.coefficients", f"{LIFT}.bias", flat=True),
    )
    tables = (*embedding_entries("embed.embed"), *lift) if wide else embedding_entries()
    if _answers_words(model):
        head = _words_entries(readout)
    else:
        head = () if readout is None else classifier(readout, "classifier.dense", "classifier.out_proj")
    return NameMap(
        prefix="electra.",
        ignored=("embeddings.position_ids", "discriminator_predictions.*", "generator_lm_head.weight"),
        bare=("classifier.*", "qa_outputs.*", "generator_predictions.*", "generator_lm_head.*"),
        entries=(*tables, *layer_entries(), *head),
    )


def _answers_words(model: Transformer) -> bool:
    readout: Any = model.readout
    return isinstance(readout, Narrowed) or (readout is not None and readout.tied)


def _words_entries(readout: Any) -> tuple[Entry, ...]:
    """The map to the width of the words, the norm behind it, and the bias of the words."""
    narrow = isinstance(readout, Narrowed)
    kernel = "readout.map.coefficients" if narrow else "readout.before.0.kernel.coefficients"
    shift = "readout.bias" if narrow else "readout.before.0.bias.coefficients"
    return (
        Entry(kernel, f"{GENERATOR}.dense.weight"),
        Entry(shift, f"{GENERATOR}.dense.bias", flat=True),
        *norm("readout.readout.before.1" if narrow else "readout.before.2", f"{GENERATOR}.LayerNorm"),
        Entry("readout.readout.bias" if narrow else "readout.bias", "generator_lm_head.bias", flat=True),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's ELECTRA with the sizes of ``config.json``; what tells replaced words apart is left out."""
    expect(config, hidden_act="gelu", is_decoder=False, type_vocab_size=2, pad_token_id=0)
    expect(config, position_embedding_type="absolute", add_cross_attention=False)
    expect(config, tie_word_embeddings=True)
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
        masked_lm=head.masked_lm,
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
