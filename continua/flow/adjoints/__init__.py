"""How gradients of a solve are computed: recorded, recomputed, by undoing the steps, or by a backward equation."""

from continua.flow.adjoints.backsolve import Backsolve
from continua.flow.adjoints.direct import Adjoint, Direct
from continua.flow.adjoints.recompute import Checkpoint, Lean, Mixed, Recompute
from continua.flow.adjoints.reversible import Reversible

__all__ = ["Adjoint", "Backsolve", "Checkpoint", "Direct", "Lean", "Mixed", "Recompute", "Reversible"]
