"""L5: clusters, plateaus, rates of collapse, leaders and causal limits."""

import math
import sys
from itertools import pairwise

import pytest
import torch

from continua.errors import ConfigError, ShapeError
from continua.flow import Adaptive
from continua.geometry import sphere
from continua.lab.particles.clusters import (
    Clusters,
    causal_limit,
    clusters,
    collapse_rate,
    hardmax_leaders,
    leaders,
    parked,
    plateaus,
    usual_gap,
)
from continua.lab.particles.energy import energies
from continua.lab.particles.fixed_points import clustered
from continua.lab.particles.interaction import Hardmax, SelfAttention, Unnormalised
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import simulate
from continua.lab.theory.theorems import polygon_rates
from tests.refusals import refused

pytestmark = pytest.mark.spec("L5")

TIGHT = Adaptive(rtol=1e-10, atol=1e-13, max_steps=100_000)
RATE = 2e-3  # 1 − ⟨cos⟩ below 1e-3: what the next order adds
LINEAR = 1e-5  # perturbations of 1e-4 along an eigenvector: the second order vanishes, a solve to 1e-10 leaves 1e-6


def by_union(x: torch.Tensor, gap: float) -> list[int]:
    """Components by scipy, for one set of tokens."""
    from scipy.sparse.csgraph import connected_components

    return connected_components((sphere.distance(x[:, None], x) <= gap).numpy())[1].tolist()


def same_partition(a: list[int], b: list[int]) -> bool:
    pairs = set(zip(a, b, strict=True))
    return len(pairs) == len(set(a)) == len(set(b))


# --- clusters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("gap", [0.03, 0.2, 0.6])
def test_clusters_are_the_components_of_near_tokens(d, gap, generator):
    p = Particles.uniform(150, d, generator, runs=3)
    found = clusters(p, gap)
    for x, labels, count, sizes in zip(p.x, found.labels, found.count, found.sizes, strict=True):
        assert same_partition(labels.tolist(), by_union(x, gap))
        assert sorted(set(labels.tolist())) == list(range(int(count)))
        share = [(labels == c).sum().item() / 150 for c in range(int(count))]
        assert sizes.tolist()[: int(count)] == pytest.approx(share)
        assert float(sizes[int(count) :].sum()) == 0


def test_blocks_see_what_the_whole_sees(monkeypatch, generator):
    p = Particles.uniform(200, 3, generator, runs=2)
    whole = clusters(p, 0.15)
    monkeypatch.setattr(sys.modules[clusters.__module__], "BLOCK", 1000)  # five rows at a time
    assert torch.equal(clusters(p, 0.15).labels, whole.labels)


def test_a_long_chain_is_one_cluster():
    """Links go on through others, also around the circle and in any order."""
    theta = torch.linspace(0.0, 6.0, 400, dtype=torch.float64)[torch.randperm(400)]
    x = Particles.circle(theta).x
    for p in (Particles(x), Particles(torch.cat([x, torch.zeros(400, 1, dtype=x.dtype)], -1))):
        assert clusters(p, 0.02).count == 1
        assert clusters(p, 0.01).count == 400  # 6/399 apart
    assert clusters(Particles.circle([3.1, -3.1]), 0.1).count == 1  # neighbours across ±π
    assert clusters(Particles.circle([3.1, -3.1, 0.0]), 0.1).labels.tolist() == [0, 0, 1]


def test_sizes_and_centres_are_weighted():
    w = torch.tensor([0.5, 0.1, 0.4], dtype=torch.float64)
    found = clusters(Particles.circle([0.0, 0.1, 2.0], w), 0.3)
    assert found.labels.tolist() == [0, 0, 1]
    assert found.sizes.tolist() == pytest.approx([0.6, 0.4])
    mean = torch.tensor([0.5 + 0.1 * math.cos(0.1), 0.1 * math.sin(0.1)], dtype=torch.float64)
    torch.testing.assert_close(found.centres[0], mean / mean.norm())
    assert clusters(Particles.circle([1.0]), 0.3).count == 1


def test_a_simulation_has_its_own_gap(generator):
    run = simulate(SelfAttention(16.0), Particles.uniform(40, 2, generator, runs=3), 6.0, save=5)
    found = clusters(run)
    assert isinstance(found, Clusters)
    assert found.gap == 0.125
    assert found.count.shape == (5, 3)
    assert found.labels.shape == (5, 3, 40)
    assert found.centres.shape[:2] == (5, 3)
    assert torch.equal(found.count[-1], clusters(run.final, 0.125).count)
    assert (found.count[-1] < found.count[0]).all()
    assert usual_gap(SelfAttention(0.1)) == 0.5
    assert usual_gap(SelfAttention(-4.0)) == 0.25
    assert usual_gap(Hardmax()) is None


# --- plateaus ---------------------------------------------------------------------------------------------------------


