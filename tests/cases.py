"""The cases that every law runs over. A new rule, basis, solver, mask, kernel, norm or model is one line here.

``test_cases.py`` complains when a registered class of the library is in none of these lists.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from continua import axes as ax
from continua import fields as fd
from continua import flow as fl
from continua import operators as op
from continua.axes import Circle, Counting, Interval, Points, Times
from continua.fields import ByNetwork, Nodal, Parametrisation
from continua.models import (
    Batch,
    Greedy,
    Sample,
    Transformer,
    zoo,
)
from continua.models.build import post_norm
from continua.models.init import GPT2Init, Scaled, Xavier
from continua.models.zoo import function_map
from continua.operators import Attention, Causal, Drop, LayerNorm, Pointwise, Skip, Softmax
from tests.cases_models import (
    CHANNELS,
    LINE,
    PIXELS,
    RING,
    SIZES,
    SMALL,
    SMOOTH,
    SQUARE,
    STEPS,
    WORDS,
    albert,
    asked,
    captioned,
    clip,
    convolved,
    described,
    discrete,
    encoder_decoder,
    equation,
    features,
    heard,
    image_stem,
    in_cells,
    layer,
    learned,
    local_stem,
    of_fields,
    on_mesh,
    on_ring,
    paired,
    patches,
    scattered,
    series,
    states,
    unnormed,
    with_bases,
    with_memory,
    words,
)
from tests.measure import random, stirred

# --- axes ------------------------------------------------------------------------------------------------------------

RULES = [ax.Midpoint, ax.Trapezoid, ax.LeftEnd, ax.GaussLegendre, ax.ClenshawCurtis, ax.Nested]
RANDOM_RULES = [ax.MonteCarlo, ax.Sobol, ax.Lattice]
OTHER_RULES = [ax.Profile, ax.Counting, ax.ProductRule]  # for points and boxes: tested by name
INTERVALS = [
    Interval(),
    Interval(-1.0, 2.0),
    Interval(0.0, 2.0, mass=7.0),
    Circle(),
    Circle(3.0),
    Circle(2.0, mass=5.0),
]

# --- fields ----------------------------------------------------------------------------------------------------------

INTERPOLATIONS = [fd.Hold(), fd.Linear(), fd.Cubic(), fd.Trigonometric()]

BASES: dict[str, tuple[ax.Axis, Callable[[], fd.Basis]]] = {
    "counted": (Points(7), lambda: Nodal(Counting(7))),
    "hold": (LINE, lambda: Nodal(ax.LeftEnd(7))),
    "hold on a circle": (RING, lambda: Nodal(ax.Trapezoid(7))),
    "linear": (LINE, lambda: Nodal(ax.GaussLegendre(7), fd.Linear())),
    "linear on a circle": (RING, lambda: Nodal(ax.Trapezoid(7), fd.Linear())),
    "cubic": (LINE, lambda: Nodal(ax.Midpoint(7), fd.Cubic())),
    "cubic on a circle": (RING, lambda: Nodal(ax.Midpoint(7), fd.Cubic())),
    "trigonometric": (RING, lambda: Nodal(ax.Trapezoid(7), fd.Trigonometric())),
    "trigonometric, even": (RING, lambda: Nodal(ax.Trapezoid(8), fd.Trigonometric())),
    "Fourier": (RING, lambda: fd.Fourier(7)),
    "cosine": (LINE, lambda: fd.Cosine(7)),
    "Legendre": (LINE, lambda: fd.Legendre(7)),
    "B-spline": (LINE, lambda: fd.BSpline(7)),
    "nested spline": (LINE, lambda: fd.NestedSpline(7)),
    "generated": (LINE, lambda: fd.Generated(5, hidden=16)),
}


ROLES = [fd.Role(fd.Use.KERNEL, inputs="he", is_output=True), fd.Role(fd.Use.TABLE), fd.Role(fd.Use.SHIFT)]


def expansion(name: str) -> fd.Expansion:
    """A field over depth and one axis with this basis."""
    axis, basis = BASES[name]
    return fd.Expansion({"z": LINE, "d": axis}, {"z": fd.Legendre(3), "d": basis()}, std=1.0)


FIELDS: dict[str, Callable[[], nn.Module]] = {
    **{name: lambda name=name: expansion(name) for name in BASES},
    "neural": lambda: fd.Neural({"z": LINE, "d": RING}, hidden=12),
    "separable": lambda: fd.Separable({"z": LINE, "d": RING}, rank=3, hidden=12),
    "separable, one axis": lambda: fd.Separable({"d": RING}, rank=3, hidden=12),
    "separable, three axes": lambda: fd.Separable({"z": LINE, "d": RING, "h": Points(4)}, rank=3, hidden=12),
}


def field(name: str) -> Any:
    """A field of this kind with every parameter at work."""
    torch.default_generator.manual_seed(0)
    return stirred(FIELDS[name]())


# --- flow ------------------------------------------------------------------------------------------------------------

SOLVERS = [fl.Euler(), fl.ExplicitMidpoint(), fl.Heun(), fl.Bosh3(), fl.Dopri5(), fl.Tsit5(), fl.RK4()]
SPLITTINGS = [fl.LieTrotter(), fl.LieTrotter(fl.RK4()), fl.Strang(), fl.Strang(fl.RK4())]

REVERSIBLE = [
    fl.ReversibleHeun(),
    fl.ReversibleSolver(),
    fl.ReversibleSolver(fl.Dopri5()),
    fl.ReversibleSolver(fl.Strang()),
]
ON_SPHERES = [fl.OnSphere(), fl.OnSphere(fl.Tsit5()), fl.OnSphere(fl.Strang(fl.RK4()))]
ALL_SOLVERS = [*SOLVERS, *SPLITTINGS, *REVERSIBLE, *ON_SPHERES]
ADAPTIVE = [fl.Adaptive(), fl.Adaptive(rtol=1e-6, atol=1e-8, per_sample=True)]
EXACT_ADJOINTS = [
    fl.Recompute(),
    fl.Lean(),
    fl.Checkpoint(1),
    fl.Checkpoint(3),
    fl.Checkpoint(0.4),
    fl.Checkpoint(8, recursive=True),
    fl.Mixed(3),
    fl.Reversible(),
]
INEXACT_ADJOINTS = [fl.Backsolve()]

# --- operators -------------------------------------------------------------------------------------------------------

ACTIVATIONS = [op.Identity(), op.ReLU(), op.GELU(), op.GELU(tanh=True), op.SiLU(), op.ELU(), op.Tanh(), op.QuickGELU()]
MASKS = [
    Causal(),
    op.Window(2.0),
    op.Strided(3.0),
    op.Strided(3.0, width=1.0),
    Causal() & op.Window(2.0),
    op.Strided(2.0) & op.Window(4.0) & Causal(),
    op.Neighbours((1, 2, 3, 0, 5), (0, 1, 2, 3, 4)),
]
BY_DEPTH = op.ByDepth((Causal() & op.Window(2.0), Causal()))
STRETCHES = [
    op.LinearStretch(2.0),
    op.DynamicStretch(2.0, 4.0),
    op.Llama3Stretch(4.0, 1.0, 4.0, 32.0),
    op.YarnStretch(4.0, 32.0, gain=1.1),
    op.LongStretch((1.0, 1.5), (2.0, 3.0), 4.0, gain=1.1),
]
KERNELS: dict[str, op.Kernel] = {
    "softmax": Softmax(temperature=0.7),
    "capped": op.Capped(1.5, 0.7),
    "additive": op.Additive(),
    "flat": op.Uniform(),
    "local": op.Local(2.0),
    "comb": op.Comb(3.0),
    "comb with wide teeth": op.Comb(3.0, width=1.0),
    "positive features": op.PositiveFeatures(64),
    "Nyström": op.Nystrom(ax.GaussLegendre(4)),
    "Monte Carlo": op.FewSources(ax.MonteCarlo(5, seed=1)),
    "quasi-Monte-Carlo": op.FewSources(ax.Sobol(4, seed=1), step=2),
    "quadrature": op.FewSources(ax.GaussLegendre(4)),
    "control variate": op.FewSources(ax.MonteCarlo(5, seed=1), control=3),
    "stationary": op.Stationary(),
}
POSITIONS: dict[str, Callable[[Parametrisation], op.Position]] = {
    "none": lambda w: op.Position(),
    "rotary": lambda w: op.Rotary(base=100.0),
    "ALiBi": lambda w: op.ALiBi(w.axes),
    "relative": lambda w: op.RelativeBias(w.autonomous(), buckets=8, reach=16.0),
    "Gaussian": lambda w: op.Gaussian(w.axes, near=2.0, far=8.0),
    "relative, causal": lambda w: op.RelativeBias(w.autonomous(), buckets=8, reach=16.0, causal=True),
}
POSITION_BY_DEPTH = op.PositionByDepth((op.Rotary(base=100.0), op.Position()), (1, 0))  # in a model: "gemma3"
FIELD_POSITIONS: dict[str, Callable[[Parametrisation], op.Position]] = {  # on continuous domains only
    "waves": lambda w: op.WaveBias(w, 3),
}
ENCODINGS: dict[str, Callable[[Parametrisation], op.Encoding]] = {
    "learned": learned,
    "sinusoidal": lambda w: op.Sinusoidal(w.axes),
}
NORMS: dict[str, Callable[[Parametrisation], op.Operator]] = {
    "LayerNorm": lambda w: LayerNorm(w),
    "LayerNorm, no weights": lambda w: LayerNorm(w, affine=False),
    "LayerNorm, no shift": lambda w: LayerNorm(w, bias=False),
    "RMSNorm": lambda w: op.RMSNorm(w),
    "RMSNorm, no weights": lambda w: op.RMSNorm(w, affine=False),
    "Constraint": lambda w: op.Constraint(w),
    "Constraint, not centred": lambda w: op.Constraint(w, centred=False),
    "SphereProjection": lambda w: op.SphereProjection(radius=1.5),
}

SCHEMES = [GPT2Init(), Scaled(), Xavier()]
SAMPLINGS = [Greedy(), Greedy(repetition_penalty=1.2), Sample(0.7, 40, 0.9, 1.1)]

# --- models, made in cases_models.py ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A model and something it can read."""

    build: Callable[[], Any]
    batch: Callable[[], Batch] = words

    def model(self) -> Any:
        """The model in float64 with every parameter at work."""
        torch.default_generator.manual_seed(0)
        return stirred(self.build())


