"""Retrieval: what is found, what is not, and what is refused."""

import pytest
import torch
from torch import Tensor

from continua.data import Docstring
from continua.errors import ShapeError
from continua.tasks import Retrieval
from tests.refusals import refused

DOCS = tuple(Docstring(f"a.f{i}", f"Summary number {i} of four.", f"body {i}") for i in range(4))


def looked_up(table: Tensor) -> Tensor:
    """Summaries are the axes; bodies are the rows of a table."""
    task = Retrieval(DOCS)
    return torch.tensor(
        list(task.evaluate(lambda texts: torch.eye(4) if texts[0] == DOCS[0].summary else table).values.values())
    )


@pytest.mark.spec("B11")
def test_accuracy_is_the_share_of_bodies_that_are_nearest() -> None:
    assert looked_up(torch.eye(4)).tolist() == [0.0, 1.0, 1.0]
    # the first two are swapped: each right answer comes second
    swapped = torch.eye(4)[[1, 0, 2, 3]] + 0.5 * torch.eye(4)
    assert looked_up(swapped).tolist() == pytest.approx([0.5, 0.5, (1 + 1 + 0.5 + 0.5) / 4])
    assert looked_up(7 * torch.eye(4) * torch.tensor([[1.0], [2], [3], [4]]))[1] == 1, "lengths do not count"


@pytest.mark.spec("B11")
def test_equal_embeddings_find_nothing() -> None:
    assert looked_up(torch.ones(4, 4)).tolist() == pytest.approx([1.0, 0.0, 0.25])


@pytest.mark.spec("B11")
def test_random_embeddings_are_at_chance() -> None:
    docs = tuple(Docstring(f"a.f{i}", str(i), f"b{i}") for i in range(200))
    drawn = torch.Generator().manual_seed(0)
    score = Retrieval(docs).evaluate(lambda texts: torch.randn(len(texts), 8, generator=drawn))
    assert score.values["accuracy"] < 0.05
    assert score.main == score.values["error"]


def test_what_is_not_an_embedding_is_refused() -> None:
    with refused(ShapeError, "1 of them", "two docstrings or more"):
        Retrieval(DOCS[:1])
    task = Retrieval(DOCS)
    with refused(ShapeError, "[3, 4]", "a row for each text"):
        task.evaluate(lambda texts: torch.eye(4)[:3])
    with refused(ShapeError, "[4, 4, 4]", "a row for each text"):
        task.evaluate(lambda texts: torch.zeros(4, 4, 4))
    with refused(ShapeError, "NaN or infinity", "weights of the model"):
        task.evaluate(lambda texts: torch.full((4, 4), torch.nan))
    with refused(ShapeError, "4 and 3", "as many features"):
        task.evaluate(lambda texts: torch.eye(4)[:, : 4 if texts[0] == DOCS[0].summary else 3])
