"""Parametrisations: which kind of field a model's weights are, said once for all of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, cast, runtime_checkable

from torch import nn

from continua.axes import ALIASES, Axes, Axis, Counting, LeftEnd, Nested, Points, mass_of
from continua.config import from_plain, register, to_plain
from continua.errors import ConfigError
from continua.fields.basis import Basis
from continua.fields.corrected import CorrectedTable
from continua.fields.field import Expansion, Field
from continua.fields.generated import Generated
from continua.fields.low_rank import Adapted, LowRank
from continua.fields.neural import Neural, Separable
from continua.fields.nodal import Nodal
from continua.fields.role import TABLE, Role, Use
from continua.settings import Count, NonNegative, Size
from continua.typing import Letter


@register
@dataclass(frozen=True)
class RefitRanks:
    """How many functions keep the second moments of hidden coordinates, of head outputs and of the state.

    With ``stays`` the weights of each layer stand as in the model that was lifted, and its order of nodes is applied
    when a size is read; without, as in checkpoints of before, they stand in that order themselves.
    """

    m: Size
    h: Size
    d: Size
    stays: bool = False


@register
@dataclass(frozen=True)
class CorrectedNodes:
    """What corrects sizes along one letter has the first ``n`` nested nodes of ``axis``, and is zero at the others."""

    along: str
    axis: str
    n: Size


@register
@dataclass(frozen=True)
class Corrections:
    """How many functions a correction of each map has, and the axes along which sizes are corrected.

    ``rank`` is one number (None: whole maps, and gains and shifts too), or one for each letter of ``along``: d h e m z,
    f for steps that are finer than native ones, and a for sizes that are smaller along all others of them at once.
    ``beyond`` is how many octaves below the native size they begin to be corrected: with 1, sizes from half of an axis
    on read nothing along it. Then gains, shifts and tables are corrected too, each map along the widths it has, and
    what is stored is what the finest size beyond reads. ``apart`` lets a stand in the place of the others as far as a
    size is smaller along all of them: it reads fewer corrections, and what it learns does not change theirs.
    ``stored`` are axes on which whole maps have numbers at their first nodes alone, where no size that learns reads
    more; without ``beyond``. What is learned along the axes ``alone`` is learned at sizes that differ from native along
    these only: a size that has another correction besides reads theirs, and changes its own.
    """

    rank: Count | tuple[Count | None, ...] | None
    along: str = "dhmz"
    beyond: NonNegative = 0.0
    apart: bool = False
    stored: tuple[CorrectedNodes, ...] = ()
    alone: str = ""

    def __post_init__(self) -> None:
        if not self.along or set(self.along) - set("dhemzfa"):
            raise ConfigError("corrections are along some of d h e m z f a", got=repr(self.along), remedy='Use "hm".')
        if isinstance(self.rank, tuple) and len(self.rank) != len(self.along):
            remedy = f"Give one number, or {len(self.along)} of them."
            raise ConfigError("each axis of a correction has a rank", got=self.rank, remedy=remedy)
        if set(self.alone) - set(self.along):
            remedy = f"Name some of {' '.join(self.along)}."
            raise ConfigError("axes that learn alone are among those of the corrections", got=self.alone, remedy=remedy)

    @property
    def ranks(self) -> dict[Letter, int | None]:
        """The rank along each axis; None where maps are corrected as a whole."""
        each = self.rank if isinstance(self.rank, tuple) else (self.rank,) * len(self.along)
        return dict(zip(self.along, each, strict=True))

    def nodes(self, letter: Letter) -> dict[Letter, int]:
        """How many nodes are stored for sizes along ``letter``, on the axes where these are not all."""
        return {own.axis: own.n for own in self.stored if own.along == letter}

    def cut(self, letter: Letter) -> str:
        """The axes along which sizes that are corrected along ``letter`` are coarse; m follows d."""
        found = "".join(k for k in self.along if k in "dhemz") if letter == "a" else letter
        return found + "m" if "d" in found and "m" not in found else found


@runtime_checkable
class Parametrisation(Protocol):
    """Makes fields over the letters of a model's axes."""

    @property
    def axes(self) -> Axes:
        """The model's axes."""
        ...

    @property
    def calibrated(self) -> bool:
        """Whether operators learn, beside their weights, how these change with the size."""
        ...

    @property
    def calibrated_along(self) -> str:
        """The axes along which they learn it; p is the place within a native step."""
        ...

    @property
    def refit(self) -> RefitRanks | None:
        """Whether operators keep moments of their inputs, and how closely."""
        ...

    @property
    def corrections(self) -> Corrections | None:
        """Whether operators learn, beside their kernels, what is added to these at other sizes."""
        ...

    def field(self, letters: str, std: float = 0.0, mean: float = 0.0, role: Role | None = None) -> Field:
        """Return a new field over ``letters`` whose values have about this spread around ``mean``."""
        ...

    def table(self, rows: int, letters: str, std: float, role: Role = TABLE) -> Field:
        """Return a field over ``rows`` counted entries (letter ``n``) and other axes: an embedding, a head, modes.

        Counted entries come first unless ``letters`` place them: the taps of a local kernel "dnc" are among its inputs.
        """
        ...

    def rank(self, letter: Letter) -> float:
        """How many independent functions the fields have along ``letter``: it settles initial scales."""
        ...

    def autonomous(self) -> "Parametrisation":
        """Return the same parametrisation without depth: fields that do not change along z."""
        ...

    def below(self, letter: Letter) -> "Parametrisation":
        """Return the parametrisation of what ``corrections`` store for sizes along ``letter``."""
        ...


