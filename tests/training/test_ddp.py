"""Data parallel training: two processes, gradients that are equal, not zero, and the average of both."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from continua.flow import RK4, Direct, Fixed, ReversibleSolver, solve
from continua.training.distributed import settle
from tests.cases import EXACT_ADJOINTS, INEXACT_ADJOINTS
from tests.forked import RANKS, together
from tests.measure import gap, random

ADJOINTS = [Direct(), *EXACT_ADJOINTS, *INEXACT_ADJOINTS]


class Solved(nn.Module):
    """A model whose answer is the end of a flow with its parameters."""

    def __init__(self, adjoint: Any) -> None:
        super().__init__()
        self.adjoint = adjoint
        self.solver = ReversibleSolver() if type(adjoint).__name__ == "Reversible" else RK4()
        self.embed = nn.Linear(2, 3)
        self.weights = nn.ParameterList([0.5 * random(3, 3, seed=i) for i in range(2)])
        with torch.no_grad():
            self.embed.weight.copy_(random(3, 2, seed=5))
            self.embed.bias.copy_(random(3, seed=6))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        path = solve(
            lambda z, x, a: torch.tanh(x @ a[0].T) @ a[1] * (1 + z),
            self.embed(x),
            (0.0, 1.0),
            args=list(self.weights),
            solver=self.solver,
            control=Fixed(5),
            adjoint=self.adjoint,
            cost=lambda z, x, v, a: (v * v).sum(-1),
        )
        return path.final.square().sum(-1) + path.cost


def data(rank: int) -> Tensor:
    return random(4, 2, seed=20 + rank)


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def work(folder: Path) -> None:
    """One of the processes: the gradients of every adjoint, into a file."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found = {}
    for i, adjoint in enumerate(ADJOINTS):
        model = nn.parallel.DistributedDataParallel(Solved(adjoint))
        for j, gradient in enumerate(gradients(model, data(rank))):
            found[f"{i}.{j}"] = gradient
    save_file(found, folder / f"{rank}.safetensors")
    settle()
    torch.distributed.destroy_process_group()


@pytest.mark.spec("D7", "B8")
def test_gradients_are_equal_on_both_ranks_and_the_average_of_both_for_every_adjoint(tmp_path) -> None:
    together(work, tmp_path, folder=tmp_path)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(RANKS))
    for i, adjoint in enumerate(ADJOINTS):
        model = Solved(adjoint)
        both = zip(gradients(model, data(0)), gradients(model, data(1)), strict=True)
        for j, (a, b) in enumerate(both):
            assert torch.equal(first[f"{i}.{j}"], second[f"{i}.{j}"]), adjoint
            assert gap(first[f"{i}.{j}"], (a + b) / 2) < 1e-12, adjoint
            assert first[f"{i}.{j}"].abs().max() > 1e-3, adjoint
            assert gap(a, b) > 1e-3, "the data differ"
