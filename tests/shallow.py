"""The models of the cases with one layer or step instead of two, for laws whose time goes by the layers.

A second layer is traced like the first, so what a law says of one it says of two. The slow tests have both.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from continua.axes import at
from continua.models.build import discrete_axes
from tests import cases, cases_models

STEPS = 1
# What layers add is in these: masks and positions that go by the layer, weights shared by layers, weights made by a
# network over depth, a splitting method whose parts go on into the next step, and one of a kind.
DEEP = (
    "gpt2",
    "continuous words",
    "continuous series",
    "t5",
    "layer",
    "albert",
    "llama, every option",
    "gemma2",
    "gemma3",
    "smollm3",
    "modernbert",
    "generated",
    "dropout, constant in depth",
    "stepped by Strang(Heun)",
)


@contextmanager
def one_layer() -> Iterator[None]:
    """What a case builds here has one layer."""
    smooth = at(d=8, h=2, e=4, m=12, z=STEPS)
    with ExitStack() as changed:
        for sizes in (cases_models.SIZES, cases_models.SMALL):
            changed.enter_context(mock.patch.dict(sizes, depth=STEPS))
        for module in (cases, cases_models):
            changed.enter_context(mock.patch.multiple(module, STEPS=STEPS, SMOOTH=smooth))
        changed.enter_context(mock.patch.object(cases_models, "COUNTED", discrete_axes(8, 2, 12, STEPS)))
        yield


def shallow(name: str) -> cases.Case:
    """The case of this name; what it builds has one layer unless layers differ in it."""
    case = cases.MODELS[name] if name in cases.MODELS else cases.OTHER_MODELS[name]
    return case if name in DEEP else replace(case, build=lambda: _built(case))


def _built(case: cases.Case) -> Any:
    with one_layer():
        return case.build()
