"""Write the rows of a benchmark's result into the pages that quote it.

    python tools/quote.py            # every page of docs/ that has such a block
    python tools/quote.py --check    # only say which pages are out of date

A block begins with ``<!-- rows of NAME.json -->`` and ends with ``<!-- end of rows -->``. Without the result the block
says that it has not been measured. A result names its ``columns`` where they are not what was measured and promised.

``<!-- families -->`` to ``<!-- end of families -->`` is the table of all families: how exact (parity.json) and how
fast (family.json).
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?<=<!-- rows of )(?P<name>\w+)\.json -->\n.*?(?=<!-- end of rows -->)", re.DOTALL)


FAMILIES = re.compile(r"(?<=<!-- families -->\n).*?(?=<!-- end of families -->)", re.DOTALL)
SPEEDS = ("forward + backward", "token, batch 1", "load")


def families(results: Path) -> str:
    """Every family with its options, its errors and its times over those of Hugging Face."""
    exact = results / "parity.json"
    timed = results / "family.json"
    if not exact.exists() or not timed.exists():
        return (
            "\nNot measured yet: `python benchmarks/parity.py` and `python benchmarks/family.py` write the numbers.\n\n"
        )
    speeds = {row["name"]: row for row in json.loads(timed.read_text(encoding="utf-8"))["rows"]}
    heads = ("model of `transformers`", "options", "answers", "gradients", "as is", *SPEEDS)
    lines = ["", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for one in json.loads(exact.read_text(encoding="utf-8"))["families"]:
        errors = [
            f"{one[key]:.0e}".replace("e-0", "e-").replace("0e+00", "0") for key in ("answers", "gradients", "as is")
        ]
        times = [_speed(speeds.get(f"{one['model']}: {what}")) for what in SPEEDS]
        lines.append(f"| `{one['model']}` | {one['options']} | {' | '.join([*errors, *times])} |")
    return "\n".join([*lines, "", ""])


def _speed(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{'**MISS** ' if row['verdict'] == 'MISS' else ''}{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"


def table(result: Path) -> str:
    """The rows of one result as a table."""
    if not result.exists():
        return f"\nNot measured yet: `python benchmarks/{result.stem}.py` writes the numbers.\n\n"
    content = json.loads(result.read_text(encoding="utf-8"))
    headings = content.get("columns", ("", "measured", "promised", ""))
    lines = ["", f"|{'|'.join(f' {heading} ' if heading else ' ' for heading in headings)}|", "|---|---|---|---|"]
    for row in content["rows"]:
        interval = "" if row["low"] is None else f" [{row['low']:.3g}, {row['high']:.3g}]"
        unit = row["unit"] and f" {row['unit']}"
        verdict = "**MISS** " if row.get("verdict") == "MISS" else ""
        lines.append(
            f"| {row['name']} | {row['value']:.3g}{interval}{unit} | {row['target']} | {verdict}{row['note']} |"
        )
    return "\n".join([*lines, "", ""])


def quoted(text: str, results: Path = ROOT / "benchmarks" / "results") -> str:
    """The page with its blocks brought up to date."""
    text = FAMILIES.sub(lambda _: families(results), text)
    return BLOCK.sub(lambda found: f"{found['name']}.json -->\n{table(results / (found['name'] + '.json'))}", text)


def main() -> int:
    """Rewrite, or check."""
    old = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = quoted(text)
        if new != text:
            old.append(page.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    for name in old:
        print(f"{name}: {'is out of date' if '--check' in sys.argv else 'brought up to date'}")
    return 1 if old and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
