"""Solving, attending and generating, each against the plainest way to the same answer."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch

from fuzzing import oracles
from fuzzing.case import Case
from fuzzing.draw import Draw, shown
from fuzzing.models import WORDS, model_of

SOLVERS = ("Euler", "Heun", "ExplicitMidpoint", "Bosh3", "RK4", "Dopri5", "Tsit5")


def solved(draw: Draw) -> Case:
    """ẋ = a·x + b, which is known: x(Z) = (x₀ + b/a) e^{aZ} − b/a."""
    import continua as ct
    from continua import flow

    a = draw.pick("a", (-1.0, 0.5, -0.2))
    shift = draw.pick("shift", (0.0, 1.0))
    x0 = draw.numbers("x0", *draw.pick("shape", ((2, 3), (1, 1), (2, 4, 3), (3,))), dtype=torch.float64)
    start = x0.clone()
    x0 = draw.spoil(
        "x0",
        x0,
        (
            None,
            "x",
            3.0,
            [1.0],
            x0.long(),
            x0 * math.nan,
            x0 * math.inf,
            x0[:0],
            x0.numpy(),
            x0.to(torch.complex64),
            x0 > 0,
        ),
    )
    handed = x0.clone() if isinstance(x0, torch.Tensor) else None  # start is of float64, whatever was handed over
    span = draw.spoil(
        "span",
        (0.0, draw.pick("until", (1.0, 2.0, 0.1))),
        (
            None,
            1.0,
            (0.0,),
            (0.0, 0.0),
            (1.0, 0.0),
            ("a", "b"),
            (0.0, math.nan),
            (0.0, math.inf),
            (0.0, 1.0, 2.0),
            (0, 1),
            (True, False),
            (0.0, 1e300),
        ),
    )
    solver = draw.pick("solver", SOLVERS)
    fixed = draw.chance("fixed", 0.6)
    steps = draw.spoil("steps", draw.pick("n", (1, 8, 32)))
    rtol = draw.spoil("rtol", draw.pick("tolerance", (1e-3, 1e-6)))
    points = draw.spoil(
        "points",
        draw.pick("save", ((), (0.05,), (0.0, 0.02, 0.1))),
        ((5.0,), (math.nan,), ("x",), None, 3, (0.05, 0.01), (True,), 0.5),
    )
    adjoint = draw.spoil(
        "adjoint", draw.pick("how", ("Direct", "Recompute", "Direct")), ("Reversible", "Backsolve", None, "x")
    )
    field = draw.spoil("field", "linear", ("none", "shape", "broadcast", "nan", "text", "raises"))

    def velocity(z: float, x: Any, _: Any) -> Any:
        v = a * x + shift
        return {
            "linear": v,
            "none": None,
            "shape": v[..., :1].sum(),
            "broadcast": v[None],
            "nan": v * math.nan,
            "text": "v",
        }.get(field, v)

    def build() -> Any:
        control = ct.Fixed(steps) if fixed else ct.Adaptive(rtol=rtol, atol=1e-9, max_steps=2000)
        chosen = getattr(flow, adjoint)() if isinstance(adjoint, str) and adjoint != "x" else adjoint
        return ct.solve(
            velocity,
            x0,
            span,
            solver=getattr(flow, solver)(),
            control=control,
            adjoint=chosen,
            save=ct.SaveAt(points=points),
        )

    def judge(path: Any) -> Iterable[str]:
        yield from oracles.finite(path.final)
        if field != "linear" or not isinstance(x0, torch.Tensor) or x0.shape != start.shape:
            if field in ("none", "shape", "broadcast", "text"):
                yield f"field: a velocity of another shape ({field}) was accepted"
            return
        z = float(span[1]) - float(span[0])
        exact = (start + shift / a) * math.exp(a * z) - shift / a
        order = {"Euler": 1, "Heun": 2, "ExplicitMidpoint": 2, "Bosh3": 3, "RK4": 4}.get(solver, 5)
        close = 5 * (z / int(steps)) ** order if fixed and isinstance(steps, int) else 1e-2
        own = {torch.float64: 1e-9, torch.complex64: 1e-5}.get(x0.dtype)
        if own is not None and abs(z) < 10:
            yield from oracles.equal(f"dense {solver}", path.final, exact.to(x0.dtype), max(close, own))
        yield from oracles.untouched([handed], [x0])

    control = f"Fixed({shown(steps)})" if fixed else f"Adaptive(rtol={shown(rtol)})"
    said = f"solve({field}, {shown(x0)}, {shown(span)}, {solver}, {control}, {adjoint}, points={shown(points)})"
    return Case(said, build, judge)


def attended(draw: Draw) -> Case:
    """x + A[x] in one Euler step, against attention by hand in float64."""
    from continua import models
    from continua.axes import Samples, Times
    from continua.fields import counted
    from continua.models import Batch, Transformer
    from continua.models.build import discrete_axes
    from continua.operators import Attention, Causal, Parts

    states = models.States if hasattr(models, "States") else models.Given  # its name in 0.1
    heads = draw.pick("heads", (1, 2, 4))
    stamped = draw.chance("stamped", 0.5)
    masked = not stamped and draw.chance("causal", 0.5)
    b, n = draw.pick("b", (1, 2)), draw.pick("n", (1, 3, 7))
    x = draw.numbers("x", b, n, 8, dtype=torch.float64)
    times = (torch.rand(n, generator=draw.tensors("t"), dtype=torch.float64) + 0.05).cumsum(-1)
    twice = draw.chance("twice", 0.3) and stamped and n > 1
    if twice:  # the same point twice shares its weight
        times[1] = times[0]
        x[:, 1] = x[:, 0]
    x = draw.spoil(
        "x", x, (x.float(), x[..., :4], x[0], x.half(), x.long(), None, x * math.nan, x.numpy(), x[:, :0], x * 1e200)
    )
    weights_bad = draw.spoil("weights", None, ("nan", "inf"))
    seed = draw.whole("seed", 0, 10**6)

    def make() -> Any:
        axes, native = discrete_axes(8, heads, 12, 1)
        if stamped:
            axes = dataclasses.replace(axes, t=Times())
        w = counted(axes, 1)
        torch.manual_seed(seed)
        model = Transformer(axes, native, states(), Parts((Attention(w, mask=Causal() if masked else None),))).double()
        for parameter in model.parameters():
            parameter.data = torch.randn_like(parameter) * 0.5
        if weights_bad:
            next(p for name, p in model.named_parameters() if ".q." in name).data[..., 0] = float(weights_bad)
        return model

    def build() -> Any:
        model = make()
        with torch.no_grad():
            return model, model(Batch(x, times=times if stamped else None))

    def judge(made: Any) -> Iterable[str]:
        model, answer = made
        yield from oracles.finite(answer)
        if weights_bad:
            yield f"weights: {weights_bad} in the queries was not noticed"
            return
        if not isinstance(x, torch.Tensor) or x.dtype != torch.float64 or x.shape[-1] != 8:
            return
        own = {name.split(".")[-2]: value[0] for name, value in model.state_dict().items()}
        q, k, v = (torch.einsum("btd,hed->bhte", x, own[name]) + own[f"b{name}"][:, None] for name in "qkv")
        measure = Samples().on(Times(), times).weights if stamped and n > 1 else None
        mixed = oracles.attention_by_hand(q, k, v, measure, masked)
        wanted = x + torch.einsum("bhte,dhe->btd", mixed, own["o"]) + own["bo"]
        if torch.isfinite(wanted).all():  # scores of 1e200 overflow here too
            yield from oracles.equal("dense", answer, wanted, 1e-9)

    return Case(
        f"attention of {heads} heads, stamped={stamped}, causal={masked}, x={shown(x)}, weights={weights_bad}",
        build,
        judge,
    )


def generated(draw: Draw) -> Case:
    """Greedy generation against a loop of whole forward passes."""
    import continua as ct

    name = draw.pick("model", ("gpt2", "llama", "words"))
    model = model_of(name)
    b, n = draw.pick("b", (1, 2)), draw.pick("n", (1, 3, 5))
    ids = draw.ids("prompt", WORDS, b, n)
    prompt = draw.spoil(
        "prompt",
        ids,
        (
            None,
            "text",
            ids.float(),
            ids[0],
            ids[:, :0],
            ids[:0],
            ids + 50,
            ids - 20,
            ids.tolist(),
            ids.numpy(),
            ids[..., None],
            ids.bool(),
            ct.Batch(ids),
            3,
        ),
    )
    tokens = draw.spoil("tokens", draw.pick("count", (1, 2, 4)), (0, -1, 1.5, "3", None, True, 10**9, math.nan, [2]))
    given: dict[str, Any] = {}
    if draw.chance("sample", 0.4):
        options = {"temperature": 0.8, "top_k": 3, "top_p": 0.9, "repetition_penalty": 1.2}
        given["options"] = {key: draw.spoil(key, value) for key, value in options.items() if draw.chance(key, 0.5)}
    if draw.spoils("stop"):
        given["stop"] = draw.note("stop", draw.pick("stops", ([3], (), 3, "x", [1.5], [-1], [10**9], None)))
    if draw.spoils("pad"):
        given["pad"] = draw.note("pad", draw.pick("pads", (0, -1, "x", 1.5, 10**9, True)))
    if draw.spoils("observed"):
        flags = (torch.ones(b, n), torch.zeros(b, n, dtype=torch.bool), torch.ones(n), "x", torch.ones(b, n + 1))
        given["observed"] = draw.note("observed", draw.pick("flags", flags))
    if draw.spoils("generator"):
        given["generator"] = draw.note("generator", draw.pick("bad", (3, "x", torch.Generator())))

    def build() -> Any:
        own = dict(given)
        options = own.pop("options", None)
        if options is not None:
            own["sampling"] = ct.Sample(**options)
            own.setdefault("generator", torch.Generator().manual_seed(1))
        return ct.generate(model, prompt, tokens=tokens, **own)

    def judge(answer: torch.Tensor) -> Iterable[str]:
        if answer.is_floating_point() or (
            answer.numel() and not 0 <= int(answer.min()) <= int(answer.max()) < max(WORDS, 12)
        ):
            yield f"tokens: {shown(answer)}"
        if given or prompt is not ids or not isinstance(tokens, int):
            return
        whole = ids
        with torch.no_grad():
            for _ in range(tokens):
                whole = torch.cat([whole, model(whole)[:, -1:].argmax(-1)], 1)
        written = answer if answer.shape == whole.shape else torch.cat([ids, answer], 1)
        if not torch.equal(written, whole):
            yield "dense: generation differs from whole forward passes"

    return Case(f"generate({name}, {shown(prompt)}, tokens={shown(tokens)}, {shown(given)})", build, judge)
