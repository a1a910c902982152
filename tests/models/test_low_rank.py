"""Low-rank additions: zero at first, merged exactly on every grid, alone in learning, kept in a file of their own."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import continua as ct
from continua.errors import CheckpointError, ConfigError
from continua.fields import Adapted, Factors, LowRank
from continua.models import learn_only, load_lora, lora_of, save_lora
from continua.operators import Attention, Pointwise, linear
from continua.optim import ByRole
from tests.families import FAMILIES
from tests.refusals import refused

BOTH = (Attention, Pointwise)
NAMES = ("gpt2", "t5", "albert", "continuous", "smooth in depth", "generated")


def _base(name: str) -> tuple[object, object]:
    torch.manual_seed(0)
    if name in FAMILIES:
        made = FAMILIES[name].make()
        batch = FAMILIES[name].batch
    else:
        basis = ct.BSpline(5) if name == "smooth in depth" else ct.Generated(5)
        made = ct.Transformer.continuous(vocab=32, at=ct.at(d=16, h=2, z=4), bases={"z": basis})
        batch = FAMILIES["continuous"].batch
    return made.double(), _double(batch)


def _double(batch):
    if isinstance(batch, torch.Tensor):
        return batch.double() if batch.is_floating_point() else batch
    values = batch.values if not batch.values.is_floating_point() else batch.values.double()
    source = None if batch.source is None else _double(batch.source)
    return ct.Batch(values, times=batch.times, source=source)


def _learned(model):
    """As if it had been trained: nothing of an addition is zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0.0, 0.1, generator=generator)
    return model


@pytest.mark.spec("B14")
@pytest.mark.parametrize("name", NAMES)
def test_an_addition_is_nothing_at_first_and_merges_exactly_on_every_grid(name) -> None:
    base, batch = _base(name)
    model = ct.with_lora(base, rank=2, where=BOTH)
    with torch.no_grad():
        assert torch.equal(model(batch), base(batch))
        _learned(model)
        plain = ct.merged(model)
        assert lora_of(plain) is None
        assert (model(batch) - base(batch)).abs().max() > 1e-3
        for size in ({}, {"z": 1}, {"h": 1}, {"d": 8} if name in ("continuous", "smooth in depth") else {"z": 2}):
            apart = (model.at(**size)(batch) - plain.at(**size)(batch)).abs().max()
            assert apart <= 1e-12, size
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        f"{n}.{side}.coefficients"
        for n, m in model.named_modules()
        if isinstance(m, Adapted)
        for side in ("out", "inputs")
    }


@pytest.mark.spec("B14")
@pytest.mark.parametrize(
    ("name", "adjoint"),
    [("llama", ct.Direct()), ("llama", ct.Recompute()), ("gpt2", ct.Lean()), ("albert", ct.Direct())],
    ids=str,
)
def test_the_short_way_back_has_the_gradients_of_the_long_one(name, adjoint, monkeypatch) -> None:
    base, batch = _base(name)
    model = _learned(ct.with_lora(base, rank=2, scale=0.7, where=BOTH))

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        answer = model(batch)
        weights = torch.linspace(-1, 1, answer.numel(), dtype=answer.dtype).view_as(answer)
        (answer * weights).sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}

    model.adjoint = adjoint
    found = gradients()
    model.adjoint = ct.Direct()
    monkeypatch.setattr("continua.operators.linear.factors_of", lambda weight: None)
    wanted = gradients()
    assert all(bool(g.abs().max() > 0) for g in wanted.values())
    assert max(float((found[n] - wanted[n]).abs().max()) for n in wanted) <= 1e-12


@pytest.mark.spec("B14")
def test_products_with_factors_have_first_and_second_derivatives() -> None:
    generator = torch.Generator().manual_seed(0)
    x, base, bias, out, inputs = (
        torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=name != "base")
        for name, shape in {"x": (2, 3, 4), "base": (5, 4), "bias": (5,), "out": (2, 5), "inputs": (2, 4)}.items()
    )

    def product(x, bias, out, inputs):
        weight = base + 0.5 * out.mT @ inputs
        weight.factors = Factors(out, inputs, 0.5)
        return linear.linear(x, weight, bias).sin()

    assert torch.autograd.gradcheck(product, (x, bias, out, inputs))
    assert torch.autograd.gradgradcheck(product, (x, bias, out, inputs))


@pytest.mark.spec("B14")
def test_products_of_one_state_share_what_reads_it_and_keep_their_derivatives() -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)

    x = drawn(2, 3, 4)
    sides = [(drawn(2, 5), drawn(2, 4)), (drawn(1, 3), drawn(1, 4))]
    bases = [drawn(5, 4).detach(), drawn(3, 4).detach()]
    bias = drawn(5)

    def products(x, bias, *few):
        weights = []
        for base, out, inputs, scale in zip(bases, few[::2], few[1::2], (0.5, 2.0), strict=True):
            weights.append(base + scale * out.mT @ inputs)
            weights[-1].factors = Factors(out, inputs, scale)
        first, second = linear.linears(x, (weights[0], bias), (weights[1], None))
        assert first.grad_fn is second.grad_fn
        return first.sin(), second.cos()

    few = [side for pair in sides for side in pair]
    assert torch.autograd.gradcheck(products, (x, bias, *few))
    assert torch.autograd.gradgradcheck(products, (x, bias, *few))


