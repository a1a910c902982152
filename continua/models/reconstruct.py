"""Functions from their values at points: the conditional mean under independent waves of known variances."""

import math
from dataclasses import dataclass, replace

import torch

from continua.axes import Circle, Grid
from continua.operators import Waves
from continua.typing import Float, Tensor

NOISE = 1e-4  # spread of what the waves cannot say, relative to the spread of the function
FLOOR = 1e-10  # variance of waves that functions hardly have, relative to the greatest
BY_LINES = 2048  # nodes of a lattice from which on it is read line by line


@dataclass(frozen=True)
class WavePrior:
    """u = Σ_k c_k exp(2πi k·t/P) with independent c_k of variance ``spectrum``_k: the space that functions live in.

    Its conditional mean given observations is the function of least norm Σ|c_k|²/spectrum_k through them, in the
    Hilbert space whose reproducing kernel is Σ_k spectrum_k cos 2πk·(t − s)/P.
    """

    waves: Waves
    spectrum: Float[Tensor, "w"]
    shown: tuple[int, ...]  # along each direction, how many waves the nodes can show: faster ones would be aliased

    def maps(self, seen: Grid, own: Grid) -> tuple[Tensor, ...]:
        """The matrices of the conditional mean on ``own``: one, or one for each direction of a large lattice."""
        if seen.lines is None or own.lines is None or seen.count <= BY_LINES:
            return (self.matrix(seen, own.nodes),)
        return tuple(
            self.along(i).matrix(line, to.nodes) for i, (line, to) in enumerate(zip(seen.lines, own.lines, strict=True))
        )

    def along(self, i: int) -> "WavePrior":
        """The prior of one direction: variances summed over the other ones."""
        line = self.waves.lines[i]
        place = torch.tensor([abs(k[i]) for k in self.waves.numbers], device=self.spectrum.device)
        summed = torch.zeros_like(self.spectrum[: self.waves.modes[i]]).index_add(0, place, self.spectrum)
        return WavePrior(Waves(line, (self.waves.modes[i],), self.waves.stretch), summed, self.shown[i : i + 1])

    def matrix(self, seen: Grid, nodes: Float[Tensor, "m k"]) -> Float[Tensor, "*b m n"]:
        """The map from values at the seen points to the conditional mean B S^½ c at the nodes, of the waves they show.

        c minimises Σ_i w_i (u_i − (Φ S^½ c)_i)² + σ²|c|²: Φ are the waves at the seen points, B those at the nodes, S
        their variances, w the measure of the points. Few points are solved for as Ψᵀ(ΨΨᵀ + σ²)⁻¹ (kriging), many as
        (ΨᵀΨ + σ²)⁻¹Ψᵀ, both by a QR factorisation: normal equations would square the condition number.
        """
        psi, share, noise = self._seen(seen)
        back = self._shown(nodes)
        if psi.shape[-2] < psi.shape[-1]:
            r, top = self._factor(psi.mT, noise)
            found = torch.linalg.solve_triangular(r, (back @ top).mT, upper=True).mT
            return found * share[..., None, :]
        r, top = self._factor(psi, noise)
        turned = torch.linalg.solve_triangular(r.mT, back.mT.expand(*r.shape[:-2], *back.mT.shape), upper=False)
        return turned.mT @ top.mT * share[..., None, :]

    def unseen(self, values: Float[Tensor, "b n c"], seen: Grid) -> Float[Tensor, "b"]:
        """∫|u − Πu|² / ∫|u|² at the seen points, Πu their conditional mean: the share that the waves cannot say.

        Points too few to tell faster waves from slower ones (Nyquist) fit both: there it is zero.
        """
        if seen.lines is not None and seen.count > BY_LINES:
            whole = tuple(self.along(i).whole() for i in range(len(seen.lines)))
            maps = tuple(each.matrix(line, line.nodes) for each, line in zip(whole, seen.lines, strict=True))
            rest = values.double() - applied(maps, values.double(), tuple(len(line) for line in seen.lines))
        else:
            psi, share, noise = self._seen(seen)
            r, top = self._factor(psi, noise)
            given = values.double() * share[..., None]
            found = torch.linalg.solve_triangular(r, top.mT @ given, upper=True)
            rest = values.double() - self._amplitudes(seen.nodes) @ found
        weights = seen.weights.double()[..., None]
        size = (values.double().square() * weights).sum((-1, -2))
        return ((rest.square() * weights).sum((-1, -2)) / size.clamp_min(torch.finfo(torch.float64).tiny)).to(values)

    def whole(self) -> "WavePrior":
        """The same prior, all of whose waves are shown."""
        return replace(self, shown=self.waves.modes)

    def left_over(self, seen: Grid, own: Grid) -> Float[Tensor, "*b"]:
        """E‖u − E[u | seen]‖² / E‖u‖² on ``own``: the share of the variance that the seen points leave open."""
        if seen.lines is not None and own.lines is not None and seen.count > BY_LINES:
            lines = enumerate(zip(seen.lines, own.lines, strict=True))
            told = [1 - self.along(i).left_over(line, to) for i, (line, to) in lines]
            return 1 - torch.stack(told).prod(0)
        psi, _, noise = self._seen(seen)
        back = self._shown(own.nodes)
        r, _ = self._factor(psi, noise)
        rest = torch.linalg.solve_triangular(r.mT, back.mT.expand(*r.shape[:-2], *back.mT.shape), upper=False)
        return (noise**2 * rest.square().sum((-1, -2)) / back.square().sum()).to(self.spectrum)

    def _shown(self, nodes: Tensor) -> Tensor:
        """Φ S^½ at nodes, zero for waves that they cannot show."""
        fits = [all(abs(k) < most for k, most in zip(wave, self.shown, strict=True)) for wave in self.waves.numbers]
        if all(fits):
            return self._amplitudes(nodes)
        return self._amplitudes(nodes) * torch.tensor(fits * 2, dtype=torch.float64, device=nodes.device)

    def _amplitudes(self, nodes: Tensor) -> Tensor:
        """Φ S^½ at any nodes, in float64."""
        angles = self.waves.angles(nodes.double())
        return torch.cat([angles.cos(), angles.sin()], -1) * torch.cat([self.spectrum.double().sqrt()] * 2)

    def _seen(self, seen: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Φ S^½ at the seen points times the roots of their shares of the measure, these roots, and σ."""
        weights = seen.weights.double()
        share = (weights / weights.sum(-1, keepdim=True)).sqrt()
        noise = NOISE * (2 * self.spectrum.double().sum()).sqrt()
        return self._amplitudes(seen.nodes) * share[..., None], share, noise

    def _factor(self, psi: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """R of [Ψ; σ] and the upper part of Q."""
        small = noise * torch.eye(psi.shape[-1], dtype=psi.dtype, device=psi.device)
        q, r = torch.linalg.qr(torch.cat([psi, small.expand(*psi.shape[:-2], *small.shape)], -2))
        return r, q[..., : psi.shape[-2], :]


def applied(maps: tuple[Tensor, ...], values: Float[Tensor, "b n c"], shape: tuple[int, ...]) -> Float[Tensor, "b m c"]:
    """The product of matrices, each along its direction of a lattice of this ``shape``; one matrix takes all nodes."""
    if len(maps) == 1:
        return (maps[0].to(torch.promote_types(values.dtype, torch.float32)) @ values).to(values)
    lattice = values.unflatten(1, shape)
    for i, each in enumerate(maps):
        lattice = torch.movedim(torch.tensordot(each.to(values), lattice, dims=([1], [i + 1])), 0, i + 1)
    return lattice.flatten(1, -2)


def measured(waves: Waves, power: Float[Tensor, "w"], nodes: tuple[int, ...]) -> Float[Tensor, "w"]:
    """Variances of waves from their power on a lattice of ``nodes`` along each direction.

    Waves that the lattice cannot tell from slower ones (Nyquist), and those near them, follow the power law |k|^−p of
    the second quarter of those it can; a mean that is no more than the fastest waves folded onto it is none. Waves that
    functions hardly have keep a ``FLOOR`` of the greatest.
    """
    most = [n / 2 if isinstance(line, Circle) else float(n) for n, line in zip(nodes, waves.lines, strict=True)]
    numbers = torch.tensor(waves.numbers, dtype=torch.float64, device=power.device)
    share = (numbers.abs() / torch.tensor(most, dtype=torch.float64, device=power.device)).amax(-1)
    found = power.double()
    if bool((share >= 1).any()):
        radius = numbers.square().sum(-1).clamp_min(1.0).log()
        fitted = (share >= 0.25) & (share <= 0.5)
        design = torch.stack([torch.ones_like(radius), radius], -1)
        law = torch.linalg.lstsq(design[fitted], found[fitted].clamp_min(1e-300).log()[:, None]).solution[:, 0]
        folded = 2 * torch.exp(law[0] + 2 * law[1] * math.log(2 * min(most)))  # of the mean: waves of a turn a node
        still = (numbers.abs().sum(-1) == 0) & (found < 2 * folded)
        found = torch.where(share > 0.5, (design @ law).exp(), found)
        found = torch.where(still, 0.0, found)
    return found.clamp_min(FLOOR * float(found.max())).to(power)
