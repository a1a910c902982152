"""How tokens pull at one another: softmax, unnormalised, doubly stochastic and hardmax attention on the sphere."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from continua.errors import ConfigError, ShapeError
from continua.geometry import tangent
from continua.lab.particles.sums import SHARPEST, Query, Sums, by_rows, chosen, log_weights
from continua.settings import Range, checked
from continua.typing import Float, Tensor

SINKHORN_STEPS = 2000
SINKHORN_CLOSE = 1e-14
SINKHORN_NEAR = 2e-13
TIE = 1e-9  # scores this close to the greatest share the attention of hardmax
Matrices = Float[Tensor, "... _ _"]


@checked
@dataclass(frozen=True, eq=False)
class Interaction:
    """x_i' = P_{x_i} [ Σ_h Σ_j A^h_ij V_h x_j + F(x_i) ], A from the scores β⟨Q_h x_i, K_h x_j⟩; P_x v = v − ⟨x, v⟩ x.

    ``q``, ``k`` are [e, d] or [heads, e, d], ``v`` is [d, d] or [heads, d, d]; None is the identity. Heads add up.
    ``causal`` tokens see themselves and earlier ones. ``feed`` is F, a map of each token alone. ``kappa`` adds noise
    √(2/κ) dW on the sphere. ``sums`` names one way to sum over all tokens; by itself the cheapest is taken, and all of
    them agree to round-off.
    """

    beta: Annotated[float, Range(remedy="Use a finite number, or Hardmax().")] = 1.0
    q: Matrices | None = None
    k: Matrices | None = None
    v: Matrices | None = None
    causal: bool = False
    feed: Callable[[Tensor], Tensor] | None = None
    kappa: Annotated[float, Range(low=1e-30, infinite=True, remedy="Leave it out for no noise.")] = math.inf
    sums: Sums | None = None

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        heads = {m.shape[0] for m in (self.q, self.k, self.v) if m is not None and m.ndim == 3}
        if len(heads) > 1:
            raise ShapeError("q, k and v have equally many heads", got=sorted(heads), remedy="Give each [heads, …, d].")

    @property
    def matrices(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Q, K and V: what a solve differentiates through."""
        return self.q, self.k, self.v

    @property
    def besides(self) -> list[str]:
        """Which of q, k, v and feed are given, by name: the theory knows Q = K = V = I and F = 0."""
        given = {"q": self.q, "k": self.k, "v": self.v, "feed": self.feed}
        return [name for name, part in given.items() if part is not None]

    def velocity(self, x: Float[Tensor, "*b n d"], weights: Float[Tensor, "*b n"] | None = None) -> Tensor:
        """x', tangent to the sphere."""
        return tangent(x, self.drift(x, weights))

    def drift(
        self,
        x: Float[Tensor, "*b n d"],
        weights: Float[Tensor, "*b n"] | None = None,
        matrices: tuple[Tensor | None, Tensor | None, Tensor | None] | None = None,
        unit: bool = True,
    ) -> Tensor:
        """What attention and the feed-forward map add, before it is made tangent; ``unit`` tokens lie on the sphere."""
        q, k, v = self.matrices if matrices is None else matrices
        for name, each in (("q", q), ("k", k), ("v", v)):
            if each is not None and each.shape[-1] != x.shape[-1]:
                got = f"{name} of shape {tuple(each.shape)} for tokens in dimension {x.shape[-1]}"
                raise ShapeError("matrices act on tokens", got=got, remedy=f"Give {name} a last dimension like theirs.")
        stacks = [m if m is None or m.ndim == 3 else m[None] for m in (q, k, v)]
        heads = max(1 if m is None else m.shape[0] for m in stacks)
        found = torch.zeros_like(x)
        for h in range(heads):
            qh, kh, vh = (None if m is None else m[h if m.shape[0] > 1 else 0].to(x) for m in stacks)
            seen = self._attend(self._query(x, weights, qh, kh, unit))
            found = found + (seen if vh is None else seen @ vh.mT)
        return found if self.feed is None else found + self.feed(x)

    def _query(self, x: Tensor, weights: Tensor | None, q: Tensor | None, k: Tensor | None, unit: bool) -> Query:
        if k is not None:
            q = k.mT if q is None else k.mT @ q  # y = Kᵀ Q x, so that ⟨y_i, x_j⟩ = ⟨Q x_i, K x_j⟩
        if q is None:
            norm = 1.0 if unit else None
            return Query(x, x, weights, self.beta, self.causal, norm, math.copysign(1.0, self.beta))
        norm, least = self._turn(q) if unit and not q.requires_grad else (None, -1.0)
        return Query(x @ q.mT, x, weights, self.beta, self.causal, norm, least)

    def _turn(self, score: Tensor) -> tuple[float | None, float]:
        """For scores of a scaled rotation: its scale, and the least (signed) cosine of a token with itself."""
        m = score.detach().double()
        scale = float(m.norm()) / math.sqrt(len(m))
        eye = torch.eye(len(m), dtype=m.dtype, device=m.device)
        if scale == 0 or float((m @ m.mT / scale**2 - eye).abs().max()) > 1e-12:
            return None, -1.0
        sign = math.copysign(1.0, self.beta)
        return scale, float(torch.linalg.eigvalsh(sign * (m + m.mT) / (2 * scale)).min())

    def _attend(self, asked: Query) -> Tensor:
        raise NotImplementedError

    def _way(self, asked: Query) -> Sums:
        if self.sums is None:
            return chosen(asked)
        if not self.sums.fits(asked):
            got = f"{type(self.sums).__name__} for tokens {tuple(asked.x.shape)} and β={self.beta:g}"
            remedy = "Leave sums out to have a way chosen, or use Dense()."
            raise ConfigError("this way to sum does not fit", got=got, remedy=remedy)
        return self.sums


