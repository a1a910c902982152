"""The families whose speed ``family.py`` compares: a class of ``transformers``, its sizes, and what both sides read.

Every model has about five million parameters and no dropout.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor

import continua as ct

VOCAB = 1024
WIDE = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8}
GELU = WIDE | {"vocab_size": VOCAB, "intermediate_size": 1024, "max_position_embeddings": 512}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
GATED = WIDE | ENDS | {"vocab_size": VOCAB, "num_key_value_heads": 2, "intermediate_size": 688}
OLD = {"vocab_size": VOCAB, "n_embd": 256, "n_layer": 6, "n_head": 8, "n_positions": 512} | ENDS
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
SIDES = {"vocab_size": VOCAB, "d_model": 256, "encoder_layers": 3, "decoder_layers": 3, "encoder_ffn_dim": 1024}
SIDES |= {"decoder_ffn_dim": 1024, "encoder_attention_heads": 8, "decoder_attention_heads": 8} | STILL
IMAGES = WIDE | QUIET | {"intermediate_size": 1024, "image_size": 96, "patch_size": 8}
ALTERNATING = {"sliding_window": 64, "head_dim": 32, "query_pre_attn_scalar": 32}


@dataclass(frozen=True)
class Amount:
    """How much a step reads: texts and their tokens, those of a source and of its answers, and images."""

    texts: int
    tokens: int
    source: int
    answers: int
    images: int


MANY = Amount(texts=8, tokens=256, source=192, answers=128, images=16)  # a batch of training, as version 0.1 measured
FEW = Amount(texts=2, tokens=128, source=128, answers=96, images=2)  # so few that weights cost as much as texts


def tokens(samples: int, count: int, seed: int = 0) -> Tensor:
    """Random words."""
    return torch.randint(2, VOCAB, (samples, count), generator=torch.Generator().manual_seed(seed))


def numbers(*shape: int) -> Tensor:
    """Random images or spectrograms."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Family:
    """``reads`` is what goes in: words, images, words beside words, or words beside sounds."""

    model: str
    config: str
    sizes: dict[str, Any]
    reads: str = "words"
    writes: bool = False  # a causal model of words, whose tokens are timed too
    options: dict[str, Any] = field(default_factory=dict)

    def make(self) -> Any:
        """The reference."""
        config = getattr(transformers, self.config)(**self.sizes, **self.options)
        return getattr(transformers, self.model)(config)

    def data(self, amount: Amount = MANY) -> dict[str, Tensor]:
        """What Hugging Face is given."""
        texts = amount.texts
        if self.reads == "images":
            return {"pixel_values": numbers(amount.images, 3, 96, 96)}
        if self.reads == "sounds":
            return {"input_features": numbers(texts, 80, 256), "decoder_input_ids": tokens(texts, amount.answers, 1)}
        if self.reads == "words beside words":
            answers = tokens(texts, amount.answers, 1)
            return {"input_ids": tokens(texts, amount.source), "decoder_input_ids": answers}
        return {"input_ids": tokens(texts, amount.tokens)}

    def theirs(self, model: Any, data: dict[str, Tensor]) -> Tensor:
        """The answer of Hugging Face; keys and values are kept where a model would by itself."""
        kept = {} if self.reads == "images" or not hasattr(model.config, "use_cache") else {"use_cache": False}
        out = model(**data, **kept)
        return out.logits if hasattr(out, "logits") else out.last_hidden_state

    def ours(self, model: Any, data: dict[str, Tensor]) -> Tensor:
        """The answer of Continua to the same."""
        if self.reads in ("images", "words"):
            answer: Tensor = model(next(iter(data.values())))
            return answer
        source = data.get("input_ids", data.get("input_features"))
        found: Tensor = model(ct.Batch(data["decoder_input_ids"], source=ct.Batch(source)))
        return found


def causal(name: str, sizes: dict[str, Any], config: str = "", **options: Any) -> Family:
    """A decoder of words."""
    return Family(f"{name}ForCausalLM", config or f"{name}Config", sizes, "words", True, options)


def encoder(name: str, sizes: dict[str, Any], **options: Any) -> Family:
    """An encoder of words with its words behind it."""
    return Family(f"{name}ForMaskedLM", f"{name}Config", sizes, "words", False, options)


MARIAN = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "decoder_start_token_id": 0}
SOUNDS = SIDES | MARIAN | {"max_source_positions": 128, "max_target_positions": 256, "begin_suppress_tokens": None}
T5 = {"vocab_size": VOCAB, "d_model": 256, "d_kv": 32, "d_ff": 1024, "num_layers": 3, "num_heads": 8}
T5 |= {"dropout_rate": 0.0, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
DISTIL = {"vocab_size": VOCAB, "dim": 256, "n_heads": 8, "n_layers": 6, "hidden_dim": 1024} | STILL
SPARSE = GATED | {"num_hidden_layers": 5, "intermediate_size": 256, "num_experts_per_tok": 2}
LAYERS = {"sliding_window_pattern": 3}
NO_ENDS = dict.fromkeys((*ENDS, "cls_token_id", "sep_token_id"))
FAMILIES = (
    encoder("Bert", GELU | QUIET),
    encoder("Roberta", GELU | QUIET, pad_token_id=1),
    encoder("DistilBert", DISTIL | {"max_position_embeddings": 512}),
    Family("ElectraModel", "ElectraConfig", GELU | QUIET | {"embedding_size": 128}),
    encoder("Albert", GELU | QUIET | {"hidden_size": 640, "intermediate_size": 2560, "num_hidden_layers": 2}),
    encoder("ModernBert", GELU | NO_ENDS | {"intermediate_size": 688, "local_attention": 64}),
    Family("T5ForConditionalGeneration", "T5Config", T5, "words beside words"),
    Family("BartForConditionalGeneration", "BartConfig", SIDES, "words beside words"),
    Family("MBartForConditionalGeneration", "MBartConfig", SIDES, "words beside words"),
    Family("MarianMTModel", "MarianConfig", SIDES | MARIAN, "words beside words"),
    Family("WhisperForConditionalGeneration", "WhisperConfig", SOUNDS, "sounds"),
    Family("ViTForImageClassification", "ViTConfig", IMAGES, "images"),
    Family("DeiTForImageClassification", "DeiTConfig", IMAGES, "images"),
    Family("Dinov2Model", "Dinov2Config", WIDE | {"image_size": 96, "patch_size": 8}, "images"),
    Family("GPT2LMHeadModel", "GPT2Config", OLD | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
           "words", True),
    causal("OPT", WIDE | ENDS | {"vocab_size": VOCAB, "ffn_dim": 1024, "max_position_embeddings": 512,
                                 "word_embed_proj_dim": 256, "dropout": 0.0, "pad_token_id": 1}),
    causal("GPTNeoX", GELU | ENDS),
    causal("GPTJ", OLD | {"rotary_dim": 16}),
    causal("Falcon", WIDE | ENDS | {"vocab_size": VOCAB}),
    causal("Llama", GATED),
    causal("Mistral", GATED, sliding_window=64),
    causal("Qwen2", GATED),
    causal("Qwen3", GATED, head_dim=32),
    causal("SmolLM3", GATED),
    causal("Phi3", GATED, sliding_window=None),
    causal("Gemma2", GATED | ALTERNATING, attn_logit_softcapping=None),
    causal("Gemma3", GATED | ALTERNATING | LAYERS, "Gemma3TextConfig"),
    causal("Mixtral", SPARSE, num_local_experts=4),
    causal("Qwen3Moe", SPARSE, num_experts=4, moe_intermediate_size=256, head_dim=32),
)  # fmt: skip
