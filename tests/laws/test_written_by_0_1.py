"""What 0.1 wrote is read: every kept folder answers with the numbers of its time, and a kept run goes on."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from continua.recipes import resume
from continua.recipes.text import TextSettings

KEPT = Path(__file__).resolve().parents[1] / "written_by_0_1"
FOLDERS = sorted(path.parent.name for path in KEPT.glob("*/answers.safetensors"))
SMALLER = {
    "gpt2": {"d": 4, "h": 1, "e": 4},
    "continuous-words": {"d": 6, "h": 1, "z": 3},
    "continuous-series": {"d": 6, "h": 1, "z": 3},
    "elastic": {"d": 8, "h": 2, "z": 2},
}
ROUND_OFF = 1e-12  # float64: the order of sums may differ between versions, nothing else
LOSS, WEIGHT = 1e-6, 1e-6  # float32, relative and absolute, after three steps of training
UNSEEN = "block.parts.0.inner.bk.coefficients"  # no softmax sees it: its gradient is round-off, other on each processor

# Each folder is read by a process of its own, that has imported no more than what ``ct.load`` needs to be called: a
# kind must be found wherever it lives. The processes are forked, so that torch is imported once for all of them.
SCRIPT = """
import json, os, pathlib, sys, traceback
import torch
from safetensors.torch import load_file, save_file
import continua as ct

read = ct.load
kept, out, smaller = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])


def batch_of(tensors, prefix=""):
    own = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
    known = {name: own[name] for name in ("values", "times", "observed") if name in own}
    source = batch_of(tensors, "source.") if not prefix and any(n.startswith("source.") for n in tensors) else None
    return ct.Batch(**known, source=source)


@torch.no_grad()
def answer(folder):
    batch, model = batch_of(load_file(kept / folder / "answers.safetensors")), read(kept / folder).eval()
    found = {"answer": model(batch)}
    if folder in smaller:
        found["smaller"] = model.at(**smaller[folder])(batch)
    save_file({name: x.contiguous() for name, x in found.items()}, out / f"{folder}.safetensors")


for folder in sys.argv[4:]:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    try:
        answer(folder)
    except BaseException:
        (out / f"{folder}.txt").write_text(traceback.format_exc())
    os._exit(0)
"""


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the answers of this version are: a file for each folder, or the reason why there is none."""
    out = tmp_path_factory.mktemp("answers")
    given = [str(KEPT), str(out), json.dumps(SMALLER), *FOLDERS]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}  # a process with threads of its own cannot be forked safely
    subprocess.run([sys.executable, "-c", SCRIPT, *given], check=True, env=quiet)
    return out


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.spec("M10")
def test_a_folder_answers_as_it_did(folder: str, answered: Path) -> None:
    failed = answered / f"{folder}.txt"
    assert not failed.exists(), failed.read_text()
    expected = load_file(KEPT / folder / "answers.safetensors")
    found = load_file(answered / f"{folder}.safetensors")
    assert set(found) == {name for name in ("answer", "smaller") if name in expected}
    for name, value in found.items():
        assert value.dtype == torch.float64
        assert torch.allclose(value, expected[name], rtol=ROUND_OFF, atol=ROUND_OFF, equal_nan=True), name


@pytest.mark.spec("M10", "T9")
def test_a_run_goes_on_to_the_same_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(KEPT / "run", tmp_path / "run"))
    monkeypatch.chdir(folder)
    fitted = resume(".")
    expected = [json.loads(line) for line in (folder / "expected.jsonl").read_text().splitlines()]
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert fitted.run is not None
    assert len(found) == len(expected) == 6
    for line, wanted in zip(found, expected, strict=True):
        assert set(line) == set(wanted)
        assert line["step"] == wanted["step"]
        for name in set(wanted) - {"step", "seconds"}:
            assert line[name] == pytest.approx(wanted[name], rel=LOSS), f"{name} at step {line['step']}"
    weights = fitted.run.model().state_dict()
    wanted = load_file(folder / "expected.safetensors")
    assert set(weights) == set(wanted)
    rate = TextSettings().lr * sum(line["factor"] for line in expected[3:])
    for name, value in wanted.items():
        bound = 2 * rate if name == UNSEEN else WEIGHT  # AdamW makes steps of its length of round-off, to either side
        assert float((weights[name] - value).abs().max()) <= bound, name
