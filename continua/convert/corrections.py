"""Corrections of the maps of a model, beside its kernels: what other sizes learn and the native one never reads."""

import math
from typing import Any

import torch

from continua.config import from_plain, to_plain
from continua.errors import ConfigError
from continua.fields import ByBasis, Corrections
from continua.operators import Correction


def with_corrections(model: Any, asked: Corrections, seed: int = 0) -> Any:
    """The same model with corrections beside its kernels, zero so far; those that are there stay."""
    plain = to_plain(model)
    found = _corrections_in(plain)
    if found is not None:
        if set(asked.along) - set(found["along"]) or found.get("beyond", 0.0) > asked.beyond or _more(asked, found):
            remedy = f"Teach sizes along {found['along']}{_most(found)}, or start from the model without corrections."
            raise ConfigError(
                "this model has corrections along other axes, or of other sizes", got=asked, remedy=remedy
            )
        return model
    like = next(model.parameters())
    made = from_plain(_with(plain, to_plain(asked))).to(device=like.device, dtype=like.dtype)
    made.load_state_dict(model.state_dict(), strict=False)
    generator = torch.Generator().manual_seed(seed)
    for module in made.modules():
        if isinstance(module, Correction):
            _draw(module, generator)
    return made.train(model.training)


def _more(asked: Corrections, found: Any) -> bool:
    """Whether sizes would learn at nodes for which the corrections that are there have no numbers."""
    there = [one for one in from_plain(found).stored if one.along in asked.along]
    return any(asked.nodes(one.along).get(one.axis, math.inf) > one.n for one in there)


def _most(found: Any) -> str:
    """The largest sizes that corrections have numbers for, in words."""
    there = [f"{one.axis}={one.n} along {one.along}" for one in from_plain(found).stored]
    return f" (of at most {', '.join(there)})" if there else ""


def _draw(correction: Correction, generator: torch.Generator) -> None:
    """Random numbers are drawn on the processor, so that every device starts with the same ones."""
    device = next(correction.parameters()).device
    correction.to("cpu").draw(generator)
    correction.to(device)


def _with(plain: Any, asked: Any) -> Any:
    if isinstance(plain, list):
        return [_with(value, asked) for value in plain]
    if not isinstance(plain, dict):
        return plain
    made = {key: _with(value, asked) for key, value in plain.items()}
    return {**made, "corrections": asked} if made.get("kind") == ByBasis.__name__ else made


def _corrections_in(plain: Any) -> Any:
    """The corrections that some part of a description has."""
    if isinstance(plain, list | dict):
        if isinstance(plain, dict) and plain.get("kind") == ByBasis.__name__ and plain.get("corrections") is not None:
            return plain["corrections"]
        values = plain.values() if isinstance(plain, dict) else plain
        return next((found for value in values if (found := _corrections_in(value)) is not None), None)
    return None
