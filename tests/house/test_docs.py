"""The README, the pages of docs/ and the docstrings are run as written, and the links between pages are followed."""

import ast
import doctest
import importlib
import io
import pkgutil
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import continua
from continua import config
from continua.recipes import build
from tools import reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
MODULES = sorted(
    ["continua", *(found.name for found in pkgutil.walk_packages(continua.__path__, "continua."))]
)  # walk_packages imports the rooms, not the modules in them
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

FENCE = re.compile(r"^\s*(?P<marks>`{3,}|~{3,})\s*(?P<language>\w*)")
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)[^)]*\)")
INLINE_CODE = re.compile(r"`[^`]*`|\$[^$]+\$")  # formulas too: A[X](z) is no link
FORMULA = re.compile(r"\$\$.*?\$\$", re.DOTALL)


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def split(text: str) -> Iterator[tuple[str, str | None]]:
    """Every line with the language of the fenced block it stands in; ``None`` outside blocks and on fences."""
    language, marks = None, ""
    for line in text.splitlines():
        fence = FENCE.match(line)
        if language is None and fence:
            language, marks = fence["language"], fence["marks"]
            yield line, None
        elif language is not None and line.strip() == marks:
            language = None
            yield line, None
        else:
            yield line, language


def python_of(text: str) -> str:
    """The Python blocks at their own line numbers, all else blank: a closing fence is not an expected output."""
    return "\n".join(line if language in {"python", "pycon"} else "" for line, language in split(text)) + "\n"


def prose_of(text: str) -> str:
    """What is neither code nor a formula."""
    lines = "\n".join(line for line, language in split(text) if language is None)
    return "\n".join(INLINE_CODE.sub("", line) for line in FORMULA.sub("", lines).splitlines())


def run(test: doctest.DocTest) -> str:
    """Run the examples of one page or docstring; return the report of what differs, or nothing."""
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    known = dict(config._classes)
    with torch.random.fork_rng(), warnings.catch_warnings():
        runner.run(test, out=report.write)
    for name in set(config._classes) - set(known):
        if config._classes[name].__module__ == "__main__":  # a class that only a page registers
            del config._classes[name]
    return report.getvalue()


def page_report(path: Path) -> str:
    code = python_of(path.read_text(encoding="utf-8"))
    test = doctest.DocTestParser().get_doctest(code, {"__name__": "__main__"}, path.name, str(path), 0)
    return run(test)


def plain_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Python blocks without prompts, each with the number of its first line."""
    block: list[str] = []
    for number, (line, language) in enumerate([*split(text), ("", None)], start=1):
        if language == "python":
            block.append(line)
        elif block:
            if not any(entry.lstrip().startswith(">>>") for entry in block):
                yield number - len(block), "\n".join(block)
            block = []


def docstrings(module: Any) -> Iterator[doctest.DocTest]:
    """The docstrings with examples, read from the source: the shape checker of the tests wraps functions, and
    doctest's own search passes wrapped functions over."""
    path = Path(module.__file__)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text and ">>>" in text:
            name = f"{module.__name__}.{getattr(node, 'name', '')}".rstrip(".")
            line = node.body[0].lineno - 1
            yield doctest.DocTestParser().get_doctest(text, dict(vars(module)), name, str(path), line)


def broken_links(path: Path) -> list[str]:
    broken = []
    for found in LINK.finditer(prose_of(path.read_text(encoding="utf-8"))):
        target = found["target"].partition("#")[0]
        if target and "://" not in target and not target.startswith("mailto:") and not (path.parent / target).exists():
            broken.append(target)
    return broken


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_page_runs_as_written(path: Path) -> None:
    if report := page_report(path):
        pytest.fail(f"{shown(path)} does not print what it says\n{report}", pytrace=False)


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_plain_blocks_are_python(path: Path) -> None:
    for line, block in plain_blocks(path.read_text(encoding="utf-8")):
        try:
            compile(block, shown(path), "exec")
        except SyntaxError as wrong:
            pytest.fail(f"{shown(path)}:{line}: {wrong.msg}", pytrace=False)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_run_as_written(name: str) -> None:
    if name.endswith("__main__"):
        return  # importing it would start the command line
    reports = {test.name: run(test) for test in docstrings(importlib.import_module(name))}
    failed = [f"{at} does not print what it says\n{report}" for at, report in reports.items() if report]
    if failed:
        pytest.fail("\n".join(failed), pytrace=False)


@pytest.mark.parametrize("path", LINKED, ids=shown)
def test_links_lead_somewhere(path: Path) -> None:
    broken = broken_links(path)
    assert not broken, f"{shown(path)} links to what does not exist: {', '.join(broken)}"


def test_the_readme_has_examples() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count(">>>") >= 4


def test_public_names_resolve_and_are_few() -> None:
    assert all(getattr(continua, name) is not None for name in continua.__all__)
    assert len(continua.__all__) <= 90


# --- what people look for (findings N7, N8) ----------------------------------------------------------------------


@pytest.mark.finding("N7")
def test_every_public_name_is_in_the_reference() -> None:
    lost = reference.missing()
    assert not lost, f"not in docs/reference: {', '.join(lost[:20])}. Run python tools/reference.py."


