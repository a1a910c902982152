"""Heads of encoders: words that were masked, classes of a text, classes of each token."""

from continua.errors import ConfigError
from continua.fields import Parametrisation
from continua.models.factored import Narrowed
from continua.models.readout import Readout
from continua.operators import Activation, Apply, Integral, LayerNorm, Tanh
from continua.settings import Size

ANSWER_SPAN = ("start", "end")  # labels of each token where a question is answered by a part of the text


def counted_and_named(labels: Size | tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """How many classes there are, and their names; a number alone leaves them unnamed.

    >>> counted_and_named(2), counted_and_named(("no", "yes"))
    ((2, ()), (2, ('no', 'yes')))
    """
    return (labels, ()) if isinstance(labels, int) else (len(labels), tuple(labels))


def encoder_head(
    weights: Parametrisation,
    vocab: int,
    *,
    phi: Activation,
    eps: float,
    masked_lm: bool,
    labels: Size | tuple[str, ...] | None,
    each: bool,
    pooled_by: Activation = Tanh(),  # noqa: B008  (frozen)
) -> Readout | None:
    """The readout of an encoder; None returns the states.

    Masked words: K, φ, norm, and the token table. A class of the whole text: ``pooled_by``(K x) at the first token,
    then a linear map. With ``each`` every token has a class, by a linear map alone.
    """
    if masked_lm and labels is not None:
        raise ConfigError("a model has one head", got="masked_lm and labels", remedy="Leave one of them out.")
    if masked_lm:
        transform = (Integral(weights), Apply(phi), LayerNorm(weights, eps))
        return Readout(weights, vocab, before=transform, tied=True, bias=True)
    if labels is None:
        return None
    count, names = counted_and_named(labels)
    before = () if each else (Integral(weights), Apply(pooled_by))
    return Readout(weights, count, before=before, bias=True, first=not each, labels=names)


def narrow_words(
    weights: Parametrisation, narrow: Parametrisation, vocab: int, width: int, *, phi: Activation, eps: float
) -> Narrowed:
    """Masked words of a table that is narrower than d: a map to its width, φ, norm, and the table."""
    transform = (Apply(phi), LayerNorm(narrow, eps))
    return Narrowed(weights, Readout(narrow, vocab, before=transform, tied=True, bias=True), width)
