"""Training through ``torch.compile``: the model is one graph, what depends on values stays outside."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch

from continua.axes import Discretisation
from continua.errors import ConfigError
from continua.flow import Direct
from continua.flow.vectorfield import Bound
from continua.models import Batch
from continua.operators.weights import Weights
from continua.optim import KFAC, Optimisers
from continua.training.draws import Draws
from continua.tree import branches
from continua.typing import Args, Tensor

BACKEND = "inductor"
HERE = 0.0  # the one depth that a compiled field knows
GRAPHS = 1024  # how many sizes and shapes may have a graph; beyond the compiler's own few it would give up


class Compiled:
    """Answers of a model by whole graphs, one for each discretisation and shape of the batch that is met.

    It is no module: the parameters are the model's.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._call = torch.compile(model, fullgraph=True, backend=BACKEND)
        self._lays = any(flow.axes.t.dim > 1 for flow in model.flows)  # weights of scattered points are searched for

    def __call__(self, batch: Batch, at: Discretisation | None = None) -> Tensor:
        """The answer on a discretisation."""
        if self._lays:
            batch = self.model.laid(batch, at)
        answer: Tensor = self._call(batch, at)
        return answer


class CompiledField:
    """Makes each part of a field answer by a graph: the search for steps is not compiled, what it evaluates is.

    Depths that are found on the way are numbers of which a graph may not know. It is given the weights that were read
    at one of them, as those of depth ``HERE``.
    """

    def __init__(self) -> None:
        self._call = torch.compile(_evaluated, fullgraph=True, backend=BACKEND)

    def __call__(self, bound: Bound) -> Bound:
        """The same part; it has no backward written by hand any more."""
        return replace(bound, f=lambda z, x, args: self._call(bound.f, x, _read_here(z, args)), lean=None)


def _evaluated(f: Any, x: Tensor, args: Args) -> Tensor:
    value: Tensor = f(HERE, x, args)
    return value


def _read_here(z: float, args: Args) -> Args:
    """The same arguments, with the weights of depth z as those of ``HERE``."""
    if isinstance(args, Weights):
        return args if not args.depth else Weights(args.fixed, {HERE: args.depth[z]})
    inside = branches(args)
    changed = [_read_here(z, branch) for branch in inside]
    if all(new is old for new, old in zip(changed, inside, strict=True)):
        return args
    if isinstance(args, dict):
        return dict(zip(args, changed, strict=True))
    if isinstance(args, list | tuple):
        return type(args)(changed) if type(args) in (list, tuple) else type(args)(*changed)
    return replace(args, **{own.name: new for own, new in zip(fields(args), changed, strict=True)})


@contextmanager
def compiling(model: Any) -> Iterator[None]:
    """Inside, the field is compiled where steps are searched for, and there are as many graphs as sizes."""
    import torch._dynamo as dynamo

    before = model.execution.search
    model.execution.search = CompiledField()
    try:
        with (
            dynamo.config.patch(recompile_limit=GRAPHS, accumulated_recompile_limit=GRAPHS),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", message="The .grad attribute")  # the compiler looks at what it is given
            yield
    finally:
        model.execution.search = before


def refuse_uncompilable(model: Any, optimisers: Optimisers) -> None:
    """Refuse what a graph cannot contain, each with what to switch off."""
    adjoint = model.execution.adjoint
    if adjoint != Direct():
        remedy = "Use adjoint=Direct(), or leave compile out."
        raise ConfigError("a compiled step takes its gradients from the graph", got=adjoint, remedy=remedy)
    if any(isinstance(part.chosen, KFAC) for part in optimisers.parts):
        remedy = "Train kernels by Muon() or SOAP(), or leave compile out."
        raise ConfigError("K-FAC looks at products that a graph does not show", got="compile=True", remedy=remedy)
    drawn = Draws(model).own
    if drawn:
        remedy = "Use another kernel, or leave compile out."
        raise ConfigError("what is drawn anew at each step has no graph", got=drawn[0][1], remedy=remedy)
