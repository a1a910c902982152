"""Real pretrained weights, read with ``ct.from_hf``, beside Hugging Face's own modules (M9)."""

import os
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import continua as ct
from continua.errors import CheckpointError
from continua.fields import counted
from continua.models import Readout, Transformer
from tests.exact import aligned, gap
from tests.lazy import Lazily
from tests.packages import as_safetensors, folder_of
from tools.packages import MINILM, RXNMAPPER, SMOLLM2

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = Lazily("transformers")
tokenizers = Lazily("tokenizers")

# With sdpa both sides call the same kernels and often agree to the last bit; eager attention is other arithmetic.
EACH_ATTENTION = pytest.mark.parametrize("attention", ["sdpa", "eager"])


pytestmark = pytest.mark.usefixtures("quiet_hugging_face")


# --- MiniLM: sentence embeddings -------------------------------------------------------------------------------------

SENTENCES = [
    "The cat sleeps on the sofa.",
    "A cat is napping on the couch, and nobody in the whole house dares to wake it up before dinner.",
    "Stock markets fell sharply today.",
]


def tokenised(folder: Path, texts: list[str]) -> tuple[Tensor, Tensor]:
    """Token numbers and which of them are there."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.no_truncation()
    read = tokenizer.encode_batch(texts)
    return torch.tensor([one.ids for one in read]), torch.tensor([one.attention_mask for one in read]).bool()


def pooled(model: Transformer) -> Transformer:
    """The same model, answering with the mean of its field over the tokens: an integral against their measure."""
    readout = Readout(counted(model.axes), pool=True)
    return Transformer(model.axes, model.native, model.embed, model.block, readout)


@pytest.fixture(scope="module")
def minilm() -> Path:
    return folder_of(MINILM)


@EACH_ATTENTION
@pytest.mark.spec("M9", "A8")
def test_minilm_sentence_embeddings(minilm: Path, attention: str) -> None:
    ids, there = tokenised(minilm, SENTENCES)
    assert not there.all(), "the batch should be padded"
    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation=attention).eval()
    with torch.no_grad():
        states = theirs(ids, attention_mask=there.long()).last_hidden_state
        wanted = normalize((states * there[..., None]).sum(1) / there.sum(1, keepdim=True))
        model = ct.from_hf(minilm)
        batch = ct.Batch(ids, observed=there)
        assert gap(model(batch)[there], states[there]) <= 1e-5
        got = normalize(pooled(model)(batch))
    assert gap(got, wanted) <= 1e-5
    alike = got @ got.T
    assert alike[0, 1] > 0.6 > 0.2 > alike[0, 2].abs()


@pytest.mark.spec("B2")
@pytest.mark.unshaped
@pytest.mark.slow(reason="tracing a real encoder")
def test_minilm_is_exported_with_its_tokeniser(minilm: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    ids, there = tokenised(minilm, SENTENCES)
    with torch.no_grad():
        states = ct.from_hf(minilm)(ct.Batch(ids, observed=there))
        wanted = (states * there[..., None]).sum(1) / there.sum(1, keepdim=True)
    session = ct.Session(ct.export(minilm, tmp_path / "minilm.onnx").path)
    assert gap(torch.from_numpy(session.embed(SENTENCES)), wanted) <= 1e-5


@pytest.mark.spec("M9")
def test_minilm_in_float64(minilm: Path) -> None:
    ids, there = tokenised(minilm, SENTENCES)
    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval().double()
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=there.long()).last_hidden_state[there]
        assert gap(ct.from_hf(minilm, dtype=torch.float64)(ct.Batch(ids, observed=there))[there], wanted) <= 1e-12


@pytest.mark.spec("M9")
def test_minilm_goes_back_to_hugging_face(minilm: Path, tmp_path: Path) -> None:
    ids, there = tokenised(minilm, SENTENCES)
    folder = ct.to_hf(ct.from_hf(minilm), tmp_path)
    with torch.no_grad():
        wanted, got = (
            transformers.BertModel.from_pretrained(path, add_pooling_layer=False)
            .eval()(ids, attention_mask=there.long())
            .last_hidden_state
            for path in (minilm, folder)
        )
    assert torch.equal(got, wanted)


# --- rxnmapper: a trained autonomous flow ----------------------------------------------------------------------------

REACTIONS = [
    "CC(=O)Cl.OCC>>CCOC(C)=O",
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
]
SMILES = re.compile(r"\[[^\]]+]|Br?|Cl?|>>?|%[0-9]{2}|[NOSPFIbcnosp().=#+:~@?*$\\/0-9-]")


@pytest.fixture(scope="module")
def rxnmapper(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package's folder, and one with its weights as safetensors."""
    source = folder_of(RXNMAPPER)
    return source, as_safetensors(source, tmp_path_factory.mktemp("rxnmapper"))


