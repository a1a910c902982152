"""A11: entropy, rollout, attribution and pattern detectors against closed forms."""

import math
from dataclasses import replace

import pytest
import torch

import continua as ct
from continua.cli.attention import tokenise
from continua.errors import ConfigError, ShapeError
from continua.fields import counted
from continua.lab import (
    attention_maps,
    attribution,
    entropy,
    head_table,
    mean_entropy,
    pattern_scores,
    plot_attention,
    plot_entropy,
    plot_patterns,
    plot_rollout,
    rollout,
)
from continua.models import Batch, States, Transformer
from continua.models.build import discrete_axes
from continua.models.refine import smooth_input, smooth_model
from continua.operators import Attention, Context, Parts
from tests.families import FAMILIES
from tests.packages import folder_of
from tools.packages import MINILM

EXACT = 1e-12


def layer(n=8, heads=2, depth=1, mask=None):
    """Attention alone on a state that is handed over, all weights zero: uniform attention."""
    axes, native = discrete_axes(n, heads, n, depth)
    operator = Attention(counted(axes, depth), mask=mask, bias=())
    model = Transformer(axes, native, States(), Parts((operator,))).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model, operator


def one_hot_layer(shift, strength=60.0, n=8, mask=None):
    """Both heads: queries are the one-hot of the own position, keys that of the position ``shift`` later."""
    axes, native = discrete_axes(2 * n, 2, 2 * n, 1)
    operator = Attention(counted(axes, 1), mask=mask, bias=())
    model = Transformer(axes, native, States(), Parts((operator,))).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for head in range(2):
            operator.q.coefficients[0, head, :, :n] = strength * torch.eye(n)
            operator.k.coefficients[0, head, :, :n] = torch.eye(n).roll(shift, 0)
    x = torch.zeros(1, n, 2 * n, dtype=torch.float64)
    x[0, :, :n] = torch.eye(n)
    return model, x


def gpt(generator, depth=3):
    model = ct.zoo.gpt2(vocab=11, d=16, heads=4, depth=depth, context=16).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


@pytest.mark.spec("A11")
@pytest.mark.parametrize("n", [2, 8, 33])
def test_uniform_attention_has_entropy_log_n(n, generator):
    model, _ = layer()
    (one,) = attention_maps(model, torch.randn(3, n, 8, generator=generator, dtype=torch.float64))
    assert torch.allclose(entropy(one), torch.full((3, 2, n), math.log(n), dtype=torch.float64), atol=EXACT)
    scores = pattern_scores(one)
    assert torch.allclose(scores["global"], torch.ones(2, dtype=torch.float64), atol=1e-9)
    assert all(float(scores[name].max()) < 1e-9 for name in ("identity", "previous", "local"))
    assert {head.pattern for head in head_table([one])} == {"global"}


@pytest.mark.spec("A11")
def test_uniform_causal_attention_has_entropy_log_of_the_past(generator):
    model, _ = layer(mask=ct.Causal())
    (one,) = attention_maps(model, torch.randn(1, 6, 8, generator=generator, dtype=torch.float64))
    expected = torch.arange(1, 7, dtype=torch.float64).log()
    assert torch.allclose(entropy(one)[0, 0], expected, atol=EXACT)
    assert torch.allclose(pattern_scores(one)["global"], torch.ones(2, dtype=torch.float64), atol=1e-9)


@pytest.mark.spec("A11")
def test_entropy_on_counted_tokens_is_the_discrete_sum(generator):
    maps = attention_maps(gpt(generator), torch.randint(11, (2, 9), generator=generator))
    for one in maps:
        a = one.weights
        discrete = -(a * torch.where(a > 0, a, 1.0).log()).sum(-1)
        assert torch.allclose(entropy(one), discrete, atol=EXACT)


