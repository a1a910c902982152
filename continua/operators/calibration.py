"""Calibration by size: a few numbers for each axis that a model learns, so that other grids work as well as its own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import nn

from continua import constants
from continua.axes import WIDTHS, Depths, Grids, Sites, mass_of
from continua.fields import Expansion, Parametrisation, Role, Use
from continua.fields.role import VECTOR
from continua.operators.weights import Weight
from continua.typing import Letter, Tensor

EVERYWHERE = "dhzp"  # axes that every calibrated weight may have gains along
FINEST = -1.0  # log2 of a step in units of the native one, where steps are searched for
COARSEST = 2.0  # of a step that joins four
HALF = -0.5 * math.log(2)  # rough weights add up like √n: half of what the quadrature weights mend is taken back
SAME = 1e-6  # of a native step: lengths and places that are nearer to each other are one
LEAD = -4.0  # of outputs along p: the first half of a step moves by 0.98 of it, so that finer steps answer alike
SUMMED = "sizes"  # stands for all axes whose s_k are known before anything is read: their gains are read as one


@dataclass(frozen=True)
class Part:
    """Where the middle of a part lies in a native step, from −1 to 1, and how many such parts the step has."""

    place: float = 0.0
    count: int = 1


@dataclass(frozen=True)
class Target:
    """A weight that is calibrated: its role, the letters of it that get a gain, the axis whose integral it enters.

    ``own`` is an axis that this weight alone is integrated over: it has gains along it too. ``shift`` is added to what
    the weight writes, and divided among the parts of a step as that is.
    """

    role: Role
    letters: str
    integral: Letter | None = None
    own: Letter | None = None
    shift: str | None = None


@dataclass(frozen=True)
class Sum:
    """Σ_k s_k g_k, read as one field: the g_k have the same axes and bases."""

    fields: tuple[Expansion, ...]
    sizes: tuple[float, ...]

    @property
    def role(self) -> Role:
        """That of each g_k; no default of a constructor, which the tracer of ``torch.compile`` cannot make."""
        return VECTOR

    @property
    def letters(self) -> tuple[Letter, ...]:
        """Those of each g_k."""
        return self.fields[0].letters

    def on(self, **grids: Sites) -> Tensor:
        """The values on the product of the grids."""
        (first, size), *others = zip(self.fields, self.sizes, strict=True)
        coefficients = size * first.stored()
        for field, size in others:
            coefficients = torch.add(coefficients, field.stored(), alpha=size)
        return first.read(coefficients, **grids)


class Calibration(nn.Module):
    """w ← w · exp(Σ_k s_k g_k) for kernels and gains, w ← w + Σ_k s_k g_k for shifts.

    s_k = log2(native nodes / nodes) ≥ 0 along k = d and h, and log2(step / native step) along z, at each depth (≥ 0
    where there are gains along p); finer widths than the native one need nothing, since weights are constant on its
    cells. g_k are fields over one letter of the weight, so sizes that were never trained lie between those that were.
    Where the parametrisation asks for gains along m and e too, s_e is as along h, and s_m as along d less what it is
    for the m that follows d: a width alone has s_m = 0. s_p tells the parts of a native step apart that is taken in
    several: where the middle of the part lies in it, from −1 to 1. Kernels and gains are multiplied by exp(s_p g_p)
    over its mean over the parts, and g_p of outputs starts so that nearly all of a step is done by its first part: a
    finer walk begins as the native one. On the native grid nothing is read and nothing changes. ``targets`` are the
    weights by name.
    """

    def __init__(self, weights: Parametrisation, targets: Mapping[str, Target]) -> None:
        super().__init__()
        self.native = {letter: mass_of(weights.axes[letter]) for letter in WIDTHS}
        self.targets = dict(targets)
        self.fields = nn.ModuleDict()
        self.along = {
            name: [k for k in weights.calibrated_along if k in EVERYWHERE or k == target.own]
            for name, target in targets.items()
        }
        for name, target in targets.items():
            for letter in target.letters:
                for k in self.along[name]:
                    rough = k in (target.integral, target.own) and letter == target.letters[0]
                    leads = k == "p" and target.role.is_output and letter == "d"
                    mean = HALF if rough else LEAD if leads else 0.0
                    field = weights.field(f"z{letter}", mean=mean, role=VECTOR)
                    if k == "p" and "z" not in field.letters:
                        continue
                    self.fields[_name(name, letter, k)] = field  # type: ignore[assignment]
        sums = {_name(name, letter, SUMMED) for name, target in targets.items() for letter in target.letters}
        self.names = frozenset({*self.fields, *sums})

    def sizes(self, grids: Grids) -> dict[Letter, float | None]:
        """s_d, s_h, s_m and s_e; s_z and s_p are None, numbers for each depth."""
        return {**octaves(self.native, grids), "z": None, "p": None}

    def is_native(self, grids: Grids) -> bool:
        """Whether every size along which there are gains is the native one."""
        sizes = self.sizes(grids)
        known = {k for along in self.along.values() for k in along if k not in "zp"}
        return grids.z is not None and grids.z.is_native and all(sizes[k] == 0.0 for k in known)

    def weights(self, grids: Grids, late: bool = False) -> dict[str, Weight]:
        """What is to be read beside the operator's own weights; ``late`` as in ``sample``.

        All gains of a letter whose s_k are plain numbers are read as one field. Gains along p are read beside it, and
        those along z where steps differ, or where depths are read later.
        """
        if self.is_native(grids):
            return {}
        found: dict[str, Weight] = {}
        sizes = self.sizes(grids)
        if grids.z is None or not _parts(grids.z):
            sizes["p"] = 0.0
        for weight, target in self.targets.items():
            sizes["z"] = self._step(weight, grids)
            for letter in target.letters:
                named = {k: _name(weight, letter, k) for k in self.along[weight]}
                asked = {k: self.fields[name] for k, name in named.items() if name in self.fields and sizes[k] != 0.0}
                known = {k: field for k, field in asked.items() if sizes[k] is not None and not late}
                found |= {named[k]: Weight(field) for k, field in asked.items() if k not in known}  # type: ignore[arg-type]
                if known:
                    numbers = tuple(cast(float, sizes[k]) for k in known)
                    gains = Sum(tuple(known.values()), numbers)  # type: ignore[arg-type]
                    found[_name(weight, letter, SUMMED)] = Weight(gains)  # type: ignore[arg-type]
        return found

    def _step(self, weight: str, grids: Grids) -> float | None:
        """s_z of a weight, where it is the same at all depths."""
        steps = set(() if grids.z is None else _logs(grids, None, self._finest(weight)))
        return steps.pop() if len(steps) == 1 else None

    def _finest(self, weight: str) -> float:
        """The least s_z: where there are gains along p, parts of a native step are told apart by these alone."""
        return 0.0 if "p" in self.along[weight] else FINEST

    def fold(self, values: dict[str, Tensor], grids: Grids, depths: tuple[float, ...] | None) -> dict[str, Tensor]:
        """Apply what was read at some depths (None: at every one) to the weights it belongs to."""
        own = {name: value for name, value in values.items() if name in self.names}
        if not own:
            return values
        rest = {name: value for name, value in values.items() if name not in own}
        sizes = self.sizes(grids)
        for weight, target in self.targets.items():
            if weight not in rest:
                continue
            for letter in target.letters:
                named = {k: _name(weight, letter, k) for k in (SUMMED, *self.along[weight])}
                logs = {k: own[name] for k, name in named.items() if name in own}
                for k in logs.keys() - {SUMMED, "p"}:
                    steps = _logs(grids, depths, self._finest(weight))
                    logs[k] = _scaled(logs[k], sizes[k], steps, depths is not None)
                if "p" in logs:
                    logs["p"] = _divided(logs["p"], _parts_at(grids, depths), target.role)
                if logs:
                    first, *others = logs.values()
                    rest[weight] = _applied(rest[weight], target.role, letter, sum(others, first), grids)
                if letter == "d" and target.shift in rest and "p" in logs:
                    rest[target.shift] = rest[target.shift] * logs["p"].exp()
        return rest

    def absorb(self, weights: Mapping[str, Expansion], k: Letter, before: float, after: float) -> None:
        """Let the weights at a size be what they were at a coarser one with its calibration along k.

        ``before`` and ``after`` are s_k of both. Where the finer size is the native one, nothing is left to calibrate.
        """
        for name, target in self.targets.items():
            field = weights[name]
            for letter in target.letters if k in self.along[name] else "":
                gain: Any = self.fields[_name(name, letter, k)]
                log = _aligned((before - after) * gain.coefficients, gain.letters, field.letters)
                if target.role.use is Use.SHIFT:
                    field.coefficients.add_(log)
                else:
                    field.coefficients.mul_(log.exp())
                if after == 0.0:
                    gain.coefficients.zero_()


def octaves(native: Mapping[Letter, float], grids: Grids) -> dict[Letter, float]:
    """log2(native nodes / nodes) ≥ 0 along d, h and e; along m less what it is for the m that follows d."""
    known = _octaves(tuple(native[k] for k in "dhem"), tuple(grids[k].count for k in "dhem"))
    return dict(zip("dhem", known, strict=True))


@constants.bounded(256)
def _octaves(native: tuple[float, ...], counts: tuple[int, ...]) -> tuple[float, ...]:
    """The same on plain numbers, which every operator asks for at every pass."""
    d, h, e, m = (max(0.0, math.log2(full / count)) for full, count in zip(native, counts, strict=True))
    following = max(1, round(native[3] * counts[0] / native[0]))
    return d, h, e, m - max(0.0, math.log2(native[3] / following))


@runtime_checkable
class Calibrated(Protocol):
    """An operator that may have a calibration of its weights, which are its attributes by the names of the targets."""

    calibration: Calibration | None


def _aligned(values: Tensor, own: tuple[Letter, ...], letters: tuple[Letter, ...]) -> Tensor:
    """Values over some letters, to be added to those over all ``letters``."""
    sizes = dict(zip(own, values.shape, strict=True))
    return values.reshape([sizes.get(letter, 1) for letter in letters])


def _name(target: str, letter: Letter, k: Letter) -> str:
    return f"{target} over {letter} by {k}"


def _scaled(gain: Tensor, size: float | None, changes: tuple[float, ...], each: bool) -> Tensor:
    """s·g; the steps of ``each`` depth for what varies over depth, their mean for what does not."""
    if size is not None:
        return size * gain
    if not each:
        return sum(changes) / len(changes) * gain
    return constants.numbers(changes, gain.device, gain.dtype).view(-1, *[1] * (gain.dim() - 1)) * gain


def _applied(value: Tensor, role: Role, letter: Letter, log: Tensor, grids: Grids) -> Tensor:
    """Gains and shifts as they are; kernels by their rows or by columns (the inputs; h with its inner coordinates)."""
    if role.use is Use.SHIFT:
        return value + log
    if role.use is Use.GAIN:
        return value * log.exp()
    if letter not in role.inputs:
        return value * log.exp()[..., None]
    if letter == "h":
        log = log.repeat_interleave(grids.e.count, -1)
    return value * log.exp()[..., None, :]


def _logs(grids: Grids, depths: tuple[float, ...] | None, finest: float) -> tuple[float, ...]:
    """log2 of the steps taken at some depths (None: all of them), the finest where steps are searched for.

    What is shorter than a native step is a part of one, where parts have gains; it is then no size of its own.
    """
    nodes = () if grids.z is None else grids.z.nodes if depths is None else depths
    lengths = None if grids.z is None else grids.z.lengths_at(nodes)
    if lengths is None:
        return (finest,) * max(1, len(depths or ()))
    return tuple(min(max(math.log2(length), finest), COARSEST) for length in lengths)


def _parts_at(grids: Grids, depths: tuple[float, ...] | None) -> tuple[Part, ...]:
    """What parts of native steps are taken at some depths; all of one where that is not known."""
    if grids.z is None or depths is None:
        return (Part(),) * max(1, len(depths or ()))
    known = _parts(grids.z)
    return tuple(known.get(depth, Part()) for depth in depths)


def _parts(steps: Depths) -> dict[float, Part]:
    """The steps that are one of some equal parts of a native one, by their depths; others have no place in a step."""
    found = {}
    for z, length, begin in zip(steps.nodes, steps.lengths or (), steps.begins or (), strict=False):
        count = round(1 / length)
        is_part = abs(count * length - 1) < SAME and abs(count * begin - round(count * begin)) < SAME
        if count > 1 and is_part:
            found[z] = Part(2 * begin + length - 1, count)
    return found


def _divided(gain: Tensor, parts: tuple[Part, ...], role: Role) -> Tensor:
    """s·g at each depth; less log of the mean of exp(s·g) over the parts of its step, for what multiplies."""
    if len(parts) != len(gain):  # depths are not known: a step is not divided
        return 0.0 * gain
    shape = (-1, *[1] * (gain.dim() - 1))
    places = constants.numbers(tuple(part.place for part in parts), gain.device, gain.dtype).view(shape)
    made = places * gain
    if role.use is Use.SHIFT:
        return made
    for count in sorted({part.count for part in parts} - {1}):
        every = constants.numbers(tuple((2 * j + 1) / count - 1 for j in range(count)), gain.device, gain.dtype)
        mean = torch.logsumexp(every.view(-1, *[1] * gain.dim()) * gain, 0) - math.log(count)
        mine = constants.numbers(tuple(float(part.count == count) for part in parts), gain.device, gain.dtype)
        made = made - mine.view(shape) * mean
    return made


def calibration(weights: Parametrisation, targets: Mapping[str, Target]) -> Calibration | None:
    """A calibration where the parametrisation asks for one."""
    return Calibration(weights, targets) if weights.calibrated else None


def extra(own: Calibration | None, grids: Grids, late: bool) -> dict[str, Weight]:
    """What is to be read for a calibration, if there is one."""
    return {} if own is None else own.weights(grids, late)


def folded(
    own: Calibration | None, values: dict[str, Tensor], grids: Grids, depths: tuple[float, ...] | None
) -> dict[str, Tensor]:
    """The values with the calibration folded in, if there is one."""
    return values if own is None else own.fold(values, grids, depths)
