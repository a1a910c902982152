"""diffrax for ``depth.py``, in a process of its own: it answers one JSON line for each it reads, with its CPU time."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def attending(weights: Callable[[Any], dict[str, Any]], heads: int) -> Callable[[Any, Any, Any], Any]:
    """The same pre-norm attention and feed-forward in JAX: f(z, x, args)."""
    import jax
    import jax.numpy as jnp

    def norm(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift

    def f(z: Any, x: Any, args: Any) -> Any:
        w = weights(z)
        b, t, d = x.shape

        def split(name: str, y: Any) -> Any:
            return (y @ w[name].T + w["b" + name]).reshape(b, t, heads, -1).transpose(0, 2, 1, 3)

        y = norm(x, w["scale0"], w["shift0"])
        q, k, v = (split(name, y) for name in "qkv")
        scores = q @ k.transpose(0, 1, 3, 2) / (d // heads) ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
        mixed = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(b, t, d)
        attended = mixed @ w["o"].T + w["bo"]
        y = norm(x, w["scale1"], w["shift1"])
        hidden = jax.nn.gelu(y @ w["w1"].T + w["b1"], approximate=False)
        return attended + hidden @ w["w2"].T + w["b2"]

    return f


def legendre(size: int, z: Any) -> list[Any]:
    """√(2k+1) P_k(2z−1)."""
    x = 2 * z - 1
    p = [1.0 + 0 * x, x]
    for k in range(1, size - 1):
        p.append(((2 * k + 1) * x * p[k] - k * p[k - 1]) / (k + 1))
    return [(2 * k + 1) ** 0.5 * p[k] for k in range(size)]


class Server:
    """Fields of all sizes, and what was compiled for them."""

    def __init__(self, folder: Path) -> None:
        self.data = {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}
        self.made: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def field(self, size: str, frozen: bool) -> Callable[[Any, Any, Any], Any]:
        """Over depth, or with the weights of the middle everywhere."""
        import jax.numpy as jnp

        stored = self.data[size]
        series = {name: jnp.asarray(c) for name, c in stored.items() if name not in ("x", "end", "heads")}

        def weights(z: Any) -> dict[str, Any]:
            count = len(series["q"])
            values = jnp.stack([jnp.asarray(p, jnp.float32) for p in legendre(count, z)])
            return {name: jnp.tensordot(values, c, 1) for name, c in series.items()}

        middle = weights(0.5) if frozen else None
        return attending((lambda z: middle) if frozen else weights, int(stored["heads"]))

    def solve(self, size: str, method: str, frozen: bool, fixed: bool, count: bool = False) -> Any:
        """Compiled: (x, tolerances or first step) ↦ the end, and the number of evaluations if they are counted."""
        import diffrax
        import jax

        f, calls = self.field(size, frozen), [0]

        def counting(z: Any, x: Any, args: Any) -> Any:
            jax.debug.callback(lambda: calls.__setitem__(0, calls[0] + 1))
            return f(z, x, args)

        solver = kutta() if method == "RK4" else getattr(diffrax, method)()

        def run(x: Any, rtol: Any, atol: Any, first: Any) -> Any:
            control = diffrax.ConstantStepSize() if fixed else diffrax.PIDController(rtol=rtol, atol=atol)
            term = diffrax.ODETerm(counting if count else f)
            dt0 = first if fixed else None
            return diffrax.diffeqsolve(term, solver, 0.0, 1.0, dt0, x, stepsize_controller=control).ys[-1]

        return jax.jit(run), calls

    def bare(self, size: str, n: int) -> Any:
        """Compiled: n evaluations, each of what the one before returned, so that none can be left out."""
        import jax

        f = self.field(size, True)
        return jax.jit(lambda x: jax.lax.fori_loop(0, n, lambda i, y: f(0.5, y, None), x))

    def pair(self, size: str, method: str, n: int, numbers: list[float], flip: bool) -> dict[str, Any]:
        """CPU seconds of n bare evaluations and of a solve."""
        x = self.once((size, "x"), lambda: np.asarray(self.data[size]["x"]))
        fixed = numbers[2] > 0
        solve = self.once((size, method, True), lambda: self.solve(size, method, True, fixed)[0])
        bare = self.once((size, n), lambda: self.bare(size, n))
        jobs = [("bare", lambda: bare(x)), ("solve", lambda: solve(x, *numbers))]
        return {name: seconds(job) for name, job in (jobs[::-1] if flip else jobs)}

    def count(self, size: str, method: str, frozen: bool, numbers: list[float]) -> dict[str, Any]:
        """Evaluations of a solve, and its error."""
        fixed, key = numbers[2] > 0, (size, method, frozen, numbers[2] > 0, "count")
        solve, calls = self.once(key, lambda: self.solve(size, method, frozen, fixed, count=True))
        calls[0] = 0
        end = np.asarray(solve(np.asarray(self.data[size]["x"]), *numbers), dtype=np.float64)
        import jax

        jax.effects_barrier()
        truth = self.data[size]["end"]
        return {"evaluations": calls[0], "error": float(np.linalg.norm(end - truth) / np.linalg.norm(truth))}


def kutta() -> Any:
    """Kutta's classical method as a table: diffrax has none of order four without an estimate."""
    import diffrax

    class RK4(diffrax.AbstractERK):
        tableau = diffrax.ButcherTableau(
            a_lower=(np.array([0.5]), np.array([0.0, 0.5]), np.array([0.0, 0.0, 1.0])),
            b_sol=np.array([1 / 6, 1 / 3, 1 / 3, 1 / 6]),
            b_error=np.zeros(4),
            c=np.array([0.5, 0.5, 1.0]),
        )
        interpolation_cls = diffrax.ThirdOrderHermitePolynomialInterpolation.from_k

        def order(self, terms: Any) -> int:
            return 4

    return RK4()


def seconds(job: Callable[[], Any]) -> float:
    start = time.process_time()
    job().block_until_ready()
    return time.process_time() - start


def serve(folder: Path) -> None:
    """Answer until the other side closes the pipe. What libraries print goes to stderr."""
    out, sys.stdout = sys.stdout, sys.stderr
    server = Server(folder)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(server, request.pop("do"))(**request)
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
