"""Products of many tokens by oneDNN: those of torch in single precision, and torch's own wherever somebody looks."""

from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from continua.operators import products
from continua.operators.linear import Watch, linear, linears, marked
from continua.operators.products import Products, serve

ROUNDED = 1e-5  # of float32 sums over some hundred terms, relative to the largest number


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens and small weights go the same way here."""
    monkeypatch.setattr(products, "TOKENS", 4)
    monkeypatch.setattr(products, "WEIGHT", 1)


here = pytest.mark.skipif(products._kernel() is None, reason="torch multiplies by one library on this processor")


def _drawn(*shape: int, learns: bool = True) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return made.requires_grad_(learns)


def _close(got: torch.Tensor, right: torch.Tensor) -> bool:
    return bool((got - right).abs().max() <= ROUNDED * right.abs().max())


def _both(f: Callable[[], list[torch.Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same by both libraries."""
    quick = f()
    monkeypatch.setattr(products, "TOKENS", 2**40)
    for got, right in zip(quick, f(), strict=True):
        assert _close(got, right)


@here
@pytest.mark.spec("B14")
@pytest.mark.parametrize("learns", [True, False], ids=["all learn", "weights stay"])
@pytest.mark.parametrize("twice", [False, True], ids=["gradients", "gradients of gradients"])
def test_values_and_gradients_are_those_of_torch(learns: bool, twice: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = _drawn(2, 6, 16)
    weights = [_drawn(n, 16, learns=learns) for n in (12, 8, 24)]
    biases = [None, _drawn(8), _drawn(24)]
    wanted = [own for own in (x, *weights, *biases) if own is not None and own.requires_grad]

    def found() -> list[torch.Tensor]:
        a, b, c = linears(x, *zip(weights, biases, strict=True))
        y = linear(a.tanh(), weights[0].mT.contiguous())
        loss = y.square().sum() + b.sin().sum() + c.square().mean()
        gradients = torch.autograd.grad(loss, wanted, create_graph=twice)
        if twice:
            gradients = torch.autograd.grad(sum(g.square().sum() for g in gradients), wanted)
        return [a, b, c, y, *gradients]

    assert isinstance(found()[0].grad_fn, Products._backward_cls)
    _both(found, monkeypatch)


@here
@pytest.mark.spec("B14")
def test_the_state_is_not_kept_for_weights_that_stay() -> None:
    x, weight = _drawn(8, 16), _drawn(4, 16, learns=False)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        linear(x, weight)
    assert [t.shape for t in kept] == [weight.shape]


@here
@pytest.mark.spec("B14")
def test_without_gradients_the_values_are_the_same_bits() -> None:
    x, weight, bias = _drawn(8, 16), _drawn(4, 16), _drawn(4)
    with torch.no_grad():
        plain = linear(x, weight, bias)
    assert torch.equal(plain, linear(x, weight, bias))


@pytest.mark.spec("B14")
def test_nothing_else_is_served() -> None:
    x, weight = _drawn(8, 16), _drawn(4, 16)
    assert not serve(x.double(), [weight.double()])
    assert not serve(x[:2], [weight])
    assert not serve(_drawn(16, 8).mT, [weight])
    assert not serve(x, [weight, _drawn(16, 4).mT])
    with torch.autocast("cpu"):
        assert not serve(x, [weight])
    with FlopCounterMode(display=False) as counter:
        linear(x, weight)
    assert counter.get_total_flops() == 2 * 8 * 16 * 4


@pytest.mark.spec("B14")
def test_transforms_of_functions_go_through_it() -> None:
    x, weight = _drawn(3, 4, 16, learns=False), _drawn(5, 16, learns=False)

    def f(rows: torch.Tensor) -> torch.Tensor:
        return linear(rows, weight).sum(0)

    backward = torch.func.vmap(torch.func.jacrev(f))(x)
    forward = torch.func.vmap(torch.func.jacfwd(f))(x)
    assert torch.equal(backward, forward)


@pytest.mark.spec("B14")
def test_who_watches_a_weight_is_shown_its_products() -> None:
    x, weight = _drawn(8, 16), _drawn(4, 16)
    seen: list[torch.Size] = []

    class Note(Watch):
        def __call__(self, x: torch.Tensor, g: torch.Tensor) -> None:
            seen.extend((x.shape, g.shape))

    watch = Note(None, torch.ones(1), None, None)  # type: ignore[arg-type]
    first, second = linears(x, (marked(weight, watch), None), (weight, None))
    (first + second).sum().backward()
    assert seen == [x.shape, (8, 4)]
