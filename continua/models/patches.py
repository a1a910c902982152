"""Images as tokens: each patch of pixels is one, and a learned first token may stand beside them."""

from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.functional import linear

from continua.config import register
from continua.errors import ConfigError, ShapeError
from continua.fields import Parametrisation
from continua.fields.role import LIFT, SHIFT
from continua.models.batch import Batch
from continua.models.embed import rows
from continua.operators import Encoding, Grids
from continua.typing import Tensor


@register
@dataclass(frozen=True)
class Pixels:
    """Images of ``channels`` × ``height`` × ``width``, cut into patches of ``patch`` = (rows, columns) pixels.

    Pixels beyond the last whole patch are left out, as a strided convolution does.

    >>> Pixels(32, 48, patch=(16, 16)).count, Pixels(32, 48, patch=(16, 16)).entries
    (6, 768)
    """

    height: int = 224
    width: int = 224
    channels: int = 3
    patch: tuple[int, int] = (16, 16)

    def __post_init__(self) -> None:
        if min(self.patch) < 1 or self.channels < 1 or self.patch[0] > self.height or self.patch[1] > self.width:
            remedy = "Choose patches no larger than the image."
            raise ConfigError(f"an image of {self.height}×{self.width} has no such patches", got=self, remedy=remedy)

    @property
    def count(self) -> int:
        """The number of patches."""
        return (self.height // self.patch[0]) * (self.width // self.patch[1])

    @property
    def entries(self) -> int:
        """The numbers in one patch."""
        return self.channels * self.patch[0] * self.patch[1]

    def cut(self, images: Tensor, first: int = 0) -> Tensor:
        """[b, channels, height, width] → [b, first + count, entries], row by row; the first tokens are zero."""
        (p, q), b = self.patch, len(images)
        high, wide = self.height // p, self.width // q
        whole = images[:, :, : high * p, : wide * q].reshape(b, self.channels, high, p, wide, q)
        patches = whole.permute(0, 2, 4, 1, 3, 5).reshape(b, self.count, self.entries)
        return torch.nn.functional.pad(patches, (0, 0, first, 0)) if first else patches


@register
class Patches(nn.Module):
    """X(0, t, d) = Σ_i u_i(t) B(i, d) + b(d) + p(t, d) over the entries i of patch t.

    With ``first`` the token grid is the disjoint union of one point, t = 0, and the patches, t = 1, 2, …: the state
    starts there as a learned X(0, 0, d) (ViT's class token). Values are images [b, channels, height, width], or patch
    vectors [b, t, entries] already laid out (that of t = 0 is not read).
    Discrete case: ``nn.Conv2d`` whose stride is its kernel size, a class token and a position table.
    """

    def __init__(
        self, weights: Parametrisation, pixels: Pixels, position: Encoding | None = None, first: bool = True
    ) -> None:
        super().__init__()
        self.pixels, self.position = pixels, position
        self.table = weights.table(pixels.entries, "d", std=pixels.entries**-0.5, role=LIFT)
        self.bias = weights.table(1, "d", std=0.02, role=SHIFT)
        self.first = weights.table(1, "d", std=0.02) if first else None

    def lay(self, batch: Batch) -> Batch:
        """Turn images into patch vectors, before tokens are placed."""
        images, wanted = batch.values, self.pixels
        if not isinstance(images, Tensor) or images.dim() != 4:
            return batch
        if images.shape[1:] != (wanted.channels, wanted.height, wanted.width):
            shape = f"[b, {wanted.channels}, {wanted.height}, {wanted.width}]"
            raise ShapeError(f"images need shape {shape}", got=list(images.shape), remedy="Resize or crop them.")
        return replace(batch, values=wanted.cut(images, first=int(self.first is not None)))

    def forward(self, batch: Batch, grids: Grids) -> Tensor:
        """Lift the patches to the d grid; absent tokens start at zero."""
        values, t, d = batch.values, grids["t"], grids["d"]
        if not isinstance(values, Tensor) or values.dim() != 3 or values.shape[-1] != self.pixels.entries:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            remedy = "Give images [b, channels, height, width]."
            raise ShapeError(f"patches have {self.pixels.entries} entries", got=got, remedy=remedy)
        table = self.table.on(n=rows(self.pixels.entries), d=d)
        x = linear(values.to(table), table.mT, self.bias.on(n=rows(1), d=d)[0])
        if self.first is not None:
            slot = self.first.on(n=rows(1), d=d)
            if t.is_counting and t.is_ordered:
                x = torch.cat([slot.expand(len(x), 1, -1), x[:, 1:]], 1)
            else:
                x = torch.where(t.nodes[..., :1] == 0, slot, x)
        if self.position is not None:
            x = x + self.position(t, d, x)
        return x.masked_fill(~t.observed[..., None], 0.0) if t.has_gaps else x
