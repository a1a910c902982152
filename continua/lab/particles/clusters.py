"""Clusters of tokens: how many there are, how long they stay, how fast they close up, and whom they gather around."""

import math
from dataclasses import dataclass

import torch

from continua.errors import ConfigError, ShapeError
from continua.geometry import sphere
from continua.lab.particles.energy import energy, mean_cosine
from continua.lab.particles.interaction import Hardmax, Interaction
from continua.lab.particles.particles import Particles
from continua.lab.particles.simulate import Simulation
from continua.lab.particles.sums import BLOCK
from continua.typing import Bool, Float, Int, Tensor

STILL = 1e-6  # how far a token may be from what it sees and still count as a leader


@dataclass(frozen=True, eq=False)
class Clusters:
    """Tokens linked by angles up to ``gap``, directly or through others (single linkage), in every frame and run.

    ``labels`` count from 0 in each frame. ``sizes`` are masses and ``centres`` mean directions; beyond the ``count`` of
    a frame they are zero.
    """

    count: Int[Tensor, "*k"]
    labels: Int[Tensor, "*k n"]
    sizes: Float[Tensor, "*k m"]
    centres: Float[Tensor, "*k m d"]
    gap: float


def clusters(what: Simulation | Particles, gap: float | None = None) -> Clusters:
    """Connected components of the graph that joins tokens at angles up to ``gap``.

    By default it is 0.5/√β of a simulation (0.5 for |β| < 1); a cluster of the circle has no empty arc that long. Time
    O(n log n) on the circle; elsewhere O(n² d) for each of a few passes, in blocks: memory O(n) for many tokens.

    >>> clusters(Particles.circle([0.0, 0.1, 2.0, 6.2]), gap=0.2).count.item()
    2
    """
    if isinstance(what, Simulation):
        x = what.directions.detach()
        weights = what.weights
        gap = usual_gap(what.interaction) if gap is None else gap
    else:
        x = what.x.detach()
        weights = what.weights
    if gap is None or not 0 < gap < math.pi:
        got = "none" if gap is None else gap
        raise ConfigError("clusters are apart by an angle between 0 and π", got=got, remedy="Give gap, such as 0.1.")
    labels, count = _on_circle(x, gap) if x.shape[-1] == 2 else _linked(x, gap)
    masses = torch.full_like(x[..., 0], 1 / x.shape[-2]) if weights is None else weights.expand(labels.shape)
    most = int(count.max())
    sizes = x.new_zeros(*count.shape, most).scatter_add(-1, labels, masses)
    index = labels[..., None].expand(x.shape)
    centres = x.new_zeros(*count.shape, most, x.shape[-1]).scatter_add(-2, index, masses[..., None] * x)
    lengths = centres.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    return Clusters(count, labels, sizes, centres / lengths, gap)


def usual_gap(interaction: Interaction) -> float | None:
    """0.5/√β, half of the width of the kernel e^{β cos φ}; 0.5 for |β| < 1, none for hardmax, which has no width."""
    return None if isinstance(interaction, Hardmax) else 0.5 / math.sqrt(max(1.0, abs(interaction.beta)))


@dataclass(frozen=True)
class Plateau:
    """A time in which tokens hardly move and keep their ``count`` of clusters; ``open`` if it lasts until the end."""

    start: float
    end: float
    count: int
    energy: float
    cosine: float
    open: bool


