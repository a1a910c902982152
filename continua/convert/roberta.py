"""RoBERTa and XLM-RoBERTa in Hugging Face's files, with one of their heads or none."""

from typing import Any

from continua.convert.architecture import Architecture, Settings, expect
from continua.convert.bert import classifier, described_as, embedding_entries, layer_entries, linear
from continua.convert.labels import head_of
from continua.convert.names import Entry, NameMap, norm
from continua.errors import CheckpointError
from continua.models import Transformer, zoo
from continua.settings import Size, Whole


def names(model: Transformer) -> NameMap:
    """BERT's layers; heads of their own."""
    readout: Any = model.readout
    words = (
        *linear("readout.before.0", "lm_head.dense"),
        *norm("readout.before.2", "lm_head.layer_norm"),
        Entry("readout.bias", "lm_head.bias", flat=True),
    )
    text = "classifier.dense", "classifier.out_proj"
    head = () if readout is None else words if readout.tied else classifier(readout, *text)
    return NameMap(
        prefix="roberta.",
        ignored=("pooler.*", "embeddings.position_ids", "lm_head.decoder.*"),
        bare=("lm_head.*", "classifier.*", "qa_outputs.*"),
        entries=(*embedding_entries(), *layer_entries(), *head),
    )


def build(config: Settings, stored: set[str]) -> Transformer:
    """The zoo's RoBERTa with the sizes of ``config.json``; the head is the one that the file has."""
    expect(config, hidden_act="gelu", is_decoder=False, tie_word_embeddings=True)
    expect(config, position_embedding_type="absolute", add_cross_attention=False)
    pad = config.take("pad_token_id", Whole, 1)
    rows = config.take("max_position_embeddings", Size)
    if rows <= pad + 1:
        remedy = "Write the folder again with save_pretrained."
        raise CheckpointError(f"positions begin at {pad + 1}", got=f"max_position_embeddings {rows}", remedy=remedy)
    head = head_of(config, stored, words="lm_head.bias", pooled="classifier.dense.weight")
    return zoo.roberta(
        vocab=config["vocab_size"],
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        context=rows - pad - 1,
        m=config["intermediate_size"],
        eps=config["layer_norm_eps"],
        pad=pad,
        types=config["type_vocab_size"],
        masked_lm=head.masked_lm,
        labels=head.labels,
        each=head.each,
    )


def describe(model: Transformer) -> dict[str, Any]:
    """The sizes of a RoBERTa as ``config.json`` spells them."""
    return described_as(model, "Roberta", model.embed)


CLASSES = ("classifier.dense.weight", "classifier.out_proj.weight")
ROBERTA = Architecture("roberta", build, names, describe, CLASSES)
XLM_ROBERTA = Architecture("xlm-roberta", build, names, describe, CLASSES)  # the same tensors; written as RoBERTa
