"""Laws of whole models, over every entry of ``MODELS``: measures, order, time, samples, gradients."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from continua.axes import Grid
from continua.errors import GridError
from continua.flow import solve
from continua.models import Batch, EncoderDecoder, Frames, Transformer
from continua.models.batch import place
from continua.operators import Context, Rotary
from continua.tree import mapped
from tests.bound import leaves
from tests.cases import MODELS, is_causal, made
from tests.measure import EXACT, gap, random

CAUSAL_SERIES = [name for name, case in MODELS.items() if case.batch.__name__ == "series" and is_causal(made(name)[0])]


@pytest.fixture(params=MODELS)
def name(request) -> str:
    return request.param


def token_model(model: Any) -> Transformer:
    """The part of the model that reads the batch's own tokens."""
    return model.decoder if isinstance(model, EncoderDecoder) else model


def retold(model: Any, batch: Batch, index: Tensor, share: float = 1.0) -> Batch:
    """The tokens ``index`` of the batch, each with its stamp and this share of its weight."""
    like = next(model.parameters())
    batch, grid = place(batch, token_model(model).axes.t, None, like)
    taken = Grid(
        grid.nodes[..., index, :],
        grid.weights[..., index] * share,
        None if grid.left is None else grid.left[..., index] * share,
        is_counting=grid.is_counting,
        has_gaps=grid.has_gaps,
    )
    return replace(batch, values=batch.values[:, index], times=None, observed=None, grid=taken)


def rows(answer: Tensor, name: str, index: Tensor) -> Tensor:
    """The answers of some tokens; a pooled model has one for all."""
    return answer if name == "pooled" else answer[:, index]


@pytest.mark.spec("M8", "M2")
def test_every_token_twice_with_half_its_weight_changes_nothing(name) -> None:
    model, batch, wanted = made(name)
    count = batch.values.shape[1]
    twice = retold(model, batch, torch.arange(count).repeat_interleave(2), share=0.5)
    if batch.source is not None and not isinstance(model.encoder.embed, Frames):  # it looks at neighbours
        source = batch.source.values.shape[1]
        twice = replace(
            twice, source=retold(model.encoder, batch.source, torch.arange(source).repeat_interleave(2), share=0.5)
        )
    got = model(twice)
    everything = torch.arange(2 * count)
    assert gap(rows(got, name, everything[::2]), wanted) < EXACT
    assert gap(rows(got, name, everything[1::2]), wanted) < EXACT


@pytest.mark.spec("M8")
def test_half_the_weight_once_does_change_something() -> None:
    model, batch, answer = made("bert")
    first_twice = torch.tensor([0, 0, 1, 2, 3, 4, 5])
    assert gap(model(retold(model, batch, first_twice))[:, 1:], answer) > 1e-4


@pytest.mark.spec("M8", "A3")
def test_permuting_tokens_with_their_stamps_permutes_the_answer(name) -> None:
    model, batch, answer = made(name)
    order = torch.randperm(batch.values.shape[1], generator=torch.Generator().manual_seed(3))
    permuted = retold(model, batch, order)
    if is_causal(token_model(model)):
        with pytest.raises(GridError, match="stamps that do not decrease"):
            model(permuted)
    else:
        assert gap(model(permuted), rows(answer, name, order)) < EXACT


@pytest.mark.spec("M8", "A4")
def test_the_order_of_the_source_does_not_matter_to_a_decoder() -> None:
    model, batch, answer = made("encoder-decoder")
    order = torch.tensor([3, 0, 4, 1, 2])
    assert gap(model(replace(batch, source=retold(model.encoder, batch.source, order))), answer) < EXACT


@pytest.mark.spec("M2", "A2")
@pytest.mark.parametrize("name", [name for name in CAUSAL_SERIES if name != "pooled"])
def test_no_row_uses_a_later_stamp_or_value(name) -> None:
    model, batch, before = made(name)
    for i in range(5):
        times, values = batch.times.clone(), batch.values.clone()
        later = times[:, i + 2 : i + 3] if i < 4 else times[:, -1:] + 1.0
        times[:, i + 1 : i + 2] += 0.3 * (later - times[:, i + 1 : i + 2])
        values[:, i + 1 :] += 1.0
        for changed in (replace(batch, times=times), replace(batch, values=values)):
            after = model(changed)
            assert torch.equal(after[:, : i + 1], before[:, : i + 1]), f"row {i} looks ahead"
            assert gap(after[:, i + 1 :], before[:, i + 1 :]) > 1e-6