@pytest.mark.spec("B14")
def test_an_optimiser_keeps_the_few_numbers_that_learn() -> None:
    base, batch = _base("gpt2")
    model = ct.with_lora(base, rank=1)
    before = {n: p.clone() for n, p in model.named_parameters()}
    chosen = ByRole().make(model)
    for _ in range(2):
        chosen.zero_grad()
        model(batch).square().mean().backward()
        chosen.step(1.0)
    held = sum(t.numel() for t in chosen.state()[0].values() if t.dim())
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert held == 2 * learning
    assert held <= sum(p.numel() for p in base.parameters())
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {n for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.spec("B14")
def test_an_addition_is_a_small_file_that_loads_onto_its_base(tmp_path) -> None:
    base, batch = _base("bert")
    model = _learned(ct.with_lora(base, rank=1, scale=0.5, also=("readout.bias",)))
    file = save_lora(model, tmp_path / "few.safetensors")
    base.save(tmp_path / "base")
    assert file.stat().st_size < (tmp_path / "base" / "model.safetensors").stat().st_size / 4
    again = load_lora(ct.load(tmp_path / "base"), file)
    assert torch.equal(again(batch), model(batch))
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in model.parameters()]
    assert lora_of(again) == LowRank(1, 0.5)
    ct.merged(again).save(tmp_path / "merged")
    assert torch.equal(ct.load(tmp_path / "merged")(batch), model(batch))
    model.save(tmp_path / "whole")  # with the addition beside its kernels
    assert torch.equal(ct.load(tmp_path / "whole")(batch), model(batch))


@pytest.mark.spec("B14")
def test_merged_models_go_to_hugging_face(tmp_path) -> None:
    base, batch = _base("llama")
    model = _learned(ct.with_lora(base, rank=2, where=BOTH))
    ct.to_hf(model, tmp_path / "by itself")
    ct.to_hf(ct.merged(model), tmp_path / "merged")
    for folder in ("by itself", "merged"):
        assert (ct.from_hf(tmp_path / folder)(batch) - model(batch)).abs().max() <= 1e-12
    small = ct.discretise(model, h=2)
    assert (small(batch) - model.at(h=2)(batch)).abs().max() <= 1e-12
    assert (ct.lift(model)(batch) - model(batch)).abs().max() <= 1e-12
    elastic = ct.elastic(model, calibrate=[torch.randint(32, (4, 32))])
    assert (elastic(batch) - model(batch)).abs().max() <= 1e-12


@pytest.mark.spec("B14")
def test_bad_additions_are_refused(tmp_path) -> None:
    base, _ = _base("gpt2")
    model = ct.with_lora(base, rank=2)
    with refused(ConfigError, "rank=2", "merged(model)"):
        ct.with_lora(model, rank=3)
    with refused(ConfigError, "got 0", "rank ≥ 1"):
        ct.with_lora(base, rank=0)
    with refused(ConfigError, "Attention", "where=(Attention, Pointwise)"):
        ct.with_lora(base, rank=2, where=("Attention",))
    with refused(ConfigError, "Transformer with Convolution", "where=(Attention,)"):
        ct.with_lora(base, rank=2, where=(ct.models.Convolution,))
    with refused(ConfigError, "'head'", "readout"):
        learn_only(model, ("head",))
    with refused(CheckpointError, "Transformer", "with_lora"):
        save_lora(base, tmp_path / "a.safetensors")
    with refused(CheckpointError, "a.bin", "a.safetensors"):
        save_lora(model, tmp_path / "a.bin")
    with refused(CheckpointError, "is missing", "save_lora"):
        load_lora(base, tmp_path / "a.safetensors")


@pytest.mark.spec("B14")
def test_other_files_and_other_bases_are_seen(tmp_path) -> None:
    base, _ = _base("gpt2")
    file = save_lora(ct.with_lora(base, rank=2), tmp_path / "a.safetensors")
    other = ct.zoo.gpt2(vocab=32, d=24, heads=2, depth=2, context=16)
    with refused(CheckpointError, "[2, 2, 16], not [2, 2, 24]", "trained beside"):
        load_lora(other, file)
    torch.manual_seed(5)
    with pytest.warns(UserWarning, match="other weights"):
        load_lora(FAMILIES["gpt2"].make().double(), file)
    with safe_open(file, "pt") as opened:
        about = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    first = next(iter(tensors))
    save_file({**tensors, first: tensors[first] + 1}, file, metadata=about)
    with refused(CheckpointError, "other numbers", "copy it again"):
        load_lora(base, file)
    save_file(tensors, file, metadata={"format": "pt"})
    with refused(CheckpointError, "'pt'", "save_lora"):
        load_lora(base, file)
    file.write_bytes(json.dumps({"a": 1}).encode())
    with refused(CheckpointError, str(file.name), "copy it again"):
        load_lora(base, file)
