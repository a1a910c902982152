"""Every entry of a foreign ``config.json`` may hold anything: a model is read, or a sentence says what is wrong."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import continua as ct
from continua.errors import CheckpointError, ConfigError, ContinuaError
from continua.models import Pixels
from continua.operators import LongStretch
from tests.refusals import refused
from tests.slow import slow_but

SMALL = {"d": 8, "heads": 2, "depth": 2}
GROUPED = {"d": 8, "heads": 4, "depth": 2}
LONG = LongStretch((1.0,), (2.0,), 4.0, gain=1.1)
MODELS = {
    "gpt2": lambda: ct.zoo.gpt2(vocab=11, context=16, **SMALL),
    "bert": lambda: ct.zoo.bert(vocab=11, context=16, masked_lm=True, **SMALL),
    "llama": lambda: ct.zoo.llama(vocab=11, d=8, heads=4, depth=2, m=12, groups=2),
    "mistral": lambda: ct.zoo.mistral(vocab=11, m=12, groups=2, **GROUPED),
    "qwen2": lambda: ct.zoo.qwen2(vocab=11, m=12, groups=2, **GROUPED),
    "qwen3": lambda: ct.zoo.qwen3(vocab=11, m=12, groups=2, e=2, **GROUPED),
    "gpt_neox": lambda: ct.zoo.gpt_neox(vocab=11, **SMALL),
    "opt": lambda: ct.zoo.opt(vocab=11, context=16, **SMALL),
    "gemma2": lambda: ct.zoo.gemma2(vocab=11, m=12, groups=2, e=2, **GROUPED),
    "gemma3_text": lambda: ct.zoo.gemma3(vocab=11, m=12, groups=2, e=2, **GROUPED),
    "phi3": lambda: ct.zoo.phi3(vocab=11, m=12, groups=2, style=ct.zoo.LlamaStyle(stretch=LONG, share=0.5), **GROUPED),
    "smollm3": lambda: ct.zoo.smollm3(vocab=11, m=12, d=8, heads=4, depth=4, groups=2),
    "mixtral": lambda: ct.zoo.mixtral(vocab=11, m=12, groups=2, **GROUPED),
    "gptj": lambda: ct.zoo.gpt_j(vocab=11, style=ct.zoo.GPTJStyle(share=0.5), **SMALL),
    "falcon": lambda: ct.zoo.falcon(vocab=11, groups=2, style=ct.zoo.FalconStyle(two_norms=True), **GROUPED),
    "albert": lambda: ct.zoo.albert(11, table_width=4, context=16, masked_lm=True, **SMALL),
    "t5": lambda: ct.zoo.t5(vocab=11, e=4, **SMALL),
    "vit": lambda: ct.zoo.vit(Pixels(4, 4, channels=2, patch=(2, 2)), labels=3, **SMALL),
    "deit": lambda: ct.zoo.deit(Pixels(4, 4, channels=2, patch=(2, 2)), labels=("a", "b"), **SMALL),
    "bert, classes": lambda: ct.zoo.bert(vocab=11, context=16, labels=("a", "b"), **SMALL),
    "roberta": lambda: ct.zoo.roberta(vocab=11, context=16, masked_lm=True, **SMALL),
    "distilbert": lambda: ct.zoo.distilbert(vocab=11, context=16, labels=2, **SMALL),
    "bart": lambda: ct.zoo.bart(vocab=11, context=16, **SMALL),
    "modernbert": lambda: ct.zoo.modernbert(vocab=11, d=8, heads=2, depth=3, m=12, masked_lm=True),
    "mbart": lambda: ct.zoo.mbart(vocab=11, context=16, **SMALL),
    "marian": lambda: ct.zoo.marian(vocab=11, style=ct.zoo.BartStyle(sines=True, normed=False), **SMALL),
    "dinov2": lambda: ct.zoo.dinov2(Pixels(4, 4, channels=2, patch=(2, 2)), **SMALL),
    "dinov2_with_registers": lambda: ct.zoo.dinov2(Pixels(4, 4, channels=2, patch=(2, 2)), registers=2, **SMALL),
    "whisper": lambda: ct.zoo.whisper(vocab=11, channels=3, frames=6, context=16, **SMALL),
}
UNWRITTEN = (
    "auto_map", "max_window_layers", "max_position_embeddings", "partial_rotary_factor", "use_bidirectional_attention",
    "rope_scaling", "rope_interleaved", "feed_forward_proj", "num_decoder_layers", "id2label", "qkv_bias",
    "num_labels", "normalize_before", "rope_local_base_freq", "sliding_window_pattern", "no_rope_layer_interval",
    "global_rope_theta", "local_rope_theta", "global_attn_every_n_layers",
)  # fmt: skip
ANYTHING: tuple[Any, ...] = (
    None, "x", "", "8", 0, -1, 1.5, 10**12, 10**40, math.nan, 1e308, 1e-320, True, False,
    [], [4], [4, 4, 4], {}, {"a": 1},
)  # fmt: skip
TABLES = ("rope_parameters", "rope_scaling")
INNER = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "short_factor", "long_factor", "full_attention")

OPENED = "hundreds of folders are opened; the fuzzer of the quick tests spoils those of bert, llama and albert"

pytestmark = pytest.mark.spec("B17")


@pytest.fixture(scope="module", params=slow_but([], MODELS, OPENED))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hf") / request.param
    ct.to_hf(MODELS[request.param](), place)
    return place


def _tried(folder: Path, described: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(described))
    try:
        ct.from_hf(folder)
    except ContinuaError:
        return ""
    except Exception as bare:
        return f"{type(bare).__name__}: {bare}"[:120]
    return ""


def test_every_entry_may_hold_anything(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    described = json.loads(text)
    wrong = {}
    for key in (*described, *UNWRITTEN):
        for value in ANYTHING:
            wrong[f"{key}={value}"] = _tried(folder, {**described, key: value})
            if key in TABLES:
                for inner in INNER:
                    old = described.get(key, {})
                    wrong[f"{key}.{inner}={value}"] = _tried(folder, {**described, key: {inner: value}})
                    wrong[f"{key}, {inner}={value}"] = _tried(folder, {**described, key: {**old, inner: value}})
    (folder / "config.json").write_text(text)
    assert {case: said for case, said in wrong.items() if said} == {}


SENTENCES = [
    ("llama", "rope_parameters", math.nan, CheckpointError, "rope_parameters takes a mapping to anything, got nan"),
    ("llama", "rope_parameters", {"rope_theta": "x"}, CheckpointError, "rope_theta takes a number > 0, got 'x'"),
    ("llama", "tie_word_embeddings", "x", CheckpointError, "tie_word_embeddings takes True or False, got 'x'"),
    ("albert", "hidden_act", [4], CheckpointError, "hidden_act takes text, got [4]"),
    ("t5", "feed_forward_proj", {}, CheckpointError, "feed_forward_proj takes text, got {}"),
    ("t5", "num_decoder_layers", 0, CheckpointError, "num_decoder_layers takes a whole number ≥ 1, got 0"),
    ("vit", "image_size", [4, 4, 4], CheckpointError, "image_size takes a whole number ≥ 1 or a tuple of 2"),
    ("vit", "id2label", 3, CheckpointError, "id2label takes a mapping to anything, got 3"),
]


@pytest.mark.parametrize(("name", "key", "value", "kind", "sentence"), SENTENCES)
def test_entries_of_another_type_are_named(
    name: str, key: str, value: Any, kind: type[ContinuaError], sentence: str, tmp_path: Path
) -> None:
    place = tmp_path / name
    ct.to_hf(MODELS[name](), place)
    described = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**described, key: value}))
    with refused(kind, sentence, "save_pretrained"):
        ct.from_hf(place)


@pytest.mark.parametrize(
    ("make", "got", "remedy"),
    [
        (lambda: ct.zoo.LlamaStyle(base=0.0), "got 0.0", "base > 0"),
        (lambda: ct.zoo.LlamaStyle(eps="x"), "got 'x'", "eps ≥ 0"),
        (lambda: ct.zoo.T5Style(buckets=0), "got 0", "buckets ≥ 1"),
    ],
    ids=["no base", "an eps of text", "no buckets"],
)
def test_styles_are_checked(make: Any, got: str, remedy: str) -> None:
    with refused(ConfigError, got, remedy):
        make()
