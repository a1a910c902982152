"""The guide "From a laptop to a cluster": every line of it is started here, on two to four processes of one machine."""

import itertools
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runs import steps_of, tiny_text

pytestmark = pytest.mark.spec("B8", "B15")
ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "cluster.md").read_text(encoding="utf-8")
STEPS = 3
SMALL = {"d": 8, "heads": 2, "depth": 1, "context": 8, "batch": 4, "steps": STEPS, "evaluate_every": STEPS}
LINES = re.findall(r"^\$ (torchrun .*)$", GUIDE, re.MULTILINE)
ALONE = [line for line in LINES if "--nnodes" not in line]
TOGETHER = [line for line in LINES if "--nnodes" in line]


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    return str(found)


def job() -> Any:
    """The containers' words of the Kubernetes job, with the whole of it."""
    import yaml

    service, described = yaml.safe_load_all(block("yaml"))
    return service, described, described["spec"]["template"]["spec"]["containers"][0]


def changes(folder: Path) -> list[str]:
    """What makes a line of the guide small, and lets it write elsewhere; what is said last counts."""
    text = folder / "text.txt"
    text.write_text(tiny_text())
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    return ["--text", str(text), "--folder", str(folder / "run"), "--device", "cpu", *settings]


def surroundings(**more: str) -> dict[str, str]:
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": beside, **more}


def begun(words: Sequence[str], **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words, cwd=ROOT, env=surroundings(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(jobs: Sequence[subprocess.Popen[str]]) -> None:
    """Wait for all; nothing is left running."""
    until = time.monotonic() + 240
    try:
        for one in jobs:
            said, _ = one.communicate(timeout=max(1.0, until - time.monotonic()))
            assert one.returncode == 0, said[-3000:]
    finally:
        for one in jobs:
            one.kill()
            one.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def port() -> int:
    return free_port()


def test_the_guide_has_lines_for_one_machine_and_for_several() -> None:
    assert len(ALONE) >= 4
    assert len(TOGETHER) >= 1
    assert all("-m continua fit" in line for line in LINES)


def test_the_kubernetes_job_says_what_the_slurm_script_says() -> None:
    service, described, container = job()
    assert container["command"] == ["torchrun"]
    words = [word for arg in container["args"] for word in arg.split("=", 1)]
    options = dict(itertools.pairwise(words))
    spec = described["spec"]
    assert spec["completionMode"] == "Indexed"
    assert int(options["--nnodes"]) == spec["completions"] == spec["parallelism"]
    assert int(options["--nproc-per-node"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    name = f"{described['metadata']['name']}-0.{service['metadata']['name']}"
    assert options["--rdzv-endpoint"] == f"{name}:29500"
    assert service["spec"]["selector"] == {"job-name": described["metadata"]["name"]}
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    fitted = block("bash").partition("-m continua")[2].replace("runs/cluster", "/runs/cluster").split()
    assert fitted == [word for arg in container["args"][6:][1:] for word in arg.split("=", 1)]


@pytest.mark.slow(reason="torchrun starts two to four interpreters")
@pytest.mark.parametrize("line", ALONE, ids=[line.partition("continua ")[2] for line in ALONE])
def test_a_line_for_one_machine_runs(line: str, tmp_path: Path, port: int) -> None:
    words = shlex.split(line)
    ended([begun([words[0], "--master-port", str(port), *words[1:], *changes(tmp_path)])])
    assert steps_of(tmp_path / "run") == list(range(1, STEPS + 1))


@pytest.mark.slow(reason="two torchruns start two interpreters each")
@pytest.mark.parametrize("line", TOGETHER)
def test_a_line_for_several_machines_runs_twice_on_loopback_and_goes_on(line: str, tmp_path: Path, port: int) -> None:
    words = shlex.split(line.replace("node0:29500", f"localhost:{port}"))
    told = changes(tmp_path)
    ended([begun([*words, *told]) for _ in range(2)])
    assert steps_of(tmp_path / "run") == list(range(1, STEPS + 1))
    ended([begun([*words, *told, "--set", f"steps={STEPS + 2}"]) for _ in range(2)])
    assert steps_of(tmp_path / "run") == list(range(1, STEPS + 3))


@pytest.mark.slow(reason="two torchruns start two interpreters each")
def test_the_slurm_script_runs_where_srun_starts_it_on_two_nodes(tmp_path: Path, port: int) -> None:
    script = tmp_path / "job.sh"
    text = block("bash").replace(":29500", f":{port}").replace("OMP_NUM_THREADS=4", "OMP_NUM_THREADS=1")
    script.write_text(text.rstrip() + " " + shlex.join(changes(tmp_path)) + "\n")
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, content in {
        "scontrol": "echo localhost; echo localhost",
        "srun": '"$@" & one=$!; "$@" & wait $one; first=$?; wait $!; second=$?; exit $((first + second))',
    }.items():  # what a scheduler does, on one machine
        (commands / name).write_text(f"#!/bin/bash\n{content}\n")
        (commands / name).chmod(0o755)
    slurm = {
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_JOB_ID": "7",
    }
    path = f"{commands}{os.pathsep}{surroundings()['PATH']}"
    ended([begun(["bash", "-e", str(script)], PATH=path, **slurm)])
    assert steps_of(tmp_path / "run") == list(range(1, STEPS + 1))
