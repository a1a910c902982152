"""Peers for ``aliasing.py`` and ``scattered.py``: FNO, UNO and CODANO of neuraloperator, Transolver and FLARE of
physicsnemo.

pip install --no-deps --target PEERS neuraloperator==2.0.0 tensorly tensorly-torch opt-einsum configmypy
and the packages that ``polygons_peers.py`` names; then PYTHONPATH=PEERS.

All are trained as ours: the same batches, loss and schedule, Muon for matrices and AdamW for the rest.
"""

import io
import math
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any
from unittest import mock

import fields_peers
import torch
from contests import Together
from polygons_peers import ELSEWHERE
from torch import nn

from continua.axes import Circle
from continua.models import Batch
from continua.models.latent import Latent, between
from continua.tasks.functions import Functions
from continua.typing import Tensor

NAMES = FNO, UNO, TRANSOLVER, FLARE, CODANO = "FNO", "UNO", "Transolver", "FLARE", "CODANO"
WIDTH = {1: 64, 2: 32}  # of the FNO, the UNO and the CODANO, by dimension
TOKENS = 64  # width of Transolver and FLARE


class Lattice(nn.Module):
    """An operator on lattices as a model of Batch, with values standardised as ours are."""

    def __init__(self, net: nn.Module, task: Functions) -> None:
        super().__init__()
        self.net = net
        self.inner = fields_peers.OnLattice(net, task)

    def forward(self, batch: Batch) -> Tensor:
        """[b, n, 1] → [b, n, 1]."""
        return self.inner(batch)


class Cloud(nn.Module):
    """Transolver or FLARE: 64 wide, four layers, four heads, 32 slices or latent queries; coordinates beside values."""

    def __init__(self, name: str, task: Functions) -> None:
        super().__init__()
        for module in ELSEWHERE:
            sys.modules.setdefault(module, mock.MagicMock())
        try:
            from physicsnemo.models.flare import FLARE as Flare
            from physicsnemo.models.transolver import Transolver
        except ImportError as absent:
            sys.exit(f"The peer is missing ({absent}). See the first lines of {__file__}.")
        made = {TRANSOLVER: Transolver, FLARE: Flare}[name]
        self.circle = isinstance(task.train.axis, Circle)
        size = {"n_layers": 4, "n_hidden": TOKENS, "n_head": 4, "mlp_ratio": 2, "slice_num": 32}
        self.net = made(functional_dim=1, out_dim=1, embedding_dim=2, use_te=False, **size)
        inputs, outputs = task.train.flat()
        self.scales = [(float(x.mean()), float(x.std())) for x in (inputs, outputs)]

    def forward(self, batch: Batch) -> Tensor:
        """Values and places apart, as it wants them; a circle is told by its cosine and sine."""
        values = batch.values
        assert isinstance(values, Tensor)
        assert batch.grid is not None
        place = batch.grid.nodes.to(values)
        if self.circle:
            angle = 2 * math.pi * place
            place = torch.cat([angle.cos(), angle.sin()], -1)
        (a, b), (c, d) = self.scales
        found: Tensor = self.net((values - a) / b, embedding=place.expand(len(values), -1, -1).contiguous())
        return found * d + c


def uno(task: Functions, modes: int, seed: int) -> nn.Module:
    """The U-shaped operator of neuraloperator: five layers, half as many nodes in the middle."""
    from neuralop.models import UNO as Net

    dim = task.train.axis.dim
    width = WIDTH[dim]
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "uno_out_channels": [width, width, 2 * width, width, width],
        "uno_n_modes": [[2 * modes - 2] * dim] * 2 + [[modes - 1] * dim] + [[2 * modes - 2] * dim] * 2,
        "uno_scalings": [[1.0] * dim, [0.5] * dim, [1.0] * dim, [2.0] * dim, [1.0] * dim],
    }
    with redirect_stdout(io.StringIO()):  # it tells of its skips
        return Net(in_channels=1, out_channels=1, hidden_channels=width, n_layers=5, channel_mlp_skip="linear", **shape)


