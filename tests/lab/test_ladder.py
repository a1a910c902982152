"""L8: the ladder of R². Its top rung holds the lab to every family of models; its rungs and nulls to known ones."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

import continua as ct
from continua.convert import elastic
from continua.fields import counted
from continua.lab.particles.interaction import SelfAttention
from continua.lab.probes.dynamics import look
from continua.lab.probes.ladder import Ladder, best_identity, explained, ladder
from continua.models import Batch, States, Transformer
from continua.models.build import discrete_axes, post_norm, pre_norm
from continua.operators import (
    ALiBi,
    Attention,
    Causal,
    Constraint,
    Drop,
    LayerNorm,
    Parts,
    Pointwise,
    Project,
    Skip,
    SphereProjection,
    Window,
)
from tests.families import FAMILIES
from tests.lab.test_probes import particles, stirred
from tests.packages import folder_of
from tools.packages import MINILM

ROUND_OFF = 1e-12  # of R² in float64, whose error is the square of that of the states


def ids(generator, n=9, vocab=32):
    return torch.randint(1, vocab, (2, n), generator=generator)


SHAPE = {"vocab": 32, "d": 16, "heads": 2, "depth": 2}
AXES, NATIVE = discrete_axes(16, 2, 24, 2)
WEIGHTS = counted(AXES, 2)
PADDED = Batch(ids(torch.Generator().manual_seed(1)), observed=torch.arange(9) < torch.tensor([[9], [6]]))
LEFT = replace(PADDED, observed=torch.arange(9) >= torch.tensor([[0], [3]]))
TOKENS = PADDED.values
GIVEN = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
TIMES = torch.tensor([0.0, 0.3, 0.35, 1.0, 1.8, 2.0], dtype=torch.float64)
PAIRS = torch.randn(6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def made(block, axes=AXES):
    return Transformer(axes, NATIVE, States(), block)


def slopes():
    return Attention(WEIGHTS, Causal(), ALiBi(AXES)), Drop(Pointwise(WEIGHTS, gated=True), 0.3)


def near():
    return Skip(Attention(WEIGHTS, Window(2.0)), -0.2), Pointwise(WEIGHTS)


MODELS = {  # each goes through other formulas: how it is made, and what it reads
    **{name: (FAMILIES[name].make, FAMILIES[name].batch) for name in ("gpt2", "llama", "vit", "albert", "bert")},
    "bert, padded": (lambda: ct.zoo.bert(**SHAPE, context=16), PADDED),
    "bert, padded left": (lambda: ct.zoo.bert(**SHAPE, context=16), LEFT),
    "gpt2, padded": (lambda: ct.zoo.gpt2(**SHAPE, context=16), PADDED),
    "t5 encoder": (lambda: ct.zoo.t5(**SHAPE, e=4).encoder, TOKENS),
    "continuous": (lambda: ct.Transformer.continuous(vocab=32, at=ct.at(d=16, h=2, z=2)), TOKENS),
    "continuous, other sizes": (
        lambda: ct.Transformer.continuous(vocab=32, at=ct.at(d=16, h=2, z=2)).at(d=12, z=3),
        TOKENS,
    ),
    "elastic, half": (lambda: elastic(ct.zoo.gpt2(**SHAPE, context=16)).at(d=8, h=1), TOKENS),
    "ALiBi in real time": (
        lambda: made(pre_norm(slopes(), lambda: LayerNorm(WEIGHTS)), replace(AXES, t=ct.Times())),
        Batch(GIVEN, times=TIMES),
    ),
    "window, skip, constraint": (lambda: made(post_norm(near(), lambda: Constraint(WEIGHTS))), GIVEN),
    "sphere, pairs": (lambda: made(post_norm(near(), lambda: SphereProjection(1.5))), Batch(GIVEN, pairs=PAIRS)),
    "attention alone": (lambda: made(Parts((Attention(WEIGHTS),))), GIVEN),
}


@pytest.mark.spec("L8")
@pytest.mark.parametrize("name", MODELS)
def test_the_top_rung_is_one(name, generator):
    """The layer written out from its weights is the layer that the model's own solve took."""
    make, batch = MODELS[name]
    model = make()
    stirred(getattr(model, "model", model), generator, size=0.1)
    if isinstance(batch, torch.Tensor) and batch.is_floating_point():
        batch = batch.double()
    seen = look(model, batch, sinks=None)
    found = ladder(seen)
    assert found.top > 1 - ROUND_OFF
    for layer in found.layers:
        assert layer.size > 1e-3, "something must move"
        assert layer["identity"].r2 <= 1 + ROUND_OFF
        for rung in layer.rungs:
            assert rung.r2 >= rung.bare - ROUND_OFF  # a scale by least squares cannot make it worse
            assert -ROUND_OFF <= rung.shuffled <= 1 + ROUND_OFF
        if not seen.stack.is_post_norm:
            assert layer["feed-forward"].r2 > 1 - ROUND_OFF  # norms inside the branches belong to them
            assert layer["feed-forward"].scale == pytest.approx(1.0, rel=1e-9)


