"""A9: initialisations have the variances they name, on counting axes and on smooth ones."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import continua as ct
from continua.axes import Depths, mass_of
from continua.config import from_plain, to_plain
from continua.errors import ConfigError
from continua.fields import ByNetwork, Legendre, counted, kernel_std
from continua.flow import depths
from continua.models import States, Transformer
from continua.models.build import discrete_axes
from continua.models.init import GPT2Init, Scaled, Xavier, initialise
from continua.models.refine import smooth_model
from continua.operators import Attention, Parts
from tests.families import FAMILIES

D, HEADS, M, DEPTH, VOCAB = 64, 4, 160, 3, 300


def gpt():
    return ct.zoo.gpt2(vocab=VOCAB, d=D, heads=HEADS, depth=DEPTH, context=32, m=M)


def parts(model):
    attention, pointwise = (part.inner for part in model.block)
    return attention, pointwise


def spread(field):
    return field.coefficients.detach().double().std().item()


def near(expected):
    """Twelve thousand numbers and more: the standard deviation is known to half a percent; four of those."""
    return pytest.approx(expected, rel=0.025)


@pytest.mark.spec("A9")
def test_xavier_has_variance_two_over_both_fans(generator):
    model = initialise(gpt(), Xavier(), generator)
    attention, pointwise = parts(model)
    square = (2 / (D + D)) ** 0.5
    assert all(spread(field) == near(square) for field in (attention.q, attention.k, attention.v, attention.o))
    assert spread(pointwise.w1) == near((2 / (D + M)) ** 0.5)
    assert spread(pointwise.w2) == near((2 / (D + M)) ** 0.5)
    layer = nn.init.xavier_normal_(torch.empty(M, D), generator=generator)
    assert spread(pointwise.w1) == pytest.approx(layer.std().item(), rel=0.03)


@pytest.mark.spec("A9")
def test_gpt2_scales_the_outputs_of_branches(generator):
    model = initialise(gpt(), GPT2Init(), generator)
    attention, pointwise = parts(model)
    inside = (attention.q, attention.k, attention.v, pointwise.w1, model.embed.table)
    assert all(spread(field) == near(0.02) for field in inside)
    assert all(spread(field) == near(0.02 / (2 * DEPTH) ** 0.5) for field in (attention.o, pointwise.w2))
    assert spread(model.embed.position.table) == pytest.approx(0.02, rel=0.05)


@pytest.mark.spec("A9")
def test_gpt2_matches_hugging_face():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=D, n_head=HEADS, n_layer=DEPTH, n_positions=32)
    theirs = transformers.GPT2LMHeadModel(config).transformer.h
    model = initialise(gpt(), GPT2Init(), torch.Generator().manual_seed(1))
    attention, pointwise = parts(model)
    for ours, name in ((attention.o, "attn.c_proj"), (pointwise.w1, "mlp.c_fc"), (pointwise.w2, "mlp.c_proj")):
        weights = torch.cat([block.get_submodule(name).weight.flatten() for block in theirs])
        assert spread(ours) == pytest.approx(weights.std().item(), rel=0.03)


@pytest.mark.spec("A9")
@pytest.mark.parametrize("scheme", [Xavier(), GPT2Init(), Scaled()])
def test_biases_start_at_zero_and_norms_at_one(scheme, generator):
    model = initialise(ct.zoo.bert(vocab=32, d=8, heads=2, depth=2, masked_lm=True), scheme, generator)
    for name, values in model.named_parameters():
        if name.endswith("scale.coefficients"):
            assert torch.equal(values, torch.ones_like(values))
        elif any(f".{bias}." in f".{name}." for bias in ("bq", "bk", "bv", "bo", "b1", "b2", "shift", "bias")):
            assert torch.equal(values, torch.zeros_like(values)), name
        else:
            assert values.std() > 0, name


@pytest.mark.spec("A9")
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_drawn_whole_and_scaled_keeps_its_spreads(name, generator):
    torch.manual_seed(1)  # not the seed of the generator
    model = FAMILIES[name].make()
    before = {place: values.clone() for place, values in model.named_parameters()}
    initialise(model, Scaled(), generator)
    for place, values in model.named_parameters():
        old = before[place]
        assert torch.isfinite(values).all()
        assert place.endswith("scale.coefficients") or not torch.equal(values, old) or (old == 0).all(), place
        if old.numel() > 150 and name not in ("continuous", "forecaster"):  # smooth ones: over nodes, not over axes
            assert values.std().item() == pytest.approx(old.std().item(), rel=0.25), place
    assert torch.isfinite(model(FAMILIES[name].batch)).all()


@pytest.mark.spec("A9")
def test_scaled_is_the_default_of_the_library(generator):
    model = gpt()
    attention, pointwise = parts(model)
    before = [spread(field) for field in (attention.q, attention.o, pointwise.w1, pointwise.w2)]
    initialise(model, Scaled(), generator)
    after = [spread(field) for field in (attention.q, attention.o, pointwise.w1, pointwise.w2)]
    assert after == pytest.approx(before, rel=0.03)
    assert after == pytest.approx([D**-0.5, D**-0.5, D**-0.5, M**-0.5], rel=0.025)


@pytest.mark.spec("A9")
@pytest.mark.parametrize("scheme", [Xavier(), GPT2Init(), Scaled()], ids=lambda scheme: type(scheme).__name__)
def test_smooth_weights_have_these_variances_on_the_native_grid(scheme, generator):
    """Circles and intervals with nodes that weigh one, Legendre in depth: the values, not the coefficients."""
    model = ct.Transformer.continuous(vocab=20, at=ct.at(d=D, h=HEADS, m=M, z=DEPTH))
    attention, pointwise = parts(model)
    where = depths(model.block.kinds, (0.0, 3.0), model.native.z.solver, ct.Fixed(DEPTH))[0]
    grids = replace(model.native.grids(model.axes), z=Depths(where))
    expected = {
        Xavier(): ((2 / (D + D)) ** 0.5, (2 / (D + M)) ** 0.5),
        GPT2Init(): (0.02, 0.02 / (2 * DEPTH) ** 0.5),
        Scaled(): (D**-0.5, M**-0.5),
    }[scheme]
    squares = torch.zeros(2, dtype=torch.float64)
    for _ in range(8):  # few coefficients in depth: their draws are averaged
        initialise(model, scheme, generator)
        values = [field.on(**{k: grids[k] for k in field.letters}) for field in (attention.q, pointwise.w2)]
        squares += torch.stack([value.detach().double().square().mean() for value in values])
    assert (squares / 8).sqrt().tolist() == pytest.approx(expected, rel=0.025)


@pytest.mark.spec("A9")
def test_a_smooth_kernel_counts_its_functions_not_its_nodes(generator):
    """Four polynomials on a mass of one: √4/1 and not 1/√24."""
    model = initialise(smooth_model(ct.Interval()), Scaled(), generator)
    attention, _ = parts(model)
    weights = ct.ByBasis(model.axes, {**{letter: Legendre(4) for letter in "dhem"}, "z": Legendre(3)})
    grids = replace(model.native.grids(model.axes), z=Depths((0.0, 0.5)))
    squares = 0.0
    for _ in range(60):
        initialise(model, Scaled(), generator)
        squares += attention.q.on(**{k: grids[k] for k in attention.q.letters}).double().square().mean().item()
    assert mass_of(model.axes.d) == 1.0
    assert (squares / 60) ** 0.5 == pytest.approx(kernel_std(weights, "c"), rel=0.1)


def test_equal_generators_give_equal_models():
    one, other = (initialise(gpt(), Xavier(), torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_encoder_decoders_and_observations_are_drawn(generator):
    axes, native = discrete_axes(8, 2, 8, 1)
    weights = counted(axes)
    sides = [Transformer(axes, native, States(), Parts((Attention(weights),))) for _ in range(2)]
    with torch.no_grad():
        for side in sides:
            for parameter in side.parameters():
                parameter.fill_(7.0)
    both = initialise(ct.EncoderDecoder(*sides), Xavier(), generator)
    assert not any((parameter == 7.0).any() for parameter in both.parameters())


def test_schemes_are_storable_and_networks_are_refused(generator):
    for scheme in (Xavier(2.0), GPT2Init(0.01), Scaled()):
        assert from_plain(to_plain(scheme)) == scheme
    axes, native = discrete_axes(8, 2, 8, 1)
    model = Transformer(axes, native, States(), Parts((Attention(ByNetwork(axes)),)))
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ConfigError, match="Separable at block"):
        initialise(model, Xavier(), generator)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
