"""Sentences that every machine has: first paragraphs of the standard library's docstrings."""

import ast
import sysconfig
from pathlib import Path

import torch

from continua.models import Batch

EACH = 32


def docstrings(count: int) -> list[str]:
    """So many different ones, drawn with a fixed seed."""
    found: dict[str, None] = {}
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
            line = " ".join((text or "").split("\n\n")[0].split())
            if 20 < len(line) < 300:
                found[line] = None
    every = list(found)
    drawn = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))[:count]
    return [every[i] for i in drawn.tolist()]


def encoded(folder: Path, texts: list[str]) -> list[Batch]:
    """Batches of token numbers by the tokenizer of a Hugging Face folder."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(64)
    tokenizer.enable_padding()
    made = []
    for start in range(0, len(texts), EACH):
        rows = tokenizer.encode_batch(texts[start : start + EACH])
        ids = torch.tensor([row.ids for row in rows])
        made.append(Batch(ids, observed=torch.tensor([row.attention_mask for row in rows]).bool()))
    return made
