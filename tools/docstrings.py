"""A griffe extension for the pages of the reference: examples in docstrings become code blocks.

Docstrings here hold bare ``>>>`` lines, as doctest reads them; Markdown would take them for quotations.
"""

from typing import Any

import griffe


def fenced(text: str) -> str:
    """The text with every doctest example, its output included, inside a code fence."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        begins = line.lstrip().startswith(">>> ")
        if begins and not inside:
            lines += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            lines += ["```"]
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


class Examples(griffe.Extension):
    """Fence the examples of every docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of one object, if it has an example."""
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
