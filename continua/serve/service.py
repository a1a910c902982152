"""One model behind a server: its texts, its sizes, and the asks that requests become."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from continua.axes import Discretisation, at
from continua.convert.chat import ChatTemplate, encoded_part
from continua.data.tokens import Tokeniser
from continua.errors import ConfigError, ContinuaError
from continua.flow import Fixed
from continua.operators import Attention
from continua.serve.chat import joined
from continua.serve.decoder import Decoder
from continua.serve.engine import Engine, Limits
from continua.serve.front import Front, front_of
from continua.serve.jobs import Ask
from continua.serve.metrics import Metrics
from continua.serve.wire import Refusal, Wanted

NATIVE = "native"
FAST = "fast"
AUTO = "auto"
USUAL_TOKENS = 128  # where a request names no number
SHARES = ((0.5, 1.0, 1.0), (1.0, 1.0, 0.5), (0.5, 1.0, 0.5), (1.0, 0.5, 0.5), (0.5, 0.5, 0.5), (0.5, 0.5, 0.25))


@dataclass(frozen=True)
class Served:
    """What is served: a model, its tokeniser, the tokens that end a text, and held-out losses by size."""

    name: str
    model: Any
    tokens: Tokeniser
    ends: tuple[int, ...] = ()
    template: ChatTemplate | None = None
    losses: Mapping[str, tuple[Discretisation, float]] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether it is a causal language model."""
        flow = self.model.flows[-1]
        masks = [part.mask for part in flow.block.modules() if isinstance(part, Attention)]
        causal = [mask is not None and mask.is_causal for mask in masks]
        return bool(causal) and all(causal) and flow.readout is not None and flow.readout.out is not None


@dataclass(frozen=True)
class Rules:
    """Limits of every request, beside those of the engine."""

    context: int = 1024  # tokens of a text, prompt and answer
    tokens: int = 1024  # new tokens of one answer
    latency: float | None = None  # seconds, for requests that name none
    prompts: int = 16  # texts in one request
    worst: float | None = None  # share of held-out loss above the native one that sizes of the table may have


