"""The feed-forward functional and the plain integral operator: maps that act at each time alone."""

from collections.abc import Sequence

from continua.config import register
from continua.fields import Parametrisation, Role, Use, kernel
from continua.fields.role import SHIFT
from continua.flow.vectorfield import Bound
from continua.operators.activation import GELU, Activation, Identity
from continua.operators.calibration import Target, calibration, extra, folded
from continua.operators.linear import linear
from continua.operators.manual_backward import LeanPointwise
from continua.operators.operator import Context, Operator, weights_of
from continua.operators.weights import Grids, Weight, at_depth, local
from continua.typing import Args, Tensor

OUTPUT = Role(Use.KERNEL, inputs="m", is_output=True)  # of W2


@register
class Integral(Operator):
    """(Kx)(t, d) = ∫ K(z, d, c) x(t, c) dμ(c) + b(z, d).

    Discrete case: on ``Points(n)`` this is ``nn.Linear(n, n)``.
    """

    def __init__(self, weights: Parametrisation, bias: bool = True, gain: float = 1.0) -> None:
        super().__init__()
        self.kernel = kernel(weights, "zdc", inputs="c", gain=gain)
        self.bias = weights.field("zd", role=SHIFT) if bias else None

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Read kernel and bias."""
        weights = {"kernel": Weight(self.kernel, over="c"), "bias": Weight(self.bias)}
        args, reader = weights_of(self, grids, context, weights)

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            w = at_depth(args, z)
            return linear(x, w["kernel"], w.get("bias"))

        return Bound(f, reader, local), args


@register
class Apply(Operator):
    """x ↦ φ(x): a nonlinearity on its own."""

    def __init__(self, phi: Activation) -> None:
        super().__init__()
        self.phi = phi

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Nothing to read."""
        phi = self.phi
        return Bound(lambda z, x, args: phi(x), local=lambda z, args: args), {}


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
        self.calibration = calibration(weights, {"w2": Target(OUTPUT, "dm", integral="d")})
        self.w1 = kernel(weights, "zmc", inputs="c")
        self.gate = kernel(weights, "zmc", inputs="c") if gated else None
        self.w2 = kernel(weights, "zdm", inputs="m", gain=gain, is_output=True)
        self.b1 = weights.field("zm", role=SHIFT) if bias else None
        self.b2 = weights.field("zd", role=SHIFT) if bias else None

    def bind(self, grids: Grids, context: Context | None = None) -> tuple[Bound, Args]:
        """Return the two maps with the nonlinearities between them."""
        phi1, phi2, gated = self.phi1, self.phi2, self.gate is not None

        def f(z: float, x: Tensor, args: Args) -> Tensor:
            w = at_depth(args, z)
            hidden = phi1(linear(x, w["w1"], w.get("b1")))
            if gated:
                hidden = hidden * linear(x, w["gate"])
            return phi2(linear(hidden, w["w2"], w.get("b2")))

        # both kernels with their quadrature weights folded in
        weights = {
            "w1": Weight(self.w1, over="c"),
            "gate": Weight(self.gate, over="c"),
            "w2": Weight(self.w2, over="m"),
            "b1": Weight(self.b1),
            "b2": Weight(self.b2),
        }

        def finish(values: dict[str, Tensor], depths: Sequence[float] | None) -> dict[str, Tensor]:
            return folded(self.calibration, values, grids, depths)

        weights |= extra(self.calibration, grids)
        args, reader = weights_of(self, grids, context, weights, finish)
        lean = LeanPointwise(phi1, gated) if isinstance(phi2, Identity) else None
        return Bound(f, reader, local, lean), args
