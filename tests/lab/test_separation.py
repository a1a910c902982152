"""L11: what the dynamics are good for, against closed forms and hand-made models; waves on S² that pass each other."""

import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import continua as ct
from continua.convert import elastic
from continua.errors import ConfigError, ShapeError
from continua.fields import counted
from continua.geometry import sphere
from continua.lab import attention_maps
from continua.lab.probes.controls import controlled
from continua.lab.probes.dynamics import dynamics, effective_rank
from continua.lab.probes.iterate import iterate
from continua.lab.probes.overclustering import overclustered
from continua.lab.probes.separation import RIDGE, first_token, linear_probe, mean_token, scatter, separation
from continua.models import Batch, Pixels, States, Transformer
from continua.models.build import discrete_axes
from continua.operators import Attention, Context, Parts, Project, SphereProjection
from continua.tasks import Example
from tests.families import FAMILIES
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
EXACT = 1e-12  # float64 arithmetic of short sums
FITTED = 1e-9  # least squares, singular values


def stirred(model, generator, size=0.3):
    """Every weight drawn anew: fresh biases and scales would hide mistakes."""
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def small_vit(generator):
    """A stirred ViT of three layers and labelled images for it."""
    model = stirred(ct.zoo.vit(Pixels(4, 4, 1, patch=(2, 2)), d=12, heads=2, depth=3, labels=3), generator)
    images = torch.randn(30, 1, 4, 4, generator=generator, dtype=torch.float64)
    return model, Example(Batch(images), torch.arange(30) % 3)


def clouds(generator, n=60, d=5, classes=3, apart=4.0):
    """Points around as many centres as there are classes."""
    labels = torch.randint(classes, (n,), generator=generator)
    labels[: 2 * classes] = torch.arange(2 * classes) % classes
    centres = apart * torch.eye(classes, d, dtype=torch.float64)
    return centres[labels] + torch.randn(n, d, generator=generator, dtype=torch.float64), labels


# --- what is measured ------------------------------------------------------------------------------------------------


@pytest.mark.spec("L11")
def test_scatter_splits_the_variance(generator):
    x, labels = clouds(generator)
    between, within = scatter(x, labels)
    assert between + within == pytest.approx(float((x - x.mean(0)).square().sum() / len(x)), rel=EXACT)
    by_hand = sum(float((x[labels == c] - x[labels == c].mean(0)).square().sum()) for c in range(3)) / len(x)
    assert within == pytest.approx(by_hand, rel=EXACT)
    assert scatter(x, labels + 4) == pytest.approx((between, within), rel=EXACT)  # classes that nobody has
    moved = scatter(3.0 * x + 7.0, labels)
    assert moved[0] / moved[1] == pytest.approx(between / within, rel=FITTED)


@pytest.mark.spec("L11")
def test_the_linear_probe_is_ridge_regression(generator):
    """Against its dual form, k(x)'(K + λI)⁻¹Y with products of samples in place of those of coordinates."""
    x, labels = clouds(generator, apart=1.5)
    right = 0
    order = torch.cat([torch.arange(len(labels))[labels == c][start::2] for start in (0, 1) for c in range(3)])
    cut = sum((int((labels == c).sum()) + 1) // 2 for c in range(3))
    for fit, test in ((order[:cut], order[cut:]), (order[cut:], order[:cut])):
        a, b = x[fit] - x[fit].mean(0), x[test] - x[fit].mean(0)
        y = torch.nn.functional.one_hot(labels[fit]).double()
        gram = a @ a.mT
        dual = torch.linalg.solve(gram + 0.03 * gram.trace() * torch.eye(len(fit)), y - y.mean(0))
        right += int(((b @ a.mT @ dual + y.mean(0)).argmax(1) == labels[test]).sum())
    assert 0.5 < right / 60 < 1.0  # hard enough to tell maps apart
    assert linear_probe(x, labels, 0.03) == right / 60
    assert linear_probe(x.float(), labels, 0.03) == right / 60


@pytest.mark.spec("L11")
def test_the_linear_probe_knows_what_can_be_known(generator):
    x, labels = clouds(generator, n=400, apart=12.0)
    assert linear_probe(x, labels) == 1.0
    noise = torch.randn(2000, 5, generator=generator, dtype=torch.float64)
    guess = linear_probe(noise, torch.randint(4, (2000,), generator=generator))
    assert guess == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 2000))  # four standard deviations
    flat = torch.full((6, 3), 0.1, dtype=torch.float64)  # the same everywhere: the most frequent class is said
    assert linear_probe(flat, torch.tensor([0, 0, 0, 0, 1, 1])) == pytest.approx(4 / 6)


