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
        widths = [letter for letter in module.letters if letter != "z"]
        role = Role.TABLE if "n" in widths else Role.KERNEL if len(widths) > 1 and "n" not in widths else Role.GAIN
        yield "coefficients", _bias_of_heads(widths, role)
    elif isinstance(module, Neural | Separable | Generated):
        for name, _ in module.named_parameters():
            yield name, Role.NETWORK
    elif isinstance(module, Position | Encoding):
        for name, _ in module.named_parameters():
            yield name, Role.TABLE
    elif isinstance(module, Attention) and module.density is not None and isinstance(module.density, Expansion):
        yield "density.coefficients", Role.DENSITY


def _bias_of_heads(widths: list[str], role: Role) -> Role:
    """A field over (h, e) alone is a bias written head by head, not a kernel."""
    return Role.GAIN if set(widths) <= {"h", "e"} else role
