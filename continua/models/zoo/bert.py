"""BERT: an encoder of two-sided attention."""

from continua.fields import counted
from continua.models.build import discrete_axes, post_norm
from continua.models.embed import Tokens
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import GELU, Apply, Attention, Integral, LayerNorm, Learned, Pointwise
from continua.settings import NonNegative, Size, checked


@checked
def bert(
    vocab: Size = 30522,
    *,
    d: Size = 768,
    heads: Size = 12,
    depth: Size = 12,
    context: Size = 512,
    m: Size | None = None,
    eps: NonNegative = 1e-12,
    masked_lm: bool = False,
) -> Transformer:
    """BERT (Devlin et al. 2019): two-sided, post-norm, token types; ``masked_lm`` adds its prediction head."""
    axes, native = discrete_axes(d, heads, m or 4 * d, depth)
    weights = counted(axes, depth)
    fixed = weights.autonomous()
    block = post_norm((Attention(weights), Pointwise(weights, GELU())), lambda: LayerNorm(weights, eps))
    embed = Tokens(fixed, vocab, Learned(fixed, context), types=2, norm=LayerNorm(fixed, eps), pad=0)
    readout = None
    if masked_lm:
        transform = (Integral(fixed), Apply(GELU()), LayerNorm(fixed, eps))
        readout = Readout(fixed, vocab, before=transform, tied=True, bias=True)
    return Transformer(axes, native, embed, block, readout)