@pytest.mark.spec("A11")
def test_entropy_against_the_measure_settles_when_stamps_are_refined():
    """−∫ α log α dμ has a limit; the plain sum −Σ A log A grows like log n."""
    model = smooth_model(ct.Interval())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".q." in name or ".k." in name:
                parameter.mul_(3.0)
    settled, grown = [], []
    for n in (16, 64, 256):
        one = attention_maps(model.at(t=ct.Midpoint(n)), Batch(smooth_input))[0]
        settled.append(mean_entropy(one)[0].item())
        grown.append(one.mean(entropy(replace(one, base=(one.base > 0).double())))[0].item())
    assert abs(settled[2] - settled[1]) < 5e-3
    assert abs(settled[2] - settled[1]) < abs(settled[1] - settled[0]) / 8  # midpoints: order two, 1/16 in the limit
    assert grown[2] - grown[1] == pytest.approx(math.log(4), abs=1e-2)
    assert settled[2] <= 1e-9  # at most log of the mass one


@pytest.mark.spec("A11")
@pytest.mark.parametrize(("shift", "pattern"), [(0, "identity"), (1, "previous"), (-1, "local"), (3, "mixed")])
@pytest.mark.parametrize("causal", [False, True])
def test_hand_set_heads_are_detected(shift, pattern, causal):
    if causal and shift < 0:
        return  # the future is not there
    model, x = one_hot_layer(shift, mask=ct.Causal() if causal else None)
    (one,) = attention_maps(model, x)
    table = head_table([one])
    if pattern == "previous":  # the first token has nothing before it and looks elsewhere
        assert table[0].scores["previous"] > 0.999
    if pattern in ("identity", "previous"):
        assert table[0].scores[pattern] > 0.999
    assert {head.pattern for head in table} == {pattern}
    assert all(0 <= score <= 1 for head in table for score in head.scores.values())
    assert table[0].entropy < (1e-6 if not causal or shift <= 0 else 1.0)


@pytest.mark.spec("A11")
def test_detectors_work_in_real_time(generator):
    """Irregular stamps, two samples of different length: the map is written by hand onto the grid of a real call."""
    times = torch.tensor([[0.0, 0.1, 0.7, 0.75, 2.0], [0.0, 0.5, 1.0, 9.0, 9.0]], dtype=torch.float64)
    observed = torch.tensor([[True] * 5, [True, True, True, False, False]])
    axes, native = discrete_axes(8, 2, 8, 1)
    axes = replace(axes, t=ct.Times())
    model = Transformer(axes, native, States(), Parts((Attention(counted(axes, 1)),))).double()
    x = torch.randn(2, 5, 8, generator=generator, dtype=torch.float64)
    (one,) = attention_maps(model, Batch(x, times=times, observed=observed))
    assert torch.equal(one.weights[1, :, 3:], torch.zeros(2, 2, 5, dtype=torch.float64))
    assert torch.allclose(one.weights[0].sum(-1), torch.ones(2, 5, dtype=torch.float64))
    written = torch.zeros_like(one.weights)
    for i in range(5):
        written[:, 0, i, max(i - 1, 0)] = 1.0  # head 0: the previous stamp
        written[:, 1, i, i] = 1.0  # head 1: itself
    written[1, :, 3:] = 0.0
    scores = pattern_scores(replace(one, weights=written))
    assert scores["previous"][0] == pytest.approx(1.0)
    assert scores["identity"][1] == pytest.approx(1.0)
    assert scores["previous"][1] == pytest.approx(0.0)
    near = pattern_scores(replace(one, weights=written), radius=0.1)["local"]  # only 0.1→0 and 0.75→0.7 are near
    assert near[0] < 0.7
    assert near[1] == pytest.approx(1.0)


@pytest.mark.spec("A11")
def test_padding_changes_nothing(generator):
    """A padded sample's entropy, scores and rollout are those of the sample alone."""
    model = gpt(generator)
    ids = torch.randint(11, (1, 6), generator=generator)
    padded = torch.cat([ids, torch.zeros(1, 3, dtype=torch.long)], 1)
    alone = attention_maps(model, ids)
    beside = attention_maps(model, Batch(padded, observed=torch.arange(9)[None] < 6))
    for one, other in zip(head_table(alone), head_table(beside), strict=True):
        assert one.pattern == other.pattern
        assert one.entropy == pytest.approx(other.entropy, abs=1e-12)
        assert one.scores == pytest.approx(other.scores, abs=1e-9)
    assert torch.allclose(rollout(beside)[:, :6, :6], rollout(alone), atol=EXACT)
    assert torch.equal(rollout(beside)[0, 6:], torch.eye(9, dtype=torch.float64)[6:])


