"""GGUF files as points of the continuous family: Llama and Mistral, Qwen2, Qwen3, Gemma 2; float or quantised.

The ``gguf`` package reads the file and dequantises; names and settings are translated into those of Hugging Face, and
from there on the file is read as a folder is.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from continua.convert.architecture import Settings
from continua.convert.huggingface import filled, unfilled
from continua.errors import CheckpointError, ConfigError, nearest
from continua.typing import Tensor

SIZES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
}
ENDS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
HEAD = ("output.weight", "lm_head.weight")
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
AROUND = {
    **PARTS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
CAPS = {
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


@dataclass(frozen=True)
class Dialect:
    """How GGUF spells an architecture of Hugging Face.

    ``paired`` rows of queries and keys stand as (2i, 2i + 1) where Hugging Face has (i, i + e/2); ``one_more`` is added
    to the scales of norms. ``fixed`` are settings that the file does not say.
    """

    kind: str
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    settings: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    paired: bool = False
    one_more: bool = False


DIALECTS = {
    "llama": Dialect("llama", fixed={"hidden_act": "silu"}, paired=True),
    "qwen2": Dialect("qwen2", fixed={"hidden_act": "silu"}),
    "qwen3": Dialect("qwen3", fixed={"hidden_act": "silu"}),
    "gemma2": Dialect("gemma2", AROUND, CAPS, {"hidden_activation": "gelu_pytorch_tanh"}, one_more=True),
}


def from_gguf(path: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """Return the model of a GGUF file with its numbers dequantised; all weights get ``dtype``.

    Rotations that the file stretches are refused: it says factors, and not how they were made.
    """
    path = Path(path)
    reader = _reader(path)
    values = {key: found.contents() for key, found in reader.fields.items()}
    name = str(values.get("general.architecture"))
    if name not in DIALECTS:
        known = f"Known: {', '.join(DIALECTS)}."
        hint = nearest(name, list(DIALECTS))
        remedy = hint if hint == known else f"{hint} {known}"
        raise CheckpointError("this architecture is not read from GGUF", got=name, remedy=remedy)
    dialect = DIALECTS[name]
    heads = values.get(f"{name}.attention.head_count")
    stored = _stored(reader, dialect, heads, values.get(f"{name}.attention.head_count_kv"))
    config = _config(dialect, name, values, stored)
    return filled(stored, *unfilled(dialect.kind, config, set(stored)), dtype)


def _reader(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError("from_gguf reads a file", got=f"no file {path}", remedy="Check the path.")
    try:
        from gguf import GGUFReader
    except ImportError as missing:
        remedy = "Install it: pip install gguf."
        raise ConfigError("GGUF files are read by the package gguf", got=str(missing), remedy=remedy) from missing
    try:
        return GGUFReader(path)
    except Exception as damaged:  # the package raises whatever numpy and struct do
        got = f"{type(damaged).__name__}: {damaged}"[:200]
        remedy = "The file is no GGUF, damaged or cut short: copy it again."
        raise CheckpointError(f"{path.name} cannot be read", got=got, remedy=remedy) from damaged


def _config(dialect: Dialect, name: str, values: Mapping[str, Any], stored: "Translated") -> Settings:
    """The settings in the words of ``config.json``."""
    if values.get(f"{name}.rope.scaling.type") not in (None, "none") or "rope_freqs.weight" in stored.unknown:
        remedy = "Use the safetensors of the model and from_hf."
        raise CheckpointError("stretched rotations are not read from GGUF", got=name, remedy=remedy)
    spelt = {**SIZES, **dialect.settings}
    found = {ours: values.get(f"{name}.{theirs}") for ours, theirs in spelt.items()}
    config = Settings({key: value for key, value in found.items() if value is not None})
    words = stored.shape("model.embed_tokens.weight")
    heads = config.take("num_attention_heads", int)
    config.setdefault("head_dim", config.take("hidden_size", int) // max(heads, 1))
    if (
        dialect.kind == "gemma2"
    ):  # the file does not say it; the 27B takes the width of a head of d, the others their own
        wide = config["num_hidden_layers"] == 46
        config["query_pre_attn_scalar"] = config["hidden_size"] // heads if wide else config["head_dim"]
    return Settings({**config, **dialect.fixed, "vocab_size": words[0], "tie_word_embeddings": HEAD[1] not in stored})


@dataclass(frozen=True)
class Translated(Mapping[str, Tensor]):
    """The tensors of a file under their names in Hugging Face, each dequantised when it is asked for."""

    tensors: Mapping[str, Any]
    changes: Mapping[str, Callable[[Tensor], Tensor]]
    unknown: frozenset[str]

    def __getitem__(self, name: str) -> Tensor:
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        try:
            found = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        except NotImplementedError as problem:
            remedy = "Use a file of another quantisation: F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K and their kin."
            raise CheckpointError(f"{name} cannot be dequantised", got=str(problem), remedy=remedy) from problem
        found = found.reshape(self.shape(name))
        return self.changes[name](found) if name in self.changes else found

    def __iter__(self) -> Iterator[str]:
        return iter([*self.tensors, *self.unknown])

    def __len__(self) -> int:
        return len(self.tensors) + len(self.unknown)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor; a missing one is said."""
        if name not in self.tensors:
            raise CheckpointError(
                "the file lacks tensors of this architecture", got=f"no {name}", remedy="Fetch it again."
            )
        return tuple(int(n) for n in reversed(self.tensors[name].shape))


def _stored(reader: Any, dialect: Dialect, heads: Any, groups: Any) -> Translated:
    tensors: dict[str, Any] = {}
    changes: dict[str, Callable[[Tensor], Tensor]] = {}
    unknown = []
    for tensor in reader.tensors:
        name = _name(tensor.name, dialect)
        if name is None:
            unknown.append(tensor.name)
            continue
        tensors[name] = tensor
        if dialect.paired and ".q_proj." in name:
            changes[name] = lambda x: _halves(x, heads)
        elif dialect.paired and ".k_proj." in name:
            changes[name] = lambda x: _halves(x, groups or heads)
        elif dialect.one_more and "norm" in name:
            changes[name] = lambda x: x - 1
    return Translated(tensors, changes, frozenset(unknown))


def _name(theirs: str, dialect: Dialect) -> str | None:
    """A name of GGUF as Hugging Face spells it."""
    if theirs == HEAD[0]:
        return HEAD[1]
    if theirs in ENDS:
        return ENDS[theirs]
    block, _, rest = theirs.partition(".")
    layer, _, rest = rest.partition(".")
    part, _, kind = rest.partition(".")
    if block != "blk" or part not in dialect.parts or kind not in ("weight", "bias"):
        return None
    return f"model.layers.{layer}.{dialect.parts[part]}.{kind}"


def _halves(x: Tensor, heads: Any) -> Tensor:
    """Rows (2i, 2i + 1) of each head, put into its two halves."""
    if not isinstance(heads, int) or heads < 1 or x.shape[0] % (2 * heads):
        remedy = "The file is damaged, or of an architecture that only looks like Llama."
        raise CheckpointError("rows of queries and keys are pairs of each head", got=f"{heads} heads", remedy=remedy)
    return x.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()