@pytest.mark.spec("L8")
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_top_rung_in_float32(name):
    assert ladder(FAMILIES[name].make(), FAMILIES[name].batch, sinks=None).top > 1 - 1e-6


@pytest.mark.spec("L8")
@pytest.mark.parametrize("part", [0, 1])
def test_the_top_rung_can_fail(part, generator):
    """Weights that are not those of the solve are seen: one percent of one part is enough."""
    model = stirred(ct.zoo.bert(vocab=32, d=16, heads=2, depth=2, context=16), generator)
    seen = look(model, ids(generator), sinks=None)
    args = list(seen.stack.args)
    place = 2 * part  # attention, norm, feed-forward, norm
    name = "o" if part == 0 else "w2"
    weights = args[place].weights
    changed = {z: {**layer, name: 1.01 * layer[name]} for z, layer in weights.depth.items()}
    args[place] = replace(args[place], weights=replace(weights, depth=changed))
    assert ladder(seen).top > 1 - ROUND_OFF
    assert ladder(replace(seen, stack=replace(seen.stack, args=args))).top < 1 - 1e-6


# --- rungs that are known --------------------------------------------------------------------------------------------


@pytest.mark.spec("L8")
@pytest.mark.parametrize("beta", [0.0, 1.5, 6.0])
@pytest.mark.parametrize("step", [0.7, -0.4])
def test_particles_are_explained_by_the_identity_rung(beta, step, generator):
    """x ← x + ε Σ softmax(β⟨x_i, x_j⟩) x_j is found with its β and its ε, which may repel."""
    model, tokens = particles(beta, n=9, step=step, generator=generator)
    (layer,) = ladder(model, tokens, sinks=None).layers
    assert layer["identity"].r2 > 1 - 1e-9
    assert layer.distance < 1e-4
    assert layer.beta == pytest.approx(beta, abs=1e-3)
    assert layer["identity"].scale == pytest.approx(step, rel=1e-4)
    assert layer["attention"].bare > 1 - ROUND_OFF
    if beta:  # even attention tells every token the same
        assert layer["identity"].shuffled < 0.9


@pytest.mark.spec("L8", "L2")
def test_small_steps_on_the_sphere_are_tangent(generator):
    """x ← N(x + ε m): what is left unexplained by the tangent velocity is of order ε²."""
    rest = []
    for step in (0.02, 0.01):
        model, tokens = particles(3.0, n=9, step=step, generator=generator.manual_seed(5))
        on_sphere = Project(SphereProjection(1 / math.sqrt(tokens.shape[-1])))
        model = Transformer(model.axes, model.native, States(), Parts((model.block.parts[0], on_sphere))).double()
        (layer,) = ladder(model, tokens, sinks=None).layers
        rest.append(1 - layer["identity"].r2)
        assert layer.beta == pytest.approx(3.0, rel=0.05)
        assert layer["attention"].r2 < 0.9, "without the projection attention also moves along the radius"
    assert rest[0] < 1e-3
    assert rest[1] / rest[0] == pytest.approx(0.25, abs=0.05)


@pytest.mark.spec("L8", "L1")
def test_the_identity_rung_is_the_velocity_of_particles(generator):
    """With a norm at the end the prediction is the tangent velocity of ``SelfAttention`` at the best β."""
    model = stirred(ct.zoo.bert(vocab=32, d=16, heads=2, depth=2, context=16), generator)
    seen = look(model, ids(generator), sinks=None)
    delta = torch.cat(seen.texts(seen.states[2] - seen.states[1]))
    beta, predicted = best_identity(seen, 1, delta)
    texts = [normalize(x, dim=-1) for x in seen.texts(seen.states[1])]
    wanted = torch.cat([SelfAttention(beta).velocity(u) for u in texts])
    assert float((predicted - wanted).abs().max()) < ROUND_OFF
    near = [explained(delta, fitted(delta, seen, b)) for b in (0.9 * beta, 1.1 * beta + 0.01)]
    assert ladder(seen).layers[1]["identity"].r2 >= max(near) - ROUND_OFF


