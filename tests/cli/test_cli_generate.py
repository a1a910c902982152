"""continua generate on folders of Hugging Face: decoders and encoder–decoders of every family, with a cache (B14)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import continua as ct
from continua.cli.generate import texts
from continua.convert.tokenizer import Pieces
from tests.commands import typed
from tests.convert.test_decoders import theirs_of
from tests.convert.test_encoder_decoders import hugging
from tests.convert.test_hugging_face import VOCAB, gpt2
from tests.exact import stirred
from tests.lazy import Lazily

transformers = Lazily("transformers")
tokenizers = Lazily("tokenizers")
pytestmark = [pytest.mark.usefixtures("quiet_hugging_face"), pytest.mark.spec("B14")]

PROMPT = "w5 w9 w11"
IDS = torch.tensor([[5, 9, 11]])
NAMES = (
    *("llama 3", "mistral", "qwen2", "qwen3", "gpt_neox", "opt", "gemma2"),
    *("gemma3", "phi3", "smollm3", "mixtral", "qwen3_moe", "gptj", "falcon, 7B"),
)


def words(folder: Path, count: int = VOCAB) -> Path:
    """A tokeniser of the words w0, w1, …"""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return folder


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=4,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return stirred(transformers.T5ForConditionalGeneration(config).eval(), torch.float32)


def saved(theirs: Any, folder: Path) -> Path:
    theirs.save_pretrained(folder)
    return words(folder)


def greedy(folder: Path, *more: str) -> str:
    done = typed("generate", str(folder), "--prompt", PROMPT, "--tokens", "6", "--temperature", "0", *more)
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


def said(ids: torch.Tensor) -> str:
    return " ".join(f"w{int(i)}" for i in ids)


@pytest.mark.parametrize("name", [*NAMES, "gpt2"])
def test_decoders_write_what_hugging_face_writes(tmp_path: Path, name: str) -> None:
    theirs = gpt2(dtype=torch.float32) if name == "gpt2" else theirs_of(name, torch.float32)
    folder = saved(theirs, tmp_path)
    wanted = theirs.generate(IDS, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)[0]
    last = int(wanted[-3])
    before = wanted[: int((wanted[3:] == last).nonzero()[0]) + 3]
    (folder / "generation_config.json").unlink(missing_ok=True)
    assert greedy(folder) == said(wanted)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [last, VOCAB + 7]}))
    assert greedy(folder, "--no-stream") == said(before)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_decoders_beside_an_encoder_answer_a_prompt(tmp_path: Path, name: str) -> None:
    theirs = hugging("bart", torch.float32) if name == "bart" else t5()
    folder = saved(theirs, tmp_path)
    forced = {"forced_bos_token_id": 4} if name == "bart" else {}
    settings = {"decoder_start_token_id": 2, "eos_token_id": 22, **forced}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    written = torch.tensor([[2, *forced.values()]])
    length = written.shape[1]
    with torch.no_grad():
        for _ in range(6):
            logits = theirs(IDS, decoder_input_ids=written).logits[:, -1:]
            written = torch.cat([written, logits.argmax(-1)], 1)
    wanted = written[0, length:]
    ends = (wanted == 22).nonzero()
    assert greedy(folder) == said(wanted[: int(ends[0])] if len(ends) else wanted)


def test_a_text_longer_than_the_positions_goes_on(tmp_path: Path) -> None:
    folder = saved(gpt2(dtype=torch.float32, eos_token_id=None), tmp_path)
    assert len(greedy(folder, "--tokens", "40").split()) == 43
    bart = saved(hugging("bart", torch.float32, eos_token_id=None), tmp_path / "bart")
    assert len(greedy(bart, "--tokens", "40").split()) == 14  # its positions


def test_other_sizes_and_drafts(tmp_path: Path) -> None:
    folder = saved(theirs_of("llama 3", torch.float32), tmp_path)
    assert greedy(folder, "--at", "z=1") != greedy(folder)
    assert greedy(folder, "--draft", "z=1") == greedy(folder)


def test_words_are_apart_where_a_token_alone_hides_its_space() -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"▁the": 0, "▁cat": 1, "s": 2}, unk_token="s"))
    made.decoder = tokenizers.decoders.Metaspace()
    tokens = Pieces(made)
    assert tokens.decode(torch.tensor([1])) == "cat"
    assert list(texts(tokens, [0, 1, 2, 0])) == ["the", " cat", "s", " the"]


def test_bad_folders_are_answered_with_a_sentence(tmp_path: Path) -> None:
    bare = ct.to_hf(ct.zoo.gpt2(vocab=8, d=8, heads=2, depth=1, context=8), tmp_path / "bare")
    encoder = words(ct.to_hf(ct.zoo.bert(8, d=8, heads=2, depth=1, context=8), tmp_path / "encoder"), 8)
    whisper = ct.to_hf(ct.zoo.whisper(8, channels=2, d=8, heads=2, depth=1, frames=4, context=4), tmp_path / "whisper")
    silent = saved(hugging("bart", torch.float32), tmp_path / "silent")
    config = json.loads((silent / "config.json").read_text())
    (silent / "config.json").write_text(json.dumps({**config, "decoder_start_token_id": None}))
    (silent / "generation_config.json").unlink(missing_ok=True)
    for place, more, wanted in (
        (bare, (), "a text needs a tokeniser"),
        (encoder, (), "generation"),
        (whisper, (), "continua transcribe"),
        (silent, (), "decoder_start_token_id"),
        (encoder, ("--which", "last"), "--which chooses a checkpoint of a run"),
        (tmp_path / "nowhere", (), "nowhere"),
        (Path("nobody/nothing"), (), "hf download nobody/nothing"),
    ):
        done = typed("generate", str(place), "--prompt", "w1 w2", *more)
        assert done.returncode == 2, done.stderr
        assert wanted in " ".join(done.stderr.split()), done.stderr