@pytest.mark.spec("L11")
def test_levels_are_those_of_the_states(generator):
    model, example = small_vit(generator)
    model.train()
    found = separation(model, example)
    assert model.training
    assert (found.samples, found.classes, found.chance) == (30, 3, pytest.approx(1 / 3))
    probes = dynamics(model, example.batch, sinks=None)
    for level, x, state in zip(found.levels, model.eval().states(example.batch).x, probes.states, strict=True):
        pooled = x.detach().mean(1)
        between, within = scatter(pooled, example.target)
        assert level.separation == pytest.approx(between / within, rel=FITTED)
        assert level.probe == linear_probe(pooled, example.target)
        assert level.rank == pytest.approx(effective_rank(pooled - pooled.mean(0)), rel=FITTED)
        assert (level.z, level.cosine, level.token_rank) == pytest.approx(
            (state.z, state.cosine, state.rank), rel=FITTED
        )
    right = float((model(example.batch).argmax(-1) == example.target).double().mean())
    assert [level.answers for level in found.levels] == [None, None, None, right]
    assert found.levels[0].recall == pytest.approx(1.0, abs=1e-2)  # the ridge shrinks a little
    assert list(found.rows()[0])[:3] == ["z", "separation", "probe"]


@pytest.mark.spec("L11")
def test_a_class_token_knows_nothing_at_first(generator):
    model, example = small_vit(generator)
    start = separation(model, example, pool=first_token).levels[0]
    assert (start.separation, start.rank) == (0.0, 0.0)
    assert start.probe == pytest.approx(1 / 3, abs=1e-9)  # three equal classes, one guess
    after = separation(model, example, pool=first_token).levels[1]
    assert after.separation > 0 < after.rank


def identity_attention(depth=1, *after, v=None):
    """One head with Q = K = I and V = I or ``v`` on given tokens of dimension 6, the same at all depths."""
    axes, native = discrete_axes(6, 1, 6, depth)
    operator = Attention(counted(axes), bias=())
    eye = torch.eye(6)
    with torch.no_grad():
        for field, value in ((operator.q, eye), (operator.k, eye), (operator.v, eye if v is None else v)):
            field.coefficients.copy_(value.expand_as(field.coefficients))
        operator.o.coefficients.copy_(eye[:, None])
    return Transformer(axes, native, States(), Parts((operator, *after))).double()


@pytest.mark.spec("L11")
def test_recall_is_what_a_linear_map_can_undo(generator):
    """Tokens that see only themselves: a turn recalls all, half of the coordinates half, one direction a sixth."""
    start = torch.randn(120, 4, 6, generator=generator, dtype=torch.float64)
    start += 5 * torch.randn(4, 6, generator=generator, dtype=torch.float64)  # what a place adds to all is no memory
    alone = Example(Batch(start, pairs=torch.eye(4, dtype=torch.bool)), torch.arange(120) % 2)
    turn, _ = torch.linalg.qr(torch.randn(6, 6, generator=generator))
    half = torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]))
    for matrix, wanted, close in ((turn, 1.0, 1e-6), (half, 0.5, 0.05), (torch.ones(6, 6), 1 / 6, 0.05)):
        level = separation(identity_attention(v=matrix - torch.eye(6)), alone).levels[-1]
        assert level.recall == pytest.approx(wanted, abs=close)


@pytest.mark.spec("L11")
def test_absent_tokens_do_not_count(generator):
    """Whatever stands in absent places, and however many there are, nothing measured moves."""
    model = stirred(ct.zoo.bert(vocab=11, d=12, heads=2, depth=2, context=16), generator)
    ids, labels = torch.randint(1, 11, (12, 6), generator=generator), torch.arange(12) % 3
    alone = separation(model, Example(Batch(ids), labels))
    longer = torch.cat([ids, torch.randint(1, 11, (12, 4), generator=generator)], 1)
    there = (torch.arange(10) < 6).expand(12, -1)
    beside = separation(model, Example(Batch(longer, observed=there), labels))
    for one, other in zip(alone.levels, beside.levels, strict=True):
        got, wanted = ([value for value in row.values() if value is not None] for row in (vars(other), vars(one)))
        assert got == pytest.approx(wanted, rel=1e-8)
    x = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    weights = torch.tensor([[1.0, 1.0, 0.0], [0.5, 0.0, 1.5]], dtype=torch.float64)
    wanted = torch.stack([x[0, :2].mean(0), (x[1, 0] + 3 * x[1, 2]) / 4])
    assert torch.allclose(mean_token(x, weights), wanted, atol=EXACT)


