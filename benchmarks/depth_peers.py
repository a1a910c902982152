"""Other people's solvers for ``depth.py``: torchdiffeq and torchode in this process, diffrax in one of its own.

A peer that is not installed is named in ``absent``. The child process that holds JAX (``depth_jax.py``) stays alive, so
that its rounds are interleaved with ours.
"""

import gc
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

PEERS = ("torchdiffeq", "torchode", "diffrax")
CONTEST = [("torchdiffeq", "rk4"), ("torchdiffeq", "dopri5"), ("torchode", "dopri5")]
CONTEST += [("diffrax", "RK4"), ("diffrax", "Dopri5")]
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
STEPS = 8  # of the solves that are timed
TOLERANCE = 1e-6  # rtol and atol where only time is measured: about 38 evaluations
WANTED = 5e-4  # relative forward error
MOST = 288  # evaluations of fixed steps that are tried
Solve = Callable[[Any], Any]  # from the start to the end


def absent() -> list[str]:
    """Peers that cannot be measured here."""
    return [name for name in PEERS if importlib.util.find_spec(name) is None]


class Counted:
    """A field f(z, x) that counts its evaluations."""

    def __init__(self, f: Callable[[Any, Any], Any]) -> None:
        self.f, self.calls = f, 0

    def __call__(self, z: Any, x: Any) -> Any:
        self.calls += 1
        return self.f(z, x)


# --- torch -----------------------------------------------------------------------------------------------------------


def torchdiffeq(
    f: Callable[[Any, Any], Any], method: str, steps: int = 0, rtol: float = 0.0, atol: float = 0.0
) -> Solve:
    """Fixed steps where their number is given."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it says while it is imported is not ours
        from torchdiffeq import odeint

    choices: dict[str, Any] = {"options": {"step_size": 1 / steps}} if steps else {"rtol": rtol, "atol": atol}
    return lambda x: odeint(f, x, torch.tensor([0.0, 1.0], dtype=x.dtype), method=method, **choices)[-1]


def torchdiffeq_gradient(case: Any, adjoint: bool) -> Any:
    """Gradients of the mean square of the end by backpropagation, or by the continuous adjoint, as one vector."""
    import torch
    from torchdiffeq import odeint, odeint_adjoint

    parameters, span = list(case.model.parameters()), torch.tensor([0.0, 1.0], dtype=case.x.dtype)
    choices: dict[str, Any] = {"method": "rk4", "options": {"step_size": 1 / STEPS}}
    choices |= {"adjoint_params": tuple(parameters)} if adjoint else {}
    end = (odeint_adjoint if adjoint else odeint)(case.varying(), case.x, span, **choices)[-1]
    return torch.cat([g.flatten() for g in torch.autograd.grad(end.square().mean(), parameters)]).double()


def torchode(f: Callable[[Any, Any], Any], method: str, steps: int = 0, rtol: float = 0.0, atol: float = 0.0) -> Solve:
    """It steps every sample by itself, and wants samples as rows. A scalar depth means one clock for all."""
    import torch
    import torchode as to

    def solve(x: Any) -> Any:
        term = to.ODETerm(lambda t, y: f(t, y.view(x.shape)).reshape(len(x), -1))
        step = {"dopri5": to.Dopri5, "tsit5": to.Tsit5, "heun": to.Heun, "euler": to.Euler}[method](term)
        control = to.FixedStepController() if steps else to.IntegralController(atol=atol, rtol=rtol, term=term)
        ends = torch.tensor([[0.0, 1.0]], dtype=x.dtype).repeat(len(x), 1)
        problem = to.InitialValueProblem(y0=x.reshape(len(x), -1), t_eval=ends)
        first = torch.full((len(x),), 1 / steps, dtype=x.dtype) if steps else None
        return to.AutoDiffAdjoint(step, control).solve(problem, dt0=first).ys[:, -1].view(x.shape)

    return solve


# --- how they are measured -------------------------------------------------------------------------------------------


def error(got: Any, wanted: Any) -> float:
    """Relative, in the Euclidean norm."""
    return float((got.double() - wanted).norm() / wanted.norm())


def paired(bare: Callable[[], object], work: Callable[[], object]) -> Callable[[], float]:
    """Percent by which ``work`` takes longer than ``bare``, each going first in turn."""
    from common import cpu_seconds

    flip = [False]

    def once() -> float:
        flip[0] = not flip[0]
        seconds = {job: cpu_seconds(job) for job in ((bare, work) if flip[0] else (work, bare))}
        return 100 * (seconds[work] / seconds[bare] - 1)

    return once


def evaluating(f: Callable[[Any, Any], Any], x: Any, depths: Sequence[float]) -> Callable[[], None]:
    def bare() -> None:
        for z in depths:
            f(z, x)

    return bare


def overhead(
    name: str, method: str, size: str, f: Callable[[Any, Any], Any], x: Any, child: "Diffrax | None"
) -> tuple[Callable[[], float], int]:
    """A measurement of a peer's overhead in percent, and how many evaluations it takes."""
    fixed = method.lower() == "rk4"
    if name == "diffrax" and child is not None:
        request = {"size": size, "method": method, "numbers": [TOLERANCE, TOLERANCE, 1 / STEPS if fixed else 0.0]}
        count, flip = child.ask(do="count", frozen=True, **request)["evaluations"], [False]

        def once() -> float:
            flip[0] = not flip[0]
            got = child.ask(do="pair", n=count, flip=flip[0], **request)
            return 100 * (got["solve"] / got["bare"] - 1)

        return once, count
    make = {"torchdiffeq": torchdiffeq, "torchode": torchode}[name]
    choices: dict[str, Any] = {"steps": STEPS} if fixed else {"rtol": TOLERANCE, "atol": TOLERANCE}
    counter = Counted(f)
    make(counter, method, **choices)(x)
    run = make(f, method, **choices)
    return paired(evaluating(f, x, [0.5] * counter.calls), lambda: run(x)), counter.calls


