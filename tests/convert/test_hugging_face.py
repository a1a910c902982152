"""Tiny random GPT-2 and BERT of Hugging Face, read from their folders: logits, states and all gradients (M9).

Gradients are compared under the names on disk, so the tied head's share is in that of the token table. In eval mode:
the dropout of these models is off there, and nothing else changes. No float32 island is lifted: both architectures
compute their norms and softmax in the dtype of the model.
"""

import copy
import os
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import continua as ct
from continua.convert.huggingface import hf_names
from continua.convert.names import NameMap
from tests.exact import EXACT, gap, gradients, numbers, stirred, worst, written_gradients
from tests.lazy import Lazily

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = Lazily("transformers")

VOCAB, D, HEADS, LAYERS, CONTEXT = 23, 16, 4, 3, 12
B, N = 2, 7
IDS = torch.randint(1, VOCAB, (B, N), generator=torch.Generator().manual_seed(4))
IDS[1, 3] = 0  # BERT's padding token, observed: its embedding gets no gradient from the look-up, only from the head
TYPES = torch.randint(0, 2, (B, N), generator=torch.Generator().manual_seed(6))
RIGHT = torch.arange(N) < torch.tensor([[N - 3], [N]])
LEFT = RIGHT.flip(1)
IN_BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
EACH_ATTENTION = pytest.mark.parametrize("attention", ["sdpa", "eager"])


pytestmark = pytest.mark.usefixtures("quiet_hugging_face")


def gpt2(cls: str = "GPT2LMHeadModel", dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=D, n_head=HEADS, n_layer=LAYERS, n_positions=CONTEXT, n_inner=40, **options
    )
    return stirred(getattr(transformers, cls)(config).eval(), dtype)


def bert(cls: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=D,
        num_attention_heads=HEADS,
        num_hidden_layers=LAYERS,
        intermediate_size=24,
        max_position_embeddings=CONTEXT,
        **options,
    )
    return stirred(getattr(transformers, cls)(config).eval(), dtype)


def on_disk(theirs: Any, folder: Path) -> tuple[Path, dict[str, Tensor], NameMap]:
    """Save a model; return the folder, what the file holds, and the map for it."""
    theirs.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    names = hf_names(folder)
    return folder, stored, names


