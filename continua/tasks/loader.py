"""A torch ``DataLoader`` as a task."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from continua.errors import ConfigError, ShapeError
from continua.models import Batch
from continua.tasks.task import Example, Score, Task, device_of, generator_for
from continua.typing import Tensor

IGNORED = -100  # torch's number for answers that do not count
TARGETS = ("target", "targets", "labels", "label", "y")
VALUES = {"values": "values", "input_ids": "values", "pixel_values": "values", "inputs": "values", "input": "values"}
NAMES = {**VALUES, "x": "values", "attention_mask": "observed", "token_type_ids": "types"}
OWN = "Write a Task: example(seed, step), loss(answer, example), evaluate(model)."


@dataclass(frozen=True)
class FromLoader:
    """The batches of a ``DataLoader``: pairs (input, target), or mappings with such names.

    Whole-number targets are classes (the loss is −log p, and −100 does not count), others are values (squared errors).
    The rows of a step are drawn from its dataset by (seed, step), shuffled where the loader shuffles, so that a resumed
    run meets the same ones. ``held_out`` is a second loader to measure on; without it the last tenth of the dataset is
    held out. Where ``labels`` are the ``input_ids`` themselves, as language models have them, the answer to a token is
    the one behind it.
    """

    loader: DataLoader[Any]
    held_out: DataLoader[Any] | None = None

    def __post_init__(self) -> None:
        for loader in (self.loader, self.held_out):
            if loader is not None:
                _check(loader)
        if self.held_out is None and len(self._rows) < 2:
            remedy = "Give more rows, or a loader to measure on: FromLoader(loader, held_out=…)."
            raise ConfigError("one row is held out and one is trained on", got=len(self._rows), remedy=remedy)

    @property
    def _rows(self) -> range:
        return range(len(self.loader.dataset))  # type: ignore[arg-type]

    @property
    def _trained(self) -> int:
        count = len(self._rows)
        return count if self.held_out is not None else count - max(1, count // 10)

    def example(self, seed: int, step: int) -> Example:
        """The rows of a step; an epoch ends where less than a batch is left."""
        batch = min(self.loader.batch_size or 1, self._trained)
        epoch, place = divmod(step, self._trained // batch)
        shuffled = isinstance(self.loader.sampler, RandomSampler)
        order = _order(seed, epoch, self._trained) if shuffled else range(self._trained)
        return self._of(self.loader, order[place * batch : (place + 1) * batch])

    def _of(self, loader: DataLoader[Any], rows: Any) -> Example:
        return as_example(loader.collate_fn([loader.dataset[int(row)] for row in rows]))

    def loss(self, answer: Tensor, example: Example) -> Tensor:
        """Σ −log p of the right classes, or Σ of squared errors."""
        target = example.target
        classes = not target.is_floating_point()
        wanted = answer.shape[:-1] if classes else answer.shape
        if target.shape != wanted and not (not classes and target.shape == answer.shape[:-1] == wanted[:-1]):
            remedy = "Give a target for each answer of the model, or write a Task with a loss of its own."
            raise ShapeError(
                f"answers {list(answer.shape)} need targets {list(wanted)}", got=list(target.shape), remedy=remedy
            )
        exact = answer.float() if answer.dtype.itemsize < 4 else answer
        if classes:
            return cross_entropy(exact.flatten(0, -2), target.flatten(), ignore_index=IGNORED, reduction="sum")
        return (exact.reshape(target.shape) - target).square().sum()

    @torch.no_grad()
    def evaluate(self, model: Any) -> Score:
        """The mean loss of the held-out rows."""
        device = device_of(model)
        total = 0.0
        count = 0
        for example in self._held():
            moved = example.to(device)
            total += float(self.loss(model(moved.batch), moved))
            count += moved.count
        return Score({"loss": total / max(count, 1)})

    def _held(self) -> Iterator[Example]:
        loader = self.loader if self.held_out is None else self.held_out
        rows = self._rows[self._trained :] if self.held_out is None else range(len(loader.dataset))  # type: ignore[arg-type]
        size = loader.batch_size or 1
        for start in range(0, len(rows), size):
            yield self._of(loader, rows[start : start + size])


def as_task(given: Any) -> Task:
    """A task, or a ``DataLoader`` as one."""
    if isinstance(given, DataLoader):
        return FromLoader(given)
    if isinstance(given, type) or not isinstance(given, Task):
        got = given.__name__ if isinstance(given, type) else type(given).__name__
        raise ConfigError("fit takes a task or a DataLoader of (input, target)", got=got, remedy=OWN)
    return given


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> list[int]:
    drawn: list[int] = torch.randperm(count, generator=generator_for("loader", seed, epoch)).tolist()
    return drawn


def _check(loader: Any) -> None:
    if not isinstance(loader, DataLoader):
        remedy = "Give torch.utils.data.DataLoader(dataset, batch_size=16)."
        raise ConfigError("FromLoader takes a DataLoader", got=type(loader).__name__, remedy=remedy)
    known = isinstance(loader.sampler, RandomSampler | SequentialSampler)
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None or not known:
        remedy = f"A dataset with numbered rows, shuffled or not, has them. {OWN}"
        raise ConfigError(
            "the rows of a step must be known from its number", got="a loader that decides", remedy=remedy
        )


def as_example(batch: Any) -> Example:
    """What a loader gave, as a batch and its targets."""
    if isinstance(batch, Example):
        return batch
    if isinstance(batch, Mapping):
        return _named(batch)
    if isinstance(batch, tuple | list) and len(batch) == 2:
        values, target = batch
        made = values if isinstance(values, Batch) else Batch(_usual(values))
        return _counted(made, _usual(target))
    remedy = "Let the dataset return (input, target), or a dict with input_ids and labels."
    raise ConfigError("a loader gives inputs with their targets", got=_kind(batch), remedy=remedy)


def _named(batch: Mapping[str, Any]) -> Example:
    known = {f.name for f in fields(Batch)}
    keys = [key for key in TARGETS if key in batch]
    given = {NAMES.get(key, key): value for key, value in batch.items() if key not in TARGETS}
    strange = sorted(key for key in given if key not in known)
    if len(keys) != 1 or "values" not in given or strange:
        got = f"the names {', '.join(map(repr, batch))}"
        remedy = f"Inputs are one of {', '.join(VALUES)}, targets one of {', '.join(TARGETS)}; the rest is of Batch."
        raise ConfigError("a loader names inputs and targets", got=got, remedy=remedy)
    values = _usual(given["values"])
    target = _usual(batch[keys[0]])
    if "observed" in given:
        given["observed"] = given["observed"].bool()
    if values.shape == target.shape and torch.equal(values, torch.where(target == IGNORED, values, target)):
        if len(given) > 1:
            remedy = "Leave them out, or give labels that are moved by one already."
            raise ConfigError("labels of a language model go with input_ids alone", got=sorted(given), remedy=remedy)
        return _counted(Batch(values[:, :-1]), target[:, 1:])
    return _counted(Batch(**{**given, "values": values}), target)


def _usual(value: Any) -> Tensor:
    """A tensor; double precision, which numpy makes of everything, becomes the usual one."""
    if not isinstance(value, Tensor):
        remedy = "Let the dataset return tensors, arrays or numbers."
        raise ConfigError("a loader gives tensors", got=_kind(value), remedy=remedy)
    return value.to(torch.get_default_dtype()) if value.dtype == torch.float64 else value


def _counted(batch: Batch, target: Tensor) -> Example:
    ignored = None if target.is_floating_point() else target == IGNORED
    return Example(batch, target, ~ignored if ignored is not None and bool(ignored.any()) else None)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__