def is_causal(model: nn.Module) -> bool:
    """Whether some attention of the model looks at the past only."""
    attentions = [part for part in model.modules() if isinstance(part, Attention)]
    return any(part.mask is not None and part.mask.is_causal for part in attentions)


MODELS: dict[str, Case] = {
    "gpt2": Case(lambda: zoo.gpt2(**SIZES)),
    "bert": Case(lambda: zoo.bert(**SIZES)),
    "bert, masked LM": Case(lambda: zoo.bert(**SIZES, masked_lm=True)),
    "roberta, masked LM": Case(lambda: zoo.roberta(**SIZES, masked_lm=True)),
    "albert": Case(albert),
    "albert, masked LM": Case(lambda: albert(masked_lm=True)),
    "vit": Case(lambda: zoo.vit(PIXELS, **SMALL), patches),
    "t5": Case(lambda: zoo.t5(WORDS, **SMALL, e=4), paired),
    "t5, v1.1": Case(lambda: zoo.t5(WORDS, **SMALL, e=4, style=zoo.T5_11), paired),
    "whisper": Case(lambda: zoo.whisper(WORDS, channels=3, **SMALL, frames=8, context=16), heard),
    "llama": Case(lambda: zoo.llama(WORDS, **SMALL, groups=1)),
    "llama, tied": Case(lambda: zoo.llama(WORDS, **SMALL, style=zoo.LlamaStyle(tied=True, bias=True))),
    "llama, every option": Case(
        lambda: zoo.llama(
            WORDS,
            **SMALL,
            style=zoo.LlamaStyle(
                bias=("q", "k", "v"), window=3, sliding=(True, False), head_norm=True, stretch=STRETCHES[3], share=0.5
            ),
        )
    ),
    "gemma2": Case(
        lambda: zoo.gemma2(WORDS, **SMALL, groups=1, e=4, style=zoo.Gemma2Style(window=3, score_cap=2.0, pad=None))
    ),
    "gemma3": Case(
        lambda: zoo.gemma3(
            WORDS,
            **SMALL,
            e=4,
            style=zoo.Gemma2Style(
                window=3, sliding=(True, False), local_base=50.0, head_norm=True, score_cap=None, stretch=STRETCHES[-1]
            ),
        )
    ),
    "mixtral": Case(lambda: zoo.mixtral(WORDS, **SMALL, groups=1, style=zoo.LlamaStyle(experts=zoo.Mixture(3, 2)))),
    "gpt_j": Case(lambda: zoo.gpt_j(WORDS, **SMALL, style=zoo.GPTJStyle(share=0.5))),
    "encoder-decoder": Case(encoder_decoder, paired),
    "memory": Case(lambda: with_memory(separate=False), paired),
    "memory of keys and values": Case(lambda: with_memory(separate=True), paired),
    "memory alone": Case(lambda: with_memory(separate=True, alone=True)),
    "graph attention": Case(lambda: zoo.gat(CHANNELS, d=8, heads=2, depth=STEPS, edges=MASKS[-1]), features),
    "additive scores": Case(lambda: discrete(kernel=op.Additive(), mask=Causal())),
    "forecaster": Case(lambda: zoo.forecaster(CHANNELS, at=SMOOTH), asked),
    "forecaster, questions see each other": Case(
        lambda: zoo.forecaster(CHANNELS, at=SMOOTH, self_attention=True), asked
    ),
    "cross-modal": Case(
        lambda: zoo.cross_modal(WORDS, CHANNELS, d=8, heads=2, depth=STEPS, context=16, observations=8, m=12), described
    ),
    "layer": Case(layer, states),
    "continuous words": Case(lambda: Transformer.continuous(vocab=WORDS, at=SMOOTH)),
    "continuous series": Case(
        lambda: Transformer.continuous(channels=CHANNELS, t=Times(), mask=Causal(), at=SMOOTH), series
    ),
    "series on an interval": Case(
        lambda: Transformer.continuous(channels=CHANNELS, t=Interval(0.0, 4.0), d=Interval(), at=SMOOTH), series
    ),
    "points of a plane": Case(lambda: Transformer.continuous(channels=CHANNELS, t=SQUARE, at=SMOOTH), scattered),
    "functions on a circle": Case(
        lambda: function_map(Circle(), 8, channels=CHANNELS, out=3, at=SMOOTH, modes=3), on_ring
    ),
    "functions on a square": Case(
        lambda: function_map(SQUARE, 4, channels=CHANNELS, out=3, at=SMOOTH, modes=2, attention=False), scattered
    ),
    "slices of a mesh": Case(
        lambda: zoo.mesh_map(SQUARE, channels=CHANNELS, out=3, at=SMOOTH, modes=2, tokens=3), on_mesh
    ),
    "gates of a mesh": Case(
        lambda: zoo.mesh_map(
            SQUARE, channels=CHANNELS, out=3, at=SMOOTH, modes=0, attention=zoo.LatentAttention.GATES, tokens=3
        ),
        on_mesh,
    ),
    "convolution in time": Case(convolved, series),
    "pooled": Case(lambda: of_fields(with_bases(), pool=True), series),
    "spectral": Case(
        lambda: of_fields(with_bases(d=fd.Fourier(5), m=fd.Fourier(5), h=fd.Cosine(2), z=fd.BSpline(3))), series
    ),
    "splines": Case(
        lambda: of_fields(with_bases(d=Nodal(ax.Midpoint(8), fd.Linear()), e=fd.BSpline(4), h=fd.Legendre(2)), d=LINE),
        series,
    ),
    "generated": Case(lambda: of_fields(with_bases(z=fd.Generated(2, hidden=8))), series),
    "separable networks": Case(lambda: of_fields(lambda axes, native: ByNetwork(axes, 8, separable=3)), series),
    "joint networks": Case(lambda: of_fields(lambda axes, native: ByNetwork(axes, 8, separable=None)), series),
    "density": Case(lambda: discrete(density=True)),
    "grouped heads": Case(lambda: discrete(groups=1, mask=Causal())),
    "grouped heads, ALiBi": Case(lambda: discrete(groups=1, mask=Causal(), position=POSITIONS["ALiBi"])),
    "no biases, temperature one": Case(lambda: discrete(bias=(), kernel=Softmax(temperature=1.0))),
    "gated": Case(lambda: discrete(branches=lambda w: (Attention(w), Pointwise(w, op.SiLU(), gated=True, bias=False)))),
    "phi2": Case(lambda: discrete(branches=lambda w: (Attention(w), Pointwise(w, op.ReLU(), op.Tanh())))),
    "skip": Case(lambda: discrete(branches=lambda w: (Skip(Attention(w), -0.5), Skip(Pointwise(w), 0.25)))),
    # at rest, as every law but those of dropout wants them
    "dropout": Case(lambda: discrete(branches=lambda w: (Drop(Attention(w), 0.3), Drop(Pointwise(w), 0.2))).eval()),
    "dropout, constant in depth": Case(lambda: of_fields(with_bases(), drop=0.3).eval(), series),
    "sinusoidal": Case(lambda: discrete(encoding=ENCODINGS["sinusoidal"])),
    "no norm": Case(lambda: discrete(place=unnormed)),
    "parallel": Case(lambda: discrete(solver=fl.Euler())),
    **{f"stepped by {s}": Case(lambda s=s: discrete(solver=s, place=post_norm)) for s in [SOLVERS[-1], *SPLITTINGS]},
    **{f"after {name}": Case(lambda name=name: discrete(norm=NORMS[name])) for name in list(NORMS)[1:5]},
    **{f"before {name}": Case(lambda name=name: discrete(norm=NORMS[name], place=post_norm)) for name in NORMS},
    **{f"position {name}": Case(lambda p=p: discrete(position=p)) for name, p in POSITIONS.items()},
    **{
        f"causal, position {name}": Case(lambda name=name: discrete(position=POSITIONS[name], mask=Causal()))
        for name in ("rotary", "ALiBi", "relative, causal")
    },
    **{  # the stationary kernel has no use for queries and keys, which the laws of gradients ask after
        f"kernel {name}": Case(lambda kernel=kernel: discrete(kernel=kernel))
        for name, kernel in KERNELS.items()
        if isinstance(kernel, op.Subquadratic) and kernel.is_dot
    },
    **{f"mask {mask}": Case(lambda mask=mask: discrete(mask=mask)) for mask in MASKS},
}


