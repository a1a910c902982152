"""Which equations are learned on meshes, and what a model reads at each node."""

from dataclasses import dataclass

import numpy as np

from continua.axes import Interval, Product
from continua.data.mesh import HELD, INSULATED, Mesh
from continua.data.simplices import Numbers
from continua.errors import ShapeError

SQUARE = Product((Interval(), Interval()))  # polygons lie in it
CUBE = Product((Interval(), Interval(), Interval()))  # solids lie in it
STRENGTH = 10.0  # of a source
NEAR = 0.04  # how far from a boundary its mark fades


@dataclass(frozen=True)
class Equation:
    """A linear equation of second order for u in a domain of the unit square or cube, with u = 0 where it is held.

    Source and answer have as many ``components``. A domain L times larger has L² times the answer.
    """

    name: str
    dimension: int
    components: int

    @property
    def axis(self) -> Product:
        """Where its domains lie."""
        return SQUARE if self.dimension == 2 else CUBE

    @property
    def channels(self) -> int:
        """What a model reads at a node: see ``features``."""
        return self.components + 4 + self.dimension


POISSON = Equation("poisson", 2, 1)
ELASTICITY = Equation("elasticity", 2, 2)
DIFFUSION = Equation("diffusion3d", 3, 1)
EQUATIONS = (POISSON, ELASTICITY, DIFFUSION)


def features(mesh: Mesh, source: Numbers) -> Numbers:
    """What a model reads at each node: the source [n] or [n, components], how near the held and the insulated boundary
    are, the distances to both, and the coordinates from −1 to 1.

    Nearness fades over ``NEAR`` and is no flag at boundary nodes: the integral of a flag would shrink with the mesh.
    """
    columns = source[:, None] if source.ndim == 1 else source
    if columns.ndim != 2 or len(columns) != len(mesh):
        remedy = "Give one value of f for each node."
        raise ShapeError(f"{len(mesh)} nodes have as many sources", got=list(source.shape), remedy=remedy)
    held = mesh.distances(HELD)[:, None]
    insulated = mesh.distances(INSULATED)[:, None]
    marks = [np.exp(-held / NEAR), np.exp(-insulated / NEAR), held / 0.1, insulated / 0.5]
    found: Numbers = np.concatenate([columns / STRENGTH, *marks, 2 * mesh.points - 1], 1)
    return found
