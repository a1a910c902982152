"""Shared set-up: one thread, seeded randomness, and shapes checked at run time where asked for.

``CONTINUA_SHAPES=1`` (``make test-shapes``) checks every annotated function of the package against its shapes and types
at every call. That doubles the time of most tests, so the other jobs leave it out.
"""

import functools
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

SHAPES = os.environ.get("CONTINUA_SHAPES", "") not in {"", "0"}
if SHAPES:
    import jaxtyping

    import tests.checker  # noqa: F401  (the hook looks it up by name)

    jaxtyping.install_import_hook("continua", "tests.checker.checked")  # before anything imports the package

# A pool of processes that compile C++ starts with an interpreter and torch for each; the other core has tests to run.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

gc.set_threshold(50_000, 20, 20)  # thousands of small models: by default their garbage is looked for all the time

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)

HERE = Path(__file__).resolve().parent
# What make test-shapes runs: these as they are, and of every other law the first of its cases. The calls of the other
# cases are the same, with other numbers.
LAWS = HERE / "laws"
WHOLE = {
    *(LAWS / f"test_{room}.py" for room in ("models", "attention", "kernels", "positions", "norms", "operators")),
    *(LAWS / f"test_{room}.py" for room in ("fields", "rules", "geometry", "samples", "flow", "adjoints", "at")),
    *(HERE / "models" / f"test_{what}.py" for what in ("special_cases", "bad_input", "precision")),
}

# Files with tests that take long. They come first: at the end, one process would have them and the other nothing to do.
LONG = (
    HERE / "laws" / "test_compiled.py",
    HERE / "fuzz" / "test_fuzz.py",
    HERE / "flow" / "test_oracles.py",
    HERE / "training" / "test_ranks.py",
    HERE / "training" / "test_crash.py",
)


@pytest.hookimpl(tryfirst=True)  # before -m chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs with shapes checked, and leave out there what cannot: checked functions do not compile."""
    items.sort(key=lambda item: item.path not in LONG)
    met: set[str] = set()
    for item in items:
        slow = item.get_closest_marker("slow")
        if slow is not None and not slow.kwargs.get("reason"):
            raise pytest.UsageError(f'{item.nodeid} is slow without a reason. Write @pytest.mark.slow(reason="…").')
        if item.get_closest_marker("unshaped"):
            if SHAPES:
                item.add_marker(pytest.mark.skip(reason="cannot run with shapes checked; make test runs it"))
            continue
        law = item.nodeid.split("[")[0]
        if item.path in WHOLE or (item.path.is_relative_to(LAWS) and law not in met and slow is None):
            item.add_marker(pytest.mark.shapes)
            met.add(law)


@pytest.fixture(autouse=True, scope="module")
def _light_garbage() -> None:
    """What a module finds there stays: collecting garbage need not walk through half a million objects each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _whole_models_in_the_cache_of_the_compiler() -> None:
    """It keeps the instructions of the last 128 functions; a model has two hundred, which are read anew each time."""
    reading = sys.modules.get("torch._dynamo.bytecode_transformation")
    kept = getattr(reading, "_cached_cleaned_instructions", None)
    if reading is not None and kept is not None and kept.cache_info().maxsize is not None:
        reading._cached_cleaned_instructions = functools.cache(kept.__wrapped__)  # type: ignore[attr-defined]


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh generator with seed 0: randomness in tests is explicit and repeats."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _the_same_numbers_every_time() -> None:
    """Weights that a test does not draw from a generator of its own are the same in every run."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed writes down the stack for each device that is not there


@pytest.fixture
def quiet_hugging_face() -> Iterator[None]:
    """No progress bars and no advice from ``transformers``."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(before)
    logging.enable_progress_bar()
