"""Our tokenisers beside the models that are written for Hugging Face."""

import json

import pytest
import torch

from continua.convert import from_hf, to_hf
from continua.convert.tokenizer import described_as_json
from continua.errors import ConfigError
from continua.models import zoo
from continua.tasks import BytePairs, Characters
from tests.refusals import refused

TEXT = "def f(x):\n    return '→ ünïcode' # [UNK] \\ \"\n\n\tend  "


def small(vocab):
    torch.manual_seed(0)
    return zoo.gpt2(vocab=vocab, d=8, heads=2, depth=1, context=32)


@pytest.mark.finding("N3")
@pytest.mark.parametrize("kind", ["characters", "byte pairs"])
def test_the_written_tokeniser_gives_the_same_numbers(tmp_path, kind):
    library = pytest.importorskip("tokenizers")
    tokens = Characters.of(TEXT) if kind == "characters" else BytePairs.of(TEXT * 20, 280)
    to_hf(small(tokens.size), tmp_path, tokens=tokens)
    made = library.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encoded = made.encode(TEXT)
    assert encoded.ids == tokens.encode(TEXT).tolist()
    assert made.decode(encoded.ids, skip_special_tokens=False) == TEXT
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 32
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["bos_token_id"] is None
    assert config["eos_token_id"] is None
    assert from_hf(tmp_path).embed.vocab == tokens.size


@pytest.mark.finding("N3")
def test_hugging_face_reads_model_and_tokeniser_from_one_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokens = Characters.of(TEXT)
    model = small(tokens.size)
    to_hf(model, tmp_path, tokens=tokens, eos=tokens.alphabet.index("\n"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = theirs(TEXT[:20], return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == tokens.encode(TEXT[:20]).tolist()
    assert theirs.decode(ids[0]) == TEXT[:20]
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert reference.config.eos_token_id == tokens.alphabet.index("\n")
    assert reference.config.bos_token_id is None
    assert (reference(ids).logits - model(ids)).abs().max() < 1e-4


@pytest.mark.finding("N3")
def test_ends_of_a_text_are_tokens_of_the_model(tmp_path):
    to_hf(small(16), tmp_path, bos=1, eos=2)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    with refused(ConfigError, "eos_token_id=16 for 16 tokens", "Leave them out"):
        to_hf(small(16), tmp_path, eos=16)
    with refused(ConfigError, "2 tokens for a table of 16", "own run"):
        to_hf(small(16), tmp_path, tokens=Characters("ab"))


def test_a_tokeniser_of_somebody_else_is_refused():
    class Other:
        size = 3

        def encode(self, text): ...
        def decode(self, ids): ...

    with refused(ConfigError, "got Other", "tokenizer.json of your own"):
        described_as_json(Other())
