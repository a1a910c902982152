"""What a discretisation decides before data come: plain numbers, and constants on the model's device."""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

import torch

from continua import memory
from continua.axes import ALIASES, WIDTHS, Axes, Depths, Discretisation, Grid, Grids, Profile, Sharded
from continua.axes.rules import made_of, pieces_on
from continua.checks import refuse_in_graph
from continua.compiling import remembered
from continua.constants import at_least_single
from continua.errors import ConfigError, GridError
from continua.fields import Expansion
from continua.flow import Adaptive, Fixed, LieTrotter, Solver, Tsit5, depths
from continua.flow.stepping import StepPlan
from continua.flow.trajectory import Steps
from continua.models.embed import START
from continua.models.model import Pass
from continua.operators.calibration import FINEST
from continua.typing import Tensor

Numbers = tuple[Any, ...]  # tensors and plain numbers only: a compiler takes them as constants


@dataclass(frozen=True)
class Structure:
    """Grids of the widths, the steps in depth, and where each part of the field is read.

    ``t`` is the grid of the tokens, where a rule is named for it; ``control`` and ``solver`` say how depth is walked;
    ``steps`` and ``depths`` are None where steps are searched for; ``behind`` is what operators behind the flow know of
    its steps: one depth and their mean length.
    """

    t: Grid | None
    grids: Grids
    span: tuple[float, float]
    control: Any
    solver: Solver
    steps: Steps | None
    depths: tuple[Depths | None, ...]
    behind: Depths
    shards: Sharded | None = None  # where each process has a part of the tokens

    def require_device(self, values: Any) -> None:
        """Refuse values that live elsewhere."""
        here = self.grids.d.nodes.device
        if isinstance(values, Tensor) and values.device != here:
            got = f"values on {values.device}, weights on {here}"
            remedy = "Move the batch: values.to(device), or the model: model.to(device)."
            raise ConfigError("a batch and its model live on one device", got=got, remedy=remedy)


@dataclass(frozen=True)
class Program:
    """A model bound to counted tokens on one discretisation: nothing is left to decide or to read."""

    grids: Grids
    plan: StepPlan
    args: list[Any]

    def run(self, x0: Tensor) -> Tensor:
        """X(Z) from X(0)."""
        final: Tensor = self.plan.run(x0, self.args, self.plan.everything)[1][-1]
        return final


@remembered
def settled(wish: Discretisation, native: Discretisation, axes: Axes) -> Discretisation:
    """``wish``, and what it leaves open from the native choice; a bare number of steps keeps the solver."""
    chosen = wish.over(native, axes)
    own: Solver | None = native.z.solver
    if isinstance(chosen.z, int):
        kind = native.z if isinstance(native.z, Fixed) else Fixed(1, own)
        chosen = chosen.replace(z=replace(kind, steps=chosen.z, lengths=None))
    if chosen.z.solver is None:
        usual = Tsit5() if isinstance(chosen.z, Adaptive) else own or LieTrotter()
        chosen = chosen.replace(z=replace(chosen.z, solver=usual))
    return chosen


def numbers_of(model: Any, at: Discretisation | None) -> Numbers:
    """The numbers of a discretisation: pieces of the width grids, steps, depths with lengths, and those behind."""
    like = next(model.parameters())
    _on_one_device(model)
    chosen = model.settle(at)
    _refuse_too_large(model, chosen)
    span = (model.axes.z.start, model.axes.z.end)
    control = chosen.z
    dtype = at_least_single(like.dtype)
    grids = tuple(pieces_on(model.axes[k], getattr(chosen, k), like.device, dtype) for k in WIDTHS)
    steps = None
    where: tuple[Any, ...] = (None,) * len(model.block.kinds)
    if isinstance(control, Fixed):
        steps = tuple(control.walk(span))
        found = depths(model.block.kinds, span, control.solver, control)
        where = tuple((nodes, *_walked(model, nodes, control)) for nodes in found)
    hidden = _hidden(model, chosen, steps, like.device, dtype)
    rule = chosen.t.rule if isinstance(chosen.t, Sharded) else chosen.t
    tokens = None if rule is None else pieces_on(model.axes.t, rule, like.device, dtype)
    return grids, hidden, tokens, steps, where, _mean_length(model.native.z, control)


def _hidden(model: Any, chosen: Discretisation, steps: Steps | None, device: torch.device, dtype: torch.dtype) -> Any:
    """The depth at which each step starts, and the pieces of its grid of m; None where m is the same everywhere."""
    profile = chosen.m
    if not isinstance(profile, Profile):
        return None
    if steps is None or len(profile.sizes) != len(steps):
        got = f"{len(profile.sizes)} sizes for {'steps that are searched for' if steps is None else len(steps)}"
        raise GridError("a profile has one size for each step", got=got, remedy="Give as many sizes as steps.")
    rules = [profile.of_step(step) for step in range(len(steps))]
    return tuple((z, pieces_on(model.axes.m, rule, device, dtype)) for (z, _), rule in zip(steps, rules, strict=True))


