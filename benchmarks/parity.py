"""How exact the families are: a tiny random model of each beside Hugging Face's, in float64.

    python benchmarks/parity.py                  # some two minutes on one core

For each family and head: the largest difference of the answers and of all gradients over the largest entry, with the
parts that Hugging Face computes in float32 lifted (``tests/islands.py`` lists them), and of the answers as they are.
Gradients are compared under the names on disk: those of Hugging Face are written there by its own ``save_pretrained``.
Nothing is timed. ``python tools/quote.py`` writes the table, with the speeds of ``family.py``, into the documentation.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers
from common import Row, environment, write
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers.utils import logging as hf_logging

import continua as ct
from continua.convert.huggingface import hf_names
from tests.exact import gap, gradients, numbers, stirred, worst, written_gradients
from tests.islands import lifted

BOUND = 1e-12
SINES = "embed_positions.weight"
EXPERTS = {"experts_implementation": "eager"}  # products of groups know no float64
VOCAB, ROOM = 23, 14
END = VOCAB - 1  # of a text of CLIP
IDS = torch.randint(4, END, (2, 7), generator=torch.Generator().manual_seed(4))
SOURCE = torch.randint(4, VOCAB, (2, 6), generator=torch.Generator().manual_seed(5))
WIDE = {"vocab_size": VOCAB, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 3}
ENCODER = WIDE | {"intermediate_size": 24, "max_position_embeddings": ROOM}
DECODER = WIDE | {"intermediate_size": 24, "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0}
IMAGES = {k: v for k, v in WIDE.items() if k != "vocab_size"} | {
    "intermediate_size": 24,
    "image_size": 12,
    "patch_size": 4,
}
SIDES = {"vocab_size": VOCAB, "d_model": 16, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4}
SIDES |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20}
ENDS = {"pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 2}
MINE = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def words() -> tuple[dict[str, Tensor], Any]:
    return {"input_ids": IDS}, ct.Batch(IDS)


def paired() -> tuple[dict[str, Tensor], Any]:
    return {"input_ids": SOURCE, "decoder_input_ids": IDS}, ct.Batch(IDS, source=ct.Batch(SOURCE))


def heard() -> tuple[dict[str, Tensor], Any]:
    mel = numbers(2, 5, 12, seed=8)
    return {"input_features": mel, "decoder_input_ids": IDS}, ct.Batch(IDS, source=ct.Batch(mel))


def images() -> tuple[dict[str, Tensor], Any]:
    pixels = numbers(2, 3, 12, 12, seed=3)
    return {"pixel_values": pixels}, ct.Batch(pixels)


def captioned() -> tuple[dict[str, Tensor], Any]:
    ids = IDS.clone()
    ids[0, 3] = END
    ids[1, 6] = END
    pixels = numbers(3, 3, 12, 12, seed=3)
    return {"input_ids": ids, "pixel_values": pixels}, ct.Batch(ids, source=ct.Batch(pixels))


def ended() -> tuple[dict[str, Tensor], Any]:
    ids = captioned()[0]["input_ids"]
    return {"input_ids": ids}, ct.Batch(ids)


@dataclass(frozen=True)
class Case:
    """A class of ``transformers``, its sizes, and what both sides read."""

    family: str
    head: str
    sizes: dict[str, Any]
    data: Callable[[], tuple[dict[str, Tensor], Any]] = words
    options: dict[str, Any] = field(default_factory=dict)
    config: str = ""  # the class of its sizes, where that is named otherwise

    @property
    def name(self) -> str:
        """The class of ``transformers``."""
        return self.family + self.head

    @property
    def said(self) -> str:
        """What its configuration says beside sizes."""
        return ", ".join(f"{name}={value}" for name, value in self.options.items() if name not in EXPERTS | UNTIED)

    def make(self) -> Any:
        """The model with noise on every weight."""
        config = getattr(transformers, self.config or f"{self.family}Config")(**self.sizes, **self.options)
        model = getattr(transformers, self.name)(config).eval()
        sines = {name: p.detach().clone() for name, p in model.named_parameters() if name.endswith(SINES)}
        stirred(model)
        with torch.no_grad():
            for name, table in sines.items() if self.family == "Marian" else ():
                model.get_parameter(name).copy_(table)  # a table that is made, not learned
        return model


PAD = {"pad_token_id": 0}
UNTIED = {"tie_word_embeddings": False}
GPT2 = {"vocab_size": VOCAB, "n_embd": 16, "n_head": 4, "n_layer": 3, "n_positions": ROOM}
DISTIL = {"vocab_size": VOCAB, "dim": 16, "n_heads": 4, "n_layers": 3, "hidden_dim": 24}
T5 = {"vocab_size": VOCAB, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_heads": 4, "num_layers": 3}
OPT = WIDE | {"ffn_dim": 24, "max_position_embeddings": ROOM, "word_embed_proj_dim": 16}
DINO = {name: size for name, size in IMAGES.items() if name != "intermediate_size"} | {"mlp_ratio": 2}
NO_ENDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
TEXTS = ENCODER | {"projection_dim": 8, "eos_token_id": END, "bos_token_id": 1, "pad_token_id": 0}
SEEN = IMAGES | {"projection_dim": 8}
CLIP = {"text_config": TEXTS, "vision_config": SEEN, "projection_dim": 8}
RW = {"alibi": True, "parallel_attn": False, "bias": True, "multi_query": False}
SHARED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 24}
OF_TEXTS, OF_TOKENS, OF_ANSWERS = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
# a family, its heads beside that of words, and its sizes
MORE_HEADS = (
    ("GPT2", (OF_TEXTS, OF_TOKENS, OF_ANSWERS), GPT2 | PAD, {}),
    ("OPT", (OF_TEXTS, OF_ANSWERS), OPT | PAD, {}),
    ("GPTNeoX", (OF_TEXTS, OF_TOKENS, OF_ANSWERS), ENCODER | PAD, {}),
    *((name, ("Model", OF_TEXTS, OF_TOKENS, OF_ANSWERS), DECODER, UNTIED)
      for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")),
    ("Gemma2", (OF_TEXTS, OF_TOKENS), DECODER, {}),
    ("Phi3", ("Model", OF_TEXTS, OF_TOKENS), DECODER, {"bos_token_id": 1, "eos_token_id": 2} | UNTIED),
    ("GPTJ", (OF_TEXTS, OF_ANSWERS), GPT2 | PAD | {"rotary_dim": 2}, {}),
    ("Falcon", (OF_TEXTS, OF_TOKENS, OF_ANSWERS), WIDE | PAD, {}),
    ("Mixtral", ("Model", OF_TEXTS, OF_TOKENS, OF_ANSWERS), DECODER, {"num_local_experts": 4} | EXPERTS | UNTIED),
)  # fmt: skip
CASES = (
    *(Case("Bert", head, ENCODER) for head in ("Model", *MINE)),
    *(Case("Roberta", head, ENCODER | {"type_vocab_size": 1}) for head in ("Model", *MINE)),
    *(Case("DistilBert", head, DISTIL | {"max_position_embeddings": ROOM}) for head in ("Model", *MINE)),
    *(Case("Electra", head, ENCODER | {"embedding_size": 8}) for head in ("Model", *MINE)),
    Case("XLMRoberta", "ForMaskedLM", ENCODER | {"type_vocab_size": 1}),
    *(Case("Albert", head, ENCODER | {"embedding_size": 8, "num_hidden_groups": 1}) for head in ("Model", *MINE)),
    *(Case("ModernBert", head, ENCODER | NO_ENDS, options={"local_attention": 4}) for head in ("Model", *MINE)),
    Case("ModernBert", OF_TEXTS, ENCODER | NO_ENDS, options={"local_attention": 4, "classifier_pooling": "mean"}),
    Case("T5", "ForConditionalGeneration", T5, paired),
    Case("Bart", "ForConditionalGeneration", SIDES | {"max_position_embeddings": ROOM}, paired),
    Case("MBart", "ForConditionalGeneration", SIDES | {"max_position_embeddings": ROOM}, paired),
    Case("Marian", "MTModel", SIDES | {"max_position_embeddings": ROOM} | ENDS, paired),
    Case("Whisper", "ForConditionalGeneration", SIDES | ENDS, heard,
         {"num_mel_bins": 5, "max_source_positions": 6, "max_target_positions": ROOM}),
    *(Case("ViT", head, IMAGES, images) for head in ("Model", "ForImageClassification")),
    *(Case("DeiT", f"ForImageClassification{more}", IMAGES, images) for more in ("", "WithTeacher")),
    Case("Dinov2", "Model", DINO, images),
    Case("Dinov2WithRegisters", "Model", DINO, images, {"num_register_tokens": 3}),
    Case("CLIP", "Model", CLIP, captioned),
    Case("CLIPText", "ModelWithProjection", TEXTS, ended),
    Case("CLIPVision", "ModelWithProjection", SEEN, images),
    Case("GPT2", "LMHeadModel", GPT2),
    Case("OPT", "ForCausalLM", OPT),
    Case("GPTNeoX", "ForCausalLM", ENCODER),
    *(Case(name, "ForCausalLM", DECODER) for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2", "SmolLM3")),
    Case("Gemma3", "ForCausalLM", DECODER, options={"sliding_window_pattern": 3, "sliding_window": 3},
         config="Gemma3TextConfig"),
    Case("Phi3", "ForCausalLM", DECODER, options={"bos_token_id": 1, "eos_token_id": 2}),
    Case("GPTJ", "ForCausalLM", GPT2 | {"rotary_dim": 2}),
    Case("Falcon", "ForCausalLM", WIDE),
    Case("Falcon", "ForCausalLM", WIDE, options=RW),
    Case("Falcon", "ForCausalLM", WIDE | {"num_attention_heads": 6, "hidden_size": 24}, options={"alibi": True}),
    Case("Mixtral", "ForCausalLM", DECODER, options={"num_local_experts": 4} | EXPERTS),
    Case("Qwen2Moe", "ForCausalLM", {name: size for name, size in DECODER.items() if name != "head_dim"},
         options=SHARED | EXPERTS),
    Case("Qwen3Moe", "ForCausalLM", DECODER,
         options={"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24} | EXPERTS),
    *(Case(name, head, sizes, options=options) for name, heads, sizes, options in MORE_HEADS for head in heads),
)  # fmt: skip


def answer(theirs: Any, given: dict[str, Tensor]) -> Tensor:
    """Logits, the two of a question side by side, or states."""
    out = theirs(**given)
    for vector in ("logits_per_text", "text_embeds", "image_embeds"):
        if getattr(out, vector, None) is not None:
            return getattr(out, vector)
    if hasattr(out, "start_logits"):
        return torch.stack([out.start_logits, out.end_logits], -1)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def compared(case: Case, folder: Path) -> tuple[float, float, float]:
    """Answers and gradients with islands lifted, and answers as they are."""
    theirs = case.make()
    theirs.save_pretrained(folder / "weights")
    model = ct.from_hf(folder / "weights")
    names = hf_names(folder / "weights")
    given, batch = case.data()
    with torch.no_grad():
        untouched = gap(model(batch), answer(theirs, given))
    with lifted():
        wanted = answer(theirs, given)
        ours = model(batch)
        towards = numbers(*wanted.shape, seed=9)
        got = gradients((ours * towards).sum(), dict(model.named_parameters()))
        leaves = {name: p for name, p in theirs.named_parameters() if p.requires_grad}
        slopes = gradients((wanted * towards).sum(), leaves)
    outputs = gap(ours, wanted)
    prefix = names.prefix
    found = {name.removeprefix(prefix): tensor for name, tensor in names.store(got).items()}
    stored = written_gradients(theirs, slopes, folder / "slopes")
    expected = {name.removeprefix(prefix): tensor for name, tensor in stored.items()}
    both = found.keys() & expected.keys()
    assert len(both) >= 0.9 * len(found), sorted(found.keys() ^ expected.keys())
    return outputs, worst({n: found[n] for n in both}, {n: expected[n] for n in both}), untouched


def main() -> None:
    """Make the table."""
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    table = Table("model of transformers", "answers", "gradients", "answers, nothing lifted")
    rows = []
    families = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            outputs, slopes, untouched = compared(case, Path(folder))
        table.add_row(case.name, f"{outputs:.0e}", f"{slopes:.0e}", f"{untouched:.0e}")
        families.append(
            {"model": case.name, "options": case.said, "answers": outputs, "gradients": slopes, "as is": untouched}
        )
        note = f"answers {outputs:.1e}, nothing lifted {untouched:.1e}"
        rows.append(
            Row(f"{case.name}: gradients", slopes, target=f"≤ {BOUND:g}", held=max(outputs, slopes) <= BOUND, note=note)
        )
    Console().print(table)
    write("parity", rows, environment=environment(), families=families)


if __name__ == "__main__":
    main()
