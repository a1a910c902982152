"""Looking for NaN where a forward pass would hide it: in the weights of scores, and in the logits of generation.

Fused attention on a processor answers zero for a query whose scores are all NaN, so that broken weights of queries
and keys leave every output finite. They are looked at once for every version of them, not at every call.
"""

from typing import Any

import torch
from torch import nn

from continua.errors import SolveFailed
from continua.flow.finite import culprit
from continua.operators import Attention
from continua.typing import Tensor

Place = tuple[str, dict[str, Any], str]  # the name of a parameter, and where its module keeps it


class ScoreWeights:
    """The parameters that decide scores, and which versions of them were found to be numbers.

    A change through ``parameter.data`` leaves torch's version of it as it is, and is noticed only where the memory is
    another.
    """

    def __init__(self) -> None:
        self._block: nn.Module | None = None
        self._places: list[Place] = []
        self._seen: list[tuple[int, int]] = []

    def look(self, block: nn.Module) -> None:
        """Refuse weights with NaN, infinity or numbers whose squares overflow."""
        if block is not self._block:
            self._block = block
            self._places = list(_places(block))
            self.forget()
        now = [_version(kept[key]) for _, kept, key in self._places]
        if now == self._seen:
            return
        for name, kept, key in self._places:
            if not _is_sound(kept[key]):
                got = f"NaN, infinity or a number too large in {name}"
                remedy = "Go back to an earlier checkpoint, and train on with a smaller lr or with clip=1.0."
                raise SolveFailed("a weight of attention is no longer a number", got=got, remedy=remedy)
        self._seen = now

    def forget(self) -> None:
        """Look again at the next call, whatever the versions."""
        self._seen = []

    def __deepcopy__(self, memo: Any) -> "ScoreWeights":
        """A copied model looks at its own."""
        return ScoreWeights()

    def __getstate__(self) -> dict[str, Any]:
        return ScoreWeights().__dict__


def _places(block: nn.Module) -> list[Place]:
    """Where the weights of queries, keys and positions are."""
    found: list[Place] = []
    for name, module in block.named_modules():
        if not isinstance(module, Attention):
            continue
        for part in ("q", "k", "bq", "bk", "position"):
            field = module._modules.get(part)
            for inner, owner in [] if field is None else field.named_modules():
                prefix = ".".join(word for word in ("block", name, part, inner) if word)
                kept = owner._parameters
                found += [(f"{prefix}.{key}", kept, key) for key, p in kept.items() if p is not None]
    return found


def _version(weight: Tensor) -> tuple[int, int]:
    plain = type(weight) in (nn.Parameter, Tensor)  # others have no memory of their own to point at
    return weight.data_ptr() if plain else id(weight), -1 if weight.is_inference() else weight._version


def _is_sound(weight: Tensor) -> bool:
    wide = torch.promote_types(weight.dtype, torch.float32)
    return bool(torch.isfinite(torch.linalg.vector_norm(weight.detach(), dtype=wide)))


def check_logits(logits: Tensor, written: int) -> None:
    """Refuse to choose among logits that are no numbers."""
    sample = culprit(logits)
    if sample is not None:
        got = f"NaN or infinity behind new token {written} in sample {sample}"
        remedy = "Look at the weights: one of them is NaN, infinite or far too large."
        raise SolveFailed("the logits are no longer numbers", got=got, remedy=remedy, sample=sample)
