"""New classifiers on pretrained models, and those of decoders, held against Hugging Face."""

from pathlib import Path
from typing import Any

import pytest
import torch

import continua as ct
from continua.convert import with_classes
from continua.convert.huggingface import hf_names
from continua.errors import CheckpointError, ConfigError
from tests.exact import gap, gradients, numbers, stirred, worst, written_gradients
from tests.islands import lifted
from tests.refusals import refused
from tests.slow import slow_but

pytestmark = [pytest.mark.usefixtures("quiet_hugging_face"), pytest.mark.spec("B14")]

NAMES = ("calm", "glad", "sad")
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
FEWER = {"num_key_value_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": ("GPT2", {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16}),
    "GPTJ": ("GPTJ", {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16, "rotary_dim": 4}),
    "Falcon": ("Falcon", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}),
    "Llama": ("Llama", {**SIZES, **FEWER}),
    "Qwen3": ("Qwen3", {**SIZES, **FEWER, "head_dim": 8}),
    "Gemma2": ("Gemma2", {**SIZES, **FEWER, "head_dim": 4, "attn_implementation": "eager"}),
    "GPTNeoX": ("GPTNeoX", SIZES),
    "OPT": ("OPT", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 24,
                    "word_embed_proj_dim": 16, "max_position_embeddings": 16}),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_decoders_classify_at_the_last_token_as_hugging_face_does(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    name, options = FAMILIES[family]
    labels = dict(enumerate(NAMES))
    config = getattr(transformers, f"{name}Config")(
        vocab_size=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, id2label=labels,
        label2id={name: number for number, name in labels.items()}, **options,
    )  # fmt: skip
    theirs = stirred(getattr(transformers, f"{name}ForSequenceClassification")(config).eval())
    theirs.save_pretrained(tmp_path / "theirs")
    ids = torch.randint(3, 32, (3, 7), generator=torch.Generator().manual_seed(0))
    observed = torch.ones_like(ids, dtype=torch.bool)
    observed[1, 4:] = False
    ids[~observed] = 0
    model = ct.from_hf(tmp_path / "theirs")
    slope = numbers(3, 3)
    with lifted():
        wanted = theirs(ids, attention_mask=observed.long()).logits
        slopes = gradients((wanted * slope).sum(), dict(theirs.named_parameters()))
        got = model(ct.Batch(ids, observed=observed))
    assert gap(got, wanted) <= 1e-12
    found = gradients((got * slope).sum(), dict(model.named_parameters()))
    assert model.readout.labels == NAMES
    ct.to_hf(model, tmp_path / "ours")
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    assert again.config.id2label == labels
    for key, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    whole = torch.randint(3, 32, (3, 7), generator=torch.Generator().manual_seed(1))
    with lifted():  # Hugging Face refuses several texts where no padding token is named
        assert gap(again.double()(whole).logits, model(whole)) <= 1e-12
    names = hf_names(tmp_path / "theirs")
    assert worst(names.store(found), written_gradients(theirs, slopes, tmp_path / "slopes")) <= 1e-12


ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NO_ENDS = {**ENDS, "cls_token_id": None, "sep_token_id": None}
ALBERT = {**SIZES, "embedding_size": 8, "num_hidden_groups": 1, "max_position_embeddings": 16}
MODERN = {**SIZES, "local_attention": 4, **NO_ENDS}
MEAN = {**MODERN, "classifier_pooling": "mean"}
DENSE = FAMILIES["Llama"][1]
OF_TOKENS = "ForTokenClassification"
OF_ANSWERS = "ForQuestionAnswering"
OF_TEXTS = "ForSequenceClassification"
HEADS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama, tokens": ("Llama", OF_TOKENS, DENSE),
    "Llama, answers": ("Llama", OF_ANSWERS, DENSE),
    "Llama, states": ("Llama", "Model", {**DENSE, "tie_word_embeddings": False}),
    "Mistral, answers": ("Mistral", OF_ANSWERS, DENSE),
    "GPT2, tokens": ("GPT2", OF_TOKENS, FAMILIES["GPT2"][1]),
    "GPTNeoX, tokens": ("GPTNeoX", OF_TOKENS, SIZES),
    "OPT, answers": ("OPT", OF_ANSWERS, FAMILIES["OPT"][1]),
    "ModernBert, texts": ("ModernBert", OF_TEXTS, MODERN),
    "ModernBert, mean": ("ModernBert", OF_TEXTS, MEAN),
    "ModernBert, tokens": ("ModernBert", OF_TOKENS, MEAN),
    "ModernBert, answers": ("ModernBert", OF_ANSWERS, MODERN),
    "Albert, texts": ("Albert", OF_TEXTS, ALBERT),
    "Albert, tokens": ("Albert", OF_TOKENS, ALBERT),
    "Albert, answers": ("Albert", OF_ANSWERS, ALBERT),
}


def told(theirs: Any, ids: torch.Tensor, observed: torch.Tensor) -> torch.Tensor:
    """Logits, both of an answer, or states."""
    out = theirs(ids, attention_mask=observed.long())
    if hasattr(out, "start_logits"):
        return torch.stack([out.start_logits, out.end_logits], -1)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


