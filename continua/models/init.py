"""Initialisations: how wide the weights start. A scheme says it for one kernel, ``initialise`` for a whole model."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from continua.axes import Depths, Grids, Sites, mass_of
from continua.config import register
from continua.errors import ConfigError
from continua.fields import Expansion, HasRoles, Neural, Separable, Use, roles
from continua.fields.role import given
from continua.flow import depths
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.transformer import Transformer
from continua.models.two_towers import TwoTowers
from continua.typing import Letter

STARTS = {Use.GAIN: 1.0, Use.SHIFT: 0.0, Use.DENSITY: 0.0}  # what leaves everything as it is; the rest is drawn


@dataclass(frozen=True)
class Fan:
    """A kernel as a scheme sees it: how much goes in and comes out.

    The fan of some letters is Π mass²/rank: the number of points on counting axes, and for smooth kernels the number
    that gives an integral over them the same variance. ``gain`` is what the model was made with over √rank/mass: one,
    or less for the queries of unscaled scores (T5). ``branches`` counts the residual branches of the whole depth.
    """

    fan_in: float
    fan_out: float
    gain: float
    is_output: bool  # the last map of a residual branch
    branches: int


@runtime_checkable
class Scheme(Protocol):
    """An initialisation: standard deviations of values on the native grid; biases start at zero, norms at one."""

    def kernel(self, fan: Fan) -> float:
        """Of an integral kernel."""
        ...

    def table(self, own: float) -> float:
        """Of a look-up table (tokens, types, positions, memory) that the model was made with ``own``."""
        ...


@register
@dataclass(frozen=True)
class Xavier:
    """Variance 2/(fan_in + fan_out) (Glorot and Bengio 2010). Discrete case: ``nn.init.xavier_normal_``."""

    gain: float = 1.0

    def kernel(self, fan: Fan) -> float:
        """gain · √(2/(fan_in + fan_out))."""
        return self.gain * fan.gain * (2.0 / (fan.fan_in + fan.fan_out)) ** 0.5

    def table(self, own: float) -> float:
        """A look-up has no fan: as it was made."""
        return own


@register
@dataclass(frozen=True)
class GPT2Init:
    """0.02, and 0.02/√(branches of the depth) for outputs of residual branches (Radford et al. 2019).

    Discrete case: a block of two branches and L layers has 2L, so its outputs start at 0.02/√(2L).
    """

    std: float = 0.02

    def kernel(self, fan: Fan) -> float:
        """std, smaller where branches add up."""
        return self.std * (fan.branches**-0.5 if fan.is_output else 1.0)

    def table(self, own: float) -> float:
        """As every other weight."""
        return self.std


@register
@dataclass(frozen=True)
class Scaled:
    """√rank/mass over the inputs, the library's default law: an integral keeps the variance of what it integrates.

    Discrete case: 1/√fan_in (LeCun et al. 1998).
    """

    gain: float = 1.0

    def kernel(self, fan: Fan) -> float:
        """gain/√fan_in."""
        return self.gain * fan.gain * fan.fan_in**-0.5

    def table(self, own: float) -> float:
        """A look-up has no fan: as it was made."""
        return own


@torch.no_grad()
def initialise(
    model: Transformer | EncoderDecoder | TwoTowers, scheme: Scheme, generator: torch.Generator
) -> Transformer | EncoderDecoder | TwoTowers:
    """Draw every weight of ``model`` anew, in place, and return it.

    The role of a field says which letters it is integrated over (none: a table that is looked up) and whether it writes
    what a branch adds. Values on the native grid get the standard deviation the scheme names, whatever the basis.
    Every field is drawn in the order of the model's modules, so equal generators give equal models.

    >>> from continua.models import zoo
    >>> model = zoo.gpt2(vocab=64, d=32, heads=2, depth=2, context=8)
    >>> _ = initialise(model, GPT2Init(), torch.Generator().manual_seed(0))
    >>> round(model.embed.table.coefficients.std().item(), 2)
    0.02
    """
    if not isinstance(model, Transformer):
        for flow in model.flows:
            initialise(flow, scheme, generator)
        return model
    branches = sum(model.block.kinds) * model.native.z.steps
    span = (model.axes.z.start, model.axes.z.end)
    where = depths(model.block.kinds, span, model.native.z.solver, model.native.z)
    grids = replace(model.native.grids(model.axes), z=Depths(where[0]))
    _refuse(model)
    for owner in model.modules():
        if isinstance(owner, Expansion):
            continue
        for name, field in owner.named_children():
            if isinstance(field, Expansion):
                std, mean = _start(name, field, scheme, branches)
                field.reset(0.0 if std == 0 else std / _gain(field, grids), mean, generator)
        if isinstance(owner, HasRoles):
            for name, role in owner.parameter_roles().items():
                use = given(name, role).use
                if use in STARTS:
                    owner.get_parameter(name).fill_(STARTS[use])
    return model


def _refuse(model: nn.Module) -> None:
    """Refuse networks, and fields without a role, before anything is drawn: nothing half-initialised."""
    roles(model)
    for name, module in model.named_modules():
        if isinstance(module, Neural | Separable):
            got = f"{type(module).__name__} at {name}"
            remedy = "Use ByBasis weights, or keep the network's own start."
            raise ConfigError("initialise draws values and coefficients", got=got, remedy=remedy)


def _start(name: str, field: Expansion, scheme: Scheme, branches: int) -> tuple[float, float]:
    """(std, mean) of one field's values."""
    role = given(name, field.role)
    if role.use in STARTS:
        return 0.0, STARTS[role.use]
    if not role.inputs:
        return scheme.table(field.std), 0.0
    outputs = [letter for letter in field.letters if letter not in f"z{role.inputs}"]
    fan_in = _fan(field, role.inputs)
    gain = field.std * fan_in**0.5
    return scheme.kernel(Fan(fan_in, _fan(field, outputs), gain, role.is_output, branches)), 0.0


def _fan(field: Expansion, letters: Iterable[Letter]) -> float:
    fan = 1.0
    for letter in letters:
        fan *= mass_of(field.axes[letter]) ** 2 / field.bases[letter].size
    return fan


def _gain(field: Expansion, grids: Grids) -> float:
    """How much wider than ``reset`` says the values are on these grids: it averages over axes, not over their nodes."""
    square = 1.0
    for letter, basis in field.bases.items():
        if letter == "n":  # counted rows are stored
            continue
        grid: Sites | None = grids.z if letter == "z" else grids[letter]
        if grid is None or field.is_stored_on(letter, grid):
            continue
        # mean over the nodes of Σ_k B_k(x)², against the spread that reset divides by
        square *= field.matrix(letter, grid).double().square().sum(-1).mean().item() / basis.spread
    return square**0.5
