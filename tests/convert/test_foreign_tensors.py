"""What a Hugging Face folder may hold in the place of a weight: the right shape, and real numbers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import continua as ct
from continua.errors import CheckpointError
from tests.measure import gap
from tests.refusals import refused

IDS = torch.tensor([[3, 1, 4, 1, 5]])
FIRST = "transformer.h.0."


def folder(where: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A GPT-2 on disk, with something changed in the file."""
    torch.manual_seed(0)
    ct.to_hf(ct.zoo.gpt2(vocab=11, d=8, heads=2, depth=2, context=8, m=12), where)
    path = where / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    return where


def turned(name: str) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors[name].mT.contiguous()

    return change


def made(name: str, how: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name] = how(tensors[name]).contiguous()

    return change


@pytest.mark.finding("S3")
@pytest.mark.parametrize(
    ("name", "wanted"),
    [("mlp.c_fc.weight", [8, 12]), ("mlp.c_proj.weight", [12, 8]), ("attn.c_attn.weight", [8, 24])],
)
def test_a_transposed_weight_is_refused(name: str, wanted: list[int], tmp_path: Path) -> None:
    where = folder(tmp_path, turned(FIRST + name))
    with refused(CheckpointError, f"got {wanted[::-1]}", "It is transposed: write the folder"):
        ct.from_hf(where)


@pytest.mark.finding("S3")
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("mlp.c_fc.weight", lambda x: x.reshape(4, 24)),
        ("mlp.c_fc.weight", lambda x: x.flatten()),
        ("mlp.c_fc.bias", lambda x: x[None]),
        ("ln_1.weight", lambda x: x.reshape(2, 4)),
        ("attn.c_attn.bias", lambda x: x.reshape(3, 8)),
        ("mlp.c_fc.weight", lambda x: x[:, :-1]),
    ],
)
def test_as_many_numbers_in_another_shape_are_refused(
    name: str, how: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    where = folder(tmp_path, made(FIRST + name, how))
    with refused(CheckpointError, "got [", "do not belong together"):
        ct.from_hf(where)


@pytest.mark.finding("S10")
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.uint8, torch.float8_e4m3fn], ids=str)
def test_quantised_weights_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    where = folder(tmp_path, made(FIRST + "mlp.c_fc.weight", lambda x: x.to(dtype)))
    with refused(CheckpointError, f"got {dtype}", "Dequantise"):
        ct.from_hf(where)


@pytest.mark.finding("S10")
@pytest.mark.parametrize(
    ("table", "rest", "wanted"),
    [
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.float16, torch.bfloat16, torch.float32),
        (torch.float64, torch.float32, torch.float64),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    ],
)
@torch.no_grad()
def test_mixed_dtypes_become_the_one_that_holds_all(
    table: torch.dtype, rest: torch.dtype, wanted: torch.dtype, tmp_path: Path
) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(table if name == "transformer.wte.weight" else rest)

    where = folder(tmp_path, change)
    model = ct.from_hf(where)
    assert {parameter.dtype for parameter in model.parameters()} == {wanted}
    stored = load_file(where / "model.safetensors")
    exact = stored[FIRST + "mlp.c_fc.weight"].mT.double()  # nothing is rounded
    assert torch.equal(model.get_parameter("block.parts.1.inner.w1.coefficients")[0].double(), exact)
    assert model(IDS).dtype == wanted
    assert {p.dtype for p in ct.from_hf(where, dtype=torch.float64).parameters()} == {torch.float64}


@pytest.mark.finding("S10")
@torch.no_grad()
def test_tensors_that_are_no_weights_may_be_anything(tmp_path: Path) -> None:
    """Old files of GPT-2 carry their causal masks, which are booleans."""

    def change(tensors: dict[str, Tensor]) -> None:
        tensors[FIRST + "attn.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.bool)

    plain = ct.from_hf(folder(tmp_path / "plain", lambda tensors: None))
    assert gap(ct.from_hf(folder(tmp_path / "masks", change))(IDS), plain(IDS)) == 0.0
