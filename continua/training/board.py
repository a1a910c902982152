"""TensorBoard: the history of a run as curves, beside ``metrics.jsonl``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from continua.errors import ConfigError, install


class Board:
    """Writes every number of a line of the history; a run that goes back drops the curves behind that step."""

    def __init__(self, folder: Path, step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as missing:
            remedy = f"Install it: {install('logs')}, or leave tensorboard=True out."
            raise ConfigError("curves need the tensorboard library", got=str(missing), remedy=remedy) from missing
        self._writer: Any = SummaryWriter(folder, purge_step=step + 1)

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Add a point to every curve."""
        for name, value in line.items():
            if name == "note":
                self._writer.add_text(name, value, line["step"])
            elif name != "step":
                self._writer.add_scalar(name.replace("validation_", "validation/"), value, line["step"])

    def close(self) -> None:
        """Write what is still in memory."""
        self._writer.close()
