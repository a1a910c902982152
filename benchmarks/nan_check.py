"""What looking for NaN costs: the time of the check alone, against a forward pass that looks at nothing.

Every round times both, so that a busy machine slows both terms. ``unchanged``: weights of scores that were looked at
before, as in evaluation and generation; ``new``: every weight has a new version, as in training, where the pass has
its usual batch. Both with the look at the last state.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import continua as ct
from continua.flow.finite import culprit
from continua.models import Batch
from continua.models.finite import ScoreWeights, check_logits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import cpu_seconds, environment, interleaved, ratio, row, write

MOST = 0.01  # of a forward pass
TIMES = 200  # checks in a row: one alone is shorter than the clock's tick


@dataclass(frozen=True)
class Setting:
    """A model, a batch, and whether its weights change between calls."""

    name: str
    model: ct.Transformer
    batch: Batch
    changes: bool


def settings() -> list[Setting]:
    """A small model on little, where a check weighs most, and the usual sizes."""
    torch.manual_seed(0)
    words = ct.Transformer.continuous(vocab=64, at=ct.at(d=128, h=4, z=6)).eval()
    gpt2 = ct.zoo.gpt2(vocab=512, d=256, heads=4, depth=6, context=256).eval()
    series = ct.Transformer.continuous(channels=2, t=ct.Times(), at=ct.at(d=64, h=4, z=4), mask=ct.Causal()).eval()

    def ids(samples: int, count: int) -> Batch:
        return Batch(torch.randint(64, (samples, count)))

    times = torch.rand(8, 64, dtype=torch.float64).cumsum(-1)
    return [
        Setting("one line of 32 words, unchanged", words, ids(1, 32), False),
        Setting("16 lines of 128 words, unchanged", words, ids(16, 128), False),
        Setting("16 lines of 128 words, new", words, ids(16, 128), True),
        Setting("gpt2 of width 256, 8 × 128, new", gpt2, ids(8, 128), True),
        Setting("irregular series, 8 × 64, unchanged", series, Batch(torch.randn(8, 64, 2), times=times), False),
        Setting("irregular series, 8 × 64, new", series, Batch(torch.randn(8, 64, 2), times=times), True),
    ]


def look(setting: Setting) -> Callable[[], object]:
    """The check alone, as often as ``TIMES``."""
    final = setting.model.states(setting.batch).final
    kept = ScoreWeights()

    def work() -> None:
        for _ in range(TIMES):
            if setting.changes:
                kept.forget()
            kept.look(setting.model.block)
            culprit(final)

    return work


@torch.no_grad()
def main(rounds: int) -> None:
    """Measure every setting and write the result."""
    rows = []
    for setting in settings():
        model = setting.model
        model.check = True
        check = look(setting)

        def forward(model: ct.Transformer = model, batch: Batch = setting.batch) -> object:
            model.check = False
            return model(batch)

        cases = {"check": lambda check=check: cpu_seconds(check) / TIMES, "forward": lambda f=forward: cpu_seconds(f)}
        seen = interleaved(cases, rounds, 3)
        share = ratio(seen["check"], seen["forward"])
        rows.append(row(setting.name, share, target=f"< {MOST}", held=share.median < MOST))
        sys.stdout.write(f"{setting.name}: {share}\n")
    rows.append(generated(rounds))
    write("nan_check", rows, environment=environment())


def generated(rounds: int) -> object:
    """The look at the logits of a token, against making them."""
    model = ct.zoo.gpt2(vocab=512, d=256, heads=4, depth=6, context=256).eval()
    model.check = False
    prompt = torch.randint(512, (1, 16))
    logits = model(prompt)[:, -1]

    def looks() -> None:
        for _ in range(TIMES):
            check_logits(logits, 0)

    cases = {
        "check": lambda: cpu_seconds(looks) / TIMES,
        "token": lambda: cpu_seconds(lambda: model.generate(prompt, tokens=33)) / 33,
    }
    seen = interleaved(cases, rounds, 3)
    share = ratio(seen["check"], seen["token"])
    sys.stdout.write(f"a generated token: {share}\n")
    return row("a generated token", share, target=f"< {MOST}", held=share.median < MOST)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
