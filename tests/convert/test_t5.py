"""Tiny random T5s of Hugging Face: logits and all gradients, with its float32 islands lifted and as they are (M9).

Version 1.0 (ReLU, tied and scaled head), version 1.1 (gated, its own head), and the gated one with a tied head that
current ``transformers`` makes. Gradients are compared under the names on disk: that of ``shared.weight`` holds the
shares of the encoder, the decoder and a tied head.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import continua as ct
from continua.config import from_plain, to_plain
from continua.convert.huggingface import hf_names
from continua.errors import CheckpointError, ConfigError
from continua.fields import counted
from continua.models import zoo
from continua.models.build import discrete_axes
from tests.convert.test_hugging_face import (
    EACH_ATTENTION,
    VOCAB,
    agree,
    on_disk,
)
from tests.exact import gap, gradients, numbers, stirred
from tests.islands import Float32Shapes, lifted
from tests.lazy import Lazily
from tests.refusals import refused

transformers = Lazily("transformers")

B, N, S = 2, 9, 11  # tokens of the target and of the source: beyond the reach of the buckets
IDS = torch.randint(0, VOCAB, (B, N), generator=torch.Generator().manual_seed(4))
SOURCE = torch.randint(0, VOCAB, (B, S), generator=torch.Generator().manual_seed(5))
UNTOUCHED = {torch.float64: 1e-6, torch.float32: 1e-5}  # the islands are right to seven digits
IN_BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
STYLES: dict[str, dict[str, Any]] = {"v1.0": {}, "v1.1": GATED, "v1.1, tied": GATED}
EACH = pytest.mark.parametrize("style", STYLES)


pytestmark = pytest.mark.usefixtures("quiet_hugging_face")


def right(n: int) -> Tensor:
    return torch.arange(n) < torch.tensor([[n - 3], [n]])


PADDINGS: dict[str, tuple[Tensor | None, Tensor | None]] = {
    "full": (None, None),
    "source, right": (right(S), None),
    "source, left": (right(S).flip(1), None),
    "target, right": (None, right(N)),
    "target, left": (None, right(N).flip(1)),
    "both": (right(S).flip(0), right(N)),
}
EACH_PADDING = pytest.mark.parametrize("padding", PADDINGS)


def t5(style: str = "v1.0", dtype: torch.dtype = torch.float64, stir: bool = True, **options: Any) -> Any:
    sizes = {"vocab_size": VOCAB, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_heads": 4}
    sizes |= {"num_layers": 3, "num_decoder_layers": 2}
    sizes |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 7}
    config = transformers.T5Config(**sizes, **STYLES[style], **options)
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    if style == "v1.1":
        theirs.lm_head.weight = nn.Parameter(numbers(VOCAB, 16, dtype=torch.float32, seed=3))
    return stirred(theirs, dtype) if stir else theirs.to(dtype)


def answer(theirs: Any, padding: str) -> Tensor:
    source, target = ({} if rows is None else {"mask": rows.long()} for rows in PADDINGS[padding])
    return theirs(
        input_ids=SOURCE,
        attention_mask=source.get("mask"),
        decoder_input_ids=IDS,
        decoder_attention_mask=target.get("mask"),
    ).logits


def seen(padding: str) -> ct.Batch:
    source, target = PADDINGS[padding]
    return ct.Batch(IDS, observed=target, source=ct.Batch(SOURCE, observed=source))


def rows(padding: str) -> Tensor:
    target = PADDINGS[padding][1]
    return torch.ones(B, N, dtype=torch.bool) if target is None else target


# --- exactness -------------------------------------------------------------------------------------------------------


@EACH
@EACH_ATTENTION
@EACH_PADDING
@pytest.mark.spec("M9", "A2", "A3", "A4", "A8")
def test_t5_lifted(tmp_path: Path, style: str, attention: str, padding: str) -> None:
    theirs = t5(style, attn_implementation=attention)
    with lifted():
        agree(theirs, tmp_path, answer(theirs, padding), rows(padding), seen(padding))


@EACH
@IN_BOTH
@EACH_ATTENTION
@pytest.mark.parametrize("padding", ["full", "both"])
@pytest.mark.spec("M9", "A8")
def test_t5_untouched(tmp_path: Path, style: str, dtype: torch.dtype, attention: str, padding: str) -> None:
    theirs = t5(style, dtype, attn_implementation=attention)
    model = ct.from_hf(on_disk(theirs, tmp_path)[0])
    at = rows(padding)
    assert gap(model(seen(padding))[at], answer(theirs, padding)[at]) <= UNTOUCHED[dtype]


@pytest.mark.parametrize("style", ["v1.0", "v1.1"])
@IN_BOTH
@EACH_ATTENTION
@pytest.mark.parametrize("padding", ["full", "both"])
@pytest.mark.spec("M9", "A8")
def test_gradients_untouched(tmp_path: Path, style: str, dtype: torch.dtype, attention: str, padding: str) -> None:
    """With weights as they are initialised: stirred, unscaled scores magnify the round-off of the islands to 4e-6."""
    theirs = t5(style, dtype, stir=False, attn_implementation=attention)
    agree(theirs, tmp_path, answer(theirs, padding), rows(padding), seen(padding), UNTOUCHED[dtype])


@EACH_ATTENTION
@pytest.mark.spec("M9", "A2", "A8")
def test_t5_with_given_pairs(tmp_path: Path, attention: str) -> None:
    """Masks of self- and cross-attention for each pair, the first on top of the causal one."""
    generator = torch.Generator().manual_seed(2)
    pairs = torch.rand(B, 1, N, N, generator=generator) < 0.6
    pairs = (pairs | torch.eye(N, dtype=torch.bool)) & torch.ones(N, N, dtype=torch.bool).tril()
    across = torch.rand(B, 1, N, S, generator=generator) < 0.6
    across[..., 0] = True
    theirs = t5(attn_implementation=attention)
    fill = torch.finfo(torch.float64).min
    given = (pairs, across) if attention == "sdpa" else ((~pairs).double() * fill, (~across).double() * fill)
    with lifted():
        wanted = theirs(
            encoder_outputs=theirs.encoder(SOURCE),
            attention_mask=given[1],
            decoder_input_ids=IDS,
            decoder_attention_mask=given[0],
        ).logits
        batch = ct.Batch(IDS, pairs=pairs, cross_pairs=across, source=ct.Batch(SOURCE))
        agree(theirs, tmp_path, wanted, rows("full"), batch)


@pytest.mark.spec("M9", "A3")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(32, 128), (8, 7), (6, 20), (64, 256)])
@IN_BOTH
def test_buckets_at_every_whole_distance(causal: bool, sizes: tuple[int, int], dtype: torch.dtype) -> None:
    """Theirs are settled by a float32 logarithm in every model."""
    from transformers.models.t5.modeling_t5 import T5Attention

    weights = counted(discrete_axes(8, 2, 12, 1)[0])
    gaps = torch.arange(-2000, 2001)
    ours = ct.RelativeBias(weights, sizes[0], float(sizes[1]), causal).bucket(gaps.to(dtype))
    assert torch.equal(ours, T5Attention._relative_position_bucket(gaps, not causal, *sizes))


# --- islands ---------------------------------------------------------------------------------------------------------


@EACH_ATTENTION
@pytest.mark.spec("M9")
def test_no_island_is_left_but_the_buckets(attention: str) -> None:
    theirs = t5(attn_implementation=attention)
    buckets = {(N, N), (S, S), ()}
    with lifted(), Float32Shapes() as found:
        answer(theirs, "full").square().sum().backward()
    assert found.shapes <= buckets
    with Float32Shapes() as found:
        answer(theirs, "full").square().sum().backward()
    assert not found.shapes <= buckets, "the patches outlived their block"


# --- names and folders -----------------------------------------------------------------------------------------------


@EACH
@pytest.mark.spec("M9")
def test_names_are_two_way(tmp_path: Path, style: str) -> None:
    folder, stored, names = on_disk(t5(style), tmp_path)
    assert ("lm_head.weight" in stored) == (style == "v1.1")
    state = ct.from_hf(folder).state_dict()
    back = names.store(state)
    assert set(back) == set(stored)
    assert all(torch.equal(back[name], tensor) for name, tensor in stored.items())
    again = names.load(back, state)
    assert set(again) == set(state)
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())


@EACH
@pytest.mark.spec("M9", "A8")
def test_hugging_face_reads_what_we_write(tmp_path: Path, style: str) -> None:
    model = ct.from_hf(on_disk(t5(style), tmp_path / "theirs")[0])
    folder = ct.to_hf(model, tmp_path / "ours")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(theirs).__name__ == "T5ForConditionalGeneration"
    assert theirs.dtype == torch.float64
    with lifted():
        assert gap(model(seen("full")), answer(theirs, "full")) <= 1e-12
    again = ct.from_hf(folder)
    assert to_plain(again) == to_plain(model)
    assert torch.equal(again(seen("full")), model(seen("full")))


@pytest.mark.parametrize("style", ["v1.0", "v1.1"])
@pytest.mark.spec("M9")
def test_an_old_folder_reads_the_same(tmp_path: Path, style: str) -> None:
    """Before version 5 ``tie_word_embeddings`` also said whether the head is scaled."""
    folder, _, _ = on_disk(t5(style), tmp_path)
    model = ct.from_hf(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["scale_decoder_outputs"], config["dense_act_fn"], config["is_gated_act"]
    config["tie_word_embeddings"] = style == "v1.0"
    (folder / "config.json").write_text(json.dumps(config))
    assert to_plain(ct.from_hf(folder)) == to_plain(model)


@pytest.mark.spec("M9")
def test_another_feed_forward_part_is_refused(tmp_path: Path) -> None:
    folder, _, _ = on_disk(t5(), tmp_path)
    config = json.loads((folder / "config.json").read_text()) | {"feed_forward_proj": "gated-silu"}
    (folder / "config.json").write_text(json.dumps(config))
    with refused(CheckpointError, "gated-silu", "Did you mean 'gated-gelu'?"):
        hf_names(folder)


# --- one table for two embeddings ------------------------------------------------------------------------------------

TABLE = "encoder.embed.table.coefficients"


def is_shared(model: ct.EncoderDecoder) -> bool:
    tables = [name for name in model.state_dict() if "embed.table" in name]
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False) if "embed.table" in name]
    return model.decoder.embed.table is model.encoder.embed.table and tables == parameters == [TABLE]


@EACH
@pytest.mark.spec("A4", "M10")
def test_the_table_is_stored_once_and_stays_shared(tmp_path: Path, style: str) -> None:
    theirs = t5(style)
    model = ct.from_hf(on_disk(theirs, tmp_path / "theirs")[0])
    wanted = model(seen("both"))
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in theirs.parameters())
    again = ct.load(model.save(tmp_path / "ours"))
    assert to_plain(again) == to_plain(model)
    assert torch.equal(again(seen("both")), wanted)
    for one in (model, again, copy.deepcopy(model), from_plain(to_plain(model)).double()):
        assert is_shared(one)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.encoder.embed.table.coefficients.zero_()
    assert not other.decoder.embed.table.coefficients.any()
    assert torch.equal(model(seen("both")), wanted)
    assert model.float().decoder.embed.table.coefficients.dtype == torch.float32


@pytest.mark.spec("A4")
def test_a_table_that_cannot_be_shared_is_refused() -> None:
    one, other = (zoo.gpt2(vocab=n, d=8, heads=2, depth=1, context=4) for n in (11, 12))
    with refused(ConfigError, "[12, 8]", "the same vocabulary"):
        ct.EncoderDecoder(one, other, shared=True)
    series = ct.Transformer.continuous(channels=2, t=ct.Times(), at=ct.at(d=8, h=2, z=1))
    with refused(ConfigError, "Observations and Tokens", "Tokens"):
        ct.EncoderDecoder(series, one, shared=True)


# --- a point of the continuous family --------------------------------------------------------------------------------


@EACH
@pytest.mark.spec("M10", "A8")
def test_another_discretisation(tmp_path: Path, style: str) -> None:
    model = ct.from_hf(on_disk(t5(style), tmp_path)[0])
    native, other = model(seen("both")), model.at(d=12, h=2, e=4, z=2)(seen("both"))
    assert other.shape == native.shape
    assert gap(other, native) > 1e-3
    found = gradients(other.square().sum(), dict(model.named_parameters()))
    assert all(g.isfinite().all() and g.any() for g in found.values())
