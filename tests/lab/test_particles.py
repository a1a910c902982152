"""Tokens as particles: interactions and their definitions, layers and the flow, noise, refusals."""

import math
from typing import Any

import numpy
import pytest
import torch

from continua.errors import ConfigError, ShapeError
from continua.flow import RK4, Euler, Fixed, OnSphere
from continua.geometry import sphere
from continua.lab import (
    ByFourier,
    Dense,
    Fused,
    Hardmax,
    Norm,
    Particles,
    SelfAttention,
    Sinkhorn,
    Unnormalised,
    free,
    layers,
    log_energy,
    simulate,
)
from continua.lab.particles.bessel import log_mean, quotients
from tests.measure import EXACT, gap, random, slope
from tests.refusals import refused

DOUBLE = torch.float64


def drawn(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return sphere.uniform((n, d), torch.Generator().manual_seed(seed))


def masses(n: int) -> torch.Tensor:
    w = random(n, seed=5).abs() + 0.1
    return w / w.sum()


# --- interactions against their definitions --------------------------------------------------------------------------


def written_out(kind: Any, x: torch.Tensor, w: torch.Tensor, beta: float, q: Any, k: Any, v: Any) -> torch.Tensor:
    """One token after the other, one source after the other."""
    n = len(x)
    found = torch.zeros_like(x)
    for i in range(n):
        terms = [w[j] * torch.exp(beta * (q @ x[i]) @ (k @ x[j])) for j in range(n)]
        total = torch.stack(terms).sum() if kind is SelfAttention else torch.tensor(1.0, dtype=DOUBLE)
        pull = sum((terms[j] * (v @ x[j]) for j in range(n)), torch.zeros_like(x[0])) / total
        found[i] = pull - (x[i] @ pull) * x[i]
    return found


@pytest.mark.spec("L1")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised])
@pytest.mark.parametrize("d", [2, 3, 5])
def test_velocities_are_what_the_formula_says(kind: Any, d: int) -> None:
    x, w = drawn(7, d), masses(7)
    q, k, v = random(4, d, seed=1), random(4, d, seed=2), random(d, d, seed=3)
    got = kind(1.3, q=q, k=k, v=v).velocity(x, w)
    assert gap(got, written_out(kind, x, w, 1.3, q, k, v)) < EXACT
    eye = torch.eye(d, dtype=DOUBLE)
    assert (
        gap(kind(1.3).velocity(x), written_out(kind, x, torch.full((7,), 1 / 7, dtype=DOUBLE), 1.3, eye, eye, eye))
        < EXACT
    )


@pytest.mark.spec("L1")
def test_velocities_are_tangent_and_turn_with_the_tokens() -> None:
    x, turn = drawn(20, 4), torch.linalg.qr(random(4, 4, seed=1))[0]
    for one in (SelfAttention(3.0), Unnormalised(3.0), Sinkhorn(3.0), Hardmax()):
        got = one.velocity(x)
        assert (got * x).sum(-1).abs().max() < EXACT, one.name
        assert gap(one.velocity(x @ turn), got @ turn) < 1e-10, one.name
        order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
        assert gap(one.velocity(x[order]), got[order]) < 1e-10, one.name


@pytest.mark.spec("L1")
def test_sinkhorn_attention_has_rows_and_columns_of_mean_one() -> None:
    """The sum over tokens of what they give equals the sum of what there is: Σ_i w_i Σ_j A_ij x_j = Σ_j w_j x_j."""
    x, w = drawn(40, 3), masses(40)
    q, k = random(3, 3, seed=1), random(3, 3, seed=2)
    for one in (Sinkhorn(2.0), Sinkhorn(2.0, q=q, k=k)):
        got = one.drift(x, w)
        assert gap(w @ got, w @ x) < 1e-11
    ones = Sinkhorn(2.0, q=q, k=k).drift(torch.cat([x, torch.zeros_like(x[:, :1])], -1)[:, :3], w)
    assert (ones.norm(dim=-1) < 1 + 1e-12).all()  # each row is a mean of unit vectors


@pytest.mark.spec("L1")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_hardmax_is_the_limit_of_softmax(sign: float) -> None:
    x, w = drawn(12, 3), masses(12)
    q = random(3, 3, seed=4)
    assert gap(Hardmax(sign, q=q).velocity(x, w), SelfAttention(sign * 1e5, q=q).velocity(x, w)) < 1e-9
    pair = Particles.circle([0.0, 2.0, 2.0, 2.0])
    seen = Hardmax(-1.0).drift(pair.x)[0]  # the farthest three share the attention
    assert gap(seen, pair.x[1]) < EXACT