def plateaus(simulation: Simulation, gap: float | None = None, slow: float = 0.1, frames: int = 3) -> list[Plateau]:
    """Metastable intervals of one run: at least ``frames`` frames with one count and speeds below ``slow`` of the peak.

    Speeds are those between frames, (Σ_i w_i |Δx_i|²)^{1/2}/Δt. A uniform start is one, too, with a small ``cosine``
    |Σ_i w_i x_i|²: it has no gaps. Save enough times to see them, evenly spaced in log t for long ones.
    """
    _one_run(simulation)
    count = clusters(simulation, gap).count.tolist()
    x = simulation.directions
    w = simulation.at(0).masses
    speed = ((x[1:] - x[:-1]).square().sum(-1) * w).sum(-1).sqrt() / simulation.times.diff().to(x)
    rests = (speed <= slow * speed.max()).tolist()
    found = []
    first = 0
    for i in range(1, len(count) + 1):
        if i < len(count) and rests[i - 1] and count[i] == count[first]:
            continue
        if i - first >= frames:
            middle = simulation.at((first + i - 1) // 2)
            numbers = energy(middle, simulation.interaction.beta).item(), mean_cosine(middle).item()
            start, end = (float(simulation.times[j]) for j in (first, i - 1))
            found.append(Plateau(start, end, count[first], *numbers, i == len(count)))
        first = i
    return found


def collapse_rate(simulation: Simulation, window: tuple[float, float] = (1e-10, 1e-3)) -> Float[Tensor, "*b"]:
    """r in 1 − ⟨cos⟩ ~ e^{−rt}, by least squares over the frames in which 1 − ⟨cos⟩ lies in the ``window``.

    ⟨cos⟩ = |Σ_i w_i x_i|² is the mean over all pairs. The rate is 2 for SA and 2e^β for USA with V = I; angles, of
    which this is the square, close up half as fast.
    """
    x = simulation.directions
    w = simulation.at(0).masses[..., None]
    apart = (w * (x - (w * x).sum(-2, keepdim=True)).square()).sum((-2, -1))  # 1 − |m|² without cancellation
    seen = (apart > window[0]) & (apart < window[1])
    least = int(seen.sum(0).min())
    if least < 3:
        end = float(apart[-1].max())
        got = f"{least} of {len(x)} frames with 1 − ⟨cos⟩ from {window[0]:g} to {window[1]:g}, at the end {end:.2g}"
        remedy = "Simulate for longer, save more times, or widen the window."
        raise ConfigError("a rate is fitted to three frames or more of the collapse", got=got, remedy=remedy)
    t = simulation.times.to(x).reshape(-1, *[1] * (seen.ndim - 1)).expand(seen.shape)
    y = apart.clamp_min(window[0]).log()
    t, y = ((v - (seen * v).sum(0) / seen.sum(0)) * seen for v in (t, y))
    return -(t * y).sum(0) / (t * t).sum(0)


# --- whom they gather around ----------------------------------------------------------------------------------------


def leaders(simulation: Simulation, gap: float | None = None) -> Int[Tensor, " m"]:
    """The token of each final cluster that went the least way: the one that the others joined."""
    _one_run(simulation)
    x = simulation.directions
    way = sphere.distance(x[1:], x[:-1]).sum(0)
    labels = clusters(simulation.final, usual_gap(simulation.interaction) if gap is None else gap).labels
    return torch.stack([torch.where(labels == c, way, math.inf).argmin() for c in range(int(labels.max()) + 1)])


def hardmax_leaders(interaction: Interaction, particles: Particles) -> Bool[Tensor, "*b n"]:
    """Tokens that hardmax attention with the same scores would let see only themselves, so that others follow them.

    See Alcalde, Fantuzzi and Zuazua 2024, Clustering in pure-attention hardmax transformers.
    """
    q, k, _ = interaction.matrices
    heads = max([1, *(m.shape[0] for m in (q, k) if m is not None and m.ndim == 3)])
    hard = Hardmax(math.copysign(1.0, interaction.beta), q, k, causal=interaction.causal)
    seen = hard.drift(particles.x, particles.weights) / heads  # a mean of unit vectors is x only if all of them are
    return (seen - particles.x).norm(dim=-1) < STILL


def parked(particles: Particles, distance: float) -> Int[Tensor, " m"]:
    """Tokens with no earlier one of them within ``distance``: Rényi's parking, in the order of the tokens.

    Causal attention with a large β gathers around them for a long time, with a distance of about 1/√β (Karagodin,
    Polyanskiy, Rigollet 2024). Time O(n m).
    """
    if particles.x.ndim != 2:
        raise ShapeError("tokens are parked one set at a time", got=list(particles.x.shape), remedy="Take x[0].")
    if not 0 < distance < math.pi:
        raise ConfigError("a parking distance is an angle", got=distance, remedy="Use one between 0 and π.")
    free = torch.ones(particles.n, dtype=torch.bool, device=particles.x.device)
    found = []
    while bool(free.any()):
        first = int(free.to(torch.uint8).argmax())
        found.append(first)
        free &= sphere.distance(particles.x, particles.x[first]) > distance
        free[first] = False
    return torch.tensor(found)


def causal_limit(interaction: Interaction, particles: Particles) -> Float[Tensor, "*b d"]:
    """Where the first token of causal attention goes, and with V = I all others with it (Karagodin et al. 2024).

    It sees only itself, x' = P_x V x: it stays for V = I, and otherwise goes to the part of it in the eigenspace of V
    with the largest eigenvalue. V is symmetric; heads add up.
    """
    if not interaction.causal:
        remedy = "Give the interaction causal=True."
        raise ConfigError("the first token decides in causal attention only", got="causal=False", remedy=remedy)
    first = particles.x[..., 0, :]
    v = interaction.v
    if v is None:
        return first
    v = (v.sum(0) if v.ndim == 3 else v).to(first)
    if not torch.allclose(v, v.mT, rtol=1e-10, atol=1e-12):
        remedy = "Use a symmetric one, or simulate."
        raise ConfigError("the limit is known for symmetric values", got="a matrix v that is not", remedy=remedy)
    values, vectors = torch.linalg.eigh(v)
    top = vectors[:, values > values[-1] - 1e-10 * values.abs().max()]
    return sphere.retract(first @ top @ top.mT)


# --- components -------------------------------------------------------------------------------------------------------


def _on_circle(x: Tensor, gap: float) -> tuple[Tensor, Tensor]:
    """Labels and counts by empty arcs, counted around the circle from −π."""
    theta, order = torch.atan2(x[..., 1], x[..., 0]).double().sort(-1)
    breaks = (theta[..., 1:] - theta[..., :-1]) > gap
    closed = (theta[..., :1] + 2 * math.pi - theta[..., -1:]) <= gap  # the last and the first are neighbours
    label = torch.cat([torch.zeros_like(closed), breaks], -1).cumsum(-1)
    last = label[..., -1:]
    label = torch.where(closed & (label == last), 0, label)
    count = torch.where(closed, last.clamp_min(1), last + 1)[..., 0]
    return torch.zeros_like(label).scatter(-1, order, label), count


def _linked(x: Tensor, gap: float) -> tuple[Tensor, Tensor]:
    """Labels and counts by passing the least index from neighbour to neighbour, some runs or some rows at a time."""
    n, d = x.shape[-2:]
    every = x.reshape(-1, n, d).double()
    labels = torch.cat([_least(part, math.cos(gap)) for part in every.split(max(1, BLOCK // (n * n)))])
    roots = labels == torch.arange(n, device=x.device)
    labels = (roots.cumsum(-1) - 1).gather(-1, labels)
    return labels.reshape(x.shape[:-1]), roots.sum(-1).reshape(x.shape[:-2])


def _least(x: Tensor, cosine: float) -> Tensor:
    """The least index in the component of every token, [runs, n]."""
    n = x.shape[-2]
    rows = max(1, BLOCK // (n * len(x)))
    links = x @ x.mT >= cosine if rows >= n else None  # few tokens: looked at once, not in every pass
    labels = torch.arange(n, device=x.device).expand(len(x), n).contiguous()
    while True:
        seen = []
        for start in range(0, n, rows):
            near = links if links is not None else x[:, start : start + rows] @ x.mT >= cosine
            seen.append(torch.where(near, labels[:, None, :], n).amin(-1))
        least = torch.minimum(labels, torch.cat(seen, -1))
        new = least.scatter_reduce(-1, labels, least, "amin")  # what one member learns, the first of them knows
        for _ in range(2):
            new = torch.minimum(new, new.gather(-1, new))
        if bool((new == labels).all()):
            return labels
        labels = new


def _one_run(simulation: Simulation) -> None:
    if simulation.x.ndim != 3:
        got = f"{list(simulation.x.shape[1:-2])} runs side by side"
        raise ShapeError("this looks at one run", got=got, remedy="Simulate Particles(x[0]) alone.")
