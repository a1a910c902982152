"""``ct.solve`` as an ODE library of its own: no attention, no model, one core, well below a minute.

    python examples/ode.py                 prints what it does and saves runs/ode.png
    python examples/ode.py --out FILE.png  saves it elsewhere

(a) Van der Pol's oscillator with adaptive steps and dense output. (b) Hénon and Heiles' star with Strang splitting
beside RK4: who keeps the energy? (c) A neural ODE that untangles two spirals, trained with gradients that keep little.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import continua as ct

matplotlib.use("Agg")
import matplotlib.pyplot as plt

INK, BLUE, ORANGE, GREEN, GREY = "#22252a", "#2a6fbb", "#d9772b", "#3b8c5a", "#a5acb5"

# --- (a) adaptive steps -----------------------------------------------------------------------------------------------

MU, LONG = 20.0, 80.0


def van_der_pol(z: float, x: Tensor, mu: Tensor) -> Tensor:
    """x'' = μ (1 − x²) x' − x: slow along two branches, then a jump."""
    position, speed = x
    return torch.stack([speed, mu * (1 - position**2) * speed - position])


def oscillator() -> ct.flow.Trajectory:
    """Solve once; the path can be asked anywhere."""
    start = torch.tensor([2.0, 0.0], dtype=torch.float64)
    control = ct.Adaptive(rtol=1e-6, atol=1e-8, max_steps=20_000)
    mu = torch.tensor(MU, dtype=torch.float64)
    path = ct.solve(van_der_pol, start, (0.0, LONG), args=mu, control=control, save=ct.SaveAt(dense=True))
    seen = path.stats
    print(
        f"(a) van der Pol, μ = {MU:g}: {seen['accepted']} steps accepted, {seen['rejected']} rejected, "
        f"{seen['evaluations']} evaluations"
    )
    return path


# --- (b) splitting and energy -----------------------------------------------------------------------------------------


def drift(z: float, x: Tensor, args: Any) -> Tensor:
    """Positions move with the momenta."""
    return torch.cat([x[2:], torch.zeros_like(x[2:])])


def kick(z: float, x: Tensor, args: Any) -> Tensor:
    """Momenta move with the force −∇V, V = (x² + y²)/2 + x²y − y³/3."""
    a, b = x[:2]
    return torch.cat([torch.zeros_like(x[:2]), torch.stack([-a - 2 * a * b, -b - a**2 + b**2])])


def energy(x: Tensor) -> Tensor:
    """Of many states [n, 4]."""
    a, b, p, q = x.T
    return (p**2 + q**2 + a**2 + b**2) / 2 + a**2 * b - b**3 / 3


def star(far: float = 1200.0, steps: int = 2400) -> dict[str, tuple[Tensor, Tensor]]:
    """The same step for both. Each half of the field is solved exactly by one Euler step, so Strang is leapfrog."""
    field = ct.Flow(drift) + ct.Flow(kick)
    start = torch.tensor([0.0, 0.1, 0.49, 0.0], dtype=torch.float64)
    found = {}
    for name, solver in {"RK4": ct.RK4(), "Strang": ct.Strang(ct.Euler())}.items():
        path = ct.solve(
            field, start, (0.0, far), args=(None, None), solver=solver, control=ct.Fixed(steps), save=ct.SaveAt(every=4)
        )
        off = energy(torch.stack(path.x)) / energy(start[None]) - 1
        found[name] = (torch.tensor(path.z), off)
        print(f"(b) Hénon–Heiles, {name:6}: energy off by {abs(off[-1]):.1e} at the end, {off.abs().max():.1e} at most")
    return found


# --- (c) a neural ODE -------------------------------------------------------------------------------------------------


def spirals(count: int = 200) -> tuple[Tensor, Tensor]:
    """Two arms that wind around each other."""
    turn = torch.linspace(0.15, 1.0, count) * 3 * math.pi
    arm = torch.stack([turn.cos(), turn.sin()], 1) * turn[:, None] / (3 * math.pi)
    noise = 0.02 * torch.randn(2 * count, 2, generator=torch.Generator().manual_seed(0))
    return torch.cat([arm, -arm]) + noise, torch.arange(2).repeat_interleave(count)


