"""Where a function of ours may stand in for torch's operations: on a processor, one operation after the other."""

from typing import Any

import torch
from torch.autograd import forward_ad

from continua.typing import Tensor

_transformed: Any = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)  # vmap, jvp


def is_eager(x: Tensor) -> bool:
    """Whether nothing looks inside: no compiler, no other precision, no transformation of functions."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return not _transformed() and forward_ad._current_level < 0


def apart(tensors: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
    """The same tensors under names of their own: a gradient by one leaves out what another was made of."""
    return tuple([None if tensor is None else tensor.view_as(tensor) for tensor in tensors])
