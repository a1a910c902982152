"""Memory-augmented attention: a bank of learned tokens is the rows one would concatenate by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.axes import Depths, counting
from continua.errors import ConfigError
from continua.fields import counted
from continua.models import Bank
from continua.operators import Attention, Context
from tests.cases import made
from tests.cases_models import COUNTED
from tests.exact import gap, gradients, numbers, worst
from tests.refusals import refused

B, T, S, D, SLOTS = 2, 4, 5, 8, 3
EXACT = 1e-12  # float64 round-off
PRESENT = torch.arange(S) < torch.tensor([[S], [S - 2]])


def parts(separate: bool) -> tuple[Attention, Bank]:
    torch.manual_seed(0)
    w = counted(COUNTED[0])
    return Attention(w, cross=True).double(), Bank(w, SLOTS, separate).double()


def attended(operator: Attention, x: Tensor, context: Context) -> Tensor:
    axes, native = COUNTED
    f, args = operator.bind(replace(native.grids(axes), t=counting(T, x), z=Depths((0.0,))), context)
    return f(0.0, x, args)


def by_hand(operator: Attention, x: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Tensor:
    """Attention over given rows, written out."""

    def heads(name: str, rows: Tensor) -> Tensor:
        kernel, bias = getattr(operator, name).coefficients, getattr(operator, f"b{name}").coefficients
        return torch.einsum("hec,bsc->bhse", kernel, rows) + bias[:, None]

    scores = heads("q", x) @ heads("k", keys).mT / 2.0  # √4
    alpha = scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
    mixed = torch.einsum("dhe,bhte->btd", operator.o.coefficients, alpha @ heads("v", values))
    return mixed + operator.bo.coefficients


@pytest.mark.spec("A6")
@pytest.mark.parametrize("separate", [False, True], ids=["one table", "keys and values"])
@pytest.mark.parametrize("context", ["alone", "joined", "padded", "pairs"])
def test_a_bank_is_concatenation_by_hand(separate, context) -> None:
    operator, bank = parts(separate)
    x, state = numbers(B, T, D).requires_grad_(), numbers(B, S, D, seed=1).requires_grad_()
    leaves = {"x": x, **dict(operator.named_parameters(prefix="attention")), **dict(bank.named_parameters())}
    keys = bank.keys.coefficients.expand(B, -1, -1)
    values = (bank.keys if bank.values is None else bank.values).coefficients.expand(B, -1, -1)
    allowed, given = torch.ones(B, T, SLOTS, dtype=torch.bool), Context()
    if context != "alone":
        leaves["state"] = state
        keys, values = torch.cat([state, keys], 1), torch.cat([state, values], 1)
        seen = torch.ones(B, T, S, dtype=torch.bool)
        grid = counting(S, x)
        if context == "padded":
            seen, grid = PRESENT[:, None].expand(B, T, S), grid.only(PRESENT)
        if context == "pairs":
            seen = torch.rand(B, T, S, generator=torch.Generator().manual_seed(3)) < 0.5
        allowed = torch.cat([seen, allowed], -1)
        given = Context(state, grid, cross_pairs=seen if context == "pairs" else None)
    axes, native = COUNTED
    ours = attended(operator, x, bank(replace(native.grids(axes), t=counting(T, x)), given))
    theirs = by_hand(operator, x, keys, values, allowed)
    assert gap(ours, theirs) <= EXACT
    towards = numbers(B, T, D, seed=9)
    got, wanted = (gradients((answer * towards).sum(), leaves) for answer in (ours, theirs))
    assert worst(got, wanted) <= EXACT
    assert all(wanted[f"{name}.coefficients"].abs().max() > 1e-3 for name in (["keys", "values"][: 1 + separate]))


@pytest.mark.spec("A6")
def test_floating_pairs_add_nothing_to_the_slots() -> None:
    _, bank = parts(False)
    pairs = numbers(T, S)
    grids = replace(COUNTED[1].grids(COUNTED[0]), t=counting(T, pairs))
    joined = bank(grids, Context(numbers(B, S, D), counting(S, pairs), cross_pairs=pairs))
    assert torch.equal(joined.cross_pairs, torch.cat([pairs, torch.zeros(T, SLOTS, dtype=torch.float64)], -1))
    assert joined.grid.mass == S + SLOTS


@pytest.mark.spec("A6")
def test_slots_stand_beside_times_and_planes() -> None:
    """The masses add: a history of three hours and three slots weigh six; coordinates fit any domain."""
    _, bank = parts(True)
    times = ct.Samples().on(ct.Times(0.0, 3.0), torch.tensor([[0.5, 1.0, 2.5], [0.1, 0.2, 0.3]]).double())
    plane = ct.Product((ct.Interval(), ct.Interval()))
    points = ct.Samples().on(plane, torch.rand(6, 2, generator=torch.Generator().manual_seed(0)).double())
    for grid in (times, points):
        state = numbers(B, len(grid), D)
        joined = bank(replace(COUNTED[1].grids(COUNTED[0]), t=grid), Context(state, grid)).grid
        assert torch.allclose(joined.mass, grid.mass + SLOTS)
        assert len(joined) == len(grid) + SLOTS
        assert not joined.is_counting


@pytest.mark.spec("A6")
@pytest.mark.parametrize("name", ["memory", "memory of keys and values", "memory alone"])
def test_the_bank_is_a_set_and_every_slot_counts(name) -> None:
    model, batch, answer = made(name)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    names = [k for k in state if ".bank." in f".{k}"]
    assert names
    order = torch.tensor([2, 0, 1])
    swapped = {**state, **{k: state[k][order] for k in names}}
    assert gap(torch.func.functional_call(model, swapped, (batch,)), answer) <= EXACT
    for slot in range(SLOTS):
        changed = {**state, **{k: state[k].clone() for k in names}}
        changed[names[0]][slot] += numbers(D)
        assert gap(torch.func.functional_call(model, changed, (batch,)), answer) > 1e-6


@pytest.mark.spec("A6")
def test_padding_of_the_source_stays_hidden_beside_the_slots() -> None:
    model, batch, answer = made("memory")
    values = batch.source.values.clone()
    values[~batch.source.observed] = 7
    assert torch.equal(model(replace(batch, source=replace(batch.source, values=values))), answer)


@pytest.mark.spec("A6")
def test_a_bank_without_slots_is_refused() -> None:
    with refused(ConfigError, "got 0", "slots ≥ 1"):
        Bank(counted(COUNTED[0]), 0)


@pytest.mark.spec("A6", "A8")
@pytest.mark.parametrize("name", ["memory alone", "memory of keys and values", "additive scores", "cross-modal"])
def test_generation_with_a_cache_is_generation_without(name) -> None:
    model, batch, _ = made(name)
    ids = batch.values[:, :3]
    got = model.generate(ct.Batch(ids, source=batch.source), tokens=5)
    for _ in range(5):
        ids = torch.cat([ids, model(ct.Batch(ids, source=batch.source))[:, -1:].argmax(-1)], 1)
    assert torch.equal(got, ids)
