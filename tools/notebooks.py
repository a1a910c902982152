"""Make notebooks/ from the tours in examples/: scripts whose cells begin with ``# %%``.

    python tools/notebooks.py            # write them, with what the cells print and draw
    python tools/notebooks.py --check    # only say which are out of date

The scripts are what is written and tested by hand; a notebook is out of date when its cells differ from the script's.
"""

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOURS = sorted((ROOT / "examples").glob("tour_*.py"))
FOLDER = ROOT / "notebooks"
MARK = "# %%"


def cells(text: str) -> list[tuple[str, str]]:
    """The cells of a script, each with its kind: ``markdown`` or ``code``."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith(MARK):
            found.append(("markdown" if "[markdown]" in line else "code", []))
        elif found:
            kind, lines = found[-1]
            lines.append(line.removeprefix("#").removeprefix(" ") if kind == "markdown" else line)
    return [(kind, "\n".join(lines).strip("\n")) for kind, lines in found]


def run(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Execute a cell as a notebook does; return what it prints, its last value and its pictures."""
    from matplotlib import pyplot

    printed = io.StringIO()
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    outputs: list[dict[str, Any]] = []
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        outputs.append({"output_type": "execute_result", "execution_count": None, "data": data, "metadata": {}})
    for number in pyplot.get_fignums():
        drawn = io.BytesIO()
        pyplot.figure(number).savefig(drawn, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
        data = {"image/png": base64.b64encode(drawn.getvalue()).decode()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    pyplot.close("all")
    return outputs


def notebook(text: str, execute: bool = True) -> dict[str, Any]:
    """The notebook of a script."""
    names: dict[str, Any] = {"__name__": "__main__"}
    made = []
    for number, (kind, source) in enumerate(cells(text)):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        cell["source"] = source.splitlines(keepends=True)
        if kind == "code":
            cell["execution_count"] = None
            cell["outputs"] = run(source, names) if execute else []
        made.append(cell)
    about = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": made, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def is_current(tour: Path) -> bool:
    """Whether the notebook of a tour has its cells."""
    path = FOLDER / f"{tour.stem.removeprefix('tour_')}.ipynb"
    if not path.is_file():
        return False
    stored = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [(c["cell_type"], "".join(c["source"])) for c in stored] == cells(tour.read_text(encoding="utf-8"))


def main() -> int:
    """Write, or check."""
    import matplotlib

    matplotlib.use("agg")
    sys.path.insert(0, str(ROOT))
    old = [tour for tour in TOURS if not is_current(tour)]
    if "--check" in sys.argv:
        for tour in old:
            print(f"the notebook of {tour.name} is out of date: run python tools/notebooks.py")
        return 1 if old else 0
    FOLDER.mkdir(exist_ok=True)
    for tour in TOURS:
        print(f"{tour.name} …", flush=True)
        made = notebook(tour.read_text(encoding="utf-8"))
        path = FOLDER / f"{tour.stem.removeprefix('tour_')}.ipynb"
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