def of_ours(names: NameMap, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the file that a model of ours holds."""
    plain = {name: name.removeprefix(names.prefix) for name in stored}
    return {n: t for n, t in stored.items() if not any(fnmatch(plain[n], pattern) for pattern in names.ignored)}


def agree(
    theirs: Any,
    folder: Path,
    wanted: Tensor,
    rows: Tensor,
    batch: ct.Batch,
    bound: float | None = None,
    renamed: Mapping[str, str] | None = None,
    converted: bool = False,
) -> None:
    """The observed rows of the output, and the gradients of a loss over them; some are ``renamed`` in the file.

    Tensors that are ``converted`` when they are written have gradients that are written as well.
    """
    folder, stored, names = on_disk(theirs, folder)
    model = ct.from_hf(folder)
    exact = EXACT[wanted.dtype] if bound is None else bound
    ours = model(batch)
    assert gap(ours[rows], wanted[rows]) <= exact
    assert not ours[~rows].any()
    towards = numbers(*wanted.shape, dtype=wanted.dtype, seed=9)[rows]
    got = gradients((ours[rows] * towards).sum(), dict(model.named_parameters()))
    prefixed = any(name.startswith(names.prefix) for name in stored)
    leaves = {(renamed or {}).get(name, name): leaf for name, leaf in theirs.named_parameters()}
    expected = gradients((wanted[rows] * towards).sum(), leaves)
    if converted:
        expected = written_gradients(copy.deepcopy(theirs), expected, folder / "gradients")
    assert worst(names.store(got, prefixed), of_ours(names, expected)) <= exact


# --- GPT-2 -----------------------------------------------------------------------------------------------------------

EVERY = torch.ones(B, N, dtype=torch.bool)


@IN_BOTH
@EACH_ATTENTION
@pytest.mark.spec("M9", "A4")
def test_gpt2(tmp_path: Path, dtype: torch.dtype, attention: str) -> None:
    theirs = gpt2(dtype=dtype, attn_implementation=attention)
    agree(theirs, tmp_path, theirs(IDS).logits, EVERY, ct.Batch(IDS))


@IN_BOTH
@EACH_ATTENTION
@pytest.mark.spec("M9", "A2")
def test_gpt2_with_right_padding(tmp_path: Path, dtype: torch.dtype, attention: str) -> None:
    theirs = gpt2(dtype=dtype, attn_implementation=attention)
    wanted = theirs(IDS, attention_mask=RIGHT.long()).logits
    agree(theirs, tmp_path, wanted, RIGHT, ct.Batch(IDS, observed=RIGHT))


@IN_BOTH
@EACH_ATTENTION
@pytest.mark.spec("M9", "A2", "A3")
def test_gpt2_with_left_padding_and_times(tmp_path: Path, dtype: torch.dtype, attention: str) -> None:
    theirs = gpt2(dtype=dtype, attn_implementation=attention)
    positions = (LEFT.long().cumsum(1) - 1).clamp_min(0)
    wanted = theirs(IDS, attention_mask=LEFT.long(), position_ids=positions).logits
    agree(theirs, tmp_path, wanted, LEFT, ct.Batch(IDS, times=positions, observed=LEFT))


@pytest.mark.spec("M9", "A2", "A3")
def test_gpt2_reads_a_left_padded_prompt_as_the_prompt_alone(tmp_path: Path) -> None:
    """The stamps and tokens of the padding may be anything."""
    model = ct.from_hf(on_disk(gpt2(), tmp_path)[0])
    length = int(LEFT[0].sum())
    stamps = torch.cat([torch.full((N - length,), 99.0), torch.arange(length)])
    ids = IDS[:1].clone()
    ids[~LEFT[:1]] = -100
    padded = model(ct.Batch(ids, times=stamps[None], observed=LEFT[:1]))
    assert gap(padded[:, N - length :], model(IDS[:1, N - length :])) <= 1e-12


# --- BERT ------------------------------------------------------------------------------------------------------------


def answer(theirs: Any, **inputs: Any) -> Tensor:
    out = theirs(IDS, **inputs)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


@IN_BOTH
@EACH_ATTENTION
@pytest.mark.parametrize("cls", ["BertModel", "BertForMaskedLM"])
@pytest.mark.parametrize("rows", [EVERY, RIGHT, LEFT], ids=["full", "right padding", "left padding"])
@pytest.mark.spec("M9", "A2", "A4")
def test_bert(tmp_path: Path, dtype: torch.dtype, attention: str, cls: str, rows: Tensor) -> None:
    theirs = bert(cls, dtype, attn_implementation=attention)
    padding = {} if rows is EVERY else {"attention_mask": rows.long()}
    wanted = answer(theirs, token_type_ids=TYPES, **padding)
    agree(theirs, tmp_path, wanted, rows, ct.Batch(IDS, types=TYPES, observed=None if rows is EVERY else rows))


@pytest.mark.spec("M9", "A4")
def test_bert_without_types_reads_type_zero(tmp_path: Path) -> None:
    theirs = bert("BertForMaskedLM")
    agree(theirs, tmp_path, answer(theirs), EVERY, ct.Batch(IDS))


# --- names -----------------------------------------------------------------------------------------------------------

FOLDERS = [
    ("GPT2LMHeadModel", True),
    ("GPT2Model", False),
    ("BertForMaskedLM", True),
    ("BertForPreTraining", True),
    ("BertModel", False),
]


@pytest.mark.parametrize(("cls", "prefixed"), FOLDERS)
@pytest.mark.spec("M9")
def test_names_are_two_way(tmp_path: Path, cls: str, prefixed: bool) -> None:
    folder, stored, names = on_disk((gpt2 if cls.startswith("GPT2") else bert)(cls), tmp_path)
    assert any(name.startswith(names.prefix) for name in stored) == prefixed
    state = ct.from_hf(folder).state_dict()
    back, wanted = names.store(state, prefixed), of_ours(names, stored)
    assert set(back) == set(wanted)
    assert all(torch.equal(back[name], tensor) for name, tensor in wanted.items())
    again = names.load(back, state)
    assert set(again) == set(state)
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())


@pytest.mark.spec("M9")
def test_a_dtype_can_be_asked_for(tmp_path: Path) -> None:
    theirs = gpt2(dtype=torch.float32)
    model = ct.from_hf(on_disk(theirs, tmp_path)[0], dtype=torch.float64)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert gap(model(IDS), theirs.double()(IDS).logits) <= 1e-12
