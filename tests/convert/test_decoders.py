"""Tiny random decoders of Hugging Face: logits, all gradients, generation and folders, family by family (B14)."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.config import to_plain
from tests.convert.test_hugging_face import EVERY, IDS, LEFT, RIGHT, VOCAB, B, N, agree, of_ours, on_disk
from tests.exact import gap, gradients, stirred
from tests.islands import Float32Shapes, lifted
from tests.lazy import Lazily

transformers = Lazily("transformers")
pytestmark = [pytest.mark.usefixtures("quiet_hugging_face"), pytest.mark.spec("B14")]

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 6, "rms_norm_eps": 1e-5}
ROPE = {"rope_theta": 500.0}
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 40}
EXPERTS = {"experts_implementation": "eager"}  # their other products of groups know no float64
SLIDING_LAST = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}


@dataclass(frozen=True)
class Tiny:
    """A configuration of Hugging Face with options that real checkpoints have."""

    config: str
    model: str
    sizes: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    attention: str = "sdpa"
    writes: str | None = None  # the class that to_hf writes, where it is another one
    rows: tuple[str, ...] = ("full", "right", "left")
    renamed: dict[str, str] = field(default_factory=dict)  # parameters with another name in the file
    whole: set[tuple[int, ...]] = field(default_factory=set)  # float32 tensors that hold whole numbers
    converted: bool = False  # its files hold other tensors than its memory


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, **ROPE, **more}, "max_position_embeddings": 4}


def llama(**options: Any) -> Tiny:
    return Tiny("LlamaConfig", "LlamaForCausalLM", GROUPED, options)


def mistral(**options: Any) -> Tiny:
    return Tiny("MistralConfig", "MistralForCausalLM", GROUPED, options)


def qwen2(**options: Any) -> Tiny:
    sizes = {name: value for name, value in GROUPED.items() if name != "head_dim"}
    return Tiny("Qwen2Config", "Qwen2ForCausalLM", sizes, options)


def qwen3(**options: Any) -> Tiny:
    return Tiny("Qwen3Config", "Qwen3ForCausalLM", GROUPED, options)


def neox(**options: Any) -> Tiny:
    turned = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}}
    return Tiny(
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {**SIZES, **turned},
        options,
        renamed={"lm_head.weight": "embed_out.weight"},
    )


def opt(**options: Any) -> Tiny:
    sizes = {name: value for name, value in SIZES.items() if name != "intermediate_size"}
    sizes |= {"ffn_dim": 24, "max_position_embeddings": 16, "word_embed_proj_dim": 16}
    return Tiny("OPTConfig", "OPTForCausalLM", sizes, {"pad_token_id": 1, **options}, whole={(B, N)})


def gemma2(**options: Any) -> Tiny:
    sizes = {**GROUPED, **rope("default"), "query_pre_attn_scalar": 9, "sliding_window": 3}
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    return Tiny("Gemma2Config", "Gemma2ForCausalLM", sizes, {**caps, **options}, attention="eager")


def gemma3(**options: Any) -> Tiny:
    turned = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
              "sliding_attention": {"rope_type": "default", **ROPE}}  # fmt: skip
    sizes = {**GROUPED, "rope_parameters": turned, "query_pre_attn_scalar": 9, "sliding_window": 3}
    return Tiny("Gemma3TextConfig", "Gemma3ForCausalLM", sizes, {"sliding_window_pattern": 3, **options})


def phi3(**options: Any) -> Tiny:
    turned = {"rope_parameters": {"rope_type": "default", **ROPE, "partial_rotary_factor": 0.5}}
    sizes = {**SIZES, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, **turned, "hidden_size": 32}
    return Tiny("Phi3Config", "Phi3ForCausalLM", sizes, options)


def longrope(length: int) -> dict[str, Any]:
    """Factors of short and of long texts."""
    factors = {"short_factor": [1.0, 1.5, 1.6, 2.0], "long_factor": [1.1, 2.5, 3.6, 4.0]}
    rope = {"rope_type": "longrope", **ROPE, **factors, "factor": 4.0, "original_max_position_embeddings": length}
    return {"rope_parameters": rope, "original_max_position_embeddings": length, "max_position_embeddings": 4 * length}


def smollm3(**options: Any) -> Tiny:
    sizes = {name: value for name, value in GROUPED.items() if name != "head_dim"}
    return Tiny("SmolLM3Config", "SmolLM3ForCausalLM", {**sizes, **rope("default")}, options)


def gptj(**options: Any) -> Tiny:
    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_inner": 24, "n_positions": 16, "rotary_dim": 4}
    return Tiny("GPTJConfig", "GPTJForCausalLM", sizes, options, attention="eager")


def falcon(**options: Any) -> Tiny:
    sizes = {name: value for name, value in SIZES.items() if name != "intermediate_size"}
    return Tiny("FalconConfig", "FalconForCausalLM", {**sizes, "ffn_hidden_size": 24, **rope("default")}, options)


def mixtral(**options: Any) -> Tiny:
    sizes = {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, **EXPERTS}
    return Tiny("MixtralConfig", "MixtralForCausalLM", sizes, options, converted=True)


def qwen3_moe(**options: Any) -> Tiny:
    sizes = {**GROUPED, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, **EXPERTS}
    return Tiny("Qwen3MoeConfig", "Qwen3MoeForCausalLM", sizes, options, converted=True)


def qwen2_moe(**options: Any) -> Tiny:
    sizes = {**GROUPED, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 48, "num_experts": 4}
    sizes |= {"num_experts_per_tok": 2, **EXPERTS}
    del sizes["head_dim"]
    return Tiny("Qwen2MoeConfig", "Qwen2MoeForCausalLM", sizes, options, converted=True)


DECODERS: dict[str, Tiny] = {
    "llama 3": llama(**rope("llama3", **LLAMA3)),
    "llama, linear": llama(**rope("linear", factor=2.0)),
    # theirs stretches all samples by the longest of a batch, ours each by its own length
    "llama, dynamic": dataclasses.replace(llama(**rope("dynamic", factor=2.0)), rows=("full",)),
    "llama, yarn": llama(**rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "mistral": mistral(sliding_window=3),
    "mistral, no window": dataclasses.replace(mistral(sliding_window=None), writes="LlamaForCausalLM"),
    "qwen2": qwen2(tie_word_embeddings=True),
    "qwen2, windows": qwen2(**SLIDING_LAST),
    "qwen3": qwen3(tie_word_embeddings=True),
    "gpt_neox": neox(),
    "gpt_neox, in turn, tied": neox(use_parallel_residual=False, tie_word_embeddings=True, hidden_act="gelu_new"),
    "opt": opt(),
    "opt, 350M": opt(do_layer_norm_before=False, word_embed_proj_dim=8),
    "gemma2": gemma2(),
    "gemma2, no caps": gemma2(attn_logit_softcapping=None, final_logit_softcapping=None, pad_token_id=0),
    "qwen3, biases and windows": qwen3(attention_bias=True, **SLIDING_LAST),
    "gemma3": gemma3(),
    "phi3": phi3(sliding_window=3),
    # beyond the length of short texts, and within it
    "phi3, long": dataclasses.replace(phi3(**longrope(4)), rows=("full",)),
    "phi3, short": phi3(**longrope(20), tie_word_embeddings=True),
    "smollm3": smollm3(no_rope_layer_interval=2, use_sliding_window=True, sliding_window=3),
    "smollm3, untied": smollm3(no_rope_layers=[1, 0, 0], tie_word_embeddings=False, attention_bias=True),
    "mixtral": mixtral(sliding_window=3),
    "qwen3_moe": qwen3_moe(tie_word_embeddings=True),
    "qwen3_moe, normalised": qwen3_moe(norm_topk_prob=True, attention_bias=True),
    "qwen2_moe": qwen2_moe(use_sliding_window=True, sliding_window=3),
    "gptj": gptj(),
    "falcon, 7B": falcon(),
    "falcon, 40B": falcon(new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False),
    "falcon, 11B": falcon(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1),
    "falcon, RW": falcon(  # six heads: slopes of four, and two of those of eight
        alibi=True, parallel_attn=False, bias=True, multi_query=False, num_attention_heads=6, hidden_size=24
    ),
    "falcon, in turn": dataclasses.replace(
        falcon(parallel_attn=False, bias=True, multi_query=False), writes="GPTNeoXForCausalLM"
    ),
}
EACH = pytest.mark.parametrize("name", DECODERS)
ROWS = {"full": EVERY, "right": RIGHT, "left": LEFT}


def theirs_of(name: str, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    tiny = DECODERS[name]
    torch.manual_seed(0)
    options = {"vocab_size": VOCAB, "attn_implementation": tiny.attention, **tiny.sizes, **tiny.options, **more}
    options = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **options}
    config = getattr(transformers, tiny.config)(**options)
    return stirred(getattr(transformers, tiny.model)(config).eval(), dtype)


def asked(rows: Tensor) -> tuple[dict[str, Tensor], ct.Batch]:
    """What Hugging Face and Continua are given; positions count the observed tokens."""
    if rows is EVERY:
        return {}, ct.Batch(IDS)
    times = (rows.long().cumsum(1) - 1).clamp_min(0)
    return {"attention_mask": rows.long(), "position_ids": times}, ct.Batch(IDS, times=times, observed=rows)


# --- exactness -------------------------------------------------------------------------------------------------------


@EACH
def test_lifted(tmp_path: Path, name: str) -> None:
    """Logits and all gradients to round-off, with padding on either side."""
    theirs = theirs_of(name)
    for rows in (ROWS[padding] for padding in DECODERS[name].rows):
        given, batch = asked(rows)
        with lifted():
            wanted = theirs(IDS, **given).logits
            tiny = DECODERS[name]
            agree(theirs, tmp_path, wanted, rows, batch, renamed=tiny.renamed, converted=tiny.converted)


@EACH
def test_untouched(tmp_path: Path, name: str) -> None:
    for dtype, bound in ((torch.float64, 1e-6), (torch.float32, 1e-5)):
        theirs = theirs_of(name, dtype)
        model = ct.from_hf(on_disk(theirs, tmp_path)[0])
        # eager attention of theirs is NaN where a row has no keys: −1.8e308 overflows in float32
        paddings = DECODERS[name].rows if DECODERS[name].attention == "sdpa" else ("full",)
        for rows in (ROWS[padding] for padding in paddings):
            given, batch = asked(rows)
            with torch.no_grad():
                assert gap(model(batch)[rows], theirs(IDS, **given).logits[rows]) <= bound


@EACH
def test_no_island_is_left(name: str) -> None:
    theirs = theirs_of(name, attn_implementation="eager")
    with lifted(), Float32Shapes() as found:
        theirs(IDS).logits.square().sum().backward()
    assert found.shapes == DECODERS[name].whole


def test_a_dynamic_stretch_is_that_of_each_sample(tmp_path: Path) -> None:
    model = ct.from_hf(on_disk(theirs_of("llama, dynamic"), tmp_path)[0])
    padded = model(asked(LEFT)[1])
    for row, there in enumerate(LEFT):
        assert gap(padded[row, there], model(IDS[row : row + 1, there])[0]) <= 1e-12


# --- generation ------------------------------------------------------------------------------------------------------


@EACH
def test_cached_generation_is_theirs(tmp_path: Path, name: str) -> None:
    """Token for token, from full prompts and from prompts padded on the left."""
    theirs = theirs_of(name)
    model = ct.from_hf(on_disk(theirs, tmp_path)[0])
    for rows in (ROWS[padding] for padding in DECODERS[name].rows if padding != "right"):
        with lifted():
            wanted = theirs.generate(IDS, attention_mask=rows.long(), max_new_tokens=6, do_sample=False, pad_token_id=0)
        got = ct.generate(model, IDS, tokens=6, observed=None if rows is EVERY else rows)
        assert torch.equal(got[:, N:], wanted[:, N:])


# --- folders ---------------------------------------------------------------------------------------------------------


@EACH
def test_hugging_face_reads_what_we_write(tmp_path: Path, name: str) -> None:
    folder, stored, names = on_disk(theirs_of(name), tmp_path / "theirs")
    model = ct.from_hf(folder)
    back = names.store(model.state_dict())
    wanted = of_ours(names, stored)
    assert set(back) == set(wanted)
    assert all(torch.equal(back[key], tensor) for key, tensor in wanted.items())
    ours = ct.to_hf(model, tmp_path / "ours")
    again = ct.from_hf(ours)
    assert to_plain(again) == to_plain(model)
    assert torch.equal(again(IDS), model(IDS))
    how = {"attn_implementation": DECODERS[name].attention, **(EXPERTS if DECODERS[name].converted else {})}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(ours, **how)
    assert type(theirs).__name__ == (DECODERS[name].writes or DECODERS[name].model)
    with lifted():
        assert gap(model(IDS), theirs(IDS).logits) <= 1e-12


@EACH
def test_another_discretisation_runs(tmp_path: Path, name: str) -> None:
    """Every axis by itself, with gradients for all weights that it reads."""
    model = ct.from_hf(on_disk(theirs_of(name), tmp_path)[0])
    native = model(IDS)
    for size in ({"d": 12}, {"h": 2}, {"e": 2}, {"m": 12}, {"z": 2}):
        other = model.at(**size)(IDS)
        assert other.shape == native.shape
        assert other.isfinite().all()
        assert gap(other, native) > 1e-4
    if name in ("gemma3", "qwen2_moe", "smollm3", "gptj", "falcon, 40B"):
        small = ct.discretise(model, d=12, h=2, z=2)
        assert gap(small(IDS), model.at(d=12, h=2, z=2)(IDS)) <= 1e-12
    found = gradients(model.at(z=2)(IDS).square().sum(), dict(model.named_parameters()))
    assert all(g.isfinite().all() for g in found.values())
