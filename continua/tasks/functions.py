"""Learning maps between functions: relative losses in L² and H¹ against the measure, measured on any grid."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from continua.axes import Circle, Grid, Samples, Sharded, factors
from continua.data.generation import generator_for
from continua.data.pairs import Pairs
from continua.errors import ConfigError
from continua.models import Batch
from continua.tasks.task import Example, Score, device_of
from continua.typing import Float, Tensor

AT_ONCE = 2**17  # nodes of all samples that are answered in one call


@dataclass(frozen=True, eq=False)
class Functions:
    """inputs ↦ outputs of ``train``, measured on ``held_out``, which may live on another grid of the same domain.

    The loss of a sample is ‖u − y‖/‖y‖ in H^order: order 0 is relative L², order 1 adds the slopes, which are taken by
    Fourier series along circles and by differences along intervals. ``limit`` measures on fewer samples. ``noise`` is
    added to what is learned from, as a share of its spread: to the channels that are answered, so that a roll-out has
    seen inputs that are slightly wrong.
    """

    train: Pairs
    held_out: Pairs
    batch: int = 20
    order: int = 1
    limit: int | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        if self.train.axis != self.held_out.axis:
            got = f"{self.train.axis} and {self.held_out.axis}"
            remedy = "Use functions on one domain."
            raise ConfigError("functions are held out of the same domain", got=got, remedy=remedy)
        if self.order not in (0, 1):
            raise ConfigError("losses are relative in L² or H¹", got=self.order, remedy="Use order=0 or 1.")
        if not 0 <= self.noise < 1:
            raise ConfigError("noise is a share of the spread", got=self.noise, remedy="Use noise=0.01, or 0 for none.")
        if not 0 < self.batch <= len(self.train):
            raise ConfigError(f"there are {len(self.train)} functions", got=self.batch, remedy="Use a smaller batch.")

    @cached_property
    def slopes(self) -> tuple[Tensor, ...]:
        """The matrices that differentiate along each direction of the training grid."""
        lines = zip(factors(self.train.axis), self.train.lines, strict=True)
        return tuple(differences(line, axis.length if isinstance(axis, Circle) else None) for axis, line in lines)

    @cached_property
    def _coarse(self) -> "dict[int, Functions]":
        """The same task on thinned grids, by their number of nodes, as far as they were asked for."""
        return {}

    def example(self, seed: int, step: int) -> Example:
        """Random functions; each is met once before any is met again."""
        per_round = len(self.train) // self.batch
        order = torch.randperm(len(self.train), generator=generator_for("functions", seed, step // per_round))
        chosen = order[(step % per_round) * self.batch :][: self.batch]
        found = self.at(self.train, chosen)
        return found if self.noise == 0 else self._disturbed(found, generator_for("noise", seed, step))

    def _disturbed(self, example: Example, generator: torch.Generator) -> Example:
        """The same example with noise on the channels that are answered."""
        values = example.batch.values
        if not isinstance(values, Tensor) or values.shape[-1] < example.target.shape[-1]:
            remedy = "Use noise=0 where inputs and answers have other channels."
            raise ConfigError("noise is for maps from states to later states", got=self.train.name, remedy=remedy)
        own = values[..., : example.target.shape[-1]]
        drawn = torch.randn(own.shape, generator=generator, dtype=own.dtype)
        disturbed = own + self.noise * own.std() * drawn
        rest = values[..., own.shape[-1] :]
        return replace(example, batch=replace(example.batch, values=torch.cat([disturbed, rest], -1)))

    def at(self, pairs: Pairs, rows: Tensor | slice = slice(None)) -> Example:
        """Some functions of a set on its own grid, as a batch."""
        inputs, outputs = pairs.flat()
        target = outputs[rows]
        return Example(Batch(inputs[rows], grid=pairs.grid), target, torch.ones(len(target), dtype=torch.bool))

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """The sum over samples of the relative distance."""
        grid = example.batch.grid
        nodes = 0 if grid is None else len(grid)
        there = self if nodes == math.prod(self.train.shape) else self._coarse.get(nodes)
        slopes = () if there is None or self.order == 0 else there.slopes
        shape = () if there is None else there.train.shape
        return relative(answer, example.target, _weights(grid, answer), slopes, shape).sum()

    def loss_of_parts(self, answer: Tensor, example: Example, tokens: Sharded) -> Tensor | None:
        """The same from a part of the nodes; slopes (``order`` 1) need their neighbours."""
        if self.order:
            return None
        exact = torch.promote_types(answer.dtype, torch.float32)
        target = example.target.to(exact)
        weights = tokens.part(_weights(example.batch.grid, target), -1)
        wanted = tokens.part(target)
        squares = [(u.square().sum(-1) * weights).sum(-1) for u in (answer.to(exact) - wanted, wanted)]
        off, size = tokens.sum(torch.stack(squares))
        return (off / size.clamp_min(torch.finfo(exact).tiny)).sqrt().sum()

    def coarsened(self, example: Example, count: int) -> Example:
        """The same functions at every k-th node, ``count`` along the first direction; the state lives on these too."""
        values = example.batch.values
        strides = [k for k in range(1, self.train.shape[0]) if len(range(0, self.train.shape[0], k)) == count]
        lines = list(zip(factors(self.train.axis), self.train.shape, strict=True))
        even = [k for k in strides if all((n - (not isinstance(axis, Circle))) % k == 0 for axis, n in lines)]
        if not even or not isinstance(values, Tensor):
            remedy = "Use a number that comes of taking every second, third, … node, such as half of them."
            raise ConfigError(
                f"functions on {list(self.train.shape)} nodes are thinned evenly", got=count, remedy=remedy
            )
        if even[0] == 1:
            return example
        thinned = self.train.part(slice(0, 1)).every(even[0])
        coarse = replace(self, train=thinned, held_out=thinned, batch=1)
        known = self._coarse.setdefault(math.prod(thinned.shape), coarse)
        steps = (slice(None, None, even[0]),) * self.train.axis.dim
        values, target = (u.unflatten(1, self.train.shape)[:, *steps].flatten(1, -2) for u in (values, example.target))
        batch = replace(example.batch, values=values, grid=known.train.grid, laid=True)
        return Example(batch, target, example.counted)

    @torch.no_grad()
    def evaluate(self, model: Any) -> Score:
        """Mean relative L² distance of held-out functions on their own grid."""
        return Score({"relative_l2": float(self.errors(model).mean())})

    def errors(self, model: Any, on: Pairs | None = None) -> Float[Tensor, "b"]:
        """The relative L² distance of each held-out function, or of each function ``on`` another grid."""
        pairs = self.held_out if on is None else on
        count = len(pairs) if self.limit is None else min(self.limit, len(pairs))
        target = pairs.flat()[1][:count]
        answer = predict(model, Batch(pairs.flat()[0][:count], grid=pairs.grid))
        return relative(answer, target.to(answer), _weights(pairs.grid, answer))

    def imitation(self, answer: Tensor, teacher: Tensor, example: Example) -> Tensor:
        """The same distance to what another size answers."""
        return self.loss(answer, replace(example, target=teacher))


def relative(
    answer: Float[Tensor, "b n c"],
    target: Float[Tensor, "b n c"],
    weights: Float[Tensor, "*#b n"],
    slopes: tuple[Tensor, ...] = (),
    shape: tuple[int, ...] = (),
) -> Float[Tensor, "b"]:
    """‖u − y‖/‖y‖ of each sample, ‖u‖² = ∫ Σ_c u² + |∇u|² dμ; without ``slopes`` the gradient is left out."""

    def square(u: Tensor) -> Tensor:
        parts = [u]
        for place, slope in enumerate(slopes):
            lattice = u.unflatten(1, shape).movedim(place + 1, -1)
            parts.append((lattice @ slope.to(u).mT).movedim(-1, place + 1).flatten(1, -2))
        return torch.stack([(part.square().sum(-1) * weights).sum(-1) for part in parts]).sum(0)

    exact = torch.promote_types(answer.dtype, torch.float32)
    wanted = target.to(exact)
    return (square(answer.to(exact) - wanted) / square(wanted).clamp_min(torch.finfo(exact).tiny)).sqrt()


def differences(line: Float[Tensor, "n"], period: float | None) -> Float[Tensor, "n n"]:
    """The matrix of d/dx on a line: of its Fourier series on equal nodes of a circle, of parabolas elsewhere."""
    n = len(line)
    x = line.double()
    if period is not None and bool((x.diff() - period / n).abs().max() <= 1e-9 * period + 1e-7):
        waves = 2j * math.pi / period * torch.fft.fftfreq(n, 1 / n).double()
        waves = torch.where(torch.arange(n) * 2 == n, 0.0, waves)  # the slope of the highest wave of an even grid
        return torch.fft.ifft(waves[:, None] * torch.fft.fft(torch.eye(n, dtype=torch.float64), dim=0), dim=0).real
    if n < 3:
        raise ConfigError("a slope needs three nodes", got=n, remedy="Use a finer grid, or order=0.")
    made = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        a = min(max(i - 1, 0), n - 3)
        for j in range(a, a + 3):
            others = [x[k] for k in range(a, a + 3) if k != j]
            made[i, j] = (2 * x[i] - others[0] - others[1]) / ((x[j] - others[0]) * (x[j] - others[1]))
    return made


@torch.no_grad()
def predict(model: Any, batch: Batch, watch: Callable[[float], None] | None = None) -> Float[Tensor, "b n c"]:
    """The answers to a batch of functions, a few at a time."""
    inputs = batch.values
    if not isinstance(inputs, torch.Tensor):
        raise ConfigError("functions are given by their values", got=type(inputs).__name__, remedy="Give a tensor.")
    whole = Example(batch, inputs)
    count = max(1, AT_ONCE // inputs.shape[1])
    device = device_of(model)
    answers = []
    for start in range(0, len(inputs), count):
        answers.append(model(whole.rows(slice(start, start + count)).to(device).batch))
        if watch is not None:
            watch(min(1.0, (start + count) / len(inputs)))
    return torch.cat(answers)


def roll_out(model: Any, start: Batch, steps: int) -> Float[Tensor, "steps b n c"]:
    """u₁ = G(u₀), u₂ = G(u₁), …: a map of one time unit applied again and again; channels it lacks stay."""
    states = []
    batch = start
    for _ in range(steps):
        states.append(predict(model, batch))
        held = batch.values[..., states[-1].shape[-1] :]  # type: ignore[index]
        batch = replace(batch, values=torch.cat([states[-1], held.to(states[-1])], -1))
    return torch.stack(states)


def scattered(pairs: Pairs, points: Float[Tensor, "n"] | Float[Tensor, "n k"]) -> tuple[Tensor, Tensor, Grid]:
    """Inputs and outputs [count, n, c] at any points, and the points' grid.

    Along circles by the Fourier series of the samples (exact where they resolve the functions); in boxes by the
    nearest sample, so give points of the lattice there (``Pairs.points``) if values must be exact.
    """
    if isinstance(pairs.axis, Circle):
        x = points.double().reshape(-1)
        n = pairs.shape[0]
        waves = torch.arange(n // 2 + 1, dtype=torch.float64)
        angles = 2 * math.pi / pairs.axis.length * x[:, None] * waves
        doubled = torch.where((waves == 0) | (waves * 2 == n), 1.0, 2.0)

        def moved(values: Tensor) -> Tensor:
            v = torch.fft.rfft(values.double(), dim=1, norm="forward")
            made = torch.einsum("xk,bkc->bxc", doubled * angles.cos(), v.real)
            return (made - torch.einsum("xk,bkc->bxc", doubled * angles.sin(), v.imag)).to(values)

        return moved(pairs.inputs), moved(pairs.outputs), Samples().on(pairs.axis, x)
    flat = pairs.points.reshape(-1, pairs.axis.dim).double()
    rows = torch.cdist(points.double(), flat).argmin(1)
    inputs, outputs = pairs.flat()
    return inputs[:, rows], outputs[:, rows], Samples().on(pairs.axis, flat[rows])


def _weights(grid: Grid | None, like: Tensor) -> Tensor:
    """The measure of the nodes; equal where none is said."""
    n = like.shape[1]
    return like.new_full((n,), 1.0 / n) if grid is None else grid.weights.to(like)
