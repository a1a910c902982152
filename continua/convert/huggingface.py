"""Hugging Face folders as points of the continuous family. Only files are touched: ``transformers`` is not needed."""

import json
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from continua.axes import Points
from continua.config import to_plain
from continua.convert.albert import ALBERT
from continua.convert.architecture import Architecture, Settings
from continua.convert.bart import BART, MARIAN, MBART
from continua.convert.bert import BERT
from continua.convert.classes import new_head, with_score
from continua.convert.clip import CLIP, CLIP_IMAGES, CLIP_TEXTS
from continua.convert.deit import DEIT
from continua.convert.dinov2 import DINOV2, DINOV2_WITH_REGISTERS
from continua.convert.distilbert import DISTILBERT
from continua.convert.electra import ELECTRA
from continua.convert.falcon import FALCON
from continua.convert.gemma2 import GEMMA2
from continua.convert.gemma3 import GEMMA3
from continua.convert.gpt2 import GPT2
from continua.convert.gpt_j import GPT_J
from continua.convert.gpt_neox import GPT_NEOX
from continua.convert.hub import located
from continua.convert.llama import LLAMA
from continua.convert.mistral import MISTRAL
from continua.convert.mixtral import MIXTRAL, QWEN2_MOE, QWEN3_MOE
from continua.convert.modernbert import MODERNBERT
from continua.convert.names import NameMap, widest
from continua.convert.opt import OPT
from continua.convert.padding import padded
from continua.convert.phi3 import PHI3
from continua.convert.qwen import QWEN2, QWEN3
from continua.convert.roberta import ROBERTA, XLM_ROBERTA
from continua.convert.shards import StoredTensors, stored_tensors
from continua.convert.smollm3 import SMOLLM3
from continua.convert.t5 import T5
from continua.convert.tokenizer import write_tokeniser
from continua.convert.vit import VIT
from continua.convert.whisper import WHISPER
from continua.data.tokens import Tokeniser
from continua.errors import CheckpointError, ConfigError, ContinuaError, nearest
from continua.models import Readout, Transformer, merged
from continua.models.model import Model
from continua.models.store import CONFIG, WEIGHTS, read_json, refuse_pickle
from continua.typing import Tensor

HEADS = (
    *("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForImageClassification"),
    "ForMaskedLM",
)
DECODERS = (
    *(GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, GPT_NEOX, OPT, GEMMA2, GEMMA3),
    *(PHI3, SMOLLM3, GPT_J, FALCON, MIXTRAL, QWEN2_MOE, QWEN3_MOE),
)
ARCHITECTURES: dict[str, Architecture] = {
    each.kind: each
    for each in (
        *(with_score(each) for each in DECODERS),
        *(BERT, ALBERT, ROBERTA, XLM_ROBERTA, DISTILBERT, ELECTRA, MODERNBERT),
        *(T5, BART, MBART, MARIAN, WHISPER),
        *(VIT, DEIT, DINOV2, DINOV2_WITH_REGISTERS),
        *(CLIP, CLIP_TEXTS, CLIP_IMAGES),
    )
}


def from_hf(path: Any, dtype: torch.dtype | None = None) -> Any:
    """Return the model of a Hugging Face folder (``config.json`` and safetensors, in shards too), equal to round-off.

    A name ``org/name`` is looked up in the cache of Hugging Face (``HF_HOME``, ``HF_HUB_CACHE``). A model of
    ``transformers`` itself will do too: it is written into a folder that is thrown away.

    Nothing is downloaded and no pickle is opened. All weights get ``dtype``, or the one dtype that holds all of the
    file's exactly (bfloat16 beside float32 is float32). Tensors of another shape than the architecture's, and
    quantised ones (whole numbers, booleans, float8), are refused.
    """
    if hasattr(path, "save_pretrained") and not isinstance(path, type):
        with tempfile.TemporaryDirectory() as folder:
            path.save_pretrained(folder, safe_serialization=True)
            return from_hf(folder, dtype)
    if not isinstance(path, str | Path):
        remedy = "Give a local folder written by save_pretrained, or a model of transformers."
        raise CheckpointError("from_hf reads a folder", got=type(path).__name__, remedy=remedy)
    return filled(*_read(located(path)), dtype)


