"""neuraloperator's FNO for ``fields.py``, with the loss and budget of ours, and cubic interpolation off its grid.

pip install --no-deps neuraloperator==2.0.0 tensorly tensorly-torch opt-einsum configmypy
"""

import math
import sys
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy.interpolate import CubicSpline, RegularGridInterpolator, griddata
from torch import nn

from continua.models import Batch
from continua.tasks.functions import Functions


def fno(task: Functions, modes: int, width: int, seed: int) -> nn.Module:
    """The peer: four layers, its grid of coordinates as extra channels, mended for odd numbers of nodes."""
    try:
        from neuralop.layers.spectral_convolution import SpectralConv
        from neuralop.models import FNO
    except ImportError:
        sys.exit(f"The peer is missing. {__doc__.splitlines()[2].strip()}")  # type: ignore[union-attr]
    if not hasattr(SpectralConv, "mended"):
        SpectralConv.forward, SpectralConv.mended = mended(SpectralConv.forward), True
    torch.manual_seed(seed)
    dim = task.train.axis.dim
    return FNO(n_modes=(2 * modes - 2,) * dim, in_channels=1, out_channels=1, hidden_channels=width, n_layers=4)


def mended(forward: Any) -> Any:
    """The convolution of version 2.0.0 moves frequencies to the middle by ``fftshift`` and back by ``fftshift`` too,
    which is one place off where their number is odd; a model trained on 29² nodes then fails on 36². Back by its
    inverse, ``ifftshift``; even numbers are as they were."""
    there = torch.fft.fftshift

    def right(*given: Any, **named: Any) -> torch.Tensor:
        ways = iter((there, torch.fft.ifftshift))
        with mock.patch.object(torch.fft, "fftshift", lambda x, dim: next(ways)(x, dim=dim)):
            return forward(*given, **named)

    return right


class OnLattice:
    """An FNO as a model of Batch: values in one row become a lattice, standardised as ours are."""

    def __init__(self, net: nn.Module, task: Functions) -> None:
        self.net, self.dim = net, task.train.axis.dim
        inputs, outputs = task.train.flat()
        self.scales = [(float(x.mean()), float(x.std())) for x in (inputs, outputs)]

    def parameters(self) -> Any:
        """Of the network."""
        return self.net.parameters()

    def __call__(self, batch: Batch) -> torch.Tensor:
        """[b, n, 1] → [b, n, 1] on a lattice of equal sides."""
        values = batch.values
        side = round(values.shape[1] ** (1 / self.dim))  # type: ignore[union-attr]
        (a, b), (c, d) = self.scales
        lattice = (values[..., 0] - a) / b  # type: ignore[index]
        answer = self.net(lattice.reshape(-1, 1, *(side,) * self.dim))
        return (answer * d + c).reshape(len(lattice), -1, 1)


def train(model: OnLattice, task: Functions, steps: int, lr: float, seed: int, muon: bool = False) -> None:
    """AdamW with a cosine to zero and three per cent of warm-up, or the optimiser of ours."""
    if muon:
        matrices = [p for p in model.parameters() if p.dim() == 3 and p.shape[-1] == 1 and not p.is_complex()]
        own = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if id(p) not in own]
        chosen: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(rest, lr, weight_decay=0.0),
            Orthogonal(matrices, 3 * lr),
        ]
    else:
        chosen = [torch.optim.AdamW(list(model.parameters()), lr, weight_decay=1e-4)]
    first = [group["lr"] for each in chosen for group in each.param_groups]
    for step in range(steps):
        share = step / steps
        factor = min(1.0, share / 0.03) * 0.5 * (1 + math.cos(math.pi * share))
        groups = [group for each in chosen for group in each.param_groups]
        for group, lr_ in zip(groups, first, strict=True):
            group["lr"] = lr_ * factor
        example = task.example(seed, step)
        loss = task.loss(model(example.batch), example) / example.count
        for each in chosen:
            each.zero_grad()
        loss.backward()
        for each in chosen:
            each.step()


class Orthogonal(torch.optim.Optimizer):
    """Muon for the matrices and 1×1 convolutions of peers, by the library's own Newton–Schulz iteration."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        from continua.optim.muon import orthogonalised

        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                held = state.setdefault("m", torch.zeros_like(p)).lerp_(p.grad, 0.05)
                ahead = p.grad.lerp(held, 0.95).flatten(1)
                rows, columns = ahead.shape
                turned = orthogonalised(ahead[None])[0].view_as(p)
                p.add_(turned, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def off_grid(
    model: OnLattice, inputs: torch.Tensor, points: torch.Tensor, side: int, nearest: bool = False
) -> torch.Tensor:
    """Cubic interpolation to the lattice and back: periodic splines on a circle, Clough–Tocher pieces in a square.

    ``nearest`` brings inputs with jumps to the lattice by their nearest points instead.
    """
    if model.dim == 1:
        x = points[:, 0].numpy()
        order = np.argsort(x)
        x, u = x[order], inputs[:, order, 0].numpy()
        spline = CubicSpline(np.append(x, x[0] + 1), np.concatenate([u, u[:, :1]], 1), axis=1, bc_type="periodic")
        lattice = torch.from_numpy(spline(np.arange(side) / side)).float()[..., None]
        answer = model(Batch(lattice))[..., 0].detach().numpy()
        back = CubicSpline(
            np.arange(side + 1) / side, np.concatenate([answer, answer[:, :1]], 1), axis=1, bc_type="periodic"
        )
        return torch.from_numpy(back(points[:, 0].numpy())).float()[..., None]
    line = np.linspace(0, 1, side)
    xx, yy = np.meshgrid(line, line, indexing="ij")
    values = inputs[..., 0].numpy().T
    lattice = griddata(points.numpy(), values, (xx, yy), method="nearest")
    if not nearest:
        cubic = griddata(points.numpy(), values, (xx, yy), method="cubic")
        lattice = np.where(np.isnan(cubic), lattice, cubic)
    answer = model(Batch(torch.from_numpy(lattice).float().flatten(0, 1).T[..., None])).detach().numpy()
    made = [
        RegularGridInterpolator((line, line), each.reshape(side, side), method="cubic")(points.numpy())
        for each in answer
    ]
    return torch.from_numpy(np.stack(made)).float()[..., None]
