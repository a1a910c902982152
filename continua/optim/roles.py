"""What each parameter is for: optimisers are assigned by role."""

from collections.abc import Iterator
from enum import StrEnum

from torch import nn

from continua.fields import Expansion, Generated, Neural, Separable
from continua.operators import Attention, Encoding, Position


class Role(StrEnum):
    """Kernels of integrals; tables of tokens and positions; gains, shifts and biases; ρ over heads; hypernetworks."""

    KERNEL = "kernel"
    TABLE = "table"
    GAIN = "gain"
    DENSITY = "density"
    NETWORK = "network"


def roles(model: nn.Module) -> dict[str, Role]:
    """The role of every parameter, by its name."""
    found: dict[str, Role] = {}
    for name, module in model.named_modules():
        for own, role in _own(module):
            found.setdefault(f"{name}.{own}" if name else own, role)  # what a parent says goes before
    return {name: found.get(name, Role.GAIN) for name, _ in model.named_parameters()}


def _own(module: nn.Module) -> Iterator[tuple[str, Role]]:
    if isinstance(module, Expansion):
        yield "coefficients", _by_letters(module)
    elif isinstance(module, Neural | Separable | Generated):
        for name, _ in module.named_parameters():
            yield name, Role.NETWORK
    elif isinstance(module, Position | Encoding):
        for name, _ in module.named_parameters():
            yield name, Role.TABLE
    elif isinstance(module, Attention) and module.density is not None and isinstance(module.density, Expansion):
        yield "density.coefficients", Role.DENSITY


def _by_letters(field: Expansion) -> Role:
    """One width is a gain or a bias, two are a kernel; (h, e) alone is a bias written head by head."""
    widths = {letter for letter in field.letters if letter != "z"}
    if "n" in widths:
        return Role.TABLE if field.bases["n"].size > 1 else Role.GAIN  # a table of one row is a vector
    return Role.KERNEL if len(widths) > 1 and not widths <= {"h", "e"} else Role.GAIN
