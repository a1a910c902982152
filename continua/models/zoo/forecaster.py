"""A forecaster on continuous axes."""

from continua.axes import Axis, Discretisation, Times, at
from continua.fields import ByBasis
from continua.models.build import continuous_axes, pre_norm, smooth_bases
from continua.models.embed import Observations, Queries
from continua.models.encoder_decoder import EncoderDecoder
from continua.models.readout import Readout
from continua.models.transformer import Transformer
from continua.operators import Attention, LayerNorm, Operator, Parts, Pointwise, Sinusoidal
from continua.settings import Positive, Size, checked


@checked
def forecaster(
    channels: Size = 1,
    *,
    out: Size | None = None,
    at: Discretisation = at(d=64, h=4, z=2),  # noqa: B008  (frozen)
    self_attention: bool = False,
    base: Positive = 10000.0,
    t: Axis = Times(),  # noqa: B008  (frozen)
    d: Axis | None = None,
    h: Axis | None = None,
    e: Axis | None = None,
    m: Axis | None = None,
    z: Axis | None = None,
) -> EncoderDecoder:
    """A forecaster on continuous axes: values at the times of a history in, values at the times of a question out.

    ``Batch(times=asked, source=Batch(values, times=stamps, observed=flags))``. The history is integrated against
    Lebesgue measure, so its stamps may be irregular, with gaps, and as dense as one likes. Without
    ``self_attention`` the questions do not see each other. Wave lengths of time reach from 2π to 2π·base: choose a
    unit in which neighbouring stamps are about one apart. Axes that are not given are those of ``continuous_axes``.
    """
    named = {"t": t, "d": d, "h": h, "e": e, "m": m, "z": z}
    chosen, native = continuous_axes(at, **{letter: axis for letter, axis in named.items() if axis is not None})
    weights = ByBasis(chosen, smooth_bases(chosen, native, min(native.z.steps, 6)))
    fixed = weights.autonomous()

    def flow(*branches: Operator) -> Parts:
        return pre_norm((*branches, Pointwise(weights)), lambda: LayerNorm(weights))

    final = Readout(fixed, before=(LayerNorm(fixed),))
    history = Observations(fixed, channels, Sinusoidal(chosen, base))
    encoder = Transformer(chosen, native, history, flow(Attention(weights)), final)
    looks = ([Attention(weights)] if self_attention else []) + [Attention(weights, cross=True)]
    answer = Readout(fixed, channels if out is None else out, before=(LayerNorm(fixed),))
    asked = Queries(fixed, Sinusoidal(chosen, base))
    return EncoderDecoder(encoder, Transformer(chosen, native, asked, flow(*looks), answer))