def kernel_std(weights: Parametrisation, inputs: str) -> float:
    """√rank / mass over the inputs: 1/√n on counting axes, and the same output variance for smooth kernels."""
    std = 1.0
    for letter in inputs:
        std *= weights.rank(letter) ** 0.5 / mass_of(weights.axes[letter])
    return std


def kernel(weights: Parametrisation, letters: str, inputs: str, gain: float = 1.0, is_output: bool = False) -> Field:
    """Return a kernel over ``letters`` that keeps variances when integrated over ``inputs``, the last of them."""
    if not letters.endswith(inputs):
        remedy = 'What comes out goes first, as in kernel(weights, "zdc", inputs="c").'
        raise ConfigError("a kernel ends with its inputs", got=f"{letters!r} over {inputs!r}", remedy=remedy)
    role = Role(Use.KERNEL, inputs, is_output)
    return weights.field(letters, std=gain * kernel_std(weights, inputs), role=role)


@register
@dataclass(frozen=True)
class ByBasis:
    """Every weight is an ``Expansion`` with the same basis along each letter; no basis for ``z``: autonomous.

    ``calibrated`` operators learn, beside their weights, how these change with the size (``operators.Calibration``),
    along the axes ``calibrated_along``; with ``refit`` they keep moments of their inputs, by which fewer nodes stand in
    for all (``operators.Refit``), and with ``corrections`` they learn what is added to kernels at other sizes
    (``operators.Correction``). ``low_rank`` adds a few functions to every kernel (``models.with_lora``).
    """

    axes: Axes
    bases: Mapping[Letter, Basis]
    calibrated: bool = False
    calibrated_along: str = "dhz"
    refit: RefitRanks | None = None
    corrections: Corrections | None = None
    low_rank: LowRank | None = None

    def __post_init__(self) -> None:
        missing = [letter for letter in "dhem" if letter not in self.bases]
        if missing:
            raise ConfigError("every width needs a basis", got=f"none for {', '.join(missing)}", remedy="Add them.")
        along = self.calibrated_along
        if set(along) - set("dhzmep") or len(set(along)) < len(along):
            remedy = 'Write each once, as in "dhz"; p is the place within a native step.'
            raise ConfigError("a calibration is along some of d h z m e p", got=repr(along), remedy=remedy)

    def _basis(self, letter: Letter) -> Basis:
        """The basis along ``letter``; a fresh copy of one with parameters, which fields must not share by accident."""
        basis = self.bases[ALIASES.get(letter, letter)]
        return cast(Basis, from_plain(to_plain(basis))) if isinstance(basis, nn.Module) else basis

    def field(self, letters: str, std: float = 0.0, mean: float = 0.0, role: Role | None = None) -> Field:
        """Expand over the letters; ``z`` is left out where no basis in depth is given."""
        kept = _along(self.axes, letters, depth="z" in self.bases)
        bases = {letter: self._basis(letter) for letter in kept}
        if self.low_rank is None or role is None or role.use is not Use.KERNEL:
            return Expansion(kept, bases, std, mean, role)
        return Adapted(kept, bases, std, mean, role, low=self.low_rank, spread=kernel_std(self, role.inputs))

    def table(self, rows: int, letters: str, std: float, role: Role = TABLE) -> Field:
        """Counted rows times the letters' own bases; depth comes first."""
        axes = _with_rows(rows, self.axes, letters, depth="z" in self.bases)
        bases = {k: Nodal(Counting(rows)) if k == "n" else self._basis(k) for k in axes}
        own = role.with_rows(rows)
        asked = self.corrections
        if asked is None or asked.beyond == 0 or "d" not in asked.along or letters != "d":
            return Expansion(axes, bases, std, role=own)
        coarse = {k: bases[k] if k == "n" else self.below("d")._basis(k) for k in axes}
        return CorrectedTable(axes, bases, std, own, coarse=coarse, beyond=asked.beyond)

    def below(self, letter: Letter) -> "ByBasis":
        """The same parametrisation of what corrects sizes along ``letter``: no nodes that they cannot read."""
        asked = self.corrections
        plain = replace(self, corrections=None, low_rank=None)
        if asked is None or asked.beyond == 0:
            few = {} if asked is None else asked.nodes(letter)
            return replace(plain, bases={k: _first(basis, few.get(k)) for k, basis in self.bases.items()})
        cut = {k: _cut(self.bases[k], asked.beyond) for k in asked.cut(letter) if k in self.bases}
        return replace(plain, bases={**self.bases, **cut})

    def rank(self, letter: Letter) -> float:
        """The size of the basis."""
        return float(self.bases[ALIASES.get(letter, letter)].size)

    def autonomous(self) -> "ByBasis":
        """Drop the basis of z."""
        return replace(self, bases={k: v for k, v in self.bases.items() if k != "z"})


