"""The house rules, read from the source text: nothing here imports the package.

Each checker takes a root folder that contains ``continua/`` and yields sentences ``file:line: what. Remedy.``
"""

import ast
import functools
import os
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

# A room imports only rooms that stand before it.
ROOMS = [
    "session", "axes", "geometry", "fields", "flow", "operators", "models", "optim", "data", "tasks", "training", "lab",
    "convert", "recipes", "estimators", "serve", "studio", "cli",
]  # fmt: skip
COMMON = {
    "typing",
    "errors",
    "config",
    "tree",
    "constants",
    "checks",
    "compiling",
    "files",
    "devices",
    "memory",
    "settings",
    "timing",
}  # open to every room; they import none
SEAM = "continua.flow.vectorfield"  # all that operators may know of flow: they know nothing of solvers
UNPROBED = {"flow"}  # rooms whose objects declare what they can do; a room that got there joins
FRONT = {"recipes", "cli", "studio"}  # may use the public names, like any user
TOP_FILES = {"__init__", "__main__", *COMMON}

MAX_FILE, MAX_MEDIAN, MAX_FUNCTION, MAX_POSITIONAL = 400, 150, 60, 8

PICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
MACHINE_PATH = re.compile(
    r"(?<![\w.~)}>-])/(?:home|Users|root|work|workspace|mnt|media|opt|srv|scratch|tmp|private|var)/[\w.]"
    r"|\b[A-Z]:\\+(?:Users|home|work|temp)\b",
)
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".cfg", ".ini", ".js", ".css", ".html", ".sh", ""}
UNREAD = {"site", "build", "dist", "runs", "node_modules", "__pycache__"}
BUILT = Path("continua", "studio", "page")  # of page/, with the runtime of ONNX in it


class Module(NamedTuple):
    """One parsed file of the package: its dotted name, where it is, and its syntax tree."""

    name: str
    path: Path
    shown: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """``axes`` for ``continua.axes.grid``; ``__init__`` for the package itself."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    @property
    def package(self) -> str:
        """What a leading dot means in this file."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree; walked through once, since every check asks."""
        return _nodes(self.tree)

    def at(self, node: ast.AST | int) -> str:
        return f"{self.shown}:{node if isinstance(node, int) else getattr(node, 'lineno', 1)}"


@functools.cache
def _nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


@functools.cache  # every check reads all of them
def modules(root: Path) -> list[Module]:
    found = []
    for path in sorted((root / "continua").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        shown = path.relative_to(root).as_posix()
        found.append(Module(name, path, shown, ast.parse(path.read_text(encoding="utf-8"), filename=shown)))
    return found


# --- imports ---------------------------------------------------------------------------------------------------------


@functools.cache
def imports(module: Module) -> tuple[tuple[str, str | None, ast.AST], ...]:
    """Every import at any depth of the file, as ``(module, name or None, node)`` with relative names resolved."""
    return tuple(_found_imports(module))


def _found_imports(module: Module) -> Iterator[tuple[str, str | None, ast.AST]]:
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, "." * node.level + (node.module or ""))
            yield from ((source, alias.name, node) for alias in node.names)
        elif isinstance(node, ast.Call) and _dotted(node.func).rpartition(".")[2] in {"import_module", "__import__"}:
            given = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            yield from ((_absolute(module, name), None, node) for name in given if isinstance(name, str))


def _absolute(module: Module, name: str) -> str:
    stem = name.lstrip(".")
    level = len(name) - len(stem)
    if not level:
        return name
    parts = module.package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], *([stem] if stem else [])])


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def targets(module: Module, names: set[str]) -> Iterator[tuple[str, ast.AST]]:
    """The modules of the package that a file imports; ``from continua import axes`` means ``continua.axes``."""
    for source, name, node in imports(module):
        if source.split(".")[0] == "continua":
            full = f"{source}.{name}"
            is_module = full in names or (source == "continua" and name in {*ROOMS, *COMMON})
            yield (full if is_module else source), node


def check_rooms(root: Path) -> Iterator[str]:
    found = modules(root)
    names = {module.name for module in found}
    for module in found:
        if module.room not in (TOP_FILES if module.path.parent == root / "continua" else {*ROOMS, *COMMON}):
            remedy = f"Move the file into one of: {', '.join(ROOMS)}."
            yield f"{module.at(1)}: {module.room} is not a room of the house. {remedy}"
            continue
        for target, node in targets(module, names):
            if complaint := _forbidden(module.room, target):
                yield f"{module.at(node)}: {complaint}"


