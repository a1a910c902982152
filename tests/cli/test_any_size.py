"""A pretrained model at other sizes, as a user types it: lift, discretise, drift."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import continua as ct
from continua import lab
from continua.cli.drift import show
from continua.cli.texts import lines_of, read_texts
from continua.config import from_plain
from continua.convert.tokenizer import read_tokeniser
from continua.models import Batch
from tests.commands import typed
from tests.measure import gap

WORDS = ["[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "mat", "a", "dog"]
SINGLE = 1e-5


def tokeniser(folder: Path, begins: str = "[CLS] $A [SEP]") -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=begins, special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    made.enable_padding(length=20)
    made.save(str(folder / "tokenizer.json"))


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A Hugging Face folder of a random encoder with 4 heads and a feed-forward map of 32."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=10, hidden_size=16, num_attention_heads=4, num_hidden_layers=3, intermediate_size=32,
        max_position_embeddings=24,
    )  # fmt: skip
    folder = tmp_path / "bert"
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokeniser(folder)
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Lines of known words, all different."""
    drawn = random.Random(0)
    lines = [" ".join(drawn.choice(WORDS[3:]) for _ in range(drawn.randint(6, 12))) for _ in range(60)]
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.spec("B11")
def test_elastic_teaches_sizes_and_its_run_is_a_model_of_any_size(bert, texts, tmp_path) -> None:
    run = tmp_path / "run"
    command = ["elastic", str(bert), "--texts", str(texts), "--minutes", "0.0001", "--at", "m=16,h=2", "--at", "d=8"]
    first = typed(*command, "--folder", str(run))
    said = first.stdout
    assert first.returncode == 0, first.stderr
    assert all(part in said for part in ("done", "native", "cosine", "h=2 m=16", "sizes.png")), said
    assert (run / "sizes.png").stat().st_size > 1000
    plain = ct.from_hf(bert)
    taught = ct.Run.open(run).model()
    assert gap(taught(words()), plain(words())) < SINGLE
    typed("discretise", str(run), str(tmp_path / "small"), "--at", "m=16,h=2")
    small = ct.load(tmp_path / "small")
    assert gap(small(words()), taught.at(m=16, h=2)(words())) < SINGLE
    assert "done" in typed(*command, "--folder", str(run)).stdout  # nothing is left to do, and nothing is lost


@pytest.mark.spec("B11")
def test_elastic_computes_lessons_in_the_precision_that_is_asked_for(bert, texts, tmp_path) -> None:
    command = ["elastic", str(bert), "--texts", str(texts), "--minutes", "0.0001", "--at", "m=16,h=2"]
    half = typed(*command, "--precision", "bfloat16", "--folder", str(tmp_path / "half"))
    assert half.returncode == 0, half.stderr
    assert from_plain(ct.Run.open(tmp_path / "half").about["training"]).precision == "bfloat16"
    wrong = typed(*command, "--precision", "bfloat", "--folder", str(tmp_path / "none"))
    assert wrong.returncode != 0
    assert "bfloat16" in wrong.stderr + wrong.stdout
    assert not (tmp_path / "none").exists()


@pytest.mark.spec("B11")
def test_elastic_goes_on_with_a_run_that_was_stopped_to_the_same_bits(bert, texts, tmp_path) -> None:
    tokens = read_tokeniser(bert)
    known = read_texts(texts, tokens)
    lines = [line for line in lines_of(texts) if line not in set(known.held_out)]

    def taught(name: str, until: int) -> None:
        def stop(progress: Any) -> None:
            if progress.step == until:
                raise KeyboardInterrupt

        sizes = [ct.at(m=16, h=2)]
        ct.distil(ct.from_hf(bert), lines, tokens=tokens, sizes=sizes, steps=4, run=tmp_path / name, watch=stop)

    taught("whole", 99)
    taught("stopped", 2)
    assert len(ct.Run.open(tmp_path / "stopped").history()) < 4
    done = typed("elastic", str(bert), "--texts", str(texts), "--folder", str(tmp_path / "stopped"))
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
    whole = ct.Run.open(tmp_path / "whole").model("last").state_dict()
    ours = ct.Run.open(tmp_path / "stopped").model("last").state_dict()
    assert all(torch.equal(ours[name], value) for name, value in whole.items())


def words() -> Batch:
    there = torch.ones(2, 6, dtype=torch.bool)
    there[1, 4:] = False
    return Batch(torch.tensor([[1, 3, 4, 5, 9, 2], [1, 8, 9, 2, 0, 0]]), observed=there)


