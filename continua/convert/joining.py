"""Fewer steps than layers: which layers are best left out, and how a size without them starts to learn."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from continua.axes import Discretisation, at
from continua.convert.corrections import with_corrections
from continua.convert.profiles import answers, best_steps, loss
from continua.fields import Corrections
from continua.flow import Fixed
from continua.models import Batch
from continua.operators import Attention, Pointwise
from continua.operators.refit import layer_at
from continua.typing import Tensor

OUTPUTS = {Attention: ("o", "bo"), Pointwise: ("w2", "b2")}  # what is added to the state


def best_left_out(model: Any, batches: Sequence[Batch | Tensor], steps: int) -> Fixed:
    """``steps`` steps by leaving layers out, always the one that loses least: a joined step takes its first layer."""
    tried = with_corrections(model, Corrections(None, "z"))

    def leave_out(control: Fixed) -> None:
        _leave_out(tried, at(z=control))

    return best_steps(tried, batches, steps, leave_out)


@torch.no_grad()
def start_joined(model: Any, size: Discretisation, batches: Sequence[Batch | Tensor]) -> None:
    """Let joined steps of a size add what their first layer alone adds, where that is closer to the native size.

    It is written into whole corrections along z, W + s D = W / length, of a model whose corrections are zero so far.
    """
    if not any(_joined(flow, size) for flow in model.flows) or not batches:
        return
    held = answers(model, batches)
    before = loss(model.at(size), held)
    _leave_out(model, size)
    if loss(model.at(size), held) > before:
        _leave_out(model, at())


def _joined(flow: Any, size: Discretisation) -> bool:
    """Whether a size has other steps than the native ones and the same widths."""
    settled = flow.settle(size)
    same = all(getattr(settled, k) == getattr(flow.native, k) for k in "dhem")
    return same and isinstance(settled.z, Fixed) and settled.z.lengths is not None


@torch.no_grad()
def _leave_out(model: Any, size: Discretisation) -> None:
    """Set the whole corrections along z of all output maps: W (1 / length − 1) / s at joined steps, zero elsewhere."""
    for flow in model.flows:
        structure = flow.structure(size)
        for operator, where in _operators(flow, structure):
            names = OUTPUTS[type(operator)]
            fields = {name: _field(operator, name) for name in names}
            for field in fields.values():
                if field is not None:
                    field.coefficients.zero_()
            grids = structure.grids.with_depths(where)
            scale = operator.correction.sizes(grids).get("z")
            if scale is None or where.lengths is None:
                continue
            read = operator.read(grids).weights
            for depth, length in zip(where.nodes, where.lengths, strict=True):
                for name, field in fields.items():
                    value = read.at(depth).get(name)
                    if field is not None and value is not None and length > 1:
                        own = field.coefficients[layer_at(field.axes["z"], field.bases["z"], depth)]
                        own.copy_((value * ((1 / length - 1) / scale)).reshape(own.shape))


def _operators(flow: Any, structure: Any) -> Iterator[tuple[Any, Any]]:
    """The operators that have corrections, each with the depths at which it is read."""
    for part, where in zip(flow.block.parts, structure.depths, strict=True):
        for module in part.modules():
            if type(module) in OUTPUTS and module.correction is not None and where is not None:
                yield module, where


def _field(operator: Any, name: str) -> Any:
    """The whole correction of a weight along z, by layers, if there is one."""
    fields = operator.correction.fields
    found = next((fields[key] for key in (f"{name} whole by z", f"{name} by z") if key in fields), None)
    return found if found is not None and "z" in found.letters else None
