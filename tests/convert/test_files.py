"""Files as they come: shards with an index, half precision, GGUF; and what is refused of them (B14)."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import continua as ct
from continua.config import to_plain
from continua.convert import shards
from continua.convert.huggingface import ARCHITECTURES
from continua.errors import CheckpointError
from tests.exact import gap
from tests.lazy import Lazily
from tests.refusals import refused

gguf = Lazily("gguf")
pytestmark = pytest.mark.spec("B14")

IDS = torch.tensor([[3, 1, 4, 1, 5]])
INDEX = "model.safetensors.index.json"


def llama(**style: Any) -> Any:
    torch.manual_seed(0)
    return ct.zoo.llama(vocab=11, d=32, heads=4, depth=2, m=32, groups=2, style=ct.zoo.LlamaStyle(**style))


def sharded(model: Any, folder: Path, count: int = 3) -> Path:
    """The folder of ``to_hf`` with its tensors in several files, and an index."""
    ct.to_hf(model, folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-{i % count + 1:05}-of-{count:05}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in places if places[name] == file}, folder / file, {"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


# --- shards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_shards_are_one_model(tmp_path: Path, tied: bool) -> None:
    model = llama(tied=tied)
    again = ct.from_hf(sharded(model, tmp_path))
    assert to_plain(again) == to_plain(model)
    assert torch.equal(again(IDS), model(IDS))


def test_large_tensors_are_read_in_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    folder = sharded(model, tmp_path)
    monkeypatch.setattr(shards, "CHUNK", 100)
    again = ct.from_hf(folder)
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), model.parameters(), strict=True))


def changed_index(folder: Path, change: Callable[[dict[str, str]], Any]) -> None:
    index = json.loads((folder / INDEX).read_text())
    made = change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps({"weight_map": index["weight_map"] if made is None else made}))


FIRST = "model-00001-of-00003.safetensors"
NORM = "model.norm.weight"
WRONG: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a missing shard": (lambda f: (f / FIRST).unlink(), f"no {FIRST}", "Copy all shards"),
    "a shard that is cut short": (
        lambda f: (f / FIRST).write_bytes((f / FIRST).read_bytes()[:-9]),
        FIRST,
        "damaged or cut short",
    ),
    "a shard outside": (
        lambda f: changed_index(f, lambda w: w.update({NORM: "../model.safetensors"})),
        "'../model.safetensors'",
        "files beside it",
    ),
    "an absolute path": (
        lambda f: changed_index(f, lambda w: w.update({NORM: "/etc/passwd"})),
        "'/etc/passwd'",
        "files beside it",
    ),
    "a pickled shard": (
        lambda f: changed_index(f, lambda w: w.update({NORM: "pytorch_model.bin"})),
        "pytorch_model.bin",
        "weights_only=True",
    ),
    "a tensor in another shard": (
        lambda f: changed_index(f, lambda w: w.update(dict.fromkeys(w, FIRST))),
        f"in {FIRST}",
        "save_pretrained",
    ),
    "a tensor that is not listed": (
        lambda f: changed_index(f, lambda w: w.pop(NORM) and None),
        NORM,
        "save_pretrained",
    ),
    "no map": (lambda f: changed_index(f, lambda w: []), "got list", "save_pretrained"),
    "an empty map": (lambda f: changed_index(f, lambda w: {}), "or none", "save_pretrained"),
    "numbers for files": (lambda f: changed_index(f, lambda w: {NORM: 3}), "no text", "save_pretrained"),
    "an index that is no JSON": (lambda f: (f / INDEX).write_text("{"), "not valid JSON", "Write it again"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_shards_that_do_not_fit_are_refused(tmp_path: Path, wrong: str) -> None:
    folder = sharded(llama(), tmp_path)
    change, got, remedy = WRONG[wrong]
    change(folder)
    with refused(CheckpointError, got, remedy):
        ct.from_hf(folder)


def test_a_folder_without_weights_and_one_with_pickles(tmp_path: Path) -> None:
    folder = sharded(llama(), tmp_path)
    for file in folder.glob("*safetensors*"):
        file.unlink()
    with refused(CheckpointError, "neither in", "Check the path"):
        ct.from_hf(folder)
    (folder / "pytorch_model-00001-of-00002.bin").write_bytes(b"")
    with refused(CheckpointError, "pytorch_model-00001-of-00002.bin", "weights_only=True"):
        ct.from_hf(folder)


def test_unknown_architectures_and_code_are_refused(tmp_path: Path) -> None:
    folder = ct.to_hf(llama(), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with refused(CheckpointError, "got mamba", ", ".join(sorted(ARCHITECTURES))):
        ct.from_hf(folder)
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "modeling.Own"}}))
    (folder / "modeling.py").write_text("raise SystemExit")
    with refused(CheckpointError, "auto_map for llama", "Nothing from a folder is executed"):
        ct.from_hf(folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_kept_or_widened(tmp_path: Path, dtype: torch.dtype) -> None:
    model = llama().to(dtype)
    folder = sharded(model, tmp_path)
    kept = ct.from_hf(folder)
    assert {p.dtype for p in kept.parameters()} == {dtype}
    assert torch.equal(kept(IDS), model(IDS))
    wide = ct.from_hf(folder, dtype=torch.float32)
    assert {p.dtype for p in wide.parameters()} == {torch.float32}
    assert all(torch.equal(p, q.float()) for p, q in zip(wide.parameters(), model.parameters(), strict=True))


PEAK = """
import sys
from pathlib import Path
import continua as ct

