"""Writing on: one token after the other, with the keys and values of the past kept.

A cached token costs one row of every integral. That is exact where each token visits the same depths in the same order,
so a view needs fixed steps; and where tokens are counted, so that the stamps of tokens to come are known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from continua import memory
from continua.axes import Discretisation, Grid, Points, counting
from continua.compiling import compiled_with_constants
from continua.errors import ConfigError, GridError, MaskError, ShapeError, SolveError
from continua.flow import Fixed
from continua.models.batch import Batch, is_whole, place
from continua.models.drafts import ROOM, Asked, Draft, drafted, speculation, taken_apart
from continua.models.finite import check_logits
from continua.models.model import Pass, constant_weight
from continua.models.ragged import compacted
from continua.models.sampling import Greedy, Sampling
from continua.models.speculate import Ending, speculated
from continua.operators import Attention, Cache, Context
from continua.operators.cache import StaticCache
from continua.settings import checked
from continua.tree import mapped
from continua.typing import Tensor


@checked
def generate(
    model: Any,
    prompt: Batch | Tensor,
    *,
    tokens: int = 64,
    sampling: Sampling = Greedy(),  # noqa: B008  (frozen)
    stop: Sequence[int] = (),
    observed: Tensor | None = None,
    generator: torch.Generator | None = None,
    pad: int | None = None,
    compile: bool = False,
    draft: Any = None,
    ahead: int = 4,
) -> Tensor:
    """Return the prompt [b, n] with up to ``tokens`` more tokens written behind it.

    ``model`` is a model or a view of one; an encoder–decoder takes ``Batch(start tokens, source=…)``. ``observed``
    marks the tokens of a padded prompt: positions count these alone. A sample that wrote one of ``stop`` is filled with
    ``pad`` (by default the first stop token), and all ends when every sample has. ``compile`` compiles the step of one
    token whole: worth its half minute for many tokens, of many calls with prompts and tokens of one length.

    ``draft`` is another view of the model (or any model with the same tokens): it writes ``ahead`` tokens, which
    ``model`` reads in one pass and keeps as far as it would have written them. Greedy tokens are the same ones, others
    have the same distribution. ``"auto"`` measures for this prompt which size and how many tokens ahead are quickest,
    and writes without a draft where no gain is predicted.

    >>> from continua.models import zoo
    >>> model = zoo.gpt2(vocab=64, d=16, heads=2, depth=2, context=8)
    >>> generate(model, torch.zeros(1, 3, dtype=torch.long), tokens=5).shape
    torch.Size([1, 8])
    """
    batch = _together(prompt, observed)
    new = stream(
        model,
        batch,
        tokens=tokens,
        sampling=sampling,
        stop=stop,
        generator=generator,
        pad=pad,
        compile=compile,
        draft=draft,
        ahead=ahead,
    )
    return torch.cat([batch.values, *(token[:, None] for token in new)], 1)  # type: ignore[list-item]


@checked
def stream(
    model: Any,
    prompt: Batch | Tensor,
    *,
    tokens: int = 64,
    sampling: Sampling = Greedy(),  # noqa: B008  (frozen)
    stop: Sequence[int] = (),
    observed: Tensor | None = None,
    generator: torch.Generator | None = None,
    pad: int | None = None,
    compile: bool = False,
    draft: Any = None,
    ahead: int = 4,
) -> Iterator[Tensor]:
    """Yield each new token [b] as soon as it is made; the arguments are those of ``generate``."""
    model, at = taken_apart(model)
    batch = _together(prompt, observed)
    decoder = model.flows[-1]
    _check_model(decoder, at)
    if tokens < 1:
        raise ConfigError("generation writes at least one token", got=tokens, remedy="Give tokens=n with n ≥ 1.")
    batch, t = _placed(decoder, batch)
    memory.require(8 * tokens * len(t.nodes), f"the list of {tokens} tokens", "Ask for fewer.")
    vocab = decoder.embed.vocab
    _check_numbers(batch.values, vocab, "the vocabulary")  # type: ignore[arg-type]
    _check_ends([*stop, *([] if pad is None else [pad])], vocab)
    _check_room(decoder, int(t.observed.sum(-1).max()), tokens)
    filler = pad if pad is not None else next(iter(stop), 0)
    chosen = decoder.settle(at)
    if compile:
        _check_compiled(decoder, t)
    end = Ending(tuple(stop), filler, tokens)
    if draft is not None:
        asked = Asked(batch, sampling, end, generator, compile)
        chosen_draft = drafted(model, chosen, draft, ahead, asked, stream)
        if chosen_draft is not None:
            return _with_draft(model, chosen, t, chosen_draft, asked)
    writer = _CompiledWriter(decoder, chosen, t, tokens) if compile else _Writer(decoder, chosen, t)
    writer.entry = model
    beside = model.beside if decoder is not model else None
    return _tokens(writer, batch, sampling, end, beside and (beside, at), generator)


def _with_draft(model: Any, at: Discretisation, t: Grid, draft: Draft, asked: Asked) -> Iterator[Tensor]:
    """The same with a draft that writes ahead."""
    other = draft.model.flows[-1]
    _check_model(other, draft.at)
    _check_room(other, int(t.observed.sum(-1).max()), asked.end.tokens)
    is_full = not t.has_gaps
    ids = asked.ids
    lengths = torch.full((len(ids),), ids.shape[1], device=ids.device)
    if not is_full:
        ids, lengths = compacted(ids, t.observed.expand(ids.shape))
    present = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    seen = _seen(asked.sampling, ids, present, model.flows[-1].embed.vocab)
    speculator = speculation(model, at, draft, asked)
    return speculated(speculator, ids, lengths, seen, is_full, asked.end)


def _seen(sampling: Sampling, ids: Tensor, present: Tensor, vocab: int) -> Tensor | None:
    """Which tokens each sample holds [b, v], where a penalty asks for it."""
    if sampling.repetition_penalty == 1.0:
        return None
    counts = torch.zeros(len(ids), vocab, dtype=torch.long, device=ids.device)
    return counts.scatter_add_(1, ids, present.long()) > 0


@torch.no_grad()
def _tokens(
    writer: "_Writer",
    batch: Batch,
    sampling: Sampling,
    end: Ending,
    beside: tuple[Any, Discretisation | None] | None,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """Read the prompt, then write token by token."""
    ids: Tensor = batch.values  # type: ignore[assignment]
    if beside is not None:
        writer.context = replace(beside[0](batch, beside[1]), cache=writer.cache)
    seen = _seen(sampling, ids, writer.t.observed.expand(ids.shape), writer.vocab)
    stop = torch.tensor(end.stop, device=ids.device)
    done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    logits = writer.read(batch)
    for i in range(end.tokens):
        if writer.model.execution.check:
            check_logits(logits, i)
        token = sampling.choose(logits, seen, generator)
        if end.stop:
            token = torch.where(done, end.filler, token)
            done = done | torch.isin(token, stop)
        yield token
        if i + 1 == end.tokens or (end.stop and bool(done.all())):
            return
        if seen is not None:
            seen = seen.scatter(1, token[:, None], True)
        logits = writer.write(token)


class _Writer:
    """A model on one discretisation, and what it remembers of the tokens so far."""

    def __init__(self, model: Any, at: Discretisation, t: Grid) -> None:
        self.model = model
        self.entry = model  # what is called, so that its hooks fire: the model or all it is a part of
        self.at = at
        self.t = t
        self.vocab = model.embed.vocab
        self.cache = Cache()
        self.context = Context(cache=self.cache)
        self.reads = model.read(at)
        self.lengths = t.observed.sum(-1).to(t.nodes)[:, None, None] if t.has_gaps else None

    def read(self, batch: Batch) -> Tensor:
        """Take the prompt in; return the logits [b, v] behind its last observed token."""
        return self._pass(batch, self.t)

    def write(self, token: Tensor) -> Tensor:
        """Take one token [b] in; return the logits behind it."""
        return self._pass(Batch(token[:, None]), self._next())

    def _next(self) -> Grid:
        """Where the next token sits: behind all others, or behind the observed tokens of its own sample."""
        if self.lengths is None:
            return counting(1, self.t.nodes, start=len(self.cache))
        nodes = self.lengths + (len(self.cache) - len(self.t))
        return Grid(nodes, torch.ones_like(nodes[..., 0]), is_counting=True, is_uniform=True, is_unit=True)

    def _pass(self, batch: Batch, t: Grid) -> Tensor:
        told = Pass(self.context, tokens=t, reads=self.reads, last=True)
        logits: Tensor = self.entry(batch, self.at, told)
        return logits[:, -1]


class _CompiledWriter(_Writer):
    """A writer whose step of one token is compiled whole, with buffers that have room for all tokens."""

    def __init__(self, model: Any, at: Discretisation, t: Grid, tokens: int) -> None:
        super().__init__(model, at, t)
        self.reads = mapped(self.reads, constant_weight)
        self.room = -(-(len(t) + tokens) // ROOM) * ROOM
        self.step: Any = None

    def write(self, token: Tensor) -> Tensor:
        """Take one token [b] in; return the logits behind it."""
        if self.step is None:
            self.step = decoding_step(self.model, self.at, self.reads, StaticCache(self.cache, self.room))
        logits: Tensor = self.step(token)
        self.step.cache.place.add_(1)
        return logits


@dataclass(frozen=True)
class DecodingStep:
    """Logits behind one token whose place is a tensor: a function of tensors alone, so that it compiles."""

    model: Any
    at: Discretisation
    reads: Any
    cache: StaticCache
    like: Tensor

    def __call__(self, token: Tensor) -> Tensor:
        """[b] → [b, v]."""
        place = self.cache.place.to(self.like.dtype)[:, None]
        t = Grid(place, torch.ones_like(place[..., 0]), is_counting=True, is_uniform=True, is_unit=True)
        told = Pass(Context(cache=self.cache), tokens=t, reads=self.reads, last=True)
        logits: Tensor = self.model(Batch(token[:, None]), self.at, told)
        return logits[:, -1]


class CompiledStep:
    """A step of one token, compiled whole; its weights and buffers are its own."""

    def __init__(self, step: DecodingStep) -> None:
        self.cache = step.cache

        def run(token: Tensor) -> Tensor:
            return step(token)

        self.run = compiled_with_constants(run)

    def __call__(self, token: Tensor) -> Tensor:
        """[b] → [b, v]."""
        return self.run(token)


def decoding_step(model: Any, at: Discretisation, reads: Any, cache: StaticCache) -> CompiledStep:
    """The compiled step of a model on one discretisation."""
    return CompiledStep(DecodingStep(model, at, reads, cache, model.structure(at).grids.d.nodes))


# --- what is refused --------------------------------------------------------------------------------------------------


def _together(prompt: Batch | Tensor, observed: Tensor | None) -> Batch:
    batch = Batch.of(prompt)
    if observed is None:
        return batch
    if batch.observed is not None:
        raise ConfigError("observed is given once", got="it twice", remedy="Leave it out beside Batch(observed=…).")
    return replace(batch, observed=observed)


def _placed(decoder: Any, batch: Batch) -> tuple[Batch, Grid]:
    """The prompt on its grid: counted, or counted by what is observed."""
    if batch.times is not None or batch.grid is not None:
        remedy = "Leave times and grid out, and mark padding with observed; the stamps of tokens to come are unknown."
        raise GridError("generation counts its tokens", got="a prompt with stamps", remedy=remedy)
    if batch.pairs is not None or (batch.cross_pairs is not None and batch.cross_pairs.shape[-2] != 1):
        remedy = "Use a mask of the model, or cross_pairs of shape [b, 1, s]."
        raise MaskError("pairs say nothing of tokens to come", got="a prompt with pairs", remedy=remedy)
    like = next(decoder.parameters())
    if batch.observed is not None and bool((batch.observed != 0).all()):
        batch = replace(batch, observed=None)
    placed, t = place(batch, decoder.axes.t, None, like)
    if placed.values.dim() != 2 or not is_whole(placed.values):  # type: ignore[union-attr]
        got = f"{placed.values.dtype} {list(placed.values.shape)}"  # type: ignore[union-attr]
        raise ShapeError("a prompt holds whole numbers of shape [b, t]", got=got, remedy="Tokenise the text first.")
    if t.has_gaps:
        observed = t.observed.expand(placed.values.shape)  # type: ignore[union-attr]
        nodes = (observed.cumsum(1) - 1).clamp_min(0).to(t.nodes)[..., None]
        t = Grid(nodes, observed.to(nodes), is_counting=True, has_gaps=True)
    return placed, t


def _check_model(decoder: Any, at: Discretisation | None) -> None:
    depth = None if at is None else at.z
    if not (depth is None or isinstance(depth, int | Fixed)):
        remedy = "Use a view with fixed steps: model.at(z=Fixed(6, RK4()))."
        raise SolveError("generation keeps keys and values at fixed depths", got=type(depth).__name__, remedy=remedy)
    if not isinstance(decoder.axes.t, Points) or decoder.settle(at).t is not None:
        remedy = "Use t=Points() and no at(t=…); elsewhere the stamps of tokens to come are unknown."
        raise GridError("generation counts its tokens", got=f"t on {decoder.axes.t}", remedy=remedy)
    head = None if decoder.readout is None else decoder.readout.out
    vocab = decoder.embed.vocab
    if vocab is None or head is None or not decoder.readout.answers_each_token:
        got = f"{type(decoder.embed).__name__} and {type(decoder.readout).__name__}"
        raise ConfigError("generation reads and writes tokens", got=got, remedy="Use Tokens(…) and Readout(out=vocab).")
    if head > vocab:
        raise ConfigError(f"the table has {vocab} tokens", got=f"a head of {head}", remedy="Give both one vocabulary.")
    for part in decoder.block.modules():
        if isinstance(part, Attention) and not part.cross and not (part.mask is not None and part.mask.is_causal):
            remedy = "Build the model with mask=Causal()."
            raise MaskError("generation needs a causal model", got=f"attention with mask {part.mask}", remedy=remedy)


def _check_compiled(decoder: Any, t: Grid) -> None:
    """A compiled step writes behind prompts of one length, and looks at its own tokens alone."""
    crossed = any(isinstance(part, Attention) and part.cross for part in decoder.block.modules())
    if crossed or decoder.bank is not None or t.has_gaps:
        got = "padded prompts" if t.has_gaps else "attention to a source"
        raise ConfigError("a compiled step reads tokens of its own", got=got, remedy="Use compile=False there.")


def _check_numbers(ids: Tensor, vocab: int, what: str) -> None:
    if len(ids) and not bool(((ids >= 0) & (ids < vocab)).all()):
        got, remedy = f"{ids.min().item()} to {ids.max().item()}", "Use the tokeniser of this model."
        raise ShapeError(f"{what} has the numbers 0 to {vocab - 1}", got=got, remedy=remedy)


def _check_ends(ends: list[int], vocab: int) -> None:
    if ends and not 0 <= min(ends) <= max(ends) < vocab:
        what = f"stop and pad are tokens: the vocabulary has the numbers 0 to {vocab - 1}"
        got, remedy = f"{min(ends)} to {max(ends)}", "Use the tokeniser of this model."
        raise ShapeError(what, got=got, remedy=remedy)


def _check_room(decoder: Any, length: int, tokens: int) -> None:
    """The last token that is written need not be read."""
    room = decoder.embed.room
    if room is None or length + tokens - 1 <= room:
        return
    free = room + 1 - length
    remedy = f"Ask for at most {free} tokens." if free > 0 else "Shorten the prompt."
    got = f"a prompt of {length} and {tokens} more"
    raise ShapeError(f"the position table has {room} rows", got=got, remedy=remedy)
