"""One elastic training at other scales: a larger model, another text, shorter and longer trainings.

    python benchmarks/elastic_scale.py                  # everything: about three hours of CPU time
    python benchmarks/elastic_scale.py --only larger    # 6 million parameters, two texts, one seed
    python benchmarks/elastic_scale.py --only lengths   # 400, 800, 1,600 and 3,200 steps of the usual model
    python benchmarks/elastic_scale.py --only models    # three sizes of model, 800 steps
    python benchmarks/elastic_scale.py --quick          # a smoke run of a few steps

The protocol is that of ``elastic.py``: the elastic training takes as many more steps than separate models as it does
there, and these have exactly the d, h, e, m, z of the size they are compared with. One seed, and one learning rate for
separate models: what is asked for here are gaps between sizes. Finished runs are kept in
``results/elastic-scale-runs.jsonl`` and not repeated.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from common import RESULTS, Row, environment, write
from elastic_jobs import BATCH, CONTEXT, LONGER, STEPS, USUAL, Job, Laws, laws, model_of, optimiser_of

from continua.convert import elastic
from continua.data.corpus import cut
from continua.recipes.elastic import optimiser
from continua.tasks import Characters, Text, python_source
from continua.training import fit
from tools.packages import SHAKESPEARE, fetch

WINDOWS = 300
PYTHON, DRAMA = "Python source", "tiny Shakespeare"
NATIVE, HALF, WIDTH = "native", "half of all", "half width"
SHARES = {NATIVE: (1, 1, 1), HALF: (2, 2, 2), WIDTH: (2, 1, 1)}  # d, h, z are divided by these
MODELS = {"0.1 M": (64, 2, 2), "0.8 M": (128, 4, 4), "6 M": (256, 8, 8)}
LENGTHS = (400, 800, 1600, 3200)
LARGE_STEPS = 600
BOUNDS = {NATIVE: 2.0, HALF: 2.0}


@dataclass(frozen=True)
class Training:
    """A training; ``size`` None is the elastic one, measured at every size."""

    model: str
    text: str
    steps: int  # of the separate models
    size: str | None = None

    @property
    def taken(self) -> int:
        """Its steps."""
        return self.steps if self.size else round(LONGER / STEPS * self.steps)

    def sizes(self, name: str) -> tuple[int, int, int]:
        """d, h and z of a size of this model."""
        d, h, z = (n // k for n, k in zip(MODELS[self.model], SHARES[name], strict=True))
        return d, h, z


def text_of(name: str) -> Text:
    """The characters of a text."""
    if name == PYTHON:
        corpus = python_source()
    else:
        corpus = cut("shakespeare", (fetch(SHAKESPEARE) / "input.txt").read_text(encoding="utf-8"), 0.9)
    return Text(corpus, Characters.of(corpus.train + corpus.validation), CONTEXT, BATCH)


def work(one: Training) -> dict[str, Any]:
    """Train and measure."""
    torch.set_num_threads(1)
    task = replace(text_of(one.text), limit=WINDOWS)
    model = model_of(one.sizes(one.size or NATIVE), task.tokens.size, 0)
    own = Laws()
    if one.size is None:
        model = elastic(model)
        own = laws(Job("elastic", NATIVE, 0, one.taken), model)  # without what learns afterwards: no size here reads it
    start = time.process_time()
    fit(
        model,
        replace(task, limit=1),
        optimiser=optimiser_of(True) if one.size else optimiser(USUAL),
        steps=one.taken,
        evaluate_every=one.taken,
        elastic=own.elastic,
        grow=own.grow,
    )
    seconds = time.process_time() - start
    model.eval()
    names = [one.size] if one.size else list(SHARES)
    views = {name: model if one.size else model.at(**dict(zip("dhz", one.sizes(name), strict=True))) for name in names}
    losses = {name: task.evaluate(view).main for name, view in views.items()}
    return {**asdict(one), "cpu": seconds, "losses": losses}


def trainings(parts: list[str], quick: bool) -> list[Training]:
    """What the chosen parts need, without repetition, the short ones first."""
    found = []
    for part in parts:
        if part == "larger":
            runs = [("6 M", text, LARGE_STEPS) for text in (PYTHON, DRAMA)]
        elif part == "lengths":
            runs = [("0.8 M", PYTHON, steps) for steps in LENGTHS]
        else:
            runs = [(model, PYTHON, LARGE_STEPS if model == "6 M" else STEPS) for model in MODELS]
        for model, text, steps in runs:
            few = 12 if quick else steps
            found += [Training(model, text, few, size) for size in (*SHARES, None)]
    return list(dict.fromkeys(found))


def run_all(every: list[Training], path: Path) -> list[dict[str, Any]]:
    """Each training in a process of its own; what was finished before is kept."""
    kept = finished(path)
    done = [Training(**{name: line[name] for name in asdict(every[0])}) for line in kept]
    for i, one in enumerate(waiting := [one for one in every if one not in done]):
        command = [sys.executable, __file__, "--job", json.dumps(asdict(one))]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip().splitlines()[-1]
        with path.open("a") as file:
            file.write(said + "\n")
        losses = {name: round(loss, 4) for name, loss in json.loads(said)["losses"].items()}
        print(f"{i + 1}/{len(waiting)}  {one}: {losses}, {json.loads(said)['cpu']:.0f} CPU-s", flush=True)
    return finished(path)


def finished(path: Path) -> list[dict[str, Any]]:
    """What was trained before."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def gap(by: dict[Training, dict[str, Any]], shared: Training, size: str) -> tuple[float, str]:
    """By how many percent the loss of a size lies above that of a separate model, and both in words."""
    ours = by[shared]["losses"][size]
    apart = by[replace(shared, size=size)]["losses"][size]
    note = f"{ours:.4f} against {apart:.4f} nats, perplexity × {np.exp(ours - apart):.3f}; one seed"
    return 100 * (ours / apart - 1), note


