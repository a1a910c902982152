"""A session writes what torch writes, at every size of its file."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import continua as ct
from continua.errors import CheckpointError, ConfigError, ContinuaError, ShapeError
from continua.flow import Fixed
from continua.session import About, Choice
from continua.session.about import DECODER
from tests.refusals import refused

SIZES: list[dict[str, Any]] = [
    {},
    {"d": 8},
    {"h": 2},
    {"z": 2},
    {"d": 8, "h": 2, "z": 2},
    {"d": 11, "h": 3, "z": 3},
    {"m": 13},
    {"d": 9, "h": 1, "e": 3, "m": 40, "z": 1},
]
CLOSE = 1e-5  # logits of float32


def ids(samples: int, tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(12, (samples, tokens), generator=torch.Generator().manual_seed(seed))


@pytest.mark.spec("B2")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_size_answers_like_torch(size, elastic, session) -> None:
    prompt = ids(3, 9)
    there = torch.tensor([[1] * 9, [0] * 4 + [1] * 5, [1] * 6 + [0] * 3])
    view = elastic.at(**size)
    here = session.at(**size)
    assert np.abs(here(prompt.numpy()) - view(prompt).detach().numpy()).max() < CLOSE
    for observed in (None, there):
        given = None if observed is None else observed.numpy()
        wanted = ct.generate(view, prompt, tokens=9, observed=observed)
        assert (here.generate(prompt.numpy(), tokens=9, observed=given) == wanted.numpy()).all()


@pytest.mark.spec("B2")
def test_steps_are_joined_as_in_torch(elastic, session) -> None:
    prompt = ids(2, 7)
    wanted = elastic.at(z=Fixed(3, lengths=(2, 1, 1)))(prompt).detach().numpy()
    assert np.abs(session.at(z=(2, 1, 1))(prompt.numpy()) - wanted).max() < CLOSE
    with refused(ConfigError, "2+1", "add up to 4"):
        session.at(z=(2, 1))


@pytest.mark.spec("B2")
def test_stop_penalty_and_streams_are_those_of_generate(elastic, session) -> None:
    prompt = ids(4, 5, seed=3)
    for penalty, stop in ((1.0, (3, 7)), (1.4, ()), (1.7, (1,))):
        greedy = ct.Greedy(repetition_penalty=penalty)
        wanted = ct.generate(elastic, prompt, tokens=12, sampling=greedy, stop=stop, pad=2).numpy()
        got = session.generate(prompt.numpy(), tokens=12, repetition_penalty=penalty, stop=stop, pad=2)
        assert got.shape == wanted.shape
        assert (got == wanted).all()
    text = session.generate("abba", tokens=6)
    assert text == "abba" + "".join(session.stream("abba", tokens=6))
    numbers = ct.generate(elastic, torch.tensor([[0, 1, 1, 0]]), tokens=6)[0]
    assert text == session.tokens.decode(numbers.tolist())


@pytest.mark.spec("B2")
@pytest.mark.parametrize("how", [(0.7, None, 1.0, 1.0), (1.3, 4, 1.0, 1.0), (1.0, None, 0.6, 1.3), (0.5, 6, 0.8, 1.1)])
def test_draws_are_from_the_same_distribution(how) -> None:
    temperature, top_k, top_p, penalty = how
    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(5)) * 2
    seen = torch.rand(3, 12, generator=torch.Generator().manual_seed(6)) < 0.3
    wanted = ct.Sample(temperature, top_k, top_p, penalty).warped(logits.double(), seen).softmax(-1).numpy()
    from continua.session.sampling import penalised

    choice = Choice(temperature, top_k, top_p, penalty)
    shares = choice.shares(penalised(logits.numpy(), seen.numpy(), penalty))
    assert np.abs(shares - wanted).max() < 1e-6
    draw = np.random.default_rng(0)
    counts = np.zeros((3, 12))
    for _ in range(4000):
        counts[np.arange(3), choice.token(logits.numpy(), seen.numpy(), draw)] += 1
    assert (counts[wanted == 0] == 0).all()
    assert np.abs(counts / 4000 - wanted).max() < 0.04  # five standard deviations of a share of one half


@pytest.mark.spec("B2")
def test_a_seed_draws_the_same_text_again(session) -> None:
    texts = [session.generate("ab", tokens=12, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.spec("B2")
def test_it_runs_where_torch_cannot_be_imported(file: Path, elastic) -> None:
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "onnx", "onnxscript", "jaxtyping", "safetensors"}:
            raise ImportError(f"no {name} here")
sys.meta_path.insert(0, Refuse())
import continua as ct
session = ct.Session(sys.argv[1], threads=1)
small = session.at(d=8, h=2, z=2)
print(session.generate("ab", tokens=8) + "|" + small.generate("ab", tokens=8), end="")
assert "torch" not in sys.modules
"""
    said = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True).stdout
    wanted = []
    for view in (elastic.at(), elastic.at(d=8, h=2, z=2)):
        numbers = ct.generate(view, torch.tensor([[0, 1]]), tokens=8)[0].tolist()
        wanted.append("".join("abcdefghij \n"[number] for number in numbers))
    assert said == "|".join(wanted)


