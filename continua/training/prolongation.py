"""What nodes start with that are new when training goes on to a finer grid."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from continua import constants
from continua.axes import ALIASES, Axis, Discretisation
from continua.config import register
from continua.errors import ConfigError
from continua.fields import Expansion, Nodal, Role, Use, roles
from continua.models.structure import Structure
from continua.operators.calibration import Calibrated, Calibration
from continua.operators.correction import corrections_of
from continua.optim import Blocks
from continua.settings import NonNegative
from continua.tasks import generator_for
from continua.training.distributed import ShardedTensor, spread
from continua.training.modes import Modes
from continua.typing import Letter, Tensor


@runtime_checkable
class Remembering(Protocol):
    """What has a memory of parameters, as ``Optimisers`` have."""

    def beside(self, parameter: nn.Parameter) -> list[Tensor]:
        """What is remembered of a parameter, one number for each of its own."""
        ...


@dataclass(frozen=True)
class Switch:
    """From the sizes of one stage to those of the next: a flow, and the optimisers of its weights."""

    flow: Any
    optimisers: Remembering
    coarse: Sequence[Discretisation]
    fine: Sequence[Discretisation]
    seed: int


@runtime_checkable
class Prolongation(Protocol):
    """Changes weights, and what optimisers remember of them, when a stage begins; frozen and registered."""

    def prolong(self, switch: Switch) -> None:
        """Give new nodes their start."""
        ...


@register
@dataclass(frozen=True)
class AsMade:
    """New nodes start as the model was made: at random. Spectral and spline weights are functions, and need no more."""

    def prolong(self, switch: Switch) -> None:
        """Nothing to do."""


@register
@dataclass(frozen=True)
class Copied:
    """New nodes along ``letters`` start as copies of the coarse node before them: on widths the answer stays.

    A calibration of the coarse size is folded into the weights it belongs to. Copies learn the same for ever, so the
    columns that read a width are moved apart by ``noise`` times their spread, the coarse one and its copy to opposite
    sides: their sum stays. What optimisers remember is copied too.
    """

    letters: str = "dehmz"
    noise: NonNegative = 0.3

    @torch.no_grad()
    def prolong(self, switch: Switch) -> None:
        """Fold, then copy letter by letter."""
        with gathered(switch) as own:
            self._prolong(own)

    def _prolong(self, switch: Switch) -> None:
        flow = switch.flow
        before, after = ([flow.structure(size) for size in sizes] for sizes in (switch.coarse, switch.fine))
        for module in flow.modules():
            if isinstance(module, Calibrated) and module.calibration is not None:
                self._fold(module, module.calibration, before[-1], after[-1])
        declared = roles(flow)
        generator = generator_for("prolongation", switch.seed, after[-1].grids.d.count)
        later = {field for own in corrections_of(flow) for field in own.modules()}  # of sizes that are no stage
        for prefix, field in flow.named_modules():
            if isinstance(field, Expansion) and field not in later:
                role = declared[f"{prefix}.coefficients"]
                for letter in field.letters:
                    pairs = _new(field, letter, before, after)
                    if pairs is not None and ALIASES.get(letter, letter) in self.letters:
                        self._along(field, letter, role, pairs, switch.optimisers, generator)

    def _fold(self, module: Any, own: Calibration, before: Structure, after: Structure) -> None:
        weights = {name: getattr(module, name) for name in own.targets}
        for k in "dhzme":
            was, becomes = (_size(own, k, structure) for structure in (before, after))
            if k in self.letters and was != becomes:
                own.absorb(weights, k, was, becomes)

    def _along(
        self,
        field: Expansion,
        letter: Letter,
        role: Role,
        pairs: tuple[Tensor, Tensor],
        optimisers: Remembering,
        generator: torch.Generator,
    ) -> None:
        """Copy one weight along one letter, with what is remembered of it."""
        new, source = pairs
        place = field.letters.index(letter)
        for tensor in (field.coefficients, *optimisers.beside(field.coefficients)):
            tensor.index_copy_(place, new, tensor.index_select(place, source))
        if self.noise and role.use is Use.KERNEL and letter in role.inputs:
            values = field.coefficients.index_select(place, new)
            apart = torch.randn(values.shape, generator=generator).to(values) * (self.noise * values.std())
            field.coefficients.index_add_(place, new, -apart)
            field.coefficients.index_add_(place, source, apart)


@dataclass(frozen=True)
class _Gathered:
    """What optimisers remember of sharded parameters, whole, by the whole parameter that stands in for each."""

    held: dict[nn.Parameter, list[Tensor]]

    def beside(self, parameter: nn.Parameter) -> list[Tensor]:
        return self.held.get(parameter, [])


@contextmanager
def gathered(switch: Switch) -> Iterator[Switch]:
    """A switch whose sharded weights are whole on every process, with what is remembered of them; each process changes
    them alike, and takes its parts of them back."""
    places = [
        (module, name, parameter)
        for module in switch.flow.modules()
        for name, parameter in module._parameters.items()
        if isinstance(parameter, ShardedTensor)
    ]
    if not places:
        yield switch
        return
    whole: dict[Any, nn.Parameter] = {}
    held: dict[nn.Parameter, list[Tensor]] = {}
    parts: list[tuple[Any, Tensor]] = []
    parameter: Any  # a parameter and a sharded tensor at once
    for module, name, parameter in places:
        if parameter not in whole:
            whole[parameter] = nn.Parameter(parameter.full_tensor().clone())
            beside: list[Any] = switch.optimisers.beside(parameter)
            values = [one.full_tensor().clone() if isinstance(one, ShardedTensor) else one for one in beside]
            held[whole[parameter]] = values
            parts += [(parameter, whole[parameter]), *zip(beside, values, strict=True)]
        module._parameters[name] = whole[parameter]
    try:
        yield replace(switch, optimisers=_Gathered(held))
    finally:
        for module, name, parameter in places:
            module._parameters[name] = parameter
    for part, made in parts:
        if isinstance(part, ShardedTensor):
            laid: Any = spread({"": made.detach()}, {"": part})[""]  # type: ignore[dict-item]
            part.to_local().copy_(laid.to_local())  # type: ignore[attr-defined]


def _new(
    field: Expansion, letter: Letter, before: Sequence[Structure], after: Sequence[Structure]
) -> tuple[Tensor, Tensor] | None:
    """The stored nodes along a letter that are new, and the coarse one before each; None: there is none."""
    known = _all_read(field, letter, before)
    read = _all_read(field, letter, after)
    if known is None or read is None or read <= known:
        return None
    new = sorted(read - known)
    source = [max((one for one in known if one <= node), default=min(known)) for node in new]
    device = field.coefficients.device
    return torch.tensor(new, device=device), torch.tensor(source, device=device)


def nodes_read(field: Expansion, letter: Letter, structure: Structure) -> tuple[int, ...] | None:
    """The stored nodes along a letter that a size reads; None where values are made of several of them."""
    basis = field.bases[letter]
    if letter == "n" or not isinstance(basis, Nodal):
        return None
    if letter == "z":
        return _rows(basis, field.axes[letter], tuple(z for z, _ in structure.steps or ()))
    return _rows(basis, field.axes[letter], tuple(structure.grids[letter].nodes.double().flatten().tolist()))


@constants.bounded(1024)
def _rows(basis: Nodal, axis: Axis, nodes: tuple[float, ...]) -> tuple[int, ...] | None:
    """The stored nodes that some nodes of an axis read: many weights share both."""
    rows = basis.rows(axis, torch.tensor(nodes, dtype=torch.float64)[:, None])
    return None if rows is None else tuple(sorted(set(rows.flatten().tolist())))


def _size(own: Calibration, k: Letter, structure: Structure) -> float:
    """What a calibration multiplies its gains with, the mean over depths for z."""
    if k == "z":
        lengths = structure.behind.lengths or (1.0,)
        return float(torch.tensor(lengths).log2().mean())
    found = own.sizes(structure.grids)[k]
    return 0.0 if found is None else found


def blocks_of(model: Any, sizes: Sequence[Discretisation], modes: Modes) -> Blocks:
    """The part of each stored weight that some sizes read, by its name: every k-th of some nodes, or its modes.

    The rest has no gradient: a matrix optimiser that looks at the part alone takes the same step for less.
    """
    found: Blocks = {}
    for flow in model.flows:
        structures = [flow.structure(size) for size in sizes]
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for field in flow.modules():
            if isinstance(field, Expansion):
                block = tuple(_slice(field, letter, structures, modes) for letter in field.letters)
                if any(part != slice(None) for part in block):
                    found[names[id(field.coefficients)]] = block
    return found


def _slice(field: Expansion, letter: Letter, structures: Sequence[Structure], modes: Modes) -> slice:
    count = modes.of(letter)
    if count is not None:
        return slice(count)
    read = _all_read(field, letter, structures)
    if read is None:
        return slice(None)
    nodes = sorted(read)
    steps = {b - a for a, b in itertools.pairwise(nodes)} or {1}
    if len(steps) > 1 or len(nodes) == field.bases[letter].size:
        return slice(None)
    return slice(nodes[0], nodes[-1] + 1, steps.pop())


def refuse_unnested(flow: Any, coarse: Sequence[Discretisation], fine: Sequence[Discretisation]) -> None:
    """Nodes of a stage must be nodes of the next: what was trained would be lost otherwise."""
    coarse_read, fine_read = ([flow.structure(size) for size in sizes] for sizes in (coarse, fine))
    for field in flow.modules():
        if not isinstance(field, Expansion):
            continue
        for letter in field.letters:
            before, after = (_all_read(field, letter, stage) for stage in (coarse_read, fine_read))
            if before is not None and after is not None and not before <= after:
                remedy = "Grow an elastic model, ct.elastic(model), by sizes whose nodes nest, such as halves."
                got = f"{len(before - after)} of {len(before)} nodes along {letter} lost"
                raise ConfigError("a stage keeps the nodes of the one before", got=got, remedy=remedy)


def _all_read(field: Expansion, letter: Letter, structures: Sequence[Structure]) -> set[int] | None:
    """The stored nodes that some sizes read together."""
    reads = [nodes_read(field, letter, structure) for structure in structures]
    found = [set(read) for read in reads if read is not None]
    return set().union(*found) if len(found) == len(reads) else None
