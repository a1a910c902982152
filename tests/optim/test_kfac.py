"""K-FAC: its factors are those of curvlinops and of dense sums, and a step is its formula."""

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from continua import axes as ax
from continua import fields as fd
from continua import flow as fl
from continua.axes import Depths
from continua.fields import ByBasis, counted
from continua.models import Batch, States, Transformer
from continua.models.build import discrete_axes
from continua.operators import Integral, Parts, Pointwise
from continua.optim import KFAC, AdamW, ByRole, parameter_info
from tests import cases
from tests.measure import EXACT, gap, random

LAYERS, WIDTH, HIDDEN = 2, 5, 7


def factors(model: nn.Module, made: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """A and G of every kernel, as they will be averaged."""
    part = next(part for part in made.parts if isinstance(part.chosen, KFAC))
    return {name: part.made._seen(model.get_parameter(name)) for name in part.names}


def watched(model: nn.Module, **choices: Any) -> Any:
    return ByRole(AdamW(1e-2), kernel=KFAC(**choices)).make(model)


# --- factors ---------------------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """x ← x + W2 gelu(W1 x + b1) + b2, layer by layer, in bare torch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(WIDTH, HIDDEN) for _ in range(LAYERS))
        self.second = nn.ModuleList(nn.Linear(HIDDEN, WIDTH) for _ in range(LAYERS))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        for first, second in zip(self.first, self.second, strict=True):
            x = x + second(gelu(first(x)))
        return x


def same_model(plain: Plain) -> Transformer:
    """The same as a flow on counting axes."""
    axes, native = discrete_axes(WIDTH, 1, HIDDEN, LAYERS)
    made = Transformer(axes, native, States(), Parts((Pointwise(counted(axes, LAYERS)),))).double()
    inner: Any = made.block.parts[0]
    with torch.no_grad():
        for field, layers in ((inner.w1, plain.first), (inner.w2, plain.second)):
            field.coefficients.copy_(torch.stack([layer.weight for layer in layers]))
        for field, layers in ((inner.b1, plain.first), (inner.b2, plain.second)):
            field.coefficients.copy_(torch.stack([layer.bias for layer in layers]))
    return made


@pytest.mark.spec("T6")
def test_factors_are_those_of_curvlinops() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        curvlinops = pytest.importorskip("curvlinops")
    torch.manual_seed(0)
    plain = Plain()
    model = same_model(plain)
    x, y = random(6, 4, WIDTH), torch.randint(WIDTH, (6, 4), generator=torch.Generator().manual_seed(1))
    made = watched(model)
    answer = model(x)
    assert gap(answer, plain(x)) < EXACT
    cross_entropy(answer.flatten(0, 1), y.flatten()).backward()
    ours = factors(model, made)
    weights = [layer.weight for layers in (plain.first, plain.second) for layer in layers]
    plain.register_forward_hook(lambda module, given, answer: answer.movedim(-1, 1))  # classes first, as torch has it
    reference = curvlinops.KFACLinearOperator(
        plain,
        nn.CrossEntropyLoss(),
        weights,
        [(x, y)],
        fisher_type=curvlinops.FisherType.EMPIRICAL,
        kfac_approx=curvlinops.KFACType.EXPAND,
        check_deterministic=False,
    )
    reference.compute_kronecker_factors()
    for i in range(LAYERS):
        for part, name in (("first", "w1"), ("second", "w2")):
            a, g = ours[f"block.parts.0.{name}.coefficients"]
            assert gap(a[i], reference._input_covariances[f"{part}.{i}"]) < EXACT
            assert gap(g[i], reference._gradient_covariances[f"{part}.{i}"]) < EXACT


def integral(**bases: Any) -> Integral:
    """An integral operator in float64 over depth [0, 2], d on a ring and c with it."""
    axes = ax.Axes(
        t=ax.Points(), d=ax.Circle(1.5), h=ax.Points(1), e=ax.Points(1), m=ax.Points(1), z=ax.Interval(0.0, 2.0)
    )
    torch.manual_seed(0)
    one = fd.Nodal(ax.Counting(1))
    return Integral(ByBasis(axes, {"h": one, "e": one, "m": one, **bases}), bias=False).double()


@pytest.mark.spec("T6")
def test_factors_of_a_field_are_the_dense_sums() -> None:
    """Kernel Σ_k B_k(z) Σ C_kij b_i(d) b_j(c): moments pulled back to coefficients, depths weighted by B_k²."""
    depths, nodes = (0.0, 0.7, 1.9), 6
    operator = integral(z=fd.Legendre(3), d=fd.Fourier(3))
    d = ax.grid_on(ax.Circle(1.5), ax.Midpoint(nodes))
    field: Any = operator.kernel
    made = KFAC().make([field.coefficients], [parameter_info(operator)["kernel.coefficients"]])
    one = ax.grid_on(ax.Points(1), ax.Counting(1))
    f, args = operator.bind(ax.Grids(d=d, h=one, e=one, m=one, z=Depths(depths)))
    wave = fd.Fourier(3).matrix(ax.Circle(1.5), d.nodes)
    along = fd.Legendre(3).matrix(ax.Interval(0.0, 2.0), torch.tensor(depths, dtype=torch.float64)[:, None])
    a, g, count = 0.0, 0.0, 0.0
    loss: Any = 0.0
    for i, z in enumerate(depths):
        x, target = random(2, 4, nodes, seed=i), random(2, 4, nodes, seed=10 + i)
        loss = loss + (f(z, x, args) * target).sum() / 8
        for token, pull in zip(x.flatten(0, 1), target.flatten(0, 1) / 8, strict=True):
            into, out = wave.mT @ (d.weights * token), wave.mT @ pull
            square = along[i].square()[:, None, None]
            a, g, count = a + square * into.outer(into), g + 8 * square * out.outer(out), count + square
    loss.backward()
    got_a, got_g = made._seen(field.coefficients)
    assert gap(got_a, a / count) < EXACT
    assert gap(got_g, g) < EXACT


def calibrated() -> Transformer:
    """Weights that are multiplied row by row and column by column on other grids than the native one."""
    return cases.of_fields(lambda axes, native: replace(cases.with_bases()(axes, native), calibrated=True))


CASES = {**cases.MODELS, "calibrated": cases.Case(calibrated, cases.series)}
ALONE = {
    "calibrated": {"d": 12, "h": 3},
    "gpt2": {},
    "llama": {},
    "albert": {},
    "gated": {},
    "density": {},
    "grouped heads": {},
    "skip": {},
    "continuous words": {"d": 12, "m": 10},
    "continuous series": {"h": 3},
    "spectral": {"d": 9, "e": 5},
    "splines": {"m": 14},
    "generated": {},
    "encoder-decoder": {},
}


def lonely(name: str) -> Batch:
    """One token, beside two others where the model reads a source."""
    if CASES[name].batch is cases.words:
        return Batch(torch.tensor([[3]]))
    if CASES[name].batch is cases.paired:
        return Batch(torch.tensor([[3]]), source=Batch(torch.tensor([[1, 5]])))
    return Batch(random(1, 1, cases.CHANNELS), times=torch.tensor([[0.5]], dtype=torch.float64))


@pytest.mark.spec("T6")
@pytest.mark.parametrize("name", ALONE)
def test_one_token_and_one_evaluation_make_the_factors_those_of_the_gradient(name: str) -> None:
    """Then the gradient is B g aᵀ, so GᵀG = tr(outputs) inputs and GGᵀ = tr(inputs) outputs, on every grid."""
    model = CASES[name].model()
    made = watched(model)
    sizes = ALONE[name] if name == "encoder-decoder" else {"z": 1, **ALONE[name]}
    (model.at(**sizes) if sizes else model)(lonely(name)).square().sum().backward()
    known, moved = parameter_info(model), 0
    one = {k: v for k, v in factors(model, made).items() if not k.startswith("encoder.") and ".k." not in k}
    one = {k: v for k, v in one.items() if not (name == "encoder-decoder" and ".v." in k)}
    for key, (a, g) in one.items():
        gradient = known[key].matrices(model.get_parameter(key).grad)
        assert gap(gradient.mT @ gradient, a * g.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]) < EXACT, key
        assert gap(gradient @ gradient.mT, g * a.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]) < EXACT, key
        moved += bool(gradient.abs().max() > 1e-9)
    assert moved >= 4


