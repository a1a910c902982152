"""L8: ``continua inspect PATH --dynamics`` on Hugging Face folders, saved models and runs."""

import json

import pytest
from typer.testing import CliRunner

import continua as ct
from continua.cli import app
from continua.errors import CheckpointError, ConfigError, ShapeError
from continua.models.build import continuous_parts
from tests.cli.test_cli import small_bert
from tests.commands import typed
from tests.refusals import refused
from tools import real_models
from tools.packages import Unavailable

RUN = CliRunner()
FIGURES = ("cosines", "energy", "jumps", "ladder", "spectra")


def said(*words):
    done = RUN.invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def undrawn(monkeypatch):
    """What was found, without the time that pictures take."""
    kept = []

    def keep(found, out):
        kept.append(found)
        return [out / "nothing.png"]

    monkeypatch.setattr("continua.cli.dynamics.draw", keep)
    return kept


def written(folder, *more):
    for name in (*FIGURES, *more):
        assert (folder / f"{name}.png").stat().st_size > 10_000
    return json.loads((folder / "dynamics.json").read_text(encoding="utf-8"))


@pytest.mark.spec("L8", "L10")
def test_a_hugging_face_folder_and_a_text(tmp_path):
    folder, out = small_bert(tmp_path / "model"), tmp_path / "out"
    told = said("inspect", folder, "--dynamics", "--text", "the cat sat the cat", "--out", out)
    for words in ("7 tokens of 1 texts, post-norm", "tokens over depth", "null: drift", "feed-forward", "1.000"):
        assert words in told
    assert str(out / "ladder.png") in told
    found = written(out)
    assert len(found["dynamics"]["states"]) == 3
    assert min(layer["rungs"][-1]["r2"] for layer in found["ladder"]["layers"]) > 1 - 1e-12
    assert len(found["spectra"]) == 4


@pytest.mark.spec("L8")
@pytest.mark.usefixtures("undrawn")
def test_a_default_text_is_read(tmp_path):
    told = said("inspect", small_bert(tmp_path / "model"), "--dynamics", "--out", tmp_path / "out")
    assert "of 4 texts" in told


@pytest.mark.spec("L8")
def test_a_saved_model_without_a_tokeniser_reads_random_tokens(tmp_path, undrawn):
    ct.Transformer.continuous(vocab=8, at=ct.at(d=8, h=2, z=2), context=16).save(tmp_path / "model")
    told = said("inspect", tmp_path / "model", "--dynamics", "--at", "z=3", "--out", tmp_path / "out")
    for words in ("4 texts of 32 random tokens", "cut after 16 tokens", "64 tokens of 4 texts, pre-norm"):
        assert words in " ".join(told.split())
    assert len(undrawn[0].dynamics.moves) == 3


