"""Write docs/reference: a page for each room of the package, and one for the command line.

    python tools/reference.py            # write the pages
    python tools/reference.py --check    # only say what is missing

The pages list names; mkdocstrings writes what stands under them when the site is built. A name that a room re-exports
is documented where it is defined, and linked from the other.
"""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"


@dataclass(frozen=True)
class Room:
    """A page: its file, its module and what the module is for."""

    page: str
    module: str
    title: str


ROOMS = (
    Room("axes", "continua.axes", "Axes, rules, grids"),
    Room("fields", "continua.fields", "Fields: weights as functions"),
    Room("flow", "continua.flow", "Flow: solvers, controls, adjoints"),
    Room("operators", "continua.operators", "Operators: attention, feed-forward, norms, masks"),
    Room("models", "continua.models", "Models"),
    Room("zoo", "continua.models.zoo", "The zoo"),
    Room("geometry", "continua.geometry", "Geometry"),
    Room("optim", "continua.optim", "Optimisers and schedules"),
    Room("data", "continua.data", "Data and tokenizers"),
    Room("tasks", "continua.tasks", "Tasks"),
    Room("training", "continua.training", "Training, runs, checkpoints"),
    Room("convert", "continua.convert", "Import from and export to Hugging Face and torch.nn"),
    Room("session", "continua.session", "Sessions: exported files without torch"),
    Room("recipes", "continua.recipes", "Recipes"),
    Room("estimators", "continua.estimators", "Estimators"),
    Room("serve", "continua.serve", "Serving"),
    Room("studio", "continua.studio", "Studio"),
    Room("lab-particles", "continua.lab.particles", "Lab: particles"),
    Room("lab-theory", "continua.lab.theory", "Lab: theory"),
    Room("lab-probes", "continua.lab.probes", "Lab: probes"),
    Room("lab-cost", "continua.lab.cost", "Lab: cost and sizes"),
    Room("lab-canvas", "continua.lab.canvas", "Lab: pictures and films"),
    Room("lab", "continua.lab", "Lab: everything else"),
    Room("errors", "continua.errors", "Errors"),
)


def exported(module: ModuleType) -> list[str]:
    """The public names of a module: its ``__all__``, or what it defines without an underscore."""
    if hasattr(module, "__all__"):
        return list(dict.fromkeys(module.__all__))
    return [n for n, v in vars(module).items() if not n.startswith("_") and home(v) == module.__name__]


def home(value: Any) -> str:
    """The module that defines a value; nothing for a constant."""
    return getattr(value, "__module__", None) or ""


def fits(room: Room, value: Any) -> bool:
    """Whether a value is defined in the module of a room, or in one inside it."""
    return home(value) == room.module or home(value).startswith(room.module + ".")


def deepest(value: Any) -> Room | None:
    """The room that documents a value: the one whose module path is the longest."""
    found = [room for room in ROOMS if fits(room, value)]
    return max(found, key=lambda room: len(room.module), default=None)


def values(room: Room) -> Iterator[tuple[str, Any]]:
    """The public names of a room with their values."""
    module = importlib.import_module(room.module)
    for name in exported(module):
        yield name, getattr(module, name)


def places() -> dict[str, Room]:
    """Every public name, written in full, and the page that documents it."""
    found: dict[str, Room] = {}
    for room in ROOMS:
        for name, value in values(room):
            if isinstance(value, ModuleType):
                continue
            owner = deepest(value)
            own = owner is None or owner == room or name not in exported(importlib.import_module(owner.module))
            found[f"{room.module}.{name}"] = room if own or owner is None else owner
    return found


def path_of(full: str, room: Room) -> str:
    """The name under which a page documents a public name: that of its definition where a file has the same name."""
    name = full.rpartition(".")[2]
    module = importlib.import_module(room.module)
    if any(
        found.name == name for found in pkgutil.iter_modules(module.__path__ if hasattr(module, "__path__") else [])
    ):
        return f"{home(getattr(module, name))}.{name}"
    return f"{room.module}.{name}"


def file_of(room: Room, name: str) -> str:
    """The file of a room in which a name is defined, for the headings of its page."""
    value = getattr(importlib.import_module(room.module), name)
    rest = home(value).removeprefix(room.module).strip(".") if fits(room, value) else ""
    return rest.replace(".", "/").replace("_", " ")


def sentence(module: str) -> str:
    """The first sentence of a module's docstring."""
    text = inspect.getdoc(importlib.import_module(module)) or ""
    return text.split("\n\n")[0].replace("\n", " ").strip()