def filled(stored: Mapping[str, Tensor], model: Any, names: NameMap, dtype: torch.dtype | None) -> Any:
    """A model without numbers, with those of a file; tensor by tensor, so that hardly more memory is taken."""
    state = names.load(stored, model.state_dict())
    wanted = widest(state.values()) if dtype is None else dtype
    for name in state:
        state[name] = state[name].to(wanted)
    model.load_state_dict(state, assign=True)
    return model


def to_hf(
    model: Any,
    folder: str | Path,
    *,
    tokens: Tokeniser | None = None,
    bos: int | None = None,
    eos: int | None = None,
) -> Path:
    """Write a folder that Hugging Face loads and that gives the same numbers; the inverse of ``from_hf``.

    ``tokens`` is the tokeniser of the model (``recipes.tokens_of(run)``) and becomes ``tokenizer.json``; ``bos`` and
    ``eos`` are the numbers of the tokens that begin and end a text, for generation. A vocabulary of its own has none
    unless they are given: the architecture's usual numbers would mean other tokens.

    Low-rank additions (``with_lora``) are merged. GPT-2, BERT, ALBERT and ViT have heads of width d/h: other sizes are
    written with heads that are padded by zeros, and a warning says so.
    """
    folder = Path(folder)
    model, architecture, config = _expressible(merged(model))
    config |= _ends(model, tokens, bos, eos)
    if tokens is not None:
        write_tokeniser(tokens, folder, model.flows[-1].embed.room)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    stored = architecture.names(model).store(state)
    config |= {"model_type": architecture.kind, "dtype": str(next(iter(state.values())).dtype).removeprefix("torch.")}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def with_classes(model: Any, labels: Sequence[str], seed: int = 0) -> Any:
    """Return the model with a new classifier of texts for ``labels`` instead of its head; one that has them stays.

    Encoders classify as their family does in Hugging Face, at the first token; decoders at the last one. All weights
    but those of the head are those of ``model``, not copies.

    >>> from continua.models import zoo
    >>> model = with_classes(zoo.bert(vocab=32, d=8, heads=2, depth=2, context=8), ("no", "yes"))
    >>> model.readout.labels
    ('no', 'yes')
    """
    named = tuple(str(label) for label in labels)
    if len(named) < 2 or len(set(named)) < len(named):
        raise ConfigError("classes are two or more, each once", got=named, remedy='Write ("no", "yes").')
    model = merged(model)
    readout = getattr(model, "readout", None)
    if readout is not None and not readout.answers_each_token and readout.labels == named:
        return model
    found = _recognise(model)
    if found is None:
        remedy = "Give a model of from_hf: an encoder, or a decoder of words."
        raise ConfigError("a classifier goes onto a model that Hugging Face knows", got=_told(model), remedy=remedy)
    return new_head(model, *found, named, seed)


