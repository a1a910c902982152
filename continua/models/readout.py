"""Readouts: from the field X(Z, t, d) to an answer."""

from torch import nn
from torch.nn.functional import linear

from continua.config import register
from continua.errors import ConfigError
from continua.fields import Field, Parametrisation, Role, kernel_std
from continua.fields.role import HEAD, SHIFT
from continua.models.embed import apply_once, rows
from continua.operators import Grids, Operator
from continua.typing import Tensor


@register
class Readout(nn.Module):
    """y(t, v) = s ∫ R(v, d) N[X](t, d) dμ(d) + b(v), after the operators ``before`` (a final norm, BERT's transform).

    ``out=None`` returns the field itself; ``tied`` takes R from the token table; ``scale`` is s; ``pool`` averages
    over the tokens with their measure first: y(v) = ∫ … dμ(t) / mass(t); ``first`` answers at the first token alone.
    Discrete case: ``ln_f`` and ``lm_head``.
    """

    def __init__(
        self,
        weights: Parametrisation,
        out: int | None = None,
        before: tuple[Operator, ...] = (),
        tied: bool = False,
        bias: bool = False,
        pool: bool = False,
        scale: float = 1.0,
        first: bool = False,
    ) -> None:
        super().__init__()
        if (tied or bias) and out is None:
            raise ConfigError("a head needs to know its size", got="out=None", remedy="Give out=the vocabulary size.")
        self.out, self.tied, self.pool, self.scale, self.first = out, tied, pool, scale, first
        self.before = nn.ModuleList(before)
        self.head = weights.table(out, "d", kernel_std(weights, "d"), HEAD) if out is not None and not tied else None
        self.bias = nn.Parameter(_zeros(out)) if bias and out is not None else None

    def parameter_roles(self) -> dict[str, Role | None]:
        """The bias is a plain parameter."""
        return {} if self.bias is None else {"bias": SHIFT}

    def forward(self, x: Tensor, grids: Grids, table: Field | None) -> Tensor:
        """Return the answer; absent tokens answer zero and enter no average."""
        t, d = grids["t"], grids["d"]
        for operator in self.before:
            x = apply_once(operator, grids, x)  # type: ignore[arg-type]
        if self.pool:
            weights = t.weights.to(x)
            x = (weights[..., None] * x).sum(-2) / weights.sum(-1)[..., None]
        elif self.first:
            x = x[:, 0]
        x = x if self.scale == 1.0 else x * self.scale
        head = table if self.tied else self.head
        if self.out is not None and head is not None:
            kernel = head.on(n=rows(self.out), d=d)
            x = linear(x if d.is_unit else x * d.weights.to(x), kernel, self.bias)
        if t.has_gaps and not (self.pool or self.first):
            x = x.masked_fill(~t.observed[..., None], 0.0)
        return x


def _zeros(count: int) -> Tensor:
    import torch

    return torch.zeros(count)