def _forbidden(room: str, target: str) -> str | None:
    """Why ``room`` may not import ``target``, or None if it may."""
    other = target.split(".")[1] if "." in target else "__init__"
    if room in {"__init__", "__main__", other} or other in COMMON:
        return None
    if other == "__init__":
        remedy = "Import from the module that defines the name."
        return None if room in FRONT else f"{room} imports the public names of continua. {remedy}"
    if room in COMMON:
        return (
            f"{room} imports the room {other}. It serves every room: let {other} register itself or pass the value in."
        )
    if (room, other) == ("operators", "flow") and target != SEAM:
        return f"operators import {target}. Operators know nothing of solvers: import {SEAM} only."
    if other not in ROOMS or ROOMS.index(other) > ROOMS.index(room):
        return f"{room} imports {other}, which is below it. Move the shared part up, or pass it as an argument."
    return None


def check_cycles(root: Path) -> Iterator[str]:
    """Depth-first search; one sentence for each import that closes a circle."""
    found = {module.name: module for module in modules(root)}
    graph = {name: list(targets(module, set(found))) for name, module in found.items()}
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> Iterator[str]:
        for target, node in graph.get(name, []):
            if target in trail:
                circle = " -> ".join([*trail[trail.index(target) :], target])
                yield f"{found[name].at(node)}: import cycle {circle}. Move what both need into a module of its own."
            elif target not in done:
                yield from visit(target, [*trail, target])
        done.add(name)

    for name in graph:
        if name not in done:
            yield from visit(name, [name])


# --- sizes -----------------------------------------------------------------------------------------------------------


def check_sizes(root: Path) -> Iterator[str]:
    lines = {module.shown: len(module.path.read_text(encoding="utf-8").splitlines()) for module in modules(root)}
    for shown, count in lines.items():
        if count > MAX_FILE:
            yield f"{shown}:{count}: {count} lines, at most {MAX_FILE}. Split the file by subject."
    if lines and (median := statistics.median(lines.values())) > MAX_MEDIAN:
        largest = max(lines, key=lambda shown: lines[shown])
        yield f"{largest}:1: the median file has {median:g} lines, at most {MAX_MEDIAN}. Split the largest files."


def check_functions(root: Path) -> Iterator[str]:
    for module in modules(root):
        methods = {id(item) for node in module.nodes if isinstance(node, ast.ClassDef) for item in node.body}
        for node in module.nodes:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                yield f"{module.at(node)}: {node.name} has {length} lines, at most {MAX_FUNCTION}. Name its steps."
            count = _positional(node, is_method=id(node) in methods)
            if count > MAX_POSITIONAL:
                remedy = "Name them: put * before those that need no place of their own."
                found = f"{node.name} has {count} positional parameters, at most {MAX_POSITIONAL}"
                yield f"{module.at(node)}: {found}. {remedy}"


def _positional(node: ast.FunctionDef | ast.AsyncFunctionDef, *, is_method: bool) -> int:
    """How many parameters can be given by their place; those that must be named read well however many there are."""
    given = node.args
    static = any(_dotted(decorator) == "staticmethod" for decorator in node.decorator_list)
    return len(given.posonlyargs) + len(given.args) + bool(given.vararg) - (is_method and not static)


# --- habits ----------------------------------------------------------------------------------------------------------


def check_habits(root: Path) -> Iterator[str]:
    for module in modules(root):
        for node in module.nodes:
            if complaint := _bad_habit(module, node):
                yield f"{module.at(node)}: {complaint}"
        yield from _postponed_annotations(module)
        yield from _pickle_imports(module)


