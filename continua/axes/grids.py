"""The grids a model runs on, one for each letter, and the depths at which its parts are read."""

from dataclasses import dataclass, replace
from typing import Any

from continua import constants
from continua.axes.axis import ALIASES
from continua.axes.grid import Grid
from continua.errors import GridError
from continua.typing import Letter, Tensor


@dataclass(frozen=True)
class Depths:
    """The depths at which a part is read, and how long the steps are that are taken there.

    A length counts in native steps; ``None``: all are native. ``begins`` says where in a native step each of them
    begins, from 0 to 1; it is None where steps are native, or read at several depths. Plain numbers: depth is
    structure, not data. Discrete case: the layers 0 … L−1, each one step long.
    """

    nodes: tuple[float, ...]
    lengths: tuple[float, ...] | None = None
    begins: tuple[float, ...] | None = None

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def is_native(self) -> bool:
        """Whether every step is a native one."""
        return self.lengths is None or all(length == 1.0 for length in self.lengths)

    def lengths_at(self, depths: tuple[float, ...]) -> tuple[float, ...] | None:
        """The steps taken at some of the depths; None where one of them is no depth of these."""
        lengths = (1.0,) * len(self.nodes) if self.lengths is None else self.lengths
        known = dict(zip(self.nodes, lengths, strict=True))
        if any(depth not in known for depth in depths):
            return None
        return tuple(known[depth] for depth in depths)


WidthSite = tuple[Letter, int | None, bool]  # a letter, the key of its nodes, whether all weights are one
Sites = Grid | Depths  # where a function is read along one axis


def coordinates(where: Sites, like: Tensor) -> Tensor:
    """The nodes as a tensor [*b, n, k] on the device and in the dtype of ``like``."""
    if isinstance(where, Depths):
        return constants.numbers(where.nodes, like.device, like.dtype)[:, None]
    return where.nodes.to(like)


@dataclass(frozen=True)
class Grids:
    """Where everything is evaluated: tokens ``t``, widths ``d h e m``, depths ``z``, and the points that are ``asked``.

    ``z`` is None where depths are found on the way. ``grids["c"]`` is ``d`` again, ``s`` is ``t`` and ``g`` is ``h``.
    """

    d: Grid
    h: Grid
    e: Grid
    m: Grid
    t: Grid | None = None
    z: Depths | None = None
    asked: Grid | None = None
    hidden: tuple[tuple[float, Grid], ...] | None = None  # grids of m from each depth on, where m varies with depth

    def __getitem__(self, letter: Letter) -> Any:
        grid: Any = getattr(self, ALIASES.get(letter, letter))
        if grid is None:
            raise _none_for(letter)
        return grid

    @property
    def tokens(self) -> Grid:
        """The token grid, which every forward pass has."""
        if self.t is None:
            raise _none_for("t")
        return self.t

    def with_depths(self, z: Depths | None) -> "Grids":
        """The same grids, read at other depths."""
        return Grids(self.d, self.h, self.e, self.m, self.t, z, self.asked, self.hidden)

    def with_tokens(self, t: Grid) -> "Grids":
        """The same grids with other tokens."""
        return Grids(self.d, self.h, self.e, self.m, t, self.z, self.asked, self.hidden)

    def placed(self, t: Grid, z: Depths, asked: Grid | None) -> "Grids":
        """The same widths beside the tokens and depths of a call."""
        return Grids(self.d, self.h, self.e, self.m, t, z, asked, self.hidden)

    @property
    def sites(self) -> "tuple[WidthSite, ...]":
        """What says which nodes each width has, and whether its weights are one: plain numbers, for keys."""
        d = ("d", self.d.key, self.d.is_unit)
        h = ("h", self.h.key, self.h.is_unit)
        e = ("e", self.e.key, self.e.is_unit)
        m = ("m", self.m.key, self.m.is_unit)
        return d, h, e, m

    def by_hidden_width(self) -> "tuple[Grids, ...]":
        """Grids of one hidden width each, read at the depths that have it; all depths, where m does not vary."""
        if self.hidden is None or self.z is None:
            return (self,)
        lengths = self.z.lengths or (1.0,) * len(self.z.nodes)
        found: dict[int, tuple[Grid, list[int]]] = {}
        for place, z in enumerate(self.z.nodes):
            grid = [own for start, own in self.hidden if start <= z][-1]
            found.setdefault(grid.count, (grid, []))[1].append(place)
        begins = self.z.begins
        made = []
        for grid, places in found.values():
            nodes = tuple(self.z.nodes[i] for i in places)
            own = None if begins is None else tuple(begins[i] for i in places)
            depths = Depths(nodes, tuple(lengths[i] for i in places), own)
            made.append(replace(self, m=grid, hidden=None, z=depths))
        return tuple(made)


def _none_for(letter: Letter) -> GridError:
    return GridError(f"there is no grid for {letter} here", got="none", remedy="Run the model on a batch.")