METHODS: dict[str, dict[str, int]] = {  # and their evaluations a step
    "Continua": {"Euler": 1, "ExplicitMidpoint": 2, "Heun": 2, "Bosh3": 3, "RK4": 4, "Dopri5": 6, "Tsit5": 6},
    "torchdiffeq": {
        "euler": 1,
        "midpoint": 2,
        "heun2": 2,
        "heun3": 3,
        "rk4": 4,
        "bosh3": 0,
        "dopri5": 0,
    },  # 0: adaptive only
    "torchode": {"euler": 1, "heun": 2, "dopri5": 6, "tsit5": 6},
    "diffrax": {"Euler": 1, "Midpoint": 2, "Heun": 2, "Bosh3": 3, "RK4": 4, "Dopri5": 6, "Tsit5": 6},
}
EMBEDDED = ("bosh3", "dopri5", "tsit5")
Attempt = Callable[[str, dict[str, Any]], tuple[int, float]]  # (method, steps or tolerances) ↦ evaluations, error


def attempting(name: str, f: Any, x: Any, truth: Any, child: "Diffrax | None") -> Attempt:
    """A peer's solve."""

    def attempt(method: str, choices: dict[str, Any]) -> tuple[int, float]:
        if name == "diffrax" and child is not None:
            steps = choices.get("steps", 0)
            numbers = [choices.get("rtol", 1.0), choices.get("atol", 1.0), 1 / steps if steps else 0.0]
            got = child.ask(do="count", size="small", method=method, frozen=False, numbers=numbers)
            return got["evaluations"], got["error"]
        counter = Counted(f)
        end = {"torchdiffeq": torchdiffeq, "torchode": torchode}[name](counter, method, **choices)(x)
        return counter.calls, error(end, truth)

    return attempt


def fewest(attempt: Attempt, methods: dict[str, int], scan: Sequence[float]) -> tuple[int, str]:
    """The fewest evaluations that reach the wanted error, over methods and tolerances, or numbers of steps."""
    best = (10**6, "not reached")

    def good(method: str, choice: dict[str, Any]) -> float:
        nonlocal best
        count, wrong = attempt(method, choice)
        how = ", ".join(f"{key} {value:.2g}" for key, value in choice.items())
        best = min(best, (count, f"{method}, {how}: {wrong:.1e}")) if wrong <= WANTED else best
        return wrong / WANTED

    for method, stages in methods.items():
        low, high = 1, 0 if scan or not stages else MOST // stages
        while low < high:  # the error falls with the number of steps
            middle = (low + high) // 2
            low, high = (low, middle) if good(method, {"steps": middle}) <= 1 else (middle + 1, high)
        for share in (1.0, 0.01) if method.lower() in EMBEDDED else ():
            any(good(method, {"rtol": r, "atol": r * share}) <= 0.3 for r in scan)  # from loose to tight, until clear
    return best


def saved_bytes(run: Callable[[], object]) -> int:
    """Tensor bytes alive after ``run``, while its answer is held, over those alive before: from the allocator's log."""
    import torch

    from continua.lab.cost.memory import silent

    run()  # buffers that are made once are not part of a step
    gc.collect()
    with silent(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as log:
        held = run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        log.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    del held
    return sum(event["args"]["Bytes"] for event in events if event.get("name") == "[memory]")


# --- diffrax ---------------------------------------------------------------------------------------------------------


class Diffrax:
    """The child process. ``ask(do=…)`` waits for its answer."""

    def __init__(self, folder: Path) -> None:
        settings = {"XLA_FLAGS": ONE_THREAD, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("depth_jax.py")), str(folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | settings
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        to, back = cast(TextIO, self.process.stdin), cast(TextIO, self.process.stdout)
        print(json.dumps(request), file=to, flush=True)
        answer = back.readline()
        if not answer:
            raise SystemExit("diffrax: its process ended; see the message above")
        return json.loads(answer)

    def close(self) -> None:
        cast(TextIO, self.process.stdin).close()
        self.process.wait()
