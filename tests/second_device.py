"""A second device that is not there: tensors of it have shapes, dtypes and a place, and no numbers.

A private backend is registered with torch from Python, and ``FakeTensorMode`` computes what would be where. A tensor
that was left on the processor meets one of the device and raises; a value that is read raises too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretend"


class Pretended(_DummyBackendModule):
    """What ``torch.pretend`` answers; ``torch.random.fork_rng`` asks every device for the state of its generator."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Asked by ``torch.utils.checkpoint``, which takes the last device that was registered for the usual one."""
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: int | torch.device = 0) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: int | torch.device = 0) -> None:
        """There is none: a tensor of this device has no numbers."""


def registered() -> torch.device:
    """The device; registered once for a process."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        _setup_privateuseone_for_python_backend(NAME, backend_module=Pretended())
    return torch.device(NAME, 0)


@contextmanager
def on_second_device(model: nn.Module) -> Iterator[nn.Module]:
    """Inside, the parameters and buffers of ``model`` are those of the device, and every new tensor is pretended."""
    device = registered()
    with FakeTensorMode(allow_non_fake_inputs=False):
        there = pretended(model, device)
        with torch.no_grad():
            yield there


def pretended(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with parameters of the device, in place: models are made anew for every test."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                module._parameters[name] = nn.Parameter(empty)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
    return model


def moved(tree: Any, device: torch.device) -> Any:
    """A batch whose tensors are those of the device."""
    if isinstance(tree, Tensor):
        return torch.empty(tree.shape, dtype=tree.dtype, device=device)
    if isinstance(tree, tuple):
        return tuple(moved(branch, device) for branch in tree)
    if is_dataclass(tree):
        return replace(tree, **{f.name: moved(getattr(tree, f.name), device) for f in fields(tree)})
    return tree
