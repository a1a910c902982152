"""The command line as a user meets it."""

import subprocess
import sys

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import continua as ct
from continua.cli import app
from continua.cli.named import named
from tests.commands import command, typed

RUN = CliRunner()


def test_help_explains_the_commands_without_importing_torch():
    code = (
        "import sys\nfrom continua.cli import app\ntry:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout
    assert "inspect" in done.stdout


def test_help_shows_every_command_in_a_panel_of_its_kind():
    shown = RUN.invoke(app, ["--help"], env={"COLUMNS": "100"}).output
    panels = ("Begin", "Train", "Other sizes", "Use", "Look inside", "Ship")
    places = [shown.index(f"─ {panel} ─") for panel in panels]
    assert places == sorted(places)
    assert "─ Commands ─" not in shown
    for name in get_command(app).commands:
        assert f"│ {name} " in shown[places[0] :]


@pytest.mark.parametrize(
    "words", [["--help"], [], ["nonsense"], ["fti"], ["fit", "--help"], ["simulate"], ["data", "build"]]
)
def test_commands_that_are_not_named_need_no_options(words):
    whole = RUN.invoke(app, words)
    quick = RUN.invoke(named(app, words), words)
    assert (quick.output, quick.exit_code) == (whole.output, whole.exit_code)
    assert sum(len(command.params) for command in get_command(named(app, ["fit"])).commands.values()) < 30


def test_version_is_the_package_version():
    assert ct.__version__ in RUN.invoke(app, ["--version"]).output


def test_check_prints_both_tables_and_draws(tmp_path):
    done = RUN.invoke(app, ["check", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for word in ("Exactness", "GPT-2", "BERT", "Refinement", "RK4", "spectral"):
        assert word in done.output
    assert (tmp_path / "refinement.png").stat().st_size > 20_000
    assert ct.load(tmp_path / "model")(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 96)


@pytest.mark.spec("M10")
def test_inspect_tells_axes_parts_and_fields(tmp_path):
    ct.Transformer.continuous(vocab=8, at=ct.at(d=8, h=2, z=2)).save(tmp_path)
    done = RUN.invoke(app, ["inspect", str(tmp_path), "--at", "d=4,z=3"])
    assert done.exit_code == 0, done.output
    for words in ("4 nodes", "weight 2 each", "3 steps", "Attention", "Legendre"):
        assert words in done.output


def test_inspect_reads_hugging_face_folders(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=32, n_embd=8, n_head=2, n_layer=2, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    done = RUN.invoke(app, ["inspect", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "Counting on Points" in done.output


def small_bert(folder):
    """A Hugging Face folder with a tokeniser of whole words."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat"])}
    config = transformers.BertConfig(
        vocab_size=8, hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=16
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.spec("A11")
def test_inspect_shows_what_attention_does_with_a_text(tmp_path):
    folder = small_bert(tmp_path / "model")
    words = ["inspect", str(folder), "--attention", "the cat sat", "--out", str(tmp_path / "pictures")]
    done = RUN.invoke(app, words)
    assert done.exit_code == 0, done.output
    for said in ("5 tokens: [CLS] the cat sat [SEP]", "4 heads:", "clearest heads", "entropy", "previous"):
        assert said in done.output
    for name in ("attention", "patterns", "entropy", "rollout"):
        assert (tmp_path / "pictures" / f"{name}.png").stat().st_size > 10_000


def test_inspect_attention_answers_mistakes_with_a_sentence(tmp_path):
    folder = small_bert(tmp_path / "model")
    done = typed("inspect", str(folder), "--attention", "  ")
    assert (done.returncode, "needs a text" in done.stderr) == (2, True)
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    done = typed("inspect", str(folder), "--attention", "cat")
    assert (done.returncode, "is not a tokeniser" in done.stderr) == (2, True)
    (folder / "tokenizer.json").unlink()
    done = typed("inspect", str(folder), "--attention", "cat")
    assert (done.returncode, "Copy the tokenizer.json" in done.stderr) == (2, True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("way", "words", "said"),
    [
        (command, ("inspect", "nowhere"), "Give a run of continua fit, a folder of model.save()"),
        (typed, ("inspect", "nowhere"), "Give a run of continua fit, a folder of model.save()"),
        (typed, ("inspect", "nowhere", "--at", "d=x"), "continua:"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(way, words, said):
    done = way(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