QUICK = ("Llama, tokens", "Llama, answers", "Llama, states", "GPT2, tokens", "ModernBert, mean", "Albert, texts")


@pytest.mark.parametrize("case", slow_but(QUICK, HEADS, "a quarter of a second each, and sisters have the same heads"))
def test_other_heads_are_those_of_hugging_face(case: str, tmp_path: Path) -> None:
    """Answers and gradients of observed tokens, names of classes, and the way back, bit for bit."""
    transformers = pytest.importorskip("transformers")
    name, head, options = HEADS[case]
    labels = dict(enumerate(("start", "end") if head == OF_ANSWERS else NAMES))
    options = {**ENDS, **options, "id2label": labels, "label2id": {label: i for i, label in labels.items()}}
    config = getattr(transformers, f"{name}Config")(vocab_size=32, **options)
    theirs = stirred(getattr(transformers, f"{name}{head}")(config).eval())
    theirs.save_pretrained(tmp_path / "theirs")
    model = ct.from_hf(tmp_path / "theirs")
    ids = torch.randint(3, 32, (3, 7), generator=torch.Generator().manual_seed(0))
    observed = torch.ones_like(ids, dtype=torch.bool)
    observed[1, 4:] = False
    rows = observed if head != OF_TEXTS else torch.ones(3, dtype=torch.bool)
    with lifted():
        wanted = told(theirs, ids, observed)[rows]
        got = model(ct.Batch(ids, observed=observed))[rows]
        slope = numbers(*wanted.shape)
        slopes = gradients((wanted * slope).sum(), dict(theirs.named_parameters()))
        found = gradients((got * slope).sum(), dict(model.named_parameters()))
    assert gap(got, wanted) <= 1e-12
    assert head == "Model" or model.readout.labels == tuple(labels.values())
    ct.to_hf(model, tmp_path / "ours")
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    assert head == "Model" or again.config.id2label == labels or head == OF_ANSWERS
    for key, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    names = hf_names(tmp_path / "theirs")
    written = written_gradients(theirs, slopes, tmp_path / "slopes")
    mine = {key.removeprefix(names.prefix): tensor for key, tensor in names.store(found).items()}
    assert worst(mine, {key.removeprefix(names.prefix): tensor for key, tensor in written.items()}) <= 1e-12


BASES = {
    "bert": lambda: ct.zoo.bert(vocab=32, d=8, heads=2, depth=2, context=8, masked_lm=True),
    "roberta": lambda: ct.zoo.roberta(vocab=32, d=8, heads=2, depth=2, context=8),
    "distilbert": lambda: ct.zoo.distilbert(vocab=32, d=8, heads=2, depth=2, context=8, labels=2),
    "electra": lambda: ct.zoo.electra(vocab=32, d=8, heads=2, depth=2, context=8, table_width=4),
    "albert": lambda: ct.zoo.albert(vocab=32, table_width=4, d=8, heads=2, depth=2, context=8, masked_lm=True),
    "modernbert": lambda: ct.zoo.modernbert(vocab=32, d=8, heads=2, depth=3, m=12, masked_lm=True),
    "gpt2": lambda: ct.zoo.gpt2(vocab=32, d=8, heads=2, depth=2, context=8),
    "llama": lambda: ct.zoo.llama(vocab=32, d=8, heads=2, depth=2, m=12),
}


@pytest.mark.parametrize("family", BASES)
def test_a_new_head_keeps_the_trunk_and_goes_to_hugging_face(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = BASES[family]()
    model = with_classes(base, NAMES)
    state = base.state_dict()
    shared = {name for name in model.state_dict() if not name.startswith("readout")}
    assert shared == {name for name in state if not name.startswith("readout")}
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in shared)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    assert bool(model.readout.head.coefficients.abs().max() > 0)
    ids = torch.randint(3, 32, (2, 6), generator=torch.Generator().manual_seed(0))
    assert torch.equal(ct.from_hf(ct.to_hf(model, tmp_path))(ids), model(ids))
    assert with_classes(model, NAMES) is model
    assert with_classes(model, ("a", "b")).readout.labels == ("a", "b")
    assert torch.equal(with_classes(base, NAMES)(ids), model(ids))  # drawn by a seed
    assert not torch.equal(with_classes(base, NAMES, seed=1)(ids), model(ids))


def test_models_without_a_place_for_classes_are_refused() -> None:
    with refused(ConfigError, "t5", "BERT"):
        with_classes(ct.zoo.t5(vocab=32, d=16, heads=2, depth=2, e=4), NAMES)
    with refused(ConfigError, "Transformer", "from_hf"):
        with_classes(ct.Transformer.continuous(vocab=32, at=ct.at(d=8, h=2, z=2)), NAMES)
    with refused(CheckpointError, "a narrow one", "as wide as its layers"):
        narrow = ct.zoo.OPTStyle(pre=False, table_width=4)
        with_classes(ct.zoo.opt(vocab=32, d=8, heads=2, depth=2, context=8, style=narrow), NAMES)
    with refused(ConfigError, "('a', 'a')", "no"):
        with_classes(BASES["gpt2"](), ("a", "a"))
