"""Docstrings as sentences: read from source, split by file, the same every time."""

import ast
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from continua.data import (
    Docstring,
    Docstrings,
    docstrings,
    library_sentences,
    package_docstrings,
    sentences,
    spread,
)
from continua.errors import ConfigError
from tests.refusals import refused

BODY = "It is read once, and nothing else is changed by {}."


def written(folder: Path, *names: str) -> Path:
    """A folder of modules with a function, a method in a class, a function in a function, and what does not count."""
    for name in names:
        summary = f"Return the {name} of a list"
        (folder / f"{name}.py").write_text(
            f'"""Module {name} has a summary of its own.\n\n{BODY.format("the module")}"""\n'
            f'def plain():\n    """{summary}.\n\n    {BODY.format(name)}"""\n'
            f'    async def inner():\n        """{summary} later.\n\n        {BODY.format(name + " inside")}"""\n'
            f'class Kind:\n    def act(self):\n        """{summary} in\n        two lines.\n\n        Naïve, and '
            f'{BODY.format("it")}\n\n        >>> 1\n        1\n\n        End of {name}."""\n'
            f'def short():\n    """Too short.\n\n    {BODY.format("short")}"""\n'
            f'def bare():\n    """There is no body here at all."""\n'
            f'def again():\n    """{summary}.\n\n    Another body of {name}, under a summary that was there."""\n',
            encoding="utf-8",
        )
    return folder


@pytest.mark.spec("B11")
def test_functions_methods_and_what_is_inside_them(tmp_path: Path) -> None:
    found = docstrings(written(tmp_path, "a", "b", "c", "d"))
    assert [one.place for one in found.train[:3]] == ["a.plain", "a.plain.inner", "a.Kind.act"]
    assert {one.place.split(".")[0] for one in found.train} == {"a", "b", "c"}
    assert {one.place.split(".")[0] for one in found.validation} == {"d"}
    assert len(found.train) + len(found.validation) == 12
    method = found.train[2]
    assert method.summary == "Return the a of a list in two lines."
    assert method.body == f"Nave, and {BODY.format('it')} End of a.", "ASCII, one line, without examples"


@pytest.mark.spec("B11")
def test_a_sha256_names_the_texts_and_their_split(tmp_path: Path) -> None:
    found = docstrings(written(tmp_path, "a", "b", "c", "d"))
    assert found.sha256 == docstrings(tmp_path).sha256
    assert found.sha256 != Docstrings("x", found.train + found.validation[:1], found.validation[1:]).sha256
    changed = replace(found.train[0], body=found.train[0].body + "!")
    assert found.sha256 != replace(found, train=(changed, *found.train[1:])).sha256


@pytest.mark.spec("B11")
def test_pythons_own_library_is_read_not_imported() -> None:
    found = docstrings()
    known = {one.place: one for one in found.train + found.validation}
    assert len(found.train) > 2 * len(found.validation) > 400
    places = [known[name] for name in ("textwrap.TextWrapper", "heapq.heappushpop", "antigravity") if name in known]
    assert [one.place for one in places] == ["textwrap.TextWrapper"], "one with a body, one without, one module"
    source = (Path(sysconfig.get_paths()["stdlib"]) / "textwrap.py").read_text(encoding="utf-8")
    wrapper = next(node for node in ast.parse(source).body if getattr(node, "name", "") == "TextWrapper")
    text = " ".join((ast.get_docstring(wrapper) or "").split())
    assert text.startswith(places[0].summary)
    assert text.endswith(places[0].body)
    everything = [*found.train, *found.validation]
    assert len({one.summary for one in everything}) == len({one.body for one in everything}) == len(everything)
    assert {one.place.split(".")[0] for one in found.train}.isdisjoint(
        one.place.split(".")[0] for one in found.validation
    )


@pytest.mark.spec("B11")
def test_sentences_are_cut_counted_and_kept_apart() -> None:
    one = Docstring("a.f", "Return all the values.", "First of them is e.g. this. Then U.S. ones come too! Short one.")
    assert sentences([one, one]) == (one.summary, "First of them is e.g. this.", "Then U.S. ones come too!")
    assert sentences([one], without=[one.summary]) == sentences([one])[1:]
    assert sentences([Docstring("a.g", "word " * 61, "word " * 60)]) == ("word " * 60,)
    assert spread("abcdefg", 3) == ("a", "d", "g")
    assert spread(("a", "b"), 2) == ("a", "b")


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with refused(ConfigError, "0 to learn from and 0 held out in 0 files", "at least 4 Python files"):
        docstrings(tmp_path / "none")
    with refused(ConfigError, "in 3 files", "at least 4 Python files"):
        docstrings(written(tmp_path, "a", "b", "c"))
    (tmp_path / "d.py").write_text("def f(:", encoding="utf-8")
    with refused(ConfigError, "got invalid syntax", "Python files that this interpreter can read"):
        docstrings(tmp_path)
    for count in (1, 4):
        with refused(ConfigError, f"{count} of 3", "Ask for 2 to 3 texts"):
            spread("abc", count)


@pytest.mark.spec("B11")
def test_docstrings_of_packages_leave_out_top_level_files_tests_and_what_is_no_python(tmp_path: Path) -> None:
    text = '"""{0} is what this function says first.\n\n{0} is said in a body that has more than eight words in it."""'
    for place in ("top", "own/__init__", "own/deep/inner", "own/tests/checks", "other/no_package", "own/broken"):
        path = tmp_path / f"{place}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def f():\n    {text.format(path.stem)}\n", encoding="utf-8")
    (tmp_path / "own" / "broken.py").write_text("def f(:", encoding="utf-8")
    alone = package_docstrings((), library=tmp_path)
    assert [one.place for one in alone] == ["__init__.f", "inner.f"]
    with_other = package_docstrings(("iniconfig", "no_such_package"), library=tmp_path)
    assert with_other[:2] == alone
    assert len(with_other) > 2


@pytest.mark.spec("B11")
def test_sentences_of_the_library_are_all_its_docstrings_and_comments_but_those_held_out(tmp_path: Path) -> None:
    for place in ("a", "b", "c", "d", "own/__init__", "own/tests/checks"):
        path = tmp_path / f"{place}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'"""The module {path.stem} says this."""\n'
            f"# A comment of {path.stem} that goes\n#   on. It has two sentences.\nvalue = 1\n# Too short.\n\n"
            f'def f():\n    """One paragraph of {path.stem} alone."""  # said beside some code, too\n\n'
            f'def g():\n    """Two of them in {path.stem}.\n\n    >>> none of these words\n\n    End of it all."""\n',
            encoding="utf-8",
        )
    (tmp_path / "own" / "broken.py").write_text("def f(:  # a comment of broken code", encoding="utf-8")
    found = library_sentences(tmp_path)
    assert found[:7] == (
        "One paragraph of a alone.",
        "Two of them in a.",
        "End of it all.",
        "The module a says this.",
        "A comment of a that goes on.",
        "It has two sentences.",
        "said beside some code, too",
    )
    assert [text for text in found if text.startswith("The module")] == [
        f"The module {name} says this." for name in ("a", "b", "c", "__init__")
    ], "of four top-level files the last is held out, and tests are no part of a package"
    assert len(found) == len(set(found)) == 7 + 3 * 4
    assert library_sentences(tmp_path, without=found[2:]) == found[:2]
