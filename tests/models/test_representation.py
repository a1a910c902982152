"""What one layer can compute: weights set by hand for copy, shift, average and logic; sinusoids; √L memory (A14)."""

import itertools
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import continua as ct
from continua.axes import counting, grid_on
from continua.fields import counted
from continua.models.build import discrete_axes, pre_norm
from continua.models.embed import States
from continua.operators import Context, Mask, Parts, Sinusoidal
from tests.exact import gap, gradients, numbers, stirred, worst
from tests.measure import slope

# A saturated softmax leaves e^(−SHARP·margin) on other keys. The margins below are ≥ 0.2, so e^(−40) = 4e-18 a key:
# the answer is exact to the last digits, and 1e-9 leaves room for the round-off of scores of size SHARP only.
SHARP, SATURATED = 200.0, 1e-9


def layer(d: int, m: int = 1, mask: Mask | None = None, t: ct.axes.Axis | None = None) -> ct.Transformer:
    """One head as wide as the state, a ReLU feed-forward of width m, no norm, one unit step; all weights zero."""
    axes, native = discrete_axes(d, 1, m, 1)
    if t is not None:
        axes = ct.Axes(t, axes.d, axes.h, axes.e, axes.m, axes.z)
    weights = counted(axes, 1)
    block = Parts((ct.Attention(weights, mask=mask), ct.Pointwise(weights, ct.ReLU())))
    model = ct.Transformer(axes, native, States(), block).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def write(model: ct.Transformer, **values: Tensor | list[list[float]] | list[float]) -> None:
    """Set the weights by hand: q, k, v [e, c], o [d, e], w1 [m, c], w2 [d, m] and biases."""
    attention, feed = model.block.parts
    with torch.no_grad():
        for name, value in values.items():
            stored = getattr(attention if hasattr(attention, name) else feed, name).coefficients
            stored.copy_(torch.as_tensor(value, dtype=stored.dtype).reshape(stored.shape))


def sharpen(scores: Tensor, width: int) -> Tensor:
    """Undo the temperature 1/√e and make the softmax pick."""
    return SHARP * math.sqrt(width) * scores


# The state of the sequence tests: [content | position | answer].
LENGTH, CONTENT, POSITION = 7, 3, 8
WIDTH = 2 * CONTENT + POSITION
CONTENTS, POSITIONS = slice(0, CONTENT), slice(CONTENT, CONTENT + POSITION)
ANSWER = slice(CONTENT + POSITION, WIDTH)


def sinusoids(times: Tensor, d: int = POSITION) -> Tensor:
    axes, _ = discrete_axes(d, 1, 1, 1)
    nodes = grid_on(axes.d, ct.Counting(d))
    stamps = ct.Samples().on(axes.t, times)
    return Sinusoidal(axes)(stamps, nodes, times)