def rows_of(lines: list[dict[str, Any]], every: list[Training]) -> list[Row]:
    """Gaps, and how they change when the training or the model is twice as long or large."""
    names = list(asdict(every[0]))
    by = {Training(**{name: line[name] for name in names}): line for line in lines}
    rows = []
    whole = [one for one in every if one.size is None and one in by]
    shared = [one for one in whole if all(replace(one, size=size) in by for size in SHARES)]
    for one in shared:
        for size in SHARES:
            value, note = gap(by, one, size)
            bound = BOUNDS.get(size) if one.model == "6 M" else None
            target, held = ("", None) if bound is None else (f"≤ +{bound:g}", value <= bound)
            name = f"{one.model} parameters, {one.text}, {one.steps} steps: {size}, against separately trained"
            rows.append(Row(name, value, None, None, "%", target, held, note))
    usual = [one for one in shared if (one.model, one.text) == ("0.8 M", PYTHON)]
    if len(usual) > 1:
        rows += [slope(f"{size}: change of the gap with twice the steps", [one.steps for one in usual],
                       [gap(by, one, size)[0] for one in usual]) for size in SHARES]  # fmt: skip
    models = [
        one for one in shared if one.text == PYTHON and one.steps == (LARGE_STEPS if one.model == "6 M" else STEPS)
    ]
    if len(models) > 1:
        counts = [float(np.prod(MODELS[one.model][:1] * 2) * MODELS[one.model][2]) for one in models]
        rows += [slope(f"{size}: change of the gap with twice the parameters", counts,
                       [gap(by, one, size)[0] for one in models]) for size in SHARES]  # fmt: skip
    return rows


def slope(name: str, at: list[float] | list[int], gaps: list[float]) -> Row:
    """Percentage points for each doubling, by least squares."""
    value = float(np.polyfit(np.log2(at), gaps, 1)[0])
    return Row(name, value, None, None, "points", "", None, f"through {len(at)} trainings")


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("larger", "lengths", "models"), action="append")
    parser.add_argument("--finished", action="store_true", help="train nothing: write the table of what is finished")
    parser.add_argument("--quick", action="store_true", help="few steps of the smaller models, nothing is written")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        print(json.dumps(work(Training(**json.loads(chosen.job)))))
        return
    every = trainings(chosen.only or ["larger", "lengths", "models"], chosen.quick)
    every = [one for one in every if not chosen.quick or one.model != "6 M"]
    path = RESULTS / f"elastic-scale-{'quick' if chosen.quick else 'runs'}.jsonl"
    rows = rows_of(finished(path) if chosen.finished else run_all(every, path), every)
    for line in rows:
        print(f"{line.name}: {line.shown}  {line.target} {line.verdict}  {line.note}")
    if chosen.quick:
        path.unlink()
        return
    print(write("elastic_scale", rows, environment=environment(), part=bool(chosen.only)))


if __name__ == "__main__":
    main()
