"""One command on two processes: data-parallel copies and sharded weights walk the curve of one process.

What they compute is looked at in processes that are forked; ``torchrun`` itself starts those of which one is killed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from continua.axes import at
from continua.convert import elastic, with_corrections
from continua.fields import Corrections
from continua.models import zoo
from continua.optim import AdamW, ByRole, Muon
from continua.training import (
    Afterwards,
    ByGap,
    Copied,
    Elastic,
    Growth,
    KineticEnergy,
    Progress,
    Run,
    SizeLaw,
    Stage,
    compiled,
    fit,
)
from continua.training.distributed import World, joined
from tests.forked import together
from tests.runs import silent, states, steps_of, tiny_model, tiny_task, tiny_text

ROOT = Path(__file__).resolve().parents[2]
STEPS, FEW = 30, 8
KINDS = {"copied": False, "sharded": True}
CLOSE = {"float64": 1e-9, "float32": 1e-5}
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "localhost:0"]


def trained(run: Any, precision: str, sharded: bool = False, watch: Any = None) -> Any:
    """The same call for one process and for two; five samples do not divide evenly."""
    return fit(
        tiny_model(steps=1),
        tiny_task(batch=5),
        run=Run.open(run) if (Path(run) / "run.json").is_file() else run,
        optimiser=ByRole(AdamW(2e-3)),  # the recipe's: with five times that, round-off of float32 grows beyond 1e-5
        penalties=1e-2 * KineticEnergy(),
        watch=watch or silent,
        steps=FEW if Path(run).name.endswith("few") else STEPS,
        accumulate=2 if Path(run).name.endswith("few") else 1,
        precision=precision,
        sharded=sharded,
        evaluate_every=15,
        save_every=15,
    )


def grown(run: Path, law: SizeLaw | None = None, later: bool = True, sharded: bool = False) -> Any:
    """A model that grows twice, from few and short texts on, its new nodes copies, with lessons for other sizes.

    Corrections of a quarter of the width learn afterwards, on whole weights.
    """
    torch.manual_seed(0)
    model = elastic(zoo.gpt2(vocab=tiny_task().tokens.size, d=16, heads=2, depth=2, context=8))
    model = with_corrections(model, Corrections(2, "d", beyond=1.0)).double()
    first = Stage((at(t=4, d=8, h=1, z=1),), 0.3, batch=0.3)  # five of sixteen samples do not divide evenly
    stages = (first, Stage((at(d=8),), 0.6), Stage((at(),), 0.8, batch=0.5))
    return fit(
        model,
        tiny_task(batch=16),  # lessons on a quarter of half of it are whole samples of either process
        run=run,
        optimiser=ByRole(AdamW(2e-3), kernel=Muon(0.01)),
        watch=silent,
        steps=10,
        grow=Growth(stages, Copied()),
        elastic=Elastic(start=0.0, draws=1) if law is None else Elastic(law=law),
        afterwards=Afterwards(0.3, (at(d=4),)) if later else None,
        sharded=sharded,
        evaluate_every=10,
    )


def graphed(run: Path, sharded: bool = False) -> Any:
    """The same by graphs; five samples are three for one process and two for the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "BACKEND", "aot_eager")
        return fit(
            tiny_model(steps=1, double=True),
            tiny_task(batch=5),
            run=run,
            optimiser=ByRole(AdamW(2e-3)),
            watch=silent,
            steps=4,
            compile=True,
            sharded=sharded,
            evaluate_every=4,
        )


def stop(at: Progress) -> None:
    """Somebody presses Ctrl-C on one of the processes."""
    if at.step == FEW // 2:
        os.kill(os.getpid(), signal.SIGINT)


def work(folder: Path) -> None:
    """What each process does: whole runs, runs to be gone on with by one process, and runs that one process began."""
    with joined():
        for kind, sharded in KINDS.items():
            for precision in CLOSE:
                trained(folder / f"{kind}-{precision}", precision, sharded)
            assert trained(folder / f"{kind}-begun-few", "float64", sharded, stop).ended == "interrupted"
            assert trained(folder / f"{kind}-ended-few", "float64", sharded).ended == "done"
        grown(folder / "copied-grown")
        grown(folder / "copied-gap", ByGap())
        grown(folder / "sharded-grown", later=False, sharded=True)


def work_by_graphs(folder: Path) -> None:
    with joined():
        for kind, sharded in KINDS.items():
            graphed(folder / kind, sharded)


def torchrun(*words: str) -> subprocess.Popen[str]:
    line = [sys.executable, *TORCHRUN, *words]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(line, cwd=ROOT, env=alone, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """All that two processes do, in one job, beside the same by one process."""
    folder = tmp_path_factory.mktemp("ranks")
    for precision in CLOSE:
        trained(folder / f"one-{precision}", precision)
    trained(folder / "one-few", "float64")
    grown(folder / "one-grown")
    grown(folder / "one-gap", ByGap())
    grown(folder / "one-grown-alone", later=False)
    for kind in KINDS:
        assert trained(folder / f"{kind}-ended-few", "float64", watch=stop).ended == "interrupted"
    together(work, folder, folder=folder)
    for kind in KINDS:
        assert trained(folder / f"{kind}-begun-few", "float64").ended == "done"
    return folder


def curve(run: Path, name: str = "loss") -> torch.Tensor:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return torch.tensor([line[name] for line in lines if name in line], dtype=torch.float64)


@pytest.mark.spec("B8", "T9", "D7")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("precision", "close"), CLOSE.items())
def test_the_curve_is_that_of_one_process_on_the_same_batch(done, kind, precision, close) -> None:
    run, one = done / f"{kind}-{precision}", done / f"one-{precision}"
    assert steps_of(run) == list(range(1, STEPS + 1))
    for name in ("loss", "running", "validation_loss"):
        assert (curve(run, name) - curve(one, name)).abs().max() < close, name
    assert curve(one)[-5:].mean() < curve(one)[:5].mean() - 0.05, "it learned"


