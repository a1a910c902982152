"""Normalised attention on given queries, keys and values: the fused kernel, the blocked one, and the plain formula."""

from collections.abc import Callable

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from continua.typing import Float, Tensor

BLOCK = 1024  # query rows at a time where the score bias is a full matrix: bounds the bytes of one block


def attend_plain(
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b h s e"],
    v: Float[Tensor, "b h s e"],
    scale: float,
    bias: Tensor | None = None,
) -> Float[Tensor, "b h t e"]:
    """softmax(scale·QKᵀ + bias) V, written out. The fast paths are held to this one."""
    scores = scale * q @ k.mT
    return (scores if bias is None else scores + bias).softmax(-1) @ v


def attend_fused(
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b g s e"],
    v: Float[Tensor, "b g s e"],
    scale: float,
    causal: bool,
    key_bias: Tensor | None,
) -> Float[Tensor, "b h t e"]:
    """Fused attention. A bias of each key rides as one more column, [q, 1]·[k, bias/scale], so ``is_causal`` stays.

    A float mask that needs a gradient is refused together with ``is_causal``, and a full bias costs n² bytes.
    """
    grouped = q.shape[1] != k.shape[1]
    if key_bias is None:
        return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
    if grouped and key_bias.shape[-2] > 1:  # [*b, h, s]: a bias of each query head needs its own keys
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        grouped = False
    column = (key_bias / scale).to(k.dtype)
    column = column.reshape(*[1] * (3 - column.dim()), *column.shape)[..., None].expand(*k.shape[:-1], 1)
    wide_q, wide_k = pad(q, (0, 1), value=1.0), torch.cat([k, column], -1)
    wide_v = pad(v, (0, 1))  # one width for all three keeps the fused kernel
    out = scaled_dot_product_attention(wide_q, wide_k, wide_v, is_causal=causal, scale=scale, enable_gqa=grouped)
    return out[..., :-1]


def attend_blocked(
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b g s e"],
    v: Float[Tensor, "b g s e"],
    scale: float,
    bias: Callable[[slice], Tensor],
) -> Float[Tensor, "b h t e"]:
    """Attention with a bias for each pair, made for one block of query rows at a time."""
    grouped, out = q.shape[1] != k.shape[1], []
    for start in range(0, q.shape[2], BLOCK):
        rows = slice(start, min(start + BLOCK, q.shape[2]))
        out.append(
            scaled_dot_product_attention(q[:, :, rows], k, v, attn_mask=bias(rows), scale=scale, enable_gqa=grouped)
        )
    return out[0] if len(out) == 1 else torch.cat(out, 2)
