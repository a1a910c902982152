"""One small model of every family of the zoo, with a batch for it: for laws that all of them must obey."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

import continua as ct
from continua.fields import counted
from continua.models import Batch, Pixels, States, Transformer
from continua.models.bank import Bank
from continua.models.build import discrete_axes
from continua.operators import Attention, Parts


def _ids(n: int, b: int = 2) -> torch.Tensor:
    return torch.randint(32, (b, n), generator=torch.Generator().manual_seed(n))


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def _stamps(n: int) -> torch.Tensor:
    return torch.rand(2, n, generator=torch.Generator().manual_seed(n)).sort(-1).values


def _with_bank() -> Transformer:
    axes, native = discrete_axes(16, 2, 16, 2)
    weights = counted(axes, 2)
    parts = Parts((Attention(weights), Attention(weights, cross=True)))
    return Transformer(axes, native, States(), parts, bank=Bank(weights.autonomous(), 3))


@dataclass(frozen=True)
class Family:
    """How to make it, a batch of two, and how many tokens and sources that batch has."""

    make: Callable[[], object]
    batch: Batch | torch.Tensor
    tokens: int
    sources: int = 0


SHAPE = {"vocab": 32, "d": 16, "heads": 2, "depth": 2}
FAMILIES = {
    "gpt2": Family(lambda: ct.zoo.gpt2(**SHAPE, context=16), _ids(9), 9),
    "bert": Family(lambda: ct.zoo.bert(**SHAPE, context=16, masked_lm=True), _ids(9), 9),
    "llama": Family(lambda: ct.zoo.llama(vocab=32, d=16, heads=4, depth=2, m=40, groups=2), _ids(9), 9),
    "t5": Family(lambda: ct.zoo.t5(**SHAPE, e=4), Batch(_ids(5), source=Batch(_ids(9))), 5, 9),
    "vit": Family(
        lambda: ct.zoo.vit(Pixels(8, 8, patch=(4, 4)), d=16, heads=2, depth=2, labels=3), _numbers(2, 3, 8, 8), 5
    ),
    "albert": Family(
        lambda: ct.zoo.albert(32, table_width=8, d=16, heads=2, depth=3, context=16, masked_lm=True), _ids(9), 9
    ),
    "gat": Family(
        lambda: ct.zoo.gat(channels=3, out=2, d=16, heads=2),
        Batch(_numbers(2, 7, 3), pairs=torch.eye(7, dtype=torch.bool).roll(1, 0) | torch.eye(7, dtype=torch.bool)),
        7,
    ),
    "forecaster": Family(
        lambda: ct.zoo.forecaster(at=ct.at(d=16, h=2, z=2)),
        Batch(_numbers(2, 4, 1), times=_stamps(4), source=Batch(_numbers(2, 11, 1), times=_stamps(11))),
        4,
        11,
    ),
    "cross-modal": Family(
        lambda: ct.zoo.cross_modal(vocab=32, channels=3, d=16, heads=2, depth=2),
        Batch(_ids(5), source=Batch(_numbers(2, 9, 3))),
        5,
        9,
    ),
    "bank": Family(_with_bank, _numbers(2, 6, 16).requires_grad_(), 6),
    "continuous": Family(lambda: ct.Transformer.continuous(vocab=32, at=ct.at(d=16, h=2, z=2)), _ids(9), 9),
}
