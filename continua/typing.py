"""The letters and the tensor types that signatures use.

b batch · t query time · s source time · d, c embedding coordinates · h head · g head group · e inside a head ·
m hidden · z depth · k coordinate of a point in its domain · n nodes of any axis.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

Letter = str
State = Float[Tensor, "b t d"]
PerQuery = Float[Tensor, "b h t e"]  # in every head: queries, or answers to them
PerSource = Float[Tensor, "b g s e"]  # in every group of heads: keys, or values
Args = Any  # a pytree (dict, list, tuple) whose leaves are tensors
VectorFunction = Callable[[float, Any, Args], Any]

__all__ = [
    "Any",
    "Args",
    "Bool",
    "Callable",
    "Float",
    "Int",
    "Iterator",
    "Letter",
    "Mapping",
    "PerQuery",
    "PerSource",
    "Sequence",
    "State",
    "Tensor",
    "VectorFunction",
]
