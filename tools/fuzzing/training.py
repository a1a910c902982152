"""fit with tiny training, estimators, and models of other libraries."""

import functools
import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuzzing import oracles
from fuzzing.case import Case
from fuzzing.draw import ODD, Draw, call, shown
from fuzzing.models import WORDS, model_of

SETTINGS: dict[str, Any] = {
    "steps": 2, "seed": 3, "accumulate": 1, "clip": 1.0, "precision": "float32", "evaluate_every": 2, "save_every": 2,
    "patience": 2,
}  # fmt: skip
POSITIVE = ("steps", "accumulate", "evaluate_every", "save_every", "clip", "patience")
BAD_FIT: dict[str, tuple[Any, ...]] = {
    **{name: (0, -1, math.nan, "x", "2", None, True, 1.5, [1], 2**70, np.int64(2)) for name in SETTINGS},
    "clip": (0.0, -1.0, math.nan, math.inf, "1", None, True, [1.0]),
    "precision": ("float16", "bf16", None, 3, "", torch.float32),
}


@functools.lru_cache(maxsize=1)
def _task() -> Any:
    from continua import tasks

    text = " ".join(["the", "cat", "sat", "on", "a", "mat"][(i * i) % 6] for i in range(120))
    path = Path("corpus.txt").absolute()
    path.write_text(text, encoding="utf-8")
    corpus = tasks.from_file(str(path))
    return tasks.Text(corpus, tasks.Characters.of(text), context=8, batch=2, limit=1)


def trained(draw: Draw) -> Case:
    """Two steps of training with settings of any kind."""
    import continua as ct
    from continua import optim, training

    given = {
        k: draw.spoil(k, v, BAD_FIT[k])
        for k, v in SETTINGS.items()
        if draw.chance(k, 0.5) or k in ("steps", "evaluate_every")
    }
    lr = draw.spoil("lr", 1e-2, (0.0, -1.0, math.nan, "x", None, True, math.inf))
    optimiser = draw.pick("optimiser", ("AdamW", "AdamW", "Muon"))
    if draw.chance("penalty", 0.25):
        kind = draw.pick("kind", ("KineticEnergy", "Smoothness", "SquaredWeights", "HeadEntropy"))
        weight = draw.spoil("weight", 1e-3, (-1.0, math.nan, "x", None, True))
        given["penalties"] = (kind, weight)
    if draw.chance("elastic", 0.2):
        sizes = {"d": (4, 8), "z": (1, 2)}
        given["elastic"] = {
            k: draw.spoil(f"elastic.{k}", v, ((), (0,), (-1, 8), (1.5,), 4, "4", ("x",), None, (10**9,)))
            for k, v in sizes.items()
        }
    if draw.chance("at", 0.15):
        given["at"] = {"d": draw.spoil("at.d", 4, (0, -1, 10**9, "x", 1.5))}
    if draw.chance("adjoint", 0.2):
        given["adjoint"] = draw.spoil("adjoint", "Recompute", (3, "x", True))
    odd = draw.spoil("task", None, ("loader", "none", "list", "model"))

    def build() -> Any:
        task = _task()
        own = dict(given)
        if "penalties" in own:
            kind, weight = own["penalties"]
            own["penalties"] = getattr(training, kind)() * weight
        if "elastic" in own:
            own["elastic"] = ct.Elastic(**own["elastic"])
        if "at" in own:
            own["at"] = ct.at(**own["at"])
        if own.get("adjoint") == "Recompute":
            own["adjoint"] = ct.Recompute()
        torch.manual_seed(0)
        model: Any = ct.Transformer.continuous(vocab=task.tokens.size, at=ct.at(d=8, h=2, z=2), context=8)
        before = [p.detach().clone() for p in model.parameters()]
        chosen: Any = {"loader": torch.utils.data.DataLoader([1, 2]), "none": None, "list": [1], "model": model}.get(
            odd, task
        )
        rule = optim.ByRole(getattr(optim, optimiser)(lr))
        fitted = ct.fit(model, chosen, optimiser=rule, watch=lambda _: None, **own)
        return before, model, fitted

    def judge(made: Any) -> Iterable[str]:
        before, model, _ = made
        if any(not torch.isfinite(p).all() for p in model.parameters()):
            yield "finite: weights are ruined"
        if all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)) and lr != 0:
            yield "learns: no weight moved"
        for name in POSITIVE:
            value = given.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
                yield f"range: {name}={value!r} was accepted"
        if isinstance(lr, float) and not lr >= 0:
            yield f"range: lr={lr} was accepted"

    return Case(f"fit({shown(given)}, {optimiser}({shown(lr)}), task={odd or 'text'})", build, judge)


