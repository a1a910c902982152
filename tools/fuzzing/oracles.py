"""What every right answer obeys, whatever the model: one sentence for each that is broken."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fuzzing.tensors import Tally

CLOSE = 2e-4  # float32, two steps of depth; a broken law is off by far more


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference, over the size of the numbers."""
    if a.shape != b.shape:
        return float("inf")
    a = _real(a.detach()).double()
    b = _real(b.detach()).double()
    if a.numel() == 0:
        return 0.0
    difference = float((a - b).abs().max())
    return difference / (1.0 + float(b.abs().max())) if difference == difference else float("inf")


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def finite(answer: Any) -> Iterable[str]:
    """Numbers only."""
    if isinstance(answer, Tensor) and answer.is_floating_point() and not torch.isfinite(answer).all():
        yield "finite: an accepted answer holds NaN or infinity"


def untouched(before: Iterable[Tensor | None], after: Iterable[Tensor | None]) -> Iterable[str]:
    """Inputs stay as they were."""
    for old, new in zip(before, after, strict=True):
        if isinstance(old, Tensor) and isinstance(new, Tensor) and not torch.equal(_bits(old), _bits(new)):
            yield "untouched: an input was changed"


def _bits(x: Tensor) -> Tensor:
    x = _real(x)
    return torch.nan_to_num(x) if x.is_floating_point() else x


def causal(run: Callable[[Tensor], Tensor], values: Tensor, answer: Tensor, moment: Tensor) -> Iterable[str]:
    """Changing the values of the last moment moves nothing at strictly earlier moments; ``moment`` is [t] or [b, t]."""
    moment = moment.expand(values.shape[0], -1) if moment.dim() == 1 else moment
    last = moment == moment.max(-1, keepdim=True).values
    changed = values.clone()
    changed[last] = (values[last] + 1) % 7 if not values.is_floating_point() else values[last] + 1.5
    moved = run(changed)
    early = ~last
    if early.any() and apart(moved[early], answer[early]) > 1e-6:
        yield f"causality: a later value moves an earlier answer by {apart(moved[early], answer[early]):.2g}"


def alone(run: Callable[[Any], Tensor], first: Any, answer: Tensor) -> Iterable[str]:
    """A sample alone is answered like in its batch."""
    single = run(first)
    if apart(single, answer[:1]) > CLOSE:
        yield f"batch: a sample alone is answered otherwise, by {apart(single, answer[:1]):.2g}"


CONSTANT = 1 << 14  # bytes of grids and masks, which the cost model leaves out


def within_memory(run: Callable[[], Any], cost: Any) -> Iterable[str]:
    """A pass takes at most twice its weights and activations by the cost model."""
    with Tally() as tally:
        run()
    allowed = 2 * (cost.bytes + cost.parameters * cost.width) + CONSTANT
    if tally.most > allowed:
        yield f"memory: {tally.most} bytes at once, {allowed} by the cost model"


def equal(name: str, a: Tensor, b: Tensor, close: float = CLOSE) -> Iterable[str]:
    """Two ways to one answer."""
    if apart(a, b) > close:
        yield f"{name}: differs by {apart(a, b):.2g}"


def attention_by_hand(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor | None = None, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Σ_s softmax(q·k·scale + log w) v for [b, h, t, e], in the plainest way."""
    scores = torch.einsum("bhte,bhse->bhts", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if weights is not None:
        scores = scores + weights.log()
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0]).triu(1).bool(), -torch.inf)
    return torch.einsum("bhts,bhse->bhte", scores.softmax(-1), v)