def reactions(source: Path) -> tuple[Tensor, Tensor]:
    """Token numbers of the reactions, padded with zeros; one token of each is masked."""
    lines = (source / "vocab.txt").read_text(encoding="utf-8").split("\n")
    number = {token: i for i, token in enumerate(lines)}
    read = [[number[token] for token in ["[CLS]", *SMILES.findall(text), "[SEP]"]] for text in REACTIONS]
    length = max(map(len, read))
    ids = torch.tensor([row + [number["[PAD]"]] * (length - len(row)) for row in read])
    there = torch.arange(length) < torch.tensor([[len(row)] for row in read])
    ids[:, 4] = number["[MASK]"]
    return ids, there


@EACH_ATTENTION
@pytest.mark.spec("M9", "A8")
@pytest.mark.parametrize(("dtype", "exact"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_rxnmapper(rxnmapper: tuple[Path, Path], dtype: torch.dtype, exact: float, attention: str) -> None:
    source, folder = rxnmapper
    ids, there = reactions(source)
    assert not there.all(), "the batch should be padded"
    theirs = transformers.AlbertForMaskedLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention).eval()
    model = ct.from_hf(folder, dtype=dtype)
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=there.long()).logits
        got = model(ct.Batch(ids, observed=there))
    assert gap(got[there], wanted[there]) <= exact
    assert torch.equal(got[there].argmax(-1), wanted[there].argmax(-1))


@pytest.mark.spec("M9", "M10")
def test_rxnmapper_is_one_field(rxnmapper: tuple[Path, Path]) -> None:
    """Twelve unit steps through weights that do not depend on z; other numbers of steps run."""
    source, folder = rxnmapper
    ids, there = reactions(source)
    model = ct.from_hf(folder)
    assert model.native.z.steps == 12
    assert sum(p.numel() for p in model.block.parameters()) == 527104
    with torch.no_grad():
        assert torch.isfinite(model.at(z=24)(ct.Batch(ids, observed=there))).all()


@pytest.mark.spec("M9")
def test_rxnmapper_goes_back_to_hugging_face(rxnmapper: tuple[Path, Path], tmp_path: Path) -> None:
    source, folder = rxnmapper
    ids, _ = reactions(source)
    back = ct.to_hf(ct.from_hf(folder), tmp_path)
    with torch.no_grad():
        both = (transformers.AlbertForMaskedLM.from_pretrained(path).eval() for path in (folder, back))
        one, other = (aligned(theirs)(ids).logits for theirs in both)
    assert torch.equal(one, other)


@pytest.mark.spec("M9")
def test_its_pickle_is_not_opened(rxnmapper: tuple[Path, Path]) -> None:
    with pytest.raises(CheckpointError, match="pickled weights are never opened"):
        ct.from_hf(rxnmapper[0])


# --- SmolLM2: greedy generation --------------------------------------------------------------------------------------

PROMPT = "The capital of France is"
NEW, CLOSE = 20, 1e-3  # tokens to write; a margin between the two best that round-off may turn


def dequantised(folder: Path, file: str) -> Any:
    """Hugging Face's Llama with the weights of a GGUF file; ``from_pretrained`` would ask for accelerate."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = transformers.AutoConfig.from_pretrained(folder, gguf_file=file)
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(folder / file), return_tensors=True, model_to_load=theirs)["tensors"]
    lost = theirs.load_state_dict(tensors, strict=False)
    assert not lost.unexpected_keys
    assert set(lost.missing_keys) <= {"lm_head.weight"}, "tied to the token table"
    return theirs.eval()


@pytest.mark.slow(reason="135 million weights")
@pytest.mark.spec("M9", "A8")
def test_smollm2_writes_the_same_tokens(tmp_path: Path) -> None:
    """Equal up to the first position whose two best logits are closer than round-off may tell; it is printed."""
    pytest.importorskip("gguf", reason="reading GGUF files needs the package gguf")
    folder, file = folder_of(SMOLLM2), next(iter(SMOLLM2.files))
    theirs = dequantised(folder, file)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    theirs.save_pretrained(tmp_path)
    model = ct.from_hf(tmp_path)
    read = ct.from_gguf(folder / file).state_dict()
    assert all(torch.equal(read[name], tensor) for name, tensor in model.state_dict().items())
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    with torch.no_grad():
        assert gap(model(ids), theirs(ids).logits) <= 1e-5
        wanted = theirs.generate(
            ids, max_new_tokens=NEW, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        got = ct.generate(model, ids, tokens=NEW)
    best = torch.cat(wanted.logits).topk(2).values
    margins = (best[:, 0] - best[:, 1]).tolist()
    close = next((i for i, margin in enumerate(margins) if margin < CLOSE), len(margins))
    place = f"at {close}" if close < len(margins) else f"none of {len(margins)}"
    print(f"\n{tokenizer.decode(wanted.sequences[0])!r}; first margin below {CLOSE}: {place}")
    end = ids.shape[1] + close
    assert torch.equal(got[:, :end], wanted.sequences[:, :end])
    assert close > 0


# --- the example -----------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="a whole example")
@pytest.mark.spec("M9", "A8")
def test_the_example_keeps_its_word(minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It asserts the numbers that it prints."""
    script = Path(__file__).resolve().parents[2] / "examples" / "real_model.py"
    runpy.run_path(str(script))["main"](minilm, tmp_path)
    assert "answers with the same bits" in capsys.readouterr().out
