"""What comes over the wire: bodies are checked field by field, and everything wrong is said in OpenAI's shape."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from continua.errors import nearest
from continua.models import Greedy, Sample, Sampling

MOST_STOPS = 4
INVALID = "invalid_request_error"


class Refusal(Exception):
    """An answer that is an error: a status, a sentence, and the field it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Wanted:
    """What a request for text asks for, beside its prompt."""

    model: str
    tokens: int | None
    sampling: Sampling
    stop: tuple[str, ...]
    seed: int | None
    latency: float | None
    streams: bool
    with_usage: bool


SHARED = {
    "model", "max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "stop", "seed", "stream",
    "stream_options", "latency_ms", "user", "n", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs",
    "store", "metadata",
}  # fmt: skip
COMPLETION = SHARED | {"prompt", "echo", "suffix", "best_of"}
CHAT = SHARED | {"messages", "max_completion_tokens", "top_logprobs", "response_format", "tools", "tool_choice"}
EMBEDDING = {"model", "input", "encoding_format", "dimensions", "user"}
NEUTRAL: dict[str, tuple[Any, ...]] = {  # fields that are read, with the values that ask for nothing
    "n": (None, 1),
    "best_of": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, False, 0),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "suffix": (None, ""),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
}


def parsed(body: bytes) -> dict[str, Any]:
    """The object in a body."""
    try:
        said = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as problem:
        raise Refusal(400, f"The body is not UTF-8: {problem.reason} at byte {problem.start}.") from None
    except (ValueError, RecursionError) as problem:
        raise Refusal(400, f"The body is not JSON: {str(problem)[:200]}") from None
    if not isinstance(said, dict):
        raise Refusal(400, f"The body is a JSON object, got {type(said).__name__}.")
    return said


def check_fields(said: Mapping[str, Any], known: set[str]) -> None:
    """Refuse fields that nobody knows, and those that ask for what is not served."""
    for name in said:
        if name not in known:
            raise Refusal(400, f"Unknown field {name[:80]!r}. {nearest(name, sorted(known))}", param=name[:80])
    for name, neutral in NEUTRAL.items():
        if name in said and said[name] not in neutral:
            raise Refusal(400, f"{name} is not served here. Leave it out.", param=name, code="unsupported")


def wanted(said: Mapping[str, Any]) -> Wanted:
    """The options of a request for text."""
    streams = _flag(said, "stream")
    options = said.get("stream_options")
    if options is not None and (not isinstance(options, dict) or not streams):
        raise Refusal(400, "stream_options is an object beside stream=true.", param="stream_options")
    limit = "max_tokens" if said.get("max_completion_tokens") is None else "max_completion_tokens"
    latency = _number(said, "latency_ms", 0.0, 1e9)
    return Wanted(
        model=_text(said, "model"),
        tokens=_whole(said, limit, 1, 10**6),
        sampling=_sampling(said),
        stop=_stops(said.get("stop")),
        seed=_whole(said, "seed", -(2**63), 2**63 - 1),
        latency=None if latency is None else latency / 1e3,
        streams=streams,
        with_usage=bool(options and options.get("include_usage") is True),
    )


def _sampling(said: Mapping[str, Any]) -> Sampling:
    temperature = _number(said, "temperature", 0.0, 2.0)
    top_p = _number(said, "top_p", 0.0, 1.0)
    top_k = _whole(said, "top_k", 1, 10**9)
    penalty = _number(said, "repetition_penalty", 1e-3, 1e3)
    penalty = 1.0 if penalty is None else penalty
    if temperature == 0.0 or top_p == 0.0 or top_k == 1:
        return Greedy(penalty)
    return Sample(1.0 if temperature is None else temperature, top_k, 1.0 if top_p is None else top_p, penalty)


def _stops(said: Any) -> tuple[str, ...]:
    stops = [] if said is None else [said] if isinstance(said, str) else said
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise Refusal(400, "stop is a text, or up to four of them.", param="stop")
    if len(stops) > MOST_STOPS or any(len(stop) > 200 for stop in stops):
        raise Refusal(400, "stop takes up to four texts of up to 200 characters.", param="stop")
    return tuple(stops)


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str) or not value:
        raise Refusal(400, f"{name} is a text, got {_kind(value)}.", param=name)
    return value


def _flag(said: Mapping[str, Any], name: str) -> bool:
    value = said.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise Refusal(400, f"{name} is true or false, got {_kind(value)}.", param=name)
    return value


def _number(said: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Refusal(400, f"{name} is a number from {low:g} to {high:g}, got {_kind(value)}.", param=name)
    return float(value)


def _whole(said: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Refusal(400, f"{name} is a whole number from {low} to {high}, got {_kind(value)}.", param=name)
    return value


def _kind(value: Any) -> str:
    """A value as an error may show it."""
    return str(value)[:80] if isinstance(value, bool | int | float | str) else type(value).__name__


def texts_of(said: Any, name: str, most: int) -> list[str | list[int]]:
    """A text, a list of texts, token numbers, or a list of lists of them."""
    if isinstance(said, str):
        return [said]
    if isinstance(said, list) and said:
        if all(_is_token(each) for each in said):
            return [said]
        if len(said) > most:
            raise Refusal(400, f"{name} takes up to {most} texts, got {len(said)}.", param=name)
        if all(isinstance(each, str) or _is_tokens(each) for each in said):
            return list(said)
    raise Refusal(400, f"{name} is a text, a list of texts, or token numbers.", param=name)


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_token, value))


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def messages_of(said: Any) -> list[dict[str, str]]:
    """The messages of a chat, each with a role and a text."""
    if not isinstance(said, list) or not said or len(said) > 1000:
        raise Refusal(400, "messages is a list of one to 1,000 messages.", param="messages")
    found = []
    for number, message in enumerate(said):
        where = f"messages[{number}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refusal(400, f"{where} has a role and a content.", param="messages")
        found.append({"role": message["role"], "content": _content(message.get("content"), where)})
    return found


def _content(said: Any, where: str) -> str:
    """A text, or parts of type text."""
    if isinstance(said, str):
        return said
    parts: Sequence[Any] = said if isinstance(said, list) else [None]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise Refusal(400, f"{where}.content is a text.", param="messages")
    return "".join(part["text"] for part in parts)
