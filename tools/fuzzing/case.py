"""One case: what is called, how its answer is judged, and what came of it."""

import gc
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

SECONDS = 10.0  # more time of the processor is a hang
WAITING = 60.0  # so is this on the clock, for what waits and computes nothing: a busy machine is slower than itself
MEGABYTE = 1 << 20
ALLOWED_BYTES = 64 * MEGABYTE
GOOD = ("right", "refused")


@dataclass
class Case:
    """``call`` is the library's work; ``judge`` yields a sentence for everything that is wrong with its answer.

    ``asked`` are the bytes of an answer that is large because a large one was asked for; a refusal has none of them.
    """

    said: str
    call: Callable[[], Any]
    judge: Callable[[Any], Iterable[str]] = lambda _: ()
    asked: int = 0


@dataclass
class Outcome:
    """What came of a case. ``cause`` groups the failures that one mend will end."""

    seed: int
    family: str
    kind: str  # right, refused, bare, hang, flag, memory, crash, mute (no remedy), unmade (by the fuzzer)
    cause: str = ""
    detail: str = ""
    said: str = ""
    spoilt: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    bytes: int = 0
    accepted: bool = False

    @property
    def good(self) -> bool:
        return self.kind in GOOD

    def plain(self) -> dict[str, Any]:
        return asdict(self)


class Hang(BaseException):
    """Raised by the alarm; no ``except Exception`` swallows it."""


def _alarm(_signal: int, _frame: FrameType | None) -> None:
    raise Hang


def peak_bytes() -> tuple[int, int]:
    """Resident bytes now, and at most since ``forget_peak``."""
    now = most = 0
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                most = int(line.split()[1]) * 1024
            elif line.startswith("VmRSS:"):
                now = int(line.split()[1]) * 1024
    return now, most


def forget_peak() -> None:
    """Let the peak start from here."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:  # not Linux: memory is not judged
        pass


def attempt(seed: int, family: str, make: Callable[[], Case], spoilt: dict[str, str]) -> Outcome:
    """Make the case and run it, whatever happens."""
    outcome = Outcome(seed, family, "right", spoilt=spoilt)
    for alarm in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(alarm, _alarm)
    started = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WAITING)
        _run(make, outcome)
    except Hang as hang:
        outcome.kind = "hang"
        outcome.cause = f"hang at {_place(hang)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    outcome.seconds = round(time.perf_counter() - started, 4)
    return outcome


def _run(make: Callable[[], Case], outcome: Outcome) -> None:
    from continua.errors import ContinuaError

    try:
        case = make()
    except Exception as problem:  # of the fuzzer, or an older library without the name
        _bare(problem, outcome)
        outcome.kind = "unmade"
        return
    outcome.said = case.said
    forget_peak()
    before, _ = peak_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            answer = case.call()
        except ContinuaError as refusal:
            outcome.kind = "refused"
            outcome.detail = str(refusal)
            _look_at_refusal(str(refusal), refusal, outcome)
            _weigh(before, outcome)
            return
        except Exception as problem:
            _bare(problem, outcome)
            return
        outcome.accepted = True
        _weigh(before, outcome, case.asked)  # most cases are small: what takes more than a refusal was not asked for
        try:
            flags = list(case.judge(answer))
        except Exception as problem:
            _bare(problem, outcome)
            outcome.cause = f"judging: {outcome.cause}"
            return
    if flags:
        outcome.kind = "flag"
        outcome.detail = "; ".join(flags)
        outcome.cause = f"{outcome.family}: {flags[0].split(':')[0]}"


def _look_at_refusal(message: str, refusal: BaseException, outcome: Outcome) -> None:
    """A refusal is one line of two sentences: what and got, then a remedy."""
    whole = message.rstrip().endswith((".", "?", "!")) and "\n" not in message
    if not whole or not any(mark in message[:-1] for mark in (". ", "? ", ".) ", "’ ", '." ')):
        outcome.kind = "mute"
        outcome.cause = f"no remedy: {_place(refusal)}"


def _weigh(before: int, outcome: Outcome, asked: int = 0) -> None:
    _, most = peak_bytes()
    allowed = ALLOWED_BYTES + asked
    outcome.bytes = max(0, most - before)
    if outcome.bytes > allowed and outcome.kind in GOOD:
        gc.collect()
        outcome.kind = "memory"
        outcome.cause = f"memory: {outcome.family}"
        outcome.detail = f"{outcome.bytes / MEGABYTE:.0f} MB, allowed {allowed / MEGABYTE:.0f}; {outcome.detail}"


def _bare(problem: BaseException, outcome: Outcome) -> None:
    outcome.kind = "bare"
    outcome.cause = f"{type(problem).__name__} at {_place(problem)}"
    outcome.detail = f"{type(problem).__name__}: {problem}"[:400]


def _place(problem: BaseException) -> str:
    """The innermost line of the library."""
    frames = traceback.extract_tb(problem.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}continua{os.sep}" in frame.filename]
    if not ours:
        return f"the fuzzer ({frames[-1].name if frames else '?'})"
    last = ours[-1]
    inside = last.filename.rpartition(f"{os.sep}continua{os.sep}")[2]
    return f"{inside}:{last.name}"
