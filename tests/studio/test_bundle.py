"""What is prepared for the page: the bundle, the files, the page as a folder."""

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import continua as ct
from continua.data.tokens import BytePairs
from continua.errors import ConfigError
from continua.models import zoo
from continua.session import Session
from continua.studio.bundle import INDEX, MODEL, usual_prompt, write_model
from continua.studio.page import BUILT, MANIFEST, manifest, page_files, source_hash, write_page
from tests.studio.conftest import TOKENS, Made

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spec("B7")
def test_the_page_is_built_from_the_sources_that_are_here():
    assert manifest()["sources"] == source_hash(ROOT / "page"), "the page is stale: make page"


@pytest.mark.spec("B7")
def test_every_built_file_is_as_it_was_built():
    said = {name: sha for name, sha in manifest().items() if name != "sources"}
    found = {
        path.relative_to(BUILT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in BUILT.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
    assert found == said


@pytest.mark.spec("B7")
def test_the_page_loads_nothing_from_elsewhere_and_fits():
    files = page_files()
    text = files["index.html"].content().decode()
    assert "unsafe-inline" not in text
    assert "default-src 'none'" in text
    assert "http://" not in text
    assert "https://" not in text
    assert "<style" not in text
    assert text.count("<script") == text.count('<script type="module"') == 1
    own = [one for name, one in files.items() if name.endswith((".js", ".css", ".html", ".svg"))]
    assert sum(len(gzip.compress(one.content())) for one in own) <= 400_000


@pytest.mark.spec("B7")
def test_a_bundle_says_all_that_the_page_shows(made: Made):
    said = json.loads(made.bundle.as_json())
    native = said["about"]["native"]
    assert {"d": native["d"], "h": native["h"], "z": native["z"]} == {"d": 16, "h": 4, "z": 4}
    assert said["about"]["probe"]
    assert said["about"]["tokens"] == {"kind": "characters", "alphabet": TOKENS.alphabet}
    assert [(one["d"], one["h"], one["z"]) for one in said["sizes"]] == [(16, 4, 4), (8, 4, 4), (8, 2, 2), (12, 3, 3)]
    trained = {tuple(size) for size in said["trained"]}
    assert (16, 4, 4) in trained
    assert (8, 2, 2) in trained
    assert (13, 3, 4) not in trained
    assert {tuple(one[k] for k in "dhz"): one["trained"] for one in said["sizes"]} == {
        tuple(one[k] for k in "dhz"): tuple(one[k] for k in "dhz") in trained for one in said["sizes"]
    }
    assert sorted(said["nodes"]["d"]) == [(i + 0.5) / 16 for i in range(16)]
    assert [len(window) for window in said["windows"]] == [48, 48]
    assert said["prompt"] == "def "


@pytest.mark.spec("B7")
def test_flops_of_the_page_are_those_of_the_table(made: Made):
    """The formula of page/src/model/size.ts, which moves the dot for sizes that were not measured."""
    about = made.bundle.about
    native = about["native"]
    tokens = len(made.bundle.windows[0])
    for one in made.bundle.sizes:
        m = max(1, round(native["m"] * one.d / native["d"]))
        inner = one.h * native["e"]
        step = 8 * one.d * inner + 4 * one.d * m + 4 * tokens * inner
        assert one.flops == tokens * (one.z * step + 2 * one.d * about["vocab"])


@pytest.mark.spec("B7")
def test_the_page_as_a_folder(made: Made, tmp_path: Path):
    folder = write_page(tmp_path / "site", made.file, made.bundle)
    assert json.loads((folder / INDEX).read_text("utf-8"))["live"] is False
    assert (folder / MODEL).read_bytes() == made.file.read_bytes()
    assert (folder / "ort.wasm").read_bytes()[:4] == b"\0asm"
    assert not list(folder.rglob("*.gz"))
    with pytest.raises(ConfigError, match="new folder"):
        write_page(folder, made.file, made.bundle)


@pytest.mark.spec("B7")
def test_models_that_the_page_cannot_show_are_refused(tmp_path: Path):
    plain = zoo.gpt2(vocab=TOKENS.size, d=8, heads=2, depth=2, context=8).eval()
    with pytest.raises(ConfigError, match="at every size"):
        write_model(plain, TOKENS, tmp_path / "m.onnx")

    class Others:
        size = 5

    with pytest.raises(ConfigError, match="characters and byte pairs"):
        write_model(ct.elastic(plain), Others(), tmp_path / "m.onnx")  # type: ignore[arg-type]


@pytest.mark.spec("B7")
def test_byte_pairs_ride_along_as_the_library_describes_them(tmp_path: Path):
    tokens = BytePairs.of("def one(two): return three\n" * 40, 300)
    model = ct.elastic(zoo.gpt2(vocab=tokens.size, d=8, heads=2, depth=2, context=16)).eval()
    about = write_model(model, tokens, tmp_path / "m.onnx")
    assert about.tokens is not None
    assert json.loads(about.tokens["json"])["pre_tokenizer"]["type"] == "ByteLevel"
    assert usual_prompt(about) == "def "


@pytest.mark.spec("B7")
def test_a_prompt_is_made_of_what_the_model_knows(made: Made, model: ct.Transformer):
    about = Session(made.file).about
    assert usual_prompt(replace(about, tokens={"kind": "characters", "alphabet": "\n xyz"})) == "xyz"
    assert torch.is_tensor(TOKENS.encode(usual_prompt(about)))
