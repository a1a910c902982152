"""The tool that tries README.md and docs/start finds what is wrong, and its comments are well formed."""

import re
from pathlib import Path

import pytest

from tools.try_readme import PAGES, ROOT, agrees, blocks, commands, try_page

ALL = [
    page for name in PAGES for page in ([ROOT / name] if name.endswith(".md") else sorted((ROOT / name).rglob("*.md")))
]

PAGE = """
<!-- try: skip it needs a network -->

```console
$ false
```

<!-- try: first echo 3 > number -->
<!-- try: add | tail -1 -->
<!-- try: as WORD => hello -->

```console
$ (echo first; cat number)     # two lines
{number}
$ echo WORD
hello
```

```python
>>> import math
>>> print(f"{{math.pi:.3f}} and more")
{pi} and ...
```

```python
x = math.tau  # the names of the blocks before
```
"""


def tried(folder: Path, **given: object) -> list[str]:
    page = folder / "page.md"
    page.write_text(PAGE.format(**given), encoding="utf-8")
    trial = try_page(page)
    assert trial.skipped == 1
    assert trial.ran == 4
    return trial.faults


def test_a_right_page_passes(tmp_path: Path) -> None:
    assert tried(tmp_path, number=3, pi=3.15) == []  # numbers within a twentieth


def test_what_differs_is_told_with_its_line(tmp_path: Path) -> None:
    command, python = tried(tmp_path, number=4, pi=2.5)
    assert "page.md:13" in command
    assert "shown:\n4\nprinted:\n3" in command
    assert "3.142 and more" in python


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo before; exit 3\n```\n\n```python\n1 / 0\n```\n", encoding="utf-8")
    failed, raised = try_page(page).faults
    assert "ended with 3\nbefore" in failed
    assert "ZeroDivisionError" in raised


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        ("loss 1.66", "loss 1.70", True),
        ("loss 1.66", "loss 1.90", False),
        ("1,000 tokens in ...", "1010 tokens in 3 s", True),
        ("a ... b", "a 1 2 3 b", True),
        ("a b", "a c", False),
        ("d=64 h=2", "d=64 h=3", False),
    ],
)
def test_outputs_are_compared_by_their_numbers(wanted: str, got: str, same: bool) -> None:
    assert agrees(wanted, got) is same


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_comments_for_the_tool_are_well_formed(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    written = len(re.findall(r"<!-- try:", text))
    read = sum(len(block.said) for block in blocks(text))
    assert written == read, "a comment <!-- try: … --> stands before no block, or is none of skip, first, add, as"


def test_every_page_of_the_first_hour_has_commands() -> None:
    found = [
        command for path in ALL for block in blocks(path.read_text(encoding="utf-8")) for command in commands(block)
    ]
    assert len(found) > 10
