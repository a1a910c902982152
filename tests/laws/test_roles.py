"""Laws of roles: every parameter is trained by the optimiser and drawn with the numbers that version 0.1 gave it.

``golden/roles.json`` was made by 0.1 with ``recorded``: a hash of who trains what, and a projection of the numbers that
are drawn at construction, by each scheme, and after a step of Muon (that one knows rows from columns, and scales).
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from continua.axes import Times
from continua.convert import elastic
from continua.errors import ConfigError
from continua.fields import Cosine, Fourier, roles
from continua.models import Transformer
from continua.models.init import initialise
from continua.operators.calibration import Calibration
from continua.optim import AdamW, ByRole, Muon
from tests import cases
from tests.cases import MODELS, OTHER_MODELS, SCHEMES

GOLDEN = Path(__file__).parents[1] / "golden" / "roles.json"
BUILD = {name: case.build for name, case in {**MODELS, **OTHER_MODELS}.items()}
BUILD["calibrated"] = lambda: cases.of_fields(lambda a, at: replace(cases.with_bases()(a, at), calibrated=True))
BUILD["elastic"] = lambda: elastic_as_in_0_1(elastic(MODELS["gpt2"].build()))
BUILD["one channel"] = lambda: Transformer.continuous(channels=1, t=Times(), at=cases.SMOOTH)
BUILD["waves in depth"] = lambda: cases.of_fields(cases.with_bases(z=Cosine(2), d=Fourier(5)), pool=True)
NEAR = 2e-5  # float32, and the normal numbers of other processors differ in the last bits


def elastic_as_in_0_1(model: Any) -> Any:
    """Without gains along m and e, and for the parts of a step, which came later."""
    for part in model.modules():
        if isinstance(part, Calibration):
            for name in [name for name in part.fields if name.endswith((" by m", " by e", " by p"))]:
                del part.fields[name]
    return model


def projected(model: nn.Module) -> float:
    """Σ_p ⟨p, cos 1, cos 2, …⟩/√n: any change of any number shows."""
    total = 0.0
    for place, parameter in enumerate(model.parameters()):
        flat = parameter.detach().double().flatten()
        waves = torch.cos(torch.arange(1, len(flat) + 1, dtype=torch.float64) + place)
        total += float(flat @ waves) / len(flat) ** 0.5
    return total


def assigned(model: nn.Module) -> str:
    """A hash of which parameter goes where: by role, and where all that is a matrix goes to Muon."""
    rates = {"kernel": 1.0, "table": 2.0, "gain": 3.0, "density": 4.0, "network": 5.0}
    by_role = ByRole(AdamW(9.0), **{role: AdamW(rate) for role, rate in rates.items()})
    found = []
    for chosen in (by_role, ByRole(Muon()), ByRole(AdamW()), ByRole(AdamW(), kernel=Muon())):
        for part in chosen.make(model).parts:
            by = f"{type(part.chosen).__name__} {part.chosen.lr} {part.chosen.decay}"
            found += [f"{name} {by}" for name in part.names]
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:16]


def stepped(model: nn.Module) -> float:
    """After one step of Muon with gradients cos 1², cos 2², …"""
    for parameter in model.parameters():
        places = torch.arange(1, parameter.numel() + 1, dtype=torch.float64)
        parameter.grad = torch.cos(places**2).to(parameter).reshape(parameter.shape)
    ByRole(Muon()).make(model).step(1.0)
    return projected(model)


def recorded(model: Any) -> dict[str, Any]:
    """What is compared, of one model made after ``torch.manual_seed(0)``."""
    found: dict[str, Any] = {"assigned": assigned(model), "made": projected(model)}
    for scheme in SCHEMES:
        try:
            initialise(model, scheme, torch.Generator().manual_seed(1))
        except ConfigError:  # networks start as they were made
            found[type(scheme).__name__] = "refused"
        else:
            found[type(scheme).__name__] = projected(model)
    found["stepped"] = stepped(model)
    return found


@pytest.mark.spec("T6", "A9")
@pytest.mark.parametrize("name", BUILD)
def test_every_parameter_has_a_role_and_the_optimiser_and_first_numbers_of_0_1(name: str) -> None:
    torch.manual_seed(0)
    model = BUILD[name]()
    assert set(roles(model)) == {parameter for parameter, _ in model.named_parameters()}
    wanted = json.loads(GOLDEN.read_text(encoding="utf-8"))[name]
    found = recorded(model)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == (pytest.approx(value, rel=NEAR, abs=NEAR) if isinstance(value, float) else value), key
