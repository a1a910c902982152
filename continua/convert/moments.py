"""Second moments of what goes into output maps, collected in one pass, and the orders of nodes that follow."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from continua.errors import ConfigError
from continua.fields import Expansion
from continua.models import Batch, Pass
from continua.models.embed import START, Tokens
from continua.operators import Attention, Context, InputsSeen, Operator, Pointwise
from continua.operators.norm import Affine
from continua.operators.refit import layer_at
from continua.typing import Tensor

CHOSEN = 0.75  # of the nodes one by one; the last are sorted by what they still carry
SPAN = 2  # passes of subspace iteration
SPARE = 16  # columns more than asked for, in a subspace iteration
SMALL = 512  # up to here all eigenvectors are found at once


@dataclass
class Sums:
    """Σ 1, Σ a and Σ aaᵀ over tokens."""

    count: int
    first: Tensor
    second: Tensor

    def add(self, values: Tensor) -> None:
        """Count the rows of ``values`` in."""
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        self.count += len(values)
        self.first += values.sum(0).double()
        self.second += (values.mT @ values).double()

    def moments(self, centred: bool) -> tuple[Tensor, Tensor]:
        """The mean (zero unless ``centred``) and the second moments about it."""
        mean = self.first / self.count if centred else torch.zeros_like(self.first)
        return mean, self.second / self.count - torch.outer(mean, mean)


@dataclass
class Collector:
    """The sums of every operator, layer by layer: of the state that it reads, and of what its output map does."""

    sums: dict[tuple[Operator, bool, int], Sums] = field(default_factory=dict)

    def __call__(self, seen: InputsSeen) -> None:
        """Take what one operator was given at one depth."""
        key = (seen.operator, seen.letters == "d", _layer(seen))
        values = seen.values.cpu()
        if key not in self.sums:
            wide = values.shape[-1]
            self.sums[key] = Sums(0, torch.zeros(wide).double(), torch.zeros(wide, wide).double())
        self.sums[key].add(values)

    def of(self, operator: Operator, state: bool = False) -> list[Sums]:
        """The sums of one operator, by layer: of the inputs of its output map, or of the ``state`` that it reads."""
        own = {layer: sums for (who, kind, layer), sums in self.sums.items() if who is operator and kind is state}
        return [own[layer] for layer in sorted(own)]


def output_map(operator: Operator) -> Expansion:
    """The map whose inputs are looked at."""
    found = operator.o if isinstance(operator, Attention) else operator.w2 if isinstance(operator, Pointwise) else None
    if not isinstance(found, Expansion):
        remedy = "Use a model of models.zoo, or leave calibrate out."
        raise ConfigError(
            "calibration knows attention and feed-forward maps", got=type(operator).__name__, remedy=remedy
        )
    return found


def _layer(seen: InputsSeen) -> int:
    """The layer whose weights were read there."""
    found = seen.operator.scale if isinstance(seen.operator, Affine) else output_map(seen.operator)
    known = isinstance(found, Expansion) and "z" in found.bases
    return layer_at(found.axes["z"], found.bases["z"], seen.z) if known else 0  # type: ignore[union-attr]


def collected(model: Any, batches: Iterable[Batch | Tensor]) -> Collector:
    """Run ``model`` on the batches, and collect what goes into its output maps."""
    seen = Collector()
    training = model.training
    model.eval()
    with torch.no_grad():
        for batch in batches:
            model(batch, None, Pass(Context(inputs=seen)))
            _before_the_first_norm(model, Batch.of(batch), seen)
    model.train(training)
    return seen


def _before_the_first_norm(model: Any, batch: Batch, seen: Collector) -> None:
    """Show what goes into the norm of an embedding, which is no part of the flow."""
    flow = model.flows[0]
    embed = flow.embed
    if isinstance(embed, Tokens) and embed.norm is not None:
        laid, grids = flow.prepare(batch, flow.structure())
        note = Context(inputs=seen).noting(embed.norm, grids.t)
        if note is not None:
            note(START, "d", embed.summed(laid, grids, embed.read(grids)))


def ordered(second: Tensor, out: Tensor, block: int = 1) -> Tensor:
    """Nodes by pivoted Cholesky: always the one whose part that the others do not say moves the output most.

    ``second`` [N, N] are second moments of the inputs, ``out`` [·, N] is the map; ``block`` inputs belong to one node
    (the inner coordinates of a head). Greedy, so every first part is the choice of its size: nested by construction.
    """
    count = len(second) // block
    floor = 1e-9 * float(second.diagonal().mean()) or 1.0
    weight = (out.mT @ out).double().unflatten(0, (count, block)).unflatten(2, (count, block))
    weight = torch.stack([weight[i, :, i] for i in range(count)])  # [N, b, b]: what each node feeds
    factor = second.new_zeros(len(second), len(second))
    left = torch.stack([second[i * block : (i + 1) * block, i * block : (i + 1) * block] for i in range(count)])
    taken: list[int] = []
    open_ = torch.ones(count, dtype=torch.bool)
    for step in range(max(1, int(CHOSEN * count))):
        score = (weight * left).sum((1, 2)).masked_fill(~open_, -torch.inf)
        node = int(score.argmax())
        taken.append(node)
        open_[node] = False
        done = slice(0, step * block)
        own = slice(node * block, (node + 1) * block)
        column = second[:, own] - factor[:, done] @ factor[own, done].mT
        carried, axes = torch.linalg.eigh((column[own] + column[own].mT) / 2)
        new = column @ axes * torch.where(carried > floor, carried, torch.inf).rsqrt()  # what is round-off says nothing
        factor[:, step * block : (step + 1) * block] = new
        split = new.unflatten(0, (count, block))
        left = left - split @ split.mT
    score = (weight * left).sum((1, 2)).masked_fill(~open_, -torch.inf)
    rest = [node for node in score.argsort(descending=True).tolist() if open_[node]]
    return torch.tensor([*taken, *rest])


def leading(second: Tensor, rank: int, weight: Tensor) -> Tensor:
    """U [N, rank] with UUᵀ ≈ second, closest where ``weight`` [N] is large: eigenvectors of the weighted moments."""
    scale = weight.clamp_min(1e-3 * float(weight.max()) or 1.0)
    weighted = second * scale * scale[:, None]
    if len(second) <= SMALL:
        values, vectors = torch.linalg.eigh(weighted)
    else:
        draw = torch.Generator().manual_seed(0)
        start = torch.randn(len(second), min(len(second), rank + SPARE), generator=draw, dtype=second.dtype)
        basis = torch.linalg.qr(weighted @ start).Q
        for _ in range(SPAN):
            basis = torch.linalg.qr(weighted @ basis).Q
        values, inner = torch.linalg.eigh(basis.mT @ weighted @ basis)
        vectors = basis @ inner
    best = vectors[:, -rank:] * values[-rank:].clamp_min(0.0).sqrt()
    return best / scale[:, None]
