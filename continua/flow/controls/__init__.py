"""Which steps are taken: a fixed number of them, or as many as a tolerance asks for."""

from continua.flow.controls.adaptive import Adaptive
from continua.flow.controls.control import Control, Fixed, Problem, StepsFound

__all__ = ["Adaptive", "Control", "Fixed", "Problem", "StepsFound"]
