"""Small models of every family, made once in a process, and batches that they read."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from fuzzing.draw import Draw

WORDS = 11
SMALL = {"d": 8, "heads": 2, "depth": 2}


def _fixed(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    model = make()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # zero heads and zero gates would hide what goes wrong before them
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def _makers() -> dict[str, Callable[[], Any]]:
    import continua as ct
    from continua.models import Pixels

    size = ct.at(d=8, h=2, z=2)
    line = {"channels": 2, "at": size}
    return {
        "gpt2": lambda: ct.zoo.gpt2(vocab=WORDS, context=16, **SMALL),
        "bert": lambda: ct.zoo.bert(vocab=WORDS, context=16, masked_lm=True, **SMALL),
        "llama": lambda: ct.zoo.llama(vocab=WORDS, d=8, heads=4, depth=2, m=12, groups=2),
        "albert": lambda: ct.zoo.albert(WORDS, table_width=4, context=16, masked_lm=True, **SMALL),
        "t5": lambda: ct.zoo.t5(vocab=WORDS, e=4, **SMALL),
        "vit": lambda: ct.zoo.vit(Pixels(4, 4, channels=2, patch=(2, 2)), labels=3, **SMALL),
        "gat": lambda: ct.zoo.gat(channels=2, out=3, **SMALL),
        "words": lambda: ct.Transformer.continuous(vocab=WORDS, at=size, context=16),
        "times": lambda: ct.Transformer.continuous(t=ct.Times(), **line),
        "causal": lambda: ct.Transformer.continuous(t=ct.Times(), mask=ct.Causal(), **line),
        "line": lambda: ct.Transformer.continuous(t=ct.Interval(-1.0, 2.0), mask=ct.Causal(), **line),
        "open line": lambda: ct.Transformer.continuous(t=ct.Interval(-1.0, 2.0), **line),
        "ring": lambda: ct.Transformer.continuous(t=ct.Circle(3.0), **line),
        "square": lambda: ct.Transformer.continuous(t=ct.Product((ct.Interval(), ct.Interval())), **line),
        "forecaster": lambda: ct.zoo.forecaster(at=size),
        "modal": lambda: ct.zoo.cross_modal(vocab=WORDS, channels=2, context=16, observations=16, **SMALL),
        "series": lambda: ct.zoo.series_classifier(2, 3, **SMALL),
    }


WORD_MODELS = ("gpt2", "bert", "llama", "albert", "words")
CAUSAL_WORDS = ("gpt2", "llama", "words")
PAIRED = ("t5", "modal", "forecaster")
LINES = ("times", "causal", "line", "open line", "ring", "square")


@functools.lru_cache(maxsize=64)
def model_of(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a name; cases must not change it."""
    return _fixed(_makers()[name]).to(dtype)


def fresh(name: str) -> Any:
    """The same as an object of one's own."""
    return _fixed(_makers()[name])


def values_of(draw: Draw, name: str, b: int, n: int) -> torch.Tensor:
    """What a model reads at its tokens."""
    if name in WORD_MODELS or name in ("t5", "modal"):
        return draw.ids("values", WORDS, b, n)
    if name == "vit":
        return draw.numbers("values", b, 2, 4, 4)
    if name == "forecaster":
        return draw.numbers("values", b, n, 1)
    return draw.numbers("values", b, n, 2)
