"""SliceGPT for ``pretrained.py`` (Ashkboos et al. 2024): rotate the stream to its principal axes and keep the first.

The method is for pre-norm models. BERT norms behind every sum: s = γ∘n + β with n = P y / rms(P y), where y is the sum
and P subtracts the mean over features. What is absorbed here, exactly, before anything is cut:

- P goes into the maps that write to the sum and into the residual, γ and β into the maps that read, as published;
- the residual of a pre-norm model is QᵀQ' (published: a matrix on every residual). Behind a norm it is Q'ᵀ P diag(γ) Q
  with a bias Q'ᵀ P β: the same cost;
- n is divided by the root mean square over *all* features, d of the full model, as published.

At full width the model equals BERT to round-off. The axes are those of n on the calibration sentences, from the first
norm to the last, each with everything before it cut already (as published). ``refit`` goes further than the paper:
every output map and residual is fitted by least squares to what the full model has there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pretrained_peers import RIDGE
from pretrained_texts import Tokens
from torch import Tensor
from torch.nn.functional import gelu, scaled_dot_product_attention


@dataclass(frozen=True)
class Affine:
    """x ↦ W x + b."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias

    def after(self, inner: "Affine") -> "Affine":
        """This map of another one's values."""
        return Affine(self.weight @ inner.weight, self.weight @ inner.bias + self.bias)

    @classmethod
    def of(cls, module: Any) -> "Affine":
        """An ``nn.Linear`` in float64."""
        return cls(module.weight.detach().double(), module.bias.detach().double())


@dataclass(frozen=True)
class Half:
    """Half a layer between two norms: maps that read, an output map, and the residual."""

    reads: tuple[Affine, ...]  # query, key, value; or the one of feed-forward
    output: Affine
    residual: Affine
    heads: int

    def inner(self, x: Tensor, there: Tensor) -> Tensor:
        """What the output map reads."""
        if len(self.reads) == 1:
            return gelu(self.reads[0](x))
        b, t, _ = x.shape
        q, k, v = (read(x).view(b, t, self.heads, -1).transpose(1, 2) for read in self.reads)
        return scaled_dot_product_attention(q, k, v, attn_mask=there[:, None, None, :]).transpose(1, 2).flatten(2)

    def __call__(self, x: Tensor, there: Tensor) -> Tensor:
        return self.output(self.inner(x, there)) + self.residual(x)


@dataclass
class Sliced:
    """A sliced BERT: embeddings in the rotated features, halves of layers, and the way back at the end."""

    words: Any  # the embeddings of Hugging Face, before their norm
    enter: Tensor  # [d', d]
    halves: list[Half] = field(default_factory=list)
    leave: Affine | None = None
    width: int = 0  # of the full model: what the root mean square is over
    eps: float = 1e-12

    def normed(self, y: Tensor) -> Tensor:
        """y / rms(y), over the features of the full model."""
        return y / (y.square().sum(-1, keepdim=True) / self.width + self.eps).sqrt()

    def __call__(self, ids: Tensor, there: Tensor) -> Tensor:
        """The last states, in the features of the full model."""
        x = self.normed(self.words(ids).to(self.enter.dtype) @ self.enter.T)
        for half in self.halves:
            x = self.normed(half(x, there))
        assert self.leave is not None
        return self.leave(x)

    def float(self) -> "Sliced":
        """The same in float32."""
        halves = [
            Half(tuple(_single(one) for one in half.reads), _single(half.output), _single(half.residual), half.heads)
            for half in self.halves
        ]
        assert self.leave is not None
        return Sliced(self.words, self.enter.float(), halves, _single(self.leave), self.width, self.eps)


def _single(one: Affine) -> Affine:
    return Affine(one.weight.float(), one.bias.float())


