"""One ONNX file for every size: how far it is from torch, and what a token costs.

    python benchmarks/export.py                    # trains a small elastic model first; about three minutes
    python benchmarks/export.py --run RUN          # an elastic run that is there, for example that of continua demo

Times are CPU time of one thread for a token at batch 1, in interleaved rounds: the eager loop of ``ct.generate``, the
session of onnxruntime (its size is fixed when it is opened), the same file with its size fed at every token, a graph of
one step called once for each (with its embedding and readout: more than a step alone would need), and eight bits.

    python benchmarks/export.py --only drafts           # self-speculation of a model of six million parameters

times texts of the run of ``benchmarks/large.py``, which is trained where it is not there, with and without a draft.
``--quick`` trains a few steps of both and measures two rounds: does all of it run?
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: its pools are sized when it loads

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Estimate, Row, cpu_seconds, environment, interleaved, ratio, row, write
from large import FOLDER, large_run
from rich.console import Console
from rich.table import Table

import continua as ct
from continua.recipes import start
from continua.session.file import Runtime, fixed_inputs
from continua.session.writing import Decoder, Prompt

DRAFTS: list[dict[str, Any]] = [{"d": 128, "h": 4, "z": 4}, {"d": 128, "h": 8, "z": 4}]
AHEAD = (3, 4, 6)
STEPS = 300  # of the model that is trained where no run is named
QUICK_STEPS = 6
SIZES: list[dict[str, Any]] = [
    {},
    {"d": 64},
    {"d": 96},
    {"h": 2},
    {"h": 3},
    {"z": 2},
    {"z": 3},
    {"m": 256},
    {"e": 16},
    {"d": 64, "h": 2, "z": 2},
    {"d": 80, "h": 3, "z": 3},
    {"d": 32, "h": 1, "z": 1},
]
HALF = {"d": 64, "h": 2, "z": 2}
TOKENS = 64
PROMPTS = ("def ", "import ", "class A(", "    return ", "\n\n# ")


def limited(name: str, got: Estimate, limit: float, **rest: Any) -> Row:
    """A ratio that must stay below a limit."""
    return row(name, got, target=f"≤ {limit:g}", held=got.median <= limit, **rest)


def exactness(model: Any, session: ct.Session) -> list[Row]:
    """Logits and greedy tokens at all sizes."""
    ids = torch.randint(session.about.vocab or 1, (4, 48), generator=torch.Generator().manual_seed(0))
    far = 0.0
    equal = 0
    for size in SIZES:
        view = model.at(**size)
        here = session.at(**size)
        with torch.no_grad():
            far = max(far, float(np.abs(here(ids.numpy()) - view(ids).numpy()).max()))
        for prompt in PROMPTS:
            given = session.tokens.encode(prompt)[None]
            wanted = ct.generate(view, torch.from_numpy(given), tokens=TOKENS).numpy()
            equal += bool((here.generate(given, tokens=TOKENS) == wanted).all())
    total = len(SIZES) * len(PROMPTS)
    return [
        Row(f"largest difference of logits, {len(SIZES)} sizes", far, target="≤ 0.0001", held=far <= 1e-4),
        Row(f"greedy texts that are equal, of {total}", equal, target=f"{total}", held=equal == total),
    ]


def by_step(session: ct.Session) -> Callable[[], None]:
    """As many calls of a graph of one step as there are steps, for every token."""
    size = session.size
    parts = [replace(size, steps=(step,)) for step in size.steps]
    file = session._file
    decoders = [Decoder(Runtime(file, part), session.about, part) for part in parts]
    prompt = Prompt.of(session.about, session.tokens.encode(PROMPTS[0])[None], None)

    def write_on() -> None:
        for decoder in decoders:
            decoder.read(prompt)
        for _ in range(TOKENS - 1):
            for decoder in decoders:
                logits = decoder.write(np.array([[1]]))["logits"]
            logits.argmax()

    return write_on


class Fed(Runtime):
    """The graph as it is in the file: the size is an input of every call."""

    def run(self, given: Any) -> Any:
        """All outputs by name."""
        values, _ = fixed_inputs(self.file.about, self.file.about.size({}))
        return super().run({**given, **values})


def fed(session: ct.Session) -> Callable[[], None]:
    """A text whose every token names its size anew."""
    runtime = Fed(session._file, None)
    decoder = Decoder(runtime, session.about, session.size)
    runtime.__dict__["inputs"] = {
        name: one
        for name, one in ((own.name, own) for own in runtime.session.get_inputs())
        if name not in {"d", "h", "e", "m", "layers", "lengths"}
    }
    prompt = Prompt.of(session.about, session.tokens.encode(PROMPTS[0])[None], None)

    def write_on() -> None:
        logits = decoder.read(prompt)["logits"]
        for _ in range(TOKENS - 1):
            logits = decoder.write(logits[:, -1:].argmax(-1))["logits"]

    return write_on


def times(model: Any, session: ct.Session, small: ct.Session, rounds: int) -> list[Row]:
    """A token, in turns."""
    given = session.tokens.encode(PROMPTS[0])[None]
    prompt = torch.from_numpy(given)
    sessions = {"native": session, "half": session.at(**HALF), "eight bits": small}
    views = {"native": model.at(), "half": model.at(**HALF)}
    work: dict[str, Callable[[], object]] = {
        **{f"onnx {name}": lambda own=own: own.generate(given, tokens=TOKENS) for name, own in sessions.items()},
        **{f"eager {name}": lambda own=own: ct.generate(own, prompt, tokens=TOKENS) for name, own in views.items()},
        "fed": fed(session),
        "by step": by_step(session),
    }
    seen = interleaved({name: lambda run=run: cpu_seconds(run) for name, run in work.items()}, rounds, warmup=2)
    native = seen["onnx native"]
    return [
        limited("one token, onnxruntime / our eager loop, native", ratio(native, seen["eager native"]), 0.6),
        limited(
            "one token, onnxruntime / our eager loop, half of all", ratio(seen["onnx half"], seen["eager half"]), 0.6
        ),
        limited("one token in onnxruntime, half of all / native", ratio(seen["onnx half"], native), 0.5),
        row("one token, size fed at every call / fixed when opened", ratio(seen["fed"], native)),
        row("one token, a graph for each step / one graph", ratio(seen["by step"], native)),
        row("one token, eight bits / float32", ratio(seen["onnx eight bits"], native)),
        Row("milliseconds a token in onnxruntime, native", 1e3 * float(np.median(native)) / TOKENS),
    ]


def drafts(run: Path, folder: Path, rounds: int) -> list[Row]:
    """Greedy texts of a large model at batch 1, with and without a draft, in turns."""
    model = ct.load(run).eval()
    session = ct.Session(ct.export(run, folder / "large.onnx").path, threads=1)
    numbers = sum(own.numel() for own in model.parameters())
    given = [session.tokens.encode(prompt)[None] for prompt in PROMPTS]

    def texts(**how: Any) -> list[Any]:
        return [session.generate(one, tokens=TOKENS, **how) for one in given]

    wanted = texts()
    ways = {
        f"{session.at(**size).size}, {ahead} ahead": (session.at(**size), ahead) for size in DRAFTS for ahead in AHEAD
    }
    equal = 0
    for helper, ahead in ways.values():
        pairs = zip(texts(draft=helper, ahead=ahead), wanted, strict=True)
        equal += sum(bool((a == b).all()) for a, b in pairs)
    total = len(ways) * len(given)
    work: dict[str, Callable[[], object]] = {"without": texts}
    work |= {name: lambda own=own: texts(draft=own[0], ahead=own[1]) for name, own in ways.items()}
    seen = interleaved({name: lambda run=run: cpu_seconds(run) for name, run in work.items()}, rounds, warmup=1)
    found = {name: ratio(seen["without"], seen[name]) for name in ways}
    best = max(found, key=lambda name: found[name].median)
    note = f"{numbers / 1e6:.1f} M parameters, draft {best}"
    title = "tokens a second with a draft / without, in onnxruntime, greedy, batch 1"
    return [
        row(title, found[best], target="≥ 1.5", held=found[best].median >= 1.5, note=note),
        Row(f"texts that are the same with a draft, of {total}", equal, target=f"{total}", held=equal == total),
        Row(
            "milliseconds a token of that model without a draft",
            1e3 * float(np.median(seen["without"])) / TOKENS / len(given),
        ),
    ]


def main() -> None:
    """Export, compare, time, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="an elastic run of text; without one a small model is trained")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="few steps, two rounds, and no result is written")
    parser.add_argument("--only", choices=["sizes", "drafts"], help="one part; the other rows stay")
    parser.add_argument("--large", type=Path, default=FOLDER, help="where the large model is, or is to be trained")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 2 if options.quick else options.rounds
    rows: list[Row] = []
    if options.only != "drafts":
        rows += sizes(options.run, rounds, QUICK_STEPS if options.quick else STEPS)
    if options.only != "sizes":
        with tempfile.TemporaryDirectory() as folder:
            large = Path(folder, "large") if options.quick else options.large
            rows += drafts(large_run(large, QUICK_STEPS if options.quick else None), Path(folder), rounds)
    table = Table("", "measured", "promised", "")
    for line in rows:
        table.add_row(line.name, line.shown, line.target, line.verdict)
    Console().print(table)
    if not options.quick:
        named = [str(size or "native") for size in SIZES]
        write("export", rows, part=options.only is not None, sizes=named, environment=environment())


def sizes(run: Path | None, rounds: int, steps: int) -> list[Row]:
    """All that is measured on a small model, trained for so many steps where no run is named."""
    with tempfile.TemporaryDirectory() as folder:
        if run is None:
            run = Path(folder) / "run"
            start("elastic", {"steps": steps, "below": 0}, run, device="cpu")
        model = ct.load(run).eval()
        whole = ct.export(run, Path(folder) / "all.onnx")
        small = ct.export(run, Path(folder) / "eight.onnx", int8=True, data=_held_out(run))
        session = ct.Session(whole.path, threads=1)
        return [
            *exactness(model, session),
            *times(model, session, ct.Session(small.path, threads=1), rounds),
            Row("eight bits, more held-out loss, nats a token", small.compared[0].more_loss),
            Row("eight bits, size of the file / float32", small.path.stat().st_size / whole.path.stat().st_size),
            Row("the file of all sizes", whole.path.stat().st_size / 1e6, unit="MB"),
        ]


def _held_out(run: Path) -> torch.Tensor | None:
    from continua.cli.export import held_out

    return held_out(run)


if __name__ == "__main__":
    main()
