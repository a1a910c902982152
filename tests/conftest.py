"""Shared set-up: shapes are checked at run time in tests, one thread, seeded randomness."""

from collections.abc import Iterator

import jaxtyping

# Before anything imports the package, so that every annotated function of it is checked against its shapes.
jaxtyping.install_import_hook("continua", "beartype.beartype")

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
