"""Sentences that every machine has: what the functions of Python's standard library say of themselves."""

import ast
import contextlib
import hashlib
import importlib.util
import io
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from continua.errors import ConfigError

HELD_OUT = 4  # every fourth file is measured on
WORDS = (4, 8)  # the fewest words of a summary, and of a body
SENTENCE = (4, 60)  # the fewest and the most words of a sentence
PAIRS = 2  # the fewest docstrings that can be told apart
TESTS = frozenset({"test", "tests", "idle_test", "testing"})  # folders whose docstrings are not learned from
PACKAGES = ("torch", "numpy")  # on every machine that has this library

_PARAGRAPH = re.compile(r"\n\s*\n")
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Docstring:
    """A docstring in two parts: its first paragraph, on one line, and the text that follows.

    ``place`` names its function or class, as in ``textwrap.TextWrapper.fill``. Examples (``>>>``) are left out.
    """

    place: str
    summary: str
    body: str


@dataclass(frozen=True)
class Docstrings:
    """Docstrings to calibrate or learn with, and docstrings of other files to be measured on."""

    name: str
    train: tuple[Docstring, ...]
    validation: tuple[Docstring, ...]

    @property
    def sha256(self) -> str:
        """Names the texts: numbers measured on others cannot be compared."""
        digest = hashlib.sha256()
        for part in (self.train, self.validation):
            for one in part:
                digest.update("\0".join((one.place, one.summary, one.body, "")).encode())
            digest.update(b"\1")
        return digest.hexdigest()


def docstrings(folder: str | Path | None = None) -> Docstrings:
    """The docstrings of the ``*.py`` files of a folder; without one, of Python's own library.

    Files are read, never imported: top-level ones, sorted by name, in ASCII. Those of every fourth file are held out.
    Functions, methods and classes count whose summary has four words and whose body has eight; of docstrings with the
    same summary or the same body the first stays, so that one body answers each summary.
    """
    where = _library(folder)
    files = _top_files(where)
    summaries: set[str] = set()
    bodies: set[str] = set()
    train: list[Docstring] = []
    validation: list[Docstring] = []
    for number, path in enumerate(files):
        kept = validation if _is_held_out(number) else train
        for one in _of_file(path):
            if one.summary not in summaries and one.body not in bodies:
                summaries.add(one.summary)
                bodies.add(one.body)
                kept.append(one)
    if min(len(train), len(validation)) < PAIRS:
        got = f"{len(train)} to learn from and {len(validation)} held out in {len(files)} files of {where}"
        remedy = f"Give a folder of at least {HELD_OUT} Python files whose docstrings have a summary and a body."
        raise ConfigError("a folder has too few docstrings", got=got, remedy=remedy)
    return Docstrings("python" if folder is None else where.name, tuple(train), tuple(validation))