def fitted(delta, seen, beta):
    """The velocity of particles at β with its best scale."""
    p = torch.cat([SelfAttention(beta).velocity(normalize(x, dim=-1)) for x in seen.texts(seen.states[1])])
    return p * float((delta * p).sum() / p.square().sum())


@pytest.mark.spec("L8")
def test_a_common_drift_is_all_null(generator):
    """V = 0 and a bias: every token moves alike, and no rung knows more than the nulls."""
    axes, native = discrete_axes(6, 1, 6, 1)
    operator = Attention(counted(axes, 1), bias=("o",))
    model = Transformer(axes, native, States(), Parts((operator,))).double()
    with torch.no_grad():
        operator.v.coefficients.zero_()
        operator.bo.coefficients.fill_(0.3)
    x = normalize(torch.randn(2, 7, 6, generator=generator, dtype=torch.float64), dim=-1)
    (layer,) = ladder(model, x, sinks=None).layers
    assert layer.drift == pytest.approx(1.0, abs=ROUND_OFF)
    assert layer["attention"].shuffled == pytest.approx(1.0, abs=ROUND_OFF)


@pytest.mark.spec("L8")
def test_shuffling_keeps_what_belongs_to_no_token():
    """Predictions of independent tokens say nothing of each other: the shuffled null goes to zero."""
    generator = torch.Generator().manual_seed(2)
    model, _ = particles(64.0, d=12, generator=generator)  # so hard that each token looks at itself: Δ = x
    tokens = normalize(torch.randn(1, 300, 12, generator=generator, dtype=torch.float64), dim=-1)
    (layer,) = ladder(model, tokens, sinks=None).layers
    assert layer["attention"].r2 > 1 - ROUND_OFF
    assert layer["attention"].shuffled < 0.02
    assert layer.drift < 0.02


@pytest.mark.spec("L8")
def test_r2_is_against_no_displacement():
    delta = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    assert explained(delta, delta) == 1.0
    assert explained(delta, torch.zeros_like(delta)) == 0.0
    assert explained(delta, -delta) == -3.0
    assert explained(0 * delta, 0 * delta) == 1.0
    assert explained(0 * delta, delta) == 0.0


@pytest.mark.spec("L8")
def test_the_same_generator_shuffles_the_same(generator):
    model, tokens = particles(1.0, generator=generator)
    one, other, another = (
        ladder(model, tokens, sinks=None, generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)
    )
    assert one == other
    assert one != another
    assert isinstance(one, Ladder)
    assert json.loads(json.dumps(one.plain()))["tokens"] == 14


@pytest.mark.spec("L8")
def test_progress_is_told(generator):
    model = stirred(ct.zoo.bert(vocab=32, d=16, heads=2, depth=3, context=16), generator)
    told = []
    ladder(model, ids(generator), sinks=None, watch=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.spec("L8")
def test_sinks_are_sources_but_not_explained(generator):
    """The displacements of a sink are left out, yet it is attended to: the top rung stays one."""
    model = stirred(ct.zoo.bert(vocab=32, d=16, heads=2, depth=2, context=16), generator)
    seen = look(model, ids(generator), sinks=None)
    counted_ = seen.counted.clone()
    counted_[:, 0] = False
    found = ladder(replace(seen, counted=counted_))
    assert found.tokens == ladder(seen).tokens - 2
    assert found.top > 1 - ROUND_OFF


@pytest.mark.spec("L8")
def test_minilm_is_explained_to_the_last_digit():
    """Real weights, in their own float32: one, where theory alone explains next to nothing."""
    model = ct.from_hf(folder_of(MINILM))
    words = torch.tensor([[101, 1996, 4937, 25126, 2006, 1996, 10682, 1998, 2023, 6251, 2003, 3243, 2146, 102]])
    found = ladder(model, words)
    assert found.top > 1 - 1e-9
    assert max(layer["identity"].r2 for layer in found.layers) < 0.15
    assert all(layer["attention"].r2 < layer["feed-forward"].r2 for layer in found.layers)
