"""Images as tokens: each patch of pixels is one, and a learned first token may stand beside them."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear

from continua.axes import Grids
from continua.config import register
from continua.errors import ConfigError, ShapeError
from continua.fields import Parametrisation
from continua.fields.role import LIFT, SHIFT
from continua.models.batch import Batch
from continua.models.embed import Embedding, added, apply_once, observed_only
from continua.operators import Encoding, Operator
from continua.settings import Size, Whole
from continua.typing import Tensor


@register
@dataclass(frozen=True)
class Pixels:
    """Images of ``channels`` × ``height`` × ``width``, cut into patches of ``patch`` = (rows, columns) pixels.

    Pixels beyond the last whole patch are left out, as a strided convolution does.

    >>> Pixels(32, 48, patch=(16, 16)).count, Pixels(32, 48, patch=(16, 16)).entries
    (6, 768)
    """

    height: Size = 224
    width: Size = 224
    channels: Size = 3
    patch: tuple[Size, Size] = (16, 16)

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
        p, q = self.patch
        b = images.shape[0]
        high, wide = self.height // p, self.width // q
        whole = images[:, :, : high * p, : wide * q].reshape(b, self.channels, high, p, wide, q)
        patches = whole.permute(0, 2, 4, 1, 3, 5).reshape(b, self.count, self.entries)
        return torch.nn.functional.pad(patches, (0, 0, first, 0)) if first else patches


class PatchTables(NamedTuple):
    """The maps of an embedding of patches, on the d grid."""

    table: Tensor
    bias: Tensor | None
    first: Tensor | None
    position: Any
    norm: Any


@register
class Patches(Embedding):
    """X(0, t, d) = Σ_i u_i(t) B(i, d) + b(d) + p(t, d) over the entries i of patch t.

    With ``first`` the token grid is the disjoint union of one point, t = 0, and the patches, t = 1, 2, …: the state
    starts there as a learned X(0, 0, d) (ViT's class token); ``extra`` more of them stand behind it (DeiT's second
    token). Values are images [b, channels, height, width], or patch vectors [b, t, entries] already laid out (those of
    learned tokens are not read). Without ``bias`` there is no b; ``norm`` is applied to all of it (CLIP).
    Discrete case: ``nn.Conv2d`` whose stride is its kernel size, a class token and a position table.
    """

    def __init__(
        self,
        weights: Parametrisation,
        pixels: Pixels,
        position: Encoding | None = None,
        first: bool = True,
        extra: Whole = 0,
        bias: bool = True,
        norm: Operator | None = None,
    ) -> None:
        super().__init__()
        if extra and not first:
            remedy = "Leave extra out, or write first=True."
            raise ConfigError("more learned tokens stand behind a first one", got=f"extra={extra}", remedy=remedy)
        self.pixels = pixels
        self.position = position
        self.table = weights.table(pixels.entries, "d", std=pixels.entries**-0.5, role=LIFT)
        self.bias = weights.table(1, "d", std=0.02, role=SHIFT) if bias else None
        self.norm = norm
        self.first = weights.table(1, "d", std=0.02) if first else None
        self.extra = weights.table(extra, "d", std=0.02) if extra else None
        self.learned = int(first) + extra  # tokens that come with the model

    def lay(self, batch: Batch) -> Batch:
        """Turn images into patch vectors, before tokens are placed."""
        images = batch.values
        wanted = self.pixels
        if not isinstance(images, Tensor) or images.dim() != 4:
            return batch
        if images.shape[1:] != (wanted.channels, wanted.height, wanted.width):
            shape = f"[b, {wanted.channels}, {wanted.height}, {wanted.width}]"
            raise ShapeError(f"images need shape {shape}", got=list(images.shape), remedy="Resize or crop them.")
        return replace(batch, values=wanted.cut(images, first=self.learned))

    def read(self, grids: Grids) -> PatchTables:
        """The map of a patch, its bias, the learned tokens and the positions."""
        learned = [rows.on(d=grids.d) for rows in (self.first, self.extra) if rows is not None]
        return PatchTables(
            table=self.table.on(d=grids.d),
            bias=None if self.bias is None else self.bias.on(d=grids.d)[0],
            first=None if not learned else learned[0] if len(learned) == 1 else torch.cat(learned),
            position=None if self.position is None else self.position.read(grids.d),
            norm=None if self.norm is None else self.norm.read(grids),
        )

    def forward(self, batch: Batch, grids: Grids, read: PatchTables | None = None) -> Tensor:
        """Lift the patches to the d grid; absent tokens start at zero."""
        values = batch.values
        t = grids.tokens
        if not isinstance(values, Tensor) or values.dim() != 3 or values.shape[-1] != self.pixels.entries:
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            remedy = "Give images [b, channels, height, width]."
            raise ShapeError(f"patches have {self.pixels.entries} entries", got=got, remedy=remedy)
        tables = self.read(grids) if read is None else read
        x = linear(values.to(tables.table), tables.table.mT, tables.bias)
        if tables.first is not None:
            if t.is_counting and t.is_ordered:
                learned = len(tables.first)
                x = torch.cat([tables.first.expand(x.shape[0], learned, -1), x[:, learned:]], 1)
            else:
                for place, row in enumerate(tables.first):
                    x = torch.where(t.nodes[..., :1] == place, row, x)
        x = added(self.position, x, grids, tables.position)
        return observed_only(x if self.norm is None else apply_once(self.norm, tables.norm, grids, x), t)
