"""Stamps as they are given: numbers, dates or lists of them, never rounded on their way to a model."""

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import torch

from continua.checks import looking
from continua.constants import widest
from continua.errors import GridError
from continua.typing import Tensor


def as_stamps(times: Any) -> Tensor:
    """Return stamps as a tensor: tensors as they are, arrays and lists of numbers in their own precision.

    Dates (``datetime64``, ``datetime``, the timestamps and indices of pandas) become **seconds since 1970 (UTC)** in
    float64, which tells 0.24 µs apart today; dates without a time zone count as UTC. Lengths of time
    (``timedelta64``) become seconds.

    >>> as_stamps(np.array(["1970-01-01", "1970-01-02T00:00:00.5"], dtype="datetime64[ms]"))
    tensor([    0.0000, 86400.5000], dtype=torch.float64)
    >>> as_stamps([0.5, 2]).dtype
    torch.float64
    """
    if isinstance(times, Tensor):
        if times.dtype == torch.bool or times.is_complex():
            raise _no_stamps(f"a tensor of {times.dtype}")
        return times
    try:
        found = np.asarray(times)
    except (TypeError, ValueError) as wrong:  # rows of unequal length
        raise _no_stamps(str(wrong)) from wrong
    if found.dtype == object:
        found = _dates(found)
    if found.dtype.kind in "mM":
        return torch.from_numpy(_seconds(found))
    if found.dtype.kind not in "iuf" or found.dtype.itemsize > 8:
        raise _no_stamps(f"{type(times).__name__} of {found.dtype}")
    kind = found.dtype.newbyteorder("=") if found.dtype.kind != "u" else np.dtype(np.int64)
    return torch.from_numpy(np.array(found, dtype=kind))


def exact(stamps: Tensor, like: Tensor) -> Tensor:
    """Stamps [.., n, 1] on the device of ``like``, in the wider of both precisions; whole numbers in float64.

    Rounded to the float32 of a model's weights, the seconds of a day in 2024 are a dozen distinct numbers: order,
    gaps and equality are read off the stamps as they were given.
    """
    own = stamps.dtype if stamps.is_floating_point() else torch.float64
    wanted = torch.promote_types(own, like.dtype)
    if wanted == torch.float64:
        wanted = widest(like.device)
    if looking() and stamps.dtype != wanted:
        _check_apart(stamps, wanted)
    return stamps.to(like.device, wanted)


def _check_apart(stamps: Tensor, dtype: torch.dtype) -> None:
    """Refuse stamps that differ as they were given, and no longer do in ``dtype``."""
    if not stamps.numel():
        return
    if not stamps.is_floating_point() and not bool(stamps.abs().amax() > 2**53) and dtype == torch.float64:
        return
    ordered = stamps.detach()[..., 0].sort(-1).values
    if bool(((ordered.diff(dim=-1) != 0) & (ordered.to(dtype).diff(dim=-1) == 0)).any()):
        raise _too_close(str(dtype).removeprefix("torch."))


def _dates(found: np.ndarray) -> np.ndarray:
    """An array of date objects as ``datetime64``."""
    flat = [_utc(one) for one in found.ravel().tolist()]
    try:
        kind = "datetime64[us]" if any(isinstance(one, date) for one in flat) else np.float64
        return np.array(flat, dtype=kind).reshape(found.shape)
    except (TypeError, ValueError) as wrong:
        raise _no_stamps(f"{type(found.ravel()[0]).__name__}") from wrong


def _utc(one: Any) -> Any:
    if isinstance(one, datetime):  # those of pandas are too
        return one.replace(tzinfo=None) if one.tzinfo is None else one.astimezone(UTC).replace(tzinfo=None)
    return one


def _seconds(found: np.ndarray) -> np.ndarray:
    """Dates and lengths of time in seconds; those that are missing are NaN."""
    unit = np.datetime_data(found.dtype)[0]
    fine = found if unit in ("ns", "ps", "fs", "as") else found.astype(f"{found.dtype.kind}8[us]")
    per_second = {"ns": 10**9, "ps": 10**12, "fs": 10**15, "as": 10**18}.get(np.datetime_data(fine.dtype)[0], 10**6)
    whole = fine.astype(np.int64)
    seconds = whole // per_second + (whole % per_second) / per_second
    missing = np.isnat(found)
    ordered = np.sort(np.where(missing, 0, whole), axis=-1)
    same = np.diff(np.sort(np.where(missing, 0.0, seconds), axis=-1), axis=-1) == 0
    if found.ndim and bool(((np.diff(ordered, axis=-1) != 0) & same).any()):
        raise _too_close("float64")
    return np.where(missing, np.nan, seconds)


def _too_close(dtype: str) -> GridError:
    remedy = "Subtract the first one from all: times − times[0]."
    return GridError("stamps must stay distinct", got=f"some that {dtype} cannot tell apart", remedy=remedy)


def _no_stamps(got: str) -> GridError:
    remedy = "Give a tensor, an array or a list of numbers or dates, one for each token."
    return GridError("stamps are numbers or dates", got=got, remedy=remedy)
