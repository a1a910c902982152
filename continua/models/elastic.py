"""An elastic model: lifted, with a calibration to be learned for other sizes."""

from typing import Any

from torch import nn

from continua.models.lift import lift


def elastic(model: nn.Module) -> Any:
    """Return a model that equals ``model`` on its own grid and can be trained to work on others.

    It is ``lift(model, calibrated=True)``: norms and output maps get a ``Calibration``, which starts by letting sums
    grow like √n.
    """
    return lift(model, calibrated=True)
