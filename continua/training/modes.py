"""Smooth fields that grow their modes: a stage trains the first functions of each basis, the others are zero."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from continua.axes import ALIASES
from continua.config import register
from continua.errors import ConfigError
from continua.fields import Expansion, Truncatable, Use, roles
from continua.optim import Block
from continua.optim.parameters import refuse_shards
from continua.settings import Size
from continua.typing import Letter, Tensor


@register
@dataclass(frozen=True)
class Modes:
    """How many functions of its basis a field has along each letter; None is all of them.

    For spectral bases these are the lowest waves or polynomials, for ``NestedSpline`` polynomials and the first knots.
    The parameters have their whole size from the start, with zeros behind: more modes are the same function, so a
    switch leaves every answer as it was, and optimisers, checkpoints and processes see tensors of one shape.
    """

    d: Size | None = None
    h: Size | None = None
    e: Size | None = None
    m: Size | None = None
    z: Size | None = None

    def of(self, letter: Letter) -> int | None:
        """How many along a letter of a field: its inputs along d are functions of d too."""
        name = ALIASES.get(letter, letter)
        found: int | None = getattr(self, name) if name in NAMES else None
        return found

    def kept(self, field: Expansion) -> Block:
        """The part of the coefficients of a field that is not zero."""
        return tuple(slice(self.of(letter)) for letter in field.letters)


NAMES = tuple(each.name for each in fields(Modes))
ALL = Modes()
DRAWN = (Use.KERNEL, Use.TABLE, Use.VECTOR)  # what starts at random, unlike gains that start at one


def refuse_modes(model: Any, stages: Sequence[Modes]) -> None:
    """Modes grow from stage to stage, and there are bases in order that have them."""
    for name in NAMES:
        counts = [getattr(stage, name) for stage in (*stages, ALL)]
        named = [count for count in counts if count is not None]
        if not named:
            continue
        first_open = counts.index(None)
        if named != sorted(named) or len(named) > first_open:
            remedy = "Order the stages from few modes to many; after a stage with all of them none has fewer."
            raise ConfigError(f"modes along {name} shrink while training grows", got=counts[:-1], remedy=remedy)
        _refuse_bases(model, name, named[-1])


def _refuse_bases(model: Any, name: str, most: int) -> None:
    bases = [
        (field, letter)
        for flow in model.flows
        for field in flow.modules()
        if isinstance(field, Expansion)
        for letter in field.letters
        if ALIASES.get(letter, letter) == name
    ]
    if not bases:
        raise ConfigError(f"no weight is a function of {name}", got=f"Modes({name}=…)", remedy="Leave it out.")
    for field, letter in bases:
        basis = field.bases[letter]
        if not isinstance(basis, Truncatable):
            remedy = f"Use Legendre, Cosine, Fourier or NestedSpline along {name}; nodes grow by sizes, at({name}=…)."
            raise ConfigError(f"weights along {name} have no modes in order", got=basis, remedy=remedy)
        if most > basis.size:
            remedy = f"Name {basis.size} at most, or make the model with more."
            raise ConfigError(f"weights along {name} have {basis.size} modes", got=most, remedy=remedy)


def leave_modes(flow: Any, modes: Modes) -> None:
    """Set the modes beyond to zero, where they are not; what was drawn at random keeps its mean square.

    So a coarse model starts as wide as one that was made with so few modes.
    """
    declared = roles(flow)
    for prefix, field in flow.named_modules():
        if isinstance(field, Expansion):
            _leave(field, modes, declared[f"{prefix}.coefficients"].use in DRAWN)


@torch.no_grad()
def _leave(field: Expansion, modes: Modes, is_drawn: bool) -> None:
    values = field.coefficients.detach()
    kept = values[modes.kept(field)]
    if kept.numel() == values.numel():
        return
    refuse_shards(field.coefficients, "Modes", "grow by sizes")
    before = values.clone()
    clear(values, field, modes)
    own = kept.square().sum()
    if is_drawn and own > 0 and not torch.equal(values, before):
        kept.mul_((before.square().sum() / own).sqrt())


def clear(values: Tensor, field: Expansion, modes: Modes) -> None:
    """Set to zero, in numbers that are laid out as the coefficients are, what lies beyond the modes."""
    for position, letter in enumerate(field.letters):
        count = modes.of(letter)
        if count is not None:
            values.narrow(position, count, values.shape[position] - count).zero_()


def clear_gradients(flow: Any, modes: Modes) -> None:
    """Forget what modes beyond would learn."""
    for field in flow.modules():
        if isinstance(field, Expansion) and field.coefficients.grad is not None:
            clear(field.coefficients.grad, field, modes)
