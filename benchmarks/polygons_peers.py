"""Peers for ``polygons.py``: physicsnemo's Transolver and FLARE, neuraloperator's GINO, an FNO and a DeepONet behind a
grid, trained as ours.

pip install --no-deps --target PEERS nvidia-physicsnemo==2.2.2 warp-lang tensordict termcolor zarr s3fs aiobotocore \
    botocore jmespath multidict aiohttp attrs yarl propcache aiohappyeyeballs aiosignal frozenlist wrapt aioitertools \
    pyvers nvtx omegaconf
PYTHONPATH=PEERS python benchmarks/polygons.py

physicsnemo imports timm for other models than these two; timm needs a torchvision that no processor build of torch has,
so it is left out here; ``aliasing_peers.py`` says what neuraloperator needs. The FNO and the DeepONet are
re-implementations after Li et al. (2021) and Lu et al. (2021).
"""

import io
import sys
from contextlib import redirect_stdout
from typing import Any
from unittest import mock

import torch
from contests import Together
from torch import nn
from torch.nn import functional

from continua.data.mesh_features import Equation
from continua.models import Batch
from continua.typing import Tensor

ELSEWHERE = ("timm", "timm.layers", "timm.layers.attention", "timm.models", "timm.models.swin_transformer")
WIDTH = 64
LAYERS = 4
HEADS = 4
SLICES = 32
SIDE = 32  # of the grid of the FNO
SENSORS = 16  # a side, of the DeepONet
REACH = {"in_gno_radius": 0.05, "out_gno_radius": 0.033}  # of GINO's kernels; nodes of its grid are 0.032 apart


