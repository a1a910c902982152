"""Wrong shapes, dtypes and devices; empty, padded and paired batches for every family."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from fuzzing import oracles
from fuzzing.case import Case
from fuzzing.draw import Draw, shown
from fuzzing.models import CAUSAL_WORDS, PAIRED, WORD_MODELS, WORDS, model_of, values_of

NAMES = ("gpt2", "bert", "llama", "albert", "words", "t5", "vit", "gat", "forecaster", "modal", "series")


def ranks(draw: Draw) -> Case:
    """A model and a batch, some of whose tensors have another rank, size, dtype or content."""
    from continua.models import Batch

    name = draw.pick("model", NAMES)
    model = model_of(name)
    b = draw.pick("b", (1, 2, 3))
    n = draw.pick("n", (1, 2, 5, 9))
    parts = _parts(draw, name, b, n)
    view = draw.pick("view", ("model", "model", "at", "held"))
    size = draw.pick("size", ({"d": 4}, {"z": 1}, {"h": 1}, {"d": 4, "h": 1, "z": 1}, {}))

    def batch(**changes: Any) -> Any:
        given = {**parts, **changes}
        source = given.pop("source", None)
        if isinstance(source, dict):
            source = Batch(**source)
        bare = set(given) == {"values"} and source is None
        return given["values"] if bare else Batch(**given, source=source)

    def answerer() -> Any:
        if view == "model":
            return model
        looked = model.at(**size)
        return looked.held() if view == "held" else looked

    def run(**changes: Any) -> torch.Tensor:
        with torch.no_grad():
            return answerer()(batch(**changes))

    copies = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in parts.items()}

    def judge(answer: torch.Tensor) -> Iterable[str]:
        yield from oracles.finite(answer)
        yield from oracles.untouched(copies.values(), (parts[key] for key in copies))
        if view == "held":
            with torch.no_grad():
                yield from oracles.equal("held", model.at(**size)(batch()), answer)
        yield from _laws(name, parts, run, answer)

    said = f"{name}.{view}({size if view != 'model' else ''}) of { ({k: _short(v) for k, v in parts.items()}) }"
    return Case(said, run, judge)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return str({k: _short(v) for k, v in value.items()})
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else shown(value)


def _parts(draw: Draw, name: str, b: int, n: int) -> dict[str, Any]:
    values = values_of(draw, name, b, n)
    parts: dict[str, Any] = {"values": _worn(draw, "values", values)}
    if name in ("forecaster", "series"):
        parts["times"] = _worn(draw, "times", _times(draw, "times", b, n))
    if name == "gat":
        ring = torch.eye(n, dtype=torch.bool).roll(1, 0) | torch.eye(n, dtype=torch.bool)
        parts["pairs"] = _worn(draw, "pairs", ring)
    elif draw.chance("pairs", 0.1) and name not in ("vit", "series"):
        parts["pairs"] = _worn(draw, "pairs", torch.ones(n, n, dtype=torch.bool).tril())
    if draw.chance("padded", 0.3) and name != "vit":
        flags = torch.arange(n) < torch.tensor([[n], [max(1, n - 2)], [n]])[:b]
        parts["observed"] = _worn(draw, "observed", flags)
    if name == "bert" and draw.chance("types", 0.4):
        parts["types"] = _worn(draw, "types", torch.zeros(b, n, dtype=torch.long))
    if name in PAIRED:
        parts["source"] = _source(draw, name, b)
    elif draw.spoils("source"):
        parts["source"] = draw.note("source", draw.pick("which", ({"values": values}, "x", 3)))
    return parts


def _times(draw: Draw, name: str, b: int, n: int) -> torch.Tensor:
    return torch.rand(b, n, generator=draw.tensors(f"{name}/t")).sort(-1).values * n


def _source(draw: Draw, name: str, b: int) -> Any:
    s = draw.pick("s", (1, 3, 7))
    values = (
        draw.ids("source", WORDS, b, s)
        if name == "t5"
        else draw.numbers("source", b, s, 1 if name == "forecaster" else 2)
    )
    source: dict[str, Any] = {"values": _worn(draw, "source.values", values)}
    if name == "forecaster":
        source["times"] = _worn(draw, "source.times", _times(draw, "source", b, s))
    return draw.spoil("source", source, (None, "x", 3, {"values": None}, {"values": values[:0]}))


def _worn(draw: Draw, name: str, x: torch.Tensor) -> Any:
    """The tensor, or one of its relatives that do not fit."""
    if not draw.spoils(name):
        return x
    how = draw.pick(f"{name}/how", (*HOW, *HOW_INTEGER) if not x.is_floating_point() else (*HOW, *HOW_FLOATING))
    draw.note(name, how)
    made = HOWS[how]
    return made(x.clone()) if callable(made) else made


def _with(x: torch.Tensor, value: float) -> torch.Tensor:
    if x.numel():
        x.view(-1)[-1] = value
    return x


HOWS: dict[str, Any] = {
    "empty tokens": lambda x: x[:, :0],
    "no samples": lambda x: x[:0],
    "one more": lambda x: torch.cat([x, x[:, -1:]], 1),
    "one fewer": lambda x: x[:, 1:],
    "another batch": lambda x: torch.cat([x, x], 0),
    "rank up": lambda x: x[..., None],
    "rank down": lambda x: x[0],
    "scalar": lambda x: x.reshape(-1)[:1].sum(),
    "text": "values",
    "nothing": None,
    "a number": 7,
    "a list": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "complex": lambda x: x.to(torch.complex64),
    "half": lambda x: x.half(),
    "double": lambda x: x.double(),
    "boolean": lambda x: x.bool(),
    "int8": lambda x: x.to(torch.int8),
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "channels": lambda x: torch.cat([x, x], -1),
    "strided": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "grad": lambda x: x.float().requires_grad_(),
    "too large": lambda x: _with(x, 10**6),
    "negative": lambda x: _with(x, -1),
    "NaN": lambda x: _with(x, math.nan),
    "infinite": lambda x: _with(x, math.inf),
    "1e30": lambda x: _with(x, 1e30),
}
HOW_INTEGER = ("too large", "negative", "too large", "negative")
HOW_FLOATING = ("NaN", "infinite", "1e30", "NaN")
HOW = tuple(name for name in HOWS if name not in (*HOW_INTEGER, *HOW_FLOATING))


def _laws(name: str, parts: dict[str, Any], run: Any, answer: torch.Tensor) -> Iterable[str]:
    """Laws of a batch of which nothing but the values is special."""
    values = parts["values"]
    if (
        not isinstance(values, torch.Tensor)
        or values.is_meta
        or values.is_sparse
        or not isinstance(answer, torch.Tensor)
    ):
        return
    if name in WORD_MODELS and set(parts) == {"values"}:
        yield from oracles.alone(lambda v: run(values=v), values[:1], answer)
    if name in CAUSAL_WORDS and set(parts) == {"values"}:
        moment = torch.arange(values.shape[1])
        yield from oracles.causal(lambda v: run(values=v), values, answer, moment)
    observed = parts.get("observed")
    if name in ("gpt2", "bert", "llama") and isinstance(observed, torch.Tensor) and observed.shape == values.shape:
        present = observed != 0
        hidden = values.masked_fill(~present, 3)
        yield from oracles.equal("padding", run(values=hidden)[present], answer[present])
