"""A real model for the page: directions along three axes, and where they began."""

import json
from pathlib import Path

import pytest
import torch

from continua.lab.probes.dynamics import dynamics, look
from continua.models import zoo
from continua.studio.page import DATA
from continua.studio.real import real_model


@pytest.mark.spec("B7")
def test_particles_begin_where_the_tokens_begin(tmp_path: Path):
    torch.manual_seed(0)
    model = zoo.bert(vocab=20, d=24, heads=2, depth=3, context=12).double()
    ids = torch.randint(20, (2, 9), generator=torch.Generator().manual_seed(1))
    seen = look(model, ids, sinks=None)
    moved = dynamics(seen)
    labels = [[str(i) for i in row] for row in ids.tolist()]
    told = json.loads(real_model("tiny", seen, moved, labels).save(tmp_path / "real.json").read_text("utf-8"))
    assert len(told["betas"]) == len(told["fits"]) == len(told["jumps"]) == 3
    for number, text in enumerate(told["texts"]):
        assert text["tokens"] == labels[number]
        start, axes, places = (torch.tensor(text[name]) for name in ("start", "axes", "places"))
        assert places.shape == (4, 9, 3)
        assert float((start.norm(dim=-1) - 1).abs().max()) < 1e-3
        assert float((start @ axes - places[0]).abs().max()) < 2e-3, "the same three axes"
        assert abs(text["cosines"][0] - moved.states[0].cosine) < 0.2
    mean = sum(text["cosines"][-1] for text in told["texts"]) / 2
    assert abs(mean - moved.states[-1].cosine) < 1e-3


@pytest.mark.spec("B7")
def test_what_ships_is_small_and_whole():
    burgers = json.loads((DATA / "burgers.json").read_text("utf-8"))
    assert (DATA / "burgers.onnx").stat().st_size <= 3_000_000
    assert burgers["error"] < 0.01
    assert len(burgers["example"]) == 64
    real = json.loads((DATA / "minilm.json").read_text("utf-8"))
    assert len(real["betas"]) == 6
    assert all(len(text["places"]) == 7 for text in real["texts"])
    assert (DATA / "minilm.json").stat().st_size < 100_000


@pytest.mark.spec("B7")
def test_the_operator_that_ships_solves_burgers_equation_on_any_grid():
    import onnxruntime

    from continua.data.burgers import burgers_pairs

    about = json.loads((DATA / "burgers.json").read_text("utf-8"))
    pairs = burgers_pairs(8, 256, viscosity=about["viscosity"], seed=4321)
    session = onnxruntime.InferenceSession(str(DATA / "burgers.onnx"))
    seen = pairs.inputs[:, :: 256 // about["nodes"]].float().numpy()
    for stride in (1, 4, 7):
        asked = (torch.arange(0, 256, stride).float() / 256)[:, None]
        found = torch.from_numpy(session.run(None, {"values": seen, "asked": asked.numpy()})[0])
        wanted = pairs.outputs[:, ::stride].float()
        assert float((found - wanted).norm() / wanted.norm()) < 0.01, stride
