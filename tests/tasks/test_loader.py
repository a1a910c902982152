"""A torch ``DataLoader`` is a task; what is none is refused with a sentence."""

import inspect
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import continua as ct
from continua.errors import CheckpointError, ConfigError, ContinuaError, ShapeError
from continua.models import Transformer
from continua.tasks import FromLoader
from tests.refusals import refused

WORDS = torch.randint(12, (30, 6), generator=torch.Generator().manual_seed(0))


def quiet(at: Any) -> None:
    pass


def language_model() -> Any:
    return ct.zoo.gpt2(vocab=12, d=8, heads=2, depth=2, context=8)


class Dicts(Dataset[Any]):
    def __len__(self) -> int:
        return len(WORDS)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": WORDS[row], "labels": WORDS[row]}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(WORDS)


@pytest.mark.finding("N9")
def test_fit_takes_a_loader_of_pairs() -> None:
    loader = DataLoader(TensorDataset(WORDS[:, :-1], WORDS[:, 1:]), batch_size=4, shuffle=True)
    done = ct.fit(language_model(), loader, steps=30, evaluate_every=15, watch=quiet)
    assert done.ended == "done"
    assert done.history[-1]["loss"] < done.history[0]["loss"]


def test_values_are_learned_by_squared_errors_and_doubles_of_numpy_are_taken() -> None:
    x = np.random.default_rng(0).normal(size=(20, 5, 1))
    model = ct.Transformer.continuous(channels=1, at=ct.at(d=8, h=2, z=2))
    loader = DataLoader(list(zip(x, x * 2, strict=True)), batch_size=4)  # type: ignore[arg-type]
    done = ct.fit(model, loader, steps=3, evaluate_every=3, watch=quiet)
    task = FromLoader(loader)
    example = task.example(0, 0)
    assert example.batch.values.dtype == torch.float32  # type: ignore[union-attr]
    answer = model(example.batch)
    assert task.loss(answer, example).item() == pytest.approx(((answer - example.target) ** 2).sum().item())
    assert done.ended == "done"


def test_labels_that_are_the_tokens_are_the_ones_behind_them() -> None:
    example = FromLoader(DataLoader(Dicts(), batch_size=4)).example(0, 0)
    assert torch.equal(example.batch.values, WORDS[:4, :-1])  # type: ignore[arg-type]
    assert torch.equal(example.target, WORDS[:4, 1:])


def test_answers_of_minus_hundred_do_not_count() -> None:
    target = WORDS.clone()
    target[:, ::2] = -100
    task = FromLoader(DataLoader(TensorDataset(WORDS, target), batch_size=4))
    example = task.example(0, 0)
    assert example.count == 12
    answer = language_model()(example.batch)
    one_by_one = -answer.log_softmax(-1).gather(-1, WORDS[:4, :, None])[..., 0][:, 1::2].sum()
    assert task.loss(answer, example).item() == pytest.approx(one_by_one.item(), rel=1e-5)


@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_are_a_function_of_seed_and_step_and_an_epoch_meets_each_once(shuffle: bool) -> None:
    rows = torch.arange(40)[:, None]
    loader = DataLoader(TensorDataset(rows, rows), batch_size=6, shuffle=shuffle)
    task = FromLoader(loader)
    steps = [task.example(3, step).target.flatten().tolist() for step in range(12)]
    again = [FromLoader(loader).example(3, step).target.flatten().tolist() for step in (7, 2)]
    assert again == [steps[7], steps[2]]
    epochs = [sorted(itertools.chain(*steps[:6])), sorted(itertools.chain(*steps[6:]))]
    assert epochs[0] == epochs[1] == list(range(36)), "the last tenth is held out"
    assert (steps[0] == [0, 1, 2, 3, 4, 5]) is not shuffle
    assert (steps[:6] == steps[6:]) is not shuffle
    assert [example.target.flatten().tolist() for example in task._held()] == [[36, 37, 38, 39]]


def test_a_second_loader_is_measured_on() -> None:
    train = DataLoader(TensorDataset(WORDS[:1, :-1], WORDS[:1, 1:]), batch_size=4)
    other = DataLoader(TensorDataset(WORDS[:, :-1], WORDS[:, 1:]), batch_size=7)
    task = FromLoader(train, held_out=other)
    model = language_model()
    score = task.evaluate(model).main
    answer = model(WORDS[:, :-1]).log_softmax(-1).gather(-1, WORDS[:, 1:, None])
    assert score == pytest.approx(-answer.mean().item(), rel=1e-5)


@pytest.mark.finding("N9")
@pytest.mark.parametrize(
    "given",
    [
        None, 3, "text", WORDS, FromLoader, TensorDataset(WORDS), DataLoader(Stream()),  # type: ignore[arg-type]
        DataLoader(TensorDataset(WORDS)), DataLoader(TensorDataset(WORDS[:1], WORDS[:1])),
        DataLoader(TensorDataset(WORDS, WORDS), batch_size=None),
        DataLoader(TensorDataset(WORDS, WORDS), sampler=WeightedRandomSampler([1.0] * 30, 30)),
        DataLoader([{"a": 1}, {"a": 2}] * 9), DataLoader([("a", "b")] * 9),  # type: ignore[arg-type]
        DataLoader(TensorDataset(WORDS, WORDS[:, 0])),
    ],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
def test_what_is_no_task_is_refused_with_a_sentence(given: Any) -> None:
    with pytest.raises(ContinuaError):
        ct.fit(language_model(), given, steps=1, watch=quiet)


@pytest.mark.finding("N9")
@pytest.mark.parametrize("given", [None, 3, torch.nn.Linear(2, 2), Transformer])
def test_what_is_no_model_is_refused_with_a_sentence(given: Any) -> None:
    loader = DataLoader(TensorDataset(WORDS[:, :-1], WORDS[:, 1:]))
    with refused(ConfigError, "got ", "Give a Transformer"):
        ct.fit(given, loader, steps=1, watch=quiet)


def test_targets_of_another_shape_are_refused() -> None:
    loader = DataLoader(TensorDataset(WORDS, WORDS[:, 1:]), batch_size=4)
    with refused(ShapeError, "got [4, 5]", "Give a target for each answer"):
        ct.fit(language_model(), loader, steps=1, watch=quiet)


# --- the other stumbles of that row ----------------------------------------------------------------------------------


@pytest.mark.finding("N9")
@pytest.mark.parametrize("given", [None, 3, object(), {"a": 1}, torch.nn.Linear(2, 2)])
def test_from_hf_of_something_else_is_refused(given: Any) -> None:
    with refused(CheckpointError, "got ", "save_pretrained"):
        ct.from_hf(given)


@pytest.mark.finding("N9")
def test_from_hf_takes_a_model_of_transformers(quiet_hugging_face: None) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=12, n_embd=8, n_head=2, n_layer=2, n_positions=8)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        assert torch.allclose(ct.from_hf(theirs)(WORDS), theirs(WORDS).logits, atol=1e-5)


@pytest.mark.finding("N9")
def test_the_arguments_of_continuous_are_in_its_signature() -> None:
    parameters = inspect.signature(Transformer.continuous).parameters
    assert {"vocab", "channels", "at", "mask", "context"} <= set(parameters)
    assert all(p.kind is not p.VAR_KEYWORD for p in parameters.values())