@pytest.mark.spec("A11")
def test_rollout_is_the_product_from_last_to_first(generator):
    maps = attention_maps(gpt(generator), torch.randint(11, (2, 7), generator=generator))
    expected = torch.eye(7, dtype=torch.float64)
    for one in maps:  # Ã_L … Ã_1: later layers stand on the left
        expected = 0.5 * (torch.eye(7, dtype=torch.float64) + one.weights.mean(1)) @ expected
    assert torch.allclose(rollout(maps), expected, atol=EXACT)
    assert torch.allclose(rollout(maps).sum(-1), torch.ones(2, 7, dtype=torch.float64), atol=EXACT)
    wrong = torch.eye(7, dtype=torch.float64)
    for one in maps:
        wrong = wrong @ (0.5 * (torch.eye(7, dtype=torch.float64) + one.weights.mean(1)))
    assert (wrong - expected).abs().max() > 1e-3  # the order matters here


@pytest.mark.spec("A11")
def test_rollout_of_identity_is_identity():
    model, x = one_hot_layer(0, strength=4000.0)
    rolled = rollout(attention_maps(model, x) * 5)
    assert torch.allclose(rolled[0], torch.eye(8, dtype=torch.float64), atol=EXACT)


@pytest.mark.spec("A11")
def test_rollout_keeps_its_share_on_finer_depth(generator):
    """Two halves of a layer with one map keep what one layer keeps for the token itself: 2^(−dz) each."""
    one = attention_maps(gpt(generator, depth=1), torch.randint(11, (1, 5), generator=generator))[0]
    nothing = replace(one, weights=torch.zeros_like(one.weights))
    away = torch.zeros_like(one.weights)
    away[..., 0] = 1.0
    half = replace(one, weights=away, dz=0.5)
    assert torch.allclose(rollout([half, half]), rollout([replace(one, weights=away)]), atol=EXACT)
    assert torch.equal(rollout([nothing])[0], torch.eye(5, dtype=torch.float64))