@pytest.mark.spec("L11")
def test_numbers_are_those_of_the_measure(generator):
    """Twice the width of an elastic model is the same functions on twice the nodes."""
    model = elastic(stirred(ct.zoo.bert(vocab=11, d=16, heads=2, depth=2, context=16), generator, size=0.1))
    example = Example(Batch(torch.randint(1, 11, (12, 6), generator=generator)), torch.arange(12) % 3)
    for one, other in zip(separation(model, example).levels, separation(model.at(d=32), example).levels, strict=True):
        got, wanted = ([value for value in vars(level).values() if value is not None] for level in (other, one))
        assert got == pytest.approx(wanted, rel=1e-6)


# --- controls --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L11")
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "vit", "albert"])
def test_ones_change_nothing(name):
    family = FAMILIES[name]
    model = family.make().double().eval()
    copy = controlled(model)
    assert torch.equal(copy(family.batch), model(family.batch))  # exactly, so within 1e-12 too
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert not own & {parameter.data_ptr() for parameter in copy.parameters()}


@pytest.mark.spec("L11")
def test_the_model_itself_stays(generator):
    model, example = small_vit(generator)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    said = model(example.batch)
    changed = controlled(model, 3.0, 0.5)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.zero_()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(example.batch), said)


@pytest.mark.spec("L11")
@pytest.mark.parametrize("name", ["vit", "llama", "bert"])
def test_temperature_is_a_power_of_the_weights(name, generator):
    """α_T = α^{1/T} / Σ α^{1/T} in the first layer, which sees the same state in both."""
    family = FAMILIES[name]
    model = stirred(family.make(), generator, 0.2)
    for temperature in (0.5, 4.0):
        one, other = (attention_maps(each, family.batch)[0] for each in (model, controlled(model, temperature)))
        power = torch.where(one.weights > 0, one.weights ** (1 / temperature), 0.0)
        assert torch.allclose(other.weights, power / power.sum(-1, keepdim=True), atol=1e-12)


@pytest.mark.spec("L11")
@pytest.mark.parametrize("gamma", [0.0, -0.25])
def test_skip_is_what_a_layer_keeps(gamma, generator):
    """Where the feed-forward adds nothing, x₁ = s(1 + γ)x₀ + A[x₀]: what changes with s is (s − 1)(1 + γ)x₀."""
    model = stirred(ct.Transformer.continuous(vocab=9, at=ct.at(d=8, h=2, z=1), gamma=gamma), generator)
    feed = model.block.parts[1].inner
    with torch.no_grad():
        for weight in (feed.w2, feed.b2):
            weight.coefficients.zero_()
    ids = torch.randint(9, (2, 5), generator=generator)
    start, end = model.states(ids).x
    for skip in (0.0, 0.5, 1.5):
        changed = controlled(model, skip=skip).states(ids).x
        assert torch.equal(changed[0], start)
        assert torch.allclose(changed[1] - end, (skip - 1) * (1 + gamma) * start, atol=EXACT)
    both = controlled(controlled(model, skip=0.5), skip=2.0).states(ids).x[1]
    assert torch.allclose(both, end, atol=EXACT)


@pytest.mark.spec("L11")
def test_a_controlled_model_is_a_model(generator, tmp_path):
    """It trains, is saved and loaded, has views, and keeps its mode and its adjoint."""
    model, example = small_vit(generator)
    model.adjoint = ct.Recompute()
    changed = controlled(model.train(), 2.0, 0.8)
    assert changed.training
    assert changed.adjoint == ct.Recompute()
    changed(example.batch).sum().backward()
    assert all(parameter.grad is not None for parameter in changed.parameters())
    again = ct.models.store.load(changed.save(tmp_path / "model")).eval()
    assert torch.equal(again(example.batch), changed.eval()(example.batch))
    view = controlled(model.eval().at(z=ct.Fixed(6, ct.LieTrotter())), 2.0, 0.8)
    assert torch.equal(view(example.batch), changed.at(z=ct.Fixed(6, ct.LieTrotter()))(example.batch))


# --- too far ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L11")
def test_repeats_are_layers(generator):
    """A shared layer repeated is the layer iterated; two of them once are one of them twice."""
    model = stirred(ct.zoo.albert(11, table_width=8, d=16, heads=2, depth=4, context=12), generator, size=0.1)
    ids, labels = torch.randint(1, 11, (9, 7), generator=generator), torch.arange(9) % 3
    example = Example(Batch(ids), labels)
    found = overclustered(model, example, 4)
    beats = iterate(model, ids, steps=8, sinks=None).beats
    for k, level in enumerate(found.levels):
        assert (level.cosine, level.token_rank) == pytest.approx((beats[4 + k].cosine, beats[4 + k].rank), rel=FITTED)
    assert [level.z for level in found.levels] == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert found.levels[0] == separation(model, example).levels[-1]
    twice = overclustered(model, example, 2, layers=2)
    assert [row["separation"] for row in twice.rows()] == pytest.approx(
        [row["separation"] for row in found.rows()[::2]], rel=FITTED
    )
    assert [row["repeats"] for row in twice.rows()] == [0, 1, 2]


