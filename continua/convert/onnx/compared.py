"""How far a file is from the model it was made of."""

from dataclasses import dataclass

from continua.errors import ConfigError

EXACT = 1e-4  # of the largest answer: round-off of float32 in another order


@dataclass(frozen=True)
class Compared:
    """At one size or shape: the largest difference of answers; of text also the loss in nats a token, of both."""

    where: str
    difference: float
    largest: float
    torch_loss: float | None = None
    file_loss: float | None = None

    @property
    def more_loss(self) -> float:
        """What the file loses, in nats a token."""
        if self.torch_loss is None or self.file_loss is None:
            return 0.0
        return self.file_loss - self.torch_loss

    def require_exact(self) -> None:
        """Refuse what differs by more than round-off."""
        if not self.difference <= EXACT * max(1.0, self.largest):
            remedy = "Report this; nothing was written."
            raise ConfigError(
                f"what was written differs from the model at {self.where}", got=self.difference, remedy=remedy
            )