def _refuse_too_large(model: Any, chosen: Discretisation) -> None:
    """Refuse a size whose weights do not fit into memory, before a grid is made. Those of the native size are there."""
    control = chosen.z
    at_once = control.steps if isinstance(control, Fixed) and not model.execution.adjoint.reads_late else 1
    sizes = {**{letter: getattr(chosen, letter).n for letter in WIDTHS}, "z": at_once}
    need = 0
    stored = 0
    for field in model.modules():
        if isinstance(field, Expansion):
            own = {letter: basis.size for letter, basis in field.bases.items()}
            need += math.prod(sizes.get(ALIASES.get(letter, letter), size) for letter, size in own.items())
            stored += math.prod(own.values())
    if need > stored:
        item = next(model.parameters()).element_size()
        memory.require(need * item, f"this model {chosen}", "Choose a smaller size.")


def _on_one_device(model: Any) -> None:
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise ConfigError("a model lives on one device", got=" and ".join(devices), remedy="Move it: model.to(device).")


def decided(model: Any, at: Discretisation | None, numbers: Numbers) -> Structure:
    """The same as objects, with the model's own solver and rules."""
    pieces, hidden, tokens, steps, where, mean = numbers
    control = model.native.z if at is None or at.z is None else at.z
    solver = model.native.z.solver if isinstance(control, int) or control.solver is None else control.solver
    if torch.compiler.is_compiling():
        control = None if steps is None else Fixed(len(steps), solver)
    else:
        control = model.settle(at).z
        solver = control.solver
    d, h, e, m = (made_of(own) for own in pieces)
    varying = None if hidden is None else tuple((z, made_of(own)) for z, own in hidden)
    return Structure(
        t=None if tokens is None else made_of(tokens),
        grids=Grids(d=d, h=h, e=e, m=m, hidden=varying),
        span=(model.axes.z.start, model.axes.z.end),
        control=control,
        solver=solver,
        steps=steps,
        depths=tuple(None if own is None else Depths(*own) for own in where),
        behind=Depths((START,), (mean,)),
        shards=at.t if at is not None and isinstance(at.t, Sharded) else None,
    )


def _walked(
    model: Any, nodes: tuple[float, ...], control: Fixed
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """The lengths of the steps in which depths are read, the native one being 1, and where in a native step they begin.

    None, None: all are native. Where steps are read at several depths, only their lengths are told.
    """
    native = model.native.z
    if not isinstance(native, Fixed) or replace(control, solver=native.solver) == native:
        return None, None
    span = (model.axes.z.start, model.axes.z.end)
    walked = list(control.walk(span))
    unit = (span[1] - span[0]) / native.steps
    starts = [z for z, _ in walked]
    own = [walked[max(0, bisect_right(starts, z) - 1)] for z in nodes]
    lengths = tuple(length / unit for _, length in own)
    if [z for z, _ in own] != starts:
        return lengths, None
    return lengths, tuple((z - span[0]) / unit % 1.0 for z in starts)


def _mean_length(native: Any, control: Any) -> float:
    """What an operator behind the flow may know of its steps: their mean length, the native one being 1."""
    if not isinstance(native, Fixed) or control == native:
        return 1.0
    return native.steps / control.steps if isinstance(control, Fixed) else 2.0**FINEST


def refuse_by_value(structure: Structure, told: Pass | None) -> None:
    """What depends on values has no place in a graph."""
    if structure.steps is None:
        remedy = "Use at(z=Fixed(n, …)) there, or compile the field alone and leave the search as it is."
        refuse_in_graph("a compiled graph takes steps that are known", "steps that are searched for", remedy)
    if told is not None and told.context is not None and told.context.record is not None:
        remedy = "Switch record off, or look at the model uncompiled."
        refuse_in_graph("a compiled graph keeps no attention weights", "a record", remedy)


def behind_the_last(final: Tensor, grids: Grids) -> tuple[Tensor, Grids]:
    """The state behind the last observed token of each sample, as one token."""
    t = grids.tokens
    if t.has_gaps:
        last = t.count - 1 - t.observed.flip(-1).long().argmax(-1)
        final = final[torch.arange(final.shape[0], device=final.device), last][:, None]
    else:
        final = final[:, -1:]
    one = Grid(
        t.nodes[..., :1, :],
        torch.ones_like(t.weights[..., :1]),
        is_counting=True,
        is_uniform=True,
        is_unit=True,
        is_ordered=True,
    )
    return final, grids.with_tokens(one)
