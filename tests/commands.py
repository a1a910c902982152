"""The command line, in a process of its own or, where the process is not what is tested, in this one."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from continua.cli import main


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """What a shell would see; a start of the interpreter and of torch takes two seconds."""
    return subprocess.run([sys.executable, "-m", "continua.cli", *words], capture_output=True, text=True, check=False)


def typed(*words: str) -> subprocess.CompletedProcess[str]:
    """The same ``main`` without a new interpreter."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["continua", *words]),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


ODD = ("below a file", "a folder", "a pipe")


def odd_place(folder: Path, kind: str, name: str) -> Path:
    """A place in ``folder`` where a file called ``name`` cannot be written, of one of the kinds of ``ODD``."""
    if kind == "below a file":
        (folder / "file").write_text("a file")
        return folder / "file" / name
    out = folder / name
    if kind == "a folder":
        out.mkdir()
    else:
        os.mkfifo(out)
    return out
