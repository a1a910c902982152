"""A continuous Transformer in one file of plain torch. Run it: python examples/one_file.py

A Transformer is dX/dz = A[X] + F[X] for a field X(z, t, d): depth z, token time t, embedding coordinate d. Attention A
integrates over sources s, a coordinate e inside each head and the heads h; the feed-forward map F over hidden units m.

    every sum is an integral        a grid gives its nodes and weights
    every weight is a function      coefficients times a basis, read at the nodes
    every layer is a solver step    x + dz·A, then x + dz·F

So one set of coefficients runs on any grid. Count instead of integrate, and it is the Transformer you know.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# --- axes: all that the arithmetic sees of an axis is a grid ---------------------------------------------------------


class Grid(NamedTuple):
    """∫ f dμ ≈ Σ_i w_i f(x_i)."""

    x: Tensor
    w: Tensor


def counting(n: int) -> Grid:
    """The discrete case: nodes 0…n−1, weights one. Integrals become sums, steps become layers."""
    return Grid(torch.arange(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64))


def steps(n: int) -> Grid:
    """Depth has a grid too: explicit Euler is the left-end rule on [0, 1], its weights are the step sizes."""
    return Grid(counting(n).x / n, counting(n).w / n)


def midpoint(n: int) -> Grid:
    return Grid((counting(n).x + 0.5) / n, counting(n).w / n)


def gauss(n: int) -> Grid:
    """Gauss–Legendre from the Jacobi matrix (Golub and Welsch 1969): exact for polynomials up to degree 2n − 1."""
    k = torch.arange(1, n, dtype=torch.float64)
    beside = k / (4 * k * k - 1).sqrt()
    x, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return Grid((x + 1) / 2, vectors[0] ** 2)


def stamps(t: Tensor) -> Grid:
    """Times as the data bring them, sorted in [0, 1]: each owns the half-gaps to its neighbours, or up to the end."""
    edges = torch.cat([torch.zeros_like(t[..., :1]), (t[..., 1:] + t[..., :-1]) / 2, torch.ones_like(t[..., :1])], -1)
    return Grid(t, edges.diff())


# --- bases: functions on an axis, orthonormal on [0, 1] --------------------------------------------------------------


def fourier(x: Tensor, size: int) -> Tensor:
    waves = 2 * math.pi * x[:, None] * torch.arange(1, size // 2 + 1)
    pairs = math.sqrt(2) * torch.stack([waves.cos(), waves.sin()], -1).flatten(-2)
    return torch.cat([torch.ones_like(x[:, None]), pairs], -1)


def legendre(x: Tensor, size: int) -> Tensor:
    p = [torch.ones_like(x), 2 * x - 1]
    for k in range(1, size - 1):
        p.append(((2 * k + 1) * p[1] * p[k] - k * p[k - 1]) / (k + 1))
    return torch.stack([math.sqrt(2 * k + 1) * p[k] for k in range(size)], -1)


def cosine(x: Tensor, size: int) -> Tensor:
    k = torch.arange(size, dtype=x.dtype)
    return (math.pi * x[:, None] * k).cos() * (2 - (k == 0).to(x)).sqrt()


def nodal(x: Tensor, size: int) -> Tensor:
    """One coefficient a point: on its own grid the field *is* the stored tensor, an ordinary weight."""
    return torch.eye(size, dtype=x.dtype)[x.long()]


Bases = dict[str, tuple[Callable[[Tensor, int], Tensor], int]]
SMOOTH: Bases = {"d": (fourier, 5), "h": (legendre, 3), "e": (legendre, 3), "m": (cosine, 4), "z": (legendre, 3)}

# --- the model -------------------------------------------------------------------------------------------------------

# Each weight is a field over these letters; c is a second name of d, n counts channels. Left of the bar is what a field
# gives, right of it what it is integrated over: initial coefficients then keep variances, as 1/√fan_in does.
FIELDS = {
    "read": "d|n", "read_bias": "d|", "scale": "d|", "shift": "d|", "write": "n|d",
    "scale1": "zd|", "shift1": "zd|", "q": "zhe|c", "k": "zhe|c", "v": "zhe|c", "o": "zd|he",
    "bq": "zhe|", "bk": "zhe|", "bv": "zhe|", "bo": "zd|",
    "scale2": "zd|", "shift2": "zd|", "w1": "zm|c", "w2": "zd|m", "b1": "zm|", "b2": "zd|",
}  # fmt: skip

Grids, Weights = dict[str, Grid], dict[str, Tensor]


class ContinuousTransformer(nn.Module):
    """Coefficients only. Nothing here knows a width, a number of heads or a number of layers."""

    def __init__(self, channels: int, bases: Bases, seed: int = 0) -> None:
        super().__init__()
        self.bases: Bases = {**bases, "c": bases["d"], "n": (nodal, channels)}
        draw = torch.Generator().manual_seed(seed)
        self.coefficients = nn.ParameterDict()
        for name, letters in FIELDS.items():
            given, over = ([self.bases[letter][1] for letter in side] for side in letters.split("|"))
            std = (1.0 if over else 0.1) / math.sqrt(math.prod(given))
            self.coefficients[name] = nn.Parameter(std * torch.randn(given + over, generator=draw, dtype=torch.float64))

    def at(self, grids: Grids) -> Weights:
        """Read every weight function at the nodes: the only place where coefficients meet a grid."""
        basis = {letter: make(grids[letter].x, size) for letter, (make, size) in self.bases.items()}
        values = {}
        for name, letters in FIELDS.items():
            value = self.coefficients[name]
            for letter in letters.replace("|", ""):
                # contracts the first letter and puts its nodes last: after a full turn the order is as it was
                value = torch.tensordot(value, basis[letter].to(value), ([0], [1]))
            values[name] = value
        return values

    def forward(self, u: Tensor, grids: Grids) -> Tensor:
        """Observations u(t) [b, t, channels] to answers of the same shape: embed, flow, read out."""
        grids = {**grids, "c": grids["d"], "n": counting(u.shape[-1])}
        w = self.at(grids)
        x = flow(u @ w["read"].T + w["read_bias"], w, grids)
        return torch.einsum("btd,nd,d->btn", norm(x, grids["d"].w, w["scale"], w["shift"]), w["write"], grids["d"].w)


def flow(x: Tensor, weights: Weights, grids: Grids) -> Tensor:
    """dX/dz = A[N(X)] + F[N(X)], one part after the other (Lie–Trotter). With dz = 1 this is the residual stream."""
    for i, dz in enumerate(grids["z"].w):
        w = {name: value[i] for name, value in weights.items() if "z" in FIELDS[name]}
        x = x + dz * attention(norm(x, grids["d"].w, w["scale1"], w["shift1"]), w, grids)
        x = x + dz * feed_forward(norm(x, grids["d"].w, w["scale2"], w["shift2"]), w, grids)
    return x


def norm(x: Tensor, d: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """LayerNorm against the measure: means are integrals over d divided by its mass."""
    x = x - (x * d).sum(-1, keepdim=True) / d.sum()
    variance = (x * x * d).sum(-1, keepdim=True) / d.sum()
    return x * (variance + 1e-5).rsqrt() * (1 + scale) + shift  # 1 +: coefficients near zero start it, in any basis


def attention(x: Tensor, w: Weights, grids: Grids) -> Tensor:
    """A[x](t, d) = ∫∫ α_h(t, s) O(d,h,e) V(s,h,e) dμ(s) dμ(h,e) + b_O(d), α = exp(a) / ∫ exp(a) dμ(s)."""
    d, h, e = (grids[letter].w for letter in "dhe")
    q, k, v = (torch.einsum("btc,hec,c->bthe", x, w[n], d) + w["b" + n] for n in "qkv")
    # mass(e)^(−½): 1/√d_head when counting, and a limit when e is refined
    scores = torch.einsum("bthe,bshe,e->bhts", q, k, e) * e.sum() ** -0.5
    # log-weights, not weights: softmax(a + log w) is the normalised integral over s, also where stamps are crowded
    alpha = (scores + grids["t"].w.log()[..., None, None, :]).softmax(-1)
    return torch.einsum("bhts,bshe,dhe,h,e->btd", alpha, v, w["o"], h, e) + w["bo"]


def feed_forward(x: Tensor, w: Weights, grids: Grids) -> Tensor:
    """F[x](t, d) = ∫ W2(d,m) gelu(∫ W1(m,c) x(t,c) dμ(c) + b1(m)) dμ(m) + b2(d)."""
    hidden = F.gelu(torch.einsum("btc,mc,c->btm", x, w["w1"], grids["d"].w) + w["b1"])
    return torch.einsum("btm,dm,m->btd", hidden, w["w2"], grids["m"].w) + w["b2"]


# --- what it promises, measured --------------------------------------------------------------------------------------

NATIVE = {"t": gauss(12), "d": midpoint(16), "h": midpoint(4), "e": gauss(4), "m": gauss(12), "z": steps(4)}


def uneven(n: int) -> Grid:
    """Stamps three times as dense in the middle as at the ends."""
    s = midpoint(n).x
    return stamps(s + 0.5 * torch.sin(2 * math.pi * s) / (2 * math.pi))


# axis, how its nodes are laid, the grid for n, the power of 1/n in the error (None: faster than any power)
STUDIES = [
    ("t", "uneven stamps", uneven, 2), ("t", "Gauss nodes", gauss, None), ("d", "even nodes, circle", midpoint, None),
    ("h", "midpoints", midpoint, 2), ("e", "midpoints", midpoint, 2), ("m", "Gauss nodes", gauss, None),
    ("z", "4n Euler steps", lambda n: steps(4 * n), 1),
]  # fmt: skip


def answer(model: ContinuousTransformer, grids: Grids) -> Tensor:
    """The mean over time of what the model says to three waves and a clock: it can be compared between grids."""
    t, phase = grids["t"].x, torch.arange(3, dtype=torch.float64)[:, None]
    u = torch.stack([torch.sin(math.pi * t + phase), (1 + t).expand(3, -1)], -1)
    return torch.einsum("t,btn->bn", grids["t"].w, model(u, grids))


@torch.no_grad()
def refinement(sizes: tuple[int, ...] = (6, 12, 24, 48)) -> None:
    """Refine one axis at a time: the change between n and 2n falls as the rule promises."""
    model = ContinuousTransformer(channels=2, bases=SMOOTH)
    print("change of the answer, n to 2n".ljust(30), *(f"n={n}".rjust(7) for n in sizes), "   order")
    for letter, how, grid, order in STUDIES:
        found = [answer(model, {**NATIVE, letter: grid(n)}) for n in (*sizes, 2 * sizes[-1])]
        change = [float((a - b).abs().max()) for a, b in pairwise(found)]
        slope = math.log2(change[-2] / change[-1]) if order else math.inf
        shown = f"{slope:.2f}" if order else "spectral"
        print(f"  {letter}  {how}".ljust(30), *(f"{c:.0e}".rjust(7) for c in change), shown.rjust(8))
        assert abs(slope - order) < 0.15 if order else change[-1] < 1e-9, f"{letter} does not converge as promised"


@torch.no_grad()
def special_case(width: int = 16, heads: int = 4, hidden: int = 64, layers: int = 2) -> None:
    """Counting axes, one coefficient a point, unit steps: the standard pre-norm Transformer, weights and all."""
    torch.manual_seed(0)
    options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True, "dtype": torch.float64}
    stack = [nn.TransformerEncoderLayer(width, heads, hidden, **options) for _ in range(layers)]
    sizes = {"d": width, "h": heads, "e": width // heads, "m": hidden, "z": layers}
    model = ContinuousTransformer(channels=2, bases={letter: (nodal, n) for letter, n in sizes.items()})
    for z, layer in enumerate(stack):
        heads_in = zip(
            "qkv", layer.self_attn.in_proj_weight.chunk(3), layer.self_attn.in_proj_bias.chunk(3), strict=True
        )
        out, up, down = layer.self_attn.out_proj, layer.linear1, layer.linear2
        theirs = {
            **{name: tensor for n, weight, bias in heads_in for name, tensor in ((n, weight), ("b" + n, bias))},
            "o": out.weight, "bo": out.bias, "w1": up.weight, "b1": up.bias, "w2": down.weight, "b2": down.bias,
            "scale1": layer.norm1.weight - 1, "shift1": layer.norm1.bias,
            "scale2": layer.norm2.weight - 1, "shift2": layer.norm2.bias,
        }  # fmt: skip
        for name, weight in theirs.items():
            model.coefficients[name][z].copy_(weight.reshape(model.coefficients[name][z].shape))
    grids = {letter: counting(n) for letter, n in {**sizes, "t": 10, "n": 2, "c": width}.items()}
    x = torch.randn(3, 10, width, dtype=torch.float64)
    ours, wanted = flow(x, model.at(grids), grids), nn.Sequential(*stack)(x)
    apart = float((ours - wanted).abs().max() / wanted.abs().max())
    print(f"\ncounting axes, unit steps: {apart:.0e} away from {layers} nn.TransformerEncoderLayer")
    assert apart < 1e-12, "the discrete case is not the standard Transformer"


if __name__ == "__main__":
    torch.set_num_threads(1)
    refinement()
    special_case()