class Peer(nn.Module):
    """A model of Batch for an equation; ``spread`` is that of the answers."""

    def __init__(self, equation: Equation, spread: float) -> None:
        super().__init__()
        self.equation = equation
        self.spread = spread

    def forward(self, batch: Batch) -> Tensor:
        """The answers at the nodes."""
        assert isinstance(batch.values, Tensor)
        assert batch.grid is not None
        return self.spread * self.answer(batch.values, batch.grid.nodes, batch.grid.weights)

    def answer(self, values: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        """[b, n, channels] → [b, n, components]."""
        raise NotImplementedError


class FromPhysicsNeMo(Peer):
    """Transolver or FLARE as it comes: 64 wide, four layers, four heads, 32 slices or latent queries."""

    def __init__(self, name: str, equation: Equation, spread: float) -> None:
        super().__init__(equation, spread)
        for module in ELSEWHERE:
            sys.modules.setdefault(module, mock.MagicMock())
        try:
            from physicsnemo.models.flare import FLARE
            from physicsnemo.models.transolver import Transolver
        except ImportError as absent:
            sys.exit(f"The peer is missing ({absent}). See the first lines of {__file__}.")
        made = {"Transolver": Transolver, "FLARE": FLARE}[name]
        self.net = made(
            functional_dim=equation.channels - equation.dimension,
            out_dim=equation.components,
            embedding_dim=equation.dimension,
            n_layers=LAYERS,
            n_hidden=WIDTH,
            n_head=HEADS,
            mlp_ratio=2,
            slice_num=SLICES,
            use_te=False,
        )

    def answer(self, values: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        """Features and coordinates apart, as it wants them."""
        first = self.equation.channels - self.equation.dimension
        found: Tensor = self.net(values[..., :first], embedding=values[..., first:])
        return found


def deposited(values: Tensor, points: Tensor, weights: Tensor, side: int) -> Tensor:
    """Node values [b, n, c] as means over the hats of a grid on the unit square, [b, c + 1, side, side]; the last
    channel is the share of a cell that the domain fills."""
    place = points.clamp(0, 1) * (side - 1)
    low = place.floor().clamp(0, side - 2)
    part = place - low
    mass = values.new_zeros(len(values), side * side)
    sums = values.new_zeros(len(values), side * side, values.shape[-1])
    for i in (0, 1):
        for j in (0, 1):
            hat = (part[..., 0] if i else 1 - part[..., 0]) * (part[..., 1] if j else 1 - part[..., 1]) * weights
            cell = ((low[..., 0] + i) * side + low[..., 1] + j).long()
            mass.scatter_add_(1, cell, hat)
            sums.scatter_add_(1, cell[..., None].expand(-1, -1, values.shape[-1]), hat[..., None] * values)
    mean = sums / mass.clamp_min(1e-12)[..., None]
    filled = mass[..., None] * (side - 1) ** 2
    return torch.cat([mean, filled], -1).unflatten(1, (side, side)).movedim(-1, 1)


class Wave(nn.Module):
    """The spectral convolution of an FNO in two dimensions."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.kernel = nn.Parameter(torch.randn(2, width, width, modes, modes, 2) / width)

    def forward(self, x: Tensor) -> Tensor:
        """[b, c, s, s] → [b, c, s, s]."""
        m = self.modes
        there = torch.fft.rfft2(x, norm="forward")
        made = torch.zeros_like(there)
        kernel = torch.view_as_complex(self.kernel)
        made[:, :, :m, :m] = torch.einsum("bcij,cdij->bdij", there[:, :, :m, :m], kernel[0])
        made[:, :, -m:, :m] = torch.einsum("bcij,cdij->bdij", there[:, :, -m:, :m], kernel[1])
        return torch.fft.irfft2(made, s=x.shape[-2:], norm="forward")


class OnGrid(Peer):
    """An FNO on a grid of 32²: node values are brought there by hats, answers back bilinearly and through a map that
    reads the features of the node too. As GINO, with fixed instead of learned kernels between mesh and grid."""

    def __init__(self, equation: Equation, spread: float, width: int = 32, modes: int = 10) -> None:
        super().__init__(equation, spread)
        self.lift = nn.Conv2d(equation.channels + 1, width, 1)
        self.waves = nn.ModuleList(Wave(width, modes) for _ in range(LAYERS))
        self.beside = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(LAYERS))
        self.maps = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1))
            for _ in range(LAYERS)
        )
        self.head = nn.Sequential(
            nn.Linear(width + equation.channels, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, equation.components)
        )

    def answer(self, values: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        """To the grid, four layers, and back."""
        x = self.lift(deposited(values, points, weights, SIDE))
        for wave, beside, then in zip(self.waves, self.beside, self.maps, strict=True):
            x = x + then(functional.gelu(wave(x) + beside(x)))
        places = (2 * points - 1).flip(-1)[:, :, None]
        read = functional.grid_sample(x, places, align_corners=True)[..., 0].mT  # [b, n, c]
        return self.head(torch.cat([read, values], -1))


class BranchAndTrunk(Peer):
    """A DeepONet: a branch reads sensors on a grid of 16², a trunk the features of a node."""

    def __init__(self, equation: Equation, spread: float, width: int = 128) -> None:
        super().__init__(equation, spread)
        sensors = (equation.channels + 1) * SENSORS**2
        self.branch = nn.Sequential(nn.Linear(sensors, 2 * width), nn.GELU(), nn.Linear(2 * width, 2 * width))
        self.then = nn.Sequential(nn.GELU(), nn.Linear(2 * width, equation.components * width))
        self.trunk = nn.Sequential(
            nn.Linear(equation.channels, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )
        self.bias = nn.Parameter(torch.zeros(equation.components))

    def answer(self, values: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        """Σ_k branch_k trunk_k(node)."""
        seen = deposited(values, points, weights, SENSORS).flatten(1)
        made = self.then(self.branch(seen)).unflatten(-1, (-1, self.equation.components))  # [b, k, c]
        return (self.trunk(values) @ made) / made.shape[1] ** 0.5 + self.bias


class Gino(Peer):
    """GINO of neuraloperator: learned kernels from the mesh to a grid of 32² and back, an FNO of four layers between.

    It takes meshes one by one and sums neighbours in a loop where torch-scatter is missing. Here the meshes of a batch
    are one set of points whose neighbours lie in their own mesh, and sums are ``index_add``: the same answers, a
    multiple as fast. As the FNO on a grid it is told which share of a cell the domain fills. Of kernels with or without
    sines of coordinates, of its own size or 64 wide, that read values or not, those here learned most in 12 seconds.
    """

    def __init__(self, equation: Equation, spread: float, width: int = 32, modes: int = 10) -> None:
        super().__init__(equation, spread)
        try:
            from neuralop.layers import integral_transform
            from neuralop.models import GINO
        except ImportError as absent:
            sys.exit(f"The peer is missing ({absent}). See the first lines of {__file__}.")
        integral_transform.segment_csr = summed
        shape: dict[str, Any] = {
            "in_gno_channel_mlp_hidden_layers": [WIDTH, WIDTH],
            "out_gno_channel_mlp_hidden_layers": [WIDTH, WIDTH],
            "in_gno_pos_embed_type": None,  # kernels read coordinates as they are
            "out_gno_pos_embed_type": None,
            "in_gno_transform_type": "nonlinear",  # and what is known at a node of the mesh
        }
        with redirect_stdout(io.StringIO()):  # it tells of its skips
            self.net = GINO(
                in_channels=equation.channels,
                out_channels=equation.components,
                latent_feature_channels=1,
                gno_coord_dim=equation.dimension,
                fno_n_modes=(2 * modes,) * equation.dimension,
                fno_hidden_channels=width,
                fno_n_layers=LAYERS,
                gno_use_open3d=False,
                gno_use_torch_scatter=False,
                **REACH,
                **shape,
            )
        line = torch.linspace(0, 1, SIDE)
        self.register_buffer("nodes", torch.cartesian_prod(line, line), persistent=False)

    def answer(self, values: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        """To the grid, four layers, and back."""
        nodes = self.nodes.expand(len(values), -1, -1)
        there = integral(self.net.gno_in, points, nodes, values)  # [b, s·s, c]
        share = deposited(values[..., :1], points, weights, SIDE)[:, -1].flatten(1)
        x = torch.cat([there, share[..., None]], -1).unflatten(1, (SIDE, SIDE))
        x = self.net.latent_embedding(in_p=x).flatten(2).mT  # [b, s·s, c]
        found: Tensor = self.net.projection(integral(self.net.gno_out, nodes, points, x).mT).mT
        return found


def integral(block: Any, y: Tensor, x: Tensor, values: Tensor) -> Tensor:
    """A kernel integral of GINO from points y [b, n, 2] with values [b, n, c] to points x [b, m, 2], mesh by mesh."""
    near = torch.cdist(x, y) <= block.radius  # [b, m, n]
    mesh, _, index = near.nonzero(as_tuple=True)
    splits = functional.pad(near.sum(-1).flatten().cumsum(0), (1, 0))
    neighbours = {"neighbors_index": mesh * y.shape[1] + index, "neighbors_row_splits": splits}
    places = {"y": y.flatten(0, 1), "x": x.flatten(0, 1)}
    found: Tensor = block.integral_transform(neighbors=neighbours, f_y=values.flatten(0, 1), **places)
    return found.unflatten(0, x.shape[:2])


def summed(src: Tensor, indptr: Tensor, reduction: str, use_scatter: bool = False) -> Tensor:
    """Sums or means of the rows of src [pairs, c] between two entries of indptr, as torch-scatter makes them."""
    counts = indptr.diff()
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    sums = src.new_zeros(len(counts), src.shape[1]).index_add(0, rows, src)
    return sums / counts.clamp_min(1)[:, None] if reduction == "mean" else sums


def made(name: str, equation: Equation, spread: float, seed: int) -> Peer:
    """A peer by its name, with fresh weights."""
    torch.manual_seed(seed)
    if name in ("Transolver", "FLARE"):
        return FromPhysicsNeMo(name, equation, spread)
    others = {"FNO on a grid": OnGrid, "DeepONet": BranchAndTrunk, "GINO": Gino}
    return others[name](equation, spread)


def optimiser_of(model: nn.Module, lr: float, matrix_lr: float) -> Together:
    """The optimiser of ours: Muon for matrices and 1×1 convolutions of hidden layers, AdamW for the rest."""
    return Together(model, [p for p in model.parameters() if _is_matrix(p)], lr, matrix_lr)


def _is_matrix(p: nn.Parameter) -> bool:
    """A real matrix of a hidden layer: what reads the channels or writes the answer is trained by AdamW."""
    shape = [n for n in p.shape if n > 1]
    return not p.is_complex() and len(shape) == 2 and min(shape) > 8
