"""Peers for ``pretrained.py``, in plain torch on Hugging Face's BERT: pruning of nodes and heads, and of layers.

Each scores nodes of feed-forward and whole heads in its own way and keeps the best of every layer, as many in each:

- magnitude: the norms of the weights that go into a node and out of it, multiplied (Han et al. 2015, by nodes);
- Wanda: Σ_i |W_ij| ‖x_j‖ of the output map (Sun et al. 2024, summed over a column as in Wanda-sp);
- FLAP: var(x_j) ‖W_j‖² of the output map, the mean of what is removed goes into the bias (An et al. 2024);
- first: the first nodes and heads, unscored.

``refit`` gives them what ours has besides its order: the output map of the kept nodes is fitted to the output of all by
least squares, with moments of the full model on the same calibration sentences.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pretrained_texts import States, Tokens, embedded, likeness
from torch import Tensor, nn

# Of the mean square of a kept input. A compromise of 0.001, 0.01, 0.03 and 0.1 for Wanda and dropped layers, by other
# training sentences: a quarter of feed-forward likes less, heads like more, by 0.003 each.
RIDGE = 3e-2


def loaded(folder: Path) -> Any:
    """The full model of Hugging Face."""
    from transformers import BertModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    return BertModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="sdpa").eval()


def states_of(model: Any) -> States:
    """Its last states."""

    def run(ids: Tensor, there: Tensor) -> Tensor:
        return model(ids, attention_mask=there.long()).last_hidden_state  # type: ignore[no-any-return]

    return run


@torch.no_grad()
def shuffled(model: Any) -> Any:
    """The same model with the nodes of every feed-forward map in another order."""
    made = copy.deepcopy(model)
    drawn = torch.Generator().manual_seed(0)
    for layer in made.encoder.layer:
        order = torch.randperm(layer.intermediate.dense.out_features, generator=drawn)
        layer.intermediate.dense = rows(layer.intermediate.dense, order)
        layer.output.dense = linear(layer.output.dense.weight[:, order], layer.output.dense.bias)
    return made


# --- moments ---------------------------------------------------------------------------------------------------------


@dataclass
class Moments:
    """Σ x xᵀ over tokens of what an output map reads, with a constant one as the last input."""

    second: Tensor
    tokens: int = 0

    def add(self, inputs: Tensor) -> None:
        """Count more tokens, [n, k]."""
        whole = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
        self.second += (whole.T @ whole).double()  # in float32 within a batch, as ours
        self.tokens += len(inputs)

    @property
    def norms(self) -> Tensor:
        """‖x_j‖ of each input over all tokens."""
        return self.second.diagonal()[:-1].sqrt()

    @property
    def means(self) -> Tensor:
        """Of each input."""
        return self.second[-1, :-1] / self.tokens

    @property
    def variances(self) -> Tensor:
        """Of each input."""
        return self.second.diagonal()[:-1] / self.tokens - self.means**2


@contextmanager
def watched(maps: Sequence[nn.Module], see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Show the inputs of some maps while a model runs."""

    def hook(number: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, inputs: see(number, inputs[0])

    handles = [one.register_forward_pre_hook(hook(number)) for number, one in enumerate(maps)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def moments(maps: Sequence[nn.Linear], run: States, batches: Sequence[Tokens]) -> list[Moments]:
    """Of the inputs of some maps, over the tokens that are there."""
    found = [Moments(torch.zeros(one.in_features + 1, one.in_features + 1, dtype=torch.float64)) for one in maps]
    for batch in batches:
        there = batch.there
        with watched(maps, lambda number, inputs: found[number].add(inputs[there])):  # noqa: B023, run before the next
            run(batch.ids, there)
    return found


# --- which nodes are kept, and what the output map becomes ------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A way to prune: scores of the inputs of an output map, and what the map of those that are kept is."""

    name: str
    score: Callable[[Tensor, Tensor, Moments], Tensor]  # norms of incoming weights [k], output map [d, k], moments
    mended: bool = False  # the mean of what is removed goes into the bias
    refit: bool = False


def by_place(incoming: Tensor, outgoing: Tensor, seen: Moments) -> Tensor:
    """The first ones."""
    return -torch.arange(len(incoming), dtype=torch.float64)


def by_magnitude(incoming: Tensor, outgoing: Tensor, seen: Moments) -> Tensor:
    """‖w_in‖ ‖w_out‖."""
    return incoming * outgoing.norm(dim=0)


def by_wanda(incoming: Tensor, outgoing: Tensor, seen: Moments) -> Tensor:
    """Σ_i |W_ij| ‖x_j‖."""
    return outgoing.abs().sum(0) * seen.norms


def by_flap(incoming: Tensor, outgoing: Tensor, seen: Moments) -> Tensor:
    """var(x_j) ‖W_j‖²."""
    return seen.variances * outgoing.square().sum(0)


PLAIN = (
    Method("first", by_place),
    Method("magnitude", by_magnitude),
    Method("Wanda", by_wanda),
    Method("FLAP", by_flap, mended=True),
)
METHODS = (*PLAIN, *(Method(f"{one.name} + refit", one.score, refit=True) for one in PLAIN))


def best(scores: Tensor, keep: int, group: int = 1) -> Tensor:
    """The indices of the best groups of inputs (nodes: 1; heads: as many as a head is wide), in order."""
    groups = scores.view(-1, group).sum(1).topk(keep).indices.sort().values
    return (groups[:, None] * group + torch.arange(group)).flatten()


def fitted(weight: Tensor, bias: Tensor, kept: Tensor, seen: Moments) -> tuple[Tensor, Tensor]:
    """The map of the kept inputs that is nearest to the map of all in the mean over tokens, [d, kept] and [d].

    W' = W_K + W_R S_RK (S_KK + λ)⁻¹: only the share of those removed is regularised. The bias is one of the inputs.
    """
    everything = torch.cat([weight, bias[:, None]], 1)
    with_one = torch.cat([kept, torch.tensor([weight.shape[1]])])
    removed = torch.ones(weight.shape[1] + 1, dtype=torch.bool)
    removed[with_one] = False
    inner = seen.second[with_one][:, with_one].clone()
    diagonal = inner.diagonal()
    diagonal += RIDGE * diagonal[:-1].mean()
    target = everything[:, removed] @ seen.second[removed][:, with_one]
    whole = everything[:, with_one] + torch.linalg.solve(inner, target.T).T
    return whole[:, :-1], whole[:, -1]


def output_map(old: nn.Linear, kept: Tensor, seen: Moments, method: Method) -> nn.Linear:
    """The output map of a layer that reads the kept inputs only."""
    weight = old.weight.double()
    bias = torch.zeros(len(weight), dtype=torch.float64) if old.bias is None else old.bias.double()
    rest = torch.ones(weight.shape[1], dtype=torch.bool)
    rest[kept] = False
    if method.refit:
        new, shift = fitted(weight, bias, kept, seen)
    else:
        new = weight[:, kept]
        shift = bias + weight[:, rest] @ seen.means[rest] if method.mended else bias
    return linear(new, None if old.bias is None and not method.refit and not method.mended else shift)


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A layer of given numbers, in float32."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight.data = weight.float().contiguous()
    if bias is not None:
        made.bias.data = bias.float().contiguous()
    return made


def rows(old: nn.Linear, kept: Tensor) -> nn.Linear:
    """The same map with some of its outputs."""
    return linear(old.weight[kept], None if old.bias is None else old.bias[kept])


# --- BERT -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibrated:
    """A full model with the moments that all methods share."""

    model: Any
    nodes: list[Moments]
    heads: list[Moments]
    batches: Sequence[Tokens] = field(repr=False)

    @classmethod
    def of(cls, model: Any, batches: Sequence[Tokens]) -> "Calibrated":
        """One pass over the calibration sentences."""
        layers = model.encoder.layer
        maps = [one.output.dense for one in layers] + [one.attention.output.dense for one in layers]
        found = moments(maps, states_of(model), batches)
        return cls(model, found[: len(layers)], found[len(layers) :], batches)


@torch.no_grad()
def pruned(full: Calibrated, method: Method, m: int | None = None, h: int | None = None) -> Any:
    """A smaller BERT: ``m`` nodes of feed-forward and ``h`` heads in every layer."""
    model = copy.deepcopy(full.model)
    for layer, nodes, heads in zip(model.encoder.layer, full.nodes, full.heads, strict=True):
        if m is not None:
            inner = layer.intermediate.dense
            outer = layer.output.dense
            norms = inner.weight.double().norm(dim=1)
            kept = best(method.score(norms, outer.weight.double(), nodes), m)
            layer.intermediate.dense = rows(inner, kept)
            layer.output.dense = output_map(outer, kept, nodes, method)
        if h is not None:
            attention = layer.attention.self
            outer = layer.attention.output.dense
            width = attention.attention_head_size
            norms = attention.value.weight.double().norm(dim=1)
            kept = best(method.score(norms, outer.weight.double(), heads), h, width)
            for name in ("query", "key", "value"):
                setattr(attention, name, rows(getattr(attention, name), kept))
            attention.num_attention_heads = h
            attention.all_head_size = h * width
            layer.attention.output.dense = output_map(outer, kept, heads, method)
    return model


# --- layers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dropped:
    """A model without some layers one behind the other, and its likeness on the calibration sentences."""

    model: Any
    first: int
    cosine: float


@torch.no_grad()
def dropped(full: Calibrated, keep: int, refit: bool, wanted: Tensor) -> Dropped:
    """The best contiguous choice by the cosine on the calibration sentences; ``wanted`` are the full model's."""
    gap = len(full.model.encoder.layer) - keep
    tried: list[Dropped] = []
    for first in range(1 if refit else 0, keep + 1):  # an output map before the gap is what can be fitted
        model = copy.deepcopy(full.model)
        if refit:
            bridged(full, model, first - 1, first + gap - 1)
        layers = list(model.encoder.layer)
        model.encoder.layer = nn.ModuleList(layers[:first] + layers[first + gap :])
        model.config.num_hidden_layers = keep
        cosine = likeness(embedded(states_of(model), full.batches), wanted)
        tried.append(Dropped(model, first, cosine))
    return max(tried, key=lambda one: one.cosine)


def bridged(full: Calibrated, model: Any, before: int, last: int) -> None:
    """Fit the output map before a gap to what the last layer in it hands to its norm, and take over that norm."""
    ours = full.model.encoder.layer[before]
    theirs = full.model.encoder.layer[last]
    width = ours.output.dense.in_features
    second = torch.zeros(width + 1, width + 1, dtype=torch.float64)
    cross = torch.zeros(width + 1, ours.output.dense.out_features, dtype=torch.float64)
    maps = (ours.output.dense, ours.intermediate.dense, theirs.output.LayerNorm)
    for batch in full.batches:
        seen: dict[int, Tensor] = {}
        with watched(maps, seen.__setitem__):
            states_of(full.model)(batch.ids, batch.there)
        nodes, stream, wanted = (seen[number][batch.there].double() for number in range(len(maps)))
        inputs = torch.cat([nodes, torch.ones(len(nodes), 1)], 1)
        second += inputs.T @ inputs
        cross += inputs.T @ (wanted - stream)
    diagonal = second.diagonal()
    diagonal += RIDGE * diagonal[:-1].mean()
    whole = torch.linalg.solve(second, cross).T
    layer = model.encoder.layer[before].output
    layer.dense = linear(whole[:, :-1], whole[:, -1])
    layer.LayerNorm.load_state_dict(theirs.output.LayerNorm.state_dict())
