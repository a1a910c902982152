"""Calibration without training: an order of nodes chosen by data, and moments by which fewer nodes stand in for all."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from continua.axes import taken_first
from continua.convert.moments import Collector, collected, leading, ordered, output_map
from continua.convert.states import Reading, keep_state_moments, mend_norm, norms_of, reading_maps, state_order
from continua.data.tokens import Tokeniser
from continua.errors import ConfigError
from continua.fields import Hold, RefitRanks
from continua.models import Batch, merged
from continua.models.lift import lift, relaid, require_counted
from continua.operators import Attention, Operator, Pointwise, Position, Rotary
from continua.operators.calibration import Calibrated, Calibration
from continua.typing import Tensor

SHARE = 0.095  # of the bytes of the weights in single precision, which all moments together may take
TEXTS = 32  # in one batch
LONGEST = 128  # tokens of a text that are read


def elastic(
    model: Any,
    calibrate: Iterable[Any] | None = None,
    *,
    tokens: Tokeniser | None = None,
    ranks: RefitRanks | None = None,
) -> Any:
    """Return a model that equals ``model`` on its own grid, and works on smaller ones.

    ``calibrate`` are a few hundred texts (with the model's ``tokens``) or batches. One pass collects second moments of
    hidden coordinates, of outputs of heads and of the state; nodes are put into the order in which they matter, and at
    a smaller size the maps that read them are refitted so that the nodes that are kept stand in for all. ``ranks`` says
    how closely the moments are kept; unless given they take at most a tenth of the weights.
    Without ``calibrate`` nodes stay in the order they have, and a ``Calibration`` is there to be trained. Low-rank
    additions are merged.

    >>> import torch
    >>> from continua.models import zoo
    >>> plain = zoo.gpt2(vocab=8, d=16, heads=4, depth=2, context=32)
    >>> texts = torch.randint(8, (4, 32), generator=torch.Generator().manual_seed(0))
    >>> model = elastic(plain, calibrate=[texts])
    >>> bool((model(texts) - plain(texts)).abs().max() < 1e-5)
    True
    """
    model = merged(model)
    if calibrate is None:
        return lift(model, calibrated=True)
    require_counted(model)
    seen = collected(model, batches_of(calibrate, tokens, model))
    _require_tokens(model, seen)
    ranks = replace(_ranks(model) if ranks is None else ranks, stays=True)
    orders = {who: _orders(who, seen) for who in _operators(model)}
    of_state = state_order([_reading(who, seen) for who in _operators(model)])
    made = relaid(model, {**_rules(model, orders), "d": tuple(of_state.tolist())}, True, Hold(), ranks)
    with torch.no_grad():
        for before, after in zip(_operators(model), _operators(made), strict=True):
            _keep_order(after, orders[before])
            _keep_moments(after, seen.of(before))
            keep_state_moments(after, _reading(before, seen))
        for module in made.modules():
            if isinstance(module, Calibrated) and module.calibration is not None:
                _silence(module.calibration)
        for before, after in zip(norms_of(model), norms_of(made), strict=True):
            mend_norm(after, seen.of(before, state=True), of_state)
    return made


def batches_of(
    given: Iterable[Any], tokens: Tokeniser | None, model: Any, texts: int = TEXTS
) -> Iterator[Batch | Tensor]:
    """Texts as padded batches of so many ``texts``, batches as they are."""
    held: list[Any] = [given] if isinstance(given, str) else list(given)
    if not held:
        remedy = "Give a few hundred texts of the kind the model will read, or batches."
        raise ConfigError("calibration needs data", got="none", remedy=remedy)
    if not isinstance(held[0], str):
        yield from held
        return
    if tokens is None:
        remedy = "Give tokens=, the tokeniser of the model, or batches of token numbers."
        raise ConfigError("texts need a tokeniser", got="none", remedy=remedy)
    room = model.flows[-1].embed.room or LONGEST
    for start in range(0, len(held), texts):
        yield _padded([tokens.encode(text)[: min(room, LONGEST)] for text in held[start : start + texts]])


def _padded(rows: Sequence[Tensor]) -> Batch:
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    observed = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        observed[number, : len(row)] = True
    return Batch(ids, observed=observed)


def _operators(model: Any) -> list[Operator]:
    """The operators whose output maps are refitted."""
    return [module for module in model.modules() if isinstance(module, Attention | Pointwise)]


def _reading(operator: Operator, seen: Collector) -> Reading:
    """What an operator reads of the state, and how much of each coordinate goes into its maps."""
    return Reading(tuple(seen.of(operator, state=True)), reading_maps(operator))


def _require_tokens(model: Any, seen: Collector) -> None:
    """As many tokens as the widest map has inputs: below that, moments say nothing of some directions."""
    for operator in _operators(model):
        if not seen.of(operator):
            remedy = "Give batches that use every part of the model."
            raise ConfigError("calibration data must reach every map", got="a map without inputs", remedy=remedy)
    wide = max(len(sums.first) for sums in seen.sums.values())
    fewest = min(sums.count for sums in seen.sums.values())
    if fewest < wide:
        remedy = f"Give more or longer texts: about {math.ceil(wide / max(fewest, 1))} times as many."
        raise ConfigError(f"the moments of {wide} inputs need {wide} tokens", got=fewest, remedy=remedy)


def _ranks(model: Any) -> RefitRanks:
    """All moments of outputs of heads, half the rank of those of hidden coordinates, or what a tenth of weights holds.

    A tenth of that is for moments of the state. Of heads few are left out at a time, so what they say of each other is
    kept whole.
    """
    room = SHARE * 4 * sum(parameter.numel() for parameter in model.parameters())
    heads = 0
    hidden = 0
    states = 0
    wide = {"h": 1, "m": 1, "d": 1}
    for operator in _operators(model):
        shape = output_map(operator).coefficients.shape
        layers = shape[0] if "z" in output_map(operator).bases else 1
        wide["d"] = output_map(operator).coefficients.shape[1 if "z" in output_map(operator).bases else 0]
        states += layers * wide["d"]
        if isinstance(operator, Attention):
            wide["h"] = math.prod(shape[-2:])
            heads += layers * wide["h"]
        else:
            wide["m"] = shape[-1]
            hidden += layers * wide["m"]
    of_heads = min(wide["h"], int(room / 2 / max(heads, 1)))
    of_states = min(wide["d"], int(room / 10 / max(states, 1)))
    left = room - of_heads * heads - of_states * states
    of_hidden = min(math.ceil(wide["m"] / 2), int(left / max(hidden, 1)))
    return RefitRanks(m=max(1, of_hidden), h=max(1, of_heads), d=max(1, of_states))


@dataclass(frozen=True)
class Orders:
    """The nodes of one operator in the order in which they matter, [layers, nodes]; the first is the most important."""

    nodes: Tensor
    letter: str
    shared: bool  # places that something else counts too: the same order for all layers


def _orders(operator: Operator, seen: Collector) -> Orders:
    out = output_map(operator).coefficients.detach().double().cpu()
    out = out if "z" in output_map(operator).bases else out[None]
    found = []
    for sums, own in zip(seen.of(operator), out, strict=True):
        if isinstance(operator, Attention):
            second = sums.moments(operator.bo is not None)[1]
            found.append(_by_group(ordered(second, own.flatten(1), own.shape[-1]), operator.groups))
        else:
            second = sums.moments(operator.b2 is not None)[1]
            found.append(ordered(second, own))
    shared = isinstance(operator, Attention) and type(operator.position) not in (Position, Rotary)
    return Orders(torch.stack(found), "h" if isinstance(operator, Attention) else "m", shared)


def _by_group(order: Tensor, groups: int | None) -> Tensor:
    """Heads in turn of each group, so that as many of each are kept."""
    if groups is None:
        return order
    each = len(order) // groups
    lists = [order[order // each == group] for group in range(groups)]
    return torch.stack(lists, 1).flatten()


def _rules(model: Any, orders: dict[Operator, Orders]) -> dict[str, tuple[int, ...]]:
    """The order of heads that native rules have: where heads are told apart elsewhere, or come in groups."""
    shared = [own.nodes for own in orders.values() if own.shared]
    if shared:  # the mean place over all layers
        places = torch.cat(shared).argsort(1).double().mean(0)
        return {"h": tuple(places.argsort().tolist())}
    grouped = [who for who in orders if isinstance(who, Attention) and who.groups is not None]
    if grouped:
        heads = orders[grouped[0]].nodes.shape[1]
        turns = torch.arange(heads).view(grouped[0].groups or 1, -1).mT.flatten()
        return {"h": tuple(turns.tolist())}
    return {}


def _keep_order(operator: Any, orders: Orders) -> None:
    """Let the places that the native rule takes first mean the most important nodes of each layer.

    Weights stay where they are: the native size adds up the same numbers in the same order as before.
    """
    if orders.shared or operator.refit is None:
        return
    axis = output_map(operator).axes[orders.letter]
    rule = output_map(operator).bases[orders.letter].rule  # type: ignore[attr-defined]
    places = torch.from_numpy(taken_first(axis, rule))
    meant = torch.empty_like(orders.nodes)
    meant[:, places] = orders.nodes
    operator.refit.order.copy_(meant)


def _keep_moments(operator: Any, sums: list[Any]) -> None:
    """Give the refit of an operator its moments."""
    refit = operator.refit
    if refit is None:
        return
    out = output_map(operator).coefficients.detach().double().cpu()
    out = out if "z" in output_map(operator).bases else out[None]
    for layer, (own, map_) in enumerate(zip(sums, out, strict=True)):
        mean, second = own.moments(refit.centred)
        weight = map_.flatten(1).square().sum(0).sqrt()
        refit.keep(layer, leading(second, refit.factor.shape[-1], weight), second.diagonal(), mean)


def _silence(calibration: Calibration) -> None:
    """Start from what data say: no gain, no shift."""
    for field in calibration.fields.values():
        field.coefficients.zero_()  # type: ignore[operator]
