"""A process that runs cases, one line of JSON each; its parent ends it if it does not answer."""

import importlib
import json
import os
import random
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fuzzing.case import Case, Outcome, attempt
from fuzzing.draw import Draw
from fuzzing.family import family_of

SPARE = 3 << 30  # bytes of address space over those of the start: what wants more must fail here, not on the machine


IMPORTED = (
    "matplotlib.pyplot", "scipy.spatial", "sklearn.utils", "torch.fx", "typer.testing", "continua.cli",
    "continua.convert", "continua.lab", "continua.models", "continua.recipes",
)  # fmt: skip
WARM = range(-60, 0)


def makers() -> dict[str, Callable[[Draw], Case]]:
    """The families."""
    from fuzzing.api import api
    from fuzzing.commands import cli
    from fuzzing.configs import configs
    from fuzzing.files import files
    from fuzzing.grids import grids
    from fuzzing.ranks import ranks
    from fuzzing.stamps import stamps

    return {
        "grids": grids,
        "stamps": stamps,
        "ranks": ranks,
        "api": api,
        "configs": configs,
        "files": files,
        "cli": cli,
    }


def one(seed: int, only: list[str] | None = None) -> Outcome:
    """Run the case of a seed."""
    family = family_of(seed)
    make = makers()[family]
    draw = Draw(seed, only)
    random.seed(seed)
    return attempt(seed, family, lambda: make(draw), draw.spoilt)


def prepare() -> None:
    """Import what cases would import on the way: it counts neither as time nor as memory of theirs."""
    import matplotlib as mpl
    import torch

    mpl.use("Agg")
    for name in IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)


def serve() -> int:
    """Answer seeds until the parent has no more; what the library prints goes nowhere."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.chdir(folder)
        os.environ["CONTINUA_CACHE"] = os.path.join(folder, "cache")
        os.environ["COLUMNS"] = "100"
        prepare()
        for seed in WARM:  # first calls import, trace and fill caches
            one(seed, [])
        size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + SPARE, resource.RLIM_INFINITY))
        for line in sys.stdin:
            asked = json.loads(line)
            outcome = one(asked["seed"], asked["only"])
            answers.write(json.dumps(outcome.plain(), default=str) + "\n")
            answers.flush()
    return 0
