"""The weights of a decoder as plain arrays, nodes in nested order: every size is a prefix of each array."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from continua.axes import WIDTHS, Depths, Grids, Nested, Points, mass_of, taken_first
from continua.errors import ConfigError
from continua.flow import Euler, Fixed, LieTrotter
from continua.models import Readout, Tokens, Transformer
from continua.operators import (
    GELU,
    Attention,
    Causal,
    LayerNorm,
    Learned,
    Pointwise,
    Position,
    PreNorm,
    ReLU,
    RMSNorm,
    Rotary,
    SiLU,
    Softmax,
)
from continua.operators.activation import Identity
from continua.operators.calibration import Calibration
from continua.operators.norm import Affine
from continua.operators.weights import read as read_field
from continua.typing import Letter, Tensor

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Gains:
    """log-gains g_k of one weight over one letter: ``values`` [layers, k, n] for the axes ``along``."""

    along: str
    values: Array


@dataclass(frozen=True)
class Norm:
    """Scale and shift [layers, d] with their gains; ``centred`` is a layer norm, else a root mean square."""

    scale: Array | None
    shift: Array | None
    eps: float
    centred: bool
    scale_gains: Gains | None
    shift_gains: Gains | None


@dataclass(frozen=True)
class Attend:
    """The map into queries, keys and values [layers, d, q|k|v, h, e] with its bias, and that out of heads.

    Where heads share keys, ``into`` is [layers, d, heads and twice the groups, e].
    """

    norm: Norm
    into: Array
    into_bias: Array | None
    out: Array  # [layers, h, e, d]
    bias: Array | None
    groups: int  # heads of keys and values
    scale: float  # of the scores
    base: float | None  # of rotary positions
    head_gains: Gains | None
    out_gains: Gains | None


@dataclass(frozen=True)
class Feed:
    """W1 and the gate [layers, d, m], W2 [layers, m, d], biases [layers, m] and [layers, d]."""

    norm: Norm
    w1: Array
    gate: Array | None
    b1: Array | None
    w2: Array
    b2: Array | None
    phi: str  # gelu, gelu-tanh, relu or silu
    hidden_gains: Gains | None
    out_gains: Gains | None


@dataclass(frozen=True)
class Stored:
    """All arrays of a decoder, and the native numbers of nodes and steps."""

    words: Array  # [v, d]
    positions: Array | None  # [context, d]
    head: Array | None  # [v, d]; None: that of the words
    head_bias: Array | None
    head_scale: float
    final: Norm
    attend: Attend
    feed: Feed
    native: Mapping[Letter, int]  # d, h, e, m and z
    elastic: bool  # whether smaller sizes are prefixes


def unfit(model: Any) -> str | None:
    """Why a model is no decoder of the kind that one graph with a cache is written for; None if it is."""
    if not isinstance(model, Transformer) or model.bank is not None:
        return f"a {type(model).__name__}" + (" with a memory" if isinstance(model, Transformer) else "")
    native = model.native
    if not isinstance(model.axes.t, Points) or native.t is not None:
        return "tokens that are not counted"
    if not isinstance(native.z, Fixed) or native.z.solver != LieTrotter(Euler()):
        return f"steps of {getattr(native.z, 'solver', native.z)}"
    return _unfit_ends(model) or _unfit_block(tuple(model.block))


def _unfit_ends(model: Any) -> str | None:
    embed = model.embed
    readout = model.readout
    if not isinstance(embed, Tokens) or embed.types is not None or embed.norm is not None:
        return f"an embedding of the kind {type(embed).__name__}"
    if embed.scale != 1 or getattr(readout, "cap", None) is not None:
        return "embeddings that are scaled, or answers that are bent"
    if isinstance(embed.position, Learned) and (embed.position.skip or embed.position.gapless):
        return "positions with rows that are never read"
    if not (embed.position is None or type(embed.position) is Learned):
        return f"positions of the kind {type(embed.position).__name__}"
    if not isinstance(readout, Readout) or readout.out is None or not readout.answers_each_token:
        return "no answer for each token"
    if len(readout.before) != 1 or type(readout.before[0]) not in (LayerNorm, RMSNorm):
        return "another readout than a norm and a head"
    return None


def _unfit_block(parts: tuple[Any, ...]) -> str | None:
    if len(parts) != 2 or not all(type(part) is PreNorm for part in parts):
        return "another block than pre-norm attention and a pre-norm feed-forward map"
    attention, feed = (part.inner for part in parts)
    if any(type(part.norm) not in (LayerNorm, RMSNorm) for part in parts):
        return "norms of another kind"
    if not isinstance(attention, Attention) or not isinstance(feed, Pointwise):
        return "another block than pre-norm attention and a pre-norm feed-forward map"
    if type(attention.mask) is not Causal or attention.cross or type(attention.kernel) is not Softmax:
        return "attention that is not causal, or no softmax"
    if type(attention.position) not in (Position, Rotary) or attention.density is not None:
        return "attention with biases of pairs or a density of heads"
    if attention.norm is not None:
        return "attention that normalises queries and keys"
    if any(part.norm.stored_mean != 1 for part in parts):
        return "norms whose scales are stored around zero"
    if isinstance(attention.position, Rotary) and (attention.position.stretch or attention.position.share != 1):
        return "rotations that are stretched, or of a part of each head"
    if not isinstance(feed.phi1, GELU | ReLU | SiLU) or not isinstance(feed.phi2, Identity):
        return "other activations than GELU, ReLU and SiLU"
    return None


def one_size(model: Any) -> str | None:
    """Why a decoder has one size in a file; None if all its smaller sizes are prefixes."""
    for letter in WIDTHS:
        rule = getattr(model.native, letter)
        if not isinstance(rule, Nested) or rule.n != mass_of(model.axes[letter]):
            return f"nodes of {letter} that are not nested"
    attention, feed = (part.inner for part in model.block)
    corrected = [own for own in (attention.correction, feed.correction) if own is not None]
    if attention.refit is not None or any(own.beyond == 0 for own in corrected):
        return "weights that are refitted or corrected for each size"
    if attention.groups is not None or type(attention.position) is Rotary:
        return "grouped heads or rotary positions"
    return None


def smallest(model: Any) -> dict[str, int]:
    """The sizes below which a decoder is corrected for each: one graph for all sizes goes down to these."""
    own = next(iter(model.block)).inner.correction
    if own is None:
        return {}
    native = {**{k: round(mass_of(model.axes[k])) for k in WIDTHS}, "z": model.native.z.steps}
    return {k: math.ceil(native[k] / 2**own.beyond) for k in own.along if k in native}


@dataclass(frozen=True)
class _Reader:
    """Reads fields and operators of a model on its native grid, and puts the nodes in order."""

    model: Any
    grids: Grids
    depths: Depths
    order: Mapping[Letter, NDArray[np.int64]]

    @classmethod
    def of(cls, model: Any, elastic: bool) -> "_Reader":
        structure = model.structure()
        depths = Depths(tuple(z for z, _ in structure.steps))
        order = {
            letter: taken_first(model.axes[letter], getattr(model.native, letter))
            if elastic
            else np.arange(structure.grids[letter].count)
            for letter in WIDTHS
        }
        return cls(model, structure.grids, depths, order)

    def weights(self, operator: Any) -> dict[str, Tensor]:
        """All weights of an operator, [layers, …] each."""
        found = operator.read(self.grids.with_depths(self.depths)).weights
        layers = [found.depth.get(z, {}) for z in self.depths.nodes]
        own = {name: [layer[name] for layer in layers] for name in layers[0]}
        whole = {name: [value] * len(self.depths) for name, value in found.fixed.items()}
        return {name: torch.stack(values).detach() for name, values in {**whole, **own}.items()}

    def array(self, values: Tensor, letters: str) -> Array:
        """Values over some letters (``·`` for others) with their nodes in order."""
        found: Array = values.detach().cpu().float().numpy()
        for place, letter in enumerate(letters):
            if letter in self.order:
                found = np.take(found, self.order[letter], place)
        return found

    def gains(self, own: Calibration | None, weight: str, letter: Letter, each: bool = True) -> Gains | None:
        """The gains of one weight over one letter, along all axes that it has gains along."""
        if own is None or weight not in own.targets:
            return None
        along = []
        rows = []
        for k in own.along[weight]:
            name = f"{weight} over {letter} by {k}"
            if k == "p" or name not in own.fields:  # p tells parts of a native step apart: a file has none
                continue
            values = read_field(own.fields[name], self.grids.with_depths(self.depths))  # type: ignore[arg-type]
            if each and values.dim() == 1:
                values = values.expand(len(self.depths), -1)
            along.append(k)
            rows.append(self.array(values if each else values[None], f"·{letter}"))
        return Gains("".join(along), np.stack(rows, 1)) if rows else None

    def norm(self, operator: Affine) -> Norm:
        """A norm of the flow, at each layer."""
        values = self.weights(operator)
        return self._norm(operator, values, True)

    def final(self, operator: Affine) -> Norm:
        """The norm behind the flow: one for all sizes of z."""
        read = operator.read(self.grids.with_depths(self.model.structure().behind)).weights
        return self._norm(operator, {name: value[None] for name, value in read.at(0.0).items()}, False)

    def _norm(self, operator: Affine, values: dict[str, Tensor], each: bool) -> Norm:
        scale = values.get("scale")
        shift = values.get("shift")
        return Norm(
            scale=None if scale is None else self.array(scale, "·d"),
            shift=None if shift is None else self.array(shift, "·d"),
            eps=operator.eps,
            centred=isinstance(operator, LayerNorm),
            scale_gains=self.gains(operator.calibration, "scale", "d", each),
            shift_gains=self.gains(operator.calibration, "shift", "d", each),
        )

    def attend(self, part: Any) -> Attend:
        """The branch of attention."""
        operator: Attention = part.inner
        values = self.weights(operator)
        inner = self.grids.e.count
        split = {name: values[name].unflatten(1, (-1, inner)).permute(0, 3, 1, 2) for name in "qkv"}
        groups = split["k"].shape[2]
        place = {name: values.get(f"b{name}") for name in "qkv"}
        biases = {
            name: torch.zeros(len(self.depths), split[name].shape[2], inner) if bias is None else _by_head(bias, inner)
            for name, bias in place.items()
        }
        has_bias = any(bias is not None for bias in place.values())
        out = values["o"].unflatten(2, (-1, inner)).permute(0, 2, 3, 1)
        bias = values.get("bo")
        return Attend(
            norm=self.norm(part.norm),
            into=self._heads(split, "·dhe", 2),
            into_bias=self._heads(biases, "·he", 1) if has_bias else None,
            out=self.array(out, "·hed"),
            bias=None if bias is None else self.array(bias, "·d"),
            groups=groups,
            scale=operator.kernel.scale(operator.axes.e),
            base=operator.position.base if isinstance(operator.position, Rotary) else None,
            head_gains=self.gains(operator.calibration, "o", "h"),
            out_gains=self.gains(operator.calibration, "o", "d"),
        )

    def _heads(self, parts: dict[str, Tensor], letters: str, place: int) -> Array:
        """Queries, keys and values in one array: beside one another, or as they are where heads share keys."""
        if parts["k"].shape[place] == parts["q"].shape[place]:
            return np.stack([self.array(parts[name], letters) for name in "qkv"], place)
        return np.concatenate([self.array(parts[name], letters.replace("h", "·")) for name in "qkv"], place)

    def feed(self, part: Any) -> Feed:
        """The feed-forward branch."""
        operator: Pointwise = part.inner
        values = self.weights(operator)

        def maybe(name: str, letters: str) -> Array | None:
            return self.array(values[name], letters) if name in values else None

        gate = values.get("gate")
        return Feed(
            norm=self.norm(part.norm),
            w1=self.array(values["w1"].mT, "·dm"),
            gate=None if gate is None else self.array(gate.mT, "·dm"),
            b1=maybe("b1", "·m"),
            w2=self.array(values["w2"].mT, "·md"),
            b2=maybe("b2", "·d"),
            phi=_activation(operator.phi1),
            hidden_gains=self.gains(operator.calibration, "w2", "m"),
            out_gains=self.gains(operator.calibration, "w2", "d"),
        )


def _activation(phi: Any) -> str:
    name = type(phi).__name__.lower()
    return "gelu-tanh" if isinstance(phi, GELU) and phi.tanh else name


def _by_head(bias: Tensor, inner: int) -> Tensor:
    return bias.unflatten(1, (-1, inner)).cpu()


def stored(model: Any, elastic: bool) -> Stored:
    """The arrays of a decoder; ``elastic`` puts nested nodes in order, so that all smaller sizes are prefixes."""
    reason = unfit(model) or (one_size(model) if elastic else None)
    if reason is not None:
        raise ConfigError("this model is no decoder with that many sizes", got=reason, remedy="Export one size of it.")
    reader = _Reader.of(model, elastic)
    attention, feed = tuple(model.block)
    d = reader.grids.d
    readout = model.readout
    table = model.embed.read(reader.grids)
    head = None if readout.tied else readout.head.on(d=d)
    native = {letter: round(mass_of(model.axes[letter])) for letter in WIDTHS}
    return Stored(
        words=reader.array(table.words, "·d"),
        positions=None if table.position is None else reader.array(table.position, "·d"),
        head=None if head is None else reader.array(head, "·d"),
        head_bias=None if readout.bias is None else readout.bias.detach().cpu().float().numpy(),
        head_scale=readout.scale,
        final=reader.final(readout.before[0]),
        attend=reader.attend(attention),
        feed=reader.feed(feed),
        native={**native, "z": len(reader.depths)},
        elastic=elastic,
    )