@pytest.mark.spec("A2")
@pytest.mark.parametrize(
    "name", [n for n, c in MODELS.items() if c.batch.__name__ == "words" and is_causal(made(n)[0])]
)
def test_no_counted_row_uses_a_later_token(name) -> None:
    model, batch, _ = made(name)
    batch = Batch(batch.values)
    before = model(batch)
    for i in range(5):
        values = batch.values.clone()
        values[:, i + 1 :] = (values[:, i + 1 :] + 1) % 11
        after = model(Batch(values))
        # an expert that has more or fewer tokens rounds the last bits of each otherwise
        same = gap(after[:, : i + 1], before[:, : i + 1]) < EXACT if name == "mixtral" else False
        assert same or torch.equal(after[:, : i + 1], before[:, : i + 1]), f"row {i} looks ahead"
        assert gap(after[:, i + 1 :], before[:, i + 1 :]) > 1e-6


def picked(batch: Batch, sample: int, keep: slice) -> Batch:
    """One sample of a batch and some of its tokens."""

    def cut(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[sample : sample + 1, keep]

    source = None if batch.source is None else picked(batch.source, sample, slice(None))
    grid = None if batch.grid is None else Grid(cut(batch.grid.nodes), cut(batch.grid.weights))
    return Batch(cut(batch.values), cut(batch.times), cut(batch.observed), grid=grid, source=source)


@pytest.mark.spec("A2", "M4")
def test_a_sample_alone_answers_as_in_a_batch(name) -> None:
    model, batch, answer = made(name)
    for sample in range(2):
        assert gap(model(picked(batch, sample, slice(None))), answer[sample : sample + 1]) < EXACT


@pytest.mark.spec("A2", "M4")
def test_absent_tokens_answer_zero_and_their_content_reaches_no_one(name) -> None:
    model, batch, answer = made(name)
    if batch.observed is None:
        batch = replace(batch, observed=torch.ones(batch.values.shape[:2], dtype=torch.bool))
        batch.observed[1, -1] = False
        answer = model(batch)
    absent = ~batch.observed
    values = batch.values.clone()
    values[absent] = torch.nan if values.is_floating_point() else 7
    assert torch.equal(model(replace(batch, values=values)), answer)
    if name != "pooled":
        assert (answer[absent] == 0).all()
        assert answer[batch.observed].abs().min() > 0


@pytest.mark.spec("A2")
@pytest.mark.parametrize("name", [n for n, c in MODELS.items() if c.batch.__name__ == "words"])
def test_padding_is_the_same_as_a_shorter_sequence(name) -> None:
    model, batch, answer = made(name)
    kept = int(batch.observed[1].sum())
    shorter = replace(picked(batch, 1, slice(0, kept)), observed=None)
    assert gap(model(shorter), answer[1:, :kept]) < EXACT


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("M1", "M5")
def test_gradients_reach_every_parameter(name) -> None:
    model, batch, _ = made(name)
    answer = model(batch)
    named = dict(model.named_parameters())
    grads = torch.autograd.grad((answer * random(*answer.shape, seed=9)).sum(), named.values(), allow_unused=True)
    for path, grad in zip(named, grads, strict=True):
        assert grad is not None, path
        assert grad.abs().max() > 1e-14 or _invisible(path), path


def _invisible(path: str) -> bool:
    """A bias of all keys moves every score of a row alike, a constant in ρ is divided out again.

    A constant along d is removed by the next LayerNorm.
    """
    constants = (".density.rest", ".o.rest", ".bo.rest", ".w2.rest", ".b2.rest")
    return ".bk." in path or path.endswith(constants) or (path.startswith("embed.") and path.endswith(".rest"))


@pytest.mark.spec("M1", "M10")
def test_every_differentiated_tensor_is_a_leaf_of_args(name) -> None:
    model, batch, _ = made(name)
    if isinstance(model, EncoderDecoder):
        model, batch = model.encoder, batch.source
    structure = model.structure()
    batch, grids = model.prepare(batch, structure)
    t = grids.t
    turned = any(isinstance(part, Rotary) for part in model.modules())
    x0 = model.embed(batch, grids).detach().requires_grad_()
    field, args = model.bind(grids, structure, Context())
    args = mapped(args, lambda x: x.detach().requires_grad_() if _real(x) else x)
    span, depth = (model.axes.z.start, model.axes.z.end), model.native.z
    final = solve(field, x0, span, args=args, solver=depth.solver, control=depth).final
    loss = (final * random(*final.shape, seed=9)).sum()
    hidden = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, retain_graph=True)
    assert all(grad is None for grad in hidden), "a weight hides in a closure"
    loss.backward()
    assert x0.grad.abs().max() > 0
    for path, leaf in leaves(args).items():
        if _real(leaf) and not _unused(path, t, turned):
            assert leaf.grad is not None, path
            assert leaf.grad.abs().max() > 0 or path.endswith(".bk"), path


def _real(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _unused(path: str, t: Grid, turned: bool) -> bool:
    """Stamps are handed over to every plan; only positions that turn or measure them use them.

    Frequencies are used up when angles are made of them.
    """
    plan, _, last = path.rpartition(".")
    planned = plan.endswith(".scores") or ".layers." in path
    stamps = planned and (last in ("t", "s") or (turned and last == "position"))
    return stamps or (path.endswith("log_weights") and t.is_counting)
