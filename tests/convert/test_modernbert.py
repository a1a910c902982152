"""Tiny random ModernBERTs of Hugging Face: states, words, all gradients, padding, folders (M9, B14)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.config import to_plain
from tests.convert.test_hugging_face import EVERY, IDS, LEFT, RIGHT, VOCAB, agree, of_ours, on_disk
from tests.exact import gap, gradients, stirred
from tests.islands import ISLANDS, lifted
from tests.lazy import Lazily

transformers = Lazily("transformers")
pytestmark = [pytest.mark.usefixtures("quiet_hugging_face"), pytest.mark.spec("B14", "M9")]

OWN = tuple(island for island in ISLANDS if island.module.startswith("modernbert"))
ROWS = {"full": EVERY, "right": RIGHT, "left": LEFT}
HEADS = ("Model", "ForMaskedLM")
EACH = pytest.mark.parametrize("head", HEADS)


def modernbert(head: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 24}
    turned = {"full_attention": {"rope_type": "default", "rope_theta": 900.0},
              "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}  # fmt: skip
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    sizes |= {"vocab_size": VOCAB, "local_attention": 4, "rope_parameters": turned, "pad_token_id": 0, **ends}
    config = transformers.ModernBertConfig(**(sizes | options))
    return stirred(getattr(transformers, f"ModernBert{head}")(config).eval(), dtype)


def answer(theirs: Any, rows: Tensor) -> Tensor:
    out = theirs(IDS, attention_mask=None if rows is EVERY else rows.long())
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def seen(rows: Tensor) -> ct.Batch:
    return ct.Batch(IDS, observed=None if rows is EVERY else rows)


@EACH
@pytest.mark.parametrize("padding", ROWS)
def test_lifted(tmp_path: Path, head: str, padding: str) -> None:
    theirs = modernbert(head)
    with lifted(OWN):
        agree(theirs, tmp_path, answer(theirs, ROWS[padding]), ROWS[padding], seen(ROWS[padding]))


@EACH
def test_untouched(tmp_path: Path, head: str) -> None:
    for dtype, bound in ((torch.float64, 1e-6), (torch.float32, 1e-5)):
        theirs = modernbert(head, dtype, layer_types=["sliding_attention", "full_attention"] * 2)
        model = ct.from_hf(on_disk(theirs, tmp_path)[0])
        with torch.no_grad():
            assert gap(model(seen(RIGHT))[RIGHT], answer(theirs, RIGHT)[RIGHT]) <= bound


@EACH
def test_folders_go_both_ways(tmp_path: Path, head: str) -> None:
    theirs = modernbert(head)
    folder, stored, names = on_disk(theirs, tmp_path / "theirs")
    model = ct.from_hf(folder)
    back = names.store(model.state_dict(), prefixed=head != "Model")
    wanted = of_ours(names, stored)
    assert set(back) == set(wanted)
    assert all(torch.equal(back[key], tensor) for key, tensor in wanted.items())
    ours = ct.to_hf(model, tmp_path / "ours")
    assert to_plain(ct.from_hf(ours)) == to_plain(model)
    again = type(theirs).from_pretrained(ours, dtype=torch.float64).eval()
    with lifted(OWN):
        assert gap(answer(again, EVERY), model(IDS)) <= 1e-12


def test_an_old_folder_reads_the_same(tmp_path: Path) -> None:
    """Files before version 5 name the bases and how often a layer sees the whole text."""
    folder = on_disk(modernbert("Model"), tmp_path)[0]
    model = ct.from_hf(folder)
    config = ct.convert.huggingface.read_json(folder / "config.json")
    for key in ("rope_parameters", "layer_types"):
        del config[key]
    old = {"global_rope_theta": 900.0, "local_rope_theta": 50.0, "global_attn_every_n_layers": 3}
    built, _ = ct.convert.huggingface.unfilled(
        "modernbert", ct.convert.huggingface.Settings({**config, **old}), set(on_disk(modernbert("Model"), tmp_path)[1])
    )
    assert to_plain(built) == to_plain(model)


def test_another_discretisation_runs(tmp_path: Path) -> None:
    model = ct.from_hf(on_disk(modernbert("ForMaskedLM"), tmp_path)[0])
    native = model(IDS)
    for size in ({"d": 12}, {"h": 2}, {"e": 2}, {"m": 12}, {"z": 2}):
        other = model.at(**size)(IDS)
        assert other.shape == native.shape
        assert gap(other, native) > 1e-4
        assert gap(ct.discretise(model, **size)(IDS), other) <= 1e-12
    found = gradients(model.at(z=2)(IDS).square().sum(), dict(model.named_parameters()))
    assert all(g.isfinite().all() for g in found.values())
