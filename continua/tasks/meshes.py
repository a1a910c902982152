"""Learning maps between functions on meshes, none of which is like another."""

from dataclasses import dataclass
from typing import Any

import torch

from continua.data.generation import generator_for
from continua.data.mesh_pairs import MeshPairs
from continua.errors import ConfigError
from continua.models import Batch
from continua.tasks.functions import predict, relative
from continua.tasks.task import Example, Score
from continua.typing import Float, Tensor


@dataclass(frozen=True, eq=False)
class OnMeshes:
    """inputs ↦ outputs of ``train``, sets of meshes of one number of nodes each; measured on ``held_out``.

    The loss of a mesh is ‖u − y‖/‖y‖ in L² against its lumped mass. A batch has meshes of one size; sizes take turns.
    """

    train: tuple[MeshPairs, ...]
    held_out: MeshPairs
    batch: int = 8

    def __post_init__(self) -> None:
        if not self.train:
            raise ConfigError("there is something to learn from", got="no meshes", remedy="Give at least one set.")
        fewest = min(len(pairs) for pairs in self.train)
        if not 0 < self.batch <= fewest:
            raise ConfigError(f"a set has {fewest} meshes", got=f"batch={self.batch}", remedy="Use a smaller batch.")

    def example(self, seed: int, step: int) -> Example:
        """Random meshes of one size; each is met once before any is met again."""
        pairs = self.train[step % len(self.train)]
        own = step // len(self.train)
        per_round = len(pairs) // self.batch
        order = torch.randperm(len(pairs), generator=generator_for("meshes", seed, pairs.nodes, own // per_round))
        chosen = order[(own % per_round) * self.batch :][: self.batch]
        target = pairs.outputs[chosen]
        batch = Batch(pairs.inputs[chosen], grid=pairs.grid(chosen))
        return Example(batch, target, torch.ones(len(target), dtype=torch.bool))

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """The sum over meshes of the relative distance."""
        grid = example.batch.grid
        if grid is None:
            raise ConfigError("a mesh has a measure", got="none", remedy="Give Batch(values, grid=…).")
        return relative(answer, example.target, grid.weights.to(answer)).sum()

    @torch.no_grad()
    def evaluate(self, model: Any) -> Score:
        """Mean relative L² distance on held-out meshes."""
        return Score({"relative_l2": float(self.errors(model).mean())})

    def errors(self, model: Any, on: MeshPairs | None = None) -> Float[Tensor, "b"]:
        """The relative L² distance on each held-out mesh, or on each ``on`` other ones."""
        pairs = self.held_out if on is None else on
        answer = predict(model, Batch(pairs.inputs, grid=pairs.grid()))
        return relative(answer, pairs.outputs.to(answer), pairs.weights.to(answer))