class Codano(nn.Module):
    """The codomain attention of neuraloperator on a lattice, told its coordinates as the FNO is.

    Two layers, and two tokens for its one variable. The places that it can learn are divided by the number of nodes,
    so it gets coordinates as static channels instead.
    """

    def __init__(self, task: Functions, modes: int) -> None:
        super().__init__()
        from neuralop.models import CODANO as Net

        dim = task.train.axis.dim
        width = WIDTH[dim]
        layers = 2
        self.circle = isinstance(task.train.axis, Circle)
        shape: dict[str, Any] = {
            "n_modes": [[2 * modes - 2] * dim] * layers,
            "n_heads": [1] * layers,
            "per_layer_scaling_factors": [[1] * dim] * layers,
            "attention_scaling_factors": [1] * layers,
            "hidden_variable_codimension": width,
            "lifting_channels": 2 * width,
            "projection_channels": 2 * width,
            "layer_kwargs": {"norm": None, "factorization": None},  # its norm is for two and three dimensions alone
        }
        with redirect_stdout(io.StringIO()):  # it tells of its tokens
            self.net = Net(
                n_layers=layers, attention_token_dim=width // 2, static_channel_dim=2, domain_padding=None, **shape
            )

    def forward(self, values: Tensor) -> Tensor:
        """[b, 1, n, …] → [b, 1, n, …]; a circle is told by its cosine and sine."""
        sides = values.shape[2:]
        if self.circle:
            angle = 2 * math.pi * torch.arange(sides[0]) / sides[0]
            place = torch.stack([angle.cos(), angle.sin()])
        else:
            place = torch.stack(torch.meshgrid(*(torch.linspace(0, 1, n) for n in sides), indexing="ij"))
        found: Tensor = self.net(values, static_channel=place.to(values).expand(len(values), -1, *sides))
        return found


def made(name: str, task: Functions, modes: int, seed: int) -> nn.Module:
    """A peer by its name, with fresh weights."""
    torch.manual_seed(seed)
    if name in (TRANSOLVER, FLARE):
        return Cloud(name, task)
    first = fields_peers.fno(task, modes, WIDTH[task.train.axis.dim], seed)  # mends odd numbers of nodes
    if name == FNO:
        return Lattice(first, task)
    torch.manual_seed(seed)
    return Lattice(Codano(task, modes) if name == CODANO else uno(task, modes, seed), task)


class Interpolated:
    """A peer that is asked on the grid of its training alone: ours brings inputs there and answers away from there."""

    def __init__(self, net: nn.Module, latent: Latent, task: Functions) -> None:
        self.net = net
        self.latent = latent
        self.task = task

    def parameters(self) -> Any:
        """Of the network."""
        return self.net.parameters()

    def __call__(self, batch: Batch) -> Tensor:
        """To the grid, through the network, and to where it is asked."""
        train = self.task.train
        laid = self.latent.lay(batch)
        answer = self.net(replace(laid, grid=train.grid, asked=None))
        wanted = batch.asked if isinstance(batch.asked, Tensor) else batch.grid.nodes  # type: ignore[union-attr]
        moved: Tensor = between(train.axis, train.rule, wanted).to(answer) @ answer
        return moved


def optimiser_of(model: nn.Module, lr: float, matrix_lr: float) -> Together:
    """The optimiser of ours: Muon for matrices and 1×1 convolutions of hidden layers, AdamW for the rest."""
    return Together(model, [p for p in model.parameters() if is_matrix(p)], lr, matrix_lr)


def is_matrix(p: nn.Parameter) -> bool:
    """A real matrix of a hidden layer: what reads the channels or writes the answer is trained by AdamW."""
    shape = [n for n in p.shape if n > 1]
    return not p.is_complex() and len(shape) == 2 and min(shape) > 8 and p.dim() == len(shape) + p.shape.count(1)
