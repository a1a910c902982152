"""Shared set-up: one thread, seeded randomness, and shapes checked at run time where asked for.

``CONTINUA_SHAPES=1`` (``make test-shapes``) checks every annotated function of the package against its shapes and types
at every call. That doubles the time of most tests, so the other jobs leave it out.
"""

import os
from collections.abc import Iterator

SHAPES = os.environ.get("CONTINUA_SHAPES", "") not in {"", "0"}
if SHAPES:
    import jaxtyping

    jaxtyping.install_import_hook("continua", "beartype.beartype")  # before anything imports the package

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh generator with seed 0: randomness in tests is explicit and repeats."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _the_same_numbers_every_time() -> None:
    """Weights that a test does not draw from a generator of its own are the same in every run."""
    torch.manual_seed(0)


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
