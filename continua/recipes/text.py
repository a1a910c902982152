"""Text: a character or byte-pair language model, continuous or discrete."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from continua.axes import LeftEnd, at
from continua.data import TokenFiles
from continua.errors import ConfigError
from continua.fields import Nodal
from continua.flow import Fixed, LieTrotter
from continua.models import Transformer, zoo
from continua.models.init import Scaled, initialise
from continua.optim import AdamW, ByRole, Cosine
from continua.recipes.recipe import Bundle, shipped
from continua.settings import NonNegative, Seed, Size, Whole, checked
from continua.tasks import BytePairs, Characters, StoredText, Text, from_file, python_source
from continua.training import Training


@checked
@dataclass(frozen=True)
class TextSettings:
    """``text`` is a file (the source of Python's own library if None), a folder of ``continua data build``, or several
    with their weights: ``web=0.7,code=0.3``; ``pairs`` > 0 learns so many byte-pair tokens.

    ``d``, ``heads``, ``depth`` and ``context`` are the native size; ``discrete`` trains the plain GPT of that size
    instead of the continuous model, with the same everything. ``batch`` windows of the text make a step; ``lr`` is the
    highest learning rate, ``decay`` the weight decay of AdamW. ``weights`` is the seed of the first weights.
    """

    text: str | None = None
    pairs: Whole = 0
    d: Size = 128
    heads: Size = 4
    depth: Size = 4
    context: Size = 128
    batch: Size = 16
    lr: NonNegative = 2e-3
    decay: NonNegative = 0.1
    discrete: bool = False
    weights: Seed = 0


@shipped
def text(settings: TextSettings) -> Bundle:
    """A language model on a text."""
    task = task_of(settings.text, settings.pairs, settings.context, settings.batch)
    return Bundle(
        model=model_of(settings, task.tokens.size),
        task=task,
        optimiser=ByRole(AdamW(settings.lr, decay=settings.decay)),
        schedule=Cosine(),
        training=Training(),
        tokens=task.tokens,
        about=about(task),
        files=files(task),
    )


def task_of(text: str | None, pairs: int, context: int, batch: int) -> Text | StoredText:
    """The next token of a file, of token files, or of Python's own source."""
    named = None if text is None else token_folders(text)
    if named is not None:
        if pairs:
            got = f"pairs={pairs}"
            raise ConfigError("token files have their tokens", got=got, remedy="Leave pairs out, or name a text.")
        sources = tuple(TokenFiles.open(folder) for folder in named)
        for source in sources:
            source.require_unchanged()
        return StoredText(sources, tuple(named.values()), context, batch)
    corpus = python_source() if text is None else from_file(text)
    whole = corpus.train + corpus.validation
    tokens = BytePairs.of(corpus.train, pairs) if pairs else Characters.of(whole)
    return Text(corpus, tokens, context, batch)


def token_folders(text: str) -> dict[Path, float] | None:
    """The folders of token files that are named, with their weights; None of a file."""
    if Path(text).is_dir():
        return {Path(text): 1.0}
    parts = [part.rpartition("=") for part in text.split(",")]
    if Path(text).is_file() or not all(folder and sign for folder, sign, _ in parts):
        return None
    try:
        return {Path(folder.strip()): float(weight) for folder, _, weight in parts}
    except ValueError as problem:
        remedy = "Write web=0.7,code=0.3."
        raise ConfigError("a mixture names folders with their weights", got=text, remedy=remedy) from problem


def about(task: Text | StoredText) -> dict[str, Any]:
    """What a run of text says of it."""
    if isinstance(task, StoredText):
        names = "+".join(source.folder.name for source in task.sources)
        sums = ",".join(source.sha256 for source in task.sources)
        return {"corpus": {"name": names, "sha256": sums}}
    return {"corpus": {"name": task.corpus.name, "sha256": task.corpus.sha256}}


def files(task: Text | StoredText) -> dict[str, bytes]:
    """The text itself, as a run may keep it; token files stay where they are."""
    if isinstance(task, StoredText):
        return {}
    return {"text.txt": (task.corpus.train + task.corpus.validation).encode()}


def model_of(settings: TextSettings, vocabulary: int) -> Transformer:
    """The model of these settings with fresh weights."""
    if settings.discrete:
        model = zoo.gpt2(
            vocab=vocabulary, d=settings.d, heads=settings.heads, depth=settings.depth, context=settings.context
        )
    else:
        native = at(d=settings.d, h=settings.heads, z=Fixed(settings.depth, LieTrotter()))
        depth = Nodal(LeftEnd(settings.depth))  # at the native steps the stored weights themselves, constant between
        model = Transformer.continuous(vocab=vocabulary, at=native, context=settings.context, bases={"z": depth})
    initialise(model, Scaled(), torch.Generator().manual_seed(settings.weights))
    return model
