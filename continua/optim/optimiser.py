"""Optimisers as frozen descriptions, assigned to parameters by role in one call."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from continua.config import register
from continua.errors import CheckpointError
from continua.fields import Role, Use
from continua.optim.parameters import Blocks, ParameterInfo, PerParameter, parameter_info
from continua.settings import NonNegative, PartialShare
from continua.typing import Tensor


@runtime_checkable
class Optimiser(Protocol):
    """A description that makes an optimiser for some parameters; see ``MatrixOptimiser`` for those of matrices."""

    @property
    def lr(self) -> float:
        """The learning rate at the top of the schedule."""
        ...

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """Return the optimiser; ``info`` says of each parameter how it is a matrix, and its measure."""
        ...


@runtime_checkable
class MatrixOptimiser(Optimiser, Protocol):
    """An optimiser of matrices, which names another one for what is none."""

    @property
    def others(self) -> Optimiser:
        """The optimiser of what is no matrix."""
        ...


def others(chosen: Optimiser) -> Optimiser:
    """Who trains what is no matrix where ``chosen`` trains the rest: itself, unless it is for matrices only."""
    return chosen.others if isinstance(chosen, MatrixOptimiser) else chosen


@register
@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    ``fused`` updates a parameter in one pass over its numbers, which takes less time where there are many, and rounds
    otherwise.
    """

    lr: NonNegative = 1e-3
    betas: tuple[PartialShare, PartialShare] = (0.9, 0.95)
    decay: NonNegative = 0.1
    eps: NonNegative = 1e-8
    fused: bool = False

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """Torch's own, all parameters in one group."""
        way: dict[str, Any] = {"fused": True} if self.fused else {"foreach": True}
        return torch.optim.AdamW(
            list(parameters), lr=self.lr, betas=self.betas, weight_decay=self.decay, eps=self.eps, **way
        )


@register
@dataclass(frozen=True)
class ByRole:
    """One optimiser for each role; a role left out is trained as ``rest`` is, gains without weight decay.

    ``gain`` trains all vectors: gains, shifts, tables of one row, and parameters of foreign layers, which have no role.
    What is no matrix is never given to an optimiser of matrices, but to its ``others``: ``ByRole(Muon())`` trains
    kernels and tables by Muon and gains by AdamW.

    >>> from continua.models import zoo
    >>> chosen = ByRole(AdamW(3e-4), table=AdamW(1e-3))
    >>> len(chosen.make(zoo.gpt2(vocab=11, d=8, heads=2, depth=1, context=4)).parts)
    3
    """

    rest: Optimiser = AdamW()
    kernel: Optimiser | None = None
    table: Optimiser | None = None
    gain: Optimiser | None = None
    density: Optimiser | None = None
    network: Optimiser | None = None

    def of(self, role: Role | None) -> Optimiser:
        """The optimiser of a role, or of parameters that have none."""
        named = {
            Use.KERNEL: self.kernel,
            Use.TABLE: self.table,
            Use.NETWORK: self.network,
            Use.DENSITY: self.density,
        }
        use = Use.VECTOR if role is None else role.use
        own = named.get(use, self.gain)
        if own is not None:
            return own
        if use in (Use.KERNEL, Use.TABLE, Use.NETWORK):
            return self.rest
        rest = others(self.rest)
        return replace(rest, decay=0.0) if isinstance(rest, AdamW) else rest

    def make(self, model: nn.Module) -> "Optimisers":
        """Sort the parameters of a model and make an optimiser for each description."""
        parameters = dict(model.named_parameters())
        shares: dict[Optimiser, list[ParameterInfo]] = {}
        for name, own in parameter_info(model).items():
            if parameters[name].requires_grad:
                chosen = self.of(own.role)
                shares.setdefault(others(chosen) if own.unfolding is None else chosen, []).append(own)
        return Optimisers([_part(chosen, info, parameters) for chosen, info in shares.items()])


@dataclass(frozen=True)
class Part:
    """One optimiser and the names of its parameters."""

    chosen: Optimiser
    names: list[str]
    made: torch.optim.Optimizer


def _part(chosen: Optimiser, info: list[ParameterInfo], parameters: Mapping[str, nn.Parameter]) -> Part:
    names = [own.name for own in info]
    return Part(chosen, names, chosen.make([parameters[name] for name in names], info))


@dataclass(frozen=True)
class Optimisers:
    """Several optimisers that step together."""

    parts: list[Part]

    def step(self, factor: float) -> None:
        """One step of each at ``factor`` times its learning rate."""
        for part in self.parts:
            for group in part.made.param_groups:
                group["lr"] = part.chosen.lr * factor
            part.made.step()

    def focus(self, blocks: Blocks) -> None:
        """Train parts of some parameters alone; optimisers that go number by number need not know."""
        for part in self.parts:
            if isinstance(part.made, PerParameter):
                part.made.focus(blocks)

    def beside(self, parameter: nn.Parameter) -> list[Tensor]:
        """What is remembered of a parameter, one number for each of its own."""
        states = [part.made.state[parameter] for part in self.parts if parameter in part.made.state]
        held = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return [value for value in held if value.shape == parameter.shape]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.made.zero_grad(set_to_none=True)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name and everything else as plain data: no pickle is needed to keep an optimiser."""
        tensors: dict[str, Tensor] = {}
        plain: dict[str, Any] = {}
        for part in self.parts:
            held = part.made.state_dict()["state"]
            for i, name in enumerate(part.names):
                for key, value in held.get(i, {}).items():
                    _pack(f"{name}/{key}", value, tensors, plain)
        return tensors, plain

    def load(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Set what ``state`` returned."""
        known = set(tensors) | set(plain)
        for part in self.parts:
            described = part.made.state_dict()
            described["state"] = {}
            for i, name in enumerate(part.names):
                own = {key.split("/")[1] for key in known if key.startswith(f"{name}/")}
                if own:
                    described["state"][i] = {key: _unpack(f"{name}/{key}", tensors, plain) for key in sorted(own)}
            part.made.load_state_dict(described)


def _pack(name: str, value: Any, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    if isinstance(value, Tensor):
        tensors[name] = value.detach()
    elif isinstance(value, list | tuple):
        plain[name] = {"length": len(value), "kind": type(value).__name__}
        for i, item in enumerate(value):
            _pack(f"{name}/{i}", item, tensors, plain)
    else:
        plain[name] = value


def _unpack(name: str, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> Any:
    if name in tensors:
        return tensors[name].clone()
    if name not in plain:
        raise CheckpointError("the optimiser's state is incomplete", got=f"no {name}", remedy="Resume an older one.")
    value = plain[name]
    if isinstance(value, dict) and "length" in value:
        items = [_unpack(f"{name}/{i}", tensors, plain) for i in range(value["length"])]
        return tuple(items) if value["kind"] == "tuple" else items
    return value


def clip(parameters: Iterable[nn.Parameter], limit: float | None) -> float:
    """Bound the norm of the whole gradient; return what it was."""
    norm = nn.utils.clip_grad_norm_(parameters, float("inf") if limit is None else limit)
    return float(norm)
