"""From a discrete model to an elastic one: the same weights on nested nodes, with a calibration for other sizes."""

from typing import Any

from torch import nn

from continua.axes import WIDTHS, Points
from continua.config import from_plain, to_plain
from continua.errors import ConfigError
from continua.models.model import Model


def elastic(model: nn.Module) -> Any:
    """Return a model that equals ``model`` on its own grid and can be trained to work on others.

    Widths and heads become functions that are constant on cells, read at nested nodes: fewer nodes are some of its
    own, twice as many are each of them twice. Steps in depth are nested too. Norms and output maps get a
    ``Calibration``, which starts by letting sums grow like √n. Weights are copied: change one, the other stays.

    >>> import torch
    >>> from continua.models import zoo
    >>> model = elastic(zoo.gpt2(vocab=8, d=16, heads=4, depth=4, context=8))
    >>> ids = torch.zeros(1, 3, dtype=torch.long)
    >>> bool((model.at(d=32)(ids) - model(ids)).abs().max() < 1e-6)
    True
    """
    if not isinstance(model, Model):
        remedy = "Use a Transformer or an EncoderDecoder, for example of models.zoo."
        raise ConfigError("an elastic model is made from a model", got=type(model).__name__, remedy=remedy)
    for flow in model.flows:
        for letter in WIDTHS:
            if not isinstance(flow.axes[letter], Points):
                remedy = "Use a model on counted axes, for example models.zoo.gpt2(…)."
                raise ConfigError(f"{letter} is continuous already", got=flow.axes[letter], remedy=remedy)
    made = from_plain(_changed(to_plain(model)))
    like = next(model.parameters())
    made.to(device=like.device, dtype=like.dtype)
    missing = made.load_state_dict(model.state_dict(), strict=False).missing_keys
    unknown = [name for name in missing if ".calibration." not in name]
    if unknown:
        raise ConfigError("not every weight has a place", got=unknown[0], remedy="Start from a model of models.zoo.")
    return made


def _changed(plain: Any) -> Any:
    """Axes, bases and the native grid, wherever they stand in the description of a model."""
    if isinstance(plain, list):
        return [_changed(value) for value in plain]
    if not isinstance(plain, dict):
        return plain
    changed = {key: _changed(value) for key, value in plain.items()}
    if changed.get("kind") == "Axes":
        for letter in WIDTHS:
            changed[letter] = {"kind": "Interval", "start": 0.0, "end": 1.0, "mass": float(changed[letter]["n"])}
    elif changed.get("kind") == "ByBasis":
        for letter in WIDTHS:
            changed["bases"][letter]["rule"] = {**changed["bases"][letter]["rule"], "kind": "Nested"}
        changed["calibrated"] = True
        changed["calibrated_along"] = "dhzmep"
    elif changed.get("kind") == "Discretisation":
        for letter in WIDTHS:
            changed[letter] = {**changed[letter], "kind": "Nested"}
        changed["z"]["nested"] = changed["z"]["steps"]
    return changed
