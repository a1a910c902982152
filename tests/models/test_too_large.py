"""Sizes that no memory has are refused with an estimate, before anything of that size is made."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import continua as ct
from continua import lab, memory
from continua.axes import ClenshawCurtis, GaussLegendre, Midpoint, Sobol
from continua.cli.generate import Writing
from continua.data.burgers import burgers_pairs
from continua.data.darcy import darcy_pairs
from continua.data.navier_stokes import vorticity_paths
from continua.errors import ContinuaError
from continua.fields import Expansion, Generated

GB = 10**9
pytestmark = pytest.mark.spec("B17")


@pytest.fixture(autouse=True)
def eight_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 8 * GB)


def small() -> Any:
    return ct.Transformer.continuous(vocab=20, at=ct.at(d=8, h=2, z=2), context=8)


def gpt2(**sizes: int) -> Any:
    return ct.zoo.gpt2(**{"vocab": 20, "d": 8, "heads": 2, "depth": 2, "context": 8, **sizes})


TOKENS = torch.zeros(1, 4, dtype=torch.long)

TOO_LARGE: dict[str, Callable[[], Any]] = {
    "at(d=10⁹)": lambda: ct.at(d=10**10),
    "a view of width 10⁹": lambda: small().at(d=10**9)(TOKENS),
    "a view of width 10⁵": lambda: small().at(d=10**5)(TOKENS),
    "a held view": lambda: small().at(d=10**7).held(),
    "a view of GPT-2": lambda: gpt2().at(m=10**9)(TOKENS),
    "10⁹ heads": lambda: small().at(h=10**9)(TOKENS),
    "10⁹ steps": lambda: small().at(z=10**9)(TOKENS),
    "10⁹ fixed steps": lambda: small().at(z=ct.Fixed(10**9))(TOKENS),
    "10¹² layers": lambda: gpt2(depth=10**12),
    "10⁸ layers": lambda: gpt2(depth=10**8),
    "a vocabulary of 10¹⁰": lambda: gpt2(vocab=10**10),
    "a wide model": lambda: gpt2(d=10**6),
    "a wide continuous model": lambda: ct.Transformer.continuous(vocab=20, at=ct.at(d=10**6, h=2, z=2)),
    "a continuous model of many hidden values": lambda: ct.Transformer.continuous(
        vocab=20, at=ct.at(d=4000, h=2, m=10**6, z=2)
    ),
    "10¹² points": lambda: ct.Points(10**12),
    "10¹² nodes": lambda: Midpoint(10**12),
    "10¹² draws": lambda: Sobol(10**12),
    "10¹² waves": lambda: ct.zoo.function_map(ct.Circle(), 16, modes=10**12),
    "10¹² channels": lambda: ct.Transformer.continuous(channels=10**12, at=ct.at(d=8, h=2, z=2)),
    "10⁴⁰ coefficients": lambda: Generated(10**40),
    "a path of 10¹² times": lambda: lab.simulate(lab.SelfAttention(), lab.Particles.uniform(3, 2), 1.0, save=10**12),
    "10¹² layers of particles": lambda: lab.layers(lab.SelfAttention(), lab.Particles.uniform(3, 2), 10**12),
    "a shock of 10⁻¹²": lambda: burgers_pairs(1, n=8, viscosity=1e-12),
    "a shock of 10⁻³²⁰": lambda: burgers_pairs(1, n=8, viscosity=1e-320),
    "a fine square": lambda: darcy_pairs(1, n=9, refine=10**6),
    "a fine torus": lambda: vorticity_paths(1, n=16, refine=10**40),
    "a text of 10²⁰ tokens": lambda: Writing(tokens=10**20),
    "a Gauss rule of 10⁵": lambda: GaussLegendre(10**5),
    "a Clenshaw–Curtis rule of 10⁵": lambda: ClenshawCurtis(10**5),
}


def _only_small(field: Expansion, *given: Any, **named: Any) -> None:
    assert field.coefficients.numel() < 10**6, "numbers were drawn for a model that does not fit"
    torch.nn.init.zeros_(field.coefficients)


@pytest.mark.finding("X3")
@pytest.mark.parametrize("make", TOO_LARGE.values(), ids=TOO_LARGE)
def test_what_does_not_fit_is_refused_and_costs_nothing(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Expansion, "reset", _only_small)
    tracemalloc.start()
    with pytest.raises(ContinuaError) as caught:
        make()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20
    message = str(caught.value)
    assert "memory" in message or "≤ 1,000,000" in message


@pytest.mark.finding("X3")
@pytest.mark.parametrize("marked", [True, False], ids=["0.2", "0.1"])
def test_a_description_larger_than_its_file_is_refused_before_it_is_made(
    tmp_path: Path, marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gpt2().save(tmp_path / "model")
    text = (folder / "config.json").read_text()
    assert '"vocab": 20' in text
    described = json.loads(text.replace('"vocab": 20', '"vocab": 40000000'))
    if not marked:
        del described["save"]
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "continua", "version": "1"})
    (folder / "config.json").write_text(json.dumps(described))
    made: list[int] = []
    monkeypatch.setattr(Expansion, "reset", lambda field, *spread: made.append(field.coefficients.numel()))
    with pytest.raises(ContinuaError):
        ct.load(folder)
    assert max(made, default=0) < 10**7


def test_a_model_that_fills_the_memory_is_not_refused_at_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt2()
    monkeypatch.setattr(memory, "available", lambda: 0)
    monkeypatch.setattr(memory, "FREE_OF_CHARGE", 0)
    assert torch.isfinite(model(TOKENS)).all()
    with pytest.raises(ContinuaError, match="needs"):
        model.at(d=16)(TOKENS)
