"""Attention over tokens in parts on several processes: keys and values walk round, or are gathered.

The ring is torch's own (``_templated_ring_attention``): each process meets the keys of one other at a time, and the
answers are merged by their log-sums. It is private there, so that it is looked for, and tried by a version known to
have it; without it all keys are gathered, which costs their bytes and nothing else. A few keys are gathered too,
and added up in the order in which one process adds them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from continua.axes.sharded import Layout
from continua.constants import summed_in
from continua.operators.attention import fused
from continua.typing import Callable, PerQuery, PerSource, Tensor

SINCE = (2, 9)  # of torch: where the template has these arguments
FEW = 2**20  # bytes of all keys and values, of every process
NAMES = ("_templated_ring_attention", "_templated_ring_attention_backward", "_cp_options", "_RotateMethod")


def template() -> ModuleType | None:
    """Torch's ring template, where this version has it."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < SINCE:
        return None
    try:
        from torch.distributed.tensor.experimental._context_parallel import _attention
    except ImportError:
        return None
    return _attention if all(hasattr(_attention, name) for name in NAMES) else None


def has_ring(device: torch.device, causal: bool) -> bool:
    """Whether keys can walk round on this device."""
    if device.type == "cuda":
        return causal and template() is not None  # the public one balances causal shards alone
    return device.type == "cpu" and fused._FLASH is not None and template() is not None


def attend_ring(
    q: PerQuery,
    k: PerSource,
    v: PerSource,
    scale: float,
    causal: bool,
    key_bias: Tensor | None,
    present: Tensor | None,
    layout: Layout,
) -> PerQuery:
    """Attention of the own queries to the keys of all processes; biases of keys walk with them as columns."""
    if fused.shares_keys(q, k):
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    if present is not None:  # the log-sum of a row that sees nothing must not meet a large score on the way back
        q = torch.where(present[..., None, :, None], q, 0.0)
    wide = 0
    if key_bias is not None:
        column = fused._columns(key_bias / scale, k.dtype)
        wide = column.shape[-1]
        column = column.reshape(*[1] * (4 - column.dim()), *column.shape).expand(*k.shape[:-1], wide)
        q = pad(q, (0, wide), value=1.0)
        k = torch.cat([k, column], -1)
        v = pad(v, (0, wide))
    if q.device.type == "cuda":
        out = _by_context(q, k, v, scale, layout)
    elif (k.nbytes + v.nbytes) * layout.ranks <= FEW:
        out = _InOrder.apply(q, k, v, scale, causal, layout)
    else:
        out = _Ring.apply(q, k, v, scale, causal, layout)
    return out[..., :-wide] if wide else out


def attend_gathered(
    q: PerQuery, k: PerSource, v: PerSource, layout: Layout, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> PerQuery:
    """Attention of the own queries to all keys, which are gathered, and gathered again on the way back."""

    def gathered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, layout.gathered(k, 2), layout.gathered(v, 2))

    if not torch.is_grad_enabled():
        return gathered(q, k, v)
    out: Tensor = checkpoint(gathered, q, k, v, use_reentrant=False, preserve_rng_state=False)
    return out


def _by_context(q: Tensor, k: Tensor, v: Tensor, scale: float, layout: Layout) -> Tensor:
    """Causal attention through torch's public ``context_parallel``, which has kernels of its own for GPUs."""
    from torch.distributed.tensor.experimental import context_parallel

    with context_parallel(layout.mesh):
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)


class _Ring(torch.autograd.Function):
    """Torch's template with the processor's flash kernel, there and back."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, layout: Layout) -> Tensor:
        ring: Any = template()

        def op(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
            return fused.attend_keeping(q, k, v, scale, is_causal)

        with _options(ring, causal, q.dtype):
            out, sums = ring._templated_ring_attention(layout.mesh.get_group(), 2, op, q, k, v, causal)[:2]
        out = out.transpose(1, 2).contiguous().transpose(1, 2)  # token by token: the heads are joined without a copy
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.given = (scale, causal, layout)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        ring: Any = template()
        scale, causal, layout = ctx.given
        q, k, v, out, sums = ctx.saved_tensors
        last: list[Tensor] = []

        def op(
            query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, is_causal: bool, grad_out: Tensor
        ) -> tuple[Tensor, ...]:
            for added in last:  # the template has added them up, and holds them until the next ones are there
                added.untyped_storage().resize_(0)
            last[:] = fused.attend_back(grad_out, (query, key, value, out, logsumexp), scale, is_causal)
            return tuple(last)

        with _options(ring, causal, q.dtype):
            found = ring._templated_ring_attention_backward(
                layout.mesh.get_group(), 2, op, g, "grad_out", q, k, v, out, sums, causal
            )
        return (*found[:3], None, None, None)


class _InOrder(torch.autograd.Function):
    """The processor's flash kernel on the own queries and all keys, which are gathered again on the way back."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, layout: Layout) -> Tensor:
        bias = _earlier(q, layout) if causal else None
        out, sums = fused.attend_keeping(q, *_gathered(k, v, layout), scale, False, bias)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.given = (scale, causal, layout)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        scale, causal, layout = ctx.given
        q, k, v, out, sums = ctx.saved_tensors
        bias = _earlier(q, layout) if causal else None
        kept = (q, *_gathered(k, v, layout), out, sums)
        to_q, to_k, to_v = fused.attend_back(g, kept, scale, False, bias)
        both = torch.cat([to_k, to_v], -1).to(summed_in(q.dtype, q.device))  # [b, h, n, 2e]
        dist.all_reduce(both, group=layout.mesh.get_group())
        own = layout.part(both, 2, 0).to(q.dtype)  # [b, h, t, 2e]
        return (to_q, *own.chunk(2, -1), None, None, None)


def _gathered(k: Tensor, v: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The keys and values of all tokens, in the order of these and without absent ones."""
    places = torch.from_numpy(layout.places[: layout.count]).to(k.device)
    both = layout.gathered(torch.cat([k, v], -1), 2).index_select(2, places)  # [b, h, n, 2e]
    keys, values = both.chunk(2, -1)
    return keys, values


def _earlier(q: Tensor, layout: Layout) -> Tensor:
    """0 where a key is no later than an own query, −∞ elsewhere: [t, n]."""
    later = torch.arange(layout.count) > torch.from_numpy(layout.own)[:, None]
    return torch.zeros(later.shape, dtype=q.dtype).masked_fill_(later, -torch.inf).to(q.device)


@contextmanager
def _options(ring: Any, causal: bool, dtype: torch.dtype) -> Iterator[None]:
    """Torch keeps the options of its template in one place for all: as we need them here, and back as they were."""
    options = ring._cp_options
    before = (options.convert_to_f32, options.enable_load_balance, options.rotate_method)
    options.convert_to_f32 = dtype in fused.HALF
    options.enable_load_balance = causal
    options.rotate_method = ring._RotateMethod.ALL_TO_ALL  # one part at a time: gathering would hold all
    try:
        yield
    finally:
        options.convert_to_f32, options.enable_load_balance, options.rotate_method = before
