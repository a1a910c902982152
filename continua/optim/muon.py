"""Muon: momentum whose matrices are made orthogonal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from continua.config import register
from continua.optim.optimiser import AdamW, Optimiser
from continua.optim.parameters import ParameterInfo, PerParameter
from continua.optim.shards import cut_of, gather, local, rounds
from continua.settings import NonNegative, PartialShare, Whole
from continua.typing import Float, Tensor

TOGETHER = 2**18  # numbers: larger parameters are turned alone, since their arithmetic outweighs the calls
QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan et al. (2024): steepest at zero, singular values end in about [0.7, 1.2]


@register
@dataclass(frozen=True)
class Muon:
    """W ← (1 − lr·decay) W − lr √max(1, rows/columns) · O, with O ≈ (MMᵀ)^(−½) M of the Nesterov momentum M.

    Jordan et al. (2024). Every coefficient in z is a matrix of its own (see ``Unfolding``). On continuous axes O is
    divided by the scale of the basis, so that a step changes the integral operator by lr in norm, as it does on
    counting axes. ``half`` iterates in bfloat16. What is no matrix is trained by ``others``.
    Parameters that are sharded (FSDP2) are brought together one matrix at a time, each on a process of its own.

    Discrete case: on a plain matrix with ``half=True`` this is ``torch.optim.Muon``.
    """

    lr: NonNegative = 0.02
    momentum: PartialShare = 0.95
    decay: NonNegative = 0.01
    iterations: Whole = 5
    half: bool = False
    others: Optimiser = AdamW(decay=0.0)  # noqa: RUF009  (frozen)

    def make(self, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo] = ()) -> torch.optim.Optimizer:
        """The optimiser of these matrices."""
        return _Muon(self, parameters, info)


class Moving(NamedTuple):
    """A part of a parameter, and where its momentum leads, also as matrices."""

    parameter: nn.Parameter
    part: Tensor
    ahead: Tensor
    matrices: Tensor

    @property
    def is_tall(self) -> bool:
        """Whether there are more rows than columns."""
        return self.matrices.shape[1] > self.matrices.shape[2]


def _wide(own: Moving) -> Tensor:
    """The matrices, turned so that no row is shorter than a column."""
    return own.matrices.mT if own.is_tall else own.matrices


class _Muon(PerParameter):
    takes_shards = True

    def __init__(self, chosen: Muon, parameters: Sequence[nn.Parameter], info: Sequence[ParameterInfo]) -> None:
        super().__init__(parameters, info, chosen.lr)
        self.chosen = chosen
        found = {p: cut_of(p) for p in parameters}
        self.cuts = {p: cut for p, cut in found.items() if cut is not None}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; matrices in parts on several processes come together first."""
        for group in self.param_groups:
            here: list[nn.Parameter] = []
            split: list[nn.Parameter] = []
            for p in group["params"]:
                if p.grad is not None:
                    (split if self._is_split(p) else here).append(p)
            self._update_here(here, group["lr"])
            for members in rounds(split, self.cuts):
                self._update_split(members, group["lr"])

    def _update_here(self, members: Sequence[nn.Parameter], lr: float) -> None:
        """Matrices that are whole: small ones of one shape are turned together, as rows and columns of either kind."""
        alike: dict[object, list[Moving]] = {}
        for p in members:
            own = self._moving(p)
            if own is None:
                continue
            if own.ahead.numel() > TOGETHER:
                self._turn([own], lr)
                continue
            rows, columns = own.matrices.shape[1:]
            key = (min(rows, columns), max(rows, columns), p.dtype, own.ahead.device)
            alike.setdefault(key, []).append(own)
        for group in alike.values():
            self._turn(group, lr)

    def _turn(self, group: Sequence[Moving], lr: float) -> None:
        """One step of parts whose matrices have one shape."""
        wide = [_wide(own) for own in group]
        turned = self._orthogonalised(wide[0] if len(wide) == 1 else torch.cat(wide))
        for own, made in zip(group, turned.split([len(each) for each in wide]), strict=True):
            back = made.mT if own.is_tall else made
            shape = own.ahead.shape
            self._move(own.parameter, own.part, back.to(own.part.dtype).reshape(shape), lr, shape)

    def _moving(self, p: nn.Parameter) -> Moving | None:
        """The part of a parameter that is trained here, and its Nesterov momentum."""
        block = self.blocks.get(p, ())
        held = self._momentum(p)
        gradient = p.grad
        part: Tensor = p
        if p in self.cuts:
            part, held, gradient = local(p), local(held), local(gradient)
            block = self.cuts[p].here(block)
        part = part[block]
        if gradient is None or not part.numel():  # a process may have none of the matrices
            return None
        ahead = self._ahead(held[block], gradient[block])
        return Moving(p, part, ahead, self.info[p].matrices(ahead))

    def _update_split(self, members: Sequence[tuple[nn.Parameter, int]], lr: float) -> None:
        """One matrix for each process: all travel at once, each process turns its own, and the parts go back."""
        coming = []
        for p, owner in members:
            coming.append(gather(self._ahead_here(p), self.cuts[p], owner))
        returning = []
        for (p, _), gathering in zip(members, coming, strict=True):
            whole = gathering.whole()
            returning.append(gathering.back(None if whole is None else self._turned_part(p, whole)))
        for (p, _), parts in zip(members, returning, strict=True):
            block = self.blocks.get(p, ())
            here = self.cuts[p].here(block)
            self._move(p, local(p)[here], parts.there()[here], lr, self.cuts[p].sizes(block))

    def _ahead_here(self, p: nn.Parameter) -> Tensor:
        """The Nesterov momentum of the own part, zero where nothing is trained."""
        held = local(self._momentum(p))
        gradient = local(p.grad)
        block = self.blocks.get(p, ())
        if not block:
            return self._ahead(held, gradient)
        here = self.cuts[p].here(block)
        made = torch.zeros_like(held)
        made[here] = self._ahead(held[here], gradient[here])
        return made

    def _turned_part(self, p: nn.Parameter, ahead: Tensor) -> Tensor:
        """The same of the part that is trained; elsewhere nothing moves."""
        block = self.blocks.get(p, ())
        if not block:
            return self._turned(p, ahead)
        made = torch.zeros_like(ahead)
        made[block] = self._turned(p, ahead[block])
        return made

    def _is_split(self, p: nn.Parameter) -> bool:
        """Whether a matrix of this parameter lies on several processes; cut along z, each has whole ones."""
        if p not in self.cuts:
            return False
        return self.cuts[p].dim >= self.info[p].required_unfolding.leading

    def _momentum(self, p: nn.Parameter) -> Tensor:
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        momentum: Tensor = state["momentum"]
        return momentum

    def _ahead(self, held: Tensor, gradient: Tensor) -> Tensor:
        """The Nesterov momentum."""
        held.lerp_(gradient, 1 - self.chosen.momentum)
        return gradient.lerp(held, self.chosen.momentum)

    def _turned(self, p: nn.Parameter, ahead: Tensor) -> Tensor:
        """Its matrices, made orthogonal."""
        return self._orthogonalised(self.info[p].matrices(ahead)).to(p.dtype).reshape(ahead.shape)

    def _orthogonalised(self, matrices: Float[Tensor, "k r c"]) -> Float[Tensor, "k r c"]:
        return orthogonalised(matrices, self.chosen.iterations, self.chosen.half)

    def _move(self, p: nn.Parameter, part: Tensor, turned: Tensor, lr: float, shape: torch.Size) -> None:
        """One step of a part of ``p`` whose matrices are those of a tensor of ``shape``."""
        own = self.info[p]
        rows, columns = own.sizes(shape)
        part.mul_(1 - lr * self.chosen.decay)
        part.add_(turned, alpha=-lr * max(1.0, rows / columns) ** 0.5 / own.scale)


def orthogonalised(m: Float[Tensor, "k r c"], iterations: int = 5, half: bool = False) -> Float[Tensor, "k r c"]:
    """U V' of each m = U S V', nearly: Newton–Schulz with the quintic X ← aX + (bXX' + c(XX')²)X, no SVD."""
    a, b, c = QUINTIC
    x = m.bfloat16() if half else m
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.flatten(1).norm(dim=1).clamp_min(1e-7)[:, None, None]
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
