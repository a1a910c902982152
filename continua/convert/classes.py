"""Classifiers: a new head on a pretrained model, and those of decoders, of texts at their last token or of tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from continua.config import from_plain, to_plain
from continua.convert.architecture import Architecture, Settings
from continua.convert.labels import described_labels, is_span, labels_of
from continua.convert.names import Entry, NameMap
from continua.errors import CheckpointError, ConfigError
from continua.fields import Expansion, Use
from continua.models import Readout
from continua.models.zoo.heads import ANSWER_SPAN, counted_and_named
from continua.operators import LayerNorm, RMSNorm

SCORE = "score.weight"
STD = 0.02  # of a new head, as Hugging Face draws it
PLAIN = {"tied": False, "bias": False, "scale": 1.0, "cap": None}  # a classifier is a linear map alone
LANGUAGE = ("ForCausalLM", "LMHeadModel")
SPAN = "qa_outputs"
CLASSIFIER = "classifier"
BY_CLASSIFIER = ("gpt2", "gpt_neox", "falcon")  # what others call score they call classifier, where it is of tokens
# they know no padding token, and Hugging Face answers several texts at their last tokens only where there is one
WITHOUT_PADDING = ("gpt2", "gptj", "falcon")
NO_TOKEN = -1  # no token of any text: all that is given counts
# their files of answers to questions call the trunk otherwise, for it was called so once
OLD_TRUNK = ("llama", "qwen2", "qwen3", "smollm3", "qwen3_moe")
HEAD, BIAS = "readout.head.coefficients", "readout.bias"


def with_score(family: Architecture) -> Architecture:
    """A family of decoders that also has classifiers, in place of the head of words, or no head at all.

    ``score`` answers at the last token. Every token has classes by ``score`` with a bias or by ``classifier``, and by
    ``qa_outputs`` is the start or the end of an answer. Without any head the answer are the states.
    """

    def build(config: Settings, stored: set[str]) -> Any:
        theirs = next((name for name in (SPAN, "score", CLASSIFIER) if f"{name}.weight" in stored), None)
        if theirs is None:
            model = family.build(config, stored)
            if not _is_bare(family, model, config, stored):
                return model
            plain = to_plain(model)
            return from_plain({**plain, "readout": {**plain["readout"], **PLAIN, "out": None}})
        labels = ANSWER_SPAN if theirs == SPAN else labels_of(config)
        count, names = counted_and_named(labels)
        own = {f"{theirs}.weight", f"{theirs}.bias"}
        plain = to_plain(family.build(config, stored - own))
        if plain["readout"]["kind"] != Readout.__name__:
            remedy = "Take a size whose words are as wide as its layers."
            raise CheckpointError(f"a classifier of {family.kind} has a plain head", got="a narrow one", remedy=remedy)
        each = f"{theirs}.bias" in stored
        changed = {"out": count, "labels": list(names), "last": not each, "bias": each}
        return from_plain({**plain, "readout": {**plain["readout"], **PLAIN, **changed}})

    def names(model: Any) -> NameMap:
        found = family.names(model)
        if _answers_words(model):
            return found
        rest = tuple(entry for entry in found.entries if entry.ours not in (HEAD, BIAS))
        if model.readout.out is None:
            return replace(found, entries=rest)
        theirs = _called(family, model.readout)
        own = [Entry(HEAD, f"{theirs}.weight")]
        if not model.readout.last:
            own.append(Entry(BIAS, f"{theirs}.bias", flat=True))
        prefix = "transformer." if theirs == SPAN and family.kind in OLD_TRUNK else found.prefix
        return replace(found, entries=(*rest, *own), bare=(*found.bare, f"{theirs}.*"), prefix=prefix)

    def describe(model: Any) -> dict[str, Any]:
        config = family.describe(model)
        if _answers_words(model):
            return config
        name = config["architectures"][0]
        for words in LANGUAGE:
            name = name.removesuffix(words)
        name += "Text" if family.kind.endswith("_text") else ""  # beside a model of the same name that also sees
        readout = model.readout
        if readout.out is None:
            return {**config, "architectures": [f"{name}Model"]}
        if is_span(readout):
            return {**config, "architectures": [f"{name}ForQuestionAnswering"]}
        task = "SequenceClassification" if readout.last else "TokenClassification"
        pad = {"pad_token_id": NO_TOKEN} if readout.last and family.kind in WITHOUT_PADDING else {}
        return {**config, **pad, **described_labels(readout), "architectures": [f"{name}For{task}"]}

    return Architecture(family.kind, build, names, describe, classes=(SCORE,))


def _called(family: Architecture, readout: Any) -> str:
    """The name of a head in the file."""
    if is_span(readout):
        return SPAN
    return CLASSIFIER if not readout.last and family.kind in BY_CLASSIFIER else "score"


def _is_bare(family: Architecture, model: Any, config: Settings, stored: set[str]) -> bool:
    """Whether words have a head of their own, and the folder says that it is one of states and has none."""
    named = config.take("architectures", list[str], [])
    if not named or not named[0].endswith("Model") or named[0].endswith(LANGUAGE):
        return False
    if not isinstance(model.readout, Readout) or model.readout.tied:
        return False
    return not any(entry.ours == HEAD and entry.theirs in stored for entry in family.names(model).entries)


def _answers_words(model: Any) -> bool:
    """Whether each token is answered by words; classes of tokens have a bias, and are other ones."""
    readout = model.readout
    if not isinstance(readout, Readout):
        return True
    if readout.out is None or readout.last:
        return False
    return readout.bias is None or (readout.out == model.embed.vocab and not readout.labels)


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
