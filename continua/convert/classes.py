"""Classifiers of texts: a new head on a pretrained model, and those of decoders, which answer at the last token."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from continua.config import from_plain, to_plain
from continua.convert.architecture import Architecture, Settings
from continua.convert.labels import described_labels, labels_of
from continua.convert.names import Entry, NameMap
from continua.errors import CheckpointError, ConfigError
from continua.fields import Expansion, Use
from continua.models import Readout
from continua.models.zoo.heads import counted_and_named
from continua.operators import LayerNorm, RMSNorm

SCORE = "score.weight"
STD = 0.02  # of a new head, as Hugging Face draws it
PLAIN = {"tied": False, "bias": False, "scale": 1.0, "cap": None}  # a classifier is a linear map alone
LANGUAGE = ("ForCausalLM", "LMHeadModel")
CLASSES = "ForSequenceClassification"


def with_score(family: Architecture) -> Architecture:
    """A family of decoders that also has classifiers: ``score`` at the last token, in place of the head of words."""

    def build(config: Settings, stored: set[str]) -> Any:
        if SCORE not in stored:
            return family.build(config, stored)
        count, names = counted_and_named(labels_of(config))
        plain = to_plain(family.build(config, stored - {SCORE}))
        if plain["readout"]["kind"] != Readout.__name__:
            remedy = "Take a size whose words are as wide as its layers."
            raise CheckpointError(f"a classifier of {family.kind} has a plain head", got="a narrow one", remedy=remedy)
        changed = {"out": count, "labels": list(names), "last": True}
        return from_plain({**plain, "readout": {**plain["readout"], **PLAIN, **changed}})

    def names(model: Any) -> NameMap:
        found = family.names(model)
        if not _answers_at_the_last(model):
            return found
        head = Entry("readout.head.coefficients", SCORE)
        entries = (*(entry for entry in found.entries if entry.ours not in (head.ours, "readout.bias")), head)
        return replace(found, entries=entries, bare=(*found.bare, SCORE))

    def describe(model: Any) -> dict[str, Any]:
        config = family.describe(model)
        if not _answers_at_the_last(model):
            return config
        name = config["architectures"][0]
        for words in LANGUAGE:
            name = name.removesuffix(words)
        name += "Text" if family.kind.endswith("_text") else ""  # beside a model of the same name that also sees
        return {**config, **described_labels(model.readout), "architectures": [f"{name}{CLASSES}"]}

    return Architecture(family.kind, build, names, describe, classes=(SCORE,))


def _answers_at_the_last(model: Any) -> bool:
    readout = model.readout
    return isinstance(readout, Readout) and readout.last


def new_head(model: Any, family: Architecture, config: dict[str, Any], labels: Sequence[str], seed: int) -> Any:
    """The model with a classifier of these labels, drawn anew; all other weights are its own, not copies."""
    if not family.classes:
        remedy = "Take an encoder (BERT, RoBERTa, DistilBERT, ELECTRA) or a decoder (GPT-2, Llama and their kin)."
        raise ConfigError(f"there is no classifier of texts for {family.kind}", got=family.kind, remedy=remedy)
    named = {str(number): name for number, name in enumerate(labels)}
    asked = {key: value for key, value in config.items() if key not in ("architectures", "num_labels")}
    trunk = {entry.theirs for entry in family.names(model).entries if not entry.ours.startswith("readout")}
    with torch.device("meta"):
        made = family.build(Settings({**asked, "id2label": named}), trunk | set(family.classes))
    state = model.state_dict()
    kept = {name for name in made.state_dict() if name in state and not name.startswith("readout")}
    for place in _same_norms(model.readout, made.readout):
        kept |= {name for name in made.state_dict() if name.startswith(f"readout.before.{place}.")}
    made.load_state_dict({name: state[name] for name in kept}, strict=False, assign=True)
    _draw(made.readout, next(model.parameters()), torch.Generator().manual_seed(seed))
    return made.train(model.training)


def _same_norms(before: Any, after: Any) -> list[int]:
    """The places of norms that both readouts have: the one behind the last layer of a decoder."""
    old = list(getattr(before, "before", ()))
    pairs = enumerate(zip(old, list(after.before), strict=False))
    return [i for i, (one, other) in pairs if type(one) is type(other) and isinstance(one, LayerNorm | RMSNorm)]


def _draw(readout: nn.Module, like: torch.Tensor, generator: torch.Generator) -> None:
    """Numbers for what has none: matrices at random, biases zero."""
    for module in readout.modules():
        if isinstance(module, Expansion) and module.coefficients.is_meta:
            module.to_empty(device="cpu")
            is_matrix = module.role is not None and module.role.use in (Use.KERNEL, Use.TABLE)
            module.reset(STD if is_matrix else 0.0, 0.0, generator)
            module.to(like)
    for module in readout.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                setattr(module, name, nn.Parameter(torch.zeros_like(parameter, device=like.device, dtype=like.dtype)))
