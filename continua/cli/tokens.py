"""What a model says about the tokens it reads."""

from typing import Any

from continua.models import Tokens, Widened
from continua.operators import Learned


def token_table(model: Any) -> Tokens | None:
    """The embedding that looks tokens up; None of a model that reads something else."""
    embed = model.embed.embed if isinstance(model.embed, Widened) else model.embed
    return embed if isinstance(embed, Tokens) else None


def context_of(table: Tokens) -> int | None:
    """How many positions a learned table has; None where positions do not end."""
    return table.position.count if isinstance(table.position, Learned) else None
