"""K-FAC in runs: through files, resumed, on two processes; what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save, save_file
from torch import nn

from continua import config
from continua import flow as fl
from continua.errors import ConfigError
from continua.optim import KFAC, AdamW, ByRole, Constant, Use, kfac, parameter_info
from continua.training import Run, fit
from continua.training.distributed import settle
from tests import cases
from tests.forked import together
from tests.measure import EXACT, gap, random
from tests.optim.test_kfac import WIDTH, Plain, same_model, watched
from tests.refusals import refused
from tests.runs import silent, tiny_model, tiny_task


def advance(model: nn.Module, made: Any, step: int) -> None:
    made.zero_grad()
    model(cases.words(seed=step)).square().mean().backward()
    made.step(1.0 / (1 + step))


@pytest.mark.spec("T6", "T9")
@pytest.mark.parametrize("every", [1, 2, 4])
def test_state_goes_through_files_and_on_with_the_same_bits(every: int) -> None:
    """Also where the files are written between two looks at the factors."""
    model, twin = cases.MODELS["density"].build(), cases.MODELS["density"].build()
    roles = ByRole(AdamW(1e-2), kernel=KFAC(every=every))
    made, again = roles.make(model), roles.make(twin)
    for step in range(3):
        advance(model, made, step)
    tensors, plain = made.state()
    kept = load(save({key: value.contiguous() for key, value in tensors.items()}))
    twin.load_state_dict(model.state_dict())
    again.load(kept, json.loads(json.dumps(plain)))
    for step in range(3, 7):
        advance(model, made, step)
        advance(twin, again, step)
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.spec("T6", "T9")
def test_a_fit_that_was_resumed_ends_with_the_same_bits(tmp_path: Path) -> None:
    chosen = {"optimiser": ByRole(AdamW(1e-3), kernel=KFAC(every=3)), "schedule": Constant(), "watch": silent}
    whole, _ = _fitted(tmp_path / "whole", 5, chosen)
    _fitted(tmp_path / "cut", 2, chosen)
    resumed, _ = _fitted(Run.open(tmp_path / "cut"), 5, chosen)
    for (name, one), other in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other), name


def _fitted(run: Any, steps: int, chosen: dict[str, Any]) -> tuple[Any, Any]:
    model, task = tiny_model(), tiny_task()
    return model, fit(model, task, run=run, steps=steps, evaluate_every=100, **chosen)


def work(folder: Path, size: int) -> None:
    """One of the processes: a few steps on its share of the data, weights into a file."""
    rank = 0
    module = same_model(_drawn())
    made = watched(module, every=2)
    model: Any = module
    if size > 1:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        model = nn.parallel.DistributedDataParallel(module)
    for step in range(3):
        made.zero_grad()
        model(random(4, 3, WIDTH, seed=step)[rank::size]).square().mean().backward()
        made.step(1.0)
    save_file({name: p.detach() for name, p in module.named_parameters()}, folder / f"{size}-{rank}.safetensors")
    if size > 1:
        settle()
        torch.distributed.destroy_process_group()


def _drawn() -> Plain:
    torch.manual_seed(0)
    return Plain()


@pytest.mark.spec("T6", "B8")
def test_two_processes_walk_as_one(tmp_path: Path) -> None:
    together(work, tmp_path, 2, folder=tmp_path)
    work(tmp_path, 1)
    alone = load_file(tmp_path / "1-0.safetensors")
    for rank in range(2):
        for name, value in load_file(tmp_path / f"2-{rank}.safetensors").items():
            assert gap(value, alone[name]) < 1e-10, name


# --- inverses and refusals -------------------------------------------------------------------------------------------


@pytest.mark.spec("T6")
def test_inverses_are_finite_where_rounding_left_a_factor_indefinite() -> None:
    basis, _ = torch.linalg.qr(random(4, 4))
    bad = basis @ torch.diag(torch.tensor([1.0, 0.5, 1e-3, -0.2], dtype=torch.float64)) @ basis.mT
    good = random(4, 4, seed=1)
    stack = torch.stack([bad, good @ good.mT, torch.zeros(4, 4, dtype=torch.float64)])
    found = kfac.inverse(stack, 1e-4)
    shift = (stack[1].trace() / 4 * 0.01) * torch.eye(4, dtype=torch.float64)
    assert gap(found[1] @ (stack[1] + shift), torch.eye(4, dtype=torch.float64)) < 1e-10
    assert (torch.linalg.eigvalsh(found[0]) > 0).all()
    assert gap(found[2], torch.eye(4, dtype=torch.float64)) < EXACT


@pytest.mark.spec("T6")
@pytest.mark.parametrize("adjoint", [fl.Lean(), fl.Recompute(), fl.Checkpoint(1)], ids=str)
def test_adjoints_that_hide_products_are_refused(adjoint: Any) -> None:
    model = cases.MODELS["gpt2"].build()
    made = watched(model)
    model.adjoint = adjoint
    model(cases.words()).square().mean().backward()
    with refused(ConfigError, "got none of block.parts.0", "adjoint=Direct()"):
        made.step(1.0)


@pytest.mark.spec("T6")
def test_what_is_no_kernel_is_refused() -> None:
    with refused(ConfigError, "embed.position.table.coefficients", "kernel=KFAC()"):
        ByRole(KFAC()).make(cases.MODELS["gpt2"].build())
    bare = nn.Parameter(torch.zeros(3, 2))
    made = KFAC().make([bare])
    bare.grad = torch.ones(3, 2)
    with refused(ConfigError, "outside any operator", "AdamW"):
        made.step()
    with refused(ConfigError, "got a parameter without", "ByRole"):
        KFAC().make([nn.Parameter(torch.zeros(3))])


@pytest.mark.spec("T6")
@pytest.mark.parametrize(
    ("choices", "got", "remedy"),
    [
        ({"damping": 0.0}, "0.0", "damping > 0"),
        ({"trust": -1.0}, "-1.0", "None for no bound"),
        ({"beta": 1.0}, "beta=1.0", "0.9"),
        ({"momentum": -0.1}, "momentum=-0.1", "0.9"),
        ({"every": 0}, "0", "every ≥ 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(choices: dict[str, Any], got: str, remedy: str) -> None:
    with refused(ConfigError, got, remedy):
        KFAC(**choices)


@pytest.mark.spec("T6")
def test_kernels_alone_are_given_to_it_and_it_can_be_stored() -> None:
    model = cases.MODELS["continuous words"].build()
    made = watched(model)
    names = next(part.names for part in made.parts if isinstance(part.chosen, KFAC))
    assert set(names) == {own.name for own in parameter_info(model).values() if own.role.use is Use.KERNEL}
    chosen = ByRole(AdamW(), kernel=KFAC(0.1, trust=None))
    assert config.from_plain(config.to_plain(chosen)) == chosen
