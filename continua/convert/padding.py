"""Heads padded with zeros, for families whose heads are as wide as d/h says: the same function, arranged anew."""

from typing import Any

import torch

from continua.axes import Points
from continua.config import from_plain, to_plain
from continua.operators import Attention, Rotary
from continua.typing import Tensor


def padded(model: Any) -> Any | None:
    """The same function with e = d/h, or None where zeros cannot make it so.

    Heads get inner coordinates that are zero, and where d does not divide into heads, heads that are zero; queries are
    scaled so that scores stay what they are.
    """
    axes = model.axes
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    if not all(isinstance(axes[letter], Points) for letter in "dhe"):
        return None
    if any(own.groups is not None or isinstance(own.position, Rotary) or own.cross for own in attentions):
        return None
    heads = next((h for h in range(axes.h.n, axes.d.n + 1) if axes.d.n % h == 0), axes.d.n)
    inner = axes.d.n // heads
    if inner < axes.e.n or len(model.flows) > 1:
        return None
    made = from_plain(_resized(to_plain(model), {"h": heads, "e": inner}))
    made.to(next(model.parameters()))
    with torch.no_grad():
        _fill(made, model)
    return made


def _resized(plain: Any, sizes: dict[str, int]) -> Any:
    if isinstance(plain, list):
        return [_resized(value, sizes) for value in plain]
    if not isinstance(plain, dict):
        return plain
    made = {key: _resized(value, sizes) for key, value in plain.items()}
    for letter, n in sizes.items():
        if made.get("kind") == "Axes":
            made[letter] = {"kind": "Points", "n": n}
        elif made.get("kind") == "Discretisation":
            made[letter] = {"kind": "Counting", "n": n}
        elif made.get("kind") == "ByBasis":
            made["bases"] = {**made["bases"], letter: {**made["bases"][letter], "rule": {"kind": "Counting", "n": n}}}
    return made


def _fill(made: Any, model: Any) -> None:
    """Copy every number into the first places of its tensor; the rest is zero."""
    source = model.state_dict()
    for name, tensor in made.state_dict().items():
        tensor.copy_(_in_the_corner(source[name], tensor))
    for module in made.modules():
        if isinstance(module, Attention):
            ratio = module.kernel.scale(model.axes.e) / module.kernel.scale(made.axes.e)
            for field in (module.q, module.bq):
                if field is not None:
                    field.coefficients.mul_(ratio)  # type: ignore[attr-defined]


def _in_the_corner(values: Tensor, like: Tensor) -> Tensor:
    full = torch.zeros_like(like)
    full[tuple(slice(0, n) for n in values.shape)] = values
    return full
