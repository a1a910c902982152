"""Two controls of a model's dynamics: the temperature of its scores, and how much of the state a layer keeps."""

import math
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from continua.config import arguments
from continua.errors import ConfigError
from continua.fields import Expansion
from continua.models import Transformer, View
from continua.operators import Attention, Parts, Skip

COLDEST = 1e-30


def controlled(model: nn.Module | View, temperature: float = 1.0, skip: float = 1.0) -> Any:
    """A copy with scores τ⟨q, k⟩/temperature and layers x ← skip·x + A[x], then x ← x + F[x].

    ``temperature`` divides the queries, weights and biases, of every attention: 2 halves the β of each head; what
    positions add to the scores stays. ``skip`` multiplies what the attention part keeps of the state: γ becomes
    skip·(1 + γ) − 1, which for unit Euler steps is the residual times ``skip``. Ones change nothing.

    >>> from continua.models import zoo
    >>> model = zoo.gpt2(vocab=9, d=8, heads=2, depth=3, context=8)
    >>> ids = torch.arange(8)[None]
    >>> bool((controlled(model)(ids) == model(ids)).all()), bool((controlled(model, 2.0)(ids) == model(ids)).all())
    (True, False)
    """
    if isinstance(model, View):
        return controlled(model.model, temperature, skip).at(model.discretisation)
    if not isinstance(model, Transformer):
        remedy = "Pass a Transformer; of an encoder–decoder, its encoder or its decoder."
        raise ConfigError("one stack of layers is controlled", got=type(model).__name__, remedy=remedy)
    if not COLDEST <= temperature <= 1 / COLDEST:  # weights are divided by it, and stay numbers of float32
        remedy = "Use a number above zero; 1 changes nothing, more looks more evenly."
        raise ConfigError("a temperature is above zero, from 1e-30 to 1e30", got=temperature, remedy=remedy)
    if not math.isfinite(skip):
        raise ConfigError("a skip factor is a number", got=skip, remedy="1 changes nothing, 0 drops the residual.")
    copied = deepcopy(model)
    if temperature != 1.0:
        _cool(copied, temperature)
    return copied if skip == 1.0 else _skipping(copied, skip)


@torch.no_grad()
def _cool(model: Transformer, temperature: float) -> None:
    for attention in (module for module in model.modules() if isinstance(module, Attention)):
        fields = [field for field in (attention.q, attention.bq) if isinstance(field, Expansion)]
        if not attention.kernel.is_dot or attention.q not in fields:
            got = type(attention.kernel if not attention.kernel.is_dot else attention.q).__name__
            remedy = "Use attention by products whose queries are expansions in a basis."
            raise ConfigError("a temperature needs scores that are linear in stored queries", got=got, remedy=remedy)
        for field in fields:
            field.coefficients.div_(temperature)


def _skipping(model: Transformer, skip: float) -> Transformer:
    """The same modules in a model whose first flow, the attention, keeps ``skip`` of the state."""
    parts = list(model.block)
    place = model.block.kinds.index(True)
    first = parts[place]
    inner, gamma = (first.inner, first.gamma) if isinstance(first, Skip) else (first, 0.0)
    parts[place] = Skip(inner, skip * (1 + gamma) - 1)
    made = Transformer(**{**arguments(model), "block": Parts(tuple(parts))})
    made.adjoint = model.adjoint
    made.check = model.check
    made.generator = model.generator
    return made.train(model.training)
