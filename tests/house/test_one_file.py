"""``examples/one_file.py`` is the library: same bases, same coefficients, same answers and gradients on every grid."""

import importlib.util
import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import continua as ct
from continua.models import Observations, Readout
from continua.operators import PreNorm
from tests.exact import EXACT, gap, gradients, numbers, worst
from tests.forked import forked

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "one_file.py"
B, CHANNELS = 2, 2


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_file", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


one_file = _load()

# the name of each weight there and here
A, M = "block.parts.0", "block.parts.1"
NAMES = {
    "read": "embed.table",
    "read_bias": "embed.bias",
    "scale1": f"{A}.norm.scale",
    "shift1": f"{A}.norm.shift",
    **{name: f"{A}.inner.{name}" for name in ("q", "k", "v", "o", "bq", "bk", "bv", "bo")},
    "scale2": f"{M}.norm.scale",
    "shift2": f"{M}.norm.shift",
    **{name: f"{M}.inner.{name}" for name in ("w1", "w2", "b1", "b2")},
    "scale": "readout.before.0.scale",
    "shift": "readout.before.0.shift",
    "write": "readout.head",
}


MASSES = {
    "mass one": {"d": 1.0, "h": 1.0, "e": 1.0, "m": 1.0},
    "masses apart": {"d": 1.5, "h": 2.0, "e": 3.0, "m": 0.5},
}


def library_model(mass: dict[str, float]) -> ct.Transformer:
    """The same model in the words of the library."""
    widths = {letter: ct.Interval(mass=mass[letter]) for letter in "hem"}
    axes = ct.Axes(t=ct.Times(0.0, 1.0), d=ct.Circle(mass=mass["d"]), z=ct.Interval(0.0, 1.0), **widths)
    kinds = {"fourier": ct.Fourier, "legendre": ct.Legendre, "cosine": ct.Cosine}
    weights = ct.ByBasis(axes, {k: kinds[make.__name__](size) for k, (make, size) in one_file.SMOOTH.items()})
    fixed = weights.autonomous()
    native = ct.at(
        d=ct.Midpoint(16),
        h=ct.Midpoint(4),
        e=ct.GaussLegendre(4),
        m=ct.GaussLegendre(12),
        z=ct.Fixed(4, ct.LieTrotter(ct.Euler())),
    )
    block = PreNorm(ct.LayerNorm(weights), ct.Attention(weights)) + PreNorm(
        ct.LayerNorm(weights), ct.Pointwise(weights)
    )
    readout = Readout(fixed, CHANNELS, before=(ct.LayerNorm(fixed),))
    return ct.Transformer(axes, native, Observations(fixed, CHANNELS), block, readout).double()


@torch.no_grad()
def copied(source: torch.nn.Module, target: ct.Transformer) -> None:
    """Coefficients of the example into the library; both must have no other parameter."""
    stored = dict(target.named_parameters())
    assert {f"{name}.coefficients" for name in NAMES.values()} == set(stored)
    assert set(NAMES) == set(source.coefficients)
    for name, ours in NAMES.items():
        wanted = stored[f"{ours}.coefficients"]
        given = source.coefficients[name]
        wanted.copy_((given.T if name == "read" else given).reshape(wanted.shape))  # it maps channels to d: [d, n]
        if name.startswith("scale"):
            wanted.flatten()[0] += 1.0  # the example writes 1 + scale; the first function of the bases d and z is one


@dataclass(frozen=True)
class Place:
    """One discretisation, said twice: to the example, and to the library as (stamps or rule for t, other sizes)."""

    theirs: Callable[[], dict[str, Any]]
    times: Callable[[], Tensor] | None
    ours: dict[str, Any]


def stamps(*shape: int, seed: int = 0) -> Tensor:
    """Sorted random times in [0, 1]."""
    draws = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return draws.sort(-1).values


PLACES = {
    "native": Place(lambda: one_file.NATIVE, None, {"t": ct.GaussLegendre(12)}),
    "finer, irregular stamps": Place(
        lambda: {
            "t": one_file.stamps(stamps(19)),
            "d": one_file.midpoint(24),
            "h": one_file.gauss(5),
            "e": one_file.midpoint(7),
            "m": one_file.midpoint(20),
            "z": one_file.steps(7),
        },
        lambda: stamps(19),
        {"d": ct.Midpoint(24), "h": ct.GaussLegendre(5), "e": ct.Midpoint(7), "m": ct.Midpoint(20), "z": 7},
    ),
    "coarser, stamps of each sample, unequal weights on d": Place(
        lambda: {
            "t": one_file.stamps(stamps(B, 9, seed=1)),
            "d": one_file.gauss(9),
            "h": one_file.midpoint(2),
            "e": one_file.gauss(2),
            "m": one_file.gauss(6),
            "z": one_file.steps(3),
        },
        lambda: stamps(B, 9, seed=1),
        {"d": ct.GaussLegendre(9), "h": ct.Midpoint(2), "e": ct.GaussLegendre(2), "m": ct.GaussLegendre(6), "z": 3},
    ),
}


@pytest.mark.spec("M1", "M2", "M3", "M10")
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("mass", MASSES.values(), ids=MASSES.keys())
def test_one_file_is_the_library(place: Place, mass: dict[str, float]) -> None:
    example, model = one_file.ContinuousTransformer(CHANNELS, one_file.SMOOTH), library_model(mass)
    copied(example, model)
    grids = {k: one_file.Grid(grid.x, mass.get(k, 1.0) * grid.w) for k, grid in place.theirs().items()}
    u = numbers(B, grids["t"].x.shape[-1], CHANNELS).requires_grad_()
    wanted = example(u, grids)
    batch = ct.Batch(u, times=None if place.times is None else place.times())
    got = model.at(**place.ours)(batch)
    assert gap(got, wanted) < EXACT[torch.float64]

    probe = numbers(*wanted.shape, seed=2)  # weighs the entries, so that no gradient cancels by symmetry of the loss
    stored = dict(model.named_parameters())
    theirs = gradients((probe * wanted).sum(), {**example.coefficients, "u": u})
    ours = gradients((probe * got).sum(), {**{k: stored[f"{v}.coefficients"] for k, v in NAMES.items()}, "u": u})
    ours["read"] = ours["read"].T
    ours["read_bias"] = ours["read_bias"][0]
    assert worst(ours, theirs) < EXACT[torch.float64]


@pytest.mark.spec("M8", "M9")
def test_the_script_prints_its_tables_and_keeps_its_promises(tmp_path: Path) -> None:
    """It asserts the orders and the parity that it prints, so exit code zero means they hold."""
    script = forked(run_script, SCRIPT, folder=tmp_path)
    code = script.ended(60)
    script.kill()
    err = script.err.read_text()
    assert code == 0, err
    out = script.out.read_text()
    assert re.findall(r"^  ([a-z])  ", out, re.MULTILINE) == list("ttdhemz")
    assert "nn.TransformerEncoderLayer" in out
    assert err == ""


def run_script(path: Path) -> None:
    runpy.run_path(str(path), run_name="__main__")


def test_the_example_is_plain_torch_and_short() -> None:
    """Nothing of the library inside, and short enough to read in one sitting."""
    text = SCRIPT.read_text(encoding="utf-8")
    assert "import continua" not in text
    assert "from continua" not in text
    code = [line for line in text.splitlines() if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert len(code) <= 180