OTHER_MODELS: dict[str, Case] = {  # tested by name
    "cells": Case(in_cells, scattered),
    "evolution on a circle": Case(equation, on_ring),  # its width counts channels: there are no other sizes
    "conserving evolution on a circle": Case(lambda: equation(conserving=True), on_ring),
    "deit": Case(lambda: zoo.deit(PIXELS, **SMALL, labels=3), patches),
    "smollm3": Case(lambda: zoo.smollm3(WORDS, **SMALL, groups=1, style=zoo.LlamaStyle(turned=(True, False)))),
    "phi3": Case(lambda: zoo.phi3(WORDS, **SMALL, style=zoo.LlamaStyle(stretch=STRETCHES[-1], window=3, share=0.5))),
    "dinov2": Case(
        lambda: zoo.dinov2(PIXELS, d=8, heads=2, depth=STEPS, m=16, registers=2),
        lambda: Batch(PIXELS.cut(random(2, 2, 4, 6), first=3)),
    ),
    "clip": Case(clip, captioned),
    "qwen2_moe": Case(lambda: zoo.llama(WORDS, **SMALL, style=zoo.LlamaStyle(experts=zoo.Mixture(3, 2, shared=2)))),
    "modernbert": Case(lambda: zoo.modernbert(WORDS, **SMALL, masked_lm=True)),
    "image stem": Case(image_stem, lambda: Batch(random(2, 1, 6, 6))),
    "local stem": Case(lambda: local_stem(span=8), series),
    "marian": Case(lambda: zoo.bart(**SIZES, style=zoo.BartStyle(sines=True, normed=False)), paired),
    "mbart": Case(lambda: zoo.bart(**SIZES, style=zoo.BartStyle(pre=True)), paired),
    "falcon": Case(lambda: zoo.falcon(WORDS, **SMALL)),
    "falcon, two norms": Case(lambda: zoo.falcon(WORDS, **SMALL, style=zoo.FalconStyle(two_norms=True))),
}


@functools.cache
def made(name: str) -> tuple[Any, Batch, torch.Tensor]:
    """A model of the list, its batch and its answer; built once, so no test may change them."""
    model, batch = MODELS[name].model(), MODELS[name].batch()
    return model, batch, model(batch).detach()
