"""Tiny random ALBERTs of Hugging Face, read from their folders: states, logits and all gradients (M9, A8).

One autonomous field followed in unit steps. No float32 island is lifted: norms and softmax are in the model's dtype.
"""

import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import continua as ct
from continua.convert.huggingface import hf_names
from continua.errors import CheckpointError
from continua.models import zoo
from tests.exact import EXACT, aligned, gap, gradients, numbers, stirred, worst
from tests.lazy import Lazily

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = Lazily("transformers")

VOCAB, WIDTH, D, HEADS, STEPS, CONTEXT = 23, 6, 16, 4, 4, 12
B, N = 2, 7
IDS = torch.randint(1, VOCAB, (B, N), generator=torch.Generator().manual_seed(4))
IDS[1, 3] = 0  # the padding token, observed: its embedding gets no gradient from the look-up, only from the head
TYPES = torch.randint(0, 2, (B, N), generator=torch.Generator().manual_seed(6))
EVERY = torch.ones(B, N, dtype=torch.bool)
RIGHT = torch.arange(N) < torch.tensor([[N - 3], [N]])
LEFT = RIGHT.flip(1)
CLASSES = pytest.mark.parametrize("cls", ["AlbertModel", "AlbertForMaskedLM"])


pytestmark = pytest.mark.usefixtures("quiet_hugging_face")


def albert(cls: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    sizes = {
        "vocab_size": VOCAB,
        "embedding_size": WIDTH,
        "hidden_size": D,
        "num_attention_heads": HEADS,
        "num_hidden_layers": STEPS,
        "intermediate_size": 24,
        "max_position_embeddings": CONTEXT,
    }
    return stirred(getattr(transformers, cls)(transformers.AlbertConfig(**sizes, **options)).eval(), dtype)


def answer(theirs: Any, **inputs: Any) -> Tensor:
    out = theirs(IDS, **inputs)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def agree(theirs: Any, folder: Path, wanted: Tensor, rows: Tensor, batch: ct.Batch) -> None:
    """The observed rows of the output, and the gradients of a loss over them."""
    theirs.save_pretrained(folder)
    stored, names, model = load_file(folder / "model.safetensors"), hf_names(folder), ct.from_hf(folder)
    ours = model(batch)
    assert gap(ours[rows], wanted[rows]) <= EXACT[wanted.dtype]
    assert not ours[~rows].any()
    towards = numbers(*wanted.shape, dtype=wanted.dtype, seed=9)[rows]
    got = gradients((ours[rows] * towards).sum(), dict(model.named_parameters()))
    expected = gradients((wanted[rows] * towards).sum(), dict(theirs.named_parameters()))
    expected = {n: g for n, g in expected.items() if not any(fnmatch(n, pattern) for pattern in names.ignored)}
    prefixed = any(name.startswith("albert.") for name in stored)
    assert worst(names.store(got, prefixed), expected) <= EXACT[wanted.dtype]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@CLASSES
@pytest.mark.parametrize("rows", [EVERY, RIGHT, LEFT], ids=["full", "right padding", "left padding"])
@pytest.mark.spec("M9", "A8", "A2")
def test_albert(tmp_path: Path, dtype: torch.dtype, attention: str, cls: str, rows: Tensor) -> None:
    theirs = albert(cls, dtype, attn_implementation=attention)
    padding = {} if rows is EVERY else {"attention_mask": rows.long()}
    wanted = answer(theirs, token_type_ids=TYPES, **padding)
    agree(theirs, tmp_path, wanted, rows, ct.Batch(IDS, types=TYPES, observed=None if rows is EVERY else rows))


@pytest.mark.parametrize("phi", ["gelu", "relu"])
@pytest.mark.spec("M9", "A8")
def test_albert_with_another_activation(tmp_path: Path, phi: str) -> None:
    theirs = albert("AlbertForMaskedLM", hidden_act=phi)
    agree(theirs, tmp_path, answer(theirs), EVERY, ct.Batch(IDS))


# --- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ["AlbertModel", "AlbertForMaskedLM", "AlbertForPreTraining"])
@pytest.mark.spec("M9", "A8")
def test_names_are_two_way(tmp_path: Path, cls: str) -> None:
    albert(cls).save_pretrained(tmp_path)
    stored, names, state = load_file(tmp_path / "model.safetensors"), hf_names(tmp_path), ct.from_hf(tmp_path)
    plain = {name.removeprefix("albert."): tensor for name, tensor in stored.items()}
    wanted = {n: t for n, t in plain.items() if not any(fnmatch(n, pattern) for pattern in names.ignored)}
    back = names.store(state.state_dict(), prefixed=False)
    assert set(back) == set(wanted)
    assert all(torch.equal(back[name], tensor) for name, tensor in wanted.items())


@CLASSES
@pytest.mark.spec("M9", "A8")
def test_hf_loads_what_we_write(tmp_path: Path, cls: str) -> None:
    theirs = albert(cls)
    theirs.save_pretrained(tmp_path / "theirs")
    model = ct.from_hf(tmp_path / "theirs")
    folder = ct.to_hf(model, tmp_path / "back")
    again = aligned(getattr(transformers, cls).from_pretrained(folder, dtype=torch.float64).eval())
    assert torch.equal(answer(again), answer(theirs))
    assert torch.equal(ct.from_hf(folder)(IDS), model(IDS))


@pytest.mark.spec("M9")
@pytest.mark.parametrize("setting", [{"num_hidden_groups": 2}, {"inner_group_num": 2}, {"hidden_act": "tanh"}])
def test_other_alberts_are_refused(tmp_path: Path, setting: dict[str, Any]) -> None:
    albert("AlbertModel", **setting).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError):
        ct.from_hf(tmp_path)


@pytest.mark.spec("A8", "M7")
def test_a_saved_albert_comes_back(tmp_path: Path) -> None:
    model = zoo.albert(VOCAB, table_width=WIDTH, d=8, heads=2, depth=2, context=CONTEXT, masked_lm=True).double()
    assert torch.equal(ct.load(model.save(tmp_path))(IDS), model(IDS))


# --- one autonomous field --------------------------------------------------------------------------------------------


def small() -> Any:
    torch.manual_seed(0)
    return stirred(zoo.albert(VOCAB, table_width=WIDTH, d=8, heads=2, depth=3, context=CONTEXT, m=12, masked_lm=True))


@pytest.mark.spec("A8", "M1")
def test_its_field_does_not_change_along_depth() -> None:
    model = small()
    assert not [name for name, field in model.block.named_modules() if "z" in getattr(field, "letters", ())]
    once = {name: p.shape for name, p in model.named_parameters()}
    deeper = zoo.albert(VOCAB, table_width=WIDTH, d=8, heads=2, depth=12, context=CONTEXT, m=12, masked_lm=True)
    assert {name: p.shape for name, p in deeper.named_parameters()} == once


@pytest.mark.spec("A8", "M10")
@pytest.mark.parametrize("sizes", [{"z": 1}, {"z": 6}, {"z": 24}, {"d": 4}, {"h": 1, "z": 2}])
def test_albert_at_other_sizes(sizes: dict[str, int]) -> None:
    model = small()
    got = model.at(**sizes)(IDS)
    assert got.shape == (B, N, VOCAB)
    assert torch.isfinite(got).all()
    assert gap(got, model(IDS)) > 1e-6
    grads = torch.autograd.grad((got * numbers(*got.shape)).sum(), list(model.parameters()))
    assert all(torch.isfinite(grad).all() for grad in grads)