@pytest.mark.spec("L1")
def test_weightless_tokens_are_never_seen() -> None:
    x, w = drawn(6, 3), torch.tensor([0.5, 0.0, 0.25, 0.25, 0.0, 0.0], dtype=DOUBLE)
    some = w > 0
    for one in (SelfAttention(2.0), Unnormalised(2.0), Sinkhorn(2.0), Hardmax(), SelfAttention(2.0, sums=Fused())):
        assert gap(one.velocity(x, w)[some], one.velocity(x[some], w[some])) < 1e-12, one.name


@pytest.mark.spec("L1")
def test_a_token_of_twice_the_weight_is_two_tokens() -> None:
    x = drawn(5, 3)
    twice = torch.cat([x, x[:1]])
    w = torch.tensor([2.0, 1, 1, 1, 1], dtype=DOUBLE) / 6
    for one in (SelfAttention(2.0), Unnormalised(2.0), Sinkhorn(2.0), Hardmax()):
        assert gap(one.velocity(x, w), one.velocity(twice)[:5]) < 1e-11, one.name


@pytest.mark.spec("L1")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised])
def test_heads_add_up_and_feed_forward_joins(kind: Any) -> None:
    x = drawn(9, 3)
    q, k, v = random(2, 4, 3, seed=1), random(2, 4, 3, seed=2), random(2, 3, 3, seed=3)
    both = kind(1.0, q=q, k=k, v=v).velocity(x)
    each = [kind(1.0, q=q[h], k=k[h], v=v[h]).velocity(x) for h in range(2)]
    assert gap(both, each[0] + each[1]) < EXACT
    weight = random(3, 3, seed=4)
    fed = kind(1.0, q=q, k=k, v=v, feed=lambda x: torch.relu(x @ weight)).velocity(x)
    assert gap(fed - both, sphere.tangent(x, torch.relu(x @ weight))) < EXACT


@pytest.mark.spec("L1")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised, Hardmax])
def test_causal_tokens_see_themselves_and_earlier_ones(kind: Any) -> None:
    x = drawn(8, 3)
    whole = kind(2.0, causal=True).velocity(x)
    for i in range(1, 9):
        assert gap(whole[i - 1], kind(2.0).velocity(x[:i])[-1]) < EXACT, i


# --- in time ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L2")
@pytest.mark.parametrize("kind", [SelfAttention, Unnormalised])
def test_layers_converge_to_the_flow_with_order_one(kind: Any) -> None:
    start, one = Particles.uniform(12, 3, torch.Generator().manual_seed(0)), kind(1.0)
    wanted = simulate(one, start, 1.0, save=2, solver=OnSphere(RK4()), control=Fixed(200)).x[-1]
    sizes = [1 / 8, 1 / 16, 1 / 32, 1 / 64]
    errors = [gap(layers(one, start, round(1 / h), h).x[-1], wanted) for h in sizes]
    assert abs(slope([1 / h for h in sizes], errors) - 1) < 0.15, errors
    euler = simulate(one, start, 1.0, save=2, solver=OnSphere(Euler()), control=Fixed(64)).x[-1]
    assert gap(euler, wanted) < 0.1


@pytest.mark.spec("L2")
def test_pre_norm_layers_converge_to_tokens_that_are_free_in_length() -> None:
    start, one = Particles.uniform(10, 3, torch.Generator().manual_seed(0)), SelfAttention(2.0)
    wanted = free(one, start, 1.0, save=2).x[-1]
    sizes = [1 / 8, 1 / 16, 1 / 32, 1 / 64]
    errors = [gap(layers(one, start, round(1 / h), h, Norm.PRE).x[-1], wanted) for h in sizes]
    assert abs(slope([1 / h for h in sizes], errors) - 1) < 0.15, errors
    assert (wanted.norm(dim=-1) > 1).all()


