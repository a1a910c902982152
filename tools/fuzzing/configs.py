"""Configurations with a wrong type, a wrong name, a missing part or a part of another kind."""

import copy
import dataclasses
import inspect
import json
import math
from collections.abc import Iterable
from typing import Any

import torch

from fuzzing import corpus
from fuzzing.case import Case
from fuzzing.draw import Draw, shown

# what JSON can hold
WRONG: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 1.5, -0.25, math.nan, math.inf, "8", "x", "", "nan", [], [4], [[4]], {}, {"a": 1},
    {"kind": "Interval"}, {"kind": "Nonsense"}, {"kind": 3}, {"kind": None}, {"kind": ["Interval"]}, {"kind": "Euler"},
    {"kind": "Causal"}, 10**9, 10**13, 2**63, 10**40, 1e308, -(10**9), "float32", "é",
)  # fmt: skip
WAYS = ("value", "value", "value", "value", "remove", "add", "kind", "part", "wrap")


def configs(draw: Draw) -> Case:
    """A kept model as a whole, or one of its parts."""
    kinds = corpus.by_kind()
    if draw.chance("whole", 0.25):
        folder = draw.pick("folder", corpus.FOLDERS)
        plain = copy.deepcopy(corpus.models()[folder])
    else:
        folder = None
        plain = copy.deepcopy(draw.pick("which", kinds[draw.pick("kind", [*kinds])]))
    before = json.dumps(plain)
    plain = _mutated(draw, plain)
    given = json.dumps(plain)

    def build() -> Any:
        from continua.config import from_plain

        return from_plain(json.loads(given))

    def judge(made: Any) -> Iterable[str]:
        from continua.config import to_plain

        if json.dumps(plain) != given:
            yield "untouched: the configuration was changed"
        if isinstance(plain, dict) and "kind" in plain:
            yield from _well_typed(made)
            again = json.dumps(to_plain(build()))
            if again != json.dumps(to_plain(made)):
                yield "round trip: the same configuration gives another object"
        if folder is not None and given == before:
            yield from _answers(made, folder)
        elif not draw.spoilt:
            yield from _use(made)

    said = (
        given if len(given) < 240 else f"{folder or plain.get('kind') if isinstance(plain, dict) else ''} {draw.spoilt}"
    )
    return Case(f"from_plain({said})", build, judge)


def _paths(plain: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a plain configuration."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    return [here for key, value in items for here in [(*path, key), *_paths(value, (*path, key))]]


def _mutated(draw: Draw, plain: Any) -> Any:
    """Up to three changes, each at a place of its own."""
    for index in range(3):
        name = f"change{index}"
        if not draw.spoils(name, 0.0 if index else 0.75):
            continue
        paths = _paths(plain)
        if not paths:
            break
        shallow = [path for path in paths if len(path) <= 2]
        paths = shallow if draw.chance(f"{name}/shallow", 0.6) else paths
        if draw.chance(f"{name}/values", 0.85):  # most places are the names of kinds
            paths = [path for path in paths if path[-1] != "kind"] or paths
        path = draw.pick(f"{name}/path", paths)
        way = draw.pick(f"{name}/way", WAYS)
        holder = plain
        for key in path[:-1]:
            holder = holder[key]
        draw.note(name, _change(draw, name, holder, path[-1], way))
    return plain


def _change(draw: Draw, name: str, holder: Any, key: Any, way: str) -> str:
    """Make one change, and say it."""
    if way == "value":
        holder[key] = draw.pick(f"{name}/wrong", WRONG)
    elif way == "remove":
        del holder[key]
    elif way == "add" and isinstance(holder, dict):
        holder[draw.pick(f"{name}/word", ("extra", "n ", "", "self", "kind2", "é"))] = draw.pick(f"{name}/wrong", WRONG)
    elif way == "kind" and isinstance(holder, dict) and isinstance(holder.get("kind"), str):
        holder["kind"] = draw.pick(f"{name}/kind", [*corpus.by_kind(), holder["kind"][:-1], holder["kind"].lower()])
    elif way == "part":
        kinds = corpus.by_kind()
        holder[key] = copy.deepcopy(kinds[draw.pick(f"{name}/other", [*kinds])][0])
    else:
        holder[key] = [holder[key]]
    found = holder.get(key, "gone") if isinstance(holder, dict) else holder[key] if key < len(holder) else "gone"
    return f"{key}: {way} {shown(found)}"


SIMPLE = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}


def _well_typed(made: Any) -> Iterable[str]:
    """An argument whose annotation is a plain type holds that type, and no number is NaN."""
    from continua.config import arguments

    try:
        own = arguments(made)
    except AttributeError:
        return
    hints = inspect.signature(type(made)).parameters
    if dataclasses.is_dataclass(made):
        hints = {**hints}
    for name, value in own.items():
        hint = hints[name].annotation if name in hints else None
        if isinstance(value, float) and math.isnan(value):
            yield f"NaN: {type(made).__name__}.{name} is NaN"
        if hint in SIMPLE:
            fits = isinstance(value, SIMPLE[hint]) and (hint is bool or not isinstance(value, bool))
            if not fits and not (hint is int and isinstance(value, float) and value.is_integer()):
                yield f"type: {type(made).__name__}.{name} is {shown(value)}, {hint.__name__} is wanted"


def _answers(model: Any, folder: str) -> Iterable[str]:
    """A kept model, its configuration untouched, answers with its weights as it did."""
    from safetensors.torch import load_file

    from continua.models import Batch

    kept = load_file(corpus.KEPT / folder / "answers.safetensors")
    model.load_state_dict(load_file(corpus.KEPT / folder / "model.safetensors"), assign=True)

    def batch(prefix: str) -> Any:
        own = {name.removeprefix(prefix): x for name, x in kept.items() if name.startswith(prefix)}
        source = batch("source.") if not prefix and any(name.startswith("source.") for name in kept) else None
        return Batch(**{k: own[k] for k in ("values", "times", "observed") if k in own}, source=source)

    with torch.no_grad():
        answer = model.eval()(batch(""))
    wanted = kept["answer"]
    if answer.shape != wanted.shape or not torch.allclose(answer.double(), wanted.double(), rtol=1e-5, atol=1e-6):
        yield "kept: the answer differs from what 0.1 answered"


def _use(made: Any) -> Iterable[str]:
    """What a right part does in the smallest way."""
    import continua as ct
    from continua import axes as ax

    if isinstance(made, ax.Rule) and type(made).__name__ not in ("Counting", "ProductRule"):
        grid = ax.grid_on(ct.Interval(), made)
        if abs(float(grid.weights.sum()) - 1) > 1e-9:
            yield "sum: weights of a rule do not sum to one"
    if type(made).__name__ in ("Euler", "Heun", "RK4", "Bosh3", "Dopri5", "Tsit5", "ExplicitMidpoint"):
        path = ct.solve(lambda z, x, _: -x, torch.ones(1, 2), (0.0, 1.0), solver=made, control=ct.Fixed(16))
        if abs(float(path.final[0, 0]) - math.exp(-1)) > 0.02:
            yield "dense: exp(−1) is wrong"
