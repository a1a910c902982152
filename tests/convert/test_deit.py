"""Tiny random DeiTs of Hugging Face: states, logits and all gradients (M9, B14).

The softmax of its eager attention is a float32 island, as ViT's is: it is lifted, or answers alone are compared.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import continua as ct
from continua.config import to_plain
from continua.errors import ConfigError
from continua.fields import counted
from continua.models import Patches, Pixels, zoo
from tests.convert.test_vit import D, answer, differ, images
from tests.exact import EXACT, aligned, gap, numbers, stirred
from tests.islands import lifted
from tests.lazy import Lazily
from tests.refusals import refused

transformers = Lazily("transformers")

CLASSES = ("DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher")
LABELS = {0: "cat", 1: "dog", 2: "owl"}
EACH = pytest.mark.parametrize("cls", CLASSES)

pytestmark = [pytest.mark.usefixtures("quiet_hugging_face"), pytest.mark.spec("B14", "M9", "A8")]


def deit(cls: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    sizes = {"hidden_size": D, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 24}
    sizes |= {"image_size": 12, "patch_size": 4, "id2label": LABELS, "label2id": {v: k for k, v in LABELS.items()}}
    return stirred(getattr(transformers, cls)(transformers.DeiTConfig(**sizes, **options)).eval(), dtype)


@EACH
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_deit(tmp_path: Path, cls: str, attention: str) -> None:
    with lifted():
        assert max(differ(deit(cls, attn_implementation=attention), tmp_path, images())) <= 1e-12


@EACH
def test_deit_untouched(tmp_path: Path, cls: str) -> None:
    theirs = deit(cls, attn_implementation="eager", qkv_bias=False)
    assert differ(theirs, tmp_path, images())[0] <= 1e-6
    theirs = deit(cls, torch.float32)
    assert max(differ(theirs, tmp_path, images(torch.float32))) <= EXACT[torch.float32]


@EACH
def test_folders_go_both_ways(tmp_path: Path, cls: str) -> None:
    theirs = deit(cls)
    theirs.save_pretrained(tmp_path / "theirs")
    model = ct.from_hf(tmp_path / "theirs")
    folder = ct.to_hf(model, tmp_path / "ours")
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    plain = {n.removeprefix("deit."): tensor for n, tensor in stored.items() if not n.startswith("pooler.")}
    back = {n.removeprefix("deit."): tensor for n, tensor in load_file(folder / "model.safetensors").items()}
    assert set(back) == set(plain)
    assert all(torch.equal(tensor, plain[name]) for name, tensor in back.items())
    again = aligned(getattr(transformers, cls).from_pretrained(folder, dtype=torch.float64).eval())
    assert torch.equal(answer(again, images()), answer(theirs, images()))
    assert to_plain(ct.from_hf(folder)) == to_plain(model)
    if cls != "DeiTModel":
        assert again.config.id2label == LABELS
        assert model.readout.labels == tuple(LABELS.values())


@pytest.mark.parametrize("sizes", [{"d": 8}, {"h": 2}, {"e": 2}, {"m": 12}, {"z": 1}], ids=str)
def test_another_discretisation(sizes: dict[str, int]) -> None:
    model = stirred(zoo.deit(Pixels(8, 8, patch=(4, 4)), d=16, heads=4, depth=2, m=24, labels=3))
    pixels = numbers(2, 3, 8, 8)
    assert gap(model.at(**sizes)(pixels), model(pixels)) > 1e-6


def test_two_learned_tokens_need_a_first() -> None:
    weights = zoo.vit(Pixels(4, 4, patch=(2, 2)), d=8, heads=2, depth=1)
    with refused(ConfigError, "got extra=1", "first=True"):
        Patches(counted(weights.axes), Pixels(4, 4, patch=(2, 2)), first=False, extra=1)