def estimated(draw: Draw) -> Case:
    """An estimator of two steps on a few series."""
    import continua as ct

    kind = draw.pick("kind", ("ContinuaClassifier", "ContinuaForecaster"))
    sizes = {"d": 8, "heads": 2, "depth": 1, "steps": 1}
    given = {key: draw.spoil(key, value, [x for x in ODD if not _huge(x)]) for key, value in sizes.items()}
    n = draw.pick("series", (4, 6))
    x = draw.numbers("X", n, 7).double().numpy()
    ragged = [row[: 4 + i % 4] for i, row in enumerate(x)]
    x = ragged if draw.chance("ragged", 0.3) else x
    bad = (
        None,
        "x",
        [],
        np.zeros((0, 3)),
        np.zeros(4),
        np.full((n, 5), np.nan),
        np.full((n, 5), np.inf),
        [["a"] * 3] * n,
        x[:1],
        np.zeros((n, 1)),
        np.zeros((n, 4, 2, 2)),
        3,
        [None] * n,
    )
    data = draw.spoil("data", x, bad)
    y = (np.arange(n) % 2) if kind == "ContinuaClassifier" else draw.numbers("y", n).numpy()
    y = draw.spoil(
        "y",
        y,
        (y[:-1], None, "x", np.full(n, np.nan), np.zeros((n, 2, 2, 2)), ["a", "b"] * (n // 2), [None] * n, np.zeros(n)),
    )
    times = draw.spoil(
        "times",
        None,
        (
            np.arange(7.0),
            np.arange(6.0),
            "now",
            np.full(7, np.nan),
            np.zeros(7),
            -np.arange(7.0),
            np.arange(7) + 1.7e9,
            np.arange(7).astype("datetime64[D]"),
        ),
    )
    state = draw.spoil("random_state", 0, ("x", -1, 1.5, None, 2**40))

    def build() -> Any:
        made = getattr(ct, kind)(**given, verbose=0, random_state=state)
        made.fit(data, y, times=times)
        return made.predict(data, times=times) if times is not None else made.predict(data)

    def judge(answer: Any) -> Iterable[str]:
        if kind == "ContinuaForecaster" and not np.isfinite(np.asarray(answer, dtype=float)).all():
            yield "finite: a forecast is no number"
        if len(answer) != len(data):
            yield f"shape: {len(answer)} answers for {len(data)} series"

    return Case(
        f"{call(kind, **given, random_state=state)}.fit({shown(data)}, {shown(y)}, times={shown(times)})", build, judge
    )


def _huge(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) > 1e5 and x != math.inf


TENSOR_WAYS = (
    "transpose",
    "missing",
    "extra",
    "dtype",
    "int8",
    "bool",
    "nan",
    "slice",
    "rename",
    "scalar",
    "empty",
    "half",
)
CONFIG_WAYS = ("value", "remove", "model_type")


def converted(draw: Draw) -> Case:
    """A Hugging Face folder with something wrong in it; where it loads, it answers as before."""
    import continua as ct

    name = draw.pick("model", ("gpt2", "bert", "llama", "albert"))
    way = draw.spoil("tensor", None, TENSOR_WAYS, least=0.5)
    setting = draw.spoil("setting", None, CONFIG_WAYS)
    wrong = draw.pick("wrong", (None, "x", 0, -1, 10**12, 1.5, [], {}, True, "8", math.nan))
    place = Path(f"hf-{name}")
    ids = draw.ids("ids", WORDS, 1, 4)

    def build() -> Any:
        from safetensors.torch import load_file, save_file

        if not place.exists():
            ct.to_hf(model_of(name), place)
        copy = Path("hf-copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place, copy)
        config = json.loads((copy / "config.json").read_text())
        tensors = load_file(copy / "model.safetensors")
        if way:
            tensors = _bad_tensors(tensors, draw, way)
            save_file({k: v.contiguous() for k, v in tensors.items()}, copy / "model.safetensors")
        if setting:
            key = draw.pick("key", sorted(config))
            config = {**config, key: wrong} if setting == "value" else {k: v for k, v in config.items() if k != key}
            if setting == "model_type":
                config["model_type"] = draw.pick("type", ("gpt", "bert", None, 3))
            (copy / "config.json").write_text(json.dumps(config))
        return ct.from_hf(copy)

    def judge(model: Any) -> Iterable[str]:
        if setting:
            return
        if way == "nan":
            yield from _refuses_nan(model, ids)
            return
        with torch.no_grad():
            answer = model.eval()(ids)
            wanted = model_of(name)(ids)
        if way not in ("dtype", "half", None):
            yield f"weights: a folder with {way} was loaded"
        elif way in ("dtype", None):
            yield from oracles.equal("kept", answer.float(), wanted, 1e-4)

    return Case(f"from_hf({name}, tensor {way}, setting {setting} {shown(wrong) if setting else ''})", build, judge)


def _refuses_nan(model: Any, ids: torch.Tensor) -> Iterable[str]:
    from continua.errors import ContinuaError

    try:
        with torch.no_grad():
            answer = model.eval()(ids)
    except ContinuaError:
        return
    yield f"weights: NaN was loaded, and the model answers {shown(answer)}"


def _bad_tensors(tensors: dict[str, Any], draw: Draw, way: str) -> dict[str, Any]:
    square = [
        key for key in sorted(tensors) if tensors[key].dim() == 2 and tensors[key].shape[0] != tensors[key].shape[1]
    ]
    key = draw.pick("name", square)
    x = tensors[key]
    made: dict[str, Any] = {
        "transpose": lambda: {**tensors, key: x.T.contiguous()},
        "missing": lambda: {k: v for k, v in tensors.items() if k != key},
        "extra": lambda: {**tensors, "extra.weight": x.clone()},
        "dtype": lambda: {**tensors, key: x.double()},
        "half": lambda: {**tensors, key: x.half()},
        "int8": lambda: {**tensors, key: x.to(torch.int8)},
        "bool": lambda: {**tensors, key: x > 0},
        "nan": lambda: {**tensors, key: torch.full_like(x, math.nan)},
        "slice": lambda: {**tensors, key: x[1:]},
        "rename": lambda: {(f"{k}x" if k == key else k): v for k, v in tensors.items()},
        "scalar": lambda: {**tensors, key: x[0, 0].clone()},
        "empty": lambda: {**tensors, key: x[:0]},
    }
    return made[way]()
