"""What users call: zoo functions, continuous models, at, solve, generate, fit, estimators, conversions, the lab."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch

from fuzzing import oracles
from fuzzing.case import Case
from fuzzing.computing import attended, generated, solved
from fuzzing.draw import ODD, Draw, call, shown
from fuzzing.models import WORDS, model_of
from fuzzing.training import converted, estimated, trained

ZOO: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab": WORDS, "d": 8, "heads": 2, "depth": 2, "context": 16, "m": 12, "eps": 1e-5},
    "bert": {"vocab": WORDS, "d": 8, "heads": 2, "depth": 2, "context": 16, "m": 12, "eps": 1e-5, "masked_lm": True},
    "llama": {"vocab": WORDS, "d": 8, "heads": 4, "depth": 2, "m": 12, "groups": 2},
    "t5": {"vocab": WORDS, "d": 8, "heads": 2, "depth": 2, "decoder_depth": 1, "m": 12, "e": 4},
    "albert": {"table_width": 4, "d": 8, "heads": 2, "depth": 2, "context": 16, "masked_lm": True},
    "gat": {"channels": 2, "out": 3, "d": 8, "heads": 2, "depth": 2, "slope": 0.2},
    "cross_modal": {"vocab": WORDS, "channels": 2, "d": 8, "heads": 2, "depth": 2, "context": 16, "observations": 16},
    "forecaster": {"channels": 2, "out": 3, "self_attention": False, "base": 100.0},
    "series_classifier": {
        "features": 2,
        "classes": 3,
        "d": 8,
        "heads": 2,
        "depth": 1,
        "radii": (1.0, 2.0),
        "degree": 2,
        "stem": (2, 1),
    },
    "image_classifier": {"classes": 3, "channels": 1, "cells": 2, "degree": 1, "d": 8, "heads": 2, "depth": 1},
}


def api(draw: Draw) -> Case:
    """One call of the public interface."""
    ways = (_zoo, _zoo, _continuous, _continuous, _at, _at, _at, solved, solved, solved, attended, attended, generated,
            generated, _lab, _predict, trained, estimated, converted)  # fmt: skip
    return draw.pick("way", ways)(draw)


def _zoo(draw: Draw) -> Case:
    import continua as ct

    name = draw.pick("model", [*ZOO])
    inspect.signature(getattr(ct.zoo, name)).bind_partial(**ZOO[name])  # an older library names them otherwise
    given = {key: draw.spoil(key, value) for key, value in ZOO[name].items()}

    def build() -> Any:
        own = dict(given)
        if name == "albert":
            return ct.zoo.albert(WORDS, **own)
        if name == "forecaster":
            own["at"] = ct.at(d=8, h=2, z=1)
        return getattr(ct.zoo, name)(**own)

    def judge(model: Any) -> Iterable[str]:
        wanted = {"d": "d", "heads": "h", "m": "m"}
        native = getattr(model, "native", None)
        for key, letter in wanted.items():
            size = given.get(key)
            if native is not None and isinstance(size, int) and getattr(native, letter).n != size:
                yield f"size: {key}={size!r} gave {getattr(native, letter)}"
        if name in ("gpt2", "bert", "llama", "albert") and native is not None:
            with torch.no_grad():
                yield from oracles.finite(model.eval()(torch.zeros(1, 3, dtype=torch.long)))
        if any(parameter.isnan().any() for parameter in model.parameters()):
            yield "finite: fresh weights hold NaN"

    return Case(call(f"zoo.{name}", **given), build, judge)


def _continuous(draw: Draw) -> Case:
    import continua as ct

    words = draw.chance("words", 0.6)
    size = {"d": 8, "h": 2, "z": 2, "e": 4, "m": 12}
    size = {k: draw.spoil(k, v) for k, v in size.items() if k in "dhz" or draw.chance(k, 0.3)}
    given: dict[str, Any] = {"vocab": WORDS} if words else {"channels": 2}
    given = {key: draw.spoil(key, value) for key, value in given.items()}
    if draw.chance("gamma", 0.3):
        given["gamma"] = draw.spoil("gamma", 0.1)
    if draw.chance("context", 0.3) and words:
        given["context"] = draw.spoil("context", 16)
    axes = {"d": ct.Circle(), "h": ct.Interval(), "z": ct.Interval(0.0, 2.0), "m": ct.Points(12), "t": ct.Times()}
    for letter, axis in axes.items():
        if draw.chance(f"axis.{letter}", 0.15) and not (words and letter == "t"):
            given[letter] = draw.spoil(f"axis.{letter}", axis, (*ODD, ct.Times(), ct.Points(3), ct.Interval(mass=2.0)))
    if draw.spoils("mask"):
        given["mask"] = draw.note("mask", draw.pick("bad mask", ("causal", True, 3, ct.Causal(), ct.Window(1.0))))
    n = draw.pick("n", (1, 4, 6))

    def build() -> Any:
        model = ct.Transformer.continuous(**given, at=ct.at(**size))
        batch: Any = torch.zeros(2, n, dtype=torch.long)
        if not words:
            batch = ct.Batch(torch.zeros(2, n, 2), times=torch.arange(n) / n if "t" in given else None)
        with torch.no_grad():
            return model, model.eval()(batch)

    def judge(made: Any) -> Iterable[str]:
        yield from oracles.finite(made[1])
        if made[1].shape[:2] != (2, n):
            yield f"shape: {list(made[1].shape)} for [2, {n}]"

    return Case(f"Transformer.continuous({shown(given)}, at={call('at', **size)})", build, judge)


SIZES = {"d": (4, 6, 8, 10, 16), "h": (1, 2, 3), "z": (1, 2, 3, 5), "e": (2, 4, 5), "m": (6, 12, 20), "t": (4,)}


NODE = 4096  # bytes of all weights of such a model at one node of a width, and of what they are read with


def _at(draw: Draw) -> Case:
    """Another size of a model that is there: equal to its held view, inside its memory."""
    import continua as ct
    from continua import lab

    name = draw.pick("model", ("gpt2", "words", "words", "bert", "llama"))
    model = model_of(name)
    letters = [letter for letter in "dhzem" if draw.chance(letter, 0.4)] or ["d"]
    small = 4 if name != "words" else 16
    size = {
        k: draw.spoil(k, draw.pick(f"{k}/size", [n for n in SIZES[k] if n <= small or n == min(SIZES[k])]))
        for k in letters
    }
    if draw.spoils("rule"):
        rules = (
            ct.Midpoint(4),
            ct.Trapezoid(4),
            ct.axes.Nested(4),
            ct.axes.Nested(10**5),
            ct.Counting(8),
            ct.Fixed(2),
            ct.Samples(),
        )
        size[draw.pick("letter", "tdhemzxqs")] = draw.note("rule", draw.pick("which", rules))
    if draw.chance("adaptive", 0.1):
        size["z"] = ct.Adaptive(ct.Tsit5(), rtol=1e-2)
    n = draw.pick("n", (1, 4, 9))
    ids = draw.ids("ids", WORDS, draw.pick("b", (1, 2)), n)
    kept = {key: value.clone() for key, value in model.state_dict().items()}

    def build() -> Any:
        view = model.at(**size)
        with torch.no_grad():
            return view, view(ids)

    def judge(made: Any) -> Iterable[str]:
        view, answer = made
        yield from oracles.finite(answer)
        if answer.shape != (*ids.shape, WORDS):
            yield f"shape: {list(answer.shape)}"
        yield from oracles.equal("held", view.held()(ids), answer)
        yield from oracles.untouched(kept.values(), model.state_dict().values())
        if draw.chance("weighed", 0.2) and "z" not in draw.spoilt and isinstance(size.get("z", 1), int):
            yield from oracles.within_memory(lambda: view(ids), lab.predict(view, *ids.shape))
        # where steps are searched for, all tokens have a say in their length
        if name != "bert" and isinstance(size.get("z", 1), int):
            with torch.no_grad():
                yield from oracles.causal(view, ids, answer, torch.arange(n))
        letters = {k: v for k, v in size.items() if k in "dhem" and isinstance(v, int)}
        for letter, wanted in letters.items():
            if getattr(view.discretisation, letter).n != wanted:
                yield f"size: {letter}={wanted!r} gave {getattr(view.discretisation, letter)}"

    asked = sum(NODE * rule.n for rule in size.values() if isinstance(rule, ct.axes.Nested))
    return Case(f"{name}.at({shown(size)})({list(ids.shape)})", build, judge, asked)


def _predict(draw: Draw) -> Case:
    """The cost model against what a forward pass of a larger batch takes."""
    from continua import lab

    name = draw.pick("model", ("gpt2", "words", "bert"))
    model = model_of(name)
    b = draw.spoil("b", draw.pick("batch", (1, 4, 64)))
    n = draw.spoil("n", draw.pick("tokens", (1, 4, 16)))

    def judge(cost: Any) -> Iterable[str]:
        if not (0 < cost.forward < cost.flops and cost.bytes > 0):
            yield f"cost: forward {cost.forward}, all {cost.flops}, bytes {cost.bytes}"
        if b * n <= 4096:
            yield from oracles.within_memory(lambda: model(torch.zeros(int(b), int(n), dtype=torch.long)), cost)

    return Case(f"lab.predict({name}, {shown(b)}, {shown(n)})", lambda: lab.predict(model, b, n), judge)


def _lab(draw: Draw) -> Case:
    """A few particles on a sphere."""
    from continua import lab

    n = draw.spoil("n", draw.pick("count", (1, 3, 8)))
    d = draw.spoil("d", draw.pick("dim", (2, 3)))
    beta = draw.spoil("beta", draw.pick("b", (0.5, 4.0)))
    until = draw.spoil("until", draw.pick("u", (0.1, 1.0)))
    save = draw.spoil("save", 3)

    def build() -> Any:
        particles = lab.Particles.uniform(n, d, torch.Generator().manual_seed(0))
        return lab.simulate(lab.SelfAttention(beta=beta), particles, until, save=save)

    def judge(path: Any) -> Iterable[str]:
        yield from oracles.finite(path.x)
        norms = path.x.norm(dim=-1)
        if (norms - 1).abs().max() > 1e-3:
            yield "sphere: tokens left it"

    return Case(
        f"simulate(SelfAttention({shown(beta)}), uniform({shown(n)}, {shown(d)}), {shown(until)}, save={shown(save)})",
        build,
        judge,
    )
