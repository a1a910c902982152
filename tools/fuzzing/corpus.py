"""Configurations that are right, one at least for every registered kind: what 0.1 wrote, and the rest by hand."""

import functools
import json
from pathlib import Path
from typing import Any

KEPT = Path(__file__).resolve().parents[2] / "tests" / "written_by_0_1"
FOLDERS = tuple(sorted(path.parent.name for path in KEPT.glob("*/answers.safetensors")))
RULE = {"kind": "GaussLegendre", "n": 4}
ADAMW = {"kind": "AdamW", "lr": 0.01, "betas": [0.9, 0.95], "decay": 0.1, "eps": 1e-8}
SIZE = {"kind": "Discretisation", "d": 8, "h": 2, "z": 2}
HELD = {"kind": "Hold"}
COUNTED = {
    "kind": "ByBasis",
    "axes": {
        "kind": "Axes",
        **{letter: {"kind": "Points", "n": 2} for letter in "tdhem"},
        "z": {"kind": "Interval", "start": 0.0, "end": 2.0},
    },
    "bases": {
        **{letter: {"kind": "Nodal", "rule": {"kind": "Counting", "n": 2}, "how": HELD} for letter in "dhem"},
        "z": {"kind": "Nodal", "rule": {"kind": "LeftEnd", "n": 2}, "how": HELD},
    },
}
LINES = {"t": {"kind": "Interval"}, "d": {"kind": "Circle"}}

