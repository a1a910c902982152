"""What an optimiser may know of a parameter besides its numbers: how it is a matrix, and against which measure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn

from continua.axes import grid_on, mass_of
from continua.errors import ConfigError
from continua.fields import Expansion, Nodal, Role, Use, roles
from continua.typing import Tensor

Block = tuple[slice, ...]  # a part of a tensor that is a view of it
Blocks = dict[str, Block]  # by the names of parameters


@dataclass(frozen=True)
class Unfolding:
    """A tensor [leading…, rows…, columns…] as matrices [k, rows, columns], by flattening each of the three.

    z leads, and the letters that a kernel is integrated over are its columns: q(z; he; c), o(z; d; he), W1(z; m; c).
    The rows of a table are its counted ones. Each coefficient in z is a matrix of its own.

    >>> Unfolding(leading=1, rows=2).matrices(torch.zeros(6, 2, 4, 8)).shape
    torch.Size([6, 8, 8])
    """

    leading: int
    rows: int

    def matrices(self, tensor: Tensor) -> Tensor:
        """The matrices; a view where the tensor is laid out in order."""
        middle = self.leading + self.rows
        count = tensor.shape[: self.leading].numel()
        rows = tensor.shape[self.leading : middle].numel()
        return tensor.reshape(count, rows, tensor.shape[middle:].numel())


@dataclass(frozen=True)
class ParameterInfo:
    """A parameter's name and role; its matrices, if it has some; the weights of h, if it is ρ.

    ``scale`` times a coefficient matrix has the norm of the integral operator it stands for: √(mass · ⟨B²⟩) over its
    two indices. It is one on counting axes, exact for orthonormal bases and equal weights, and near it elsewhere.
    """

    name: str = ""
    role: Role | None = None
    unfolding: Unfolding | None = None
    scale: float = 1.0
    measure: tuple[float, ...] | None = None

    def matrices(self, tensor: Tensor) -> Tensor:
        """The matrices of a parameter or of its gradient."""
        return self.required_unfolding.matrices(tensor)

    @property
    def required_unfolding(self) -> Unfolding:
        """How it is a matrix, for optimisers of matrices."""
        if self.unfolding is None:
            remedy = "Give it another optimiser, or let ByRole assign them: it knows rows from columns."
            raise ConfigError(
                "this optimiser is for matrices", got=f"{self.name or 'a parameter'} without", remedy=remedy
            )
        return self.unfolding

    def sizes(self, shape: torch.Size) -> tuple[int, int]:
        """Rows and columns of the matrices of a tensor of this shape."""
        unfolding = self.required_unfolding
        middle = unfolding.leading + unfolding.rows
        return shape[unfolding.leading : middle].numel(), shape[middle:].numel()


def parameter_info(model: nn.Module) -> dict[str, ParameterInfo]:
    """What is known of every parameter of a model, by its name."""
    declared = roles(model)
    found: dict[str, ParameterInfo] = {}
    for name, parameter in model.named_parameters():
        role = declared.get(name)
        is_layer = role is not None and role.use is Use.NETWORK and parameter.dim() == 2
        found[name] = ParameterInfo(name, role, Unfolding(0, 1) if is_layer else None)
    for prefix, module in model.named_modules():
        name = f"{prefix}.coefficients" if prefix else "coefficients"
        if isinstance(module, Expansion) and name in found:
            found[name] = _of_expansion(found[name], module)
    return found


def info_of(parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo]) -> dict[nn.Parameter, ParameterInfo]:
    """What was given of each, or for bare parameters what their shape says: two dimensions are a matrix."""
    if not info:
        info = [ParameterInfo(unfolding=Unfolding(0, 1) if p.dim() == 2 else None) for p in parameters]
    return dict(zip(parameters, info, strict=True))


def _of_expansion(own: ParameterInfo, field: Expansion) -> ParameterInfo:
    if own.role is None:
        return own
    if own.role.use is Use.DENSITY:
        return replace(own, measure=_weights_of_heads(field))
    letters = "".join(field.letters)
    unfolding = _unfolding(letters, own.role)
    if unfolding is None:
        return own
    scale = 1.0
    for letter in letters.removeprefix("z"):
        basis = field.bases[letter]
        scale *= (mass_of(field.axes[letter]) * basis.spread / basis.size) ** 0.5
    return replace(own, unfolding=unfolding, scale=scale)


def _unfolding(letters: str, role: Role) -> Unfolding | None:
    """How a kernel or a table is a matrix: by its inputs, or by its counted rows if one other index is left."""
    widths = letters.removeprefix("z")
    leading = len(letters) - len(widths)
    if role.use is Use.KERNEL:
        rows = widths.removesuffix(role.inputs)
        return Unfolding(leading, len(rows)) if rows and rows != widths else None
    if role.use is Use.TABLE:
        indices = re.findall("he|.", widths)  # h and e together are one index
        return Unfolding(leading, 1) if len(indices) == 2 else None
    return None


def _weights_of_heads(field: Expansion) -> tuple[float, ...] | None:
    """The measure of the nodes of h, where ρ is stored at nodes, along the last dimension."""
    basis = field.bases["h"]
    if not isinstance(basis, Nodal) or field.letters[-1] != "h":
        return None
    return tuple(grid_on(field.axes["h"], basis.rule).weights.tolist())


class PerParameter(torch.optim.Optimizer):
    """An optimiser that updates its parameters one by one, with what is known of each."""

    needs_matrices = True
    takes_shards = False  # whether it updates parameters that lie in parts on several processes

    def __init__(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo], lr: float) -> None:
        super().__init__(list(parameters), {"lr": lr})
        self.info = info_of(parameters, info)
        self.blocks: dict[nn.Parameter, Block] = {}
        for parameter, own in self.info.items():
            if not self.takes_shards:
                refuse_shards(parameter, type(self).__name__.strip("_"))
            if self.needs_matrices:
                _ = own.required_unfolding

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, group["lr"])

    def focus(self, blocks: Blocks) -> None:
        """Train parts of some parameters: the rest has no gradient, and an update that looks away costs less."""
        self.blocks = {p: blocks[own.name] for p, own in self.info.items() if own.name in blocks}

    def update(self, p: nn.Parameter, gradient: Tensor, lr: float) -> None:
        """Change one parameter in place."""
        raise NotImplementedError


def refuse_shards(parameter: nn.Parameter, who: str, instead: str = "use AdamW or Muon for this role") -> None:
    """A matrix that lies on several processes has no norm, rank or inverse on any of them."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    from torch.distributed.tensor import DTensor  # takes a second to import, and only processes have shards

    if isinstance(parameter, DTensor):
        remedy = f"Train with sharded=False (DDP), or {instead}."
        raise ConfigError(f"{who} needs whole parameters", got="sharded ones (FSDP)", remedy=remedy)
