"""Normalised attention on given queries, keys and values: the fused kernel, the blocked one, and the plain formula."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from continua.axes.grid import absent
from continua.typing import Float, PerQuery, PerSource, Tensor

BLOCK = 1024  # query rows at a time where the score bias is a full matrix: bounds the bytes of one block
HALF = (torch.bfloat16, torch.float16)

Scores = Callable[[Tensor, Tensor], Tensor]  # (q, k) → scores of each pair


def attend_plain(
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b h s e"],
    v: Float[Tensor, "b h s e"],
    scale: float,
    bias: Tensor | None = None,
) -> Float[Tensor, "b h t e"]:
    """softmax(scale·QKᵀ + bias) V, written out. The fast paths are held to this one."""
    return normalised(scale * q @ k.mT, bias).to(v.dtype) @ v


def normalised(scores: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(scores + bias) over the last dimension, in float32 at least: half precision cannot add up a row."""
    scores = scores.float() if scores.dtype in HALF else scores
    return (scores if bias is None else scores + bias).softmax(-1)


def attend_gradients(
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b h s e"],
    v: Float[Tensor, "b h s e"],
    g: Float[Tensor, "b h t e"],
    scale: float,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of ⟨g, softmax(τQKᵀ + bias) V⟩ by q, k, v and the bias of each pair, by hand.

    dV = AᵀG,  dS = A ⊙ (GVᵀ − rowsum(A ⊙ GVᵀ)) (the softmax Jacobian),  dQ = τ dS K,  dK = τ dSᵀ Q,  dbias = dS.
    Log-weights of a measure are a bias of each source: their gradient is the sum of dS over heads and queries. Where
    a mask forbids a pair A is zero, and so is dS. A density ρ over heads scales g, head by head.
    """
    scores = scale * q @ k.mT
    a = (scores if bias is None else scores + bias).softmax(-1)
    da = g @ v.mT
    ds = a * (da - (a * da).sum(-1, keepdim=True))
    return scale * ds @ k, scale * ds.mT @ q, a.mT @ g, ds


def attend_fused(
    q: PerQuery, k: PerSource, v: PerSource, scale: float, causal: bool, key_bias: Tensor | None
) -> PerQuery:
    """Fused attention. A bias of each key rides as one more column, [q, 1]·[k, bias/scale], so ``is_causal`` stays.

    A float mask that needs a gradient is refused together with ``is_causal``, and a full bias costs n² bytes.
    """
    grouped = shares_keys(q, k)
    if key_bias is None:
        return _attended(q, k, v, None, causal, scale, grouped)
    if grouped and key_bias.shape[-2] > 1:  # [*b, h, s]: a bias of each query head needs its own keys
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        grouped = False
    column = _columns(key_bias / scale, k.dtype)
    wide = column.shape[-1]
    column = column.reshape(*[1] * (4 - column.dim()), *column.shape).expand(*k.shape[:-1], wide)
    wide_q, wide_k = pad(q, (0, wide), value=1.0), torch.cat([k, column], -1)
    wide_v = pad(v, (0, wide))  # one width for all three keeps the fused kernel
    return _attended(wide_q, wide_k, wide_v, None, causal, scale, grouped)[..., :-wide]


def shares_keys(q: Tensor, k: Tensor) -> bool:
    """Whether heads share keys. A branch, not a comparison: a compiler decides it, where sizes are its symbols."""
    return True if q.shape[1] != k.shape[1] else False  # noqa: SIM210


def _columns(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """One column, or in half precision three that add up to the bias: log w in 8 bits would be off by a percent."""
    if dtype not in HALF:
        return bias[..., None].to(dtype)
    rest, parts = bias.clamp_min(absent(dtype)), []
    for _ in range(3):
        parts.append(rest.to(dtype))
        rest = rest - parts[-1].to(rest.dtype)
    return torch.stack(parts, -1)


def fused_with(bias: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, grouped: bool) -> Tensor:
    """Fused attention with a bias of each pair, which stays in float32 where the kernel adds it there."""
    mixed = q.dtype in HALF and q.device.type == "cpu" and not bias.requires_grad
    if not mixed:
        return _attended(q, k, v, bias.to(q.dtype), False, scale, grouped)
    with torch.autocast("cpu", enabled=False):  # it would round the bias too
        return _attended(q, k, v, bias, False, scale, grouped)


def _attended(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float, grouped: bool
) -> Tensor:
    """torch's fused attention; on a processor that of half precision is computed in float32.

    Its half-precision kernel is no faster there, and its backward pass is slower. One query, as when text
    is generated, keeps its precision: the keys and values of all tokens would be converted for it.
    """
    if q.dtype not in HALF or q.device.type != "cpu" or q.shape[-2] == 1:
        return scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, scale=scale, enable_gqa=grouped)
    wide = None if bias is None else bias.float()
    with torch.autocast("cpu", enabled=False):
        out = scaled_dot_product_attention(
            q.float(), k.float(), v.float(), attn_mask=wide, is_causal=causal, scale=scale, enable_gqa=grouped
        )
    return out.to(q.dtype)


def attend_blocked(
    q: PerQuery,
    k: PerSource,
    v: PerSource,
    scale: float,
    bias: Callable[[slice], Tensor],
    scores: Scores | None = None,
) -> PerQuery:
    """Attention with a bias for each pair, made for one block of query rows at a time.

    ``scores`` replaces scale·⟨q, k⟩. With gradients every block is computed again on the way back, so that training
    too needs the bytes of one block and not of n².
    """
    if scores is not None and q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    grouped = shares_keys(q, k)

    def block(rows: slice, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if scores is not None:
            return normalised(scores(q, k), bias(rows)).to(v.dtype) @ v
        return fused_with(bias(rows), q, k, v, scale, grouped)

    count = q.shape[2]
    if torch.compiler.is_exporting() or count <= BLOCK:  # an exported graph serves any count
        return block(slice(None), q, k, v)
    again, out = torch.is_grad_enabled(), []
    for start in range(0, count, BLOCK):
        rows = slice(start, min(start + BLOCK, count))
        given = (rows, q[:, :, rows], k, v)
        # nothing in a block is random, so the state of the generators need not be kept
        out.append(checkpoint(block, *given, use_reentrant=False, preserve_rng_state=False) if again else block(*given))
    return torch.cat(out, 2)


def attend_keeping(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Fused attention without a graph, and the log-sums that its backward asks for (processor only)."""
    out: tuple[Tensor, Tensor] = _FLASH(q, k, v, 0.0, causal, attn_mask=bias, scale=scale)
    return out


def attend_back(
    g: Tensor, kept: tuple[Tensor, ...], scale: float, causal: bool, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The gradients by q, k, v from (q, k, v, answer, log-sums)."""
    found: tuple[Tensor, ...] = _FLASH_BACKWARD(g, *kept, 0.0, causal, attn_mask=bias, scale=scale)
    return found


def can_keep(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the two functions above serve these tensors."""
    return _FLASH is not None and q.device.type == "cpu" and len(q) == len(k) and q.shape[-1] == v.shape[-1]


# the operations behind scaled_dot_product_attention on a processor; without them the graph of the public one serves
_FLASH: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_FLASH_BACKWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
