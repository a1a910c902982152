"""Hugging Face folders as points of the continuous family. Only files are read: ``transformers`` is not needed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from continua.convert.names import Entry, Layout, NameMap, norm
from continua.errors import CheckpointError, nearest
from continua.models import Transformer, zoo
from continua.models.store import read_json, read_tensors, refuse_pickle

A, F = "block.parts.0", "block.parts.1"


def _gpt2_map() -> NameMap:
    """GPT-2 stores matrices as [in, out] and q, k, v in one."""
    attention = f"{A}.inner"
    thirds = [
        entry
        for i, letter in enumerate("qkv")
        for entry in (
            Entry(f"{attention}.{letter}.coefficients", "h.{z}.attn.c_attn.weight", Layout(2, True, (i, 3))),
            Entry(f"{attention}.b{letter}.coefficients", "h.{z}.attn.c_attn.bias", Layout(part=(i, 3)), flat=True),
        )
    ]
    return NameMap(
        prefix="transformer.",
        ignored=("h.*.attn.bias", "h.*.attn.masked_bias", "lm_head.weight"),
        entries=(
            Entry("embed.table.coefficients", "wte.weight"),
            Entry("embed.position.table.coefficients", "wpe.weight"),
            *norm(f"{A}.norm", "h.{z}.ln_1"),
            *thirds,
            Entry(f"{attention}.o.coefficients", "h.{z}.attn.c_proj.weight", Layout(1, True)),
            Entry(f"{attention}.bo.coefficients", "h.{z}.attn.c_proj.bias", flat=True),
            *norm(f"{F}.norm", "h.{z}.ln_2"),
            Entry(f"{F}.inner.w1.coefficients", "h.{z}.mlp.c_fc.weight", Layout(1, True)),
            Entry(f"{F}.inner.b1.coefficients", "h.{z}.mlp.c_fc.bias", flat=True),
            Entry(f"{F}.inner.w2.coefficients", "h.{z}.mlp.c_proj.weight", Layout(1, True)),
            Entry(f"{F}.inner.b2.coefficients", "h.{z}.mlp.c_proj.bias", flat=True),
            *norm("readout.before.0", "ln_f"),
        ),
    )


def _bert_map(masked_lm: bool) -> NameMap:
    """BERT stores matrices as [out, in]; its four parts are attention, norm, feed-forward, norm."""
    layer = "encoder.layer.{z}"
    heads = [
        entry
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value"))
        for entry in (
            Entry(f"{A}.{letter}.coefficients", f"{layer}.attention.self.{name}.weight", Layout(2)),
            Entry(f"{A}.b{letter}.coefficients", f"{layer}.attention.self.{name}.bias", flat=True),
        )
    ]
    head = (
        Entry("readout.before.0.kernel.coefficients", "cls.predictions.transform.dense.weight"),
        Entry("readout.before.0.bias.coefficients", "cls.predictions.transform.dense.bias", flat=True),
        *norm("readout.before.2", "cls.predictions.transform.LayerNorm"),
        Entry("readout.bias", "cls.predictions.bias", flat=True),
    )
    feed = "block.parts.2"
    return NameMap(
        prefix="bert.",
        ignored=("pooler.*", "embeddings.position_ids", "cls.predictions.decoder.*", "cls.seq_relationship.*"),
        bare=("cls.*",),
        entries=(
            Entry("embed.table.coefficients", "embeddings.word_embeddings.weight"),
            Entry("embed.position.table.coefficients", "embeddings.position_embeddings.weight"),
            Entry("embed.types.coefficients", "embeddings.token_type_embeddings.weight"),
            *norm("embed.norm", "embeddings.LayerNorm"),
            *heads,
            Entry(f"{A}.o.coefficients", f"{layer}.attention.output.dense.weight"),
            Entry(f"{A}.bo.coefficients", f"{layer}.attention.output.dense.bias", flat=True),
            *norm("block.parts.1.norm", f"{layer}.attention.output.LayerNorm"),
            Entry(f"{feed}.w1.coefficients", f"{layer}.intermediate.dense.weight"),
            Entry(f"{feed}.b1.coefficients", f"{layer}.intermediate.dense.bias", flat=True),
            Entry(f"{feed}.w2.coefficients", f"{layer}.output.dense.weight"),
            Entry(f"{feed}.b2.coefficients", f"{layer}.output.dense.bias", flat=True),
            *norm("block.parts.3.norm", f"{layer}.output.LayerNorm"),
            *(head if masked_lm else ()),
        ),
    )


def _gpt2(config: Mapping[str, Any], names: set[str]) -> tuple[Transformer, NameMap, int]:
    _expect(config, activation_function="gelu_new", add_cross_attention=False, tie_word_embeddings=True)
    _expect(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    model = zoo.gpt2(
        vocab=config["vocab_size"],
        d=config["n_embd"],
        heads=config["n_head"],
        depth=config["n_layer"],
        context=config["n_positions"],
        m=config.get("n_inner"),
        eps=config["layer_norm_epsilon"],
    )
    return model, _gpt2_map(), config["n_layer"]


def _bert(config: Mapping[str, Any], names: set[str]) -> tuple[Transformer, NameMap, int]:
    _expect(config, hidden_act="gelu", is_decoder=False, type_vocab_size=2, tie_word_embeddings=True)
    _expect(config, position_embedding_type="absolute", add_cross_attention=False, pad_token_id=0)
    masked_lm = "cls.predictions.bias" in names
    model = zoo.bert(
        vocab=config["vocab_size"],
        d=config["hidden_size"],
        heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        context=config["max_position_embeddings"],
        m=config["intermediate_size"],
        eps=config["layer_norm_eps"],
        masked_lm=masked_lm,
    )
    return model, _bert_map(masked_lm), config["num_hidden_layers"]


_Builder = Callable[[Mapping[str, Any], set[str]], tuple[Transformer, NameMap, int]]
ARCHITECTURES: dict[str, _Builder] = {"gpt2": _gpt2, "bert": _bert}


class _Settings(dict[str, Any]):
    """The entries of a ``config.json``; a missing one is said plainly."""

    def __missing__(self, key: str) -> Any:
        remedy = "Write the folder again with save_pretrained."
        raise CheckpointError(f"config.json needs {key!r} for this architecture", got="none", remedy=remedy)


def _expect(config: Mapping[str, Any], **settings: Any) -> None:
    """Refuse settings whose arithmetic the special case does not carry."""
    for key, value in settings.items():
        if config.get(key, value) != value:
            remedy = "Models with another setting are not in the zoo yet."
            raise CheckpointError(
                f"this architecture is read with {key}={value!r}", got=repr(config[key]), remedy=remedy
            )


def from_hf(path: str | Path, dtype: torch.dtype | None = None) -> Transformer:
    """Return the model of a Hugging Face folder (``config.json`` and ``model.safetensors``), equal to round-off.

    Known architectures: GPT-2 and BERT (with or without its masked-LM head). ``dtype`` converts the weights.
    """
    stored, model, names, layers = _read(Path(path))
    state = names.load(stored, model.state_dict(), layers)
    model = model.to(dtype or next(iter(state.values())).dtype)
    model.load_state_dict(state)
    return model


def hf_names(path: str | Path) -> tuple[NameMap, int]:
    """Return the map between the tensor names of a Hugging Face folder and ours, and the number of layers."""
    _, _, names, layers = _read(Path(path))
    return names, layers


def _read(path: Path) -> tuple[dict[str, Any], Transformer, NameMap, int]:
    refuse_pickle(path)
    if not (path / "config.json").is_file():
        remedy = "Give a local folder written by save_pretrained; nothing is downloaded."
        raise CheckpointError("a Hugging Face folder has a config.json", got=f"none in {path}", remedy=remedy)
    config = _Settings(read_json(path / "config.json"))
    kind = str(config.get("model_type"))
    if kind not in ARCHITECTURES:
        raise CheckpointError("this architecture is not known", got=kind, remedy=nearest(kind, list(ARCHITECTURES)))
    stored = read_tensors(path)
    return stored, *ARCHITECTURES[kind](config, set(stored))
