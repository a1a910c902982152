"""Training as optimal control: an objective with penalties, a loop that resumes, and the Hamiltonian along depth.

    python examples/training.py               half a minute on one core; writes runs/training-example
    python examples/training.py --steps 300   longer

A continuous language model learns from Python's own source under a running cost, the run is cut in the middle and goes
on, and what the gradient is made of is then looked at along depth, before and after.
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import torch

import continua as ct
from continua.flow import Heun
from continua.models import Scaled, initialise
from continua.optim import AdamW, ByRole, Muon
from continua.tasks import Characters, Text, python_source
from continua.training import HeadEntropy, Objective, Whole, hamiltonian


def fresh(vocabulary: int) -> ct.Transformer:
    """A small continuous model that takes eight steps of Heun's method."""
    native = ct.at(d=32, h=4, z=ct.Fixed(8, Heun()))
    model = ct.Transformer.continuous(vocab=vocabulary, at=native, context=32)
    initialise(model, Scaled(), torch.Generator().manual_seed(0))
    return model


def main() -> None:
    """Train, cut, go on, look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", type=Path, default=Path("runs/training-example"))
    chosen = parser.parse_args()
    shutil.rmtree(chosen.out, ignore_errors=True)
    corpus = python_source()
    task = Text(corpus, Characters.of(corpus.train + corpus.validation), context=32, batch=8, limit=64)
    penalties = 1e-3 * ct.KineticEnergy() + 1e-4 * HeadEntropy()
    given = {
        "penalties": penalties,
        "optimiser": ByRole(AdamW(3e-3), kernel=Muon(0.02)),
        "adjoint": ct.Recompute(),  # one state an evaluation, the same gradient
    }
    model = fresh(task.tokens.size)
    start = task.evaluate(model.eval()).main
    half = chosen.steps // 2
    ct.fit(model, task, run=chosen.out / "run", steps=half, **given)
    done = ct.fit(fresh(task.tokens.size), task, run=ct.Run.open(chosen.out / "run"), steps=chosen.steps, **given)
    end = task.evaluate(done.model.eval()).main
    print(f"held-out loss {start:.3f} → {end:.3f} nats, {len(done.history)} steps in two sittings")
    assert end < start - 1, "it learns"
    assert [line["step"] for line in done.history] == list(range(1, chosen.steps + 1)), "nothing is lost or twice"

    example = replace(task, batch=2).example(0, 0)
    for name, looked in (("before", fresh(task.tokens.size)), ("after", done.model)):
        looked = looked.double()
        objective = Objective(looked, task, penalties)
        path = hamiltonian(looked, objective, example)
        looked.zero_grad()
        objective(example, Whole.of(example))[0].backward()
        worst = max(
            float((path.gradient[n] - p.grad).abs().max()) for n, p in looked.named_parameters() if p.grad is not None
        )
        picture = path.plot(chosen.out / f"hamiltonian-{name}.png")
        early = float(path.density[:4].sum() / path.density.sum())
        print(f"{name}: gradient from the adjoint equals autograd to {worst:.0e}; "
              f"the first half of depth gives {100 * early:.0f} % of it; {picture}")  # fmt: skip
        assert worst < 1e-10


if __name__ == "__main__":
    main()
