"""One law of all models: everything they need is where their parameters are, and no value is read on the way."""

from typing import Any

import pytest
import torch

from continua.errors import ContinuaError
from continua.models import Batch
from tests.cases import MODELS, OTHER_MODELS, Case
from tests.cases import made as made_once
from tests.second_device import moved, on_second_device, registered
from tests.shallow import shallow

FLOATING = (torch.float32, torch.float64, torch.bfloat16)
SCATTERED = ("points of a plane", "functions on a square", "cells")  # weights of scattered points come with the data
SOLVES = (  # linear systems, and complex waves, in float32 at least; torch has no such kernels in half precision either
    "functions on a circle",
    "evolution on a circle",
    "conserving evolution on a circle",
    "convolution in time",
    "kernel Nyström",
    "kernel positive features",
)


def made(case: Case, name: str) -> tuple[Any, Batch]:
    model = case.build()
    batch = case.batch()
    if name in SCATTERED:
        batch = model.double().laid(batch)
    model.execution.check = False
    return model, batch


# In bfloat16 also a number that was made in the default dtype is noticed; every other law runs in float64.
QUICK = [
    *((name, torch.bfloat16) for name in (*MODELS, *OTHER_MODELS)),
    *((name, torch.float32) for name in SOLVES),
]


@pytest.mark.spec("B10")
@pytest.mark.parametrize(("name", "dtype"), QUICK, ids=str)
def test_a_model_runs_on_a_device_that_is_not_the_processor(name: str, dtype: torch.dtype) -> None:
    runs_there(shallow(name), name, dtype)


@pytest.mark.slow(reason="half a minute for all models, and a second layer is like the first")
@pytest.mark.spec("B10")
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("name", [*MODELS, *OTHER_MODELS])
def test_a_model_of_two_layers_runs_on_a_device_that_is_not_the_processor(name: str, dtype: torch.dtype) -> None:
    runs_there({**MODELS, **OTHER_MODELS}[name], name, dtype)


def runs_there(case: Case, name: str, dtype: torch.dtype) -> None:
    model, batch = made(case, name)
    wanted = made_once(name)[2].shape if name in MODELS else model.double()(batch).shape
    model.to(dtype)
    with on_second_device(model) as there:
        given = moved(batch, registered())
        if name == "layer":  # a state comes in the dtype of the layers
            given = Batch(given.values.to(dtype))
        answer = there(given)
        assert answer.device == registered()
        assert answer.shape == wanted
        assert answer.dtype == dtype or name in SOLVES


@pytest.mark.spec("B10")
def test_a_stray_tensor_is_noticed() -> None:
    model, batch = made(MODELS["gpt2"], "gpt2")
    with (
        on_second_device(model) as there,
        pytest.raises(ContinuaError, match="a batch and its model live on one device, got values on cpu"),
    ):
        there(Batch(torch.zeros(batch.values.shape, dtype=torch.long)))


@pytest.mark.spec("B10")
def test_a_value_that_is_read_is_noticed() -> None:
    model, batch = made(MODELS["gpt2"], "gpt2")
    model.execution.check = True
    with on_second_device(model) as there, pytest.raises(Exception, match=r"_local_scalar_dense|item"):
        there(moved(batch, registered()))


@pytest.mark.spec("B10")
def test_a_model_on_two_devices_is_refused() -> None:
    model = MODELS["gpt2"].model()
    model.readout.to("meta")
    with pytest.raises(ContinuaError, match=r"a model lives on one device, got cpu and meta. Move it"):
        model(MODELS["gpt2"].batch())
