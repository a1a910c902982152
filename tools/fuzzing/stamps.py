"""Stamps: huge, negative, equal, unsorted, NaN, dates; a causal model must not see the future."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from fuzzing import oracles
from fuzzing.case import Case
from fuzzing.draw import Draw, shown
from fuzzing.models import model_of, values_of

MODELS = ("causal", "causal", "times", "line", "open line", "ring", "square")
ORIGINS = (0.0, 0.0, 1.0, -5.0, 1e3, 1.7e7, 1.7e9, 1.7e12, -1e9, 1e15)
SPACINGS = (1.0, 0.1, 1e-3, 60.0, 86400.0, 1e-6)
ODD_STAMPS = (
    "nan", "inf", "equal", "pair", "outside", "short", "long", "empty", "list", "ragged", "int", "bool", "half", "3-d",
    "text", "scalar", "complex", "objects", "datetime", "dates", "NaT", "timestamps", "numpy", "huge",
    "tiny", "float32",
)  # fmt: skip


def stamps(draw: Draw) -> Case:
    """A model in time and its batch."""
    from continua.models import Batch

    name = draw.pick("model", MODELS)
    b = draw.pick("b", (1, 2, 2))
    n = draw.pick("n", (1, 2, 3, 6, 6, 9))
    values = values_of(draw, name, b, n)
    exact = _stamps(draw, name, b, n)
    mixed = draw.chance("mixed", 0.05 if name in ("causal", "line") else 0.5)
    if mixed:
        order = torch.randperm(n, generator=draw.tensors("order"))
        exact = exact[..., order, :] if name == "square" else exact[..., order]
    times = _spoilt(draw, exact, n)
    observed = _flags(draw, b, n)
    model = model_of(name, draw.pick("dtype", (torch.float32, torch.float32, torch.float64)))
    if values.is_floating_point():
        values = values.to(next(model.parameters()).dtype)
    copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in (values, times, observed)]

    def run(v: Any, t: Any = None, o: Any = None) -> torch.Tensor:
        with torch.no_grad():
            return model(Batch(v, times=times if t is None else t, observed=observed if o is None else o))

    def judge(answer: torch.Tensor) -> Iterable[str]:
        yield from oracles.finite(answer)
        yield from oracles.untouched(copies, (values, times, observed))
        moment = _moments(times, exact, name)
        if moment is None or observed is not None:
            return
        if name in ("causal", "line"):
            yield from oracles.causal(run, values, answer, moment)
        elif n > 1:  # a causal mask asks for stamps in order
            yield from _permuted(run, values, times, answer, draw)

    said = f"{name} model({list(values.shape)}, times={shown(times)}, observed={shown(observed)})"
    return Case(said, lambda: run(values), judge)


def _stamps(draw: Draw, name: str, b: int, n: int) -> torch.Tensor:
    """Stamps inside the domain, [n] or [b, n] or [b, n, 2], in float64."""
    lead = (b,) if draw.chance("each", 0.7) else ()
    u = torch.rand(*lead, n, 2 if name == "square" else 1, generator=draw.tensors("times"), dtype=torch.float64)
    if name == "square":
        return u
    u = u[..., 0].sort(-1).values
    if name in ("line", "open line"):
        return u * 3 - 1
    if name == "ring":
        return u * 2.9
    steps = u.cumsum(-1) + torch.arange(n) * 0.5
    return draw.pick("origin", ORIGINS) + draw.pick("spacing", SPACINGS) * steps


def _spoilt(draw: Draw, exact: torch.Tensor, n: int) -> Any:
    """The stamps as they are given: exact, or in one of the shapes in which data come."""
    how = draw.spoil("stamps", None, ODD_STAMPS, least=0.5)
    if how is None:
        return exact
    times = exact.clone()
    place = (..., n // 2) if times.shape[-1] == n else (..., n // 2, 0)
    if how in ("nan", "inf", "huge"):
        times[place] = {"nan": math.nan, "inf": -math.inf, "huge": 1e300}[how]
        return times
    if how == "pair" and n > 1 and times.shape[-1] == n:
        times[..., 1] = times[..., 0]
        return times
    flat = exact.reshape(-1)
    seconds = np.clip(flat.numpy(), -1e9, 4e9).reshape(exact.shape)
    dates = (seconds * 1e3).astype("int64").astype("datetime64[ms]")
    odd: dict[str, Any] = {
        "equal": torch.zeros_like(times),
        "outside": times * 3 + 5,
        "short": times[..., 1:],
        "long": torch.cat([times, times + 1], -1),
        "empty": times[..., :0],
        "list": times.tolist(),
        "ragged": [[0.0], [0.0, 1.0]],
        "int": times.round().long(),
        "bool": times > 0,
        "half": times.half(),
        "3-d": times[None, None],
        "text": "now",
        "scalar": 3.0,
        "complex": times.to(torch.complex64),
        "objects": np.array([object()] * n),
        "datetime": dates,
        "dates": dates.astype("datetime64[D]"),
        "NaT": np.full(tuple(times.shape), np.datetime64("NaT")),
        "timestamps": [str(x) for x in dates.reshape(-1)[:n]],
        "numpy": times.numpy(),
        "tiny": times * 1e-300,
        "float32": times.float(),
    }
    return odd.get(how, times)


def _flags(draw: Draw, b: int, n: int) -> Any:
    if not draw.chance("gaps", 0.25):
        return None
    flags = torch.rand(b, n, generator=draw.tensors("flags")) < 0.7
    flags[:, 0] = True
    bad = (flags[:, 1:], flags[0], flags.float(), flags[None], [[True] * n] * b, ~flags & flags, "x", flags.long() - 1)
    return draw.spoil("observed", flags, bad)


def _moments(times: Any, exact: torch.Tensor, name: str) -> torch.Tensor | None:
    """The order in time as float64 sees it."""
    if name == "square":
        return torch.zeros(()) if isinstance(times, torch.Tensor) and times.shape == exact.shape else None
    if isinstance(times, torch.Tensor) and times.shape == exact.shape and not times.is_complex():
        return times.double()
    if isinstance(times, np.ndarray) and times.shape == tuple(exact.shape) and times.dtype.kind == "M":
        return torch.from_numpy(times.astype("datetime64[ms]").astype("int64")).double()
    return None


def _permuted(run: Any, values: Any, times: Any, answer: torch.Tensor, draw: Draw) -> Iterable[str]:
    """Tokens with their stamps in another order give the same answers in that order."""
    if not isinstance(times, torch.Tensor) or not isinstance(values, torch.Tensor):
        return
    order = torch.randperm(values.shape[1], generator=draw.tensors("again"))
    square = draw.pick("model", MODELS) == "square"
    moved = run(values[:, order], times.index_select(times.dim() - 1 - square, order))
    yield from oracles.equal("permutation", moved, answer[:, order])
