"""Tiny random ViTs of Hugging Face, read from their folders: states, logits and all gradients (M9, A8).

Transformers gives ViT's tensors other names in memory than on disk; gradients are compared under the names on disk.
"""

import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import continua as ct
from continua.convert.huggingface import hf_names
from continua.errors import ConfigError, ShapeError
from continua.models import Pixels, zoo
from tests.exact import EXACT, aligned, gap, gradients, numbers, stirred, worst
from tests.islands import lifted
from tests.lazy import Lazily

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = Lazily("transformers")

D, HEADS, LAYERS, LABELS = 16, 4, 3, 5
SHAPES = {  # image, patch, channels
    "square": ((12, 12), (4, 4), 3),
    "oblong, one channel": ((8, 14), (4, 7), 1),
    "with a rest": ((9, 11), (4, 4), 3),
}
IN_BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
CLASSES = pytest.mark.parametrize("cls", ["ViTModel", "ViTForImageClassification"])


pytestmark = pytest.mark.usefixtures("quiet_hugging_face")


def vit(cls: str, dtype: torch.dtype = torch.float64, shape: str = "square", **options: Any) -> Any:
    image, patch, channels = SHAPES[shape]
    config = transformers.ViTConfig(
        hidden_size=D,
        num_attention_heads=HEADS,
        num_hidden_layers=LAYERS,
        intermediate_size=24,
        image_size=image[0] if image[0] == image[1] else list(image),
        patch_size=patch[0] if patch[0] == patch[1] else list(patch),
        num_channels=channels,
        num_labels=LABELS,
        **options,
    )
    return stirred(getattr(transformers, cls)(config).eval(), dtype)


def images(dtype: torch.dtype = torch.float64, shape: str = "square") -> Tensor:
    (height, width), _, channels = SHAPES[shape]
    return numbers(2, channels, height, width, dtype=dtype, seed=3)


def answer(theirs: Any, pixels: Tensor) -> Tensor:
    out = theirs(pixels)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


RENAMED = (  # names in memory → names on disk, for the parameters of transformers 5
    (r"\blayers\.", "encoder.layer."),
    (r"attention\.q_proj", "attention.attention.query"),
    (r"attention\.k_proj", "attention.attention.key"),
    (r"attention\.v_proj", "attention.attention.value"),
    (r"attention\.o_proj", "attention.output.dense"),
    (r"mlp\.fc1", "intermediate.dense"),
    (r"mlp\.fc2", "output.dense"),
)


def on_disk_name(name: str) -> str:
    for pattern, spelt in RENAMED:
        name = re.sub(pattern, spelt, name)
    return name


def differ(theirs: Any, folder: Path, pixels: Tensor) -> tuple[float, float]:
    """How far outputs and gradients are apart."""
    theirs.save_pretrained(folder)
    stored, names, model = load_file(folder / "model.safetensors"), hf_names(folder), ct.from_hf(folder)
    named = {on_disk_name(name): parameter for name, parameter in theirs.named_parameters()}
    assert set(named) == set(stored)
    wanted, ours = answer(theirs, pixels), model(pixels)
    towards = numbers(*wanted.shape, dtype=wanted.dtype, seed=9)
    got = names.store(
        gradients((ours * towards).sum(), dict(model.named_parameters())), names.prefix + "layernorm.bias" in stored
    )
    expected = gradients((wanted * towards).sum(), {n: p for n, p in named.items() if not fnmatch(n, "pooler.*")})
    return gap(ours, wanted), worst(got, expected)


@IN_BOTH
@CLASSES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.spec("M9", "A8")
def test_vit(tmp_path: Path, dtype: torch.dtype, cls: str, shape: str) -> None:
    theirs = vit(cls, dtype, shape, attn_implementation="sdpa")
    assert max(differ(theirs, tmp_path, images(dtype, shape))) <= EXACT[dtype]


@CLASSES
@pytest.mark.spec("M9", "A8")
def test_vit_without_query_key_and_value_biases(tmp_path: Path, cls: str) -> None:
    theirs = vit(cls, qkv_bias=False, layer_norm_eps=1e-5)
    assert max(differ(theirs, tmp_path, images())) <= 1e-12


@CLASSES
@pytest.mark.spec("M9", "A8")
def test_vit_beside_an_eager_softmax_in_float32(tmp_path: Path, cls: str) -> None:
    """Untouched: its softmax is computed in float32 even in a double model. Gradients: lifted, in the next test."""
    theirs = vit(cls, attn_implementation="eager")
    assert differ(theirs, tmp_path, images())[0] <= 1e-6