@pytest.mark.spec("T6")
def test_products_are_seen_under_adaptive_steps_and_in_half_precision() -> None:
    model = cases.MODELS["continuous words"].build()
    made = watched(model)
    model.at(z=fl.Adaptive(fl.Dopri5(), rtol=1e-2, atol=1e-2))(cases.words()).square().mean().backward()
    for a, g in factors(model, made).values():
        assert a.abs().sum() > 0
        assert torch.isfinite(g).all()
    full, half = [cases.MODELS["gpt2"].build() for _ in range(2)]
    half.load_state_dict(full.state_dict())
    found = []
    for one, enabled in ((full, False), (half, True)):
        made = watched(one)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            one(cases.words()).float().square().mean().backward()
            found.append(factors(one, made))
    for key, (a, _) in found[0].items():
        assert found[1][key][0].dtype == torch.float32
        assert (found[1][key][0] - a).abs().max() < 0.02 * a.abs().max()


@pytest.mark.spec("T6")
def test_only_gradients_of_the_objective_count() -> None:
    """Neither a penalty's own derivatives, nor answers without gradients, nor steps that were passed over."""
    model = cases.MODELS["gpt2"].model()
    made = watched(model)
    with torch.no_grad():
        model(cases.words())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        torch.autograd.grad(model(cases.words()).sum(), list(model.parameters()), create_graph=True)
    kept = [part.made for part in made.parts if isinstance(part.chosen, KFAC)][0].moments.values()  # noqa: RUF015
    assert all(moments.count is None for moments in kept)
    model(cases.words()).sum().backward()
    assert all(moments.count is not None for moments in kept)
    made.zero_grad()
    assert all(moments.count is None for moments in kept)