def require_expressible(model: Any) -> None:
    """Refuse what ``to_hf`` could not write, before it is worked on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when it is written
        _expressible(model)


def _ends(model: Any, tokens: Tokeniser | None, bos: int | None, eos: int | None) -> dict[str, int | None]:
    """The numbers of the first and the last token as ``config.json`` has them."""
    given = {"bos_token_id": bos, "eos_token_id": eos}
    vocab = model.flows[-1].embed.vocab
    for name, number in given.items():
        if number is not None and not (vocab is not None and 0 <= number < vocab):
            got = f"{name}={number} for {vocab or 'no'} tokens"
            raise ConfigError(
                "bos and eos are tokens of the model", got=got, remedy="Leave them out if there are none."
            )
    if tokens is None:
        return {name: number for name, number in given.items() if number is not None}
    if vocab != tokens.size:
        got = f"{tokens.size} tokens for a table of {vocab}"
        raise ConfigError("the tokeniser belongs to another model", got=got, remedy="Give that of the model's own run.")
    return given


def hf_names(path: str | Path) -> NameMap:
    """Return the map between the tensor names of a Hugging Face folder and ours."""
    return _read(located(path))[2]


def _expressible(model: Any) -> tuple[Any, Architecture, dict[str, Any]]:
    """The model, or the same function with padded heads, as its architecture describes it."""
    found = _recognise(model)
    if found is None and isinstance(model, Model) and isinstance(model.axes.e, Points):
        wide = padded(model)
        found = None if wide is None else _recognise(wide)
        if found is not None:
            before = f"{model.axes.h.n} heads of {model.axes.e.n}"  # type: ignore[union-attr]
            after = f"{wide.axes.h.n} of {wide.axes.e.n}"  # type: ignore[union-attr]
            warnings.warn(f"{found[0].kind} has heads of width d/h: {before} are written as {after}, "
                          "padded with zeros; the numbers are the same.", stacklevel=3)  # fmt: skip
            model = wide
    if found is None:
        known = ", ".join(ARCHITECTURES)
        remedy = f"Only models of the zoo's discrete families can be written: {known}; heads are at most d/h wide."
        raise CheckpointError("Hugging Face has no place for this model", got=_told(model), remedy=remedy)
    return model, *found


def _told(model: Any) -> str:
    """What a model is, in a few words; a lifted one is to be made discrete first."""
    lifted = isinstance(model, Model) and not model.native.is_discrete
    return f"{type(model).__name__}{' on continuous axes (see discretise)' if lifted else ''}"


def _recognise(model: Any) -> tuple[Architecture, dict[str, Any]] | None:
    """Find the architecture whose description of ``model`` builds the same model again."""
    wanted = to_plain(model)
    for architecture in ARCHITECTURES.values():
        try:
            config = architecture.describe(model)
            stored = set(architecture.names(model).store(model.state_dict()))
            with torch.device("meta"):
                built = architecture.build(Settings(config), stored)
        except (AttributeError, TypeError, KeyError, IndexError, ContinuaError):
            continue  # it has another shape
        if to_plain(built) == wanted:
            return architecture, config
    return None


def _read(path: Path) -> tuple[StoredTensors, Any, NameMap]:
    refuse_pickle(path)
    if not (path / CONFIG).is_file():
        remedy = "Give a local folder written by save_pretrained; nothing is downloaded."
        raise CheckpointError("a Hugging Face folder has a config.json", got=f"none in {path}", remedy=remedy)
    config = Settings(read_json(path / CONFIG))
    kind = str(config.get("model_type"))
    if kind not in ARCHITECTURES:
        hint, known = nearest(kind, list(ARCHITECTURES)), f"Known: {', '.join(sorted(ARCHITECTURES))}."
        remedy = hint if hint == known else f"{hint} {known}"
        raise CheckpointError("this architecture is not known", got=kind, remedy=remedy)
    if config.get("auto_map"):
        remedy = "Nothing from a folder is executed; take auto_map out if the model is a plain one of this kind."
        raise CheckpointError("this config.json asks for code of its own", got=f"auto_map for {kind}", remedy=remedy)
    stored = stored_tensors(path)
    return stored, *unfilled(kind, config, set(stored))


def unfilled(kind: str, config: Settings, stored: set[str]) -> tuple[Any, NameMap]:
    """The model that a configuration describes, without numbers: these come from the file; and its names there."""
    with torch.device("meta"):
        model = ARCHITECTURES[kind].build(config, stored)
    _require_head(config, model)
    return model, ARCHITECTURES[kind].names(model)


def _require_head(config: Settings, model: Any) -> None:
    """Refuse a file without the head that its configuration names: it would be read as another model."""
    named = next(iter(config.take("architectures", list[str], [])), "")
    if not isinstance(model, Transformer) or not named.endswith(HEADS):
        return
    readout = model.readout
    words = isinstance(readout, Readout) and readout.tied
    if readout is None or (isinstance(readout, Readout) and readout.out is None) or (words and "LM" not in named):
        remedy = "Copy the whole file; without a head, config.json names the plain model in architectures."
        raise CheckpointError(f"the file lacks the head of {named}", got="none of its tensors", remedy=remedy)
