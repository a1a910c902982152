"""Kill a run again and again, and see that it ends with the same bits as one that was left alone.

    python tools/crash.py --kills 200

A parent that has everything imported forks a child for each life of the run. Half of the lives are ended from outside
by SIGKILL after a random time, half from inside at a random moment of writing a checkpoint. When a run reaches its end
its last checkpoint and its history are compared byte by byte, and the next run begins, until there were enough kills.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from continua.training import JacobianNorm, KineticEnergy, Run, checkpoint, fit
from tests.runs import FAST, silent, timeless, tiny_model, tiny_task

STEPS = 24
FILES = ("model.safetensors", "optimiser.safetensors", "optimiser.json", "progress.json", "config.json")


def life(folder: Path, save_every: int, death: int | None) -> None:
    """Train from where the run is; with ``death`` the process kills itself at that moment of writing."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")  # no kill may leave a damaged checkpoint behind: only whole ones get their name
    if death is not None:
        arm(death)
    run: Any = Run.open(folder) if (folder / "run.json").is_file() else folder
    fit(
        tiny_model(dropout=0.2),
        tiny_task(),
        run=run,
        optimiser=FAST,
        penalties=1e-3 * KineticEnergy() + 1e-3 * JacobianNorm(),
        watch=silent,
        steps=STEPS,
        accumulate=2,
        evaluate_every=7,
        save_every=save_every,
    )


def arm(death: int) -> None:
    """Kill this process at the n-th moment among those between which a checkpoint is written; a file may be half."""
    moments = iter(range(death + 1))

    def mortal(name: str) -> None:
        real: Callable[..., Any] = getattr(checkpoint, name)

        def call(*given: Any, **named: Any) -> Any:
            if next(moments) == death:
                if name == "save_file":
                    real(*given, **named)
                    os.truncate(given[1], given[1].stat().st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)

        setattr(checkpoint, name, call)

    for name in ("save_file", "_sum", "_flush", "_swap", "prune"):
        mortal(name)


def born(work: Callable[[], None]) -> int:
    """Fork a child that does the work."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended(child: int) -> bool:
    """Whether a child reached the end (and was not killed); a child that failed ends everything."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if status:
        sys.exit(f"a life ended with status {status}: see above")
    return True


def left(folder: Path) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """What a run leaves: the bytes of its last checkpoint, and its history without times."""
    last = checkpoint.found(folder / "checkpoints")[0]
    return {name: (last / name).read_bytes() for name in FILES}, timeless(Run.open(folder).history())


def main() -> None:
    """Count kills."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as place:
        life(Path(place, "warm"), 3, None)  # here, not in a child: torch imports much when it is first used
        began = time.monotonic()
        if not ended(born(lambda: life(Path(place, "calm"), 2, None))):
            sys.exit("the calm run was killed by somebody else")
        longest, wanted = time.monotonic() - began, left(Path(place, "calm"))
        kills = inside = runs = 0
        while kills < given.kills:
            folder, runs = Path(place, f"run-{runs}"), runs + 1
            while True:
                death = draw.randrange(60) if kills % 2 else None
                every = draw.randint(1, 3)
                child = born(lambda folder=folder, every=every, death=death: life(folder, every, death))
                if death is None and kills < given.kills:
                    time.sleep(draw.uniform(0.0, longest / 2))
                    os.kill(child, signal.SIGKILL)  # a child that has ended is a zombie until it is waited for
                if ended(child):
                    break
                kills, inside = kills + 1, inside + (death is not None)
                sys.stderr.write(f"\r{kills}/{given.kills} kills, {runs} runs, {time.monotonic() - began:.0f} s ")
            if left(folder) != wanted:
                sys.exit(f"\nrun {runs} differs from the one that was left alone")
    sys.stderr.write("\n")
    steps = [line["step"] for line in wanted[1]]
    print(json.dumps({"kills": kills, "inside writes": inside, "runs": runs, "steps": len(steps), "identical": True}))


if __name__ == "__main__":
    main()
