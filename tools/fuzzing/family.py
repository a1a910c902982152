"""Which family a seed belongs to; the parent of the workers asks too, and needs no torch for it."""

import random

WEIGHTS = {"grids": 20, "stamps": 17, "ranks": 20, "api": 20, "configs": 15, "files": 6, "cli": 2}


def family_of(seed: int) -> str:
    """Which family a seed belongs to."""
    return random.Random(f"{seed}/family").choices([*WEIGHTS], [*WEIGHTS.values()])[0]
