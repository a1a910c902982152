"""Images as fewer tokens: what was observed near nodes of the square, and local kernels of relative position."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import conv2d, gelu, linear, pad

from continua import constants
from continua.axes import Grids, Interval, Midpoint, Product, ProductRule, grid_on
from continua.checks import looking
from continua.config import register
from continua.errors import ConfigError, GridError, ShapeError
from continua.fields import Parametrisation, Role, Use, kernel, kernel_std
from continua.fields.role import LIFT, SHIFT
from continua.models.batch import Batch
from continua.models.embed import Embedding, apply_once
from continua.operators import Operator
from continua.settings import NonNegative, Size
from continua.typing import Float, Tensor

FIRST = 5  # nodes in each direction that the first kernel sees
LATER = 3  # nodes in each direction that every further kernel sees
WINDOW = 1.0  # the width of a mean, in distances of nodes, or of points where these are farther apart
START = 1 / 3  # of the width at which kernels would keep variance: they turn sooner from a narrow start
FAR = 1e-12  # the weight of points far from a node, beside one of those near it


class ImageStemTables(NamedTuple):
    """Kernels [d, channels, rows, columns] and a map on the d grid, with its measure from the second on; the rest."""

    kernels: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    mix: Tensor
    place: Tensor | None
    norm: Any = None


Window = tuple[Tensor, Tensor]  # of nodes and points, down [*b, side, n] and across
Windows = tuple[Window | None, tuple[Window | None, ...]]  # the hat, and a Gaussian for each width above zero


class Observed(NamedTuple):
    """Values and ones where something was observed, zeros elsewhere, and the windows of nodes that they lie in."""

    values: Tensor  # of pixels [b, c, h, w], of points [b, c, n]
    there: Tensor  # of one channel; of one sample where all have the same gaps
    near: Window | None  # None: pixels are the nodes
    around: tuple[Window | None, ...]


def _under(window: Window, values: Tensor) -> Float[Tensor, "b c n n"]:
    """∫ w u dμ."""
    down, across = window
    if values.dim() == 4:  # direction by direction: the window of a product is the product of windows
        return down @ values @ across.mT
    return (values[:, :, None, :] * down[..., None, :, :]) @ across[..., None, :, :].mT


@register
class ImageStem(Embedding):
    """X(0, t) = ∫ M(c) x_L(t, c) dμ(c) + p(t), x_l(t) = φ(∫∫ K_l(s − t, c) x_(l−1)(s, c) dμ(c) dμ(s) + b_l), all in d.

    x_0(s) = (i + (1 − m)₊ a_σ for each σ of ``windows``, m): the integral i(s) = ∫ w(s − r) u(r) dμ(r) of the observed
    function near s, whose mass m(s) = ∫ w(s − r) dμ(r) is one where all was observed, and what it lacks filled by the
    mean a_σ = (1 + ε) ∫ g_σ u dμ / (ε + ∫ g_σ dμ) around s, which fades with a ``prior`` ε where little was observed;
    a_0 is zero. w is a hat as wide as the distance of nodes, or of points where these are farther apart, and g_σ
    Gaussian, σ such distances wide. x_0 is read at ``side`` × ``side`` nodes of the square wherever the points lie:
    values [b, n, channels] with a ``grid``, or images [b, channels, height, width] at the centres of their pixels,
    ``observed`` where flags say. Kernels K_l are functions of relative position, known at the nodes around zero; layer
    l answers at every ``strides[l]``-th node of the one before. φ is GELU; ``placed`` learns p, a row for each token.
    ``norm`` is applied to all of it: what follows then adds to a state of unit size, however narrow kernels start.
    Discrete case: at ``side`` × ``side`` pixels ``nn.Conv2d`` with these strides on images whose gaps are filled and on
    flags; then ``nn.Linear``.
    """

    def __init__(
        self,
        weights: Parametrisation,
        side: Size,
        channels: Size = 1,
        strides: tuple[Size, ...] = (2, 2),
        placed: bool = True,
        windows: tuple[NonNegative, ...] = (WINDOW, 0.0),
        prior: NonNegative = 0.0,
        norm: Operator | None = None,
    ) -> None:
        super().__init__()
        if weights.axes.t != Product((Interval(), Interval())):
            raise ConfigError("an image stem reads the square", got=weights.axes.t, remedy="Use t=SQUARE.")
        if not strides or not windows:
            remedy = "Use strides=(2, 2), windows=(1.0, 0.0)."
            raise ConfigError("a stem has a layer and a window or more", got=f"{strides}, {windows}", remedy=remedy)
        self.side = side
        self.channels = channels
        self.strides = tuple(strides)
        self.windows = tuple(windows)
        self.prior = prior
        self.few = -(-side // self.stride)  # tokens in each direction
        self.tokens = self.few**2
        self.axis = weights.axes.t
        self.rule = ProductRule((Midpoint(self.few),) * 2)
        self.told = len(self.windows) * channels + 1  # filled values and masses
        entries = self.told * FIRST * FIRST
        self.first = weights.table(entries, "d", std=START * entries**-0.5, role=LIFT)
        std = START * kernel_std(weights, "c") / LATER
        role = Role(Use.KERNEL, "nc")
        later: list[Any] = [weights.table(LATER**2, "dnc", std=std, role=role) for _ in self.strides[1:]]
        self.later: Any = nn.ModuleList(later)
        self.bias = weights.table(len(self.strides), "d", std=0.02, role=SHIFT)
        self.mix = kernel(weights, "dc", inputs="c")
        self.place = weights.table(self.tokens, "d", std=0.02) if placed else None
        self.norm = norm
        self._kept = constants.Cache(16)

    @property
    def stride(self) -> int:
        """Nodes of one token, in each direction."""
        return math.prod(self.strides)

    def lay(self, batch: Batch) -> Batch:
        """Read what was observed near the nodes; ``stride`` × ``stride`` of these make a token."""
        values: Any = batch.values
        if not isinstance(values, Tensor) or not values.is_floating_point():
            got = f"{values.dtype}" if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError("images are real numbers", got=got, remedy="Give a floating tensor.")
        pixels = values.dim() == 4 and batch.grid is None and batch.times is None
        found = self._of_pixels(values, batch.observed) if pixels else self._of_points(values, batch)
        beyond = self.few * self.stride - self.side  # nodes of the last tokens that lie outside
        x = pad(self._seen(found), (0, 0, 0, beyond, 0, beyond))
        laid = x.unflatten(2, (self.few, self.stride)).unflatten(1, (self.few, self.stride))  # [b, m, s, m, s, c]
        laid = laid.transpose(2, 3).flatten(3).flatten(1, 2)
        return replace(batch, values=laid, grid=grid_on(self.axis, self.rule, values), times=None, observed=None)

    def _of_pixels(self, images: Float[Tensor, "b c h w"], observed: Tensor | None) -> Observed:
        """Pixels have equal areas and lie in rows and columns."""
        self._check_channels(images.shape[1], list(images.shape))
        shape = tuple(images.shape[-2:])
        flags = images.new_ones(1, 1, *shape)
        if observed is not None:
            flags = (observed != 0).unflatten(-1, shape).to(images).reshape(-1, 1, *shape)
        self._check_seen(flags.flatten(1))
        return Observed(torch.where(flags > 0, images, 0.0), flags, *self._of_lattice(shape, images))

    def _of_lattice(self, shape: tuple[int, ...], like: Tensor) -> Windows:
        """The windows of pixels, with their areas; the same for all images of one shape, and kept."""
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
            return self._made(shape, like)
        return self._kept.get((shape, like.device, like.dtype), lambda: self._made(shape, like))

    def _made(self, shape: tuple[int, ...], like: Tensor) -> Windows:
        area = self.side**2 / math.prod(shape)  # in cells of nodes
        width = max(1.0, math.sqrt(area))
        down, across = (_centres(n, like)[None] for n in shape)
        near, around = self._windows(down, across, self.side / width, area / width**2)
        return None if shape == (self.side, self.side) else near, around

    def _windows(self, down: Tensor, across: Tensor, scale: Any, area: float = 1.0) -> Windows:
        """Hats and Gaussians of unit mass between nodes and points [*b, 1, n], ``scale`` is one over their distance."""
        nodes = _centres(self.side, down)[:, None]
        near = (area * _hat(down, nodes, scale), _hat(across, nodes, scale))
        around: list[Window | None] = []
        for width in self.windows:
            if width == 0:
                around.append(None)
                continue
            along = [(-0.5 * ((x - nodes) * (scale / width)).square()).exp() for x in (down, across)]
            around.append((area / (2 * math.pi * width**2) * along[0], along[1]))
        return near, tuple(around)

    def _of_points(self, values: Tensor, batch: Batch) -> Observed:
        """Points lie anywhere, and their weights are their areas."""
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
        area = grid.weights * self.side**2  # [*b, n], in cells of nodes
        mean = area.sum(-1, keepdim=True) / (area > 0).sum(-1, keepdim=True).clamp_min(1)
        width = mean.clamp_min(1.0).sqrt()  # [*b, 1]
        there = torch.where(grid.observed, area / width**2, 0.0)[..., None]  # [*b, n, 1]
        values = torch.where(grid.observed[..., None], values, 0.0) * there
        there = there.expand(len(values), -1, -1)
        down, across = (x[..., None, :] for x in grid.nodes.to(values).unbind(-1))
        return Observed(values.mT, there.mT, *self._windows(down, across, self.side / width[..., None]))

    def _seen(self, found: Observed) -> Float[Tensor, "b n n c"]:
        """Filled values, and the mass near a node: one where everything was observed."""
        integral, mass = found.values, found.there
        if found.near is not None:
            mass = _under(found.near, mass)
            integral = _under(found.near, integral) / mass.clamp_min(1.0)
        lack = (1 - mass).clamp_min(0.0)
        parts = []
        for window in found.around:
            if window is None:
                parts.append(integral)
                continue
            sums, near = (self._around(window, what) for what in (found.values, found.there))
            parts.append(integral + lack * ((1 + self.prior) * sums / (near + self.prior)))
        parts.append(mass.expand(len(integral), -1, -1, -1))
        return torch.cat([part.permute(0, 2, 3, 1) for part in parts], -1)

    def _around(self, window: Window, what: Tensor) -> Float[Tensor, "b c n n"]:
        """∫ g what dμ; where no prior counts for something, far points do."""
        sums = _under(window, what)
        return sums if self.prior else sums + FAR * what.flatten(2).sum(-1)[..., None, None]

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
        for field in self.later:
            own = field.on(d=d, c=d)  # [d, (rows columns), c]
            own = own if d.is_unit else own * d.weights.to(own)
            kernels.append(own.mT.unflatten(-1, (LATER, LATER)))
        mix = self.mix.on(d=d, c=d)
        mix = mix if d.is_unit else mix * d.weights.to(mix)
        place = None if self.place is None else self.place.on(d=d)
        norm = None if self.norm is None else self.norm.read(grids)
        return ImageStemTables(tuple(kernels), tuple(self.bias.on(d=d).unbind(0)), mix, place, norm)

    def forward(self, batch: Batch, grids: Grids, read: ImageStemTables | None = None) -> Tensor:
        """Convolve what was observed."""
        grids.tokens.require_whole(type(self).__name__)
        values = batch.values
        few = self.few
        width = self.stride**2 * self.told
        if not isinstance(values, Tensor) or values.shape[1:] != (few * few, width):
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ShapeError(f"tokens have shape [b, {few * few}, {width}]", got=got, remedy="Let the model lay them.")
        tables = self.read(grids) if read is None else read
        x = values.to(tables.kernels[0]).unflatten(2, (self.stride, self.stride, -1)).unflatten(1, (few, few))
        x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, : self.side, : self.side]  # [b, side, side, c]
        x = x.permute(0, 3, 1, 2)  # channels lie innermost, as in later kernels and in tokens: no layer moves them
        for own, bias, stride in zip(tables.kernels, tables.biases, self.strides, strict=True):
            x = gelu(conv2d(x, own, bias, stride=stride, padding=own.shape[-1] // 2))
        x = linear(x.flatten(2).mT, tables.mix)  # [b, t, d]
        x = x if tables.place is None else x + tables.place
        return x if self.norm is None else apply_once(self.norm, tables.norm, grids, x)


def _centres(count: int, like: Tensor) -> Tensor:
    """The centres of so many equal parts of the unit interval."""
    return (torch.arange(count, device=like.device, dtype=like.dtype) + 0.5) / count


def _hat(points: Tensor, nodes: Tensor, scale: Any) -> Tensor:
    """(1 − |x|)₊, folded at the rim: of a lattice of points all that a node sees has mass one."""
    mirrored = (points, -points, 2 - points)
    return sum(((1 - ((x - nodes) * scale).abs()).clamp_min(0) for x in mirrored), torch.zeros_like(nodes))
