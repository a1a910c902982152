"""The former place of ``continua.elastic``."""

import warnings
from typing import Any

from torch import nn

from continua.models.lift import lift


def elastic(model: nn.Module) -> Any:
    """Return ``lift(model, calibrated=True)``. Its place is ``continua.elastic`` now, which calibrates by data too."""
    message = "continua.models.elastic is continua.elastic(model) now, which can calibrate by data too."
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return lift(model, calibrated=True)