def package_docstrings(packages: Sequence[str] = PACKAGES, library: str | Path | None = None) -> tuple[Docstring, ...]:
    """The docstrings in the files of the packages of Python's own library, and of some that are installed.

    They are texts to learn from: what ``docstrings()`` holds out, top-level files, is not among them. Packages that are
    not there, files that cannot be read and tests are left out. ``library`` is the folder of Python's own packages.
    """
    folders = _packages_of(_library(library))
    for name in packages:
        spec = importlib.util.find_spec(name)
        folders += [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    found: list[Docstring] = []
    for folder in folders:
        for path in _files_of(folder):
            with contextlib.suppress(ConfigError):
                found += _of_file(path)
    return tuple(found)


def library_sentences(library: str | Path | None = None, without: Sequence[str] = ()) -> tuple[str, ...]:
    """Every sentence of 4 to 60 words that Python's own library says of itself, once each: docstrings and comments.

    Docstrings of one paragraph and of modules count too. They are texts to learn from: the top-level files that
    ``docstrings()`` holds out, tests, and the sentences ``without`` are left out.
    """
    where = _library(library)
    paths = [path for number, path in enumerate(_top_files(where)) if not _is_held_out(number)]
    for folder in _packages_of(where):
        paths += _files_of(folder)
    found: dict[str, None] = {}
    for path in paths:
        with contextlib.suppress(ConfigError):
            found.update(dict.fromkeys(_sentences_of_file(path)))
    for text in without:
        found.pop(text, None)
    return tuple(found)


def sentences(docs: Sequence[Docstring], without: Sequence[str] = ()) -> tuple[str, ...]:
    """Every summary, and every sentence of the bodies, once each, in order: those of 4 to 60 words.

    ``without`` leaves some out: those that were calibrated with, when others are to be measured on.

    >>> sentences([Docstring("heap.push", "Push a value onto the heap.", "The heap stays sorted. Ties keep no order.")])
    ('Push a value onto the heap.', 'The heap stays sorted.', 'Ties keep no order.')
    """
    left_out = set(without)
    found: dict[str, None] = {}
    for one in docs:
        for text in (one.summary, *_END.split(one.body)):
            if _is_sentence(text) and text not in left_out:
                found[text] = None
    return tuple(found)


def spread(texts: Sequence[str], count: int) -> tuple[str, ...]:
    """``count`` texts, evenly spread over all of them: from every file, and the same ones each time.

    >>> spread(["a", "b", "c", "d", "e"], 3)
    ('a', 'c', 'e')
    """
    if not 2 <= count <= len(texts):
        remedy = f"Ask for 2 to {len(texts)} texts."
        raise ConfigError("texts cannot be spread", got=f"{count} of {len(texts)}", remedy=remedy)
    step = (len(texts) - 1) / (count - 1)
    return tuple(texts[round(step * i)] for i in range(count))


def _library(folder: str | Path | None) -> Path:
    """A folder, or that of Python's own library."""
    return Path(sysconfig.get_paths()["stdlib"] if folder is None else folder)


def _top_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.py"))


def _is_held_out(number: int) -> bool:
    """Whether a top-level file is measured on."""
    return number % HELD_OUT == HELD_OUT - 1


def _packages_of(folder: Path) -> list[Path]:
    return [inside for inside in sorted(folder.iterdir()) if (inside / "__init__.py").is_file()]


def _files_of(package: Path) -> list[Path]:
    """The files of a package that are no tests."""
    files = sorted(package.rglob("*.py"))
    return [path for path in files if TESTS.isdisjoint(path.relative_to(package.parent).parts)]


def _is_sentence(text: str) -> bool:
    return SENTENCE[0] <= len(text.split()) <= SENTENCE[1]


def _sentences_of_file(path: Path) -> Iterator[str]:
    """All sentences of the docstrings, then of the comments, of one file."""
    source = _ascii(path)
    tree = _parsed(source, path)
    own = ast.get_docstring(tree)
    texts = [text for _, text in _written(tree, path.stem)] + ([] if own is None else [own])
    paragraphs = [" ".join(one.split()) for text in texts for one in _PARAGRAPH.split(text) if ">>>" not in one]
    for paragraph in (*paragraphs, *_comments(source)):
        yield from (text for text in _END.split(paragraph) if _is_sentence(text))


def _comments(source: str) -> list[str]:
    """Comments on lines that follow each other, as one text each."""
    blocks: list[list[str]] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if not blocks or line != last + 1:
                blocks.append([])
            blocks[-1].append(token.string.lstrip("#").strip())
            last = line
    return [" ".join(" ".join(block).split()) for block in blocks]


def _of_file(path: Path) -> Iterator[Docstring]:
    """The docstrings of one file that have both parts, in the order of the source."""
    tree = _parsed(_ascii(path), path)
    for place, text in _written(tree, path.stem):
        summary, body = _parts(text)
        if len(summary.split()) >= WORDS[0] and len(body.split()) >= WORDS[1]:
            yield Docstring(place, summary, body)


def _ascii(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore").encode("ascii", "ignore").decode("ascii")


def _parsed(source: str, path: Path) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in other people's strings
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as unreadable:
        remedy = "Give a folder of Python files that this interpreter can read."
        raise ConfigError(f"{path.name} is not Python", got=str(unreadable), remedy=remedy) from unreadable


def _written(node: ast.AST, place: str) -> Iterator[tuple[str, str]]:
    """Names and docstrings of what is defined inside, however deep."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _NAMED):
            yield from _written(child, place)
            continue
        name = f"{place}.{child.name}"
        text = ast.get_docstring(child)
        if text is not None:
            yield name, text
        yield from _written(child, name)


def _parts(text: str) -> tuple[str, str]:
    """The first paragraph and the others, each on one line; paragraphs with examples are left out."""
    first, *others = _PARAGRAPH.split(text)
    if ">>>" in first:
        return "", ""
    body = " ".join(paragraph for paragraph in others if ">>>" not in paragraph)
    return " ".join(first.split()), " ".join(body.split())