def _is_unchecked_protocol(node: ast.ClassDef) -> bool:
    bases = {_dotted(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases}
    return "Protocol" in bases and "runtime_checkable" not in {_dotted(item) for item in node.decorator_list}


def _bad_habit(module: Module, node: ast.AST) -> str | None:
    if isinstance(node, ast.Assert):
        return "assert in the library. Raise an error of continua.errors that says what, got and remedy."
    if isinstance(node, ast.ClassDef) and _is_unchecked_protocol(node):
        return "a protocol that no isinstance takes, so make test-shapes fails. Write @runtime_checkable above it."
    if not isinstance(node, ast.Call):
        return None
    called = _dotted(node.func)
    given = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
    if called == "print" and module.room not in {"cli", "__main__"}:
        return "print in the library. Return the value, or print it in continua/cli."
    if called == "torch.load" and given.get("weights_only") is not True:
        return "torch.load may run code from the file. Write weights_only=True, or use safetensors."
    if called == "torch.save":
        return "torch.save writes a pickle. Use safetensors.torch.save_file."
    if called in {"np.load", "numpy.load"} and given.get("allow_pickle", False) is not False:
        return "numpy.load with pickles may run code from the file. Leave allow_pickle out."
    if module.room in UNPROBED and called in {"getattr", "hasattr"}:
        return f"{called} probes for a capability. Declare it: a protocol, a base class, or a field with a default."
    return None


def _postponed_annotations(module: Module) -> Iterator[str]:
    """jaxtyping reads annotations as objects; postponed ones are strings, and shapes go unchecked."""
    found = list(imports(module))
    if not any(source.split(".")[0] == "jaxtyping" or source == "continua.typing" for source, _, _ in found):
        return
    for source, name, node in found:
        if (source, name) == ("__future__", "annotations"):
            yield f"{module.at(node)}: postponed annotations hide the shapes from jaxtyping. Delete this import."


def _pickle_imports(module: Module) -> Iterator[str]:
    for source, _, node in imports(module):
        if source.split(".")[0] in PICKLERS:
            yield f"{module.at(node)}: {source} can run code from a file. Use safetensors and JSON."


# --- kinds -----------------------------------------------------------------------------------------------------------


def check_kinds(root: Path) -> Iterator[str]:
    """The table of ``config.py`` against the classes that carry ``@register``: a kind loads before it was imported."""
    found = modules(root)
    listed = {kind: (f"continua.{home}", line) for home, kinds, line in _table(found) for kind in kinds.split()}
    registered: dict[str, str] = {}
    for module in found:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and any(_dotted(item) == "register" for item in node.decorator_list):
                registered[node.name] = module.name
                home = listed.get(node.name, ("no module", 0))[0]
                if home != module.name:
                    remedy = f"List it under {module.name.removeprefix('continua.')!r}."
                    yield f"{module.at(node)}: MODULES in config.py has {home} for the kind {node.name}. {remedy}"
    for kind, (home, line) in listed.items():
        if kind not in registered:
            remedy = "Take it out of MODULES; if it was renamed, add an alias."
            yield f"continua/config.py:{line}: {home} registers no {kind}. {remedy}"


def _table(found: list[Module]) -> Iterator[tuple[str, str, int]]:
    """The rows of ``MODULES``: a module, its kinds, the line."""
    bodies = [module.tree.body for module in found if module.name == "continua.config"]
    for node in (node for body in bodies for node in body):
        if isinstance(node, ast.Assign) and _dotted(node.targets[0]) == "MODULES":
            for home, kinds in ast.literal_eval(node.value).items():
                yield home, kinds, node.lineno


# --- text ------------------------------------------------------------------------------------------------------------


def texts(root: Path) -> Iterator[Path]:
    """The text files of the tree: no hidden folder except .ci, nothing that is built or downloaded.

    In a worktree of git ``.git`` is a file: it is none of the tree either.
    """
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if name == ".ci" or not (name.startswith(".") or name in UNREAD))
        if Path(folder).is_relative_to(root / BUILT):
            continue
        kept = (name for name in sorted(files) if name != ".git" and Path(name).suffix in TEXT)
        yield from (Path(folder, name) for name in kept)


def check_paths(root: Path) -> Iterator[str]:
    for path in texts(root):
        text = path.read_text(encoding="utf-8", errors="replace")
        if not MACHINE_PATH.search(text):  # no file should have one
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if hit := MACHINE_PATH.search(line):
                shown = f"{path.relative_to(root).as_posix()}:{number}"
                yield f"{shown}: machine path {hit.group()}… Write a relative path, or take it as an argument."


CHECKS = [check_rooms, check_cycles, check_sizes, check_functions, check_habits, check_kinds, check_paths]
