"""Positions as functions of real time: added to the embedding, turned into queries and keys, or added to scores."""

import math
from typing import Any

import torch
from torch import nn

from continua import constants
from continua.axes import Axes, Grid, Points
from continua.checks import looking
from continua.config import register
from continua.errors import ConfigError, GridError, ShapeError
from continua.fields import Parametrisation
from continua.fields.basis import unit_coordinate
from continua.operators.stretch import DynamicStretch, LongStretch, Stretch, plain_frequencies
from continua.operators.waves import Waves
from continua.settings import Positive, Share, Size, Spread, Whole
from continua.typing import Float, Tensor


@register
class Position(nn.Module):
    """How attention knows where a token is. Each hook may be left as it is.

    ``bind`` reads fields on the grids; what it returns is handed back to the others as ``args``.
    """

    @property
    def has_pair_bias(self) -> bool:
        """Whether scores get a bias of each pair."""
        return type(self).pair_bias is not Position.pair_bias

    @property
    def has_key_bias(self) -> bool:
        """Whether under a causal mask a bias of each source is enough."""
        return type(self).key_bias is not Position.key_bias

    @property
    def turns(self) -> bool:
        """Whether queries and keys are acted on."""
        return type(self).turn is not Position.turn

    @property
    def knows_length(self) -> bool:
        """Whether the last stamp of a text matters to all of it."""
        return False

    def bind(self, h: Grid, e: Grid) -> Any:
        """Return what depends on the head and inner grids."""
        return None

    def where(self, nodes: Float[Tensor, "*b n k"], args: Any) -> Any:
        """Return what ``turn`` needs to know of these nodes, made once for all depths."""
        return None

    def turn(self, x: Float[Tensor, "b h n e"], where: Any) -> Float[Tensor, "b h n e"]:
        """Act on queries or keys that sit there."""
        return x

    def key_bias(self, s: Float[Tensor, "*b s k"], args: Any) -> Float[Tensor, "*bh s"] | None:
        """The bias under a causal mask, where a term of the source alone can carry it."""
        return None

    def pair_bias(
        self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"], args: Any
    ) -> Float[Tensor, "*bh t s"] | None:
        """The bias of each pair."""
        return None


@register
class Rotary(Position):
    """Rotate the pair (e, e + E/2) by the angle t·base^(−2i/E): scores then depend on t − s (Su et al. 2021).

    In real time; at another inner width the frequencies are read at the same relative coordinates. ``stretch`` changes
    the frequencies for longer texts; ``share`` < 1 turns that part of the inner coordinates, the first ones.
    """

    def __init__(self, base: Positive = 10000.0, stretch: Stretch | None = None, share: Share = 1.0) -> None:
        super().__init__()
        self.base = base
        self.stretch = stretch
        self.share = share

    @property
    def knows_length(self) -> bool:
        """Where longer texts are turned by other frequencies."""
        return isinstance(self.stretch, DynamicStretch | LongStretch)

    def bind(self, h: Grid, e: Grid) -> Any:
        """Return the frequencies of the pairs."""
        width = len(e) if self.share == 1 else 2 * max(int(len(e) * self.share / 2 + 1e-9), 1)
        if width % 2 or not width:
            raise ShapeError("rotary positions turn pairs", got=f"{len(e)} inner nodes", remedy="Use an even at(e=…).")
        plain = plain_frequencies if self.stretch is None else self.stretch.frequencies
        return constants.numbers(plain(self.base, width), e.nodes.device, e.nodes.dtype)

    def where(self, nodes: Float[Tensor, "*b n k"], args: Any) -> Any:
        """Cosine and sine of each angle for both halves of the pairs, the sines of the first half negative."""
        nodes = nodes.to(constants.at_least_single(nodes.dtype))
        frequencies = args.to(nodes)
        if isinstance(self.stretch, DynamicStretch):
            exponents = self.stretch.exponents(2 * len(args))
            length = nodes.detach().amax(-2, keepdim=True) + 1
            grown = (self.stretch.factor * (length / self.stretch.length - 1) + 1).clamp_min(1)
            frequencies = frequencies * grown ** constants.numbers(exponents, nodes.device, nodes.dtype)
        if isinstance(self.stretch, LongStretch):
            long = self.stretch.long_frequencies(self.base, 2 * len(args))
            is_long = nodes.detach().amax(-2, keepdim=True) >= self.stretch.length
            frequencies = torch.where(is_long, constants.numbers(long, nodes.device, nodes.dtype), frequencies)
        angle = nodes * frequencies
        if angle.dim() == 3:
            angle = angle[:, None]
        cos, sin = angle.cos(), angle.sin()
        if self.stretch is not None and self.stretch.gain != 1:
            cos, sin = cos * self.stretch.gain, sin * self.stretch.gain
        return torch.cat([cos, cos], -1).to(args), torch.cat([-sin, sin], -1).to(args)

    def turn(self, x: Float[Tensor, "b h n e"], where: Any) -> Float[Tensor, "b h n e"]:
        """x cos + (x₂, x₁) (−sin, sin), in the coordinates that are turned."""
        cos, sin = where
        if self.share == 1:
            return _turned(x, cos, sin)
        width = cos.shape[-1]
        return torch.cat([_turned(x[..., :width], cos, sin), x[..., width:]], -1)