@pytest.mark.spec("A11")
def test_attribution_equals_finite_differences(generator):
    """One layer, y = x + Σ_h A_h x V_hᵀ O_hᵀ: f is known as a function of A, and is differenced by hand."""
    model, operator = layer(n=4, heads=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    (one,) = attention_maps(model, x)
    v, o = operator.v.coefficients[0].detach(), operator.o.coefficients[0].detach()

    def f(a):
        y = x + torch.einsum("bhts,bsc,hec,dhe->btd", a, x, v, o)
        return (y[:, -1].sin() + y[:, 0] ** 2).sum()

    def of(y):
        return (y[:, -1].sin() + y[:, 0] ** 2).sum()

    slope = torch.zeros_like(one.weights)
    for place in torch.ones_like(slope).nonzero().tolist():
        step = torch.zeros_like(slope)
        step[tuple(place)] = 1e-6
        slope[tuple(place)] = (f(one.weights + step) - f(one.weights - step)) / 2e-6
    for frozen in (False, True):
        model.requires_grad_(not frozen)
        (got,) = attribution(model, x, of)
        assert torch.allclose(got, one.weights * slope.abs(), atol=1e-8)


@pytest.mark.spec("A11")
def test_attribution_reaches_every_depth_and_stays_in_its_sample(generator):
    model = gpt(generator)
    ids = torch.randint(11, (2, 6), generator=generator)
    found = attribution(model, ids, lambda y: y[0, -1, 3])
    assert len(found) == 3
    assert all(part[0].abs().max() > 0 and part[1].abs().max() == 0 for part in found)
    assert all((part >= 0).all() for part in found)
    assert found[-1][0, :, :-1].abs().max() == 0  # only the last row of the last layer reaches the last token


@pytest.mark.spec("A11")
def test_recording_does_not_change_the_answer(generator):
    model = gpt(generator)
    ids = torch.randint(11, (2, 6), generator=generator)
    assert torch.allclose(model.run(ids, context=Context(record=[]))[0], model(ids), atol=EXACT)


@pytest.mark.spec("A11")
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_can_be_looked_into(name):
    family = FAMILIES[name]
    model = family.make()
    maps = attention_maps(model, family.batch)
    for one in maps:
        assert one.base.shape[-2:] == one.weights.shape[-2:] == (len(one.t), len(one.s))
        assert torch.allclose(one.weights.sum(-1), torch.ones(()), atol=1e-5)
        assert (one.weights * (one.base == 0)).abs().max() == 0  # no weight where there is no measure
    for head in head_table(maps):
        assert math.isfinite(head.entropy)
        assert all(0 <= score <= 1 for score in head.scores.values())
    found = attribution(model, family.batch, lambda y: y.square().sum())
    assert all(torch.isfinite(part).all() for part in found)
    assert any(part.abs().max() > 0 for part in found)


def test_continuous_views_and_encoder_decoders_have_maps(generator):
    model = ct.Transformer.continuous(vocab=9, at=ct.at(d=8, h=2, z=2))
    ids = torch.randint(9, (1, 5), generator=generator)
    maps = attention_maps(model.at(h=4, z=ct.Fixed(3, ct.RK4())), ids)
    assert len(maps) == 12
    assert maps[0].weights.shape == (1, 4, 5, 5)
    assert sum(one.dz for one in maps) == pytest.approx(2.0)
    assert torch.allclose(rollout(maps).sum(-1), torch.ones(1, 5))
    axes, native = discrete_axes(8, 2, 8, 2)
    weights = counted(axes, 2)
    encoder = Transformer(axes, native, States(), Parts((Attention(weights),)))
    decoder = Transformer(axes, native, States(), Parts((Attention(weights), Attention(weights, cross=True))))
    both = ct.EncoderDecoder(encoder, decoder)
    batch = Batch(torch.randn(1, 3, 8), source=Batch(torch.randn(1, 6, 8)))
    seen = attention_maps(both, batch)
    shapes = [(one.name.split(".")[0], one.is_self, one.weights.shape[-1]) for one in seen]
    assert shapes == [("encoder", True, 6)] * 2 + [("decoder", True, 3), ("decoder", False, 6)] * 2
    assert all(torch.isfinite(mean_entropy(one)).all() for one in seen)
    with pytest.raises(ConfigError, match="one stream"):
        rollout(seen)


def test_mistakes_are_answered():
    model, _ = layer()
    with pytest.raises(ShapeError, match="one number"):
        attribution(model, torch.zeros(1, 3, 8, dtype=torch.float64), lambda y: y)
    with pytest.raises(ConfigError, match="rollout needs"):
        rollout([])
    maps = attention_maps(model, torch.zeros(1, 3, 8, dtype=torch.float64))
    with pytest.raises(ShapeError, match="3 tokens need as many labels, got 2"):
        plot_attention(maps, "never.png", ["a", "b"])


@pytest.mark.spec("A11")
def test_maps_of_real_weights_are_those_of_hugging_face():
    """MiniLM: six layers of twelve heads; one of them looks at the previous token."""
    transformers = pytest.importorskip("transformers")
    folder = folder_of(MINILM)
    ids, labels = tokenise(folder, "The cat sat on the mat because it was tired of running.")
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = theirs(torch.tensor([ids]), output_attentions=True).attentions
    maps = attention_maps(ct.from_hf(folder), torch.tensor([ids]))
    assert labels[0] == "[CLS]"
    assert len(maps) == len(expected) == 6
    assert max((one.weights - other).abs().max().item() for one, other in zip(maps, expected, strict=True)) < 1e-5
    heads = [head for head in head_table(maps) if head.pattern == "previous"]
    assert [(head.z, head.head) for head in heads] == [(0.0, 2)]
    assert heads[0].scores["previous"] > 0.99


def test_plots_are_written(tmp_path, generator):
    maps = attention_maps(gpt(generator), torch.randint(11, (1, 6), generator=generator))
    labels = ["a", "$", "c", "d", "a rather long token", "f"]
    made = [
        plot_attention(maps, tmp_path / "new" / "attention.png", labels),
        plot_entropy(maps, tmp_path / "entropy.png"),
        plot_rollout(rollout(maps), tmp_path / "rollout.png", labels),
        plot_patterns(head_table(maps), tmp_path / "patterns.png"),
    ]
    assert all(path.stat().st_size > 10_000 for path in made)
