"""One size of a model and what it costs."""

from dataclasses import dataclass

from continua.axes import Discretisation, at
from continua.flow import Fixed


@dataclass(frozen=True)
class Point:
    """One size: the held-out loss, and seconds, FLOPs and bytes of one sample going forward.

    ``sizes`` are numbers by letter; those of steps that are joined are the lengths of the steps. ``bytes`` are those of
    the weights that this size reads and the most that are alive beside them during a pass; they and ``seconds`` are
    None where they were not measured.

    ``trained`` is False for sizes that training never drew, None where that is not known. ``alpha`` = Σ min(p, q) is
    the share of tokens that the native size would keep if this one wrote ahead of it, None where nothing is written.
    """

    sizes: dict[str, int | tuple[int, ...]]
    loss: float
    seconds: float | None
    flops: int
    bytes: int | None
    trained: bool | None = None
    alpha: float | None = None

    @property
    def name(self) -> str:
        """``d=64 h=2 z=3``, or ``z=2+1`` where steps are joined."""
        return " ".join(f"{letter}={typed_size(n)}" for letter, n in self.sizes.items())

    @property
    def steps(self) -> int:
        """How many steps depth takes."""
        z = self.sizes.get("z", 1)
        return z if isinstance(z, int) else len(z)

    @property
    def at(self) -> Discretisation:
        """The discretisation to ask a model for."""
        return at(**{k: n if isinstance(n, int) else Fixed(len(n), lengths=n) for k, n in self.sizes.items()})


def typed_size(n: int | tuple[int, ...]) -> str:
    """``3``, or ``2+1`` for lengths of steps."""
    return str(n) if isinstance(n, int) else "+".join(map(str, n))
