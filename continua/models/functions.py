"""The old name of ``zoo.function_map``."""

import warnings
from typing import Any

from continua.axes import Axis, Discretisation, Rule, at
from continua.config import arguments
from continua.models.zoo import function_map


def function_parts(
    axis: Axis,
    nodes: int | Rule,
    channels: tuple[int, int] = (1, 1),
    at: Discretisation = at(d=64, h=4, m=64, z=4),  # noqa: B008  (frozen)
    modes: int | tuple[int, ...] = 17,
    attention: bool = True,
    sharp: bool = False,
    scales: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 1.0), (0.0, 1.0)),
) -> dict[str, Any]:
    """The parts of ``zoo.function_map``. Deprecated: call that, which returns the model itself."""
    message = "function_parts is now continua.models.zoo.function_map, which returns the Transformer itself."
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    model = function_map(
        axis,
        nodes,
        channels=channels[0],
        out=channels[1],
        at=at,
        modes=modes,
        attention=attention,
        sharp=sharp,
        input_mean=scales[0][0],
        input_spread=scales[0][1],
        output_spread=scales[1][1],
    )
    made = arguments(model)
    return {name: made[name] for name in ("axes", "native", "embed", "block", "readout")}
