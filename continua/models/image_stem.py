"""Images as fewer tokens: local means of what was observed, and local kernels of relative position."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.nn.functional import conv2d, gelu, linear

from continua.axes import Grids, Interval, Midpoint, Product, ProductRule, grid_on
from continua.checks import looking
from continua.config import register
from continua.errors import ConfigError, GridError, ShapeError
from continua.fields import Parametrisation, Role, Use, kernel, kernel_std
from continua.fields.role import LIFT, SHIFT
from continua.models.batch import Batch
from continua.models.embed import Embedding
from continua.settings import Size
from continua.typing import Float, Tensor

FIRST = 5  # nodes in each direction that the first kernel sees
LATER = 3  # nodes in each direction that every further kernel sees
WINDOW = 0.4  # of the distance of nodes, or of points where these are farther apart
PRIOR = 0.3  # the mass of the zero that every mean has in it: means fade where little was observed near them


class ImageStemTables(NamedTuple):
    """Kernels [d, channels, rows, columns] and a map on the d grid, with its measure from the second on; the rest."""

    kernels: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    mix: Tensor
    place: Tensor | None


@register
class ImageStem(Embedding):
    """X(0, t) = ∫ M(c) x_L(t, c) dμ(c) + p(t), x_l(t) = φ(∫∫ K_l(s − t, c) x_(l−1)(s, c) dμ(c) dμ(s) + b_l), all in d.

    x_0(s) = (1 + ε) ∫ w(s − r) u(r) dμ(r) / (ε + ∫ w(s − r) dμ(r)) is the local mean of the observed function under a
    Gaussian window of about a node's width, which fades where little was observed, beside the integral alone (divided
    by a mass above one) and the mass under that window, how much was observed there. It is read at ``side`` ×
    ``side`` nodes of the square wherever the points lie: values [b, n, channels] with a ``grid``, or images
    [b, channels, height, width] at the centres of their pixels, ``observed`` where flags say. Kernels K_l are functions
    of relative position, known at the nodes around zero; layer l answers at every ``strides[l]``-th node of the one
    before. φ is GELU; ``placed`` learns p, a row for each token.
    Discrete case: ``nn.Conv2d`` with these strides on these three, and ``nn.Linear``.
    """

    def __init__(
        self,
        weights: Parametrisation,
        side: Size,
        channels: Size = 1,
        strides: tuple[Size, ...] = (2, 2),
        placed: bool = True,
    ) -> None:
        super().__init__()
        if weights.axes.t != Product((Interval(), Interval())):
            raise ConfigError("an image stem reads the square", got=weights.axes.t, remedy="Use t=SQUARE.")
        if not strides or side % math.prod(strides):
            remedy = f"Use side={math.prod(strides or (1,))} or a multiple of it."
            raise ConfigError("the strides of a stem divide its nodes", got=f"{side} and {strides}", remedy=remedy)
        self.side = side
        self.channels = channels
        self.strides = tuple(strides)
        self.tokens = (side // self.stride) ** 2
        self.axis = weights.axes.t
        self.rule = ProductRule((Midpoint(side // self.stride),) * 2)
        self.told = 2 * channels + 1  # means, integrals, masses
        entries = self.told * FIRST * FIRST
        self.first = weights.table(entries, "d", std=entries**-0.5, role=LIFT)
        many = LATER * LATER * (len(self.strides) - 1)
        std = kernel_std(weights, "c") / LATER
        self.later = weights.table(many, "dc", std=std, role=Role(Use.KERNEL, "c")) if many else None
        self.bias = weights.table(len(self.strides), "d", std=0.02, role=SHIFT)
        self.mix = kernel(weights, "dc", inputs="c")
        self.place = weights.table(self.tokens, "d", std=0.02) if placed else None

    @property
    def stride(self) -> int:
        """Nodes of one token, in each direction."""
        return math.prod(self.strides)

    def lay(self, batch: Batch) -> Batch:
        """Take local means of what was observed; ``stride`` × ``stride`` nodes make a token."""
        values: Any = batch.values
        if not isinstance(values, Tensor) or not values.is_floating_point():
            got = f"{values.dtype}" if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError("images are real numbers", got=got, remedy="Give a floating tensor.")
        pixels = values.dim() == 4 and batch.grid is None and batch.times is None
        means = self._of_pixels(values, batch.observed) if pixels else self._of_points(values, batch)
        few = self.side // self.stride
        laid = means.unflatten(3, (few, self.stride)).unflatten(2, (few, self.stride))  # [b, c, m, s, m, s]
        laid = laid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        return replace(batch, values=laid, grid=grid_on(self.axis, self.rule, values), times=None, observed=None)

    def _of_pixels(self, images: Float[Tensor, "b c h w"], observed: Tensor | None) -> Float[Tensor, "b c n n"]:
        """Direction by direction: the window of a product is the product of windows."""
        self._check_channels(images.shape[1], list(images.shape))
        shape = tuple(images.shape[-2:])
        flags = images.new_ones(1, 1, *shape)
        if observed is not None:
            flags = (observed != 0).unflatten(-1, shape).to(images).reshape(-1, 1, *shape)
        self._check_seen(flags.flatten(1))
        flags = flags.expand(len(images), -1, -1, -1)
        both = torch.cat([torch.where(flags > 0, images, 0.0), flags], 1)
        width = WINDOW * max(1.0, self.side / math.sqrt(math.prod(shape)))
        centres = [_centres(n, images) for n in shape]
        rows, columns = (_window(_centres(self.side, images), x, self.side, width) for x in centres)
        area = self.side**2 / math.prod(shape)
        return self._means(area * (rows @ both @ columns.mT), width)

    def _of_points(self, values: Tensor, batch: Batch) -> Float[Tensor, "b c n n"]:
        """The windows of all nodes and points."""
        grid = batch.grid
        if grid is None or grid.nodes.shape[-1] != 2:
            remedy = "Pass Batch(values, grid=…), or images [b, channels, height, width]."
            raise GridError("a stem needs to know where values were observed", got="no points", remedy=remedy)
        grid = grid.to(values) if batch.observed is None else grid.to(values).only(batch.observed != 0)
        if values.dim() != 3 or values.shape[1] != grid.count:
            remedy = f"Give values [b, {grid.count}, {self.channels}]."
            raise ShapeError("values and points do not fit", got=list(values.shape), remedy=remedy)
        self._check_channels(values.shape[-1], list(values.shape))
        self._check_seen(grid.weights)
        area = grid.weights * self.side**2  # in cells of nodes
        width = WINDOW * (area.sum() / (area > 0).sum()).sqrt().clamp_min(1.0)
        line = _centres(self.side, values)
        rows, columns = (_window(line, x, self.side, width) for x in grid.nodes.to(values).unbind(-1))  # [*b, side, n]
        window = (rows[..., :, None, :] * columns[..., None, :, :]).flatten(-3, -2) * area[..., None, :]
        both = torch.cat([values, torch.ones_like(values[..., :1])], -1)
        both = torch.where(grid.observed[..., None], both, 0.0)
        return self._means((window @ both).mT.unflatten(-1, (self.side, self.side)), width)

    @staticmethod
    def _means(sums: Float[Tensor, "b c n n"], width: Any) -> Float[Tensor, "b c n n"]:
        """Means, integrals, and the mass of the window: one where everything was observed."""
        integrals, mass = (sums / (2 * math.pi * width**2)).tensor_split([-1], 1)
        return torch.cat([(1 + PRIOR) * integrals / (mass + PRIOR), integrals / mass.clamp_min(1.0), mass], 1)

    def _check_channels(self, got: int, shape: list[int]) -> None:
        if got != self.channels:
            remedy = f"Give images of {self.channels} channels."
            raise ShapeError(f"the stem was made for {self.channels} channels", got=shape, remedy=remedy)

    @staticmethod
    def _check_seen(flags: Tensor) -> None:
        if looking() and not bool((flags > 0).any(-1).all()):
            remedy = "Drop the image, or mark at least one point as observed."
            raise GridError("an image needs an observed point", got="one with none", remedy=remedy)

    def read(self, grids: Grids) -> ImageStemTables:
        """Kernels, biases and places."""
        d = grids.d
        kernels = [self.first.on(d=d).mT.reshape(d.count, self.told, FIRST, FIRST)]
        if self.later is not None:
            later = self.later.on(d=d, c=d)  # [(l rows columns), d, c]
            later = later if d.is_unit else later * d.weights.to(later)
            kernels += [part.permute(1, 2, 0).unflatten(-1, (LATER, LATER)) for part in later.split(LATER * LATER)]
        mix = self.mix.on(d=d, c=d)
        mix = mix if d.is_unit else mix * d.weights.to(mix)
        place = None if self.place is None else self.place.on(d=d)
        return ImageStemTables(tuple(kernels), tuple(self.bias.on(d=d).unbind(0)), mix, place)

    def forward(self, batch: Batch, grids: Grids, read: ImageStemTables | None = None) -> Tensor:
        """Convolve means and masses."""
        grids.tokens.require_whole(type(self).__name__)
        values = batch.values
        few, width = self.side // self.stride, self.stride**2 * self.told
        if not isinstance(values, Tensor) or values.shape[1:] != (few * few, width):
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(f"tokens have shape [b, {few * few}, {width}]", got=got, remedy="Let the model lay them.")
        tables = self.read(grids) if read is None else read
        x = values.to(tables.kernels[0]).unflatten(2, (self.stride, self.stride, -1)).unflatten(1, (few, few))
        x = x.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)  # [b, c, side, side]
        for own, bias, stride in zip(tables.kernels, tables.biases, self.strides, strict=True):
            x = gelu(conv2d(x, own, bias, stride=stride, padding=own.shape[-1] // 2))
        x = linear(x.flatten(2).mT, tables.mix)  # [b, t, d]
        return x if tables.place is None else x + tables.place


def _centres(count: int, like: Tensor) -> Tensor:
    """The centres of so many equal parts of the unit interval."""
    return (torch.arange(count, device=like.device, dtype=like.dtype) + 0.5) / count


def _window(nodes: Tensor, points: Float[Tensor, "*b n"], side: int, width: Any) -> Float[Tensor, "*b m n"]:
    """exp(−u²/2w²) of the distances u in nodes."""
    apart = (points[..., None, :] - nodes[:, None]) * side
    return (-0.5 * (apart / width).square()).exp()