@pytest.mark.spec("B2", "B11")
def test_a_lifted_folder_is_the_model_at_its_own_size_and_keeps_its_tokeniser(bert, texts, tmp_path) -> None:
    out = tmp_path / "new" / "lifted"
    done = typed("lift", str(bert), str(out), "--texts", str(texts))
    assert done.returncode == 0, done.stderr
    assert "calibrated with 45 texts" in done.stdout
    assert gap(ct.load(out)(words()), ct.from_hf(bert)(words())) <= SINGLE
    assert (out / "tokenizer.json").read_bytes() == (bert / "tokenizer.json").read_bytes()
    assert sorted(path.name for path in out.parent.iterdir()) == ["lifted"], "nothing else is left there"
    again = typed("lift", str(out), str(tmp_path / "again"))
    assert (again.returncode, "is on continuous axes" in again.stderr) == (2, True)


@pytest.mark.spec("B2", "B11")
def test_a_lifted_folder_remembers_which_tokens_begin_and_end_a_text(tmp_path) -> None:
    torch.manual_seed(0)
    folder = tmp_path / "gpt"
    ct.to_hf(ct.zoo.gpt2(vocab=10, d=16, heads=4, depth=2, context=32), folder, bos=1, eos=2)
    assert typed("lift", str(folder), str(tmp_path / "lifted"), "--raw").returncode == 0
    done = typed("discretise", str(tmp_path / "lifted"), str(tmp_path / "small"), "--at", "m=32", "--hf")
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "small" / "config.json").read_text(encoding="utf-8"))
    assert (said["bos_token_id"], said["eos_token_id"]) == (1, 2)


@pytest.mark.spec("B2")
def test_a_raw_lift_says_that_it_is_not_calibrated(bert, tmp_path) -> None:
    done = typed("lift", str(bert), str(tmp_path / "lifted"), "--raw")
    assert (done.returncode, "Not calibrated" in done.stdout) == (0, True)
    assert gap(ct.load(tmp_path / "lifted")(words()), ct.from_hf(bert)(words())) <= SINGLE


@pytest.mark.spec("B2", "B11")
@pytest.mark.parametrize(("size", "padded"), [("m=16,h=2", True), ("d=8,h=2,m=16", False)])
def test_a_small_folder_for_hugging_face_has_the_numbers_of_the_view(bert, texts, tmp_path, size, padded) -> None:
    transformers = pytest.importorskip("transformers")
    lifted = tmp_path / "lifted"
    small = tmp_path / "small"
    assert typed("lift", str(bert), str(lifted), "--texts", str(texts)).returncode == 0
    done = typed("discretise", str(lifted), str(small), "--at", size, "--hf")
    assert done.returncode == 0, done.stderr
    assert ("padded with zeros" in done.stdout) is padded
    theirs = transformers.AutoModel.from_pretrained(small, add_pooling_layer=False).eval()
    batch = words()
    with torch.no_grad():
        states = theirs(batch.values, attention_mask=batch.observed.long()).last_hidden_state
        sizes = {item[0]: int(item[2:]) for item in size.split(",")}
        wanted = ct.load(lifted).at(**sizes)(batch)
    assert gap(states[batch.observed], wanted[batch.observed]) <= SINGLE
    assert transformers.AutoTokenizer.from_pretrained(small)("the cat")["input_ids"][:4] == [1, 3, 4, 2]
    plain = typed("discretise", str(bert), str(tmp_path / "plain"), "--at", size, "--texts", str(texts))
    assert plain.returncode == 0, plain.stderr
    assert gap(ct.load(tmp_path / "plain")(batch), wanted) <= 10 * SINGLE, "the same in one step"