# kinds that no kept model holds
BY_HAND: tuple[dict[str, Any], ...] = (
    ADAMW,
    {"kind": "Adaptive", "solver": {"kind": "Tsit5"}, "rtol": 1e-3, "atol": 1e-5, "per_sample": False, "max_steps": 99},
    {"kind": "Always", "discretisation": SIZE},
    {"kind": "Backsolve", "clip": None},
    {"kind": "Both", "first": {"kind": "Causal"}, "second": {"kind": "Window", "radius": 2.0}},
    {"kind": "ByRole", "rest": ADAMW, "kernel": {"kind": "Muon", "lr": 0.02, "momentum": 0.95, "others": ADAMW}},
    {"kind": "Bosh3"},
    {"kind": "Characters", "alphabet": "abc "},
    {"kind": "Checkpoint", "every": 2, "recursive": False, "clip": None},
    {"kind": "ClenshawCurtis", "n": 5},
    {"kind": "Comb", "stride": 2.0, "width": 0.5},
    {"kind": "Constant"},
    {"kind": "CosineDecay", "warmup": 0.05, "floor": 0.1},
    {"kind": "Direct", "clip": 1.0},
    {"kind": "Dopri5"},
    {"kind": "DualAveraging", "lr": 0.05},
    {"kind": "Elastic", "d": [4, 8], "h": [1, 2], "z": [1, 2], "draws": 2, "parts": 2, "start": 0.4, "weight": 0.6},
    {"kind": "ExplicitMidpoint"},
    {"kind": "FewSources", "rule": {"kind": "Sobol", "n": 4, "seed": 1}, "step": 0, "control": 0},
    {"kind": "GPT2Init", "std": 0.02},
    {"kind": "GaussLegendre", "n": 4},
    {"kind": "Greedy", "repetition_penalty": 1.1},
    {"kind": "HeadEntropy", "weight": 0.5},
    {"kind": "Heun"},
    {"kind": "InverseSqrt", "warmup": 0.05},
    {"kind": "JacobianNorm", "directions": 1, "weight": 0.1},
    {"kind": "KFAC", "lr": 0.02, "momentum": 0.9, "decay": 0.01, "damping": 0.1, "trust": 1.0, "beta": 0.9, "every": 5},
    {"kind": "KineticEnergy", "weight": 1e-3},
    {"kind": "Lattice", "n": 4, "seed": 1},
    {"kind": "Lean", "clip": None},
    {"kind": "Linear"},
    {"kind": "Mirror", "lr": 0.05},
    {"kind": "Mixed", "every": 2, "recursive": False},
    {"kind": "MonteCarlo", "n": 4, "seed": 1},
    {"kind": "Muon", "lr": 0.02, "momentum": 0.95, "decay": 0.01, "iterations": 5, "half": False, "others": ADAMW},
    {"kind": "Neural", "axes": LINES, "hidden": 8, "waves": 2, "std": 1.0, "mean": 0.0},
    {"kind": "Nystrom", "rule": RULE},
    {"kind": "OnSphere", "inner": {"kind": "RK4"}, "radius": 1.0},
    {"kind": "PositiveFeatures", "m": 16, "seed": 0, "step": 0},
    {"kind": "ProductRule", "factors": [RULE, {"kind": "Midpoint", "n": 3}]},
    {"kind": "RK4"},
    {"kind": "Recompute", "clip": None},
    {"kind": "Rescaled", "inner": ADAMW, "norm": 1.0},
    {"kind": "Reversible", "drift": None, "fallback": True},
    {"kind": "ReversibleHeun"},
    {"kind": "ReversibleSolver", "inner": {"kind": "RK4"}, "coupling": 0.999},
    {"kind": "RiemannianAdam", "lr": 1e-3, "betas": [0.9, 0.99], "eps": 1e-8, "others": ADAMW},
    {"kind": "Role", "use": "kernel", "inputs": "d", "is_output": False},
    {"kind": "SOAP", "lr": 3e-3, "betas": [0.95, 0.95], "decay": 0.01, "every": 10, "others": ADAMW},
    {"kind": "Sample", "temperature": 0.8, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.2},
    {"kind": "Sampled", "term": {"kind": "KineticEnergy", "weight": 1.0}, "count": 1, "weight": 1.0},
    {"kind": "Samples"},
    {"kind": "SaveAt", "every": 1, "points": [], "dense": False},
    {"kind": "Scale", "mean": [0.0], "spread": [1.0], "unit": 1.0, "periods": [7.0]},
    {"kind": "Scaled", "gain": 1.0},
    {"kind": "Separable", "axes": LINES, "rank": 2, "hidden": 4, "std": 1.0, "mean": 0.0},
    {"kind": "Shampoo", "lr": 0.02, "decay": 0.0, "eps": 1e-6, "others": ADAMW},
    {"kind": "Smoothness", "axis": "z", "weight": 0.1},
    {"kind": "Sobol", "n": 4, "seed": 1},
    {"kind": "SpectralNorm", "iterations": 3, "weight": 0.1},
    {"kind": "SpectrallyNormalised", "inner": ADAMW, "bound": 1.0},
    {"kind": "SphereProjection", "radius": 1.0, "eps": 0.0},
    {"kind": "SquaredWeights", "weight": 0.1},
    {"kind": "States"},
    {"kind": "Stationary"},
    {"kind": "Strang", "inner": {"kind": "Heun"}},
    {"kind": "Strided", "stride": 2.0, "width": 0.5},
    {"kind": "Tanh"},
    {"kind": "Training", "steps": 2, "seed": 0, "accumulate": 1, "clip": 1.0, "precision": "float32",
     "evaluate_every": 1, "save_every": 1, "patience": 3, "adjoint": {"kind": "Recompute"}, "at": SIZE,
     "elastic": None},
    {"kind": "Tsit5"},
    {"kind": "Window", "radius": 1.5},
    {"kind": "Xavier", "gain": 1.0},
)  # fmt: skip


def _counted(count: int) -> dict[str, Any]:
    return {"kind": "Nodal", "rule": {"kind": "Counting", "n": count}}


