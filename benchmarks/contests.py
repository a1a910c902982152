"""What benchmarks share that train models for the same CPU seconds: steps, their prices, runs that are kept."""

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import Row, interleaved
from fields_peers import Orthogonal
from torch import nn

from continua.data.pairs import Pairs

Step = Callable[[int, float], None]  # the number of a step, and its share of the learning rate


def kept(path: Path) -> dict[str, Any]:
    """Finished runs by their key."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {line["key"]: line["found"] for line in map(json.loads, lines)}


def told(runs: Mapping[str, Any]) -> dict[str, Any]:
    """Finished runs without the errors of each example, which stay in the file that keeps them."""
    return {key: {k: v for k, v in found.items() if not isinstance(v, list)} for key, found in runs.items()}


def keep(path: Path, key: str, found: Any) -> None:
    """Write one down."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key, "found": found}, ensure_ascii=False) + "\n")


def once(path: Path, key: str, run: Callable[[], Mapping[str, Any]]) -> None:
    """Run what is not kept yet, write it down, and print its numbers."""
    if key in kept(path):
        return
    found = run()
    keep(path, key, found)
    print(f"{key}: " + ", ".join(f"{k} {v:.4g}" for k, v in found.items() if isinstance(v, int | float)), flush=True)


def paired(name: str, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Row:
    """How much less error ours makes on the same examples, with two standard errors; errors are by seed and example."""
    less = torch.tensor(theirs).mean(0) - torch.tensor(ours).mean(0)
    mean = float(less.mean())
    off = 2 * float(less.std()) / len(less) ** 0.5
    note = f"two standard errors; ours is nearer on {100 * float((less > 0).float().mean()):.0f} % of {len(less)}"
    return Row(name, mean, mean - off, mean + off, note=note)


def with_mirror_images(pairs: Pairs) -> Pairs:
    """These functions on the circle and −u(−x), for which the equation and the measure of inputs are the same."""
    both = {}
    for what in ("inputs", "outputs"):
        values = getattr(pairs, what)
        both[what] = torch.cat([values, -values.flip(1).roll(1, 1)])  # node i goes to −i
    return replace(pairs, **both)


def stepping(model: Any, optimiser: Any, task: Any, seed: int) -> Step:
    """A training step of ours, its example drawn by the number of the step."""

    def step(number: int, factor: float) -> None:
        example = task.example(seed, number)
        optimiser.zero_grad()
        (task.loss(model(example.batch), example) / example.count).backward()
        optimiser.step(factor)

    return step


class Together:
    """The optimiser of a peer, as that of ours: Muon for the matrices that are named, AdamW for the rest."""

    def __init__(self, model: nn.Module, matrices: Sequence[nn.Parameter], lr: float, matrix_lr: float) -> None:
        own = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if id(p) not in own]
        self.each: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(rest, lr, weight_decay=0.0),
            Orthogonal(list(matrices), matrix_lr),
        ]
        self.first = [group["lr"] for each in self.each for group in each.param_groups]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for each in self.each:
            each.zero_grad()

    def step(self, factor: float) -> None:
        """One step at a share of the learning rates."""
        groups = [group for each in self.each for group in each.param_groups]
        for group, lr in zip(groups, self.first, strict=True):
            group["lr"] = lr * factor
        for each in self.each:
            each.step()


def factor(step: int, steps: int) -> float:
    """A cosine to zero behind three per cent of warm-up."""
    share = step / steps
    return min(1.0, share / 0.03) * 0.5 * (1 + math.cos(math.pi * share))


def seconds_each(steps: Mapping[str, Step], rounds: int, together: int, warm: int = 1) -> dict[str, float]:
    """CPU seconds of a step of every model, in interleaved rounds of a few steps ``together``."""
    torch.set_num_threads(1)

    def some(name: str) -> float:
        start = time.process_time()
        for number in range(together):
            steps[name](number, 0.1)
        return (time.process_time() - start) / together

    seen = interleaved({name: lambda name=name: some(name) for name in steps}, rounds, warm)
    return {name: statistics.median(values) for name, values in seen.items()}


def prices_beside(
    first: str, names: Sequence[str], before: dict[str, float], measure: Callable[[list[str]], dict[str, float]]
) -> dict[str, float]:
    """Prices of all models: those known before stay, later ones are measured beside ``first``."""
    now = measure([name for name in names if name not in before or name == first])
    scale = before.get(first, now[first]) / now[first]
    return {name: scale * price for name, price in now.items()} | before
