"""Run every command and every Python block of README.md and docs/start, as a newcomer would: from an empty folder.

    python tools/try_readme.py                  # all pages; `make try-readme` is the same
    python tools/try_readme.py docs/start/index.md

Each page gets an empty folder of its own and runs from top to bottom: commands in a shell, Python blocks in one
namespace. A block that shows an output is compared with it: ``...`` stands for anything, numbers may differ by a
twentieth. A comment before a block says what is done differently, and is printed:

    <!-- try: skip REASON -->        the block is not run
    <!-- try: first COMMAND -->      this is run before the block: a file that the reader is assumed to have
    <!-- try: add ARGUMENTS -->      these are added to the first command: a shorter training
    <!-- try: as OLD => NEW -->      this text is replaced in the commands: a size that fits the shorter training
"""

import contextlib
import doctest
import io
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/start")
SECONDS = 300  # a command of a first hour that takes longer is a fault
CLOSE = 0.05
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?")
FENCE = re.compile(r"^(`{3,})(\w*)\s*$")
DIRECTIVE = re.compile(r"^<!-- try: (skip|first|add|as) (.+) -->$")


@dataclass(frozen=True)
class Block:
    """One fenced block, where it begins, and what the comments before it say."""

    language: str
    line: int
    text: str
    said: tuple[tuple[str, str], ...] = ()

    def of(self, kind: str) -> list[str]:
        """What the comments of one kind say."""
        return [text for name, text in self.said if name == kind]


@dataclass
class Trial:
    """What became of a page."""

    page: str
    ran: int = 0
    skipped: int = 0
    faults: list[str] = field(default_factory=list)


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page with the comments that stand right before them."""
    said: list[tuple[str, str]] = []
    inside: list[str] | None = None
    language = ""
    begins = 0
    for number, line in enumerate(text.splitlines(), start=1):
        fence = FENCE.match(line.strip())
        if inside is not None:
            if fence:
                yield Block(language, begins, "\n".join(inside), tuple(said))
                inside = None
                said = []
            else:
                inside.append(line)
        elif fence:
            inside = []
            language = fence[2]
            begins = number + 1
        elif found := DIRECTIVE.match(line.strip()):
            said.append((found[1], found[2]))
        elif line.strip():
            said = []


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown under it."""
    command, shown = "", []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, "\n".join(shown)
            command = re.sub(r"\s{2,}#.*$", "", line[2:])
            shown = []
        elif command:
            shown.append(line)
    if command:
        yield command, "\n".join(shown)


def agrees(wanted: str, got: str) -> bool:
    """Whether an output is the wanted one: ``...`` stands for anything, numbers are compared as numbers."""
    parts: list[str] = []
    numbers: list[float] = []
    place = 0
    plain = " ".join(wanted.split())
    for found in NUMBER.finditer(plain):
        parts.append(re.escape(plain[place : found.start()]))
        numbers.append(float(found[0].replace(",", "")))
        place = found.end()
    pattern = f"({NUMBER.pattern})".join([*parts, re.escape(plain[place:])]).replace(re.escape("..."), ".*?")
    match = re.fullmatch(pattern, " ".join(got.split()))
    if match is None:
        return False
    seen = [float(text.replace(",", "")) for text in match.groups()]
    return all(math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-9) for a, b in zip(numbers, seen, strict=True))


class Checker(doctest.OutputChecker):
    """Doctest's own comparison, then ours."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Whether the output is the wanted one."""
        return super().check_output(want, got, optionflags) or agrees(want, got)


