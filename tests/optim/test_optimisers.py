"""Every optimiser does what its formula says, and goes on from a checkpoint with the same bits."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import nn

from continua.errors import ConfigError
from continua.geometry import stiefel
from continua.optim import (
    SOAP,
    AdamW,
    ByRole,
    DualAveraging,
    Mirror,
    Muon,
    Rescaled,
    RiemannianAdam,
    Shampoo,
    SpectrallyNormalised,
    Use,
    bounded,
    muon,
    parameter_info,
)
from tests import cases
from tests.measure import EXACT, gap, random
from tests.refusals import refused

MATRICES: list[Any] = [
    AdamW(1e-2),
    Muon(),
    Muon(half=True),
    Shampoo(),
    SOAP(),
    RiemannianAdam(1e-2),
    Rescaled(AdamW(1e-2)),
    Rescaled(Muon(), norm=2.0),
    SpectrallyNormalised(AdamW(1e-2)),
    Rescaled(SpectrallyNormalised(Muon())),
    SpectrallyNormalised(SOAP(), bound=0.5),
]
SIMPLEX: list[Any] = [Mirror(), DualAveraging()]
FOREIGN = (Shampoo, SOAP)


def named(chosen: Any) -> str:
    inner = f" {named(chosen.inner)}" if hasattr(chosen, "inner") else " half" if getattr(chosen, "half", False) else ""
    return type(chosen).__name__ + inner


def needs(chosen: Any) -> None:
    """Skip where the library of an optimiser is not there."""
    if isinstance(getattr(chosen, "inner", chosen), FOREIGN):
        pytest.importorskip("pytorch_optimizer")


def parameter(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(random(*shape, seed=seed).to(dtype))


def pull(weight: nn.Parameter, target: torch.Tensor) -> float:
    """Set the gradient of half the square distance; return the loss."""
    weight.grad = (weight - target).detach()
    return weight.grad.square().sum().item() / 2


# --- one law over all of them ----------------------------------------------------------------------------------------


@pytest.mark.spec("T6", "T9")
@pytest.mark.parametrize("chosen", [*MATRICES, *SIMPLEX], ids=named)
def test_state_goes_through_files_and_on_with_the_same_bits(chosen: Any) -> None:
    needs(chosen)
    model, twin = cases.MODELS["density"].build(), cases.MODELS["density"].build()
    roles = ByRole(AdamW(1e-2), density=chosen) if chosen in SIMPLEX else ByRole(AdamW(1e-2), kernel=chosen)
    made = roles.make(model)
    for step in range(3):
        advance(model, made, step)
    tensors, plain = made.state()
    kept = load(save({key: value.contiguous() for key, value in tensors.items()}))
    again = roles.make(twin)
    twin.load_state_dict(model.state_dict())
    again.load(kept, json.loads(json.dumps(plain)))
    for step in range(3, 6):
        advance(model, made, step)
        advance(twin, again, step)
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other), name


def advance(model: nn.Module, made: Any, step: int) -> None:
    made.zero_grad()
    model(cases.words(seed=step)).square().mean().backward()
    made.step(1.0 / (1 + step))


@pytest.mark.spec("T6")
@pytest.mark.parametrize("chosen", MATRICES, ids=named)
def test_a_quadratic_goes_down(chosen: Any) -> None:
    needs(chosen)
    target = stiefel.polar(random(1, 6, 4, seed=3))[0]  # one that every constraint allows, up to its size
    weight = nn.Parameter(random(6, 4) * (target.norm() / random(6, 4).norm()))
    made = chosen.make([weight])
    first = pull(weight, target)
    for _ in range(60):
        pull(weight, target)
        made.step()
    assert pull(weight, target) < 0.9 * first


@pytest.mark.spec("T6")
@pytest.mark.parametrize("chosen", MATRICES[1:], ids=named)
def test_depths_are_matrices_of_their_own(chosen: Any) -> None:
    """A kernel [z, h, e, c] is trained as z matrices [h·e, c] are."""
    needs(chosen)
    model = cases.MODELS["gpt2"].build()
    name = "block.parts.0.inner.q.coefficients"
    kernel = model.get_parameter(name)
    alone = [nn.Parameter(matrix.clone()) for matrix in kernel.detach().reshape(2, 8, 8)]
    made, others = chosen.make([kernel], [parameter_info(model)[name]]), [chosen.make([matrix]) for matrix in alone]
    for step in range(4):
        gradient = random(2, 2, 4, 8, seed=step).float()
        kernel.grad = gradient
        made.step()
        for matrix, part, own in zip(alone, gradient.reshape(2, 8, 8), others, strict=True):
            matrix.grad = part.clone()
            own.step()
    limit = 2e-2 if "half" in named(chosen) else 2e-4  # batched products round otherwise, inverse roots amplify that
    if isinstance(getattr(chosen, "inner", chosen), SpectrallyNormalised | AdamW | SOAP) and hasattr(chosen, "inner"):
        limit = 1e-2  # and power iterations start from other vectors
    assert gap(kernel.detach().reshape(2, 8, 8), torch.stack([m.detach() for m in alone])) < limit


# --- Muon ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("T6")
@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (3, 10)])
def test_muon_is_that_of_torch(shape: tuple[int, int]) -> None:
    ours, theirs = parameter(*shape, dtype=torch.float32), parameter(*shape, dtype=torch.float32)
    made = Muon(0.02, 0.9, 0.1, half=True).make([ours])
    reference = torch.optim.Muon([theirs], lr=0.02, momentum=0.9, weight_decay=0.1)
    for step in range(10):
        ours.grad = random(*shape, seed=step).float()
        theirs.grad = ours.grad.clone()
        made.step()
        reference.step()
    assert gap(ours.detach(), theirs.detach()) < 1e-6


@pytest.mark.spec("T6")
def test_muon_in_full_precision_is_near_the_polar_factor() -> None:
    m = random(3, 8, 5)
    values = torch.linalg.svdvals(muon.orthogonalised(m))
    assert 0.6 < values.min() < values.max() < 1.3  # what the quintic promises
    u, _, v = torch.linalg.svd(m, full_matrices=False)
    turned = u.mT @ muon.orthogonalised(m) @ v.mT  # the same singular vectors: diagonal
    assert (turned - torch.diag_embed(turned.diagonal(dim1=1, dim2=2))).abs().max() < EXACT
    half = muon.orthogonalised(m.float(), half=True).double()
    assert gap(half, muon.orthogonalised(m)) < 0.05


@pytest.mark.spec("T6")
def test_a_step_of_muon_moves_the_integral_operator_by_lr() -> None:
    """On continuous axes as on counting ones, whatever the number of nodes."""
    model = cases.MODELS["continuous words"].build().double()
    known = parameter_info(model)
    for name in ("block.parts.0.inner.q.coefficients", "block.parts.1.inner.w2.coefficients"):
        kernel, own = model.get_parameter(name), known[name]
        before = own.matrices(kernel.detach()).clone()
        made = Muon(0.02, decay=0.0).make([kernel], [own])
        kernel.grad = random(*kernel.shape)
        made.step()
        rows, columns = before.shape[1:]
        moved = torch.linalg.matrix_norm(own.matrices(kernel.detach()) - before, 2) * own.scale
        assert (moved / (0.02 * max(1, rows / columns) ** 0.5) - 1).abs().max() < 0.35


@pytest.mark.spec("T6")
def test_muon_turns_matrices_of_one_shape_together_as_it_would_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(6, 4), (4, 6), (6, 4), (5, 5), (9, 4), (8, 8), (8, 8)]
    together, alone = ([parameter(*shape) for shape in shapes] for _ in range(2))
    calls: list[int] = []

    def counted(m: torch.Tensor, *given: Any) -> torch.Tensor:
        calls.append(len(m))
        return muon_of(m, *given)

    muon_of = muon.orthogonalised
    monkeypatch.setattr(muon, "orthogonalised", counted)
    monkeypatch.setattr(muon, "TOGETHER", 60)  # of two that are 8 × 8, each is turned by itself
    every = Muon(0.02, 0.9, 0.1).make(together)
    each = [Muon(0.02, 0.9, 0.1).make([own]) for own in alone]
    for step in range(3):
        for i, (a, b) in enumerate(zip(together, alone, strict=True)):
            a.grad = random(*a.shape, seed=10 * step + i)
            b.grad = a.grad.clone()
        calls.clear()
        every.step()
        assert sorted(calls) == [1, 1, 1, 1, 3]
        for made in each:
            made.step()
    assert max(gap(a.detach(), b.detach()) for a, b in zip(together, alone, strict=True)) < EXACT


# --- Shampoo and SOAP ------------------------------------------------------------------------------------------------


@pytest.mark.spec("T6")
def test_shampoo_is_its_formula() -> None:
    pytest.importorskip("pytorch_optimizer")
    weight = parameter(5, 3)
    start, eps = weight.detach().clone(), 1e-6
    made = Shampoo(0.1, eps=eps).make([weight])
    left, right = eps * torch.eye(5, dtype=torch.float64), eps * torch.eye(3, dtype=torch.float64)
    for step in range(3):
        g = random(5, 3, seed=step)
        left, right = left + g @ g.mT, right + g.mT @ g
        start = start - 0.1 * root(left) @ g @ root(right)
        weight.grad = g.clone()
        made.step()
        assert torch.equal(weight.grad, g)  # the library changes gradients; ours are left alone
    assert gap(weight.detach(), start) < 1e-8


def root(a: torch.Tensor) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(a)
    return vectors @ torch.diag(values**-0.25) @ vectors.mT


@pytest.mark.spec("T6")
def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pytorch_optimizer", None)
    with refused(ConfigError, "got no such package", "continua-ml[optim]"):
        SOAP().make([parameter(3, 3)])


# --- Stiefel ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("T6")
@pytest.mark.parametrize("shape", [(16, 16), (24, 8), (6, 20)])
def test_a_thousand_steps_stay_on_the_manifold(shape: tuple[int, int]) -> None:
    """In float32, for the loss −⟨A, Q⟩ whose optimum is the polar factor of A."""
    weight = parameter(*shape, dtype=torch.float32)
    goal = random(*shape, seed=1).float()
    made = RiemannianAdam(0.01).make([weight])
    losses = []
    for _ in range(1000):
        losses.append(-(goal * weight).sum().item())
        weight.grad = -goal
        made.step()
    tall = weight.detach() if shape[0] >= shape[1] else weight.detach().mT
    assert stiefel.defect(tall[None]) <= 1e-6
    best = -torch.linalg.svdvals(goal.double()).sum().item()
    assert losses[-1] < losses[0] / 2
    assert losses[-1] < 0.99 * best  # at least 99 % of the optimum


@pytest.mark.spec("T6")
def test_kernels_of_a_continuous_model_become_isometries() -> None:
    model = cases.MODELS["continuous words"].build()
    made = ByRole(AdamW(1e-2), kernel=RiemannianAdam(1e-2)).make(model)
    for step in range(5):
        advance(model, made, step)
    name = "block.parts.0.inner.q.coefficients"
    own = parameter_info(model)[name]
    assert stiefel.defect(own.matrices(model.get_parameter(name).detach()) * own.scale) < 1e-6


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("T5", "T6")
def test_rescaled_kernels_keep_their_norm() -> None:
    model = cases.MODELS["gpt2"].build()
    name = "block.parts.0.inner.q.coefficients"
    start = model.get_parameter(name).detach().flatten(1).norm(dim=1)
    made = ByRole(AdamW(1e-2), kernel=Rescaled(AdamW(0.05))).make(model)
    for step in range(5):
        advance(model, made, step)
    assert gap(model.get_parameter(name).detach().flatten(1).norm(dim=1), start) < 1e-6
    fixed = parameter(5, 4)
    one = Rescaled(AdamW(0.1), norm=3.0).make([fixed])
    fixed.grad = torch.ones(5, 4, dtype=torch.float64)
    one.step()
    assert abs(fixed.norm().item() - 3.0) < EXACT


@pytest.mark.spec("T5", "T6")
@pytest.mark.parametrize("name", ["gpt2", "continuous words"])
def test_spectrally_normalised_operators_stay_below_the_bound(name: str) -> None:
    model = cases.MODELS[name].build().double()
    made = ByRole(AdamW(1e-2), kernel=SpectrallyNormalised(AdamW(0.05), bound=0.8)).make(model)
    largest = 0.0
    for step in range(8):
        advance(model, made, step)
    for own in parameter_info(model).values():
        if own.role.use is Use.KERNEL:
            norms = torch.linalg.matrix_norm(own.matrices(model.get_parameter(own.name).detach()), 2) * own.scale
            largest = max(largest, norms.max().item())
    assert 0.7 < largest < 0.8 * 1.02  # two power iterations a step see 98 % of a norm that moves


@pytest.mark.spec("T5")
def test_power_iteration_finds_the_norm() -> None:
    w = random(3, 7, 5)
    sigma, left = bounded.spectral_norm(w, random(3, 7, seed=1), 200)
    assert gap(sigma, torch.linalg.matrix_norm(w, 2)) < 1e-9
    assert gap(left.norm(dim=1), torch.ones(3, dtype=torch.float64)) < EXACT
    assert bounded.spectral_norm(0 * w, left, 3)[0].max() == 0


@pytest.mark.spec("T5")
def test_a_bound_of_zero_is_refused() -> None:
    with refused(ConfigError, "got 0", "bound > 0"):
        SpectrallyNormalised(AdamW(), bound=0.0)


# --- shards ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.spec("T6")
@pytest.mark.parametrize("chosen", [*MATRICES[3:], *SIMPLEX], ids=named)
def test_sharded_parameters_are_refused(chosen: Any, mesh: Any) -> None:
    needs(chosen)
    from torch.distributed.tensor import Shard, distribute_tensor

    weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    with refused(ConfigError, "sharded ones", "AdamW"):
        chosen.make([weight])
    AdamW().make([weight])
    Muon().make([weight])
