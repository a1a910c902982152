"""The feed-forward functional and the plain integral operator: maps that act at each time alone."""

from dataclasses import dataclass

from continua.axes import Grids
from continua.config import register
from continua.fields import Parametrisation, Role, Use, kernel
from continua.fields.role import SHIFT
from continua.flow.vectorfield import Bound
from continua.operators.activation import GELU, Activation, Identity
from continua.operators.calibration import Target, calibration, extra, folded
from continua.operators.correction import Map, corrected, corrected_by, correction
from continua.operators.gated import gated
from continua.operators.linear import linear, linears
from continua.operators.operator import Context, Note, Operands, Operator, local, read_late
from continua.operators.refit import keys_of, refit, source_of
from continua.operators.stored import StoredReads
from continua.operators.weights import Sampled, Weight, Weights, sample
from continua.typing import Args, Tensor

OUTPUT = Role(Use.KERNEL, inputs="m", is_output=True)  # of W2
INTO_HIDDEN = {"w1": -2, "gate": -2, "b1": -1}  # where weights have the hidden nodes
HIDDEN = {**INTO_HIDDEN, "w2": -1}


@register
class Integral(Operator):
    """(Kx)(t, d) = ∫ K(z, d, c) x(t, c) dμ(c) + b(z, d).

    Discrete case: on ``Points(n)`` this is ``nn.Linear(n, n)``.
    """

    def __init__(self, weights: Parametrisation, bias: bool = True, gain: float = 1.0) -> None:
        super().__init__()
        self.kernel = kernel(weights, "zdc", inputs="c", gain=gain)
        self.bias = weights.field("zd", role=SHIFT) if bias else None

    def read(self, grids: Grids, late: bool = False) -> Sampled:
        """Kernel and bias."""
        return sample(grids, {"kernel": Weight(self.kernel, over="c"), "bias": Weight(self.bias)}, late)

    def place(self, read: Sampled, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """One matrix product."""
        return Bound(_integrate, read_late(read.reading), local), Operands(read.weights)


def _integrate(z: float, x: Tensor, args: Operands) -> Tensor:
    w = args.weights.at(z)
    return linear(x, w["kernel"], w.get("bias"))


@register
class Apply(Operator):
    """x ↦ φ(x): a nonlinearity on its own."""

    def __init__(self, phi: Activation) -> None:
        super().__init__()
        self.phi = phi

    def place(self, read: None, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Nothing to read."""
        phi = self.phi
        return Bound(lambda z, x, args: phi(x), local=lambda z, args: args), None


@dataclass(frozen=True)
class FeedForward:
    """φ2(W2 φ1(W1 x + b1) [· Gx] + b2) with the weights of one depth."""

    phi1: Activation
    phi2: Activation
    gated: bool
    note: Note | None = None

    def __call__(self, z: float, x: Tensor, args: Operands) -> Tensor:
        """Evaluate the two maps with the nonlinearities between them."""
        w = args.weights.at(z)
        if self.note is not None:
            self.note(z, "d", x)
        if self.gated:
            before, gate = linears(x, (w["w1"], w.get("b1")), (w["gate"], None))  # [b, t, m]
            hidden = gated(self.phi1, before, gate)
        else:
            hidden = self.phi1(linear(x, w["w1"], w.get("b1")))  # [b, t, m]
        if self.note is not None:
            self.note(z, "m", hidden)
        return self.phi2(linear(hidden, w["w2"], w.get("b2")))  # [b, t, d]


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
        self.calibration = calibration(weights, {"w2": Target(OUTPUT, "dm", integral="d", own="m", shift="b2")})
        self.refit = refit(weights, "m", rank="m", centred=bias)
        self.state_refit = refit(weights, "c", rank="d", centred=bias and not gated)
        maps = {"w1": Map("m", "c"), "gate": Map("m", "c"), "w2": Map("d", "m")}
        own = maps if gated else {name: maps[name] for name in ("w1", "w2")}
        self.correction = correction(weights, own, {"b1": "m", "b2": "d"} if bias else {})
        self.w1 = kernel(weights, "zmc", inputs="c")
        self.gate = kernel(weights, "zmc", inputs="c") if gated else None
        self.w2 = kernel(weights, "zdm", inputs="m", gain=gain, is_output=True)
        self.b1 = weights.field("zm", role=SHIFT) if bias else None
        self.b2 = weights.field("zd", role=SHIFT) if bias else None
        self._stored = StoredReads()

    def read(self, grids: Grids, late: bool = False) -> Sampled:
        """Both kernels with their quadrature weights folded in, and the biases."""
        if grids.hidden is None or grids.z is None:
            stored = self._stored.recall(self, grids)
            return self._read(grids, late) if stored is None else stored
        layers: dict[float, dict[str, Tensor]] = {}
        for own in grids.by_hidden_width():
            weights = self._read(own, late=False).weights
            layers |= {z: {**weights.fixed, **weights.depth.get(z, {})} for z in own.z.nodes}  # type: ignore[union-attr]
        return Sampled(Weights({}, layers))

    def _read(self, grids: Grids, late: bool) -> Sampled:
        fewer = keys_of(self.refit, grids)
        narrow = keys_of(self.state_refit, grids)
        moved = self.refit is not None and self.refit.arranges(grids)
        nodes = "m" if moved else ""  # all of them: they are taken below, in the order of each layer
        over = "c" if narrow is None else ""
        stored = nodes if narrow is None else f"c{nodes}"
        weights = {
            "w1": Weight(self.w1, over=over, stored=stored, moved=moved),
            **({} if self.gate is None else {"gate": Weight(self.gate, over=over, stored=stored, moved=moved)}),
            "w2": Weight(self.w2, "m", None, nodes, moved) if fewer is None else Weight(self.w2, stored="m"),
            "b1": Weight(self.b1, stored=nodes),
            "b2": Weight(self.b2),
            **extra(self.calibration, grids, late),
            **corrected_by(self.correction, grids),
        }

        def finish(values: dict[str, Tensor], depths: tuple[float, ...] | None) -> dict[str, Tensor]:
            if self.refit is not None:
                dims = HIDDEN if fewer is None else INTO_HIDDEN
                values = self.refit.arranged(values, dims, grids, depths, self._modules)
                values = self.refit.fold(values, ("w2", "b2"), fewer, depths, source_of(self.w2, grids))
            if self.state_refit is not None:
                values = self.state_refit.fold(values, ("w1", "b1"), narrow, depths, source_of(self.w1, grids))
                values = self.state_refit.fold(values, ("gate", ""), narrow, depths, source_of(self.gate, grids))
            values = corrected(self.correction, values, grids)
            return folded(self.calibration, values, grids, depths)

        made = sample(grids, weights, late, finish)
        folded_in = (self.calibration, self.refit, self.state_refit, self.correction)
        plain = grids.hidden is None and all(part is None for part in folded_in)
        return self._stored.learn(self, grids, weights, made) if plain else made

    def place(self, read: Sampled, grids: Grids, context: Context) -> tuple[Bound, Args]:
        """Two maps with the nonlinearities between them."""
        f = FeedForward(self.phi1, self.phi2, self.gate is not None, context.noting(self, grids.t))
        return Bound(f, read_late(read.reading), local), Operands(read.weights)
