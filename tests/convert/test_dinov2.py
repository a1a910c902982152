"""Tiny random DINOv2s of Hugging Face, with registers and without: states, all gradients, folders (M9, B14).

Nothing is lifted: no part of them is computed in float32.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import continua as ct
from continua.axes import Counting, Points, grid_on
from continua.config import to_plain
from continua.convert.huggingface import hf_names
from continua.models import Pixels, zoo
from tests.convert.test_vit import D, images
from tests.exact import EXACT, aligned, gap, gradients, numbers, stirred, worst, written_gradients
from tests.lazy import Lazily

transformers = Lazily("transformers")

REGISTERS = {"Dinov2": {}, "Dinov2WithRegisters": {"num_register_tokens": 3}}
EACH = pytest.mark.parametrize("family", REGISTERS)

pytestmark = [pytest.mark.usefixtures("quiet_hugging_face"), pytest.mark.spec("B14", "M9", "A8")]


def dinov2(family: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    sizes = {"hidden_size": D, "num_attention_heads": 4, "num_hidden_layers": 3, "mlp_ratio": 2, "image_size": 12}
    config = getattr(transformers, f"{family}Config")(**sizes, **REGISTERS[family], patch_size=4, **options)
    return stirred(getattr(transformers, f"{family}Model")(config).eval(), dtype)


def differ(theirs: Any, folder: Path, pixels: torch.Tensor) -> tuple[float, float]:
    """Of the states and of all gradients, which are compared under the names on disk."""
    theirs.save_pretrained(folder)
    model = ct.from_hf(folder)
    names = hf_names(folder)
    wanted = theirs(pixels).last_hidden_state
    ours = model(pixels)
    towards = numbers(*wanted.shape, dtype=wanted.dtype, seed=9)
    got = names.store(gradients((ours * towards).sum(), dict(model.named_parameters())), prefixed=False)
    leaves = dict(theirs.named_parameters())
    slopes = gradients((wanted * towards).sum(), leaves)
    error = gap(ours, wanted)
    expected = written_gradients(theirs, slopes, folder / "gradients")
    expected.pop("embeddings.mask_token", None)  # of training, for patches that are hidden
    return error, worst(got, expected)


@EACH
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_states_and_gradients(tmp_path: Path, family: str, attention: str) -> None:
    assert max(differ(dinov2(family, attn_implementation=attention), tmp_path, images())) <= 1e-12


@EACH
def test_float32_and_no_biases(tmp_path: Path, family: str) -> None:
    theirs = dinov2(family, torch.float32, qkv_bias=False)
    assert max(differ(theirs, tmp_path, images(torch.float32))) <= EXACT[torch.float32]


@EACH
def test_folders_go_both_ways(tmp_path: Path, family: str) -> None:
    theirs = dinov2(family)
    theirs.save_pretrained(tmp_path / "theirs")
    model = ct.from_hf(tmp_path / "theirs")
    folder = ct.to_hf(model, tmp_path / "ours")
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    names = hf_names(folder)
    back = names.store(model.state_dict(), prefixed=False)
    assert set(stored) - set(back) == {"embeddings.mask_token"}
    assert all(torch.equal(tensor, stored[name]) for name, tensor in back.items())
    again = aligned(type(theirs).from_pretrained(folder, dtype=torch.float64).eval())
    assert torch.equal(again(images()).last_hidden_state, theirs(images()).last_hidden_state)
    assert to_plain(ct.from_hf(folder)) == to_plain(model)


@EACH
@pytest.mark.parametrize("sizes", [{"d": 8}, {"h": 2}, {"e": 2}, {"m": 12}, {"z": 1}], ids=str)
def test_another_discretisation(family: str, sizes: dict[str, int]) -> None:
    registers = REGISTERS[family].get("num_register_tokens", 0)
    model = stirred(zoo.dinov2(Pixels(8, 8, patch=(4, 4)), d=16, heads=4, depth=2, m=32, registers=registers))
    pixels = numbers(2, 3, 8, 8)
    other = model.at(**sizes)(pixels)
    assert other.isfinite().all()
    assert gap(ct.discretise(model, **sizes)(pixels), other) <= 1e-12


def test_registers_have_no_place() -> None:
    model = stirred(zoo.dinov2(Pixels(8, 8, patch=(4, 4)), d=16, heads=4, depth=1, registers=2))
    rows = model.embed.position.read(grid_on(Points(16), Counting(16)))
    assert rows.any(-1).tolist() == [True, False, False, True, True, True, True]
    assert model.embed.position.room == len(rows)