@torch.no_grad()
def sliced(model: Any, batches: Sequence[Tokens], width: int, refit: bool = False) -> Sliced:
    """Cut the stream of a BERT to ``width`` of its principal axes."""
    words = _before_norm(model.embeddings)
    d = model.config.hidden_size
    centre = torch.eye(d, dtype=torch.float64) - 1 / d
    made = Sliced(words, centre, width=d, eps=model.config.layer_norm_eps)
    sums = [words(batch.ids).double() @ centre for batch in batches]
    full = sums if refit else None  # what the uncut model has at the same place
    axes = _axes([made.normed(y) for y in (full or sums)], batches, width)
    made.enter = axes.T @ centre
    norm = model.embeddings.LayerNorm
    cut = [made.normed(y @ axes) for y in sums]
    whole = [made.normed(y) for y in sums]
    for half, behind in _halves(model):
        scale = Affine(torch.diag(norm.weight.double()), norm.bias.double())  # n → s
        read = Half(tuple(one.after(scale) for one in half.reads), half.output, scale, half.heads)
        uncut = Half(read.reads, Affine(centre @ read.output.weight, centre @ read.output.bias),
                     Affine(centre @ scale.weight, centre @ scale.bias), half.heads)  # fmt: skip
        there = Affine(axes, torch.zeros(d, dtype=torch.float64))
        half_cut = Half(tuple(one.after(there) for one in uncut.reads), uncut.output, uncut.residual.after(there),
                        half.heads)  # fmt: skip
        if refit:
            whole = [uncut(x, batch.there) for x, batch in zip(whole, batches, strict=True)]
            half_cut = _fitted(made, half_cut, cut, whole, batches)
        sums = [half_cut(x, batch.there) for x, batch in zip(cut, batches, strict=True)]
        whole = [made.normed(y) for y in whole] if refit else whole
        axes = _axes(whole if refit else [made.normed(y) for y in sums], batches, width)
        back = Affine(axes.T, torch.zeros(width, dtype=torch.float64))
        made.halves.append(Half(half_cut.reads, back.after(half_cut.output), back.after(half_cut.residual), half.heads))
        cut = [made.normed(y @ axes) for y in sums]
        norm = behind
    made.leave = Affine(norm.weight.double()[:, None] * axes, norm.bias.double())
    return made.float()


def _before_norm(embeddings: Any) -> Any:
    """Words, places and kinds of BERT, summed."""

    def run(ids: Tensor) -> Tensor:
        words = embeddings.word_embeddings(ids)
        places = embeddings.position_embeddings.weight[: ids.shape[1]]
        return words + places + embeddings.token_type_embeddings.weight[0]  # type: ignore[no-any-return]

    return run


def _halves(model: Any) -> list[tuple[Half, Any]]:
    """Each half of a layer and the norm behind it; its residual is not read from here."""
    found: list[tuple[Half, Any]] = []
    for layer in model.encoder.layer:
        own = layer.attention.self
        attention = layer.attention.output
        none = Affine(torch.zeros(0), torch.zeros(0))
        reads = tuple(Affine.of(one) for one in (own.query, own.key, own.value))
        found.append((Half(reads, Affine.of(attention.dense), none, own.num_attention_heads), attention.LayerNorm))
        forward = Half((Affine.of(layer.intermediate.dense),), Affine.of(layer.output.dense), none, 1)
        found.append((forward, layer.output.LayerNorm))
    return found


def _axes(states: Sequence[Tensor], batches: Sequence[Tokens], width: int) -> Tensor:
    """The first principal axes of the tokens that are there, [d, width]; not centred, as published."""
    d = states[0].shape[-1]
    second = torch.zeros(d, d, dtype=torch.float64)
    for x, batch in zip(states, batches, strict=True):
        rows = x[batch.there]
        second += rows.T @ rows
    return torch.linalg.eigh(second).eigenvectors.flip(1)[:, :width]


def _fitted(
    made: Sliced, half: Half, cut: Sequence[Tensor], whole: Sequence[Tensor], batches: Sequence[Tokens]
) -> Half:
    """Output map and residual that come nearest to the full model's sums, each token by its own root mean square."""
    size = half.output.weight.shape[1] + half.residual.weight.shape[1] + 1
    second = torch.zeros(size, size, dtype=torch.float64)
    cross = torch.zeros(size, whole[0].shape[-1], dtype=torch.float64)
    for x, y, batch in zip(cut, whole, batches, strict=True):
        inputs = torch.cat([half.inner(x, batch.there), x, torch.ones(*x.shape[:2], 1)], -1)[batch.there]
        target = y[batch.there]
        size_of = (target.square().sum(-1, keepdim=True) / made.width).sqrt()
        error = (target - half(x, batch.there)[batch.there]) / size_of  # only the change is regularised
        second += (inputs / size_of).T @ (inputs / size_of)
        cross += (inputs / size_of).T @ error
    diagonal = second.diagonal()
    diagonal += RIDGE * diagonal.mean()
    change = torch.linalg.solve(second, cross).T
    inner = half.output.weight.shape[1]
    output = Affine(half.output.weight + change[:, :inner], half.output.bias + change[:, -1])
    return Half(half.reads, output, Affine(half.residual.weight + change[:, inner:-1], half.residual.bias), half.heads)