def page(room: Room, all_places: dict[str, Room]) -> str:
    """The text of one page."""
    lines = [f"# {room.title}", "", f"`{room.module}`. {sentence(room.module)}", ""]
    groups: dict[str, list[str]] = {}
    elsewhere = []
    for full, owner in all_places.items():
        if full.rpartition(".")[0] != room.module:
            continue
        name = full.rpartition(".")[2]
        if owner == room:
            groups.setdefault(file_of(room, name), []).append(name)
        else:
            elsewhere.append(f"[`{name}`]({owner.page}.md#{path_of(full, owner)})")
    if elsewhere:
        lines += [f"Also importable from here: {', '.join(sorted(elsewhere))}.", ""]
    for group in sorted(groups):
        if group:
            lines += [f"## {group}", ""]
        for name in sorted(groups[group], key=str.lower):
            lines += [f"::: {path_of(f'{room.module}.{name}', room)}", ""]
    return "\n".join(lines)


def index(all_places: dict[str, Room]) -> str:
    """The page that leads to the others."""
    import continua

    lines = ["# Reference", "", "Every public name, by the room of the package that defines it.", ""]
    lines += ["| page | module | |", "|---|---|---|"]
    lines += [f"| [{r.title}]({r.page}.md) | `{r.module}` | {sentence(r.module)} |" for r in ROOMS]
    lines += ["| [The command line](cli.md) | `continua.cli` | every command and its options |", ""]
    lines += ["## Names of `continua` itself", ""]
    lines += ["`import continua as ct` has the names that most programs need.", ""]
    for module, names in continua._ROOMS.items():
        linked = []
        for name in names.split():
            owner = all_places.get(f"continua.{module}.{name}")
            target = f"{owner.page}.md#{path_of(f'continua.{module}.{name}', owner)}" if owner else "zoo.md"
            linked.append(f"[`ct.{name}`]({target})")
        if linked:
            lines += [f"- {module}: {', '.join(linked)}"]
    return "\n".join([*lines, ""])


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of the command line with its parameters."""
    import typer

    from continua.cli import app

    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)  # a group: simulate circle, simulate sphere, …
        yield from [(name, command)] if inner is None else [(f"{name} {n}", c) for n, c in sorted(inner.items())]


def flat(text: str | None) -> str:
    """A help text in one line, fit for a table."""
    return " ".join((text or "").split()).replace("|", "\\|").replace("[", "\\[").replace("<", "&lt;")


def plain(default: Any) -> str:
    """A default as it would be typed, a line break as \\n."""
    return str(default).replace("\n", "\\n")


def command_line() -> str:
    """The page of the command line."""
    lines = [
        "# The command line",
        "",
        "`continua COMMAND --help` says the same. `continua --version` names the version.",
    ]
    lines += ["", "```console", "$ continua --help", "```", ""]
    for name, command in commands():
        lines += [f"## continua {name}", "", flat(command.help), "", "| option | default | |", "|---|---|---|"]
        for parameter in command.params:
            flags = ", ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])
            shown = f"`{parameter.name.upper()}`" if parameter.param_type_name == "argument" else flags
            default = parameter.default
            text = "" if default in (None, (), [], "", ...) or callable(default) else f"`{plain(default)}`"
            lines.append(f"| {shown} | {text} | {flat(getattr(parameter, 'help', ''))} |")
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Every page of the reference by its file name."""
    found = places()
    made = {f"{room.page}.md": page(room, found) for room in ROOMS}
    return {"index.md": index(found), **made, "cli.md": command_line()}


def missing(folder: Path = FOLDER) -> list[str]:
    """Public names, commands and options that no page has."""
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    lost = []
    for full, room in places().items():
        if f"::: {path_of(full, room)}\n" not in written.get(f"{room.page}.md", "") + "\n":
            lost.append(full)
    for name, command in commands():
        text = written.get("cli.md", "")
        lost += [] if f"## continua {name}\n" in text else [f"continua {name}"]
        lost += [f"continua {name} {flag}" for p in command.params for flag in p.opts if f"`{flag}`" not in text
                 and p.param_type_name == "option"]  # fmt: skip
    return lost


def modules() -> list[str]:
    """The packages of continua: each has a page, or is a shelf whose names its room exports."""
    import continua

    return [found.name for found in pkgutil.iter_modules(continua.__path__, "continua.") if found.ispkg]


def main() -> int:
    """Write, or check."""
    if "--check" in sys.argv:
        lost = missing()
        for name in lost:
            print(f"{name} is on no page of docs/reference. Run python tools/reference.py.")
        return 1 if lost else 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