@checked
@dataclass(frozen=True, eq=False)
class SelfAttention(Interaction):
    """SA: A_ij = w_j e^{β⟨Qx_i, Kx_j⟩} / Σ_k w_k e^{β⟨Qx_i, Kx_k⟩}, the softmax of Transformers."""

    name: ClassVar[str] = "SA"

    def _attend(self, asked: Query) -> Tensor:
        return self._way(asked).mean(asked)


@checked
@dataclass(frozen=True, eq=False)
class Unnormalised(Interaction):
    """USA: A_ij = w_j e^{β⟨Qx_i, Kx_j⟩}, 1/n instead of a normaliser of each row: n times the gradient of an energy."""

    name: ClassVar[str] = "USA"

    def _attend(self, asked: Query) -> Tensor:
        return self._way(asked).total(asked)


@checked
@dataclass(frozen=True, eq=False)
class Sinkhorn(Interaction):
    """A_ij = w_j e^{f_i + β⟨Qx_i, Kx_j⟩ + g_j} with rows and columns of mean one (Sander et al. 2022, Sinkformers)."""

    name: ClassVar[str] = "Sinkhorn"

    def _attend(self, asked: Query) -> Tensor:
        if asked.causal:
            remedy = "Use SelfAttention(causal=True)."
            raise ConfigError("causal attention is not doubly stochastic", got="Sinkhorn(causal=True)", remedy=remedy)
        _check_sharpness(asked)
        scores = asked.beta * (asked.y @ asked.x.mT)
        n = scores.shape[-1]
        known = log_weights(asked)
        logs = torch.full_like(scores[..., 0], -math.log(n)) if known is None else known
        g = balanced(scores, logs, symmetric=asked.y is asked.x)
        f = -torch.logsumexp(scores + (g + logs)[..., None, :], -1)
        return (scores + f[..., None] + (g + logs)[..., None, :]).exp() @ asked.x


@checked
@dataclass(frozen=True, eq=False)
class Hardmax(Interaction):
    """β → ∞: each token sees the mean of those with its greatest score ⟨Qx_i, Kx_j⟩ (the sign of β is kept)."""

    name: ClassVar[str] = "hardmax"

    def _attend(self, asked: Query) -> Tensor:
        def share(scores: Tensor) -> Tensor:
            best = scores >= scores.amax(-1, keepdim=True) - TIE  # tokens without weight have scores of −10³⁰
            seen = best.to(scores) * weights[..., None, :]
            return seen / seen.sum(-1, keepdim=True)

        weights = torch.ones_like(asked.x[..., 0]) if asked.weights is None else asked.weights
        plain = asked._replace(weights=(weights > 0).to(weights), beta=math.copysign(1.0, asked.beta))
        return by_rows(plain, share)


def balanced(scores: Tensor, logs: Tensor, symmetric: bool) -> Tensor:
    """g of the scaling e^{f_i + s_ij + g_j} whose rows and columns have the mean one.

    Symmetric scores have f = g, and the mean of f and its update contracts by a half or better.
    """
    f = torch.zeros_like(logs)
    g = torch.zeros_like(logs)
    before = math.inf
    for step in range(SINKHORN_STEPS):
        rows = -torch.logsumexp(scores + (g + logs)[..., None, :], -1)
        if symmetric:
            new = (g + rows) / 2
        else:
            f = rows if step == 0 else (f + rows) / 2  # damped: undamped scalings swing between two states
            columns = -torch.logsumexp(scores + (f + logs)[..., :, None], -2)
            new = columns if step == 0 else (g + columns) / 2
        moved = float((new - g).detach().abs().max())
        g = new
        if moved < SINKHORN_CLOSE or before <= moved < SINKHORN_NEAR:  # as close as it gets: round-off moves it
            break
        before = moved
    return g


def _check_sharpness(asked: Query) -> None:
    """Refuse scores whose round-off is larger than what a scaling may be off by."""
    most = abs(asked.beta) * float(asked.y.detach().norm(dim=-1).max())
    if not most <= SHARPEST:
        remedy = "Use a smaller beta, or Hardmax() for the limit of a large one."
        raise ConfigError(f"scalings are found for scores up to {SHARPEST:g}", got=f"β|y| = {most:.4g}", remedy=remedy)


INTERACTIONS = {each.name: each for each in (SelfAttention, Unnormalised, Sinkhorn, Hardmax)}

Named = str | Interaction | type[Interaction]  # what theory asks of an interaction is its kind


def name_of(interaction: Named) -> str:
    """``SA`` of ``"SA"``, of ``SelfAttention`` and of ``SelfAttention(9.0)``."""
    if isinstance(interaction, str):
        return interaction
    if isinstance(interaction, Interaction) or (isinstance(interaction, type) and issubclass(interaction, Interaction)):
        return interaction.name
    raise ConfigError("an interaction is one, its class or its name", got=interaction, remedy='Write "SA".')