@pytest.mark.spec("L1", "L2")
def test_a_simulation_stays_on_the_sphere_and_keeps_its_times(tmp_path: Any) -> None:
    start = Particles.uniform(30, 3, torch.Generator().manual_seed(0))
    told: list[float] = []
    path = simulate(SelfAttention(4.0), start, 3.0, save=7, watch=told.append)
    assert gap(path.x.norm(dim=-1), torch.ones(7, 30, dtype=DOUBLE)) < EXACT
    assert gap(path.times, torch.linspace(0, 3, 7, dtype=DOUBLE)) < EXACT
    assert gap(path.x[0], start.x) < EXACT
    assert told[-1] == 1.0
    assert max(told) <= 1.0
    exact = simulate(SelfAttention(4.0), start, 3.0, save=7, solver=OnSphere(RK4()), control=Fixed(600))
    assert gap(path.x, exact.x) < 1e-4
    kept = numpy.load(path.save(tmp_path / "run"))
    assert numpy.array_equal(kept["x"], path.x.numpy())
    assert '"beta": 4.0' in str(kept["about"])


@pytest.mark.spec("L1")
def test_gradients_go_through_a_simulation() -> None:
    start = drawn(5, 3)
    q = (torch.eye(3, dtype=DOUBLE) + 0.1 * random(3, 3)).requires_grad_()

    def loss(matrix: torch.Tensor) -> torch.Tensor:
        path = simulate(SelfAttention(1.0, q=matrix), Particles(start), 1.0, save=2, control=Fixed(20))
        return path.x[-1, 0, 0]

    loss(q).backward()
    for i, j in ((0, 0), (2, 1)):
        step = torch.zeros(3, 3, dtype=DOUBLE)
        step[i, j] = 1e-6
        with torch.no_grad():
            assert abs(float((loss(q + step) - loss(q - step)) / 2e-6) - float(q.grad[i, j])) < 1e-8


@pytest.mark.spec("L1")
@pytest.mark.parametrize("d", [2, 4])
def test_noise_forgets_where_it_came_from_at_the_rate_of_the_sphere(d: int) -> None:
    """E⟨x(t), x(0)⟩ = e^{−(d−1)t/κ}: Brownian motion whose generator is Δ/κ."""
    start = Particles(drawn(4000, d).reshape(40, 100, d))
    still = SelfAttention(1.0, v=torch.zeros(d, d, dtype=DOUBLE), kappa=3.0)
    path = simulate(still, start, 1.0, save=3, control=Fixed(200), generator=torch.Generator().manual_seed(2))
    for frame, t in ((1, 0.5), (2, 1.0)):
        seen = float((path.x[frame] * path.x[0]).sum(-1).mean())
        assert abs(seen - math.exp(-(d - 1) * t / 3)) < 0.03  # four standard errors of 4,000 tokens, and the step


@pytest.mark.spec("M6", "L4")
def test_geodesics_of_the_sphere() -> None:
    x, y, v = drawn(50, 4), drawn(50, 4, 1), random(50, 4, seed=2)
    v, w = sphere.tangent(x, v), sphere.tangent(x, random(50, 4, seed=3))
    assert gap(sphere.exp(x, sphere.log(x, y)), y) < 1e-12
    assert gap(sphere.log(x, y).norm(dim=-1), sphere.distance(x, y)) < 1e-12
    assert gap(sphere.geodesic(x, y, 0.0), x) < EXACT
    middle = sphere.geodesic(x, y, 0.5)
    assert gap(sphere.distance(x, middle), sphere.distance(middle, y)) < 1e-12
    moved, other = sphere.transport(x, y, v), sphere.transport(x, y, w)
    assert (moved * y).sum(-1).abs().max() < 1e-11
    assert gap((moved * other).sum(-1), (v * w).sum(-1)) < 1e-10  # an isometry
    assert gap(sphere.transport(x, y, sphere.log(x, y)), -sphere.log(y, x)) < 1e-10
    close = sphere.exp(x, 1e-9 * v)
    assert gap(sphere.distance(x, close) / (1e-9 * v.norm(dim=-1)), torch.ones(50, dtype=DOUBLE)) < 1e-6
    assert gap(sphere.log(x, x), torch.zeros_like(x)) == 0
    assert sphere.log(x, -x).isnan().all()


@pytest.mark.spec("L1")
def test_starts_have_the_shape_they_promise() -> None:
    assert gap(Particles.equiangular(5, 0.3, d=7).x @ Particles.equiangular(5, 0.3, d=7).x.mT,
               torch.full((5, 5), 0.3, dtype=DOUBLE).fill_diagonal_(1.0)) < EXACT  # fmt: skip
    assert gap(Particles.orthogonal(4).x @ Particles.orthogonal(4).x.mT, torch.eye(4, dtype=DOUBLE)) < EXACT
    corners = Particles.polygon(5)
    assert gap(corners.x.mean(0), torch.zeros(2, dtype=DOUBLE)) < EXACT
    alone = Particles.uniform(1, 3)
    assert gap(simulate(SelfAttention(3.0), alone, 1.0, save=2).x[-1], alone.x) < EXACT  # one token has nowhere to go