@pytest.mark.spec("L11")
def test_the_readout_is_asked_after_every_repeat(generator):
    """The whole depth again: from the end of the first walk, with the same layers, to the same readout."""
    model, example = small_vit(generator)
    found = overclustered(model, example, 2, layers=3)
    x = model.states(example.batch).final
    assert found.levels[0].answers == separation(model, example).levels[-1].answers
    grids = replace(model.native.grids(model.axes), t=ct.axes.grid.counting(5, x))
    field, args = model.bind(grids, model.structure(), Context())
    for level in found.levels[1:]:
        for z in (0.0, 1.0, 2.0):
            x = model.native.z.solver.step(field, z, 1.0, x, args)
        right = (model.readout(x, grids, None).argmax(-1) == example.target).double().mean()
        assert level.answers == float(right)
        assert level.separation == pytest.approx(np.divide(*scatter(x.mean(1), example.target)), rel=FITTED)


@pytest.mark.spec("L11")
def test_clustering_too_far_forgets(generator):
    """Q = K = V = I: tokens of a text end in one direction; what they were is lost, what all share is kept."""
    model = identity_attention(2, Project(SphereProjection()))
    labels = torch.arange(60) % 3
    centres = torch.eye(3, 6, dtype=torch.float64)[labels]
    tokens = centres[:, None] + 0.9 * torch.randn(60, 8, 6, generator=generator, dtype=torch.float64)
    found = overclustered(model, Example(Batch(sphere.retract(tokens, math.sqrt(6))), labels), 24)
    levels = found.levels
    assert all(a.cosine <= b.cosine + EXACT and a.token_rank >= b.token_rank - EXACT for a, b in pairwise(levels))
    lost = found.lost()
    assert "answers" not in lost  # it has no readout
    assert levels[-1].token_rank < 1.2
    assert lost["recall"] > 0.2
    assert lost["cosine"] < -0.2
    assert levels[-1].probe > 0.7 > found.chance


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("L11")
def test_controls_that_make_no_sense(generator):
    model, _ = small_vit(generator)
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with refused(ConfigError, str(temperature), "above zero"):
            controlled(model, temperature)
    with refused(ConfigError, "inf", "1 changes nothing"):
        controlled(model, skip=math.inf)
    with refused(ConfigError, "EncoderDecoder", "its encoder"):
        controlled(FAMILIES["t5"].make())
    with refused(ConfigError, "Additive", "attention by products"):
        controlled(FAMILIES["gat"].make(), 2.0)


@pytest.mark.spec("L11")
def test_samples_that_make_no_sense(generator):
    model, example = small_vit(generator)
    with refused(ConfigError, "EncoderDecoder", "Pass a Transformer"):
        separation(FAMILIES["t5"].make(), example)
    with refused(ConfigError, "0.0", f"{RIDGE:g} is usual"):
        separation(model, example, ridge=0.0)
    with refused(ShapeError, "float64 [30]", "whole numbers"):
        separation(model, Example(example.batch, torch.zeros(30, dtype=torch.float64)))
    for labels, got in (([0] * 30, "1 of at least 30"), ([0] * 29 + [1], "2 of at least 1"), ([-1] * 30, "0 of")):
        with refused(ShapeError, got, "more samples"):
            separation(model, Example(example.batch, torch.tensor(labels)))
    for layers in (0, 4):
        with refused(ConfigError, str(layers), "Give 1 to 3"):
            overclustered(model, example, layers=layers)
    with refused(ConfigError, "0", "repeats=8"):
        overclustered(model, example, 0)
    bert = ct.zoo.bert(vocab=9, d=8, heads=2, depth=2, context=8)
    paired = Batch(torch.ones(6, 4, dtype=torch.long), pairs=torch.ones(4, 4, dtype=torch.bool))
    with refused(ConfigError, "pairs in the batch", "Leave pairs out"):
        overclustered(bert, Example(paired, torch.arange(6) % 2))


# --- real data -------------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="whole examples, which train models")
@pytest.mark.spec("L9", "L10", "L11")
@pytest.mark.parametrize("name", ["lab_training", "lab_use"])
def test_the_examples_keep_their_promises(name, tmp_path) -> None:
    script = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--out", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_size > 30_000 for path in tmp_path.glob("*.png"))
    assert list(tmp_path.glob(f"{name.replace('_', '-')}.*"))
