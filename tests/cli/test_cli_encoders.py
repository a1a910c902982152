"""What an encoder of Hugging Face says of texts, as a user types it: classify, embed."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import continua as ct
from tests.cli.test_any_size import tokeniser
from tests.commands import typed
from tests.exact import stirred

LINES = ["the cat sat", "a dog on the mat", "the dog", "a cat on a mat on a mat"]
IDS = [[1, 3, 4, 5, 2], [1, 8, 9, 6, 3, 7, 2], [1, 3, 9, 2], [1, 8, 4, 6, 8, 7, 6, 8, 7, 2]]

pytestmark = [pytest.mark.usefixtures("quiet_hugging_face"), pytest.mark.spec("B14")]


def saved(folder: Path, cls: str, **options: Any) -> Any:
    """A random RoBERTa of Hugging Face in a folder with its tokeniser."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=10, hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=32,
        max_position_embeddings=24, pad_token_id=0, type_vocab_size=1, **options,
    )  # fmt: skip
    theirs = stirred(getattr(transformers, cls)(config).eval(), torch.float32)
    theirs.save_pretrained(folder)
    tokeniser(folder)
    return theirs


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n\n".join(LINES) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("classifier")
    labels = {0: "calm", 1: "glad", 2: "sad"}
    theirs = saved(
        folder, "RobertaForSequenceClassification", id2label=labels, label2id={v: k for k, v in labels.items()}
    )
    return folder, theirs


def test_classify_shows_what_hugging_face_says(classifier: tuple[Path, Any], texts: Path, tmp_path: Path) -> None:
    folder, theirs = classifier
    with torch.no_grad():
        wanted = torch.cat([theirs(torch.tensor([ids])).logits for ids in IDS]).softmax(-1)
    shown = typed("classify", str(folder), "--texts", str(texts))
    assert shown.returncode == 0, shown.stderr
    best = [theirs.config.id2label[int(row.argmax())] for row in wanted]
    expected = [f"{name}  {row.max():.3f}  {line}" for name, row, line in zip(best, wanted, LINES, strict=True)]
    assert shown.stdout.splitlines() == expected
    out = tmp_path / "classes.csv"
    assert typed("classify", str(folder), "--texts", str(texts), "--out", str(out)).returncode == 0
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == LINES
    assert [row["label"] for row in rows] == best
    got = torch.tensor([[float(row[name]) for name in ("calm", "glad", "sad")] for row in rows])
    assert (got - wanted).abs().max() <= 1e-5
    smaller = typed("classify", str(folder), "--texts", str(texts), "--at", "z=1")
    assert smaller.returncode == 0
    assert smaller.stdout != shown.stdout


@pytest.mark.parametrize("pool", ["mean", "first", "last"])
def test_embed_writes_what_hugging_face_says(tmp_path: Path, texts: Path, pool: str) -> None:
    theirs = saved(tmp_path / "model", "RobertaForMaskedLM")
    out = tmp_path / "vectors.npz"
    words = ("embed", str(tmp_path / "model"), "--texts", str(texts), "--out", str(out), "--pool", pool, "--normalise")
    done = typed(*words)
    assert done.returncode == 0, done.stderr
    assert "4 texts, 16 numbers each" in done.stdout
    with torch.no_grad():
        states = [theirs.roberta(torch.tensor([ids])).last_hidden_state[0] for ids in IDS]
    taken = {"mean": lambda x: x.mean(0), "first": lambda x: x[0], "last": lambda x: x[-1]}[pool]
    wanted = torch.nn.functional.normalize(torch.stack([taken(x) for x in states]), dim=-1)
    with np.load(out) as found:
        assert found["texts"].tolist() == LINES
        assert (torch.from_numpy(found["embeddings"]) - wanted).abs().max() <= 1e-5


def test_a_language_model_embeds_behind_its_last_norm(tmp_path: Path, texts: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=10, n_embd=16, n_head=4, n_layer=2, n_positions=24)
    theirs = stirred(transformers.GPT2LMHeadModel(config).eval(), torch.float32)
    theirs.save_pretrained(tmp_path / "model")
    tokeniser(tmp_path / "model")
    out = tmp_path / "vectors.npz"
    assert typed("embed", str(tmp_path / "model"), "--texts", str(texts), "--out", str(out)).returncode == 0
    with torch.no_grad():
        wanted = theirs.transformer(torch.tensor([IDS[2]])).last_hidden_state[0].mean(0)
    with np.load(out) as found:
        assert (torch.from_numpy(found["embeddings"][2]) - wanted).abs().max() <= 1e-4


def test_clip_embeds_by_its_tower_of_texts(tmp_path: Path, texts: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 32}
    words = {"vocab_size": 10, "max_position_embeddings": 24, "eos_token_id": 0, **sizes}  # of no text: its last one
    images = {"image_size": 8, "patch_size": 4, **sizes}
    config = transformers.CLIPConfig(text_config=words, vision_config=images, projection_dim=6)
    theirs = stirred(transformers.CLIPModel(config).eval(), torch.float32)
    folder = tmp_path / "model"
    theirs.save_pretrained(folder)
    tokeniser(folder)
    out = tmp_path / "vectors.npz"
    done = typed("embed", str(folder), "--texts", str(texts), "--out", str(out))
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        states = [theirs.text_model(torch.tensor([ids])).last_hidden_state[0, -1] for ids in IDS]
        wanted = theirs.text_projection(torch.stack(states))
    with np.load(out) as found:
        assert (torch.from_numpy(found["embeddings"]) - wanted).abs().max() <= 1e-5
    shown = typed("inspect", str(folder))
    assert shown.returncode == 0, shown.stderr
    assert "images" in shown.stdout
    refused = typed("classify", str(folder), "--texts", str(texts))
    assert refused.returncode != 0
    assert "there are no classes of texts" in " ".join(refused.stderr.split())


def test_bad_input_is_answered_with_a_sentence(classifier: tuple[Path, Any], texts: Path, tmp_path: Path) -> None:
    folder = str(classifier[0])
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    states = tmp_path / "states"
    ct.to_hf(ct.zoo.roberta(10, d=8, heads=2, depth=1, context=20), states)
    tokeniser(states)
    bare = ct.to_hf(ct.zoo.roberta(10, d=8, heads=2, depth=1, context=20, labels=2), tmp_path / "bare")
    for words, said in (
        (("classify", folder, "--texts", str(tmp_path / "none")), "cannot be read as text"),
        (("classify", folder, "--texts", str(empty)), "has no text"),
        (("classify", str(states), "--texts", str(texts)), "there are no classes of texts"),
        (("classify", str(bare), "--texts", str(texts)), "a text needs a tokeniser"),
        (("classify", str(tmp_path / "nowhere"), "--texts", str(texts)), "nowhere"),
        (("classify", folder, "--texts", str(texts), "--out", str(tmp_path / "a.txt")), "a .csv is written"),
        (("embed", folder, "--texts", str(texts), "--pool", "max"), "--pool is mean, first or last"),
        (("embed", folder, "--texts", str(texts), "--out", str(tmp_path / "a.csv")), "a .npz is written"),
    ):
        done = typed(*words)
        assert done.returncode != 0, words
        assert said in " ".join(done.stderr.split()), done.stderr
        assert "Traceback" not in done.stderr