@pytest.mark.spec("L8")
def test_one_shared_layer_is_iterated_too(tmp_path):
    model = ct.zoo.albert(12, table_width=4, d=8, heads=2, depth=2, context=32, masked_lm=True)
    model.save(tmp_path / "model")
    words = ["[PAD]", "[CLS]", "[SEP]", "C", "Cl", "O", ">>", "."]
    (tmp_path / "model" / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    told = said("inspect", tmp_path / "model", "--dynamics", "--text", "CCl.O>>CO", "--out", tmp_path / "out")
    assert "9 tokens of 1 texts" in told  # [CLS] C Cl . O >> C O [SEP]
    assert "beyond its 2 times" in told
    assert "the layer in parts" in told
    assert len(written(tmp_path / "out", "iteration")["iteration"]["beats"]) == 9


@pytest.mark.spec("L8")
@pytest.mark.usefixtures("undrawn")
def test_another_solver_is_read_as_layers(tmp_path):
    native = ct.at(d=8, h=2, z=ct.Fixed(3, ct.RK4()))
    ct.Transformer.continuous(vocab=8, at=native, context=32).save(tmp_path / "model")
    told = said("inspect", tmp_path / "model", "--dynamics", "--out", tmp_path / "out")
    assert "3 layers (Lie–Trotter steps) instead of 3 steps of RK4" in " ".join(told.split())


@pytest.mark.spec("L8")
def test_the_encoder_of_two_is_looked_at(tmp_path, undrawn):
    ct.zoo.t5(vocab=16, d=8, heads=2, depth=2, e=4).save(tmp_path / "model")
    told = said("inspect", tmp_path / "model", "--dynamics", "--out", tmp_path / "out")
    assert "its encoder is looked at" in told
    assert undrawn[0].ladder.top > 1 - 1e-12


@pytest.mark.spec("L8", "L9")
def test_a_run_of_text_is_read_with_its_own_characters(tmp_path, undrawn):
    text = tmp_path / "text.txt"
    text.write_text("a cat sat on the mat and the dog sat too. " * 60, encoding="utf-8")
    sizes = ("steps=2", "d=16", "heads=2", "depth=2", "context=32", "batch=2")
    said("fit", "text", "--text", text, "--folder", tmp_path / "run", *(w for s in sizes for w in ("--set", s)))
    told = said("inspect", tmp_path / "run", "--dynamics", "--out", tmp_path / "out")
    for words in ("cut after 32 tokens", "of 4 texts, pre-norm"):
        assert words in told
    assert undrawn[0].ladder.top > 1 - 1e-12
    with refused(ConfigError, "'Z'", "characters of the training text"):
        said("inspect", tmp_path / "run", "--dynamics", "--text", "Zebra", "--out", tmp_path / "out")


@pytest.mark.spec("L8")
@pytest.mark.usefixtures("undrawn")
def test_mistakes_are_answered_with_a_sentence(tmp_path):
    folder = small_bert(tmp_path / "model")
    with refused(ShapeError, "'  '", "leave it out"):
        said("inspect", folder, "--dynamics", "--text", "  ")
    with refused(ConfigError, "--text alone", "Add --dynamics"):
        said("inspect", folder, "--text", "cat")
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    with refused(CheckpointError, "got", "Fetch the file again"):
        said("inspect", folder, "--dynamics")
    (folder / "tokenizer.json").unlink()
    with refused(CheckpointError, "no tokenizer.json", "leave --text out"):
        said("inspect", folder, "--dynamics", "--text", "cat")
    (folder / "vocab.txt").write_text("C\nO\n", encoding="utf-8")
    with refused(ShapeError, "'x'", "vocab.txt"):
        said("inspect", folder, "--dynamics", "--text", "COx")
    with refused(ShapeError, "1 of one", "longer texts"):
        said("inspect", folder, "--dynamics", "--text", "C")
    pixels = ct.models.Pixels(8, 8, patch=(4, 4))
    ct.zoo.vit(pixels, d=16, heads=2, depth=2, labels=3).save(tmp_path / "vit")
    with refused(ConfigError, "Patches", "takes any batch"):
        said("inspect", tmp_path / "vit", "--dynamics")
    ct.zoo.gat(channels=3, out=2, d=16, heads=2).save(tmp_path / "gat")
    with refused(ConfigError, "Observations", "takes any batch"):
        said("inspect", tmp_path / "gat", "--dynamics")


@pytest.mark.spec("L8")
def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "out").write_text("a file", encoding="utf-8")
    with refused(ConfigError, "exists", "--out FOLDER"):
        said("inspect", small_bert(tmp_path / "model"), "--dynamics", "--text", "the cat", "--out", tmp_path / "out")


@pytest.mark.spec("L8")
def test_depth_by_tolerance_is_read_as_layers(tmp_path, undrawn):
    parts = continuous_parts(vocab=8, at=ct.at(d=8, h=2, z=2), context=32)
    native = parts["native"].replace(z=ct.Adaptive(ct.Dopri5(), rtol=1e-3))
    ct.Transformer(**{**parts, "native": native}).save(tmp_path / "model")
    assert "2 layers (Lie–Trotter steps)" in said("inspect", tmp_path / "model", "--dynamics", "--out", tmp_path)
    assert undrawn[0].ladder.top > 1 - 1e-12


@pytest.mark.spec("L8")
def test_no_traceback(tmp_path):
    done = typed("inspect", str(tmp_path), "--dynamics")
    assert done.returncode == 2
    assert "continua:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.spec("L8")
@pytest.mark.usefixtures("undrawn")
def test_word_pieces_of_a_plain_vocabulary(tmp_path):
    pytest.importorskip("tokenizers")
    folder = small_bert(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "##s", "the", "sat"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    told = said("inspect", folder, "--dynamics", "--text", "The cats sat", "--out", tmp_path / "out")
    assert "6 tokens of 1 texts" in told  # [CLS] the cat ##s sat [SEP]


@pytest.mark.slow(reason="a real model, 49 times its layer")
@pytest.mark.spec("L8")
def test_rxnmapper(tmp_path, undrawn):
    """The real ALBERT: reactions are read without being asked for, and its [CLS] is left out."""
    try:
        folder = real_models.rxnmapper()
    except Unavailable as why:
        pytest.skip(str(why))
    reaction = "CC(=O)OC(C)=O.Nc1ccc(O)cc1.O>>CC(=O)Nc1ccc(O)cc1"
    told = said("inspect", folder, "--dynamics", "--text", reaction, "--out", tmp_path / "out")
    assert "left out as attention sinks: 1 ([CLS])" in told
    assert len(undrawn[0].iteration.beats) == 49
    assert min(state.rank for state in undrawn[0].dynamics.states) > 10
