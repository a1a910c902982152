"""What a parameter is for, said when it is made: initialisations, optimisers and calibrations read it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

from torch import nn

from continua.config import register
from continua.errors import ConfigError


class Use(StrEnum):
    """What the numbers of a parameter do."""

    KERNEL = "kernel"  # K(out, in), integrated over its inputs
    TABLE = "table"  # counted rows beside a width: tokens, positions, memory slots, modes, the classes of a head
    GAIN = "gain"  # multiplies; one leaves everything as it is
    SHIFT = "shift"  # is added; zero leaves everything as it is
    VECTOR = "vector"  # one function along a width that is neither: a class token, a table of one row
    DENSITY = "density"  # logarithm of a measure over heads
    NETWORK = "network"  # a weight of a network that computes other weights


@register
@dataclass(frozen=True)
class Role:
    """The use of a parameter, the letters it is integrated over, and whether it writes what a branch adds to the state.

    Discrete case: ``nn.Linear(n, m).weight`` is ``Role(Use.KERNEL, inputs="c")`` and its bias ``Role(Use.SHIFT)``.
    """

    use: Use
    inputs: str = ""
    is_output: bool = False  # the last map of a residual branch

    def __post_init__(self) -> None:
        if self.use is Use.KERNEL and not self.inputs:
            remedy = 'Name the letters it is integrated over: Role(Use.KERNEL, inputs="c").'
            raise ConfigError("a kernel has inputs", got="none", remedy=remedy)

    def with_rows(self, rows: int) -> "Role":
        """The role of a table of so many rows: a single one is a vector, and nothing is summed over it."""
        if self.use is not Use.TABLE or rows > 1:
            return self
        return replace(self, use=Use.VECTOR, inputs=self.inputs.replace("n", ""))


TABLE = Role(Use.TABLE)  # rows that are looked up
LIFT = Role(Use.TABLE, inputs="n")  # Σ_n u_n B(n, d): some numbers become a function
HEAD = Role(Use.TABLE, inputs="d")  # ∫ R(n, d) x(d) dμ(d): a function becomes some numbers
GAIN = Role(Use.GAIN)
SHIFT = Role(Use.SHIFT)
VECTOR = Role(Use.VECTOR)
DENSITY = Role(Use.DENSITY)
NETWORK = Role(Use.NETWORK)


@runtime_checkable
class HasRoles(Protocol):
    """A module that declares what its parameters are for."""

    def parameter_roles(self) -> Mapping[str, Role | None]:
        """The role of each parameter of this module, by its name from here; modules below may speak for themselves."""
        ...


def roles(model: nn.Module) -> dict[str, Role]:
    """The role of every parameter that was made with one, by its name.

    Parameters of foreign layers (``nn.Linear`` in an embedding of one's own) are not listed: ``ByRole`` trains them as
    it trains gains, and ``initialise`` leaves them alone. A field that was made without a role is refused.

    >>> from continua.axes import Counting, Points
    >>> from continua.fields import Expansion, Nodal
    >>> roles(Expansion({"d": Points(3)}, {"d": Nodal(Counting(3))}, role=SHIFT))["coefficients"].use.value
    'shift'
    """
    declared: dict[str, Role | None] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, HasRoles):
            for name, role in module.parameter_roles().items():
                declared.setdefault(f"{prefix}.{name}" if prefix else name, role)
    return {name: given(name, declared[name]) for name, _ in model.named_parameters() if name in declared}


def given(name: str, role: Role | None) -> Role:
    """The role itself, or the refusal of a field that has none."""
    if role is None:
        remedy = 'Say it where the field is made: weights.field("zdc", role=Role(Use.KERNEL, inputs="c")).'
        raise ConfigError("a parameter of a model has a role", got=f"{name} without", remedy=remedy)
    return role