SIZES: dict[str, int] = {"d": 4, "h": 2, "e": 2, "m": 4}
COUNTED: dict[str, Any] = {
    "kind": "ByBasis",
    "axes": {
        "kind": "Axes",
        "t": {"kind": "Points", "n": None},
        **{letter: {"kind": "Points", "n": count} for letter, count in SIZES.items()},
        "z": {"kind": "Interval", "start": 0.0, "end": 1.0, "mass": None},
    },
    "bases": {letter: _counted(count) for letter, count in SIZES.items()},
}
TOWER: dict[str, Any] = {
    "kind": "Transformer",
    "axes": COUNTED["axes"],
    "native": {
        "kind": "Discretisation",
        **{letter: {"kind": "Counting", "n": count} for letter, count in SIZES.items()},
        "z": {"kind": "Fixed", "steps": 1},
    },
    "embed": {"kind": "Tokens", "weights": COUNTED, "vocab": 5, "end": 4},
    "block": {"kind": "Parts", "parts": [{"kind": "Integral", "weights": COUNTED}]},
    "readout": {"kind": "Readout", "weights": COUNTED, "out": 3, "last": True},
}
AROUND: dict[str, Any] = {**COUNTED, "axes": {**COUNTED["axes"], "t": {"kind": "Circle"}}}
# kinds of later versions: an older library is not asked for them
LATER: tuple[dict[str, Any], ...] = (
    {"kind": "Afterwards", "share": 0.5, "sizes": [SIZE]},
    {"kind": "AnswerImitation", "distil": 1.0},
    {"kind": "AsMade"},
    {"kind": "Averaged", "weights": COUNTED, "out": 3, "before": [], "count": 2, "labels": ["a", "b", "c"]},
    {
        "kind": "Beside",
        "first": {"kind": "Integral", "weights": COUNTED},
        "second": {"kind": "Pointwise", "weights": COUNTED},
    },
    {"kind": "ByGap", "sizes": [SIZE], "draws": 1, "parts": 2, "start": 0.1, "power": 1.0, "memory": 0.8, "even": 0.25},
    {"kind": "ByShare", "sizes": [SIZE], "shares": [0.5], "brief": [SIZE]},
    {"kind": "ByDepth", "masks": [{"kind": "Causal"}, {"kind": "Window", "radius": 1.5}]},
    {"kind": "Capped", "cap": 50.0, "temperature": 0.0625},
    {"kind": "Channels", "spreads": [1.0, 2.0]},
    {
        "kind": "ChannelReadout",
        "axis": {"kind": "Circle"},
        "rule": {"kind": "Trapezoid", "n": 8},
        "spreads": [1.0],
    },
    {"kind": "Copied", "letters": "dz", "noise": 0.3},
    {"kind": "Corrections", "rank": 2, "along": "hm"},
    {"kind": "Corrections", "rank": [2, 1], "along": "df", "beyond": 1.0},
    {
        "kind": "Corrections",
        "rank": None,
        "along": "h",
        "stored": [{"kind": "CorrectedNodes", "along": "h", "axis": "m", "n": 2}],
    },
    {"kind": "CorrectedNodes", "along": "h", "axis": "m", "n": 2},
    {"kind": "Diagonal", "shares": [0.25, 0.5], "draws": 1, "parts": 2, "start": 0.1},
    {"kind": "DynamicStretch", "factor": 2.0, "length": 8.0},
    {"kind": "EmbeddingImitation"},
    {"kind": "LowRank", "rank": 2, "scale": 0.5},
    {"kind": "StateImitation"},
    {"kind": "StateImitation", "inner": 3.0},
    {"kind": "StateImitation", "inner": 3.0, "means": 10.0},
    {"kind": "Experts", "weights": COUNTED, "experts": 3, "top": 2, "normalised": False},
    {"kind": "Frames", "weights": COUNTED, "channels": 3, "position": None},
    {"kind": "FromDepth", "inner": {"kind": "Integral", "weights": COUNTED}, "start": 1.0},
    {"kind": "Gates", "weights": COUNTED, "count": 4, "gain": 0.5},
    {"kind": "Growth", "stages": [{"kind": "Stage", "sizes": [SIZE], "until": 0.4}]},
    {"kind": "HeadNorm", "weights": COUNTED, "eps": 1e-6},
    {"kind": "LayerScale", "weights": COUNTED},
    {"kind": "LinearStretch", "factor": 2.0},
    {"kind": "ImageStem", "weights": COUNTED, "side": 4, "channels": 1, "strides": [2, 1], "windows": [0.4, 0.0]},
    {"kind": "LocalStem", "weights": COUNTED, "channels": 3, "strides": [2, 1], "position": None, "span": 8},
    {"kind": "LongStretch", "short": [1.0, 1.5], "long": [2.0, 3.0], "length": 4.0, "gain": 1.1},
    {"kind": "PositionByDepth", "positions": [{"kind": "Rotary"}, {"kind": "Position"}], "order": [1, 0]},
    {"kind": "Llama3Stretch", "factor": 8.0, "low": 1.0, "high": 4.0, "length": 32.0},
    {"kind": "Modes", "d": 3, "h": None, "e": None, "m": 5, "z": 2},
    {"kind": "NestedSpline", "size": 6, "degree": 3},
    {"kind": "Profile", "n": 4, "sizes": [4, 2]},
    {"kind": "QuickGELU"},
    {"kind": "RefitRanks", "m": 4, "h": 3, "d": 2},
    {"kind": "Slices", "weights": COUNTED, "count": 4, "gain": 0.5},
    {"kind": "SharedExpert", "weights": COUNTED, "pieces": 2},
    {"kind": "SymbolProducts", "weights": AROUND, "modes": 2, "products": 1, "held": 1},
    {"kind": "SymbolTransport", "weights": AROUND, "modes": 2, "held": 1},
    {"kind": "SmallerSizes", "d": [4, 8], "draws": 2, "parts": 2, "start": 0.4, "deep": 0.3, "joined": 0.2},
    {"kind": "Stage", "sizes": [SIZE], "until": 0.4, "rate": 0.5, "batch": 0.5},
    {"kind": "TwoTowers", "images": TOWER, "texts": TOWER, "log_scale": 2.0},
    {"kind": "Uniform"},
    {"kind": "YarnStretch", "factor": 4.0, "length": 32.0, "fast": 32.0, "slow": 1.0, "whole": True, "gain": 1.1},
)


