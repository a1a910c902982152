"""What instruments refuse, reviewed: every other instrument runs on every other model of the cases."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from continua.errors import ContinuaError

# these refuse nothing; those of them that are no causal model of words cannot write on
WHOLE = ("gpt2", "bert", "t5", "vit", "llama", "forecaster", "continuous words", "continuous series")

ENCODERS = ("bert, masked LM", "roberta, masked LM", "albert, masked LM")
OF_WORDS = ("density", "no biases, temperature one", "gated", "phi2", "skip", "dropout", "sinusoidal", "no norm")
STEPPED = ("parallel", "stepped by *", "after *", "before *")
FOUR_WAYS = ("kernel Monte Carlo", "kernel quasi-Monte-Carlo", "kernel quadrature", "kernel control variate")
NOT_IN_PAIRS = ("kernel positive features", "kernel Nyström", *FOUR_WAYS)
LINES = ("mask Window*", "mask Strided(stride=3.0*", "mask Neighbours*")
ON_MESHES = ("slices of a mesh", "gates of a mesh")
IN_TIME = (
    "forecaster",
    "forecaster, questions see each other",
    "continuous series",
    "series on an interval",
    "points of a plane",
    "functions on a circle",
    "functions on a square",
    *ON_MESHES,
    "convolution in time",
    "pooled",
    "spectral",
    "splines",
    "generated",
    "separable networks",
    "joint networks",
    "dropout, constant in depth",
)


@dataclass(frozen=True)
class Refusal:
    """``instrument`` refuses ``cases`` (names, or the start of names before ``*``) in a sentence that contains this."""

    instrument: str
    cases: tuple[str, ...]
    sentence: str

    def holds(self, instrument: str, case: str) -> bool:
        """Whether this is about a case."""
        named = (case.startswith(name[:-1]) if name.endswith("*") else case == name for name in self.cases)
        return instrument == self.instrument and any(named)


REFUSALS = [
    # outside training
    Refusal("generate", ("bert", "albert", "vit", "graph attention", "layer"), "reads and writes tokens"),
    Refusal("generate", (*ENCODERS, *OF_WORDS, *STEPPED, "position *", "kernel *", *LINES), "needs a causal model"),
    Refusal("generate", IN_TIME, "the stamps of tokens to come are unknown"),
    Refusal("at another width", ("layer",), "Match at(d=…)"),  # its states come from outside
    Refusal("attention maps", ("functions on a square", "convolution in time", *ON_MESHES), "no attention operator"),
    Refusal("attention maps", NOT_IN_PAIRS, "weights of single pairs"),
    Refusal("dynamics", ("memory alone",), "one with a memory bank"),
    Refusal("dynamics", ("graph attention", "additive scores"), "attention with Additive"),
    Refusal("dynamics", ("functions on a circle", "functions on a square"), "got Chain"),
    Refusal("dynamics", ("convolution in time",), "got Convolution"),
    Refusal("dynamics", ("gemma2", "gemma3"), "got RMSNorm"),
    Refusal("dynamics", ("gpt_j",), "got Beside"),
    Refusal("dynamics", ("mixtral",), "got Experts"),
    Refusal("dynamics", ON_MESHES[:1], "got Slices"),
    Refusal("dynamics", ON_MESHES[1:], "got Gates"),
    Refusal("dynamics", ("skip",), "got PreNorm"),
    Refusal("dynamics", ("parallel", "stepped by RK4", "stepped by Strang*"), "which are Lie–Trotter Euler steps"),
    Refusal("dynamics", ("stepped by LieTrotter(RK4)",), "which are Lie–Trotter Euler steps"),
    Refusal("dynamics", NOT_IN_PAIRS, "weights of single pairs"),
    *(
        Refusal(instrument, cases, sentence)
        for instrument in ("predict", "pareto")
        for cases, sentence in (
            (("convolution in time",), "got Convolution"),
            ((*NOT_IN_PAIRS, "kernel local", "kernel comb*"), "depends on the nodes"),
        )
    ),
    Refusal("initialise", ("separable networks", "joint networks"), "keep the network's own start"),
    # training
    Refusal("lesson at half of all", ("layer",), "Match at(d=…)"),
]


def refusal(instrument: str, case: str) -> Refusal | None:
    """The line about a case, where there is one."""
    return next((line for line in REFUSALS if line.holds(instrument, case)), None)


def runs_or_refuses(instrument: str, case: str, go: Callable[[], None]) -> None:
    """An instrument on a model runs, or refuses as the table says and with a remedy."""
    line = refusal(instrument, case)
    if line is None:
        go()
        return
    with pytest.raises(ContinuaError) as caught:
        go()
    message = str(caught.value)
    assert line.sentence in message
    assert re.search(r", got .+\. [A-Z].+[.?]$", message), f"no remedy: {message}"
