"""Where a run is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from continua.errors import CheckpointError
from continua.training.run import is_line


@dataclass
class State:
    """Where a run is; all of it is in every checkpoint."""

    step: int = 0
    best: float = math.inf
    waited: int = 0  # evaluations since the best one
    salt: int = 0  # how often the run went back: the data after that are others
    unmeasured: dict[str, Any] | None = None  # the line of a step whose evaluation was interrupted

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        best = None if math.isinf(self.best) else self.best
        said = {"step": self.step, "best_score": best, "waited": self.waited, "salt": self.salt}
        return said if self.unmeasured is None else {**said, "unmeasured": self.unmeasured}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "State":
        """What was kept."""
        try:
            best = math.inf if plain["best_score"] is None else float(plain["best_score"])
            counts = [int(plain[name]) for name in ("step", "waited", "salt")]
            unmeasured = plain.get("unmeasured")
        except (KeyError, TypeError, ValueError) as problem:
            remedy = "Remove this checkpoint: the one before it is used."
            raise CheckpointError("progress.json says where a run is", got=repr(problem), remedy=remedy) from problem
        step, waited, salt = counts
        return cls(step, best, waited, salt, unmeasured if is_line(unmeasured) else None)
