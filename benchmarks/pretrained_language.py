"""SmolLM2-135M for ``pretrained.py``: perplexity of held-out docstrings at half of its feed-forward, no training."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from common import Row
from pretrained_peers import METHODS, Method, Moments, best, moments, output_map, rows
from pretrained_texts import Tokens
from torch import Tensor
from torch.nn.functional import cross_entropy

import continua as ct
from continua.data import Docstring, Docstrings
from continua.fields import RefitRanks
from tools import real_models

WINDOW = 256  # tokens
CALIBRATION = 48  # windows
HELD_OUT = 12
QUICK = (2, 2)
LIMIT = 1.36
COMPARED = ("Wanda", "FLAP", "Wanda + refit", "FLAP + refit")

Logits = Callable[[Tensor], Tensor]


def windows(folder: Path, docs: Sequence[Docstring], count: int) -> list[Tokens]:
    """Docstrings one behind the other, as English, in windows evenly spread; one in a batch, to stay small."""
    from tokenizers import Tokenizer

    text = "\n\n".join(f"{one.summary}\n{one.body}" for one in docs)
    ids = torch.tensor(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)
    whole = ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)
    taken = torch.linspace(0, len(whole) - 1, count).round().long()
    there = torch.ones(1, WINDOW, dtype=torch.bool)
    return [Tokens(whole[i : i + 1], there, torch.tensor([0])) for i in taken.tolist()]


@torch.no_grad()
def perplexity(logits: Logits, batches: Sequence[Tokens]) -> float:
    """exp of the mean −log p of the next token."""
    total = 0.0
    for batch in batches:
        total += float(cross_entropy(logits(batch.ids)[0, :-1].float(), batch.ids[0, 1:]))
    return math.exp(total / len(batches))


@torch.no_grad()
def pruned(model: Any, seen: Sequence[Moments], method: Method, m: int) -> Any:
    """A smaller Llama: ``m`` nodes of feed-forward in every layer; only the layers are copied."""
    small = copy.copy(model)
    small._modules = dict(model._modules)
    small.model = copy.copy(model.model)
    small.model._modules = {**model.model._modules, "layers": copy.deepcopy(model.model.layers)}
    for layer, moment in zip(small.model.layers, seen, strict=True):
        mlp = layer.mlp
        incoming = mlp.gate_proj.weight.double().norm(dim=1) * mlp.up_proj.weight.double().norm(dim=1)
        kept = best(method.score(incoming, mlp.down_proj.weight.double(), moment), m)
        mlp.down_proj = output_map(mlp.down_proj, kept, moment, method)
        mlp.gate_proj = rows(mlp.gate_proj, kept)
        mlp.up_proj = rows(mlp.up_proj, kept)
    return small


def perplexities(docs: Docstrings, elastic: Callable[..., Any], quick: bool) -> Iterator[Row]:
    """Rows of SmolLM2: perplexities over that of the full model."""
    from transformers import AutoModelForCausalLM

    folder = real_models.smollm2()
    calibration, held_out = QUICK if quick else (CALIBRATION, HELD_OUT)
    seen_texts = windows(folder, docs.train, calibration)
    unseen = windows(folder, docs.validation, held_out)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    full = perplexity(lambda ids: model(ids).logits, unseen)
    yield Row("perplexity, SmolLM2, native", full, note=f"{held_out} windows of {WINDOW} tokens of docstrings")
    half = model.config.intermediate_size // 2
    maps = [layer.mlp.down_proj for layer in model.model.layers]
    seen = moments(maps, lambda ids, there: model.model(ids).last_hidden_state, seen_texts)
    theirs: list[tuple[float, str]] = []
    for method in (one for one in METHODS if one.name in COMPARED):
        small = pruned(model, seen, method, half)
        share = perplexity(lambda ids, small=small: small(ids).logits, unseen) / full
        theirs.append((share, method.name))
        yield Row(f"perplexity / native, SmolLM2, ½ feed-forward: {method.name}", share)
        del small
    wide = RefitRanks(m=2 * half, h=model.config.hidden_size, d=1)
    del seen, maps, model
    lowest, name = min(theirs)
    for kept, ranks in (("", None), (", all moments of hidden coordinates", wide)):
        view = elastic(folder, seen_texts, ranks).at(m=half).held()
        share = perplexity(lambda ids, view=view: view(ct.Batch(ids)), unseen) / full
        yield Row(f"perplexity / native, SmolLM2, ½ feed-forward: ours{kept}", share, target=f"≤ {LIMIT}",
                  held=share <= LIMIT, note=f"best peer {lowest:.3f}, {name}")  # fmt: skip
        del view