@pytest.mark.spec("M9", "A8")
@CLASSES
def test_vit_beside_an_eager_softmax_lifted_to_float64(tmp_path: Path, cls: str) -> None:
    """The one float32 island of ViT: the softmax of its eager attention."""
    theirs = vit(cls, attn_implementation="eager")
    with lifted():
        assert max(differ(theirs, tmp_path, images())) <= 1e-12


# --- folders ---------------------------------------------------------------------------------------------------------


@CLASSES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.spec("M9", "A8")
def test_names_are_two_way_and_hf_loads_what_we_write(tmp_path: Path, cls: str, shape: str) -> None:
    theirs = vit(cls, shape=shape)
    theirs.save_pretrained(tmp_path / "theirs")
    model = ct.from_hf(tmp_path / "theirs")
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    folder = ct.to_hf(model, tmp_path / "back")
    back = load_file(folder / "model.safetensors")
    plain = {name.removeprefix("vit."): tensor for name, tensor in stored.items() if not name.startswith("pooler.")}
    assert set(plain) == {name.removeprefix("vit.") for name in back}
    assert all(torch.equal(tensor, plain[name.removeprefix("vit.")]) for name, tensor in back.items())
    again = aligned(getattr(transformers, cls).from_pretrained(folder, dtype=torch.float64).eval())
    assert torch.equal(answer(again, images(shape=shape)), answer(theirs, images(shape=shape)))
    assert torch.equal(ct.from_hf(folder)(images(shape=shape)), model(images(shape=shape)))


@pytest.mark.spec("A8", "M7")
def test_a_saved_vit_comes_back(tmp_path: Path) -> None:
    model = zoo.vit(Pixels(8, 8, patch=(4, 4)), d=8, heads=2, depth=2, labels=3).double()
    pixels = numbers(2, 3, 8, 8)
    assert torch.equal(ct.load(model.save(tmp_path))(pixels), model(pixels))


# --- images as fields ------------------------------------------------------------------------------------------------


@pytest.mark.spec("A8")
def test_patches_equal_a_strided_convolution() -> None:
    pixels = Pixels(9, 11, channels=3, patch=(4, 5))
    kernel, image = numbers(6, 3, 4, 5, seed=1), numbers(2, 3, 9, 11)
    wanted = torch.nn.functional.conv2d(image, kernel, stride=(4, 5)).flatten(2).mT
    assert gap(pixels.cut(image) @ kernel.flatten(1).mT, wanted) <= 1e-14
    assert pixels.cut(image, first=1).shape == (2, 1 + pixels.count, pixels.entries)


@pytest.mark.spec("A8", "M10")
@pytest.mark.parametrize("sizes", [{"z": 6}, {"d": 8}, {"h": 2, "z": 1}])
def test_vit_at_other_sizes(sizes: dict[str, int]) -> None:
    model = zoo.vit(Pixels(8, 8, patch=(4, 4)), d=16, heads=4, depth=2, labels=3).double()
    pixels = numbers(2, 3, 8, 8)
    got = model.at(**sizes)(pixels)
    assert got.shape == (2, 3)
    assert torch.isfinite(got).all()
    assert gap(got, model(pixels)) > 1e-6


@pytest.mark.spec("A8", "A2")
def test_an_absent_patch_reaches_no_one() -> None:
    model = zoo.vit(Pixels(8, 8, patch=(4, 4)), d=8, heads=2, depth=2, labels=3).double()
    pixels = numbers(1, 3, 8, 8)
    there = torch.tensor([[True, True, True, True, False]])  # the class token and four patches
    changed = pixels.clone()
    changed[..., 4:, 4:] = torch.nan
    wanted = model(ct.Batch(pixels, observed=there))
    assert torch.equal(model(ct.Batch(changed, observed=there)), wanted)
    assert gap(model(pixels), wanted) > 1e-6


@pytest.mark.spec("A8")
def test_other_images_are_refused() -> None:
    model = zoo.vit(Pixels(8, 8, patch=(4, 4)), d=8, heads=2, depth=2)
    with pytest.raises(ShapeError, match=r"images need shape \[b, 3, 8, 8\]"):
        model(torch.zeros(1, 3, 8, 12))
    with pytest.raises(ShapeError, match="patches have 48 entries"):
        model(torch.zeros(1, 5, 7))
    with pytest.raises(ConfigError, match="no larger than the image"):
        Pixels(8, 8, patch=(16, 16))