@pytest.mark.spec("L1")
def test_what_is_no_particle_is_refused() -> None:
    with refused(ShapeError, "dimension 1", "d=3"):
        Particles(torch.ones(4, 1, dtype=DOUBLE))
    with refused(ShapeError, "n=0", "Particles.uniform"):
        Particles.uniform(0, 3)
    with refused(ShapeError, "1 off it", "Particles.of"):
        Particles(2 * drawn(4, 3))
    x = drawn(4, 3)
    x[1, 2] = math.nan
    with refused(ShapeError, "1 with NaN", "Leave them out"):
        Particles(x)
    with refused(ShapeError, "sum 4", "Divide"):
        Particles(drawn(4, 3), torch.ones(4, dtype=DOUBLE))
    with refused(ShapeError, "1 of them", "Leave them out"):
        Particles.of(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    with refused(ShapeError, "gamma=-0.9", "above −1/(n−1)"):
        Particles.equiangular(4, -0.9)
    with refused(ShapeError, "d=3", "d=2"):
        _ = Particles.uniform(4, 3).angles


@pytest.mark.spec("L1")
def test_what_is_no_interaction_is_refused() -> None:
    with refused(ConfigError, "inf", "Hardmax()"):
        SelfAttention(math.inf)
    with refused(ConfigError, "-1.0", "no noise"):
        SelfAttention(1.0, kappa=-1.0)
    with refused(ShapeError, "[2, 3]", "[heads, …, d]"):
        SelfAttention(1.0, q=random(2, 3, 3), v=random(3, 3, 3))
    with refused(ShapeError, "q of shape (4, 5)", "last dimension"):
        SelfAttention(1.0, q=random(4, 5)).velocity(drawn(4, 3))
    for sums in (Dense(), Fused(), ByFourier()):
        with refused(ConfigError, "800", "SelfAttention"):
            Unnormalised(800.0, sums=sums).velocity(drawn(300, 2))
    assert SelfAttention(1e6).velocity(drawn(300, 2)).isfinite().all()
    with refused(ConfigError, "Sinkhorn(causal=True)", "SelfAttention(causal=True)"):
        Sinkhorn(1.0, causal=True).velocity(drawn(4, 3))
    start = Particles.uniform(4, 3)
    with refused(ConfigError, "-1.0", "until=10.0"):
        simulate(SelfAttention(1.0), start, -1.0)
    with refused(ConfigError, "1", "save ≥ 2"):
        simulate(SelfAttention(1.0), start, 1.0, save=1)
    with refused(ConfigError, "0", "steps ≥ 1"):
        layers(SelfAttention(1.0), start, 0)


@pytest.mark.spec("L1", "B17")
@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("beta", [1e9, 1e308, -(2**63), -(10**40)])
def test_however_sharp_attention_is_it_is_summed_by_pairs(d: int, beta: float) -> None:
    x = drawn(300, d)
    found = SelfAttention(beta).velocity(x)
    assert gap(found, SelfAttention(beta, sums=Dense()).velocity(x)) < EXACT
    assert gap(found, Hardmax(math.copysign(1.0, beta)).velocity(x)) < 1e-6
    with refused(ConfigError, "ByFourier", "Leave sums out"):
        SelfAttention(beta, sums=ByFourier()).velocity(drawn(4, 2))


@pytest.mark.spec("L1", "B17")
def test_what_would_never_end_is_refused() -> None:
    start = Particles.uniform(4, 3)
    with refused(ConfigError, "until=1e+308", "10000"):
        simulate(SelfAttention(1.0, kappa=1.0), start, 1e308)
    with refused(ConfigError, "1e-320", "no noise"):
        SelfAttention(1.0, kappa=1e-320)
    with refused(ConfigError, "1.5", "steps ≥ 1"):
        layers(SelfAttention(1.0), start, 1.5)  # type: ignore[arg-type]
    with refused(ConfigError, "1e+300", "Hardmax()"):
        Sinkhorn(1e300).velocity(drawn(4, 3))
    with refused(ConfigError, "β=1e+308", "a smaller beta"):
        log_mean(1e308, 3)
    with refused(ConfigError, "β=1e+20", "a smaller beta"):
        quotients(1e20, 0.5, 3)
    with refused(ConfigError, "inf", "finite"):
        log_energy(start, math.inf)
    assert log_energy(start, 1e300).isfinite().all()