def peak():  # of this process alone: ru_maxrss is handed on by who started it
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

ct.from_hf
before = peak()
model = ct.from_hf(sys.argv[1])
size = sum(p.numel() * p.element_size() for p in model.parameters())
print((peak() - before) * 1024 / size)
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the peak of a process is read from /proc")
@pytest.mark.slow(reason="3 GB are written, and read by a child process")
def test_a_large_model_takes_hardly_more_than_itself(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = ct.zoo.llama(vocab=32000, d=2048, heads=16, depth=14, m=5504)
    model = model.to_empty(device="cpu").to(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.02, 0.02)
    folder = sharded(model, tmp_path, count=4)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    assert size >= 3e9
    del model
    done = subprocess.run([sys.executable, "-c", PEAK, str(folder)], capture_output=True, text=True, check=True)
    print(done.stdout)
    assert 0.9 <= float(done.stdout) <= 1.1


# --- GGUF ------------------------------------------------------------------------------------------------------------


def written(model: Any, folder: Path, quantised: str = "F32", **more: Any) -> Path:
    """A GGUF file of a decoder: what a converter writes, and ``more`` settings."""
    pytest.importorskip("gguf", reason="GGUF files need the package gguf")
    from gguf.quants import quantize

    from continua.convert.gguf import DIALECTS, ENDS, HEAD

    ct.to_hf(model, folder / "hf")
    config = json.loads((folder / "hf" / "config.json").read_text())
    kind = config["model_type"]
    writer = gguf.GGUFWriter(folder / "model.gguf", kind)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    for key, value in more.items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(f"{kind}.{key}", value)
    writer.add_key_length(config["head_dim"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    back = {theirs: ours for ours, theirs in DIALECTS[kind].parts.items()}
    ends = {theirs: ours for ours, theirs in {**ENDS, HEAD[0]: HEAD[1]}.items()}
    for name, tensor in load_file(folder / "hf" / "model.safetensors").items():
        if name in ends:
            theirs = ends[name]
        else:
            _, _, layer, rest = name.split(".", 3)
            part, _, last = rest.rpartition(".")
            theirs = f"blk.{layer}.{back[part]}.{last}"
        if kind == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)  # halves → pairs
        if kind == "gemma2" and "norm" in name:
            tensor = tensor + 1
        numbers = tensor.numpy()
        if numbers.ndim == 1:
            writer.add_tensor(theirs, numbers)
        else:
            made = gguf.GGMLQuantizationType[quantised]
            writer.add_tensor(theirs, quantize(numbers, made), raw_dtype=made)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


@pytest.mark.parametrize("family", ["llama", "tied", "qwen2", "qwen3"])
def test_gguf_is_the_model_that_was_written(tmp_path: Path, family: str) -> None:
    styles: dict[str, dict[str, Any]] = {
        "llama": {"base": 500.0},
        "tied": {"tied": True},
        "qwen2": {"bias": ("q", "k", "v"), "tied": True},
        "qwen3": {"head_norm": True},
    }
    model = llama(**styles[family])
    again = ct.from_gguf(written(model, tmp_path))
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), model.parameters(), strict=True))
    assert torch.allclose(again(IDS), model(IDS), rtol=0, atol=1e-6)  # eps is float32 in the file


