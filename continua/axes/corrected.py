"""Weights of scattered nodes, corrected so that chosen functions are integrated exactly."""

import torch

from continua.typing import Float, Tensor

RIDGE = 1e-12  # relative to the largest entry of the Gram matrix: keeps dependent functions solvable


def corrected(
    weights: Float[Tensor, "*#b n"], functions: Float[Tensor, "*#b r n"], integrals: Float[Tensor, "r"]
) -> Float[Tensor, "*b n"]:
    """w = w₀ + D Mᵀ(M D Mᵀ)⁻¹(e − M w₀), D = diag(w₀): the smallest change of w₀ with Σ_i w_i f_r(x_i) = e_r.

    The change is small relative to each weight, so absent nodes (weight zero) stay absent. ``functions`` are the
    values M of f_r at the nodes, ``integrals`` what they should sum to. Computed in float64.
    """
    w, m = weights.double(), functions.double()
    gram = (m * w[..., None, :]) @ m.mT
    ridge = RIDGE * gram.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
    gram = gram + ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    missing = integrals.double() - (m @ w[..., None])[..., 0]
    change = (m.mT @ torch.linalg.solve(gram, missing[..., None]))[..., 0]
    return (w + w * change).to(weights.dtype)
