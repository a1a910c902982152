"""The same work with two versions of the package: processes that take turns, and starts of interpreters.

Run as a program it is one side, with whatever package PYTHONPATH names: ``python compiled_before.py CASE FOLDER`` says
"ready", then answers each line it reads with the CPU seconds of one piece of work.
"""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from common import Estimate, Row, interleaved, ratio, row

FIRST = "3e69903"  # the last commit of version 0.1
HERE = Path(__file__).resolve().parent
CASES = {
    "GPT-2": "special_case.py's shape",
    "BERT": "family.py",
    "Llama": "family.py",
    "T5": "family.py",
    "ViT": "family.py",
    "continuous model, optimiser included": "training.py",
    "ten steps of fit": "training.py",
}
CLASSES = {
    "BERT": "BertForMaskedLM",
    "Llama": "LlamaForCausalLM",
    "T5": "T5ForConditionalGeneration",
    "ViT": "ViTForImageClassification",
}
IMPORT = (
    "import torch, time; s = time.process_time(); import continua; continua.Transformer; d = time.process_time() - s"
)
HELP = "import time, sys; sys.argv = ['continua', '--help']; from continua.cli import main; main()"
STARTS = {
    "import torch, continua": "import torch, continua",
    "the first use of continua behind torch": f"{IMPORT}; print(d)",
    "continua --help": HELP,
}
TARGET = "≤ 1.01, or 1.00 inside and ≤ 1.03"
AS_BEFORE = 1.05  # of starts, whose times scatter more


# --- one side ---------------------------------------------------------------------------------------------------------


def gpt2() -> Callable[[], None]:
    """A training step of special_case.py's shape."""
    import torch
    from special_case import SHAPE

    from continua.models import zoo

    sizes = {name: SHAPE[name] for name in ("vocab", "d", "heads", "depth")}
    model = zoo.gpt2(**sizes, context=SHAPE["tokens"])
    ids = torch.randint(SHAPE["vocab"], (SHAPE["batch"], SHAPE["tokens"] + 1))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()

    return step


def family_named(name: str) -> Any:
    """A family of the benchmark beside this package, by its first field: version 0.1 has names there, later classes."""
    from family import FAMILIES

    first = fields(FAMILIES[0])[0].name
    return next(one for one in FAMILIES if getattr(one, first) in (name, CLASSES[name]))


def of_family(name: str, folder: str) -> Callable[[], None]:
    """Forward and backward of a model of family.py, from the folder that Hugging Face wrote."""
    import continua as ct

    family = family_named(name)
    model = ct.from_hf(folder).train()
    data = family.data()

    def step() -> None:
        model.zero_grad(set_to_none=True)
        family.ours(model, data).square().mean().backward()

    return step


