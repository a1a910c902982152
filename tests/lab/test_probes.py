"""L8: the probes of real models, against closed forms, hand-made models, and on real pretrained weights."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from rich.console import Console
from torch.nn.functional import normalize

import continua as ct
from continua.convert import elastic
from continua.errors import ConfigError, ShapeError
from continua.fields import counted
from continua.lab.canvas.dynamics_plots import (
    plot_cosines,
    plot_energy,
    plot_iteration,
    plot_jumps,
    plot_ladder,
    plot_spectra,
)
from continua.lab.probes.dynamics import Sinks, angles, dynamics, effective_rank, energy, linked, look
from continua.lab.probes.iterate import iterate, substeps
from continua.lab.probes.ladder import ladder
from continua.lab.probes.spectra import matrices, spectra, spectrum
from continua.lab.probes.stack import opened
from continua.models import Batch, States, Transformer
from continua.models.build import discrete_axes
from continua.operators import Attention, Parts
from tests.families import FAMILIES
from tests.refusals import refused

EXACT = 1e-12  # float64 arithmetic of short sums
FITTED = 1e-9  # least squares of logarithms of rounded weights

QUIET = Console(quiet=True)


def stirred(model, generator, size=0.3):
    """Every weight drawn anew: fresh biases and scales would hide mistakes."""
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(size * drawn)
    return model


def particles(beta, n=7, d=6, step=1.0, generator=None):
    """One head with Q = K = V = I on given unit tokens: attention of the theory at β, and the tokens."""
    axes, native = discrete_axes(d, 1, d, 1)
    operator = Attention(counted(axes, 1), bias=())
    model = Transformer(axes, native, States(), Parts((operator,))).double()
    with torch.no_grad():
        eye = torch.eye(d, dtype=torch.float64)
        operator.q.coefficients.copy_((beta * math.sqrt(d) * eye)[None, None])
        operator.k.coefficients.copy_(eye[None, None])
        operator.v.coefficients.copy_((step * eye)[None, None])
        operator.o.coefficients.copy_(eye[None, :, None])
    tokens = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    return model, normalize(tokens, dim=-1)


# --- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("L8")
@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0, -2.0])
def test_energy_of_alike_and_of_orthogonal_tokens(beta):
    alike = torch.eye(6, dtype=torch.float64)[:1].expand(5, -1)
    apart = torch.eye(6, dtype=torch.float64)
    assert energy(alike, beta) == pytest.approx(math.exp(beta) / (2 * beta), rel=EXACT)
    assert energy(apart, beta) == pytest.approx((6 * math.exp(beta) + 30) / (72 * beta), rel=EXACT)


@pytest.mark.spec("L8")
def test_effective_rank_counts_directions():
    eye = torch.eye(8, dtype=torch.float64)
    assert effective_rank(eye) == pytest.approx(8.0, rel=EXACT)
    assert effective_rank(eye[:3].repeat(4, 1)) == pytest.approx(3.0, rel=1e-9)
    assert effective_rank(eye[:1].expand(5, -1)) == pytest.approx(1.0, abs=1e-9)
    p = torch.tensor([0.75, 0.25], dtype=torch.float64)  # singular values 3 and 1
    assert effective_rank(torch.diag(4 * p)) == pytest.approx(math.exp(-(p * p.log()).sum()), rel=EXACT)


@pytest.mark.spec("L8")
def test_clusters_are_chains():
    """Single linkage: a chain of small angles is one group, however far its ends are."""
    turns = torch.tensor([0.0, 0.4, 0.8, 1.2, 3.0, 3.1], dtype=torch.float64)
    u = torch.stack([turns.cos(), turns.sin()], -1)
    assert linked(u, 0.41) == 2
    assert linked(u, 0.39) == 5
    assert linked(u, 0.05) == 6
    assert linked(u[:1], 0.1) == 1


@pytest.mark.spec("L8")
def test_angles_are_right_where_arccos_is_not():
    x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for turn in (1e-12, 1e-7, 0.3, math.pi / 2, math.pi):
        y = 3.0 * torch.tensor([math.cos(turn), math.sin(turn)], dtype=torch.float64)
        assert float(angles(x, y)) == pytest.approx(turn, rel=1e-9)


# --- what the probes say of models that are known --------------------------------------------------------------------


@pytest.mark.spec("L8")
@pytest.mark.parametrize("beta", [0.3, 2.0, 9.0])
def test_effective_beta_of_particles_is_their_beta(beta, generator):
    model, tokens = particles(beta, generator=generator)
    (move,) = dynamics(model, tokens, sinks=None).moves
    assert move.beta == pytest.approx((beta,), rel=FITTED)
    assert move.fit == pytest.approx((1.0,), rel=FITTED)


@pytest.mark.spec("L8")
def test_numbers_are_those_of_the_states(generator):
    model = stirred(ct.zoo.gpt2(vocab=11, d=16, heads=4, depth=3, context=16), generator)
    ids = torch.randint(11, (2, 9), generator=generator)
    found = dynamics(model, ids, beta=2.0, bins=10, sinks=None)
    with torch.no_grad():
        states = model.states(ids).x
    assert len(found.states) == len(states) == len(found.moves) + 1
    i, j = torch.triu_indices(9, 9, 1)
    for state, x in zip(found.states, states, strict=True):
        u = normalize(x, dim=-1)
        assert state.cosine == pytest.approx(float((u @ u.mT)[:, i, j].mean()), abs=EXACT)
        assert state.energy == pytest.approx(sum(energy(one, 2.0) for one in u) / 2, rel=EXACT)
        assert sum(state.histogram) == sum(state.centred_histogram) == 2 * 36
        centred = normalize(x - x.mean((0, 1)), dim=-1)
        assert state.centred_cosine == pytest.approx(float((centred @ centred.mT)[:, i, j].mean()), abs=EXACT)
    for k, move in enumerate(found.moves):
        assert move.jump == pytest.approx(float(angles(states[k], states[k + 1]).mean()), rel=EXACT)
        assert move.least_jump <= move.jump <= move.most_jump
        assert len(move.beta) == len(move.fit) == 4
    assert json.loads(json.dumps(found.plain()))["states"][1]["energy"] == found.states[1].energy
    rows = found.rows()
    assert [row["jump"] is None for row in rows] == [False, False, False, True]


@pytest.mark.spec("L8")
def test_padding_changes_nothing(generator):
    model = stirred(ct.zoo.bert(vocab=11, d=16, heads=2, depth=2, context=16), generator)
    ids = torch.randint(1, 11, (1, 6), generator=generator)
    padded = Batch(torch.cat([ids, torch.zeros(1, 4, dtype=torch.long)], 1), observed=torch.arange(10)[None] < 6)
    alone, beside = dynamics(model, ids, sinks=None), dynamics(model, padded, sinks=None)
    assert alone.tokens == beside.tokens == 6
    for one, other in zip(alone.rows(), beside.rows(), strict=True):
        assert [v for v in one.values() if v is not None] == pytest.approx(
            [v for v in other.values() if v is not None], rel=FITTED
        )


@pytest.mark.spec("L8")
def test_products_are_those_of_the_measure(generator):
    """Twice the width of an elastic model are the same functions on twice the nodes: nothing measured may move."""
    model = elastic(stirred(ct.zoo.bert(vocab=11, d=16, heads=2, depth=2, context=16), generator, size=0.1))
    ids = torch.randint(1, 11, (1, 6), generator=generator)
    one, other = dynamics(model, ids, sinks=None), dynamics(model.at(d=32), ids, sinks=None)
    for a, b in zip(one.states, other.states, strict=True):
        assert [a.norm, a.cosine, a.energy, a.rank] == pytest.approx([b.norm, b.cosine, b.energy, b.rank], rel=1e-9)
    for a, b in zip(one.moves, other.moves, strict=True):
        assert (a.jump, *a.beta) == pytest.approx((b.jump, *b.beta), rel=1e-7)
    for a, b in zip(spectra(model), spectra(model.at(d=32)), strict=True):
        assert a.qk.singular == pytest.approx(b.qk.singular[: len(a.qk.singular)], rel=1e-9)
        assert a.ov.radius == pytest.approx(b.ov.radius, rel=1e-9)


@pytest.mark.spec("L8")
def test_sinks_are_found_and_left_out(generator):
    """A token that everybody looks at, and one whose norm stands out; even attention has none."""
    model, tokens = particles(0.0, n=12, generator=generator)
    assert look(model, tokens).sinks == ()
    seen = look(model, tokens, sinks=None)
    drawn = torch.full_like(seen.maps[0].weights, 0.5 / 11)
    drawn[..., 3] = 0.5
    maps, there = [replace(seen.maps[0], weights=drawn)], torch.ones(2, 12, dtype=torch.bool)
    flags = Sinks().find(maps, seen.states, there)
    assert flags.nonzero().tolist() == [[0, 3], [1, 3]]
    assert not Sinks(share=0.6).find(maps, seen.states, there).any()
    assert not Sinks(times=7.0).find(maps, seen.states, there).any()  # it gets 6 times an even share
    tall = tokens.clone()
    tall[1, 5] *= 5.0
    found = dynamics(model, tall)
    assert found.sinks == ((1, 5),)
    assert found.tokens == 23
    assert dynamics(model, tall, sinks=Sinks(norm=6.0)).sinks == ()


@pytest.mark.spec("L8")
def test_the_first_of_a_causal_text_is_no_sink_by_itself(generator):
    """Row i of even causal attention gives everybody 1/(i+1): the first token gets the most, but an even share."""
    model = ct.zoo.gpt2(vocab=11, d=16, heads=2, depth=2, context=32).double()
    torch.nn.init.zeros_(model.block.parts[0].inner.q.coefficients)
    assert look(model, torch.randint(11, (1, 24), generator=generator)).sinks == ()


@pytest.mark.spec("L8")
@pytest.mark.parametrize("name", [name for name in FAMILIES if name in ("gpt2", "bert", "llama", "vit", "albert")])
def test_every_plain_family_can_be_probed(name):
    family = FAMILIES[name]
    model = family.make()
    model.train()
    found = dynamics(model, family.batch, sinks=None)
    assert model.training
    assert len(found.moves) == model.native.z.steps
    assert all(math.isfinite(value) for row in found.rows() for value in row.values() if value is not None)


# --- spectra ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L8")
def test_spectra_without_large_matrices_are_those_of_the_large_ones(generator):
    a, b = torch.randn(2, 12, 4, generator=generator, dtype=torch.float64)
    found, m = spectrum(a, b), a @ b.mT
    values = torch.linalg.eigvals(m)
    wanted = sorted(values.abs().tolist(), reverse=True)[:4]
    assert [abs(value) for value in found.eigenvalues] == pytest.approx(wanted, rel=1e-9)
    assert found.trace == pytest.approx(float(m.trace()), rel=1e-9)
    assert found.singular == pytest.approx(torch.linalg.svdvals(m)[:4].tolist(), rel=1e-9)
    s = (m + m.mT) / 2
    assert found.symmetric == pytest.approx(float(s.square().sum() / m.square().sum()), rel=1e-9)
    squares = torch.linalg.eigvalsh(s)
    wanted = float((squares * squares.abs()).sum() / squares.square().sum())
    assert found.sign == pytest.approx(wanted, rel=1e-9)


@pytest.mark.spec("L8")
def test_spectra_of_matrices_that_are_known():
    q, _ = torch.linalg.qr(torch.randn(9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    attracts, repels = spectrum(2 * q, q), spectrum(2 * q, -q)
    assert (attracts.radius, attracts.norm, attracts.symmetric, attracts.sign) == pytest.approx((2, 2, 1, 1), rel=1e-9)
    assert (repels.trace, repels.symmetric, repels.sign) == pytest.approx((-6, 1, -1), rel=1e-9)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    found = spectrum(turn, torch.eye(2, dtype=torch.float64))
    assert found.eigenvalues[0].imag ** 2 == pytest.approx(1.0)
    assert found.symmetric == pytest.approx(0.0, abs=EXACT)


@pytest.mark.spec("L8")
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_qk_scores_the_tokens(name, generator):
    """The score of the recorded attention is the bilinear form of QK, up to a constant of the row."""
    model = FAMILIES[name].make().double()
    attention = model.block.parts[0] if name == "bert" else model.block.parts[0].inner
    with torch.no_grad():
        for parameter in model.block.parts[0].parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        for bias in (attention.bq, attention.bk, getattr(getattr(model.block.parts[0], "norm", None), "shift", None)):
            if bias is not None:
                bias.coefficients.zero_()
        if name == "llama":
            attention.position = ct.operators.Position()  # QK is the score of two tokens at one place
        seen = look(model, FAMILIES[name].batch, sinks=None)
    z = seen.stack.steps[1][0]
    q, k, _, _ = matrices(seen.stack, z)
    x = seen.states[1]
    if name == "gpt2":  # the token before the norm's own scale
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    elif name == "llama":
        x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    scale = attention.kernel.scale(model.axes.e)
    scores = scale * torch.einsum("btc,hec,hed,bsd->bhts", x, q, k, x)
    last = scores[:, :, -1] - seen.maps[1].weights[:, :, -1].log()
    assert float((last - last.mean(-1, keepdim=True)).abs().max()) < 1e-9


@pytest.mark.spec("L8")
def test_spectra_of_shared_layers_are_given_once():
    assert len(spectra(FAMILIES["albert"].make())) == 2
    assert len(spectra(FAMILIES["llama"].make())) == 2 * 4
    assert json.dumps([head.plain() for head in spectra(FAMILIES["bert"].make())])


# --- one layer, many times -------------------------------------------------------------------------------------------


def small_albert(generator):
    model = ct.zoo.albert(11, table_width=8, d=16, heads=2, depth=4, context=12, masked_lm=True)
    return stirred(model, generator, size=0.1), torch.randint(1, 11, (2, 9), generator=generator)


@pytest.mark.spec("L8")
def test_iteration_passes_through_the_models_own_states(generator):
    model, ids = small_albert(generator)
    found = iterate(model, ids, steps=12, sinks=None)
    assert (found.depth, len(found.beats)) == (4, 13)
    assert found.beats[4].distance == 0.0
    assert found.beats[4].agreement == 1.0
    assert all(beat.distance > 0 for beat in found.beats if beat.step != 4)
    probes = dynamics(model, ids, sinks=None)
    for k in range(4):
        assert found.beats[k + 1].jump == pytest.approx(probes.moves[k].jump, rel=FITTED)
        assert found.beats[k].rank == pytest.approx(probes.states[k].rank, rel=FITTED)
    twelve = iterate(model.at(z=2), ids, steps=2, sinks=None)  # steps twice as long are another layer
    assert twelve.beats[1].jump != pytest.approx(found.beats[1].jump, rel=1e-3)


@pytest.mark.spec("L8")
def test_parts_of_a_layer_approach_a_flow(generator):
    model, ids = small_albert(generator)
    found = substeps(model, ids, (1, 8, 16, 32), sinks=None)
    assert found[0].distances == (0.0,) * 5
    assert found[0].agreement == 1.0
    assert all(one.distances[-1] > 0.01 for one in found[1:])
    ratios = [b.change / a.change for a, b in pairwise(found[2:])]
    assert ratios == pytest.approx([0.5] * len(ratios), abs=0.1)  # Euler steps: order one


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L8")
def test_models_the_probes_do_not_know():
    ids = torch.zeros(1, 4, dtype=torch.long)
    for name, got, remedy in (
        ("gat", "attention with Additive", "Known are blocks"),
        ("bank", "a memory bank", "Known are blocks"),
    ):
        with refused(ConfigError, got, remedy):
            dynamics(FAMILIES[name].make(), FAMILIES[name].batch)
    with refused(ConfigError, "attention to another state", "Known are blocks"):
        opened(FAMILIES["t5"].make().decoder)
    with refused(ConfigError, "Linear", "Pass a Transformer"):
        opened(torch.nn.Linear(2, 2))
    model = ct.Transformer.continuous(vocab=8, at=ct.at(d=8, h=2, z=2))
    with refused(ConfigError, "RK4", "LieTrotter"):
        ladder(model.at(z=ct.Fixed(3, ct.RK4())), ids)
    with refused(ConfigError, "2 layers of their own", "zoo.albert"):
        iterate(model, ids + torch.arange(4), sinks=None)


@pytest.mark.spec("L8", "A4")
def test_of_an_encoder_decoder_the_encoder_is_followed():
    model, batch = FAMILIES["t5"].make(), FAMILIES["t5"].batch
    assert dynamics(model, batch, sinks=None) == dynamics(model.encoder, batch.source, sinks=None)
    assert dynamics(model.at(z=1), batch, sinks=None) == dynamics(model.encoder.at(z=1), batch.source, sinks=None)
    assert spectra(model) == spectra(model.encoder)
    with refused(ShapeError, "none", "source=…"):
        dynamics(model, batch.values)


@pytest.mark.spec("L8")
def test_settings_that_make_no_sense(generator):
    model, tokens = particles(1.0, generator=generator)
    for changed, got in (
        ({"beta": 0.0}, "beta=0.0"),
        ({"beta": math.nan}, "beta=nan"),
        ({"angle": 4.0}, "angle=4.0"),
        ({"bins": 0}, "0"),
    ):
        with refused(ConfigError, got, "usual"):
            dynamics(model, tokens, **changed)
    with refused(ShapeError, "1 of one", "longer texts"):
        dynamics(model, tokens[:, :1])
    for probe in (dynamics, ladder):
        with refused(ShapeError, "none", "Pass"):
            probe(model)
    albert, ids = small_albert(generator)
    with refused(ConfigError, "none", "Pass"):
        iterate(albert)
    with refused(ConfigError, "0", "steps=16"):
        iterate(albert, ids, steps=0)
    for parts in ((), (0, 2)):
        with refused(ConfigError, str(list(parts)), "parts=(1, 2, 4, 8)"):
            substeps(albert, ids, parts)


# --- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L8", "L10")
def test_pictures_are_written(tmp_path, generator):
    model, ids = small_albert(generator)
    seen = look(model, ids, sinks=None)
    found = dynamics(seen)
    made = [
        plot_cosines(found, tmp_path / "new" / "cosines.png"),
        plot_energy(found, tmp_path / "energy.png"),
        plot_jumps(found, tmp_path / "jumps.png"),
        plot_ladder(ladder(seen), tmp_path / "ladder.png"),
        plot_spectra(spectra(model), tmp_path / "spectra.png"),
        plot_iteration(iterate(seen, steps=6), substeps(seen, parts=(1, 2)), tmp_path / "iteration.png"),
    ]
    assert all(path.stat().st_size > 10_000 for path in made)
    assert found.save(tmp_path / "deep" / "dynamics.json").stat().st_size > 1000