def rotation(shift: float, d: int = POSITION) -> Tensor:
    """R with p(t + shift) = R p(t): each pair (sin, cos) turns by shift·ω_i."""
    angles = [shift * 10000.0 ** (-2 * i / d) for i in range(d // 2)]
    turns = [[[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]] for a in angles]
    return torch.block_diag(*torch.tensor(turns, dtype=torch.float64))


def sequence(seed: int) -> tuple[Tensor, Tensor]:
    """Content beside positions; the answer's place is empty."""
    content = numbers(2, LENGTH, CONTENT, seed=seed)
    places = sinusoids(torch.arange(LENGTH, dtype=torch.float64)).expand(2, -1, -1)
    return content, torch.cat([content, places, torch.zeros_like(content)], -1)


def moving(model: ct.Transformer) -> None:
    """Values carry the content, the output kernel writes it into the answer."""
    into = torch.zeros(WIDTH, WIDTH)
    into[ANSWER, CONTENTS] = torch.eye(CONTENT)
    write(model, v=torch.eye(WIDTH), o=into)


def looking(model: ct.Transformer, shift: float) -> None:
    """Query p(t + shift), key p(s): the score Σ cos ω_i(t + shift − s) is largest at s = t + shift."""
    q, k = torch.zeros(WIDTH, WIDTH, dtype=torch.float64), torch.zeros(WIDTH, WIDTH)
    q[POSITIONS, POSITIONS] = sharpen(rotation(shift), WIDTH)
    k[POSITIONS, POSITIONS] = torch.eye(POSITION)
    write(model, q=q, k=k)


@pytest.mark.parametrize("shift", [0, -1, -2, 1])
@pytest.mark.spec("A14")
def test_copy_and_shift(shift: int) -> None:
    """Shift 0 copies each token, −1 fetches the previous one, wherever there is one."""
    model = layer(WIDTH)
    moving(model)
    looking(model, shift)
    content, x = sequence(seed=1)
    source = torch.arange(LENGTH) + shift
    inside = (source >= 0) & (source < LENGTH)
    y = model(x)
    assert (y[:, inside, ANSWER] - content[:, source[inside]]).abs().max() <= SATURATED
    assert torch.equal(y[..., : ANSWER.start], x[..., : ANSWER.start])  # nothing else moves


@pytest.mark.spec("A14", "A2")
def test_previous_token_under_a_causal_mask() -> None:
    model = layer(WIDTH, mask=ct.Causal())
    moving(model)
    looking(model, -1)
    content, x = sequence(seed=2)
    source = (torch.arange(LENGTH) - 1).clamp_min(0)  # the first token has only itself
    assert (model(x)[..., ANSWER] - content[:, source]).abs().max() <= SATURATED


@pytest.mark.spec("A14", "A2")
def test_averages() -> None:
    """Without queries every key weighs the same: means, running means, means over what is observed. No softmax edge."""
    content, x = sequence(seed=3)
    everything, running = layer(WIDTH), layer(WIDTH, mask=ct.Causal())
    moving(everything)
    moving(running)
    mean = content.mean(1, keepdim=True).expand_as(content)
    assert (everything(x)[..., ANSWER] - mean).abs().max() <= 1e-14
    so_far = content.cumsum(1) / torch.arange(1, LENGTH + 1)[:, None]
    assert (running(x)[..., ANSWER] - so_far).abs().max() <= 1e-14
    observed = torch.tensor([1, 0, 1, 1, 0, 1, 0]).bool()
    got = everything(ct.Batch(x, observed=observed))[..., ANSWER][:, observed]
    assert (got - content[:, observed].mean(1, keepdim=True)).abs().max() <= 1e-14


@pytest.mark.spec("A14", "M4")
def test_average_over_real_time_is_the_integral_mean() -> None:
    """On irregular stamps the same weights give (1/T)∫ f dt by half-gaps: the trapezoid rule, exact for lines."""
    model = layer(WIDTH, t=ct.Times())
    moving(model)
    times = torch.tensor([0.0, 0.05, 0.1, 0.15, 0.4, 0.45, 1.0], dtype=torch.float64)
    content = torch.stack([times, 2 - 3 * times, torch.ones_like(times)], -1).expand(2, -1, -1)
    x = torch.cat([content, torch.zeros(2, LENGTH, WIDTH - CONTENT, dtype=torch.float64)], -1)
    got = model(ct.Batch(x, times=times))[..., ANSWER]
    assert (got - torch.tensor([0.5, 0.5, 1.0], dtype=torch.float64)).abs().max() <= 1e-14
    assert (content.mean(1) - got[:, 0]).abs().max() > 1e-2  # counting the tokens would say something else


# --- logic -----------------------------------------------------------------------------------------------------------

# The state of the logic tests: [bit | is an input | asks | and | or | not of the first input | sum].
BIT, INPUT, ASKS, AND, OR, NOT, SUM = range(7)


def gates(inputs: int) -> ct.Transformer:
    """Attention adds the bits of the input tokens up, the feed-forward thresholds the sum.

    AND = φ(Σ − n + 1), OR = 1 − φ(1 − Σ), NOT a = φ(1 − a), with φ = ReLU and exact corners at whole numbers.
    """
    model = layer(7, m=3)
    q, k, v, o = (torch.zeros(7, 7, dtype=torch.float64) for _ in range(4))
    q[0, ASKS] = sharpen(torch.ones((), dtype=torch.float64), 7)
    k[0, INPUT] = 1.0  # who asks looks at the inputs only: margin one
    v[0, BIT] = 1.0
    o[SUM, 0] = inputs  # n times the mean of the bits
    write(model, q=q, k=k, v=v, o=o)
    w1, w2 = torch.zeros(3, 7), torch.zeros(7, 3)
    w1[0, SUM], w1[1, SUM], w1[2, BIT] = 1.0, -1.0, -1.0
    b2 = torch.zeros(7)
    w2[AND, 0], w2[OR, 1], w2[NOT, 2] = 1.0, -1.0, 1.0
    b2[OR] = 1.0
    write(model, w1=w1, b1=[1.0 - inputs, 1.0, 1.0], w2=w2, b2=b2)
    return model


@pytest.mark.parametrize("inputs", [2, 3, 4])
@pytest.mark.spec("A14", "M3")
def test_and_or_not(inputs: int) -> None:
    """Every truth table row is one sample: n input tokens and a last one that asks."""
    rows = torch.tensor(list(itertools.product([0.0, 1.0], repeat=inputs)), dtype=torch.float64)
    x = torch.zeros(len(rows), inputs + 1, 7, dtype=torch.float64)
    x[:, :inputs, BIT], x[:, :inputs, INPUT], x[:, inputs, ASKS] = rows, 1.0, 1.0
    y = gates(inputs)(x)
    asked = y[:, inputs]
    assert (asked[:, AND] - rows.prod(1)).abs().max() <= SATURATED
    assert (asked[:, OR] - rows.amax(1)).abs().max() <= SATURATED
    assert torch.equal(y[:, :inputs, NOT], 1 - rows)  # at each input itself: no softmax, exact


# --- sinusoids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [8, 64])
@pytest.mark.spec("A14", "A3")
def test_a_shift_of_sinusoids_is_one_rotation(d: int) -> None:
    """p(t + s) = R(s) p(t) with R(s) the same for all real t; R is orthogonal and R(a)R(b) = R(a + b)."""
    times = 50 * numbers(20, seed=1).abs().sort().values
    for shift in (1.0, -2.5, 17.3):
        turned = sinusoids(times, d) @ rotation(shift, d).T
        assert (sinusoids(times + shift, d) - turned).abs().max() <= 1e-12
        assert (rotation(shift, d) @ rotation(shift, d).T - torch.eye(d)).abs().max() <= 1e-14
        assert (rotation(shift, d) @ rotation(1.0, d) - rotation(shift + 1.0, d)).abs().max() <= 1e-13


@pytest.mark.spec("A14", "A3")
def test_wavelengths_and_bounds() -> None:
    d = 16
    for i in range(d // 2):
        wavelength = 2 * math.pi * 10000 ** (2 * i / d)
        times = wavelength * torch.linspace(0, 1, 9, dtype=torch.float64)
        pair = sinusoids(times, d)[:, 2 * i : 2 * i + 2]
        circle = torch.linspace(0, 2 * math.pi, 9, dtype=torch.float64)  # eight steps, once around
        assert (pair - torch.stack([circle.sin(), circle.cos()], -1)).abs().max() <= 1e-12
    p = sinusoids(1e4 * numbers(500, seed=2).abs().sort().values, d)
    assert p.abs().max() <= 1
    assert (p.square().sum(-1) - d / 2).abs().max() <= 1e-12  # every position on one sphere


# --- checkpoint memory -----------------------------------------------------------------------------------------------


class Live(TorchDispatchMode):
    """Bytes of all storages that were made inside and are still held, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.sizes:
                    self.sizes[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return out


def bound_steps(depth: int) -> tuple[ct.Transformer, Callable[[Tensor, int, int], Tensor]]:
    """A model with one set of weights for all depths, and its unit steps from one depth to another."""
    torch.manual_seed(0)
    axes, native = discrete_axes(8, 2, 16, depth)
    weights = counted(axes)
    block = pre_norm((ct.Attention(weights), ct.Pointwise(weights)), lambda: ct.LayerNorm(weights))
    model = stirred(ct.Transformer(axes, native, States(), block))
    grids = replace(native.grids(axes), t=counting(64, numbers(1)))
    field, args = model.bind(grids, model.structure(), Context())

    def walk(x: Tensor, start: int, end: int) -> Tensor:
        span = (float(start), float(end))
        return ct.solve(field, x, span, args=args, solver=ct.LieTrotter(), control=ct.Fixed(end - start)).final

    return model, walk


def measured(depth: int, segments: int) -> tuple[int, int, dict[str, Tensor]]:
    """How many states the forward pass keeps, the peak of live bytes, and the gradients."""
    model, walk = bound_steps(depth)
    own = {parameter.data_ptr() for parameter in model.parameters()}
    x0 = numbers(4, 64, 8, seed=3).requires_grad_()
    kept: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own and tensor.shape == x0.shape:
            kept.add(tensor.data_ptr())
        return tensor

    with Live() as live:
        x, length = x0, depth // segments
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            for start in range(0, depth, length):
                ends = (start, start + length)
                x = walk(x, *ends) if segments == 1 else checkpoint(walk, x, *ends, use_reentrant=False)
            loss = x.square().sum()
        grads = gradients(loss, {"x0": x0, **dict(model.named_parameters())})
    return len(kept), live.peak, grads


@pytest.mark.spec("A14", "M9")
def test_checkpoints_hold_a_number_of_states_that_grows_with_the_root_of_depth() -> None:
    depths = [4, 16, 64]
    direct = [measured(depth, 1) for depth in depths]
    rooted = [measured(depth, math.isqrt(depth)) for depth in depths]
    for (_, _, wanted), (_, _, got) in zip(direct, rooted, strict=True):
        assert worst(got, wanted) <= 1e-12
    assert [states for states, _, _ in rooted] == [math.isqrt(depth) + 1 for depth in depths]  # and the end, for x²
    # peak bytes of forward and backward, replay included; the few buffers of one backward step soften the root a little
    bytes_direct, bytes_rooted = [peak for _, peak, _ in direct], [peak for _, peak, _ in rooted]
    assert -slope(depths, bytes_direct) == pytest.approx(1.0, abs=0.1), bytes_direct
    assert -slope(depths, bytes_rooted) == pytest.approx(0.5, abs=0.1), bytes_rooted
    assert gap(rooted[0][2]["x0"], direct[0][2]["x0"]) <= 1e-12
