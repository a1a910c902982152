"""The command line in this process: verbs with mutated words."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from fuzzing.case import Case
from fuzzing.draw import Draw


def typed(words: list[str]) -> int:
    """Run the app beneath its last resort: what ``main`` would turn into a sentence is still an error here."""
    from typer.main import get_command

    from continua.cli import app
    from continua.errors import ContinuaError

    try:
        code = get_command(app).main(words, standalone_mode=False)
    except SystemExit as end:
        code = end.code
    except Exception as problem:
        kinds = {kind.__name__ for kind in type(problem).__mro__}  # typer brings a click of its own
        if "ClickException" in kinds:  # unknown options, missing arguments: it says what and how to go on
            raise ContinuaError(f"{problem}".rstrip("."), remedy="See --help.") from problem
        if not kinds & {"Exit", "Abort"}:
            raise
        code = getattr(problem, "exit_code", 130)
    return code if isinstance(code, int) else 0


SIZES = (
    "d=8",
    "d=8,h=1",
    "z=1",
    "",
    "d=0",
    "d=x",
    "d",
    "=",
    "q=3",
    "d=99999999",
    "latency=2ms",
    "latency=x",
    "d=4,d=8",
    "d=1e3",
    "é",
)
SETS = (
    "steps=1", "d=8", "lr=0.01", "heads=1", "discrete=false", "discrete=False", "clip=-1", "lr=abc", "d=-8", "d=8.5",
    "d=1e9", "steps=0", "nonsense=3", "=3", "steps", "steps=", "batch=None", "lr=nan", "patience=0", "precision=x",
    "context=[4]", "seed=-1", "depth=100000000", "steps='2'", "text=3", "evaluate_every=True",
)  # fmt: skip
TEXTS = ("a", "", "aé\x00", "x" * 2000, "\n", "[/x]", "🐈")
NUMBERS = ("3", "0", "-1", "1.5", "x", "", "nan", "inf", "1e9", "99999999999999999999")


def cli(draw: Draw) -> Case:
    """A verb and its words."""
    from fuzzing.corpus import KEPT

    place = Path("run").absolute()
    if place.is_symlink() or place.is_file():
        place.unlink()
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(KEPT / "run", place)
    shutil.rmtree("out", ignore_errors=True)
    folder = draw.spoil(
        "folder", str(place), ("", "nowhere", "/etc", "/dev/null", str(place / "run.json"), "\0", "[/x]", ".")
    )
    words = _words(draw, draw.pick("verb", VERBS), folder)
    if draw.spoils("extra"):
        words.insert(
            1, draw.note("extra", draw.pick("word", ("--nonsense", "--out", "extra", "--help", "-x", "--seed=x")))
        )

    def run() -> int:
        here = os.getcwd()
        try:
            os.chdir(place)
            return typed(words)
        finally:
            os.chdir(here)

    def judge(code: int) -> Iterable[str]:
        if code not in (0, 2):
            yield f"code: {code}"

    return Case(f"continua {' '.join(repr(word) for word in words)}", run, judge)


VERBS = (
    "inspect",
    "inspect",
    "generate",
    "generate",
    "generate",
    "fit",
    "resume",
    "predict",
    "predict",
    "help",
    "help",
    "check",
    "inspect",
    "slow",
)


def _words(draw: Draw, verb: str, folder: str) -> list[str]:
    if verb == "slow":  # they draw, or measure times
        verb = draw.pick("slow", ("pareto", "simulate"))
    if verb == "inspect":
        size = draw.spoil("at", draw.pick("size", SIZES[:4]), SIZES, least=0.3)
        return ["inspect", folder, *(["--at", size] if size else [])]
    if verb == "generate":
        words = ["generate", folder, "--tokens", draw.spoil("tokens", "3", NUMBERS)]
        words += ["--prompt", draw.spoil("prompt", "a", TEXTS, least=0.2)]
        words += ["--at", draw.spoil("at", draw.pick("size", SIZES[:4]), SIZES)]
        words += ["--temperature", draw.spoil("temperature", "0.8", NUMBERS)]
        return [*words, "--which", draw.spoil("which", "best", ("BEST", "last", "", "x"))]
    if verb in ("fit", "resume"):
        changes = [draw.spoil(f"set{i}", "steps=1", SETS, least=0.5) for i in range(draw.whole("sets", 0, 2))]
        sets = [word for change in changes for word in ("--set", change)]
        if verb == "resume":
            return ["fit", "--resume", folder, *sets]
        small = [
            w for s in ("d=8", "heads=2", "depth=1", "context=8", "batch=2", "evaluate_every=1") for w in ("--set", s)
        ]
        recipe = draw.spoil("recipe", "text", ("", "txt", "nowhere.py:f", "poem.txt:f", "text:f", "../x.py", "elastic"))
        text = draw.spoil("text", "poem.txt", ("nowhere.txt", "", ".", "run.json", "/dev/null"))
        return [
            "fit",
            recipe,
            "--text",
            text,
            "--folder",
            draw.spoil("out", "new", ("/proc/x", "poem.txt", "", ".")),
            *small,
            "--set",
            "steps=1",
            *sets,
        ]
    if verb == "pareto":
        return [
            "pareto",
            folder,
            "--size",
            draw.spoil("size", "d=8,h=1", SIZES),
            "--windows",
            draw.spoil("windows", "1", NUMBERS[:8]),
        ]
    if verb == "predict":
        return ["predict", folder, "--grid", draw.pick("grid", ("poem.txt", "run.json", "nowhere.npz", "", "."))]
    if verb == "simulate":
        what = draw.spoil("what", draw.pick("kind", ("circle", "sphere")), ("cube", "", "meanfield"))
        n = draw.spoil("n", "4", NUMBERS[:8])
        beta = draw.spoil("beta", "2", NUMBERS[:8])
        return [
            "simulate",
            what,
            "--n",
            n,
            "--beta",
            beta,
            "--until",
            draw.spoil("until", "0.2", NUMBERS[:8]),
            "--set",
            draw.spoil("set", "film=0", SETS),
            "--out",
            "out",
        ]
    if verb == "check":
        return ["check", "--out", draw.pick("where", ("/proc/x", "run.json", "run.json/x"))]
    return [
        *draw.pick(
            "helped", (("--help",), ("fit", "--help"), ("--version",), ("generate", "--help"), ("nonsense",), ())
        )
    ]
