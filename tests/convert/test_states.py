"""The width of the state at smaller sizes: an order chosen by data, refitted maps, norms that keep their scale."""

from typing import Any

import pytest
import torch

import continua as ct
from continua.convert.moments import Sums, collected
from continua.convert.states import Reading, state_order
from continua.fields import RefitRanks
from continua.operators import Attention, Pointwise
from continua.operators.refit import RIDGE
from tests.measure import EXACT, gap

WHOLE = RefitRanks(m=64, h=64, d=64)
CONFIGURATIONS = ["bert", "gpt2", "llama", "grouped"]


def words(count: int = 24, vocab: int = 11, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, (4, count), generator=torch.Generator().manual_seed(seed))


def data(count: int = 6) -> list[torch.Tensor]:
    return [words(seed=seed) for seed in range(count)]


def made_by(name: str) -> Any:
    torch.manual_seed(0)
    if name == "grouped":
        return ct.zoo.llama(vocab=11, d=16, heads=4, depth=2, m=24, groups=2).double()
    sizes = {} if name == "llama" else {"context": 32}
    return getattr(ct.zoo, name)(vocab=11, d=16, heads=4, depth=2, m=24, **sizes).double()


@pytest.fixture(scope="module")
def bert() -> Any:
    return ct.elastic(made_by("bert"), calibrate=data(), ranks=WHOLE)


@pytest.mark.spec("B11")
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_narrow_state_is_one_model_however_it_is_read(name, tmp_path) -> None:
    plain = made_by(name)
    elastic = ct.elastic(plain, calibrate=data())
    ids = words(seed=9)
    assert gap(elastic(ids), plain(ids)) <= EXACT
    view = elastic.at(d=10, m=12)
    assert gap(view.held()(ids), view(ids)) <= EXACT
    assert gap(ct.discretise(view)(ids), view(ids)) <= EXACT
    again = ct.load(elastic.save(tmp_path / "saved"))
    assert gap(again.at(d=10, m=12)(ids), view(ids)) <= EXACT


@pytest.mark.spec("B11")
def test_maps_that_read_the_state_are_least_squares_maps_of_what_is_kept(bert) -> None:
    """With all moments, W_S + W_R Σ_RS (Σ_SS + λ)⁻¹ and its bias, for queries and for feed-forward."""
    seen = collected(bert, data())
    grids = bert.structure(ct.at(d=10, m=24)).grids
    feed = next(module for module in bert.modules() if isinstance(module, Pointwise))
    kept = torch.from_numpy(feed.state_refit.kept((grids.d.key,)))
    left = torch.tensor([i for i in range(16) if i not in kept.tolist()])
    for kind, weight, bias in ((Pointwise, "w1", "b1"), (Attention, "q", "bq")):
        operator = next(module for module in bert.modules() if isinstance(module, kind))
        mean, second = seen.of(operator, state=True)[1].moments(centred=True)
        system = second[kept][:, kept] + RIDGE * second.diagonal().mean() * torch.eye(10)
        part = torch.linalg.solve(system, second[kept][:, left]).mT
        read = operator.read(grids.with_depths(bert.structure().depths[0])).weights.at(1.0)
        order = operator.refit.order[1].long()
        whole = getattr(operator, weight).coefficients[1][order].flatten(0, -2)
        assert gap(read[weight], whole[:, kept] + whole[:, left] @ part) < 1e-2  # eight bits of the moments
        shift = whole[:, left] @ (mean[left] - part @ mean[kept])
        assert gap(read[bias], getattr(operator, bias).coefficients[1][order].flatten() + shift) < 1e-2


@pytest.mark.spec("B11")
def test_a_calibrated_narrow_state_is_closer_than_a_raw_one(bert) -> None:
    plain = made_by("bert")
    raw = ct.lift(plain)
    ids = words(seed=99)

    def apart(model: Any) -> float:
        view = model.at(d=12, m=24)
        own = model.structure(ct.at(d=12, m=24)).grids.d.nodes
        places = torch.cdist(own, model.structure().grids.d.nodes).argmin(1)
        return float((view(ids) - plain(ids)[..., places]).detach().square().mean())

    assert apart(bert) < 0.5 * apart(raw)


@pytest.mark.spec("B11")
def test_a_coordinate_that_others_say_comes_late() -> None:
    torch.manual_seed(0)
    states = torch.randn(500, 4, dtype=torch.float64) * torch.tensor([2.0, 3.0, 1.0, 0.1])
    states[:, 1] = states[:, 0] + 1e-3 * states[:, 1]
    sums = Sums(0, torch.zeros(4).double(), torch.zeros(4, 4).double())
    sums.add(states)
    order = state_order([Reading((sums, sums), torch.ones(2, 4, dtype=torch.float64))]).tolist()
    assert order[0] in (0, 1)
    assert order[1:3] == [2, 3]
    assert sorted(order) == [0, 1, 2, 3]
    heeded = state_order([Reading((sums,), torch.tensor([[0.0, 0.0, 0.1, 90.0]], dtype=torch.float64))]).tolist()
    assert heeded[0] == 3  # what a coordinate feeds counts beside how much it varies


@pytest.mark.spec("B11")
def test_a_norm_over_half_of_the_state_keeps_the_scale(bert) -> None:
    """In the mean over tokens: the variance of what the norm gives to the coordinates that are kept."""
    plain = made_by("bert")
    ids = words(seed=5)
    wanted = plain.embed(ct.Batch(ids), plain.prepare(ids, plain.structure())[1])
    structure = bert.structure(ct.at(d=8))
    batch, grids = bert.prepare(ids, structure)
    got = bert.embed(batch, grids)
    places = torch.cdist(grids.d.nodes, bert.structure().grids.d.nodes).argmin(1)
    known = wanted[..., places].detach()
    assert abs(float(got.detach().std() / known.std()) - 1) < 0.1
    assert abs(float(got.detach().mean() - known.mean())) < 0.1