class Service:
    """A served model with its engine. ``watch`` hears how far the measuring of sizes is."""

    def __init__(
        self,
        served: Served,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        rules: Rules = Rules(),  # noqa: B008
        watch: Callable[[int, int], None] | None = None,
        choose: Any = None,
    ) -> None:
        self.served = served
        self.rules = rules
        self.metrics = Metrics()
        flow = served.model.flows[-1]
        room = flow.embed.room
        self.context = rules.context if room is None else min(room, rules.context)
        self.vocab = min(flow.embed.vocab, served.tokens.size)
        self.decoder = Decoder(served.model, limits.batch, self.context + 1)
        self.front = measured_front(served, self.decoder, watch, rules.worst)
        self.engine = Engine(self.decoder, self.front, limits, self.metrics, choose)

    # --- from requests to asks ----------------------------------------------------------------------------------------

    def chat(self, messages: Sequence[dict[str, str]], wanted: Wanted) -> Ask:
        """A checked ask for the next message. The template of a folder may take two seconds: not for an event loop."""
        template = self.served.template
        if template is None:
            return self.ask(joined(messages), wanted, "messages")
        try:
            text = template.prompt(messages)
        except ContinuaError as problem:
            raise Refusal(400, str(problem)[:300], param="messages") from None
        return self.ask(text, wanted, "messages", is_part=True)

    def ask(self, prompt: str | Sequence[int], wanted: Wanted, param: str, is_part: bool = False) -> Ask:
        """A checked ask; ``is_part``: the tokens that begin and end a text are written in the prompt already."""
        ids = self._ids(prompt, param, is_part)
        size = self.size_of(wanted.model)
        room = self.context - len(ids) + 1  # the last token that is written need not be read
        if room < 1:
            words = f"This model reads {self.context} tokens at most, the prompt has {len(ids)}. Shorten it."
            raise Refusal(400, words, param=param, code="context_length_exceeded")
        asked = wanted.tokens
        if asked is not None and asked > min(room, self.rules.tokens):
            most = min(room, self.rules.tokens)
            words = f"A prompt of {len(ids)} tokens leaves room for {most} new ones, max_tokens asks for {asked}."
            raise Refusal(400, words, param="max_tokens", code="context_length_exceeded")
        tokens = min(room, self.rules.tokens, USUAL_TOKENS) if asked is None else asked
        latency = self.rules.latency if wanted.latency is None else wanted.latency
        self._check_latency(latency, len(ids), tokens, size)
        seed = None if wanted.seed is None else wanted.seed % 2**63
        return Ask(tuple(ids), tokens, wanted.sampling, frozenset(self.served.ends), seed, latency, size)

    def _ids(self, prompt: str | Sequence[int], param: str, is_part: bool) -> list[int]:
        if not isinstance(prompt, str):
            if max(prompt) >= self.vocab:
                raise Refusal(400, f"Tokens are numbers from 0 to {self.vocab - 1}.", param=param)
            return list(prompt)
        if len(prompt) > 64 * self.context:  # not even worth reading
            words = f"This model reads {self.context} tokens at most. Shorten the prompt."
            raise Refusal(400, words, param=param, code="context_length_exceeded")
        try:
            tokens = self.served.tokens
            ids: list[int] = (encoded_part(prompt, tokens) if is_part else tokens.encode(prompt)).tolist()
        except (ContinuaError, UnicodeError, TypeError) as problem:
            raise Refusal(400, f"The prompt cannot be read: {str(problem)[:300]}", param=param) from None
        if not ids:
            raise Refusal(400, "A prompt needs at least one token.", param=param)
        return ids

    def size_of(self, name: str) -> str | None:
        """The size that a model name pins: ``run:d=64,z=2``, ``run:fast``, ``run:native``; None: by slack."""
        own, _, wish = name.partition(":")
        if own != self.served.name:
            known = f"{self.served.name}, {self.served.name}:{FAST}, {self.served.name}:d=…,h=…,z=…"
            raise Refusal(
                404, f"There is no model {name[:80]!r}. Known: {known}.", param="model", code="model_not_found"
            )
        if wish in ("", AUTO):
            return None
        if wish == FAST:
            return self.front.fastest.name
        if wish == NATIVE:
            return self.front.native.name
        if wish in self.front:
            return wish
        return self._pinned(wish)

    def _pinned(self, wish: str) -> str:
        """A size that is not in the table, checked and kept."""
        try:
            chosen = self.served.model.settle(typed(wish))
            _check_not_larger(chosen, self.served.model)
            self.served.model.structure(chosen)
        except ContinuaError as problem:
            words = f"There is no size {wish[:80]!r}: {problem}"
            raise Refusal(404, words, param="model", code="model_not_found") from None
        name = size_name(chosen)
        if self.served.model.settle(typed(name)) != chosen:  # m does not follow d
            name = f"{name},m={chosen.m.n}"
        known = self.served.losses.get(name)
        if not self.engine.pin(name, chosen, None if known is None else known[1]):
            words = "Too many other sizes were named before. Use one of /v1/models."
            raise Refusal(400, words, param="model", code="too_many_sizes")
        return name

    def _check_latency(self, latency: float | None, prompt: int, tokens: int, size: str | None) -> None:
        if latency is None:
            return
        sizes = self.front.sizes if size is None else (self.engine.size(size),)
        least = min(each.whole(prompt, tokens) for each in sizes)
        if least > latency:
            words = (
                f"No size writes {tokens} tokens within {1e3 * latency:.0f} ms; the quickest takes {1e3 * least:.0f}."
            )
            raise Refusal(
                400, f"{words} Ask for fewer tokens or more time.", param="latency_ms", code="deadline_impossible"
            )

    def held_out_loss(self, sizes: Mapping[str, int]) -> float | None:
        """The mean held-out loss of the sizes that wrote a text, by tokens; None where one was not measured."""
        total = 0.0
        for name, count in sizes.items():
            loss = self.engine.size(name).loss
            if loss is None:
                return None
            total += count * loss
        return total / max(1, sum(sizes.values()))


