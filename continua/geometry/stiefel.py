"""The Stiefel manifold: matrices [k, n, p], n ≥ p, with orthonormal columns, QᵀQ = I; many at a time."""

import torch

from continua.typing import Float, Tensor


def project(q: Float[Tensor, "k n p"], v: Float[Tensor, "k n p"]) -> Float[Tensor, "k n p"]:
    """v − Q sym(Qᵀv): the nearest tangent vector at Q, in the metric of the surrounding space."""
    along = q.mT @ v
    return v - q @ ((along + along.mT) / 2)


def transport(q: Float[Tensor, "k n p"], v: Float[Tensor, "k n p"]) -> Float[Tensor, "k n p"]:
    """Carry a tangent vector from nearby to Q: its projection (a transport along any retraction)."""
    return project(q, v)


def retract_qr(q: Float[Tensor, "k n p"], v: Float[Tensor, "k n p"]) -> Float[Tensor, "k n p"]:
    """The Q of a QR decomposition of Q + v, with a positive diagonal of R: first order, computed in float64."""
    found, r = torch.linalg.qr((q + v).double())
    return (found * r.diagonal(dim1=-2, dim2=-1).sgn()[:, None, :]).to(q)


def polar(w: Float[Tensor, "k n p"]) -> Float[Tensor, "k n p"]:
    """W (WᵀW)^(−½): the nearest matrix with orthonormal columns; of Q + v a retraction of second order."""
    u, _, v = torch.linalg.svd(w.double(), full_matrices=False)
    return (u @ v).to(w)


def defect(q: Float[Tensor, "k n p"]) -> float:
    """The largest ‖QᵀQ − I‖₂, in float64."""
    gram = q.double().mT @ q.double()
    return float(torch.linalg.matrix_norm(gram - torch.eye(gram.shape[-1], dtype=gram.dtype), 2).max())