REFUSED: list[tuple[type[ContinuaError], str, str, Callable[[ct.Session], object]]] = [
    (ConfigError, "d=17", "Choose d from 1 to 16", lambda own: own.at(d=17)),
    (ConfigError, "z=5", "Choose z from 1 to 4", lambda own: own.at(z=5)),
    (ConfigError, "d=1", "Use d=2 or more", lambda own: own.at(d=1)),
    (ConfigError, "8.5", "Write at(d=64", lambda own: own.at(d=8.5)),
    (ConfigError, "heads", "Known: d, e, h, m, z", lambda own: own.at(heads=2)),
    (ShapeError, "23 more", "Ask for at most 22 tokens", lambda own: own.generate("aba", tokens=23)),
    (ShapeError, "a prompt of 25", "Shorten the prompt", lambda own: own.generate("a" * 25, tokens=1)),
    (ShapeError, "25 tokens", "Shorten the text", lambda own: own(np.zeros((1, 25), dtype=int))),
    (ConfigError, "'A'", "Use characters of the training text", lambda own: own.generate("A")),
    (ShapeError, "12 to 12", "Use the tokeniser", lambda own: own(np.array([[12]]))),
    (ShapeError, "float64", "Tokenise", lambda own: own(np.array([[0.5]]))),
    (ShapeError, "[1, 2]", "Mark one token", lambda own: own(np.array([[1, 2]]), np.zeros((1, 2)))),
    (ShapeError, "99", "Use the tokeniser", lambda own: own.generate("ab", stop=[99])),
    (ConfigError, "kind decoder", "Use session.generate", lambda own: own.embed(["ab"])),
    (ConfigError, "kind decoder", "Use session.generate", lambda own: own.predict(np.zeros((1, 2)))),
    (ConfigError, "0", "n ≥ 1", lambda own: own.generate("ab", tokens=0)),
    (ConfigError, "it with top_k", "Leave them out", lambda own: own.generate("ab", top_k=3)),
    (ConfigError, "2.5", "Write tokens=8", lambda own: own.generate("ab", tokens=2.5)),
    (ConfigError, "-3", "Write seed=8", lambda own: own.generate("ab", tokens=2, seed=-3)),
    (ConfigError, "-1", "Use 0", lambda own: own.generate("ab", temperature=-1)),
]


@pytest.mark.spec("B2")
@pytest.mark.parametrize(("kind", "got", "remedy", "wish"), REFUSED, ids=[f"{row[1]}-{row[2]}" for row in REFUSED])
def test_what_a_session_refuses(kind, got, remedy, wish, session) -> None:
    with refused(kind, got, remedy):
        wish(session)


@pytest.mark.spec("B2")
def test_damaged_and_foreign_files_are_refused(file: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    whole = file.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "words.onnx").write_text("this is no model at all, only a text")
    graph = onnx.helper.make_graph([], "theirs", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "foreign.onnx")
    torn = onnx.load(file)
    torn.graph.node[5].op_type = "Nonsense"
    onnx.save(torn, tmp_path / "torn.onnx")
    expected = {
        "cut.onnx": ("beyond the end", "Export the model again"),
        "words.onnx": ("a field", "Export the model again"),
        "none.onnx": ("is missing", "continua export"),
        "foreign.onnx": ("foreign.onnx", "ct.export"),
        "torn.onnx": ("Nonsense", "Export the model again"),
    }
    for name, (got, remedy) in expected.items():
        with refused(CheckpointError, got, remedy):
            ct.Session(tmp_path / name).generate("ab", tokens=4)
    with refused(CheckpointError, "not a plain file", "continua export"):
        ct.Session(tmp_path)
    with refused(ConfigError, "int", "Write Session"):
        ct.Session(3)
    with refused(ConfigError, "0", "Leave threads out"):
        ct.Session(file, threads=0)


@pytest.mark.spec("B2")
def test_the_description_of_a_file_is_read_back() -> None:
    native = {"d": 4, "h": 2, "e": 2, "m": 8, "z": 1}
    about = About(DECODER, elastic=True, native=native, steps={"1": ((0, 1.0),)}, groups=2, vocab=5)
    assert About.read(about.written(), "here") == about
    with refused(CheckpointError, "99", "newer continua"):
        About.read(replace(about, version=99).written(), "here")
    worse = [replace(about, native={**native, "d": 0}), replace(about, steps={}), replace(about, kind="else")]
    texts = ["{", '{"steps": 3, "kind": "map"}', "[]", *(one.written()["continua"] for one in worse)]
    for damaged in texts:
        with refused(CheckpointError, "", "Export the model again"):
            About.read({"continua": damaged}, "here")