def size_name(chosen: Discretisation) -> str:
    """A size as it is typed: ``d=64,h=2,z=3``."""
    steps = steps_of(chosen)
    return f"d={chosen.d.n},h={chosen.h.n},z={chosen.z if steps is None else steps}"  # type: ignore[union-attr]


def steps_of(chosen: Discretisation) -> int | None:
    """How many steps a size takes; None where they are searched for."""
    return chosen.z.steps if isinstance(chosen.z, Fixed) else None


def typed(wish: str) -> Discretisation:
    """Read ``d=64,h=2,z=3``."""
    sizes: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in wish.split(","))):
        letter, _, size = item.partition("=")
        if letter not in ("d", "h", "z", "m") or not size.isdecimal() or len(size) > 6:
            raise ConfigError("a size is written d=64,h=2,z=3", got=item[:40], remedy="See /v1/models.")
        sizes[letter] = int(size)
    return at(**sizes)


def _check_not_larger(chosen: Discretisation, model: Any) -> None:
    native = model.native
    counts = [(letter, getattr(chosen, letter).n, getattr(native, letter).n) for letter in "dhm"]
    counts.append(("z", steps_of(chosen) or 1, 2 * (steps_of(native) or 1)))
    for letter, got, most in counts:
        if got > most:
            said = f"{letter}={got}, where it has {most}" if letter != "z" else f"z={got}, more than twice its steps"
            raise ConfigError("a size is at most the native one", got=said, remedy="See /v1/models.")


def measured_front(
    served: Served, decoder: Decoder, watch: Callable[[int, int], None] | None = None, worst: float | None = None
) -> Front:
    """Time the native size and smaller ones, within a few seconds; losses are those of the run's own table.

    ``worst`` leaves out sizes whose loss is more than that share above the native one.
    """
    model = served.model
    wishes: dict[str, tuple[Discretisation, float | None]] = {}
    native = size_name(model.native)
    wishes[native] = (model.native, served.losses.get(native, (None, None))[1])
    for name, known in sorted(served.losses.items(), key=lambda item: item[1][1]):
        wishes.setdefault(name, known)
    if len(wishes) == 1:
        wishes.update({name: (where, None) for name, where in _parts(model).items()})
    most = _most_loss(wishes[native][1], worst)
    sizes = [
        (name, where, loss)
        for name, (where, loss) in wishes.items()
        if name == native or (_is_smaller(where, model) and (most is None or (loss is not None and loss <= most)))
    ]
    return front_of(decoder.costs(sizes, watch))


def _most_loss(native: float | None, worst: float | None) -> float | None:
    """The largest loss that is allowed; None: any."""
    if worst is None:
        return None
    if native is None:
        remedy = "Measure them: continua pareto RUN. Or leave --worst out."
        raise ConfigError("a bound on the loss needs the losses of sizes", got="none for this model", remedy=remedy)
    return (1 + worst) * native


def _is_smaller(where: Discretisation, model: Any) -> bool:
    try:
        chosen = model.settle(where)
        _check_not_larger(chosen, model)
    except ContinuaError:
        return False
    steps = steps_of(chosen)
    return steps is not None and steps <= (steps_of(model.native) or 0)


def _parts(model: Any) -> dict[str, Discretisation]:
    """Parts of the native size, for models whose sizes nobody measured."""
    native = model.native
    found: dict[str, Discretisation] = {}
    if native.is_discrete:
        return found
    for shares in SHARES:
        d, h, z = (max(1, round(n * s)) for n, s in zip((native.d.n, native.h.n, native.z.steps), shares, strict=True))
        chosen = model.settle(at(d=d, h=h, z=z))
        found.setdefault(size_name(chosen), chosen)
    return found
