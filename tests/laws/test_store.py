"""Laws of storing: every model and every registered class survives the trip to plain text and to a folder."""

import json

import pytest
import torch

from continua.axes import Discretisation, Profile, Samples, at
from continua.config import from_plain, to_plain
from continua.fields import CorrectedNodes, Corrections, LowRank, RefitRanks
from continua.flow import Direct, Fixed, SaveAt
from continua.models import load
from continua.optim import AdamW, ByRole, Muon
from continua.training import Afterwards, StateImitation
from tests import cases
from tests.cases import BASES, INTERPOLATIONS, INTERVALS, MASKS, MODELS, RANDOM_RULES, RULES, SOLVERS, made

FROZEN = [
    *INTERVALS,
    *[rule(5) for rule in RULES],
    *[rule(5, seed=3) for rule in RANDOM_RULES],
    *INTERPOLATIONS,
    *[basis() for _, basis in BASES.values() if not isinstance(basis(), torch.nn.Module)],
    *cases.ALL_SOLVERS,
    *cases.ADAPTIVE,
    *cases.EXACT_ADJOINTS,
    *cases.INEXACT_ADJOINTS,
    *MASKS,
    cases.BY_DEPTH,
    *cases.KERNELS.values(),
    *cases.ACTIVATIONS,
    *cases.STRETCHES,
    RefitRanks(m=4, h=3, d=2),
    LowRank(3, scale=0.5),
    Corrections(3, along="hm"),
    Corrections(None, along="hm"),
    Corrections((3, 2, 1), along="dzf", beyond=1.0),
    Corrections((3, 2, None), along="dza", beyond=1.0, apart=True),
    Corrections(None, along="hd", stored=(CorrectedNodes("h", "m", 4), CorrectedNodes("d", "d", 3)), alone="h"),
    StateImitation(3.0, means=10.0),
    AdamW(1e-2, fused=True),
    Afterwards(0.5, (at(d=4, z=1), at(h=1)), ByRole(AdamW(1e-2), table=Muon(0.03))),
    Profile(5, sizes=(5, 2, 3)),
    *cases.SAMPLINGS,
    *cases.SCHEMES,
    *cases.ROLES,
    *[case[0] for case in BASES.values()],
    cases.SQUARE,
    Samples(),
    Direct(),
    SaveAt(3),
    SaveAt(points=(0.1, 0.5), dense=True),
    at(d=4, z=Fixed(3, SOLVERS[-1])),
    Discretisation(),
]


@pytest.mark.spec("M10")
@pytest.mark.parametrize("thing", FROZEN, ids=str)
def test_frozen_things_come_back_equal(thing) -> None:
    plain = json.loads(json.dumps(to_plain(thing)))
    assert from_plain(plain) == thing
    assert type(from_plain(plain)) is type(thing)


@pytest.mark.spec("M10")
@pytest.mark.parametrize("name", MODELS)
def test_a_configuration_builds_the_same_model(name) -> None:
    model = made(name)[0]
    plain = json.loads(json.dumps(to_plain(model)))
    again = from_plain(plain).double()
    assert to_plain(again) == to_plain(model)
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}
    assert str(again) == str(model)


@pytest.mark.spec("M10")
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_comes_back_exactly(name, tmp_path) -> None:
    model, batch, answer = made(name)
    again = load(model.save(tmp_path / "model"))
    assert {p.name for p in (tmp_path / "model").iterdir()} == {"model.safetensors", "config.json"}
    assert type(again) is type(model)
    state = again.state_dict()
    for path, tensor in model.state_dict().items():
        assert state[path].dtype == torch.float64
        assert torch.equal(state[path], tensor), path
    assert torch.equal(again.eval()(batch), answer)
    assert all(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.spec("M10")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_precision_comes_back(dtype, tmp_path) -> None:
    model = MODELS["gpt2"].model().to(dtype)
    again = load(model.save(tmp_path))
    for path, tensor in model.state_dict().items():
        assert again.state_dict()[path].dtype == dtype
        assert torch.equal(again.state_dict()[path], tensor)


@pytest.mark.spec("M10")
def test_mixed_precision_comes_back(tmp_path) -> None:
    model = MODELS["gpt2"].model()
    model.embed.to(torch.bfloat16)
    again = load(model.save(tmp_path))
    for path, tensor in model.state_dict().items():
        assert again.state_dict()[path].dtype == tensor.dtype, path
        assert torch.equal(again.state_dict()[path], tensor)


@pytest.mark.spec("M10")
def test_saving_again_replaces_the_files(tmp_path) -> None:
    first, second = MODELS["gpt2"].model(), MODELS["bert"].model()
    first.save(tmp_path)
    second.save(tmp_path)
    assert to_plain(load(tmp_path)) == to_plain(second)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