def shell(command: str, folder: Path) -> tuple[int, str]:
    """Run one command in a folder where ``continua`` and ``python`` are those of this interpreter."""
    tools = folder.parent / "bin"
    tools.mkdir(exist_ok=True)
    for name, means in (("continua", "-m continua"), ("python", "")):
        script = tools / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {means} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    inherited = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])
    surroundings = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": paths,
        "COLUMNS": "200",
    }
    try:
        done = subprocess.run(
            command, shell=True, cwd=folder, env=surroundings, timeout=SECONDS,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, f"it took more than {SECONDS} seconds"
    return done.returncode, done.stdout


def changed(command: str, block: Block, is_first: bool) -> str:
    """The command as it is run: in the environment at hand, and as the comments say."""
    command = command.replace(".venv/bin/", "").replace("python examples/", f"python {ROOT}/examples/")
    for text in block.of("as"):
        old, _, new = text.partition(" => ")
        command = command.replace(old, new)
    return " ".join([command, *(block.of("add") if is_first else [])])


def try_console(block: Block, folder: Path, trial: Trial) -> None:
    """Run the commands of a block."""
    for extra in block.of("first"):
        shell(extra, folder)
    for number, (written, shown) in enumerate(commands(block)):
        command = changed(written, block, number == 0)
        began = time.perf_counter()
        code, output = shell(command, folder)
        trial.ran += 1
        note = "" if command == written else f"   (written: {written})"
        say(f"  {time.perf_counter() - began:6.1f} s  $ {command}{note}")
        if code != 0:
            trial.faults.append(f"{trial.page}:{block.line}: $ {command} ended with {code}\n{output[-1500:]}")
        elif shown.strip() and not agrees(shown, output):
            trial.faults.append(f"{trial.page}:{block.line}: $ {command}\nshown:\n{shown}\nprinted:\n{output[-1500:]}")


def try_python(block: Block, names: dict[str, object], trial: Trial) -> None:
    """Run a Python block, with prompts as a doctest, without as it is."""
    began = time.perf_counter()
    report = io.StringIO()
    text = re.sub(r"\s*# doctest: \+SKIP", "", block.text)  # what the tests leave out for want of a run is tried here
    if ">>>" in text:
        test = doctest.DocTestParser().get_doctest(text + "\n", names, trial.page, trial.page, block.line - 1)
        runner = doctest.DocTestRunner(Checker(), False, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        runner.run(test, out=report.write, clear_globs=False)
        names.update(test.globs)
    else:
        try:
            exec(compile(text, f"{trial.page}:{block.line}", "exec"), names)
        except Exception as problem:  # whatever a reader would meet
            report.write(f"{type(problem).__name__}: {problem}")
    trial.ran += 1
    say(f"  {time.perf_counter() - began:6.1f} s  python, line {block.line}")
    if report.getvalue():
        trial.faults.append(f"{trial.page}:{block.line}:\n{report.getvalue()}")


def try_page(path: Path, page: str = "") -> Trial:
    """Run one page from top to bottom in an empty folder."""
    trial = Trial(page or path.name)
    names: dict[str, object] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "empty"
        folder.mkdir()
        with contextlib.chdir(folder):
            for block in blocks(path.read_text(encoding="utf-8")):
                if reasons := block.of("skip"):
                    trial.skipped += 1
                    say(f"  skipped   line {block.line}: {reasons[0]}")
                elif block.language in {"console", "bash", "sh"}:
                    try_console(block, folder, trial)
                elif block.language in {"python", "pycon"}:
                    try_python(block, names, trial)
    return trial


def say(text: str) -> None:
    """Show progress at once."""
    print(text, flush=True)


def main(chosen: list[str]) -> int:
    """Try the pages, say what differs."""
    sys.path.insert(0, str(ROOT))
    faults: list[str] = []
    for name in chosen or PAGES:
        place = ROOT / name
        for path in sorted(place.rglob("*.md")) if place.is_dir() else [place]:
            page = path.relative_to(ROOT).as_posix()
            say(page)
            trial = try_page(path, page)
            say(f"  {trial.ran} ran, {trial.skipped} skipped, {len(trial.faults)} wrong")
            faults += trial.faults
    for fault in faults:
        say(f"\n{fault}")
    say(f"\n{len(faults)} wrong" if faults else "\nall of it works as written")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