def test_plateaus_of_a_polygon_that_falls():
    """Four clusters, nearly a square, stay for about log(1/0.05)/λ and then merge."""
    beta, off = 4.0, 0.03
    angles = torch.arange(4, dtype=torch.float64) * (math.pi / 2) + torch.tensor([off, 0, 0, 0], dtype=torch.float64)
    times = torch.cat([torch.zeros(1), torch.logspace(-1, 2.5, 80)]).double()
    run = simulate(SelfAttention(beta), Particles.circle(angles.repeat_interleave(3)), float(times[-1]), save=times)
    found = plateaus(run)
    assert found[0].count == 4
    assert found[0].start == 0.0
    assert [p.count for p in found] == sorted((p.count for p in found), reverse=True)
    assert len(found) >= 2
    assert found[-1].open
    assert not found[0].open
    climbed = [p.energy for p in found]
    assert climbed == sorted(climbed)
    assert all(a.end <= b.start for a, b in pairwise(found))
    rate = polygon_rates(4, beta).inter.max().item()
    assert found[0].end > 1 / rate  # it is slow
    inside = (run.times >= found[0].start) & (run.times <= found[0].end)
    rise = energies(run)[inside]
    assert float(rise[-1] - rise[0]) < 0.05 * float(energies(run)[-1] - rise[0])

    sizes = [int(((run.times >= p.start) & (run.times <= p.end)).sum()) for p in found]
    assert plateaus(run, frames=min(sizes)) == found
    assert len(plateaus(run, frames=min(sizes) + 1)) == len(found) - 1


def test_tokens_on_their_way_are_no_plateau(generator):
    run = simulate(SelfAttention(1.0), Particles.uniform(30, 3, generator), 1.0, save=20)
    assert plateaus(run) == []


# --- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 5])
def test_collapse_rates_of_sa_and_usa(d, generator):
    """1 − ⟨cos⟩ falls as e^{−2t} and e^{−2e^β t}; angles, its square root, at the rates 1 and e^β."""
    beta = 1.2
    x = sphere.retract(sphere.uniform((3, 12, d), generator) * 0.3 + torch.eye(d, dtype=torch.float64)[0])
    w = torch.rand(3, 12, generator=generator, dtype=torch.float64) + 0.1
    for interaction, rate in ((SelfAttention(beta), 1.0), (Unnormalised(beta), math.exp(beta))):
        run = simulate(interaction, Particles(x, w / w.sum(-1, keepdim=True)), 9.0 / rate, save=80)
        found = collapse_rate(run)
        assert found.shape == (3,)
        assert found.tolist() == pytest.approx([2 * rate] * 3, rel=RATE)


def test_a_collapse_that_was_not_seen_is_refused(generator):
    run = simulate(SelfAttention(1.0), Particles.uniform(12, 3, generator), 1.0, save=9)
    with refused(ConfigError, "0 of 9 frames", "Simulate for longer"):
        collapse_rate(run)


