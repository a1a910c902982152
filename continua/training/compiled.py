"""Training through ``torch.compile``: the model is one graph, what depends on values stays outside."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from continua.axes import Discretisation
from continua.errors import ConfigError
from continua.flow import Direct
from continua.models import Batch
from continua.optim import KFAC, Optimisers
from continua.training.draws import Draws
from continua.training.settings import Training
from continua.typing import Tensor

BACKEND = "inductor"
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


@contextmanager
def compiling() -> Iterator[None]:
    """Inside, the compiler makes as many graphs as there are sizes."""
    import torch._dynamo as dynamo

    with dynamo.config.patch(recompile_limit=GRAPHS, accumulated_recompile_limit=GRAPHS):
        yield


def refuse_uncompilable(model: Any, training: Training, optimisers: Optimisers) -> None:
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
    if training.sharded:
        remedy = "Use sharded=False, or leave compile out."
        raise ConfigError("a graph is compiled for whole weights", got="sharded=True", remedy=remedy)