@register
class PositionByDepth(Position):
    """A position of its own for each unit of depth: ``positions[order[i]]`` for z in [i, i + 1), the last one beyond.

    Attention asks the one of each depth. Discrete case: layers that differ in how they know where a token is, such as
    rotations with another base (Gemma 3), or none (SmolLM3).
    """

    def __init__(self, positions: tuple[Position, ...], order: tuple[Whole, ...]) -> None:
        super().__init__()
        if not order or any(number >= len(positions) for number in order):
            remedy = "Name one of the positions for each layer."
            raise ConfigError("every depth has one of the positions", got=f"{order} of {len(positions)}", remedy=remedy)
        self.positions = nn.ModuleList(positions)
        self.order = order

    @property
    def has_pair_bias(self) -> bool:
        """If one of them has."""
        return any(position.has_pair_bias for position in self.positions)

    @property
    def turns(self) -> bool:
        """If one of them does."""
        return any(position.turns for position in self.positions)

    def bind(self, h: Grid, e: Grid) -> Any:
        """What each of them reads."""
        return tuple(position.bind(h, e) for position in self.positions)  # type: ignore[operator]

    def where(self, nodes: Float[Tensor, "*b n k"], args: Any) -> Any:
        """Refused: the depth is not known here."""
        remedy = "Use the attention operator itself, or a model with one position for all depths."
        raise ConfigError("positions of each depth are asked by depth", got="no depth", remedy=remedy)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Both halves of each pair, of which ``sin`` has the signs: no pass over x is spent on them."""
    first, second = x.chunk(2, -1)
    if cos.dtype != x.dtype:
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.addcmul(x * cos, torch.cat([second, first], -1), sin)


@register
class RelativeBias(Position):
    """bias(t, s) = B(bucket(s − t), h): T5's relative bias (Raffel et al. 2020), constant on buckets of real distance.

    Half of the buckets are one unit wide, the rest grow logarithmically up to ``reach``; two-sided unless ``causal``.
    """

    def __init__(
        self, weights: Parametrisation, buckets: Size = 32, reach: float = 128.0, causal: bool = False
    ) -> None:
        super().__init__()
        near = (buckets if causal else buckets // 2) // 2
        if not 1 <= near < reach:
            got = f"{buckets} buckets up to {reach:g}"
            remedy = "Use 4 buckets or more (2 if causal), and a reach beyond their quarter (half)."
            raise ConfigError("half of the buckets are near and the rest further away", got=got, remedy=remedy)
        self.buckets, self.reach, self.causal = buckets, reach, causal
        self.table = weights.table(buckets, "h", std=0.02)

    def bind(self, h: Grid, e: Grid) -> Any:
        """Read the table on the heads."""
        return self.table.on(h=h)

    def bucket(self, gap: Tensor) -> Tensor:
        """Bucket of s − t."""
        count, offset = self.buckets, torch.zeros_like(gap, dtype=torch.long)
        if self.causal:
            gap = (-gap).clamp_min(0)
        else:
            count //= 2
            offset = (gap > 0).long() * count
            gap = gap.abs()
        near = count // 2
        far = near + (torch.log(gap.clamp_min(1) / near) / math.log(self.reach / near) * (count - near)).long()
        return offset + torch.where(gap < near, gap.long(), far.clamp_max(count - 1))

    def pair_bias(
        self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"], args: Any
    ) -> Float[Tensor, "*bh t s"] | None:
        """Look the pairs up."""
        bucket = self.bucket(s.mT - t)
        # head first in memory: the bias is read once for every layer, the table only here
        found = args.mT.index_select(1, bucket.flatten()).unflatten(1, bucket.shape)
        return found if bucket.dim() == 2 else found.movedim(0, -3)


@register
class WaveBias(Position):
    """bias(t, s, h) = Σ_k a_k(h) cos(2πk·(t−s)/P) + b_k(h) sin(2πk·(t−s)/P): any smooth function of displacement.

    Translation-invariant on circles, intervals and their products, in any dimension; see ``Waves`` for k and P. It
    starts at zero: plain attention.
    """

    def __init__(self, weights: Parametrisation, modes: int | tuple[int, ...] = 8, stretch: float = 2.0) -> None:
        super().__init__()
        axis = weights.axes.t
        self.waves = Waves(axis, (modes,) * axis.dim if isinstance(modes, int) else tuple(modes), stretch)
        self.table = weights.autonomous().table(2 * len(self.waves.numbers), "h", std=0.0)

    def bind(self, h: Grid, e: Grid) -> Any:
        """Read the amplitudes on the heads."""
        return self.table.on(h=h)

    def pair_bias(
        self, t: Float[Tensor, "*#b t k"], s: Float[Tensor, "*#b s k"], args: Any
    ) -> Float[Tensor, "*bh t s"] | None:
        """By angle sums: features of t, mixed by the amplitudes of each head, times features of s."""
        args = args.to(constants.at_least_single(args.dtype))
        cosine, sine = (part[:, None, :] for part in args.mT.chunk(2, -1))  # [h, 1, w]
        at_t, at_s = self.waves.angles(t), self.waves.angles(s)
        at_t, at_s = at_t[..., None, :, :], at_s[..., None, :, :]  # [*b, 1, t, w]
        cos_t, sin_t = at_t.cos().to(args), at_t.sin().to(args)
        left = torch.cat([cosine * cos_t + sine * sin_t, cosine * sin_t - sine * cos_t], -1)
        return left @ torch.cat([at_s.cos(), at_s.sin()], -1).to(args).mT


class Encoding(nn.Module):
    """A position that is added to the embedding: x(t, d) += p(t, d)."""

    @property
    def room(self) -> int | None:
        """How many counted tokens it has room for, where that is bounded."""
        return None

    def read(self, d: Grid) -> Any:
        """Sample what is learned on the d grid."""
        return None

    def forward(self, t: Grid, d: Grid, like: Tensor, read: Any = None) -> Tensor:
        """Return p on the product of the token grid and the d grid: [*b, t, d]."""
        raise NotImplementedError


@register
class Sinusoidal(Encoding):
    """p(t, 2i) = sin(t ω_i), p(t, 2i+1) = cos(t ω_i), ω_i = base^(−2i/D) (Vaswani et al. 2017), in real time.

    A shift of t is a rotation of each pair, and the wavelengths are 2π·base^(2i/D). On a smooth d axis neighbouring
    nodes would alternate, so there sines fill the first half of the axis and cosines the second; with ``halves`` on a
    counted one too (Marian).
    """

    def __init__(self, axes: Axes, base: float = 10000.0, halves: bool = False) -> None:
        super().__init__()
        self.axes, self.base, self.halves = axes, base, halves
        self._waves = constants.Cache(16)

    def forward(self, t: Grid, d: Grid, like: Tensor, read: None = None) -> Tensor:
        """Evaluate at all stamps; counted ones are the same at every call, and kept."""
        counted = t.is_counting and t.is_ordered and t.nodes.dim() == 2 and d.key is not None
        if not counted or torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
            return self._made(t, d, like)
        key = (t.start, t.count, t.nodes.dtype, d.key, d.nodes.dtype, like.device, like.dtype)
        return self._waves.get(key, lambda: self._made(t, d, like))

    def _made(self, t: Grid, d: Grid, like: Tensor) -> Tensor:
        axis, time = self.axes.d, t.nodes[..., :1]
        if isinstance(axis, Points):
            index = d.nodes[:, 0].to(time)
            if self.halves:
                half = (axis.n or len(d)) // 2
                wave = time * self.base ** (-(index % half) / half)
                return torch.where(index < half, wave.sin(), wave.cos()).to(like)
            wave = time * self.base ** (-(index - index % 2) / (axis.n or len(d)))
            return torch.where(index % 2 == 0, wave.sin(), wave.cos()).to(like)
        u = unit_coordinate(axis, d.nodes).to(time)
        wave = time * self.base ** (-2 * (u % 0.5))
        return torch.where(u < 0.5, wave.sin(), wave.cos()).to(like)


@register
class Learned(Encoding):
    """p(t, d): a table over t = 0…count−1, read between its rows along straight lines.

    The first ``skip`` rows are passed over: t = 0 reads row ``skip`` (BART, OPT: 2). With ``gapless`` counted tokens
    are numbered among those that are observed, wherever the padding is (RoBERTa); stamps stay as they are given. So
    many tokens behind the first have no position if they are ``unplaced`` (registers): p is zero there.
    Discrete case: ``nn.Embedding(count, n)`` indexed by position.
    """

    def __init__(
        self,
        weights: Parametrisation,
        count: Size,
        std: Spread = 0.02,
        skip: Whole = 0,
        gapless: bool = False,
        unplaced: Whole = 0,
    ) -> None:
        super().__init__()
        if skip >= count:
            raise ConfigError(f"a table of {count} rows skips fewer", got=skip, remedy="Give count > skip.")
        self.count = count
        self.unplaced = unplaced
        self.total = count + unplaced
        self.skip = skip
        self.gapless = gapless
        self.table = weights.table(count, "d", std)

    @property
    def room(self) -> int | None:
        """Its rows, without those that are passed over."""
        return self.total - self.skip

    def read(self, d: Grid) -> Tensor:
        """The rows of the table, and zeros where tokens have no position."""
        rows: Tensor = self.table.on(d=d)
        if not self.unplaced:
            return rows
        first = self.skip + 1
        return torch.cat([rows[:first], rows.new_zeros(self.unplaced, rows.shape[1]), rows[first:]])

    def forward(self, t: Grid, d: Grid, like: Tensor, read: Tensor | None = None) -> Tensor:
        """Take the first rows for counted tokens, interpolate for real stamps."""
        rows = self.read(d) if read is None else read
        room = self.total - self.skip
        if t.is_counting and t.is_ordered:
            if self.gapless and t.has_gaps:
                place = t.start + t.observed.long().cumsum(-1) - 1
                self._require(room, t.start + t.count)
                return rows[place.clamp_min(0) + self.skip]
            end = t.start + t.count
            self._require(room, end)
            return rows[t.start + self.skip : end + self.skip]
        x = t.nodes[..., 0]
        if self.gapless and t.has_gaps and t.shard is not None and t.is_counting:
            x = (t.shard.observed_up_to_own() - 1).to(x)
        if t.has_gaps:  # an absent token may carry any stamp
            x = torch.where(t.observed, x, 0.0)
        if looking() and bool(((x < 0) | (x > room - 1)).any()):
            raise GridError(
                f"the position table covers times 0 to {room - 1}",
                got=f"{x.min().item():g} to {x.max().item():g}",
                remedy="Rescale the stamps, or use Sinusoidal() positions.",
            )
        x = x + self.skip if self.skip else x
        low = x.detach().floor().clamp(self.skip, max(self.total - 2, self.skip)).long()
        part = (x - low)[..., None].to(like)
        return rows[low] * (1 - part) + rows[(low + 1).clamp_max(self.total - 1)] * part

    def _require(self, room: int, end: int) -> None:
        if end > room:
            remedy = "Shorten the sequence, or use Sinusoidal() or Rotary() positions."
            raise ShapeError(f"the position table has {room} rows", got=f"{end} tokens", remedy=remedy)