def text(fitted: bool) -> Callable[[], None]:
    """A training step of a continuous text model with its optimiser, or ten of a fit of the discrete one."""
    from torch import nn

    from continua.optim import AdamW, ByRole
    from continua.recipes import TextSettings
    from continua.recipes.text import model_of
    from continua.tasks import Characters, Text, python_source
    from continua.training import fit

    size = TextSettings(d=128, heads=4, depth=4, context=128, batch=16, discrete=fitted)
    corpus = python_source()
    task = Text(corpus, Characters.of(corpus.train + corpus.validation), size.context, size.batch, limit=16)
    model = model_of(size, task.tokens.size)
    if fitted:
        optimiser = ByRole(AdamW(1e-3))
        return lambda: fit(model, task, optimiser=optimiser, steps=10, evaluate_every=10, watch=lambda at: None)
    optimisers = ByRole(AdamW(1e-3)).make(model)
    example = task.example(0, 0)

    def step() -> None:
        optimisers.zero_grad()
        (task.loss(model(example.batch), example) / example.count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimisers.step(1.0)

    return step


def serve(case: str, folder: str) -> None:
    """Work whenever a line comes."""
    import warnings

    import torch
    from common import cpu_seconds

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    family = CASES[case] == "family.py"
    step = of_family(case, folder) if family else gpt2() if case == "GPT-2" else text("fit" in case)
    step()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        sys.stdout.write(f"{cpu_seconds(step)}\n")
        sys.stdout.flush()


# --- both sides -------------------------------------------------------------------------------------------------------


def surroundings(package: Path) -> dict[str, str]:
    """Variables under which an interpreter finds this package and its own benchmarks; compiled files are kept, as users
    have them."""
    return {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{package / 'benchmarks'}", "PYTHONDONTWRITEBYTECODE": ""}


class Beside:
    """A process that works when it is told to, with the package of one folder."""

    def __init__(self, package: Path, case: str, folder: str) -> None:
        command = [sys.executable, "-P", str(HERE / "compiled_before.py"), case, folder]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=surroundings(package), text=True, cwd=package
        )
        if self.process.stdout.readline() != "ready\n":  # type: ignore[union-attr]
            raise SystemExit(f"{case} does not run with the package in {package}.")

    def __call__(self) -> float:
        """CPU seconds of one piece of work."""
        self.process.stdin.write("go\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]
        return float(self.process.stdout.readline())  # type: ignore[union-attr]

    def close(self) -> None:
        """End it."""
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()


@contextlib.contextmanager
def checkout(folder: str | None) -> Iterator[Path]:
    """Version 0.1: the folder that was named, or unpacked from this repository's history."""
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as made:
        whole = ["git", "-C", str(HERE.parent), "archive", FIRST]
        archive = subprocess.run(whole, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", made], input=archive, check=True)
        yield Path(made)


def started(package: Path, code: str) -> float:
    """CPU seconds of an interpreter that runs this code, or those it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=surroundings(package), cwd=package
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code.startswith(IMPORT):
        return float(done.stdout)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def steps(now: Path, first: Path, case: str, rounds: int) -> Row:
    """One case, both versions in turns."""
    with tempfile.TemporaryDirectory() as folder:
        if CASES[case] == "family.py":
            written(case, folder)
        sides = {"now": Beside(now, case, folder), "0.1": Beside(first, case, folder)}
        try:
            seen = interleaved(sides, rounds, 2)
        finally:
            for side in sides.values():
                side.close()
    got = ratio(seen["now"], seen["0.1"])
    name = "eager training step / version 0.1" + ("" if case == "GPT-2" else f", {case}")
    return row(name, got, target=TARGET, held=within(got), note=CASES[case])


def written(name: str, folder: str) -> None:
    """Let Hugging Face write the model of a family."""
    import torch

    torch.manual_seed(0)
    family_named(name).make().save_pretrained(folder)


def within(got: Estimate) -> bool:
    """Whether it is no slower."""
    return got.median <= 1.01 or (got.low <= 1.0 and got.high <= 1.03)


def start(now: Path, first: Path, name: str, rounds: int) -> Row:
    """One start, both versions in turns."""
    sides = {"now": now, "0.1": first}
    cases = {side: (lambda package=package: started(package, STARTS[name])) for side, package in sides.items()}
    seen = interleaved(cases, rounds, 2)
    got = ratio(seen["now"], seen["0.1"])
    return row(f"{name} / version 0.1", got, target=f"≤ {AS_BEFORE}", held=got.median <= AS_BEFORE)


def before(rounds: int, folder: str | None) -> list[Row]:
    """Eager training steps of special_case.py, family.py and training.py beside those of version 0.1."""
    with checkout(folder) as first:
        return [steps(HERE.parent, first, case, rounds) for case in CASES]


def starts(rounds: int, folder: str | None) -> list[Row]:
    """Importing the package behind torch, and the command's help, beside those of version 0.1."""
    with checkout(folder) as first:
        return [start(HERE.parent, first, name, rounds) for name in STARTS]


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