@pytest.mark.finding("N7")
@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_formulas_are_rendered(path: Path) -> None:
    """A formula in a block of code is cut at the right edge: it stands between dollars, for KaTeX."""
    text = path.read_text(encoding="utf-8")
    plain = [line for line, language in split(text) if language in {"text", ""} and re.search("[∫∂∇Σ⟨]", line)]
    assert not plain, f"{shown(path)} has formulas as plain text: {plain[0].strip()}. Write $$ … $$."
    assert text.count("$$") % 2 == 0, f"{shown(path)} has an open formula"


@pytest.mark.finding("N7")
def test_the_formulas_need_no_network() -> None:
    katex = ROOT / "docs" / "assets" / "katex"
    style = (katex / "katex.min.css").read_text(encoding="utf-8")
    fonts = re.findall(r"url\(([^)]+)\)", style)
    assert fonts
    assert all((katex / font).is_file() for font in fonts)
    assert (katex / "LICENSE").read_text(encoding="utf-8").startswith("The MIT License")
    loaded = [line for line in (ROOT / "mkdocs.yml").read_text(encoding="utf-8").splitlines() if "assets/" in line]
    assert [line for line in loaded if "katex.min.js" in line]
    assert not [line for line in loaded if "://" in line]


@pytest.mark.finding("N7")
def test_measured_tables_live_with_the_benchmarks() -> None:
    elsewhere = [
        shown(p) for p in PAGES if "<!-- rows of" in p.read_text(encoding="utf-8") and p.parent.name != "benchmarks"
    ]
    assert not elsewhere, f"rows of results belong to docs/benchmarks, got {elsewhere}"


SOUGHT = {
    "GPU": ("guides/devices.md", 5),
    "device": ("guides/devices.md", 8),
    "distil": ("guides/pretrained.md", 3),
    "fine-tun": ("guides/pretrained.md", 1),
    "tokenizer": ("guides/your-text.md", 6),
    "export": ("guides/export.md", 6),
    "checkpoint": ("guides/runs.md", 5),
    "DataLoader": ("guides/your-data.md", 4),
    "CSV": ("guides/series.md", 1),
    "pretrained": ("guides/pretrained.md", 3),
}


@pytest.mark.finding("N8")
@pytest.mark.parametrize("word", SOUGHT)
def test_the_usual_words_stand_where_people_look(word: str) -> None:
    page, often = SOUGHT[word]
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").lower()
    assert text.count(word.lower()) >= often, f"{word} occurs less than {often} times in docs/{page}"
    entry = [(ROOT / "docs" / place).read_text(encoding="utf-8").lower() for place in ("index.md", "guides/index.md")]
    assert any(word.lower() in one for one in entry), f"{word} is on neither of the pages that lead to the others"


def test_every_benchmark_is_listed() -> None:
    page = (ROOT / "docs" / "benchmarks" / "index.md").read_text(encoding="utf-8")
    results = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    lost = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} & results - set(
        re.findall(r"\| `(\w+)` \|", page)
    )
    assert not lost, f"docs/benchmarks/index.md does not list {sorted(lost)}"


@pytest.mark.parametrize("path", PAGES[1:], ids=shown)
def test_a_page_has_a_title_a_purpose_and_a_place(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if "--8<--" in text:
        return  # a file of the root, shown as it is
    lines = [line for line in prose_of(text).splitlines() if line.strip()]
    assert lines[0].startswith("# ")
    assert len(lines) >= 2, f"{shown(path)} says nothing"
    assert not lines[1].startswith("#"), f"{shown(path)} does not say what it is for"
    place = path.relative_to(ROOT / "docs").as_posix()
    assert place in (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), f"{shown(path)} is not in the nav of mkdocs.yml"


@pytest.mark.finding("N7")
def test_guides_stand_before_the_theory() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    order = [
        site.index(f"  - {part}:") for part in ("Start", "Guides", "Concepts", "Reference", "Extending", "Gallery")
    ]
    assert order == sorted(order)
    for stale in ("What 0.1.0 holds", "on the roadmap"):
        assert not [shown(path) for path in PAGES if stale in path.read_text(encoding="utf-8") and path.parent != ROOT]


def test_the_recipe_of_the_guide_can_be_built(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "guides" / "your-recipe.md").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(next(plain_blocks(text))[1], encoding="utf-8")
    (tmp_path / "book.txt").write_text("the rain in spain stays mainly in the plain. " * 60, encoding="utf-8")
    bundle = build(f"{tmp_path}/mine.py:poem", {"text": str(tmp_path / "book.txt"), "d": 16, "steps": 5})
    assert bundle.training.steps == 5
    assert bundle.model(bundle.task.example(0, 0).batch).shape == (8, 32, bundle.tokens.size)


# --- the test of the test --------------------------------------------------------------------------------------------

PAGE = """
# A page

```python
>>> 1 + 1
{answer}
```

```console
$ >>> 2 + 2 is not Python here
```

[here]({link}) and `[not](a-link.md)`
"""


def test_a_right_page_passes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(answer=2, link="page.md#a-page"), encoding="utf-8")
    assert page_report(page) == ""
    assert broken_links(page) == []


def test_a_wrong_page_is_named_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(answer=3, link="gone.md"), encoding="utf-8")
    report = page_report(page)
    assert 'page.md", line 5' in report
    assert "Expected:\n    3\nGot:\n    2" in report
    assert broken_links(page) == ["gone.md"]


def test_wrapped_functions_are_found() -> None:
    module = importlib.import_module("continua.flow.solve")
    assert "continua.flow.solve.solve" in [test.name for test in docstrings(module)]
