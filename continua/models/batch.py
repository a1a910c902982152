"""What a model is given: values at tokens, and where and when those tokens are."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils import _pytree as pytree

from continua.axes import Axis, Grid, Points, Samples, as_stamps, counting, exact
from continua.axes.grid import check_measure
from continua.checks import looking
from continua.constants import at_least_single
from continua.errors import GridError, MaskError, ShapeError
from continua.typing import Callable, Tensor


@runtime_checkable
class Array(Protocol):
    """What knows how to become an array of numpy: its own, and the series and indices of pandas."""

    def __array__(self) -> Any:
        """The array."""
        ...


WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class Batch:
    """Tokens or observations with their stamps.

    ``values`` are token numbers [b, t], observations [b, t, channels], or a function of the nodes that returns those;
    a question (``Queries``) has times and no values.
    ``times`` are stamps [t] or [b, t] (or points [.., t, k]): a tensor, an array or a list of numbers or dates (these
    count seconds since 1970 UTC, see ``as_stamps``); they are never rounded to the model's dtype. Without them tokens
    are counted, or laid on the grid of ``at(t=…)``. ``observed`` marks what is present. ``grid`` gives nodes and
    weights outright. ``pairs`` restricts or biases attention (see ``Context``). ``types`` are token types; ``source``
    is what an encoder reads. ``asked`` are the points [n, k] or [b, n, k] (or their grid) at which answers are wanted,
    where these are not the tokens' own. ``laid`` says that ``model.laid`` made it: values are those of tokens.
    """

    values: Tensor | Callable[[Tensor], Tensor] | None = None
    times: Tensor | None = None
    observed: Tensor | None = None
    grid: Grid | None = None
    pairs: Tensor | None = None
    types: Tensor | None = None
    source: "Batch | None" = None
    cross_pairs: Tensor | None = None
    asked: Tensor | Grid | None = None
    laid: bool = False

    def __post_init__(self) -> None:
        if self.times is not None:
            object.__setattr__(self, "times", as_stamps(self.times))
        if _is_listed(self.asked):
            object.__setattr__(self, "asked", as_stamps(self.asked))
        if _is_listed(self.observed):
            object.__setattr__(self, "observed", torch.from_numpy(np.array(self.observed)))
        for name, given in vars(self).items():
            if given is not None and name in KINDS:
                _check_kind(name, given, KINDS[name])

    @classmethod
    def of(cls, batch: "Batch | Tensor") -> "Batch":
        """A bare tensor is a batch of values."""
        return batch if isinstance(batch, Batch) else cls(batch)


KINDS: dict[str, tuple[type, ...]] = {
    "values": (Tensor,),
    "times": (Tensor,),
    "observed": (Tensor,),
    "grid": (Grid,),
    "pairs": (Tensor,),
    "types": (Tensor,),
    "source": (Batch,),
    "cross_pairs": (Tensor,),
    "asked": (Tensor, Grid),
}


def _check_kind(name: str, given: Any, kinds: tuple[type, ...]) -> None:
    """Refuse what is no dense tensor where one is wanted."""
    if name == "values" and callable(given):
        return
    if not isinstance(given, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ShapeError(f"{name} of a batch is a {wanted}", got=type(given).__name__, remedy="Convert it before.")
    if isinstance(given, Tensor) and given.layout is not torch.strided:
        got = str(given.layout).removeprefix("torch.")
        raise ShapeError(f"{name} of a batch is a dense tensor", got=got, remedy="Convert it: x.to_dense().")


def _is_listed(given: Any) -> bool:
    return given is not None and not isinstance(given, Tensor) and isinstance(given, list | Array)


def is_whole(values: object) -> bool:
    """Whether these are whole numbers; flags are none."""
    return isinstance(values, Tensor) and values.dtype in WHOLE


def place(batch: Batch, axis: Axis, named: Grid | None, like: Tensor) -> tuple[Batch, Grid]:
    """Return the batch with its values evaluated, and the token grid they live on.

    Weights are kept in float32 at least: half precision cannot count beyond a few hundred. Stamps along a line keep
    the precision in which they were given.
    """
    like = like.new_empty((), dtype=at_least_single(like.dtype))
    if batch.observed is not None and batch.observed.device != like.device:
        got = f"{batch.observed.device} and {like.device}"
        raise ShapeError("observed and the model live on one device", got=got, remedy="Move it: x.to(device).")
    grid = _grid(batch, axis, named, like)
    values: Any = batch.values
    if values is None and grid is not None:
        values = _nothing(batch, grid)
    if callable(values) and not isinstance(values, Tensor):
        if grid is None:
            raise GridError(
                "a function needs nodes", got="no times and no rule", remedy="Give times, or at(t=Midpoint(n))."
            )
        values = values(grid.nodes)
        if isinstance(values, Tensor) and values.dtype == grid.nodes.dtype:
            values = values.to(like.dtype)
    if not isinstance(values, Tensor) or values.dim() not in (2, 3):
        shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ShapeError("values need shape [b, t] or [b, t, channels]", got=shape, remedy="Add a batch dimension.")
    if values.shape[1] == 0 or values.shape[0] == 0:
        raise ShapeError("a sequence needs at least one token", got=list(values.shape), remedy="Drop empty sequences.")
    if grid is None:
        grid = counting(values.shape[1], like)
        grid = grid if batch.observed is None else grid.only(_flags(batch.observed))
    if grid.count != values.shape[1]:
        remedy = "Give one stamp for each token."
        raise ShapeError(f"{values.shape[1]} tokens need as many nodes", got=f"{grid.count} nodes", remedy=remedy)
    lead = grid.weights.shape[:-1]
    if len(lead) > 1 or (len(lead) == 1 and lead[0] != 1 and lead[0] != values.shape[0]):
        raise ShapeError(
            f"stamps need shape [t] or [{values.shape[0]}, t]", got=list(grid.weights.shape), remedy="Match the batch."
        )
    _check_pairs(batch, values)
    if grid.has_gaps:
        values = _present(values, grid)
    return batch if values is batch.values else replace(batch, values=values), grid


def _nothing(batch: Batch, grid: Grid) -> Tensor:
    """Zeros [b, t] for tokens that are times only; as many samples as the stamps or the source have."""
    lead = grid.weights.shape[:-1] or grid.nodes.shape[:-2]
    source = None if batch.source is None else batch.source.values
    count = lead[0] if lead and lead[0] > 1 else len(source) if isinstance(source, Tensor) else 1
    return grid.weights.new_zeros(count, grid.count)


def _present(values: Tensor, grid: Grid) -> Tensor:
    """Zero where a token is absent: whatever was written there (NaN, −100) reaches no observed token or gradient."""
    observed = grid.observed
    if looking() and not bool(observed.any(-1).all()):
        remedy = "Drop the sequence, or mark at least one token as observed."
        raise GridError("a sequence needs at least one observed token", got="one with none", remedy=remedy)
    return values.masked_fill(~(observed if values.dim() == 2 else observed[..., None]), 0)


def _check_pairs(batch: Batch, values: Tensor) -> None:
    beside = {"pairs": batch.pairs, "cross_pairs": batch.cross_pairs, "observed": batch.observed, "types": batch.types}
    for name, given in beside.items():
        if given is None:
            continue
        if given.device != values.device:
            got = f"{given.device} and {values.device}"
            raise ShapeError(f"{name} and values live on one device", got=got, remedy="Move it: x.to(values.device).")
        if "pairs" in name and given.dim() > 2 and given.shape[0] not in (1, values.shape[0]):
            remedy = "Give one mask for each sample, or one [t, s] for all."
            raise MaskError(f"{name} needs {values.shape[0]} samples", got=list(given.shape), remedy=remedy)


def _flags(observed: Tensor) -> Tensor:
    if observed.dtype != torch.bool:
        observed = observed != 0
    if observed.dim() not in (1, 2):
        raise ShapeError("observed needs shape [t] or [b, t]", got=list(observed.shape), remedy="One flag a token.")
    return observed


def _tokens(batch: Batch) -> tuple[int, ...] | None:
    """[b, t] as the values say; one question for each sample of a source is [b, 1]."""
    if isinstance(batch.values, Tensor):
        return tuple(batch.values.shape[:2])
    asked = None if batch.values is not None or batch.source is None else batch.source.values
    return (asked.shape[0], 1) if isinstance(asked, Tensor) else None


def _points(batch: Batch, axis: Axis, observed: Tensor | None) -> Tensor:
    """The stamps as points [t, k] or [b, t, k]; stamps that all samples share are spread where flags are not."""
    times: Any = batch.times
    # [b, 1] are the stamps of b one-token sequences; only where the values say otherwise is it one sequence of b points
    tokens = _tokens(batch)
    if times.dim() == 0:
        got = "one number"
        raise GridError("stamps need shape [t] or [b, t]", got=got, remedy="Give one stamp for each token.")
    rows = times.dim() == 2 and (times.shape[1] > 1 or tuple(times.shape) == tokens)
    if axis.dim == 1 and (times.dim() == 1 or rows):
        times = times[..., None]
    if times.shape[-1] != axis.dim:
        remedy = f"Give stamps of shape [t, {axis.dim}] or [b, t, {axis.dim}]."
        raise GridError(f"the axis has dimension {axis.dim}", got=f"stamps of {list(times.shape)}", remedy=remedy)
    if observed is None:
        return times
    if times.dim() == 2 and observed.dim() == 2:
        times = times.expand(len(observed), -1, -1)
    if observed.shape[-1] != times.shape[-2] or (observed.dim() == 2 and observed.shape[0] != times.shape[0]):
        got, remedy = f"{list(observed.shape)} for {list(times.shape[:-1])}", "Give one flag for each stamp."
        raise ShapeError("observed needs the shape of the stamps", got=got, remedy=remedy)
    return times


def _grid(batch: Batch, axis: Axis, named: Grid | None, like: Tensor) -> Grid | None:
    """The grid that the batch or the discretisation names; ``None``: count the tokens."""
    observed = None if batch.observed is None else _flags(batch.observed)
    if batch.grid is not None:
        if not batch.laid:
            check_measure(batch.grid)
        grid = batch.grid.to(like)
        return grid if observed is None else grid.only(observed)
    if batch.times is not None:
        if batch.times.is_meta and not like.is_meta:
            remedy = "Give stamps with their values."
            raise GridError("stamps are numbers", got="a tensor on the device meta", remedy=remedy)
        points = _points(batch, axis, observed)
        points = exact(points, like) if axis.dim == 1 else points.to(like)
        beyond = batch.values is None  # questions may be about the future
        return _in_range(Samples().on(axis, points, observed, beyond).to(like))
    if named is not None:
        return named if observed is None else named.only(observed)
    if isinstance(axis, Points):
        return None
    remedy = "Pass Batch(values, times=…), or name a rule: model.at(t=Midpoint(n))."
    raise GridError("tokens on a continuous axis need stamps", got="none", remedy=remedy)


def _in_range(grid: Grid) -> Grid:
    if looking() and not bool(torch.isfinite(grid.weights.detach().sum())):
        remedy = "Count time in a longer unit: times / 1e9."
        raise GridError(f"gaps between stamps must fit {grid.weights.dtype}", got="longer ones", remedy=remedy)
    return grid


def _flattened(batch: Batch) -> tuple[list[Any], Any]:
    names = [f.name for f in fields(batch) if getattr(batch, f.name) is not None]
    return [getattr(batch, name) for name in names], names


def _named(batch: Batch) -> tuple[list[tuple[Any, Any]], Any]:
    values, names = _flattened(batch)
    return [(pytree.GetAttrKey(name), value) for name, value in zip(names, values, strict=True)], names


def _restored(values: Iterable[Any], names: Any) -> Batch:
    """The batch of these leaves; they need not be tensors: programs put their own marks in their place."""
    made = Batch()
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


# so that torch.export sees the tensors of a batch as inputs
pytree.register_pytree_node(
    Batch, _flattened, _restored, serialized_type_name="continua.Batch", flatten_with_keys_fn=_named
)
