"""Muon on parameters that lie in parts on several processes: the step of one process."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from continua.errors import ConfigError
from continua.models import zoo
from continua.optim import KFAC, SOAP, ByRole, Muon, Shampoo
from continua.training.distributed import joined
from tests.forked import together

STEPS = 3
EXACT = 1e-12


def small() -> Any:
    """Three layers, eleven words: neither divides evenly."""
    torch.manual_seed(0)
    return zoo.gpt2(vocab=11, d=8, heads=2, depth=3, context=4).double()


def walked(model: Any, parameters: dict[str, Any], optimisers: Any, laid: Any) -> None:
    """Some steps with gradients that a seed decides; ``laid`` lays a whole tensor out as its parameter is."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        for parameter in parameters.values():
            whole = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
            parameter.grad = laid(whole, parameter)
        optimisers.step(1.0)


def parts_of(model: Any) -> dict[str, Any]:
    """Every second layer and coordinate of each weight, as the first stage of a growth trains them."""
    return {name: (slice(None, None, 2),) * parameter.dim() for name, parameter in model.named_parameters()}


def compared(mesh: Any, dim: int, parts: bool) -> None:
    """Steps of sharded and of whole parameters, or of ``parts`` of them, which may be cut along any dimension."""
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = small()
    before = {name: parameter.detach().clone() for name, parameter in whole.named_parameters()}
    sharded = copy.deepcopy(whole)
    for module in sharded.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            cut = min(dim, parameter.dim() - 1)
            made = nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(cut)]))
            setattr(module, name, made)
    for model, laid in (
        (whole, lambda value, _: value),
        (sharded, lambda value, like: distribute_tensor(value, mesh, like.placements)),
    ):
        own = ByRole(Muon(0.02)).make(model)
        parameters = dict(model.named_parameters())
        if parts:  # a second stage trains all of it, with the momentum that the first one left
            own.focus(parts_of(whole))
            walked(model, parameters, own, laid)
            own.focus({})
        walked(model, parameters, own, laid)
    pairs = [dict(model.named_parameters()) for model in (whole, sharded)]
    for name, parameter in pairs[0].items():
        found: Any = pairs[1][name]
        assert (found.full_tensor() - parameter).abs().max() < EXACT, name
        assert (parameter - before[name]).abs().max() > 1e-3, "it moved"


def refused(mesh: Any) -> None:
    """Those that need the norm or the inverse of a whole matrix say so."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    parameter = nn.Parameter(distribute_tensor(torch.zeros(4, 4), mesh, [Shard(0)]))
    for chosen in (Shampoo(), SOAP(), KFAC()):
        with pytest.raises(ConfigError, match=r"whole parameters.*sharded=False"):
            chosen.make([parameter])
    with pytest.raises(ConfigError, match="one dimension"):
        Muon().make([nn.Parameter(distribute_tensor(torch.zeros(4, 4), mesh, [Replicate()]))])


def work() -> None:
    """What each process does."""
    with joined():
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for dim in (0, 1, 2):
            compared(mesh, dim, False)
            compared(mesh, dim, True)
        refused(mesh)


@pytest.mark.spec("B15", "T6")
@pytest.mark.parametrize(
    "count", [2, pytest.param(4, marks=pytest.mark.slow(reason="each process takes seconds to import what shards"))]
)
def test_muon_takes_the_step_of_whole_parameters_on_their_parts(tmp_path: Path, count: int) -> None:
    together(work, folder=tmp_path, count=count)
