"""Kernels that draw something, drawn anew at each step of a fit."""

from typing import Any

from continua.operators import redraw
from continua.operators.kernels.sampled import DrawsSources, Redrawn


class Draws:
    """The draw of a step is a function of the kernel's seed and the step, so a resumed run draws the same.

    Held-out data are measured with the draw that the model was made with, which is also the one that is saved.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        found = [one for one in model.modules() if isinstance(one, DrawsSources) and isinstance(one.kernel, Redrawn)]
        self.own = [(one, one.kernel) for one in found]

    def at(self, step: int) -> None:
        """Give every kernel the draw of a step."""
        if self.own:
            redraw(self.model, step)

    def restore(self) -> None:
        """Give every kernel back the draw that it came with."""
        for operator, kernel in self.own:
            operator.kernel = kernel
