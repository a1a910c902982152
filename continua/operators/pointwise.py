"""The feed-forward functional and the plain integral operator: maps that act at each time alone."""

from torch.nn.functional import linear

from continua.config import register
from continua.fields import Field, Parametrisation, kernel
from continua.operators.activation import GELU, Activation, Identity
from continua.operators.operator import Context, Grids, Operator, at_depth, by_depth, read, remembered
from continua.typing import Args, Tensor, VectorFunction


@register
class Integral(Operator):
    """(Kx)(t, d) = ∫ K(z, d, c) x(t, c) dμ(c) + b(z, d).

    Discrete case: on ``Points(n)`` this is ``nn.Linear(n, n)``.
    """

    def __init__(self, weights: Parametrisation, bias: bool = True, gain: float = 1.0) -> None:
        super().__init__()
        self.kernel = kernel(weights, "zdc", inputs="c", gain=gain)
        self.bias = weights.field("zd") if bias else None

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[VectorFunction, Args]:
        """Read kernel and bias."""

        def sampled() -> Args:
            kernel, bias = read(self.kernel, grids, over="c"), read(self.bias, grids)
            return by_depth(grids, {"kernel": (self.kernel, kernel), "bias": (self.bias, bias)})

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            w = at_depth(args, z)
            return linear(x, w["kernel"], w.get("bias"))

        return f, remembered(context, self, sampled)


@register
class Apply(Operator):
    """x ↦ φ(x): a nonlinearity on its own."""

    def __init__(self, phi: Activation) -> None:
        super().__init__()
        self.phi = phi

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[VectorFunction, Args]:
        """Nothing to read."""
        phi = self.phi
        return (lambda z, x, args: phi(x)), {}


@register
class Pointwise(Operator):
    """F[x](t, d) = φ2( ∫ W2(z,d,m) φ1( ∫ W1(z,m,c) x(t,c) dμ(c) + b1(z,m) ) dμ(m) + b2(z,d) ).

    ``gated`` multiplies φ1(·) by a second linear map of x before the outer integral (SwiGLU with φ1 = SiLU).
    Discrete case: on ``Points`` axes this is ``Linear → φ1 → Linear → φ2``, the feed-forward layer.
    """

    def __init__(
        self,
        weights: Parametrisation,
        phi1: Activation = GELU(),  # noqa: B008  (frozen and stateless)
        phi2: Activation = Identity(),  # noqa: B008
        gated: bool = False,
        bias: bool = True,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.phi1, self.phi2 = phi1, phi2
        self.w1 = kernel(weights, "zmc", inputs="c")
        self.gate = kernel(weights, "zmc", inputs="c") if gated else None
        self.w2 = kernel(weights, "zdm", inputs="m", gain=gain)
        self.b1 = weights.field("zm") if bias else None
        self.b2 = weights.field("zd") if bias else None

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[VectorFunction, Args]:
        """Return the two maps with the nonlinearities between them."""
        phi1, phi2, gated = self.phi1, self.phi2, self.gate is not None

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            w = at_depth(args, z)
            hidden = phi1(linear(x, w["w1"], w.get("b1")))
            if gated:
                hidden = hidden * linear(x, w["gate"])
            return phi2(linear(hidden, w["w2"], w.get("b2")))

        return f, remembered(context, self, lambda: by_depth(grids, self._sample(grids)))

    def _sample(self, grids: Grids) -> dict[str, tuple[Field | None, Tensor | None]]:
        """Read both kernels with their quadrature weights folded in."""
        return {
            "w1": (self.w1, read(self.w1, grids, over="c")),
            "gate": (self.gate, read(self.gate, grids, over="c")),
            "w2": (self.w2, read(self.w2, grids, over="m")),
            "b1": (self.b1, read(self.b1, grids)),
            "b2": (self.b2, read(self.b2, grids)),
        }
