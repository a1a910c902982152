"""What an optimiser may know of a parameter besides its numbers: how it is a matrix, and against which measure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from continua.axes import grid_on, mass_of
from continua.errors import ConfigError
from continua.fields import Expansion, Nodal
from continua.optim.roles import Role, roles
from continua.typing import Tensor


@dataclass(frozen=True)
class Unfolding:
    """A tensor [leading…, rows…, columns…] as matrices [k, rows, columns], by flattening each of the three.

    The letters of a kernel say which is which: z leads, h and e together are one index (head by head), and of the two
    indices that are left the first is what comes out and the second what is integrated over: q(z; he; c), o(z; d; he),
    W1(z; m; c). Each coefficient in z is a matrix of its own.

    >>> Unfolding(leading=1, rows=2).matrices(torch.zeros(6, 2, 4, 8)).shape
    torch.Size([6, 8, 8])
    """

    leading: int
    rows: int

    def matrices(self, tensor: Tensor) -> Tensor:
        """The matrices; a view where the tensor is laid out in order."""
        middle = self.leading + self.rows
        count, rows = tensor.shape[: self.leading].numel(), tensor.shape[self.leading : middle].numel()
        return tensor.reshape(count, rows, tensor.shape[middle:].numel())


@dataclass(frozen=True)
class About:
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
        if self.unfolding is None:
            remedy = "Give it another optimiser, or let ByRole assign them: it knows rows from columns."
            raise ConfigError(
                "this optimiser is for matrices", got=f"{self.name or 'a parameter'} without", remedy=remedy
            )
        return self.unfolding.matrices(tensor)


def about(model: nn.Module) -> dict[str, About]:
    """What is known of every parameter of a model, by its name."""
    found = {name: About(name, role) for name, role in roles(model).items()}
    for name, parameter in model.named_parameters():
        if found[name].role is Role.NETWORK and parameter.dim() == 2:
            found[name] = replace(found[name], unfolding=Unfolding(0, 1))
    for prefix, module in model.named_modules():
        name = f"{prefix}.coefficients" if prefix else "coefficients"
        if isinstance(module, Expansion) and name in found:
            found[name] = _of_expansion(found[name], module)
    return found


def known(parameters: Sequence[nn.Parameter], given: Sequence[About]) -> list[About]:
    """What was given, or for bare parameters what their shape says: two dimensions are a matrix."""
    if given:
        return list(given)
    return [About(unfolding=Unfolding(0, 1) if p.dim() == 2 else None) for p in parameters]


def _of_expansion(own: About, field: Expansion) -> About:
    letters = "".join(field.letters)
    if own.role is Role.DENSITY:
        basis = field.bases["h"]
        nodal = isinstance(basis, Nodal) and letters.endswith("h")
        weights = grid_on(field.axes["h"], basis.rule).weights.tolist() if isinstance(basis, Nodal) and nodal else None
        return replace(own, measure=None if weights is None else tuple(weights))
    groups = re.findall("he|.", letters.removeprefix("z"))
    if own.role not in (Role.KERNEL, Role.TABLE) or len(groups) != 2:
        return own
    scale = 1.0
    for letter in letters.removeprefix("z"):
        basis = field.bases[letter]
        scale *= (mass_of(field.axes[letter]) * basis.spread / basis.size) ** 0.5
    return replace(own, unfolding=Unfolding(int(letters[0] == "z"), len(groups[0])), scale=scale)


class Each(torch.optim.Optimizer):
    """An optimiser that updates its parameters one by one, with what is known of each."""

    needs_matrices = True

    def __init__(self, parameters: Sequence[nn.Parameter], given: Sequence[About], lr: float) -> None:
        super().__init__(list(parameters), {"lr": lr})
        self.about = dict(zip(parameters, known(parameters, given), strict=True))
        for parameter, own in self.about.items():
            refuse_shards(parameter, type(self).__name__.strip("_"))
            if self.needs_matrices:
                own.matrices(parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, group["lr"])

    def update(self, p: nn.Parameter, gradient: Tensor, lr: float) -> None:
        """Change one parameter in place."""
        raise NotImplementedError


def refuse_shards(parameter: nn.Parameter, who: str) -> None:
    """A matrix that lies on several processes has no norm, rank or inverse on any of them."""
    if hasattr(parameter, "device_mesh"):
        remedy = "Train with sharded=False (DDP), or use AdamW for this role."
        raise ConfigError(f"{who} needs whole parameters", got="sharded ones (FSDP)", remedy=remedy)