@pytest.mark.spec("B8", "T9")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["begun", "ended"])
def test_a_checkpoint_of_two_processes_goes_on_with_one_and_back(done, kind, which) -> None:
    run, one = done / f"{kind}-{which}-few", done / "one-few"
    assert steps_of(run) == list(range(1, FEW + 1))
    assert (curve(run) - curve(one)).abs().max() < CLOSE["float64"]
    found, wanted = (Run.open(folder).model("last").state_dict() for folder in (run, one))
    for name, value in wanted.items():
        assert found[name].shape == value.shape
        if not name.endswith("bk.coefficients"):  # no loss depends on these: their gradient is round-off
            assert (found[name] - value).abs().max() < 1e-6, name


@pytest.mark.spec("B8", "B1", "T11")
@pytest.mark.parametrize("law", ["grown", "gap"])
def test_two_processes_grow_as_one_does(done, law) -> None:
    run, one = done / f"copied-{law}", done / f"one-{law}"
    for name in ("loss", "elastic"):
        assert (curve(run, name) - curve(one, name)).abs().max() < CLOSE["float64"], name
    assert len(curve(one, "elastic")) == 4, "lessons when it has grown"


@pytest.mark.spec("B8", "B15", "T11")
def test_sharded_weights_grow_as_whole_ones_do(done) -> None:
    run, one = done / "sharded-grown", done / "one-grown-alone"
    for name in ("loss", "elastic"):
        assert (curve(run, name) - curve(one, name)).abs().max() < CLOSE["float64"], name
    found, wanted = (Run.open(folder).model("last").state_dict() for folder in (run, one))
    for name, value in wanted.items():
        if not name.endswith("bk.coefficients"):  # no loss depends on these: their gradient is round-off
            assert (found[name] - value).abs().max() < 1e-6, name


@pytest.mark.slow(reason="three processes trace a fit")
@pytest.mark.spec("B8", "B9")
def test_two_processes_walk_the_curve_of_one_by_graphs_too(tmp_path) -> None:
    one = tmp_path / "one"
    graphed(one)
    together(work_by_graphs, tmp_path, folder=tmp_path)
    for kind in KINDS:
        for name in ("loss", "validation_loss"):
            assert (curve(tmp_path / kind, name) - curve(one, name)).abs().max() < CLOSE["float64"], (kind, name)
    assert len(curve(one).unique()) == 4, "it moves"


def test_what_two_processes_wrote_is_what_one_would_have_written(done) -> None:
    names = [sorted(path.name for path in next(states(done / kind)).iterdir()) for kind in
             ("one-float64", "copied-float64", "sharded-float64")]  # fmt: skip
    whole = {"model.safetensors", "optimiser.safetensors"}
    assert names[0] == names[1]
    assert sorted(whole | {name for name in names[2] if not name.startswith("shard-")}) == names[0]
    plain = [json.loads((next(states(done / f"{k}-float64")) / "optimiser.json").read_text()) for k in ("one", *KINDS)]
    assert plain[0] == plain[1] == plain[2]


@pytest.mark.spec("B8")
def test_a_killed_process_ends_the_job_with_a_message(tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(tiny_text())
    run = tmp_path / "run"
    small = {"d": 8, "heads": 2, "depth": 1, "context": 8, "batch": 4, "steps": 100_000, "save_every": 20}
    changes = [word for k, v in {**small, "evaluate_every": 100_000}.items() for word in ("--set", f"{k}={v}")]
    job = torchrun("-m", "continua.cli", "fit", "text", "--text", str(text), "--folder", str(run), *changes)
    try:
        wait_until(lambda: any(states(run)), job)
        leader = int((run / "lock").read_text())
        (other,) = {process for process in children(job.pid) if process != leader}
        os.kill(other, signal.SIGKILL)
        began = time.monotonic()
        _, said = job.communicate(timeout=60)
        assert time.monotonic() - began < 45
    finally:
        job.kill()
        job.wait()
    assert job.returncode != 0
    assert "another process of this run has gone" in said or "Signal 9 (SIGKILL)" in said, said[-3000:]
    assert Run.open(run).newest() is not None, "what was saved stays"
    assert not alive(leader), "nobody is left waiting"


def test_a_process_that_has_gone_is_named_as_the_reason() -> None:
    from continua.errors import RunError

    pair = World(0, 2)
    with (
        pytest.raises(
            RunError, match=r"process of this run has gone, got a link that closed or timed out.*resume"
        ) as end,
        pair.reaching(),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:12345")
    assert "Connection closed by peer" in str(end.value.__cause__)
    with pytest.raises(RuntimeError, match="size of tensor"), pair.reaching():
        raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")


def wait_until(happened: Any, job: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        if happened():
            return
        if job.poll() is not None:
            break
        time.sleep(0.1)
    pytest.fail(f"the job ended or hung: {job.communicate(timeout=5)[1][-3000:] if job.poll() is not None else 'hung'}")


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
