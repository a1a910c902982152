"""Files that cannot be loaded or written are refused plainly, and leave nothing half done behind."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import continua as ct
from continua.config import from_plain, register, to_plain
from continua.errors import CheckpointError, ConfigError
from continua.models import store
from tests.refusals import refused

Change = Callable[[dict[str, Any]], None]


def saved(folder: Path) -> Path:
    torch.manual_seed(0)
    return ct.zoo.gpt2(vocab=11, d=8, heads=2, depth=2, context=6).double().save(folder / "model")


def hugging_face(folder: Path) -> Path:
    """A GPT-2 folder as ``to_hf`` writes it."""
    torch.manual_seed(0)
    return ct.to_hf(ct.zoo.gpt2(vocab=11, d=8, heads=2, depth=2, context=6), folder / "hf")


def edited(folder: Path, change: Change) -> Path:
    """Change the description beside the weights."""
    path = folder / "config.json"
    described = json.loads(path.read_text())
    change(described)
    path.write_text(json.dumps(described))
    return folder


def reweighted(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.spec("M9")
def test_the_untouched_folders_load(tmp_path: Path) -> None:
    """Or else every refusal below would prove nothing."""
    assert isinstance(ct.load(saved(tmp_path)), ct.Transformer)
    assert isinstance(ct.from_hf(hugging_face(tmp_path)), ct.Transformer)


# --- descriptions ----------------------------------------------------------------------------------------------------


def _rename(old: str, new: str) -> Change:
    def change(described: dict[str, Any]) -> None:
        described["model"][new] = described["model"].pop(old)

    return change


def _set(*path: str, value: Any) -> Change:
    def change(described: dict[str, Any]) -> None:
        for key in path[:-1]:
            described = described[key]
        described[path[-1]] = value

    return change


DESCRIPTIONS = {
    "unknown key": (_rename("readout", "readuot"), ConfigError, "'readuot'", "Did you mean 'readout'?"),
    "unknown key inside": (_set("model", "embed", "vocabs", value=3), ConfigError, "'vocabs'", "Did you mean 'vocab'?"),
    "unknown kind": (_set("model", "kind", value="Transfomer"), ConfigError, "'Transfomer'", "mean 'Transformer'?"),
    "missing key": (lambda d: d["model"].pop("axes"), ConfigError, "no such setting", "Add it to the configuration"),
    "width": (_set("model", "axes", "d", "n", value=0), None, "got 0", "Points(n) with n ≥ 1"),
    "older version": (_set("version", value=0), CheckpointError, "got 0", "save it again with this one"),
    "newer version": (_set("version", value=99), CheckpointError, "got 99", "the version of Continua that wrote it"),
    "no version": (lambda d: d.pop("version"), CheckpointError, "version 1", "save it again"),
    "another format": (_set("format", value="onnx"), CheckpointError, "'onnx'", "from_hf"),
    "no model": (lambda d: d.pop("model"), CheckpointError, "format", "from_hf"),
}


@pytest.mark.parametrize(("change", "kind", "got", "remedy"), DESCRIPTIONS.values(), ids=DESCRIPTIONS)
@pytest.mark.spec("M10")
def test_bad_descriptions(tmp_path: Path, change: Change, kind: Any, got: str, remedy: str) -> None:
    folder = edited(saved(tmp_path), change)
    with refused(kind or ct.errors.GridError, got, remedy):
        ct.load(folder)


@pytest.mark.parametrize("text", ["{", "", "\x00\xff", "[1, 2]"], ids=["cut", "empty", "binary", "a list"])
@pytest.mark.spec("M10")
def test_descriptions_that_are_no_description(tmp_path: Path, text: str) -> None:
    for folder, load in ((saved(tmp_path), ct.load), (hugging_face(tmp_path), ct.from_hf)):
        (folder / "config.json").write_bytes(text.encode("latin-1"))
        with refused(CheckpointError, "config.json", "Write it again"):
            load(folder)


@pytest.mark.spec("M10")
def test_only_registered_objects_are_described() -> None:
    class Home:
        """Not registered."""

    with refused(ConfigError, "got Home", "@register"):
        to_plain({"part": Home()})
    with refused(ConfigError, "'Nodla'", "Did you mean 'Nodal'?"):
        from_plain({"kind": "Nodla", "rule": 3})
    with refused(ConfigError, "called Points", "Rename one"):

        @register
        class Points:  # a second class of that name
            """Another one."""


# --- weights ---------------------------------------------------------------------------------------------------------


def _pop(name: str) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    return change


TABLE, THEIR_TABLE = "embed.table.coefficients", "transformer.wte.weight"
WEIGHTS = {
    "missing": (ct.load, _pop(TABLE), f"missing {TABLE}", "the two files of one save"),
    "extra": (ct.load, lambda t: t.update(more=torch.ones(1)), "unknown more", "the two files of one save"),
    "shape": (ct.load, lambda t: t.update({TABLE: torch.ones(11, 9)}), "[11, 9]", "the two files of one save"),
    "transposed": (ct.load, lambda t: t.update({TABLE: torch.ones(8, 11)}), "[8, 11]", "the two files of one save"),
    "HF missing": (ct.from_hf, _pop(THEIR_TABLE), "no wte.weight", "Check config.json"),
    "HF extra": (ct.from_hf, lambda t: t.update(score=torch.ones(1)), "got score", "another architecture"),
    "HF shape": (ct.from_hf, lambda t: t.update({THEIR_TABLE: torch.ones(11, 9)}), "[11, 9]", "do not belong together"),
}


@pytest.mark.parametrize(("load", "change", "got", "remedy"), WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.spec("M9", "M10")
def test_weights_that_do_not_fit(tmp_path: Path, load: Any, change: Any, got: str, remedy: str) -> None:
    folder = reweighted(saved(tmp_path) if load is ct.load else hugging_face(tmp_path), change)
    with refused(CheckpointError, got, remedy):
        load(folder)


@pytest.mark.parametrize("keep", [0, 5, 200, -1], ids=lambda keep: f"first {keep} bytes")
@pytest.mark.spec("M10")
def test_truncated_weights(tmp_path: Path, keep: int) -> None:
    for folder, load in ((saved(tmp_path), ct.load), (hugging_face(tmp_path), ct.from_hf)):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:keep])
        with refused(CheckpointError, "cannot be read", "copy it again"):
            load(folder)


@pytest.mark.spec("M10")
def test_missing_files(tmp_path: Path) -> None:
    for load, remedy in ((ct.load, "model.save()"), (ct.from_hf, "nothing is downloaded")):
        with refused(CheckpointError, "none in", remedy):
            load(tmp_path / "nowhere")
    with refused(CheckpointError, "format None", "use from_hf"):
        ct.load(hugging_face(tmp_path))
    for folder, load, got in ((saved(tmp_path), ct.load, "none in"), (tmp_path / "hf", ct.from_hf, "neither in")):
        (folder / "model.safetensors").unlink()
        with refused(CheckpointError, got, "Check the path"):
            load(folder)


# --- pickles ---------------------------------------------------------------------------------------------------------


class Trap:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("load", [ct.load, ct.from_hf])
@pytest.mark.spec("M10")
def test_pickles_are_never_opened(tmp_path: Path, load: Any) -> None:
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    for name in ("model.pt", "model.pth", "model.bin", "model.pkl", "model.ckpt"):
        (tmp_path / name).write_bytes(trap)
        with refused(CheckpointError, name, "safetensors"):
            load(tmp_path / name)
    folder = saved(tmp_path) if load is ct.load else hugging_face(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(trap)
    with refused(CheckpointError, "pytorch_model.bin", "safetensors"):
        load(folder)
    (folder / "model.safetensors").write_bytes(trap)  # under a false name
    with refused(CheckpointError, "cannot be read", "copy it again"):
        load(folder)
    assert not sprung.exists()
    pickle.loads(trap)
    assert sprung.exists()  # the trap was armed


# --- architectures ---------------------------------------------------------------------------------------------------

SETTINGS = {
    "architecture": ({"model_type": "gpt_2"}, "got gpt_2", "Did you mean 'gpt2'?"),
    "far architecture": ({"model_type": "mamba"}, "got mamba", "Known: albert, bart, bert,"),
    "activation": ({"activation_function": "relu"}, "'relu'", "not in the zoo yet"),
    "untied head": ({"tie_word_embeddings": False}, "False", "not in the zoo yet"),
    "unscaled scores": ({"scale_attn_weights": False}, "False", "not in the zoo yet"),
    "scores scaled by layer": ({"scale_attn_by_inverse_layer_idx": True}, "True", "not in the zoo yet"),
    "cross-attention": ({"add_cross_attention": True}, "True", "not in the zoo yet"),
    "fewer layers": ({"n_layer": 1}, "h.1.", "another architecture"),
    "more layers": ({"n_layer": 3}, "no h.2.", "Check config.json"),
    "another width": ({"n_embd": 16}, "[11, 8]", "do not belong together"),
}


@pytest.mark.parametrize(("settings", "got", "remedy"), SETTINGS.values(), ids=SETTINGS)
@pytest.mark.spec("M9")
def test_hugging_face_settings_without_a_counterpart(tmp_path: Path, settings: Any, got: str, remedy: str) -> None:
    folder = edited(hugging_face(tmp_path), lambda config: config.update(settings))
    with refused(CheckpointError, got, remedy):
        ct.from_hf(folder)


@pytest.mark.spec("M9")
def test_hugging_face_settings_that_contradict_or_lack(tmp_path: Path) -> None:
    folder = edited(hugging_face(tmp_path), lambda config: config.update(n_head=3))
    with refused(ConfigError, "got 3", "Choose a divisor of 8"):
        ct.from_hf(folder)
    edited(folder, lambda config: config.pop("n_head"))
    with refused(CheckpointError, "got none", "save_pretrained"):
        ct.from_hf(folder)


@pytest.mark.spec("M9")
def test_torch_modules_without_a_counterpart() -> None:
    with refused(CheckpointError, "got Linear", "Known: Transformer, TransformerEncoder"):
        ct.from_torch(nn.Linear(3, 3))
    for options in ({"kdim": 6}, {"add_bias_kv": True}, {"add_zero_attn": True}):
        with refused(CheckpointError, "zero_attn", "plain keys"):
            ct.from_torch(nn.MultiheadAttention(8, 2, **options))
    with refused(CheckpointError, "silu", "Use relu or gelu"):
        ct.from_torch(nn.TransformerEncoderLayer(8, 2, activation=torch.nn.functional.silu))


# --- nothing half done -----------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("broken", ["weights", "description"])
@pytest.mark.spec("M10")
def test_a_save_that_fails_leaves_the_old_model(tmp_path: Path, monkeypatch: Any, broken: str) -> None:
    folder = saved(tmp_path)
    before, model = contents(folder), ct.load(folder)
    with torch.no_grad():
        model.embed.table.coefficients.add_(1.0)

    def fails(*args: Any, **kwargs: Any) -> None:
        Path(args[1] if broken == "weights" else args[0]).write_bytes(b"half")
        raise OSError("no space left on device")

    if broken == "weights":
        monkeypatch.setattr(store, "save_file", fails)
    else:
        monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(OSError, match="no space left"):
        model.save(folder)
    assert contents(folder) == before
    monkeypatch.undo()
    model.save(folder)
    assert contents(folder) != before
    assert set(contents(folder)) == set(before)


@pytest.mark.spec("M10")
def test_a_model_that_cannot_be_described_writes_nothing(tmp_path: Path) -> None:
    model = ct.load(saved(tmp_path))
    model._arguments["embed"] = nn.Identity()  # not registered
    with refused(ConfigError, "got Identity", "@register"):
        model.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