@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised])
@pytest.mark.parametrize(("k", "beta"), [(3, 2.0), (4, 5.0), (5, 1.0)])
def test_polygon_rates_by_simulation(kind, k, beta):
    """Corners pushed along cos(2πjm/k) leave at the rate inter_m, tokens of a corner pushed apart close up at intra."""
    rates, each = polygon_rates(k, beta, kind(beta)), 2
    corner = torch.arange(k, dtype=torch.float64) * (2 * math.pi / k)
    apart = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(k)
    modes = [(corner * m).cos().repeat_interleave(each) for m in range(1, k // 2 + 1)]
    for mode, rate in zip([apart, *modes], [rates.intra, *rates.inter[1:].tolist()], strict=False):
        angles = corner.repeat_interleave(each) + 1e-4 * mode
        run = simulate(kind(beta), Particles.circle(angles), 0.5 / abs(rate), save=2, control=TIGHT)
        moved = (run.final.angles - corner.repeat_interleave(each) + math.pi) % (2 * math.pi) - math.pi
        size = float((moved * mode).sum() / (mode * mode).sum()) / 1e-4
        assert math.log(size) / float(run.times[-1]) == pytest.approx(rate, rel=LINEAR)


# --- leaders ----------------------------------------------------------------------------------------------------------


def test_the_heaviest_token_of_a_cluster_leads():
    w = torch.tensor([0.05, 0.4, 0.05, 0.05, 0.05, 0.4], dtype=torch.float64)
    start = Particles.circle([-0.3, 0.0, 0.3, 2.7, 3.0, 3.3], w)
    run = simulate(SelfAttention(9.0), start, 6.0)
    assert sorted(leaders(run).tolist()) == [1, 5]
    assert int(clusters(run).count[-1]) == 2


def test_the_first_token_leads_causal_ones(generator):
    run = simulate(SelfAttention(1.0, causal=True), Particles.uniform(10, 3, generator), 40.0)
    assert leaders(run).tolist() == [0]


def test_followers_of_hardmax_join_leaders(generator):
    """Scores ⟨Ax_i, x_j⟩ with A = diag(2, 1): those far along the first axis see themselves only, others move."""
    score = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    interaction, start = Hardmax(k=score), Particles.uniform(12, 2, generator)
    first = hardmax_leaders(interaction, start)
    assert 0 < int(first.sum()) < 12
    scores = start.x @ score @ start.x.T
    assert torch.equal(first, scores.argmax(-1) == torch.arange(12))
    speed = interaction.velocity(start.x).norm(dim=-1)
    assert float(speed[first].max()) < 1e-12
    assert float(speed[~first].min()) > 1e-3
    end = simulate(interaction, start, 30.0).final
    stayed = hardmax_leaders(interaction, end)
    near = sphere.distance(end.x[:, None], end.x[stayed]).amin(-1)
    assert float(near.max()) < 1e-3
    torch.testing.assert_close(end.x[first], start.x[first])


def test_every_token_leads_itself_with_equal_scores(generator):
    p = Particles.uniform(9, 3, generator, runs=2)
    assert hardmax_leaders(SelfAttention(5.0), p).all()
    turn = torch.stack([torch.eye(3, dtype=torch.float64), -torch.eye(3, dtype=torch.float64)])
    assert not hardmax_leaders(SelfAttention(5.0, q=turn), p).any()  # the second head looks at the opposite


def test_parking_keeps_its_distance(generator):
    p = Particles.uniform(300, 2, generator)
    found = parked(p, 0.3)
    apart = sphere.distance(p.x[found][:, None], p.x[found])
    assert float(apart[~torch.eye(len(found), dtype=torch.bool)].min()) > 0.3
    assert float(sphere.distance(p.x[:, None], p.x[found]).amin(-1).max()) <= 0.3
    assert found[0] == 0
    assert found.tolist() == sorted(found.tolist())
    for i in set(range(300)) - set(found.tolist()):
        assert float(sphere.distance(p.x[i], p.x[found[found < i]]).min()) <= 0.3  # one that came before is in its way


def test_causal_tokens_gather_around_parked_ones(generator):
    """At β = 64 most tokens are within 1/√β of a parked one, long before all of them are one."""
    p, beta = Particles.uniform(150, 2, generator), 64.0
    end = simulate(SelfAttention(beta, causal=True), p, 8.0).final
    centres = p.x[parked(p, 2.0 / math.sqrt(beta))]
    near = sphere.distance(end.x[:, None], centres).amin(-1)
    assert int(clusters(end, 0.5 / math.sqrt(beta)).count) > 4
    assert float((near < 1 / math.sqrt(beta)).double().mean()) > 0.8


# --- causal limits ----------------------------------------------------------------------------------------------------


def test_causal_limit_of_values(generator):
    p = Particles.uniform(8, 3, generator)
    torch.testing.assert_close(causal_limit(SelfAttention(1.0, causal=True), p), p.x[0])
    v = torch.diag(torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64))
    turn = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
    interaction = SelfAttention(2.0, v=turn @ v @ turn.T, causal=True)
    limit = causal_limit(interaction, p)
    end = simulate(interaction, p, 12.0).final.x
    torch.testing.assert_close(end[0], limit, rtol=0, atol=1e-5)
    flat = torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64))
    pulled = causal_limit(SelfAttention(1.0, v=flat, causal=True), p)
    torch.testing.assert_close(pulled, sphere.retract(p.x[0] * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)))
    both = torch.stack([flat, -flat + torch.eye(3, dtype=torch.float64)])  # heads add up to the identity
    torch.testing.assert_close(causal_limit(SelfAttention(1.0, v=both, causal=True), p), p.x[0])


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refusals(generator):
    p = Particles.uniform(6, 2, generator)
    with refused(ConfigError, "none", "Give gap"):
        clusters(p)
    with refused(ConfigError, "4.0", "Give gap"):
        clusters(p, 4.0)
    run = simulate(Hardmax(), p, 1.0, save=3)
    with refused(ConfigError, "none", "Give gap"):
        clusters(run)
    many = simulate(SelfAttention(1.0), Particles.uniform(6, 2, generator, runs=2), 1.0, save=3)
    for look in (plateaus, leaders):
        with refused(ShapeError, "[2] runs side by side", "Particles(x[0])"):
            look(many)
    with refused(ConfigError, "causal=False", "causal=True"):
        causal_limit(SelfAttention(1.0), p)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    with refused(ConfigError, "a matrix v that is not", "symmetric"):
        causal_limit(SelfAttention(1.0, v=turn, causal=True), p)
    with refused(ShapeError, "[2, 6, 2]", "x[0]"):
        parked(many.final, 0.1)
    with refused(ConfigError, "0.0", "between 0 and π"):
        parked(p, 0.0)


def test_a_clustered_polygon_has_as_many_clusters_as_corners():
    assert int(clusters(clustered(5, 4), 0.1).count) == 5
    assert clusters(clustered(5, 4, 3), 0.1).sizes.tolist() == pytest.approx([0.2] * 5)