def network(z: float, x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """dx/dz = W2 tanh(W1 x + b + z c): all that is learned comes in through the arguments."""
    return torch.tanh(x @ w["inner"] + w["shift"] + z * w["time"]) @ w["outer"]


def weights(width: int = 4, hidden: int = 64) -> dict[str, Tensor]:
    """Two more dimensions than the data have, so that arms can be lifted apart."""
    g = torch.Generator().manual_seed(1)
    shapes = {
        "inner": (width, hidden),
        "shift": (hidden,),
        "time": (hidden,),
        "outer": (hidden, width),
        "read": (width, 2),
    }
    scale = {"inner": 1.5, "shift": 1.0, "time": 1.0, "outer": 0.3, "read": 0.5}
    return {k: (scale[k] * torch.randn(*s, generator=g)).requires_grad_() for k, s in shapes.items()}


def moved(
    x: Tensor, w: dict[str, Tensor], solver: Any, adjoint: Any, steps: int = 12, **more: Any
) -> ct.flow.Trajectory:
    """The flow of the points, from z = 0 to 1."""
    start = torch.cat([x, torch.zeros_like(x)], 1)
    return ct.solve(network, start, (0.0, 1.0), args=w, solver=solver, control=ct.Fixed(steps), adjoint=adjoint, **more)


ADJOINTS = {
    "Direct": (ct.RK4(), ct.Direct()),
    "Checkpoint(8)": (ct.RK4(), ct.Checkpoint(8)),
    "Reversible": (ct.ReversibleSolver(ct.RK4()), ct.Reversible(drift=1e-3)),
}


def bytes_taken(x: Tensor, w: dict[str, Tensor], solver: Any, adjoint: Any, steps: int) -> int:
    """The most bytes alive at once in one forward and backward pass."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        moved(x, w, solver, adjoint, steps).final.sum().backward()
    alive = most = 0
    for event in sorted(record.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    return most


def trained(rounds: int = 250) -> tuple[Tensor, Tensor, dict[str, Tensor], float]:
    """Classify the end of each path by a line; gradients by undoing the steps."""
    x, label = spirals()
    w = weights()
    optimiser = torch.optim.Adam(w.values(), lr=0.01)
    right = 0.0
    for i in range(rounds):
        answer = moved(x, w, *ADJOINTS["Reversible"], steps=6).final @ w["read"]
        loss = torch.nn.functional.cross_entropy(answer, label)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        right = (answer.argmax(1) == label).double().mean().item()
        if i % 50 == 0 or i + 1 == rounds:
            print(f"(c) round {i:3}: loss {loss.item():.3f}, {right:.1%} right")
    return x, label, w, right


def memory(x: Tensor, w: dict[str, Tensor]) -> tuple[list[int], dict[str, list[float]]]:
    """Bytes over the number of steps, for three ways to get the same gradients."""
    counts = [8, 16, 32, 64, 128]
    found = {name: [bytes_taken(x, w, *way, n) / 1e6 for n in counts] for name, way in ADJOINTS.items()}
    for name, sizes in found.items():
        print(f"(c) {name:13}: {sizes[0]:5.1f} MB for {counts[0]} steps, {sizes[-1]:5.1f} MB for {counts[-1]}")
    return counts, found


# --- the picture ------------------------------------------------------------------------------------------------------


def tidy(ax: Any, title: str, x: str, y: str) -> None:
    """A title that says what is seen, and no box."""
    ax.set_title(title, loc="left", fontsize=10.5, color=INK, pad=8)
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=9)
    ax.tick_params(labelsize=8, colors=INK)
    ax.spines[["top", "right"]].set_visible(False)


def draw_oscillator(above: Any, below: Any, path: ct.flow.Trajectory) -> None:
    z = torch.linspace(0.0, LONG, 4000, dtype=torch.float64)
    above.plot(z, [path(float(one))[0].item() for one in z], color=BLUE, lw=1.4)
    starts = [piece.z for piece in path.pieces]
    some = path.pieces[::12]
    above.plot([piece.z for piece in some], [piece.x[0].item() for piece in some], "o", color=ORANGE, ms=3.5)
    tidy(above, "Van der Pol, μ = 20: dense output, and every twelfth accepted step", "", "x")
    below.semilogy(starts, [piece.dz for piece in path.pieces], ".", color=ORANGE, ms=2.5)
    tidy(below, "The steps shrink at every jump", "z", "step dz")


def draw_energy(ax: Any, found: dict[str, tuple[Tensor, Tensor]]) -> None:
    for (name, (z, off)), colour in zip(found.items(), (ORANGE, BLUE), strict=True):
        ax.semilogy(z[1:], off[1:].abs().clamp_min(1e-9), color=colour, lw=0.7)
        ax.text(z[-1] * 1.015, off[-200:].abs().median(), name, color=colour, fontsize=9, va="center")
    ax.set_ylim(1e-4, 1.0)
    ax.set_xlim(0, 1200)
    tidy(ax, "Hénon–Heiles, dz = 0.5: Strang's energy error stays, RK4's grows", "z", "|E/E₀ − 1|")


def draw_spirals(left: Any, right: Any, x: Tensor, label: Tensor, w: dict[str, Tensor]) -> None:
    """The points and the answer everywhere; then where the flow takes the points."""
    line = torch.linspace(-1.15, 1.15, 120)
    plane = torch.cartesian_prod(line, line)
    with torch.no_grad():
        side = (moved(plane, w, *ADJOINTS["Reversible"], steps=6).final @ w["read"]).softmax(1)[:, 1].view(120, 120)
        ends = moved(x, w, *ADJOINTS["Reversible"], steps=6).final
    left.contourf(line, line, side.T, levels=[0.0, 0.5, 1.0], colors=[BLUE, ORANGE], alpha=0.16)
    across = w["read"][:, 1].detach() - w["read"][:, 0].detach()
    across = across / across.norm()
    rest = ends - (ends @ across)[:, None] * across
    along = torch.linalg.svd(rest - rest.mean(0), full_matrices=False).Vh[0]
    for one, colour in ((0, BLUE), (1, ORANGE)):
        left.plot(*x[label == one].T, ".", color=colour, ms=4)
        right.plot(ends[label == one] @ across, ends[label == one] @ along, ".", color=colour, ms=4)
    right.axvline(0.0, color=GREY, lw=1)
    left.set_aspect("equal")
    tidy(left, "Two spirals, and the trained answer", "x₁", "x₂")
    tidy(right, "The same points at z = 1: a line parts them", "across the line", "along it")


def draw_memory(ax: Any, counts: list[int], found: dict[str, list[float]]) -> None:
    for (name, sizes), colour in zip(found.items(), (GREY, GREEN, BLUE), strict=True):
        ax.loglog(counts, sizes, "o-", color=colour, ms=4, lw=1.4)
        ax.text(counts[-1] * 1.12, sizes[-1], name, color=colour, fontsize=9, va="center")
    ax.set_xticks(counts, [str(n) for n in counts])
    ax.minorticks_off()
    ax.set_xlim(counts[0] * 0.9, counts[-1] * 1.1)
    tidy(ax, "Peak bytes of one forward and backward pass", "steps", "MB")


def main() -> None:
    """Compute, print, draw, and hold the page to what it says."""
    parser = argparse.ArgumentParser(description="ct.solve as an ODE library of its own")
    parser.add_argument("--out", type=Path, default=Path("runs/ode.png"))
    out = parser.parse_args().out
    torch.set_num_threads(1)
    began = time.perf_counter()
    path, energies = oscillator(), star()
    x, label, w, right = trained()
    counts, sizes = memory(x, w)

    figure = plt.figure(figsize=(12.5, 9), layout="constrained")
    grid = figure.add_gridspec(3, 6, height_ratios=[1, 0.62, 1.5])
    draw_oscillator(figure.add_subplot(grid[0, :3]), figure.add_subplot(grid[1, :3]), path)
    draw_energy(figure.add_subplot(grid[:2, 3:]), energies)
    draw_spirals(figure.add_subplot(grid[2, :2]), figure.add_subplot(grid[2, 2:4]), x, label, w)
    draw_memory(figure.add_subplot(grid[2, 4:]), counts, sizes)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)
    print(f"saved {out} after {time.perf_counter() - began:.0f} s")

    assert path.status == "done"
    off = {name: error.abs() for name, (_, error) in energies.items()}
    assert off["RK4"][-100:].mean() > 3 * off["RK4"][:100].mean(), "the error of RK4 grows"
    assert off["Strang"][-300:].max() < 2 * off["Strang"][:300].max(), "that of Strang does not"
    assert right > 0.97
    assert sizes["Reversible"][-1] < 1.1 * sizes["Reversible"][0], "undoing takes no memory"
    assert sizes["Checkpoint(8)"][-1] < 0.3 * sizes["Direct"][-1]


if __name__ == "__main__":
    main()
