"""Names of classes as ``config.json`` has them, and the heads of encoders by the tensors in their files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from continua.convert.architecture import Settings
from continua.errors import CheckpointError
from continua.models import Narrowed
from continua.models.zoo.heads import ANSWER_SPAN
from continua.settings import Size


def usual(count: int) -> tuple[str, ...]:
    """What Hugging Face calls classes that nobody named.

    >>> usual(2)
    ('LABEL_0', 'LABEL_1')
    """
    return tuple(f"LABEL_{i}" for i in range(count))


def labels_of(config: Settings) -> int | tuple[str, ...]:
    """The names of the classes in their order, or their number where nobody named them: two unless it is said.

    Old files say their number, beside names that were left as they are of another number: the number counts.
    """
    names: Mapping[str, Any] = config.take("id2label", Mapping[str, Any], {})
    count: int = config.take("num_labels", Size, len(names) or 2)
    if count != len(names):
        return count
    wanted = [str(i) for i in range(len(names))]
    if sorted(names, key=lambda key: (len(key), key)) != wanted:
        remedy = "Write the folder again with save_pretrained."
        got = ", ".join(list(names)[:4])
        raise CheckpointError("config.json: id2label numbers the classes 0, 1, …", got=got, remedy=remedy)
    found = tuple(str(names[key]) for key in wanted)
    return len(found) if found == usual(len(found)) else found


def described_labels(readout: Any) -> dict[str, Any]:
    """Both directions, as ``config.json`` has them."""
    labels = readout.labels or usual(readout.out)
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


@dataclass(frozen=True)
class Head:
    """What the file of an encoder answers: words, classes of a text or of each token, or states."""

    masked_lm: bool = False
    labels: int | tuple[str, ...] | None = None
    each: bool = False


def head_of(config: Settings, stored: set[str], *, words: str, pooled: str, linear: str = "classifier.weight") -> Head:
    """The head whose tensor the file has: ``words`` for masked words, ``pooled`` for a text, ``linear`` for tokens."""
    if words in stored:
        return Head(masked_lm=True)
    if "qa_outputs.weight" in stored:
        return Head(labels=ANSWER_SPAN, each=True)
    if linear not in stored and pooled not in stored:
        return Head()
    return Head(labels=labels_of(config), each=pooled not in stored)


def described_head(model: Any, family: str) -> dict[str, Any]:
    """The class of ``transformers`` with this head, and the names of its labels."""
    readout = model.readout
    if readout is None:
        return {"architectures": [f"{family}Model"]}
    if isinstance(readout, Narrowed) or readout.tied:
        return {"architectures": [f"{family}ForMaskedLM"]}
    if is_span(readout):
        return {"architectures": [f"{family}ForQuestionAnswering"]}
    task = "SequenceClassification" if not readout.answers_each_token else "TokenClassification"
    return {"architectures": [f"{family}For{task}"], **described_labels(readout)}


def is_span(readout: Any) -> bool:
    """Whether the head marks the start and the end of an answer."""
    return bool(readout.labels == ANSWER_SPAN and readout.answers_each_token)
