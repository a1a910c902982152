"""Calls that no graph contains. Imported only inside a program that is being compiled: it imports the compiler.

``torch.compile(fullgraph=True)`` refuses such a call with the sentence given here; without ``fullgraph`` the program
is cut there, and the call runs as it always does.
"""

from collections.abc import Callable
from typing import Any

import torch

SEARCH = "adaptive steps are searched for by value, which no graph contains: compile the field, or use Fixed(n) steps"
BACKWARD = "this adjoint writes its backward pass by hand, which no graph contains: use Direct() in compiled code"


@torch.compiler.disable(reason=SEARCH)
def search(f: Callable[..., Any], *given: Any) -> Any:
    """f(*given), outside of any graph."""
    return f(*given)


@torch.compiler.disable(reason=BACKWARD)
def backward(f: Callable[..., Any], *given: Any) -> Any:
    """f(*given), outside of any graph."""
    return f(*given)