@pytest.mark.spec("B2", "B11")
def test_drift_prints_and_draws_what_is_lost(bert, texts, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = typed("drift", str(bert), "--texts", str(texts))
    assert done.returncode == 0, done.stderr
    for said in ("cosine", "native", "m=16", "m=8", "h=2 m=16", "z=", "GFLOP", "15 texts held out"):
        assert said in done.stdout
    assert (tmp_path / "runs/drift/bert.png").stat().st_size > 20_000
    out = tmp_path / "own.png"
    done = typed("drift", str(bert), "--texts", str(texts), "--at", "m=24", "--at", "d=8,h=2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert ("m=24" in done.stdout, "d=8 h=2 m=16" in done.stdout, "z=" in done.stdout) == (True, True, False)
    assert out.is_file()


@pytest.mark.spec("B11")
def test_drift_of_a_language_model_is_a_divergence(texts, tmp_path) -> None:
    torch.manual_seed(0)
    folder = ct.zoo.gpt2(vocab=10, d=16, heads=4, depth=2, context=32).save(tmp_path / "gpt")
    tokeniser(folder, "$A")
    done = typed("drift", str(folder), "--texts", str(texts), "--at", "m=32", "--out", str(tmp_path / "own.png"))
    assert done.returncode == 0, done.stderr
    assert "KL" in done.stdout
    assert "nats" in done.stdout


@pytest.mark.spec("B11")
def test_drift_of_a_run_reads_docstrings_with_the_tokens_of_the_run(tmp_path) -> None:
    corpus = tmp_path / "book.txt"
    corpus.write_text("the quick brown fox jumps over the lazy dog. Return a list of what is there. " * 40)
    run = tmp_path / "run"
    settings = ["steps=2", "d=16", "heads=2", "depth=2", "context=32", "batch=2"]
    done = typed(
        "fit", "text", "--text", str(corpus), "--folder", str(run), *(w for s in settings for w in ("--set", s))
    )
    assert done.returncode == 0, done.stderr
    done = typed("drift", str(run), "--at", "m=32", "--out", str(tmp_path / "own.png"))
    assert done.returncode == 0, done.stderr
    assert "KL" in done.stdout


def test_refusals_are_one_sentence_and_leave_nothing(bert, texts, tmp_path) -> None:
    few = tmp_path / "few.txt"
    few.write_text("the cat\na dog\n", encoding="utf-8")
    short = tmp_path / "short.txt"
    short.write_text("\n".join(["the", "cat", "sat", "on", "mat", "a", "dog", "the cat", "a cat", "a dog", "a", "sat"]))
    out = str(tmp_path / "out")
    cases = [
        (("lift", str(bert), out, "--texts", str(tmp_path / "none.txt")), "cannot be read as text"),
        (("lift", str(bert), out, "--texts", str(few)), "too few texts"),
        (("lift", str(bert), out, "--texts", str(short)), "need"),
        (("lift", str(bert), out, "--texts", str(texts), "--raw"), "Leave one of them out"),
        (("lift", str(bert), str(bert)), "Choose another name"),
        (("lift", str(tmp_path / "nowhere"), out), "where no folder is"),
        (("discretise", str(bert), out, "--at", "m=x"), "whole numbers"),
        (("discretise", str(bert), out, "--at", "h=0"), "h"),
        (("discretise", str(bert), out, "--at", "d=10,h=3", "--hf", "--texts", str(texts)), "no place"),
        (("drift", str(bert), "--at", "q=3", "--out", out), "q"),
        (("drift", str(bert), "--texts", str(few), "--out", out), "too few texts"),
    ]
    for asked, said in cases:
        done = typed(*asked)
        assert (done.returncode, said in done.stderr) == (2, True), (asked, done.stderr, done.stdout)
        assert "Traceback" not in done.stderr
        assert not Path(out).exists()
    (bert / "tokenizer.json").unlink()
    done = typed("lift", str(bert), out)
    assert (done.returncode, "Copy the tokenizer.json" in done.stderr) == (2, True)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.spec("B11")
@torch.no_grad()
def test_cosines_and_divergences_are_those_of_the_answers() -> None:
    """Against the definitions, in float64, with padding and fewer coordinates."""
    torch.manual_seed(0)
    model = ct.lift(ct.zoo.bert(vocab=10, d=16, heads=4, depth=2, context=8).double())
    batch = words()
    [native, half, narrow] = lab.drift(model, [batch], [ct.at(m=8), ct.at(d=8)]).points
    assert native.likeness == 1.0
    wanted = model(batch)
    for point in (half, narrow):
        ours = model.at(point.at)(batch)
        places = slice(None)
        if ours.shape[-1] == 8:
            nodes = model.structure(model.settle(point.at)).grids.d.nodes[:, 0]
            all_nodes = model.structure(model.native).grids.d.nodes[:, 0].tolist()
            places = [all_nodes.index(node) for node in nodes.tolist()]
        cosines = []
        for row, length in enumerate((6, 4)):
            one = ours[row, :length].mean(0)
            other = wanted[row, :length].mean(0)[places]
            cosines.append(float(one @ other / one.norm() / other.norm()))
        assert abs(point.likeness - sum(cosines) / 2) < 1e-12
    assert narrow.bytes < half.bytes < native.bytes
    assert narrow.flops < half.flops < native.flops
    gpt = ct.lift(ct.zoo.gpt2(vocab=10, d=16, heads=4, depth=2, context=8))
    found = lab.drift(gpt, [batch], [ct.at(m=8)])
    p = gpt(batch)[batch.observed].softmax(-1)
    q = gpt.at(m=8)(batch)[batch.observed].softmax(-1)
    assert abs(found.points[1].likeness - float((p * (p / q).log()).sum(-1).mean())) < 1e-6


def test_the_table_fits_a_narrow_screen() -> None:
    model = ct.lift(ct.zoo.bert(vocab=10, d=16, heads=4, depth=4, context=8))
    found = lab.drift(model, [words()], [ct.at(m=8, h=2), ct.at(z=3)])
    console = Console(width=80, record=True)
    show(console, found, "bert")
    assert "…" not in console.export_text()


def test_sizes_are_called_as_they_are_typed() -> None:
    model = ct.lift(ct.zoo.gpt2(vocab=10, d=16, heads=4, depth=4, context=8))
    assert [lab.size_name(model, wish) for wish in lab.usual_sizes(model)] == ["m=32", "m=16", "h=2", "h=2 m=32"]
    assert lab.size_name(model, ct.at(z=3)).startswith("z=")
