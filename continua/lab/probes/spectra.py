"""The matrices of real heads: what scores two tokens (QK) and what one sends to another (OV), by their spectra."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from continua.axes import Discretisation
from continua.lab.probes.stack import Stack, opened
from continua.models import View
from continua.operators import LayerNorm
from continua.typing import Float, Tensor


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of M = ABᵀ (d × d, rank ≤ e).

    ``eigenvalues`` and ``singular`` are those that may differ from zero, largest first. ``symmetric`` is the share of
    ‖M‖² that its symmetric part S = ½(M + Mᵀ) has: ½ for a matrix of independent numbers, one if M = Mᵀ. ``sign`` is
    (‖S₊‖² − ‖S₋‖²)/‖S‖² by the positive and negative eigenvalues of S: +1 attracts, −1 repels.
    """

    eigenvalues: tuple[complex, ...]
    singular: tuple[float, ...]
    symmetric: float
    sign: float

    @property
    def radius(self) -> float:
        """The largest |eigenvalue|."""
        return max((abs(value) for value in self.eigenvalues), default=0.0)

    @property
    def norm(self) -> float:
        """The largest singular value."""
        return self.singular[0]

    @property
    def trace(self) -> float:
        """The sum of the eigenvalues."""
        return math.fsum(value.real for value in self.eigenvalues)

    def plain(self) -> dict[str, Any]:
        """As JSON writes it."""
        values = [[value.real, value.imag] for value in self.eigenvalues]
        return {
            "radius": self.radius,
            "norm": self.norm,
            "trace": self.trace,
            "symmetric": self.symmetric,
            "sign": self.sign,
            "eigenvalues": values,
            "singular": list(self.singular),
        }


@dataclass(frozen=True)
class HeadSpectra:
    """One head at one depth: QK = τ W_Qᵀ W_K, the score ⟨x_t, QK x_s⟩ of two tokens, and OV = W_O W_V.

    Both act on tokens as they enter the layer; with pre-norm the scale of the norm is part of them, and its centring.
    Rotary positions turn queries and keys after this: QK is then the score of two tokens at one place. Biases are no
    part of it.
    """

    layer: int
    z: float
    head: int
    qk: Spectrum
    ov: Spectrum

    def plain(self) -> dict[str, Any]:
        """As JSON writes it."""
        own = {"layer": self.layer, "z": self.z, "head": self.head}
        return {**own, "qk": self.qk.plain(), "ov": self.ov.plain()}


@torch.no_grad()
def spectra(model: nn.Module | View, at: Discretisation | None = None) -> list[HeadSpectra]:
    """QK and OV of every head at every layer; once for all where the layers are one.

    >>> from continua.models import zoo
    >>> found = spectra(zoo.gpt2(vocab=9, d=8, heads=2, depth=3, context=8))
    >>> len(found), len(found[0].qk.eigenvalues)
    (6, 4)
    """
    stack = opened(model, at=at)
    steps = stack.steps[:1] if stack.is_shared else stack.steps
    found = []
    for layer, (z, _) in enumerate(steps):
        q, k, v, o = matrices(stack, z)
        scale = stack.attention.operator.kernel.scale(stack.model.axes.e)
        for head in range(len(q)):
            qk = spectrum(scale * q[head].mT, k[head].mT)
            ov = spectrum(o[head], v[head].mT)
            found.append(HeadSpectra(layer, z, head, qk, ov))
    return found


def matrices(stack: Stack, z: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W_Q, W_K, W_V [h, e, d] and W_O [h, d, e] at one depth, in coordinates whose products are those of the measure.

    With pre-norm they act on the token before its learned scale.
    """
    w = stack.weights(0, z)
    root = stack.root.double().cpu()
    inner = stack.grids.e.count
    heads = stack.grids.h.count
    q, k, v = (_before(w[name] / root, stack, z).unflatten(0, (-1, inner)) for name in "qkv")
    k, v = (each.repeat_interleave(heads // len(each), 0) for each in (k, v))
    return q, k, v, (root[:, None] * w["o"]).unflatten(1, (-1, inner)).movedim(1, 0)


def _before(w: Tensor, stack: Stack, z: float) -> Tensor:
    """W diag(γ) C: the scale and the centring of a norm inside the branch."""
    w = w * stack.norm_weights(0, z).get("scale", torch.ones((), dtype=w.dtype))
    if isinstance(stack.attention.norm, LayerNorm):
        one = stack.root.double().cpu()
        w = w - (w @ one)[:, None] * one / (one @ one)
    return w


def spectrum(a: Float[Tensor, "d e"], b: Float[Tensor, "d e"]) -> Spectrum:
    """The spectrum of ABᵀ from matrices of the size e: nothing of size d × d is made.

    Eigenvalues are those of BᵀA; singular values those of R_A R_Bᵀ; S = ½[A B]J[A B]ᵀ has those of ½RJRᵀ.
    """
    d, e = a.shape
    values = torch.linalg.eigvals(b.mT @ a)
    values = values[values.abs().argsort(descending=True)]
    singular = torch.linalg.svdvals(torch.linalg.qr(a, "r").R @ torch.linalg.qr(b, "r").R.mT)
    r = torch.linalg.qr(torch.cat([a, b], 1), "r").R
    half = r[:, :e] @ r[:, e:].mT / 2
    squares = torch.linalg.eigvalsh(half + half.mT)
    squares = squares * squares.abs()
    total = float(squares.abs().sum())
    whole = float(singular.square().sum())
    return Spectrum(
        tuple(complex(value) for value in values.tolist())[:d],
        tuple(singular.tolist())[:d],
        total / whole if whole else 0.0,
        float(squares.sum()) / total if total else 0.0,
    )
