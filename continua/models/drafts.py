"""What ``generate(draft=…)`` means: a view, another model, or a choice by measurement; and the two readers of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch

from continua.axes import Discretisation
from continua.errors import ConfigError
from continua.models.batch import Batch
from continua.models.draft_choice import LOOKED_AT, choose_draft
from continua.models.model import Model
from continua.models.ragged import RaggedReader, key_family
from continua.models.sampling import Distribution
from continua.models.speculate import Ending, Speculator
from continua.operators import Attention, Context
from continua.operators.cache import RaggedCache
from continua.typing import Tensor

AUTO = "auto"
ROOM = 64  # buffers of a compiled pass are a multiple of this long


@runtime_checkable
class OnDiscretisation(Protocol):
    """A view: a model and where it is looked at."""

    model: Any
    discretisation: Discretisation


@dataclass(frozen=True)
class Draft:
    """A model on a discretisation that writes ``ahead`` tokens at a time."""

    model: Any
    at: Discretisation
    ahead: int


@dataclass(frozen=True)
class Asked:
    """What is asked of a generation, beside the model."""

    batch: Batch
    sampling: Any
    end: Ending
    generator: torch.Generator | None
    compile: bool

    @property
    def ids(self) -> Tensor:
        """The prompts [b, n]."""
        ids: Tensor = self.batch.values  # type: ignore[assignment]
        return ids


def taken_apart(model: Any) -> tuple[Any, Discretisation | None]:
    """The model of a view and where it is looked at; a model itself is looked at as it was made."""
    if isinstance(model, OnDiscretisation):
        return model.model, model.discretisation
    return model, None


def drafted(
    model: Any, at: Discretisation, draft: Any, ahead: int, asked: Asked, write: Callable[..., Iterator[Tensor]]
) -> Draft | None:
    """The draft that is meant; None where a choice by measurement predicts no gain. ``write`` writes without one."""
    sampling = asked.sampling
    if not isinstance(sampling, Distribution):
        remedy = "Use Greedy() or Sample(…), or give yours the methods shares and draw; or leave draft out."
        raise ConfigError("speculation compares distributions", got=type(sampling).__name__, remedy=remedy)
    if isinstance(draft, str):
        if draft != AUTO:
            remedy = 'Use draft=model.at(d=64, h=2, z=2), or draft="auto".'
            raise ConfigError("a draft is a view of the model", got=repr(draft), remedy=remedy)
        return _chosen(model, at, asked, write)
    if ahead < 1:
        raise ConfigError("a draft writes at least one token ahead", got=ahead, remedy="Give ahead=k with k ≥ 1.")
    own, where = taken_apart(draft)
    if not isinstance(own, Model):
        remedy = "Use a view of the model: draft=model.at(d=64, h=2, z=2)."
        raise ConfigError("a draft is a model", got=type(draft).__name__, remedy=remedy)
    heads = [flow.readout.out if flow.readout is not None else None for flow in (own.flows[-1], model.flows[-1])]
    if heads[0] != heads[1]:
        raise ConfigError("a draft has the tokens of the model", got=f"{heads[0]} and {heads[1]}", remedy="Use a view.")
    return Draft(own, own.flows[-1].settle(where), ahead)


def _chosen(model: Any, at: Discretisation, asked: Asked, write: Callable[..., Iterator[Tensor]]) -> Draft | None:
    """Let the model write a few tokens, and see which size would have written them too."""
    if asked.batch.observed is not None or not _is_alone(model):
        return None
    ids = asked.ids
    room = model.flows[-1].embed.room
    new = LOOKED_AT if room is None else min(LOOKED_AT, room - ids.shape[1])
    if new < 2:
        return None
    own = torch.Generator(ids.device).manual_seed(0)
    written = write(model.at(at), ids, tokens=new, sampling=asked.sampling, generator=own)
    text = torch.cat([ids, *(token[:, None] for token in written)], 1)
    found = choose_draft(model, at, ids, asked.sampling, text, compile=asked.compile)
    return None if found is None else Draft(model, found.at, found.ahead)


def speculation(model: Any, at: Discretisation, draft: Draft, asked: Asked) -> Speculator:
    """Two readers: the draft looks at the keys of the model where heads and steps are the same, else at its own."""
    ids = asked.ids
    size = ids.shape[1] + asked.end.tokens + 2 * draft.ahead + 2  # tokens ahead, and those kept beyond the last
    size = -(-size // ROOM) * ROOM if asked.compile else size
    cache = RaggedCache(torch.zeros(len(ids), dtype=torch.long, device=ids.device), size)
    place = torch.zeros_like(cache.place)
    shares = draft.model is model and same_keys(model, at, draft.at)
    own = cache.with_place(place) if shares else RaggedCache(place, size)
    readers = [
        RaggedReader(each, where, kept, context=_beside(each, asked.batch, where), compile=asked.compile)
        for each, where, kept in ((model, at, cache), (draft.model, draft.at, own))
    ]
    return Speculator(readers[0], readers[1], draft.ahead, asked.sampling, asked.generator)


def same_keys(model: Any, one: Discretisation, other: Discretisation) -> bool:
    """Whether keys and values of both sizes are values of the same functions: the same heads at the same depths.

    Those of another width are computed from another state, of which they are as good an answer: where the model read
    a token, the draft that looks at its keys knows more of it than it would have read itself.
    """
    return _is_alone(model) and key_family(one) == key_family(other)


def _is_alone(model: Any) -> bool:
    """Whether nothing but its own tokens is looked at."""
    decoder = model.flows[-1]
    crossed = any(isinstance(part, Attention) and part.cross for part in decoder.block.modules())
    return len(model.flows) == 1 and not crossed and decoder.bank is None


def _beside(model: Any, batch: Batch, at: Discretisation) -> Context | None:
    """What cross-attention looks at, on this discretisation."""
    if len(model.flows) == 1:
        return None
    with torch.no_grad():
        beside: Context = model.beside(batch, at)
    return replace(beside)