@functools.cache
def models() -> dict[str, dict[str, Any]]:
    """The kept models, as their config.json describes them."""
    return {name: json.loads((KEPT / name / "config.json").read_text(encoding="utf-8"))["model"] for name in FOLDERS}


def _parts(plain: Any) -> list[dict[str, Any]]:
    """Everything with a kind inside."""
    if isinstance(plain, list):
        return [part for item in plain for part in _parts(item)]
    if not isinstance(plain, dict):
        return []
    inner = [part for value in plain.values() for part in _parts(value)]
    return [plain, *inner] if "kind" in plain else inner


@functools.cache
def by_kind() -> dict[str, list[dict[str, Any]]]:
    """A few configurations of each kind, the smallest first."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for part in [part for model in models().values() for part in _parts(model)] + [*BY_HAND]:
        found.setdefault(part["kind"], {})[json.dumps(part, sort_keys=True)] = part
    _derived(found)
    return {
        kind: [parts[key] for key in sorted(parts, key=lambda key: (len(key), key))[:4]]
        for kind, parts in sorted(found.items())
    }


def _derived(found: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Kinds that take axes or weights, beside those of a kept model."""
    model = models()["continuous-series"]
    attention = next(part for part in _parts(model) if part["kind"] == "Attention")
    readout = next(part for part in _parts(model) if part["kind"] == "Readout")
    weights = attention["weights"]
    bases = {"t": {"kind": "Cosine", "n": 3}, "d": {"kind": "Fourier", "n": 3}}
    made = (
        {"kind": "ALiBi", "axes": model["axes"]},
        {"kind": "Gaussian", "axes": model["axes"], "near": 0.1, "far": 2.0},
        {"kind": "Constraint", "weights": weights, "eps": 1e-12, "centred": True},
        {"kind": "Integral", "weights": weights, "bias": True, "gain": 1.0},
        {"kind": "Narrowed", "weights": readout["weights"], "readout": readout, "size": 4},
        {"kind": "Expansion", "axes": LINES, "bases": bases, "std": 0.1, "mean": 0.0},
    )
    for part in made:
        found.setdefault(part["kind"], {})[json.dumps(part, sort_keys=True)] = part
