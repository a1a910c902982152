"""Tiny random BERTs, RoBERTas, DistilBERTs and ELECTRAs of Hugging Face with their heads (M9, B14).

Answers and all gradients are compared. None of them computes a part in float32, so nothing is lifted. Hugging Face
numbers RoBERTa's positions by its padding token; ours by what is observed, so the padded rows of the tests hold that
token. A class of a text is read at the first token by Hugging Face, whatever is there, and at the first observed one by
us: with padding on the left only ours is that of the text alone.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import continua as ct
from continua.config import to_plain
from continua.errors import CheckpointError, ConfigError
from continua.models import zoo
from tests.convert.test_hugging_face import of_ours
from tests.exact import EXACT, aligned, gap, gradients, numbers, stirred, worst
from tests.lazy import Lazily
from tests.refusals import refused
from tools import real_models
from tools.packages import Unavailable

transformers = Lazily("transformers")

VOCAB, CONTEXT, B, N = 23, 14, 2, 7
LABELS = {0: "calm", 1: "glad", 2: "sad"}
PAD = {"Bert": 0, "Roberta": 1, "XLMRoberta": 1, "DistilBert": 0, "Electra": 0}
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
CASES = [(family, head) for family in ("Bert", "Roberta", "DistilBert", "Electra") for head in HEADS]
EACH = pytest.mark.parametrize(("family", "head"), CASES, ids=["".join(case) for case in CASES])
RIGHT = torch.arange(N) < torch.tensor([[N - 3], [N]])

pytestmark = [pytest.mark.usefixtures("quiet_hugging_face"), pytest.mark.spec("B14", "M9")]


def hugging(family: str, head: str, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    if family == "DistilBert":
        sizes = {"dim": 16, "n_heads": 4, "n_layers": 3, "hidden_dim": 24}
    else:
        sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 24}
        sizes |= {"type_vocab_size": 1} if "Roberta" in family else {}
        sizes |= {"embedding_size": 8} if family == "Electra" else {}
    sizes |= {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "pad_token_id": PAD[family]}
    named = {} if head.endswith("Answering") else {"id2label": LABELS, "label2id": {v: k for k, v in LABELS.items()}}
    config = getattr(transformers, f"{family}Config")(**(sizes | named | options))
    return stirred(getattr(transformers, family + head)(config).eval(), dtype)


def text(family: str, rows: Tensor) -> Tensor:
    ids = torch.randint(2, VOCAB, (B, N), generator=torch.Generator().manual_seed(4))
    return ids.masked_fill(~rows, PAD[family])


def answer(theirs: Any, ids: Tensor, rows: Tensor) -> Tensor:
    out = theirs(ids, attention_mask=rows.long())
    if hasattr(out, "start_logits"):
        return torch.stack([out.start_logits, out.end_logits], -1)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def compare(theirs: Any, folder: Path, ids: Tensor, rows: Tensor) -> float:
    """How far answers and gradients are apart at most."""
    theirs.save_pretrained(folder)
    model = ct.from_hf(folder)
    names = ct.convert.huggingface.hf_names(folder)
    prefixed = any(name.startswith(names.prefix) for name in load_file(folder / "model.safetensors"))
    wanted = answer(theirs, ids, rows)
    ours = model(ct.Batch(ids, observed=rows))
    towards = numbers(*wanted.shape, dtype=wanted.dtype, seed=9)
    if wanted.dim() == 3:
        towards = towards * rows[..., None]
        wanted = wanted * rows[..., None]
    got = gradients((ours * towards).sum(), dict(model.named_parameters()))
    expected = gradients((wanted * towards).sum(), dict(theirs.named_parameters(remove_duplicate=False)))
    return max(gap(ours, wanted), worst(names.store(got, prefixed), of_ours(names, expected)))


SIDES = [(*case, "right") for case in CASES]
SIDES += [(*case, "left") for case in CASES if case[1] != "ForSequenceClassification"]


@pytest.mark.parametrize(("family", "head", "side"), SIDES)
def test_answers_and_gradients(tmp_path: Path, family: str, head: str, side: str) -> None:
    rows = RIGHT if side == "right" else RIGHT.flip(1)
    theirs = hugging(family, head)
    assert compare(theirs, tmp_path, text(family, rows), rows) <= 1e-12


@pytest.mark.parametrize("family", ["Bert", "Roberta", "DistilBert"])
def test_a_class_is_that_of_the_text_alone_wherever_the_padding_is(family: str) -> None:
    model = ct.from_hf(hugging(family, "ForSequenceClassification"))
    ids = text(family, RIGHT)
    alone = model(ids[:1, : N - 3])
    assert gap(model(ct.Batch(ids, observed=RIGHT))[:1], alone) <= 1e-13
    if family == "Roberta":  # its positions follow the padding; those of the others are counted from the left
        left = ct.Batch(ids.roll(3, 1)[:1], observed=RIGHT.flip(1)[:1])
        assert gap(model(left), alone) <= 1e-13


@pytest.mark.parametrize(("family", "head"), [("Roberta", "ForMaskedLM"), ("DistilBert", "ForSequenceClassification")])
def test_float32_and_eager_attention(tmp_path: Path, family: str, head: str) -> None:
    theirs = hugging(family, head, torch.float32, attn_implementation="eager")
    assert compare(theirs, tmp_path, text(family, RIGHT), RIGHT) <= EXACT[torch.float32]


@EACH
def test_folders_go_both_ways(tmp_path: Path, family: str, head: str) -> None:
    theirs = hugging(family, head)
    theirs.save_pretrained(tmp_path / "theirs")
    model = ct.from_hf(tmp_path / "theirs")
    folder = ct.to_hf(model, tmp_path / "ours")
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    prefix = f"{family.lower()}."
    plain = {name.removeprefix(prefix): tensor for name, tensor in stored.items()}
    written = {name.removeprefix(prefix): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    assert {name for name in plain if not name.startswith("pooler")} <= set(written)
    assert all(torch.equal(tensor, plain[name]) for name, tensor in written.items())
    again = aligned(getattr(transformers, family + head).from_pretrained(folder, dtype=torch.float64).eval())
    ids = text(family, RIGHT)
    assert torch.equal(answer(again, ids, RIGHT), answer(theirs, ids, RIGHT))
    assert to_plain(ct.from_hf(folder)) == to_plain(model)
    if head in ("ForSequenceClassification", "ForTokenClassification"):
        assert again.config.id2label == LABELS
        assert model.readout.labels == tuple(LABELS.values())


def test_electra_with_words_as_wide_as_its_states(tmp_path: Path) -> None:
    theirs = hugging("Electra", "ForSequenceClassification", embedding_size=16)
    assert compare(theirs, tmp_path, text("Electra", RIGHT), RIGHT) <= 1e-12


def test_xlm_roberta_is_read_as_roberta(tmp_path: Path) -> None:
    theirs = hugging("XLMRoberta", "ForMaskedLM")
    assert compare(theirs, tmp_path, text("XLMRoberta", RIGHT), RIGHT) <= 1e-12


def test_old_token_classifiers_have_a_pooler_that_is_not_used(tmp_path: Path) -> None:
    theirs = hugging("Bert", "ForTokenClassification")
    theirs.bert.pooler = hugging("Bert", "Model").pooler
    theirs.save_pretrained(tmp_path)
    assert ct.from_hf(tmp_path).readout.answers_each_token


@pytest.mark.parametrize("sizes", [{"d": 8}, {"h": 2}, {"e": 2}, {"m": 12}, {"z": 2}], ids=str)
def test_another_discretisation(sizes: dict[str, int]) -> None:
    model = stirred(zoo.roberta(VOCAB, d=16, heads=4, depth=3, context=CONTEXT, m=24, labels=("no", "yes")))
    ids = text("Roberta", RIGHT)
    got = model.at(**sizes)(ct.Batch(ids, observed=RIGHT))
    assert got.shape == (B, 2)
    assert gap(got, model(ct.Batch(ids, observed=RIGHT))) > 1e-6
    grads = gradients(got.square().sum(), dict(model.named_parameters()))
    assert all(grad.isfinite().all() for grad in grads.values())


# --- a real classifier -----------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="seven million weights are fetched, and run by two libraries")
def test_a_classifier_of_chemical_reactions(tmp_path: Path) -> None:
    """Fifty classes of reactions; its config.json names two, as files of its time do."""
    try:
        folder = real_models.rxnfp("classifier")
    except Unavailable as why:
        pytest.skip(str(why))
    model = ct.from_hf(folder, dtype=torch.float64)
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder, dtype=torch.float64).eval()
    ids = torch.randint(5, 591, (B, 40), generator=torch.Generator().manual_seed(1))
    rows = torch.arange(40) < torch.tensor([[29], [40]])
    with torch.no_grad():
        wanted = theirs(ids.masked_fill(~rows, 0), attention_mask=rows.long()).logits
        got = model(ct.Batch(ids, observed=rows))
    assert got.shape == (B, 50)
    assert gap(got, wanted) <= 1e-12
    again = ct.from_hf(ct.to_hf(model, tmp_path))
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in again.state_dict().items())


# --- bad input -------------------------------------------------------------------------------------------------------


def changed(folder: Path, **entries: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = zoo.distilbert(VOCAB, d=8, heads=2, depth=1, context=8, labels=("no", "yes"))
    return ct.to_hf(model, tmp_path_factory.mktemp("classifier"))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"id2label": {"0": "no", "2": "yes"}}, "numbers the classes 0, 1, …, got 0, 2"),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "classifier.weight needs shape [3, 8]"),
        ({"activation": "tanh"}, "this activation is not known, got 'tanh'"),
        ({"id2label": None, "num_labels": 0}, "num_labels takes a whole number ≥ 1, got 0"),
        ({"model_type": "robert"}, "Did you mean 'roberta'?"),
    ],
)
def test_other_classifiers_are_refused(classifier: Path, entries: dict[str, Any], said: str) -> None:
    kept = (classifier / "config.json").read_text()
    with refused(CheckpointError, said, ""):
        ct.from_hf(changed(classifier, **entries))
    (classifier / "config.json").write_text(kept)


def test_other_heads_and_tables_are_refused(tmp_path: Path) -> None:
    with refused(ConfigError, "a model has one head", "Leave one of them out."):
        zoo.bert(11, d=8, heads=2, depth=1, context=8, masked_lm=True, labels=2)
    folder = ct.to_hf(zoo.roberta(11, d=8, heads=2, depth=1, context=8), tmp_path)
    with refused(CheckpointError, "positions begin at 10", "save_pretrained"):
        ct.from_hf(changed(folder, pad_token_id=9))