@register
@dataclass(frozen=True)
class ByNetwork:
    """Every weight is a coordinate network: separable of the given rank, or joint with ``separable=None``."""

    axes: Axes
    hidden: Size = 32
    separable: Size | None = 8
    depth: bool = True

    @property
    def calibrated(self) -> bool:
        """No: networks are smooth, and are read at any size as they are."""
        return False

    @property
    def calibrated_along(self) -> str:
        """No axis."""
        return ""

    @property
    def refit(self) -> RefitRanks | None:
        """No: see ``calibrated``."""
        return None

    @property
    def corrections(self) -> Corrections | None:
        """No: see ``calibrated``."""
        return None

    def field(self, letters: str, std: float = 0.0, mean: float = 0.0, role: Role | None = None) -> Field:
        """Return the network over the letters."""
        kept = _along(self.axes, letters, self.depth)
        if self.separable is None:
            return Neural(kept, hidden=self.hidden, std=std, mean=mean, role=role)
        return Separable(kept, rank=self.separable, hidden=self.hidden, std=std, mean=mean, role=role)

    def table(self, rows: int, letters: str, std: float, role: Role = TABLE) -> Field:
        """Counted rows times functions that a network makes."""
        axes = _with_rows(rows, self.axes, letters, self.depth)
        bases: dict[Letter, Basis] = {
            k: Nodal(Counting(rows)) if k == "n" else Generated(16, self.hidden) for k in axes
        }
        return Expansion(axes, bases, std, role=role.with_rows(rows))

    def rank(self, letter: Letter) -> float:
        """A handful of waves: networks are smooth."""
        return 8.0

    def below(self, letter: Letter) -> "ByNetwork":
        """Nothing is corrected: see ``calibrated``."""
        return self

    def autonomous(self) -> "ByNetwork":
        """Leave z out of the networks' inputs."""
        return replace(self, depth=False)


def _along(axes: Axes, letters: str, depth: bool) -> dict[Letter, Axis]:
    return {letter: axes[letter] for letter in letters if letter != "z" or depth}


def _cut(basis: Basis, beyond: float) -> Basis:
    """The nodes of the finest grid that is more than so many octaves coarser; a basis of other functions stays."""
    if not isinstance(basis, Nodal) or not isinstance(basis.rule, Nested | LeftEnd):
        return basis
    count = max(1, math.ceil(basis.size / 2**beyond) - 1)
    return replace(basis, rule=replace(basis.rule, n=count))


def _first(basis: Basis, count: int | None) -> Basis:
    """The first nested nodes; a basis of other functions stays."""
    if count is None or not isinstance(basis, Nodal) or not isinstance(basis.rule, Nested):
        return basis
    return replace(basis, rule=basis.rule.resized(min(count, basis.size)))


def _with_rows(rows: int, axes: Axes, letters: str, depth: bool) -> dict[Letter, Axis]:
    """Depth, the counted rows, unless they are placed, and the rest."""
    ordered = letters if "n" in letters else "n" + letters
    along = _along(axes, ordered.replace("n", ""), depth)
    kept = [letter for letter in ("z" + ordered.replace("z", "")) if letter == "n" or letter in along]
    return {letter: Points(rows) if letter == "n" else along[letter] for letter in kept}


def counted(axes: Axes, layers: int | None = None) -> ByBasis:
    """Ordinary weights: one number for each point of every axis, and one set for each layer (``None``: one set).

    Discrete case: every field is an ``nn.Parameter`` of shape [layers, …].
    """
    bases: dict[Letter, Basis] = {}
    for letter in "dhem":
        axis = axes[letter]
        if not isinstance(axis, Points) or axis.n is None:
            raise ConfigError(f"counted weights need {letter}=Points(n)", got=axis, remedy="Use ByBasis there.")
        bases[letter] = Nodal(Counting(axis.n))
    if layers is not None:
        bases["z"] = Nodal(LeftEnd(layers))
    return ByBasis(axes, bases)