def test_gguf_of_gemma2(tmp_path: Path) -> None:
    """Scales are stored with one added, so that the last bits differ; the scale of queries is not in the file."""
    torch.manual_seed(0)
    style = ct.zoo.Gemma2Style(window=3, query_scale=8.0, score_cap=2.0, answer_cap=3.0, pad=None)
    model = ct.zoo.gemma2(vocab=11, d=32, heads=4, depth=2, m=32, groups=2, e=8, style=style)
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    again = ct.from_gguf(written(model, tmp_path, **caps))
    assert gap(again(IDS), model(IDS)) <= 1e-5


@pytest.mark.parametrize(("quantised", "bound"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 2e-2), ("Q4_0", 0.3)])
def test_quantised_files_are_dequantised(tmp_path: Path, quantised: str, bound: float) -> None:
    model = llama()
    again = ct.from_gguf(written(model, tmp_path, quantised), dtype=torch.float64)
    assert {p.dtype for p in again.parameters()} == {torch.float64}
    for ours, theirs in zip(again.parameters(), model.parameters(), strict=True):
        assert (ours - theirs).abs().max() <= bound * theirs.abs().max()


def test_gguf_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = written(llama(), tmp_path)
    with refused(CheckpointError, "no file", "Check the path"):
        ct.from_gguf(tmp_path / "none.gguf")
    (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:900])
    with refused(CheckpointError, "cut.gguf cannot be read", "copy it again"):
        ct.from_gguf(tmp_path / "cut.gguf")
    (tmp_path / "text.gguf").write_text("no model at all")
    with refused(CheckpointError, "text.gguf cannot be read", "copy it again"):
        ct.from_gguf(tmp_path / "text.gguf")
    with refused(CheckpointError, "stretched rotations", "from_hf"):
        ct.from_gguf(written(llama(), tmp_path / "more", **{"rope.scaling.type": "yarn"}))


SIZE = b"llama.feed_forward_length" + (4).to_bytes(4, "little")  # the name, and the kind of number behind it


@pytest.mark.parametrize(
    ("old", "new", "got", "remedy"),
    [
        (b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama", b"mamba", "got mamba", "Known: llama, qwen2"),
        (b"blk.1.ffn_up.weight", b"blk.1.ffn_uq.weight", "no layers.1.mlp.up_proj.weight", "config.json"),
        (b"output_norm.weight", b"output_nork.weight", "no norm.weight", "config.json"),
        (SIZE + (32).to_bytes(4, "little"), (48).to_bytes(4, "little"), "got [32, 32]", "do not belong together"),
    ],
    ids=["architecture", "a map", "a norm", "other sizes"],
)
def test_gguf_files_of_another_content_are_refused(
    tmp_path: Path, old: bytes, new: bytes, got: str, remedy: str
) -> None:
    path = written(llama(), tmp_path)
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, old[: -len(new)] + new))
    with refused(CheckpointError, got, remedy):
        ct.from_gguf(path)


def test_gguf_files_cut_at_their_end_and_folders_are_refused(tmp_path: Path) -> None:
    path = written(llama(), tmp_path)
    with refused(CheckpointError, "no file", "Check the path"):
        ct.from_gguf(tmp_path)
    path.write_bytes(path.read_bytes()[:-400])
    with refused(CheckpointError, "cannot be read", "cut short"):
        ct.from_gguf(path)