# --- steps -----------------------------------------------------------------------------------------------------------


def dense_step(gradient: Tensor, a: Tensor, g: Tensor, damping: float) -> Tensor:
    """(Ĝ ⊗ Â)⁻¹ applied to the gradient as one long vector."""
    size = math.sqrt(damping)
    a = a + size * a.trace() / len(a) * torch.eye(len(a), dtype=a.dtype)
    g = g + size * g.trace() / len(g) * torch.eye(len(g), dtype=g.dtype)
    return torch.linalg.solve(torch.kron(g, a), gradient.flatten()).reshape(gradient.shape)


def dense_steps(gradients: Tensor, a: Tensor, g: Tensor, damping: float) -> Tensor:
    """The same for every layer."""
    return torch.stack([dense_step(*layer, damping) for layer in zip(gradients, a, g, strict=True)])


@pytest.mark.spec("T6")
@pytest.mark.parametrize("trust", [None, 1e-3])
def test_a_step_is_the_dense_formula(trust: float | None) -> None:
    """Two kernels, five steps with momentum and decay, factors looked at in every second one."""
    plain = Plain()
    model = same_model(plain)
    chosen = KFAC(0.1, momentum=0.5, decay=0.2, damping=0.01, trust=trust, beta=0.7, every=2)
    made = ByRole(AdamW(1e-2), kernel=chosen).make(model)
    names = [f"block.parts.0.{name}.coefficients" for name in ("w1", "w2")]
    here = {name: model.get_parameter(name).detach().clone() for name in names}
    held: dict[str, Any] = dict.fromkeys(names, 0.0)
    average: dict[str, Any] = {}
    for step in range(5):
        made.zero_grad()
        model(random(6, 4, WIDTH, seed=step)).square().mean().backward()
        gradients = {name: model.get_parameter(name).grad.clone() for name in names}
        if step % 2 == 0:
            rate = max(0.3, 1 / (step // 2 + 1))
            for name, (a, g) in factors(model, made).items():
                old = average.get(name, (a, g))
                average[name] = (old[0] + rate * (a - old[0]), old[1] + rate * (g - old[1]))
        ahead = {name: dense_steps(gradients[name], *average[name], 0.01) for name in names}
        size = sum((ahead[name] * gradients[name]).sum().item() for name in names)
        share = 1.0 if trust is None else min(1.0, math.sqrt(trust / size))
        assert trust is None or share < 1
        made.step(1.0)
        for name in names:
            held[name] = 0.5 * held[name] + 0.5 * share * ahead[name]
            here[name] = (1 - 0.1 * 0.2) * here[name] - 0.1 * held[name]
            assert gap(model.get_parameter(name).detach(), here[name]) < 1e-10


@pytest.mark.spec("T6")
def test_an_ill_conditioned_line_is_fitted_faster_than_by_gradient_descent() -> None:
    """y = Wx + noise with inputs whose variances span 1 to 10⁻⁴: the loss above the least one after fifty steps."""
    scale = torch.logspace(0, -2, WIDTH, dtype=torch.float64)
    x = random(400, WIDTH) * scale
    y = x @ (random(WIDTH, WIDTH, seed=1) / scale).mT + random(400, WIDTH, seed=2)
    least = (x @ torch.linalg.lstsq(x, y).solution - y).square().sum(-1).mean().item() / 2

    def above(make: Any) -> float:
        axes, native = discrete_axes(WIDTH, 1, WIDTH, 1)
        operator = Integral(counted(axes).autonomous(), bias=False).double()
        optimiser, loss = make(operator), torch.zeros(())
        for _ in range(50):
            optimiser.zero_grad()
            f, args = operator.bind(native.grids(axes))
            loss = (f(0.0, x, args) - y).square().sum(-1).mean() / 2
            loss.backward()
            optimiser.step()
        return loss.item() - least

    def ours(operator: Integral) -> Any:
        chosen = KFAC(0.7, momentum=0.0, decay=0.0, damping=1e-6, trust=None, beta=0.5, every=1)
        return chosen.make(list(operator.parameters()), list(parameter_info(operator).values()))

    sgd = [above(lambda o, lr=lr: torch.optim.SGD(o.parameters(), lr)) for lr in (0.1, 0.3, 1.0, 1.5)]
    assert above(ours) < 1e-2 * min(sgd)


@pytest.mark.spec("T6")
@pytest.mark.parametrize("name", ["gpt2", "density", "continuous words", "spectral", "generated", "albert"])
def test_models_learn(name: str) -> None:
    """Counted and continuous, with ρ, with fields of few waves, with a network in depth."""
    torch.manual_seed(0)
    model, batch = cases.MODELS[name].build(), cases.MODELS[name].batch()
    made = ByRole(AdamW(0.0, decay=0.0), kernel=KFAC(0.2, momentum=0.5, every=3)).make(model)
    target = torch.randn(model(batch).shape, generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(15):
        made.zero_grad()
        loss = (model(batch) - target).square().mean()
        loss.backward()
        losses.append(loss.item())
        made.step(1.0)
    assert losses[-1] < 0.99 * losses[0]
