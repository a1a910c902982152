"""Looking for NaN and infinity: where they began, and in which sample."""

from typing import Any

import torch

from continua.errors import SolveFailed
from continua.tree import tensors


def culprit(x: Any) -> int | None:
    """The first sample with a value that is not finite, or ``None``."""
    for tensor in {id(tensor): tensor for tensor in tensors(x)}.values():
        total = tensor.detach().sum().item()
        if total - total == 0:  # one pass; a sum that overflows is looked at in full
            continue
        finite = torch.isfinite(tensor)
        if not bool(finite.all()):
            bad = ~(finite if finite.dim() == 0 else finite.flatten(1).all(1) if finite.dim() > 1 else finite)
            return int(bad.nonzero()[0, 0]) if bad.dim() else 0
    return None


def not_finite(z: float, sample: int | None, what: str = "the field") -> SolveFailed:
    """The sentence for a state or a field that left the numbers."""
    where = f"NaN or infinity at z={z:g}" + (f" in sample {sample}" if sample is not None else "")
    remedy = (
        "Look at this sample's data."
        if what == "the state"
        else "Look at this sample's data and the size of the weights, or take smaller steps."
    )
    return SolveFailed(f"{what} is no longer a number", got=where, remedy=remedy, z=z, sample=sample)
