"""Initialisations: how wide the weights start. A scheme says it for one kernel, ``initialise`` for a whole model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from continua.axes import Grid, mass_of
from continua.config import arguments, register
from continua.errors import ConfigError
from continua.fields import Expansion, Neural, Separable
from continua.flow import depths
from continua.models.embed import Observations, rows
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.factored import Narrowed, Widened
from continua.models.patches import Patches
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import depth_grid

ONES, ZEROS = ("scale",), ("shift", "bias", "density", "bq", "bk", "bv", "bo", "b1", "b2")


@dataclass(frozen=True)
class Role:
    """A kernel as a scheme sees it.

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

    def kernel(self, role: Role) -> float:
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

    def kernel(self, role: Role) -> float:
        """gain · √(2/(fan_in + fan_out))."""
        return self.gain * role.gain * (2.0 / (role.fan_in + role.fan_out)) ** 0.5

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

    def kernel(self, role: Role) -> float:
        """std, smaller where branches add up."""
        return self.std * (role.branches**-0.5 if role.is_output else 1.0)

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

    def kernel(self, role: Role) -> float:
        """gain/√fan_in."""
        return self.gain * role.gain * role.fan_in**-0.5

    def table(self, own: float) -> float:
        """A look-up has no fan: as it was made."""
        return own


@torch.no_grad()
def initialise(
    model: Transformer | EncoderDecoder, scheme: Scheme, generator: torch.Generator
) -> Transformer | EncoderDecoder:
    """Draw every weight of ``model`` anew, in place, and return it.

    Kernels are told by their letters: ``…c`` reads the state, ``d…`` writes it (a branch's output). Values on the
    native grid get the standard deviation the scheme names, whatever the basis. Every field is drawn in the order of
    the model's modules, so equal generators give equal models.

    >>> from continua.models import zoo
    >>> model = zoo.gpt2(vocab=64, d=32, heads=2, depth=2, context=8)
    >>> _ = initialise(model, GPT2Init(), torch.Generator().manual_seed(0))
    >>> round(model.embed.table.coefficients.std().item(), 2)
    0.02
    """
    if isinstance(model, EncoderDecoder):
        initialise(model.encoder, scheme, generator)
        initialise(model.decoder, scheme, generator)
        return model
    branches = sum(model.block.kinds) * model.native.z.steps
    span = (model.axes.z.start, model.axes.z.end)
    where = depths(model.block.kinds, span, model.native.z.solver, model.native.z)
    grids: dict[str, Grid] = {**model.native.grids(model.axes), "z": depth_grid(where[0])}
    _refuse_networks(model)
    for owner in model.modules():
        if isinstance(owner, Expansion):
            continue
        for name, field in owner.named_children():
            if isinstance(field, Expansion):
                std, mean = _start(owner, name, field, scheme, branches)
                field.reset(0.0 if std == 0 else std / _gain(field, grids), mean, generator)
        for name, parameter in owner.named_parameters(recurse=False):
            if name == "bias":
                parameter.zero_()
    return model


def _refuse_networks(model: nn.Module) -> None:
    """Refuse before anything is drawn: nothing half-initialised."""
    for name, module in model.named_modules():
        if isinstance(module, Neural | Separable):
            got, remedy = f"{type(module).__name__} at {name}", "Use ByBasis weights, or keep the network's own start."
            raise ConfigError("initialise draws values and coefficients", got=got, remedy=remedy)


def _start(owner: nn.Module, name: str, field: Expansion, scheme: Scheme, branches: int) -> tuple[float, float]:
    """(std, mean) of one field's values."""
    if name in ONES:
        return 0.0, 1.0
    if name in ZEROS:
        return 0.0, 0.0
    inputs, own = _inputs(owner, field), arguments(field)["std"]
    if not inputs:
        return scheme.table(own), 0.0
    outputs = [letter for letter in field.letters if letter not in (*inputs, "z")]
    is_output = "c" not in field.letters and "n" not in field.letters
    fan_in, fan_out = _fan(field, inputs), _fan(field, outputs)
    return scheme.kernel(Role(fan_in, fan_out, own * fan_in**0.5, is_output, branches)), 0.0


def _inputs(owner: nn.Module, field: Expansion) -> tuple[str, ...]:
    """The letters that a kernel integrates over; none for a table that is only looked up."""
    if isinstance(owner, Observations | Patches | Widened):
        return ("n",) if "n" in field.letters and mass_of(field.axes["n"]) > 1 else ()
    if isinstance(owner, Readout | Narrowed):
        return ("d",)
    if "c" in field.letters:
        return ("c",)
    widths = tuple(letter for letter in field.letters if letter not in "zn")
    return widths[1:] if widths[0] == "d" else ()


def _fan(field: Expansion, letters: Any) -> float:
    fan = 1.0
    for letter in letters:
        fan *= mass_of(field.axes[letter]) ** 2 / field.bases[letter].size
    return fan


def _gain(field: Expansion, grids: Mapping[str, Grid]) -> float:
    """How much wider than ``reset`` says the values are on these grids: it averages over axes, not over their nodes."""
    square = 1.0
    for letter, basis in field.bases.items():
        grid = rows(basis.size) if letter == "n" else grids[letter]
        if grid.key is not None and grid.key == basis.native_key(field.axes[letter]):
            continue
        # mean over the nodes of Σ_k B_k(x)², against the spread that reset divides by
        square *= field.matrix(letter, grid).double().square().sum(-1).mean().item() / basis.spread
    return square**0.5
