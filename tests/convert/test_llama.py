"""Tiny random Llamas of Hugging Face: logits and all gradients, its float32 islands lifted and as they are (M9)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.config import to_plain
from continua.convert.huggingface import hf_names
from continua.errors import CheckpointError
from tests.convert.test_hugging_face import (
    EACH_ATTENTION,
    EVERY,
    IDS,
    LEFT,
    RIGHT,
    VOCAB,
    B,
    N,
    agree,
    of_ours,
    on_disk,
)
from tests.exact import gap, gradients, stirred
from tests.islands import ISLANDS, Float32Shapes, lifted
from tests.lazy import Lazily
from tests.refusals import refused

transformers = Lazily("transformers")

pytestmark = pytest.mark.usefixtures("quiet_hugging_face")

UNTOUCHED = {torch.float64: 1e-6, torch.float32: 1e-5}  # the islands are right to seven digits
IN_BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
# Theirs is NaN with eager attention and left padding in float64: a row without keys sums −1.8e308 in float32.
UNTOUCHED_CASES = pytest.mark.parametrize(
    ("attention", "rows"),
    [("sdpa", EVERY), ("sdpa", RIGHT), ("sdpa", LEFT), ("eager", EVERY), ("eager", RIGHT)],
    ids=["sdpa, full", "sdpa, right padding", "sdpa, left padding", "eager, full", "eager, right padding"],
)
ROWS = pytest.mark.parametrize("rows", [EVERY, RIGHT, LEFT], ids=["full", "right padding", "left padding"])
STYLES: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "every head its own": {"num_key_value_heads": 4},
    "one group": {"num_key_value_heads": 1, "head_dim": None},
    "biases": {"attention_bias": True},
    "padding token": {"pad_token_id": 0},
    "padding token, tied": {"pad_token_id": 0, "tie_word_embeddings": True},
}
EACH = pytest.mark.parametrize("style", STYLES)


def llama(style: str = "untied", dtype: torch.dtype = torch.float64, stir: bool = True, **options: Any) -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    rope = {"rope_type": "default", "rope_theta": 500.0}
    sizes |= {
        "vocab_size": VOCAB,
        "head_dim": 6,
        "num_key_value_heads": 2,
        "rope_parameters": rope,
        "rms_norm_eps": 1e-5,
    }
    config = transformers.LlamaConfig(**{**sizes, **STYLES[style], **options})
    theirs = transformers.LlamaForCausalLM(config).eval()
    return stirred(theirs, dtype) if stir else theirs.to(dtype)


def padding(rows: Tensor) -> dict[str, Tensor]:
    return {} if rows is EVERY else {"attention_mask": rows.long()}


def seen(rows: Tensor, **more: Any) -> ct.Batch:
    return ct.Batch(IDS, observed=None if rows is EVERY else rows, **more)


# --- exactness -------------------------------------------------------------------------------------------------------


@EACH
@EACH_ATTENTION
@ROWS
@pytest.mark.spec("M9", "A1", "A2", "A3", "A8")
def test_llama_lifted(tmp_path: Path, style: str, attention: str, rows: Tensor) -> None:
    theirs = llama(style, attn_implementation=attention)
    with lifted():
        agree(theirs, tmp_path, theirs(IDS, **padding(rows)).logits, rows, seen(rows))


@EACH
@IN_BOTH
@UNTOUCHED_CASES
@pytest.mark.spec("M9", "A8")
def test_llama_untouched(tmp_path: Path, style: str, dtype: torch.dtype, attention: str, rows: Tensor) -> None:
    """Outputs of a stirred model; gradients of one as it is initialised, since stirring magnifies their round-off."""
    theirs = llama(style, dtype, attn_implementation=attention)
    model = ct.from_hf(on_disk(theirs, tmp_path)[0])
    wanted = theirs(IDS, **padding(rows)).logits
    assert gap(model(seen(rows))[rows], wanted[rows]) <= UNTOUCHED[dtype]
    theirs = llama(style, dtype, stir=False, attn_implementation=attention)
    agree(theirs, tmp_path, theirs(IDS, **padding(rows)).logits, rows, seen(rows), UNTOUCHED[dtype])


@pytest.mark.spec("M9", "A3", "A8")
def test_llama_with_left_padding_and_times(tmp_path: Path) -> None:
    positions = (LEFT.long().cumsum(1) - 1).clamp_min(0)
    theirs = llama()
    with lifted():
        wanted = theirs(IDS, attention_mask=LEFT.long(), position_ids=positions).logits
        agree(theirs, tmp_path, wanted, LEFT, ct.Batch(IDS, times=positions, observed=LEFT))


@pytest.mark.spec("M9", "A2", "A8")
def test_llama_with_given_pairs(tmp_path: Path) -> None:
    """A mask of its own for each sample, on top of the causal one."""
    pairs = torch.rand(B, 1, N, N, generator=torch.Generator().manual_seed(2)) < 0.6
    pairs = (pairs | torch.eye(N, dtype=torch.bool)) & torch.ones(N, N, dtype=torch.bool).tril()
    theirs = llama()
    with lifted():
        agree(theirs, tmp_path, theirs(IDS, attention_mask=pairs).logits, EVERY, ct.Batch(IDS, pairs=pairs))


# --- islands ---------------------------------------------------------------------------------------------------------


def islands_of(theirs: Any) -> set[tuple[int, ...]]:
    with Float32Shapes() as found:
        theirs(IDS).logits.square().sum().backward()
    return found.shapes


@EACH_ATTENTION
@pytest.mark.spec("M9")
def test_no_island_is_left(attention: str) -> None:
    theirs = llama(attn_implementation=attention)
    with lifted():
        assert islands_of(theirs) == set()
    assert islands_of(theirs) != set(), "the patches outlived their block"


@pytest.mark.parametrize("island", [i for i in ISLANDS if i.module.startswith("llama")], ids=lambda i: i.name)
@pytest.mark.spec("M9")
def test_every_island_in_the_list_is_one(island: Any) -> None:
    with lifted(tuple(other for other in ISLANDS if other is not island)):
        assert islands_of(llama(attn_implementation="eager")) != set()


# --- names and folders -----------------------------------------------------------------------------------------------


@EACH
@pytest.mark.spec("M9")
def test_names_are_two_way(tmp_path: Path, style: str) -> None:
    folder, stored, names = on_disk(llama(style), tmp_path)
    state = ct.from_hf(folder).state_dict()
    back = names.store(state)
    assert set(back) == set(of_ours(names, stored)) == set(stored)
    assert all(torch.equal(back[name], tensor) for name, tensor in stored.items())
    again = names.load(back, state)
    assert set(again) == set(state)
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())


@EACH
@pytest.mark.spec("M9", "A8")
def test_hugging_face_reads_what_we_write(tmp_path: Path, style: str) -> None:
    model = ct.from_hf(on_disk(llama(style), tmp_path / "theirs")[0])
    folder = ct.to_hf(model, tmp_path / "ours")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert type(theirs).__name__ == "LlamaForCausalLM"
    assert theirs.dtype == torch.float64
    with lifted():
        assert gap(model(IDS), theirs(IDS).logits) <= 1e-12
    again = ct.from_hf(folder)
    assert to_plain(again) == to_plain(model)
    assert torch.equal(again(IDS), model(IDS))


@pytest.mark.spec("M9")
def test_an_old_folder_reads_the_same(tmp_path: Path) -> None:
    """Files before version 5 spell the base ``rope_theta`` and may carry frequencies."""
    folder, _, _ = on_disk(llama(), tmp_path)
    model = ct.from_hf(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"], config["head_dim"]
    config |= {"rope_theta": 500.0, "rope_scaling": None, "head_dim": 6, "rope_interleaved": False}
    (folder / "config.json").write_text(json.dumps(config))
    assert to_plain(ct.from_hf(folder)) == to_plain(model)


CHANGES: list[tuple[dict[str, Any], str, str]] = [
    ({"rope_parameters": {"rope_type": "longrope", "factor": 8.0}}, "'longrope'", "default, linear, dynamic, llama3"),
    ({"rope_parameters": None, "rope_scaling": {"type": "su", "factor": 2.0}}, "'su'", "not in the zoo yet"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "'low_freq_factor'", "save_pretrained"),
    ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "'factor'", "save_pretrained"),
    ({"rope_interleaved": True}, "interleaved", "not in the zoo yet"),
    ({"mlp_bias": True}, "True", "not in the zoo yet"),
    ({"hidden_act": "gelu"}, "'gelu'", "not in the zoo yet"),
]


@pytest.mark.parametrize(("change", "got", "remedy"), CHANGES)
@pytest.mark.spec("M9")
def test_other_arithmetic_is_refused(tmp_path: Path, change: dict[str, Any], got: str, remedy: str) -> None:
    folder, _, _ = on_disk(llama(), tmp_path)
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with refused(CheckpointError, got, remedy):
        hf_names(folder)


# --- a point of the continuous family --------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["untied", "tied"])
@pytest.mark.spec("M10", "A8")
def test_another_discretisation_and_a_file(tmp_path: Path, style: str) -> None:
    model = ct.from_hf(on_disk(llama(style), tmp_path / "theirs")[0])
    native, other = model(IDS), model.at(d=12, h=2, z=2)(IDS)
    assert other.shape == native.shape
    assert gap(other, native) > 1e-3
    found = gradients(other.square().sum(), dict(model.named_parameters()))
    assert all(g.isfinite().all() and g.any() for g in found.values())
    again = ct.load(model.save(tmp_path / "ours"))
    assert to_plain(again) == to_plain(model)
    assert torch.equal(again(IDS), native)
