"""A13: predicted FLOPs are those that torch counts, predicted bytes those that autograd keeps."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import continua as ct
from continua.errors import ConfigError, ShapeError
from continua.fields import counted
from continua.lab import predict
from continua.lab.cost.complexity import evaluations
from continua.models import Batch, Tokens
from continua.models.build import discrete_axes
from continua.models.zoo import function_map
from continua.operators import Local, Parts
from tests.families import FAMILIES
from tests.refusals import refused

aten = torch.ops.aten
FUSED = {  # torch has formulas for the CUDA kernels; the CPU one does the same work
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *rest, **named: sdpa_flop_count(q, k, v),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda g, q, k, v, *rest, **named: sdpa_backward_flop_count(g, q, k, v)
    ),
}


def counted_flops(model, batch, at=None):
    """(forward, backward) as torch counts them."""
    with FlopCounterMode(display=False, custom_mapping=FUSED) as forward:
        answer = model(batch, at=at)
    with FlopCounterMode(display=False, custom_mapping=FUSED) as backward:
        answer.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def kept_bytes(model, batch):
    """Bytes of the storages that autograd keeps, those of parameters left out."""
    own, kept = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}, {}

    def keep(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        answer = model(batch)
    total = sum(size for size, _ in kept.values())
    del answer
    return total


MODELS = {
    "gpt2": lambda: ct.zoo.gpt2(vocab=50, d=32, heads=4, depth=3, context=64),
    "bert": lambda: ct.zoo.bert(vocab=50, d=32, heads=4, depth=2, context=64),
    "bert with head": lambda: ct.zoo.bert(vocab=50, d=32, heads=4, depth=2, context=64, masked_lm=True),
}


@pytest.mark.spec("A13")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("b", "t"), [(1, 64), (3, 17)])
def test_flops_are_exactly_those_that_torch_counts(name, b, t, generator):
    model = MODELS[name]()
    forward, backward = counted_flops(model, torch.randint(50, (b, t), generator=generator))
    cost = predict(model, b, t)
    assert cost.forward == forward
    assert cost.backward == backward


@pytest.mark.spec("A13")
@pytest.mark.parametrize("name", FAMILIES)
def test_flops_of_every_family(name):
    family = FAMILIES[name]
    model = family.make()
    model(family.batch)  # basis matrices are made once
    forward, backward = counted_flops(model, family.batch)
    cost = predict(model, 2, family.tokens, sources=family.sources)
    assert (cost.forward, cost.backward) == (forward, backward)


@pytest.mark.spec("A13")
@pytest.mark.parametrize(
    "at",
    [None, ct.at(d=16, h=2, z=2), ct.at(d=48, z=ct.Fixed(2, ct.RK4())), ct.at(z=ct.Fixed(2, ct.Strang()))],
    ids=["native", "small", "RK4", "Strang"],
)
def test_flops_of_views_include_reading_the_fields(at, generator):
    model = ct.Transformer.continuous(vocab=50, at=ct.at(d=32, h=4, z=3))
    ids = torch.randint(50, (2, 40), generator=generator)
    model(ids, at=at)  # basis matrices are made once
    forward, backward = counted_flops(model, ids, at)
    cost = predict(model, 2, 40, at)
    assert cost.forward == pytest.approx(forward, rel=0.01)
    assert cost.backward == pytest.approx(backward, rel=0.01)


@pytest.mark.spec("A13")
def test_the_plain_formula_needs_no_recomputation(generator):
    """Fused attention computes its scores again on the way back: half a forward more than the plain formula."""
    model = MODELS["bert"]()
    ids = torch.randint(50, (2, 32), generator=generator)
    with sdpa_kernel(SDPBackend.MATH):
        forward, backward = counted_flops(model, ids)
    cost = predict(model, 2, 32)
    scores = sum(one.forward * one.times for one in cost.costs if "scores" in one.name)
    assert forward == cost.forward
    assert backward == cost.backward - scores // 2


@pytest.mark.spec("A13")
@pytest.mark.parametrize("name", ["gpt2", "bert", "continuous"])
@pytest.mark.parametrize("t", [32, 64])
def test_bytes_are_those_that_autograd_keeps(name, t, generator):
    make = {**MODELS, "continuous": lambda: ct.Transformer.continuous(vocab=50, at=ct.at(d=32, h=4, z=3))}[name]
    model = make()
    measured = kept_bytes(model, torch.randint(50, (8, t), generator=generator))
    assert predict(model, 8, t).bytes == pytest.approx(measured, rel=0.15)


@pytest.mark.spec("A13")
def test_evaluations_are_counted_by_a_dry_run():
    model = ct.Transformer.continuous(vocab=8, at=ct.at(d=8, h=2, z=3))
    assert evaluations(model, ct.Fixed(5, ct.LieTrotter())) == [5, 5]
    assert evaluations(model, ct.Fixed(5, ct.RK4())) == [20, 20]
    twice = predict(model.at(z=6), 1, 8).of("attention"), predict(model.at(z=3), 1, 8).of("attention")
    assert twice[0] == 2 * twice[1]


def test_an_encoder_decoder_is_the_sum_of_its_sides(generator):
    axes, native = discrete_axes(16, 2, 32, 2)
    weights = counted(axes, 2)
    encoder = ct.Transformer(axes, native, Tokens(weights.autonomous(), 9), Parts((ct.Attention(weights),)))
    parts = Parts((ct.Attention(weights, mask=ct.Causal()), ct.Attention(weights, cross=True), ct.Pointwise(weights)))
    model = ct.EncoderDecoder(encoder, ct.Transformer(axes, native, Tokens(weights.autonomous(), 9), parts))
    source, target = (torch.randint(9, (2, n), generator=generator) for n in (12, 5))
    cost = predict(model, 2, 5, sources=12)
    assert counted_flops(model, Batch(target, source=Batch(source))) == (cost.forward, cost.backward)


@pytest.mark.parametrize("mask", [ct.Causal(), ct.Window(3.0)], ids=["fused", "blocked"])
def test_blocks_of_long_sequences_are_computed_again(mask, generator):
    axes, native = discrete_axes(8, 1, 8, 1)
    weights = counted(axes, 1)
    model = ct.Transformer(axes, native, Tokens(weights.autonomous(), 9), Parts((ct.Attention(weights, mask=mask),)))
    cost = predict(model, 1, 1100)
    assert counted_flops(model, torch.randint(9, (1, 1100), generator=generator)) == (cost.forward, cost.backward)


def test_observations_and_a_pooled_readout(generator):
    from continua.models.refine import smooth_input, smooth_model

    model = smooth_model(ct.Interval())
    at = model.native.replace(t=ct.Midpoint(50))
    model(Batch(smooth_input), at=at)
    forward, backward = counted_flops(model, Batch(smooth_input), at)
    cost = predict(model, 1, 50, at)
    assert cost.forward == pytest.approx(forward, rel=0.01)
    assert cost.backward == pytest.approx(backward, rel=0.01)


def test_mistakes_are_answered():
    model = MODELS["gpt2"]()
    with pytest.raises(ShapeError, match="sequences with tokens"):
        predict(model, 0, 4)

    class Unknown(ct.operators.Operator):
        pass

    odd = ct.Transformer(model.axes, model.native, model.embed, ct.operators.Parts((Unknown(),)))
    with pytest.raises(ConfigError, match="Unknown"):
        predict(odd, 1, 4)


@pytest.mark.spec("A13")
def test_convolution_by_waves_is_counted_and_quick_kernels_are_refused() -> None:
    sizes = {"at": ct.at(d=16, h=2, m=16, z=2), "modes": 6, "attention": False}
    model = function_map(ct.Circle(), 64, **sizes)
    with FlopCounterMode(display=False) as counter:
        model(Batch(torch.zeros(2, 64, 1)))
    found = predict(model, 2, 64)
    angles = 2 * 64 * 6  # of the waves at the nodes, made once at bind
    assert sum(cost.forward * cost.times for cost in found.costs) + angles == counter.get_total_flops()
    quick = ct.zoo.gpt2(vocab=11, d=8, heads=2, depth=1, context=16)
    quick.block.parts[0].inner.kernel = Local(2.0)
    with refused(ConfigError, "Local", "benchmarks/long.py"):
        predict(quick, 1, 8)
