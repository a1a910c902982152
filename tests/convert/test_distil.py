"""Short distillation: other sizes come closer to the native one, which does not change by a bit."""

from typing import Any

import numpy as np
import pytest
import torch

import continua as ct
from continua.axes import node_numbers
from continua.convert import with_corrections
from continua.convert.distil import INNER, MEANS, _axes_of, distillation, frozen
from continua.convert.joining import _leave_out, start_joined
from continua.convert.profiles import answers, loss
from continua.errors import ConfigError
from continua.fields import CorrectedNodes, Corrections, Expansion
from continua.models import Batch
from continua.operators import Correction
from continua.operators.correction import corrections_of
from continua.tasks import Example, Sentences, Unlabelled
from continua.tasks.sentences import shared_coordinates
from continua.training import Elastic, Lesson, Objective, Run, StateImitation, Study, Whole
from continua.training.imitation import Walk
from tests.measure import EXACT, gap
from tests.refusals import refused


def words(count: int = 24, vocab: int = 11, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, (4, count), generator=torch.Generator().manual_seed(seed))


def data(count: int = 12) -> list[torch.Tensor]:
    return [words(seed=seed) for seed in range(count)]


def gpt(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return ct.zoo.gpt2(vocab=11, d=16, heads=4, depth=3, context=32, m=24).double()


def bert(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return ct.zoo.bert(vocab=11, d=16, heads=4, depth=3, context=32, m=24).double()


def quiet(progress: Any) -> None:
    pass


SIZES = [ct.at(m=6, h=1), ct.at(d=8, h=2), ct.at(z=2)]


@pytest.mark.spec("B11")
@pytest.mark.parametrize("make", [gpt, bert])
def test_sizes_come_closer_and_the_native_one_stays(make, tmp_path) -> None:
    plain = make()
    before = distillation(plain, data(), sizes=SIZES, rank=4)
    native = before.model(words(seed=99))
    wanted = before.task.evaluate(before.model.eval()).values
    fitted = ct.distil(plain, data(), sizes=SIZES, steps=40, rank=4, lr=1e-2, run=tmp_path / "run", watch=quiet)
    made = fitted.model.eval()
    ids = words(seed=99)
    assert torch.equal(made(ids), native)
    assert gap(made(ids), plain(ids)) <= EXACT
    found = before.task.evaluate(made).values
    assert found["distance"] < 0.6 * wanted["distance"]
    assert all(found[str(size)] < 0.6 * wanted[str(size)] for size in SIZES[1:])  # the first is near its best by refit
    assert all(parameter.requires_grad for parameter in made.parameters())
    for size in SIZES:
        view = made.at(size)
        assert gap(view.held()(ids), view(ids)) <= EXACT
        assert gap(ct.discretise(view)(ids), view(ids)) <= EXACT
    again = ct.load(made.save(tmp_path / "saved"))
    assert gap(again.at(m=6, h=1)(ids), made.at(m=6, h=1)(ids)) <= EXACT
    assert gap(ct.discretise(made)(ids), plain(ids)) <= EXACT


@pytest.mark.spec("B11")
def test_a_new_correction_changes_nothing_and_the_native_size_never_reads_it() -> None:
    model = ct.elastic(gpt(), calibrate=data(3))
    made = with_corrections(model, Corrections(2, "hmdz"))
    ids = words(seed=5)
    for size in ({}, {"m": 12}, {"h": 2}, {"d": 8}, {"z": 2}, {"z": 6}):
        assert gap(made.at(**size)(ids), model.at(**size)(ids)) <= EXACT
    with torch.no_grad():
        for module in made.modules():
            if isinstance(module, Correction):
                for parameter in module.parameters():
                    parameter.normal_(0.0, 0.3)
    assert torch.equal(made(ids), model(ids))
    assert gap(made.at(z=6)(ids), model.at(z=6)(ids)) <= EXACT
    for size in ({"m": 12}, {"h": 2}, {"d": 8}, {"z": 2}):
        assert gap(made.at(**size)(ids), model.at(**size)(ids)) > 1e-3
    assert with_corrections(made, Corrections(2, "hm")) is made
    with refused(ConfigError, "e", "Teach sizes along hmdz"):
        with_corrections(made, Corrections(2, "e"))


@pytest.mark.spec("B11")
def test_the_correction_of_a_map_is_its_formula() -> None:
    """W + Σ_k s_k Aᵀ diag(quadrature weights) B, with s_m = log2(24 / 6) and s_h = log2(4 / 2)."""
    made = with_corrections(ct.lift(gpt()), Corrections(3, "hm"))
    feed = made.block.parts[1].inner
    torch.manual_seed(3)
    with torch.no_grad():
        for field in feed.correction.fields.values():
            field.coefficients.normal_()
    structure = made.structure(ct.at(m=6, h=2))
    grids = structure.grids.with_depths(structure.depths[1])
    own = feed.correction.fields
    m = {"m": grids.m}
    added = 0.0
    for k, octaves in (("m", 2.0), ("h", 1.0)):
        out = own[f"w2 out by {k}"].coefficients[1]
        inputs = own[f"w2 in by {k}"].on(**m)[1] * grids.m.weights
        added = added + octaves * out.mT @ inputs
    wanted = feed.w2.on(**m)[1] * grids.m.weights + added
    assert gap(feed.read(grids).weights.at(1.0)["w2"], wanted) <= EXACT


@pytest.mark.spec("B11")
def test_a_whole_correction_is_added_to_its_map_and_to_its_shift() -> None:
    """W + Σ_k s_k D_k diag(quadrature weights), b + Σ_k s_k a_k."""
    made = with_corrections(ct.lift(gpt()), Corrections(None, "hm"))
    feed = made.block.parts[1].inner
    own = feed.correction.fields
    assert not any(bool(field.coefficients.any()) for field in own.values())
    torch.manual_seed(3)
    with torch.no_grad():
        for field in own.values():
            field.coefficients.normal_()
    structure = made.structure(ct.at(m=6, h=2))
    grids = structure.grids.with_depths(structure.depths[1])
    read = feed.read(grids).weights.at(1.0)
    m = {"m": grids.m}
    parts = (("m", 2.0), ("h", 1.0))
    added = sum(octaves * own[f"w2 whole by {k}"].on(**m)[1] * grids.m.weights for k, octaves in parts)
    assert gap(read["w2"], feed.w2.on(**m)[1] * grids.m.weights + added) <= EXACT
    shift = sum(octaves * own[f"b2 by {k}"].coefficients[1] for k, octaves in parts)
    assert gap(read["b2"], feed.b2.coefficients[1] + shift) <= EXACT
    heads = made.block.parts[0].inner
    view = heads.read(structure.grids.with_depths(structure.depths[0])).weights.at(1.0)
    assert view["o"].shape == (16, 8)
    ids = words(seed=5)
    assert gap(ct.discretise(made.at(m=6, h=2))(ids), made.at(m=6, h=2)(ids)) <= EXACT


@pytest.mark.spec("B11")
@pytest.mark.parametrize("make", [gpt, bert])
def test_corrections_of_the_nodes_that_sizes_read_are_those_of_all_with_zeros_elsewhere(make) -> None:
    """At the size that is taught, below it, and between it and the native one."""
    model = ct.elastic(make(), calibrate=data(3))
    stored = (CorrectedNodes("h", "h", 2), CorrectedNodes("h", "m", 12), CorrectedNodes("d", "d", 8))
    few = with_corrections(model, Corrections(None, "hd", stored=stored))
    whole = with_corrections(model, Corrections(None, "hd"))
    torch.manual_seed(3)
    some, all_ = (_whole_fields(one) for one in (few, whole))
    assert sum(f.coefficients.numel() for f in some.values()) < 0.7 * sum(f.coefficients.numel() for f in all_.values())
    with torch.no_grad():
        for name, field in some.items():
            field.coefficients.normal_(0.0, 0.1)
            values = field.coefficients
            for place, letter in enumerate(field.letters):
                axis = field.axes[letter]
                own = np.array(node_numbers(axis, field.bases[letter].rule))
                every = np.array(node_numbers(axis, all_[name].bases[letter].rule))
                spread = torch.from_numpy(every[:, None] == own[None, :]).to(values)
                values = torch.tensordot(values, spread, ([place], [1])).movedim(-1, place)
            all_[name].coefficients.copy_(values)
    ids = words(seed=5)
    for size in ({"m": 12, "h": 2}, {"d": 8, "m": 12, "h": 2}, {"m": 6, "h": 1}, {"m": 18, "h": 3}, {"d": 12}):
        assert gap(few.at(**size)(ids), whole.at(**size)(ids)) <= EXACT, size
        assert gap(few.at(**size)(ids), model.at(**size)(ids)) > 1e-3
    assert with_corrections(few, Corrections(None, "h", stored=(CorrectedNodes("h", "h", 2), stored[1]))) is few
    with refused(ConfigError, "of other sizes", "Teach sizes along hd (of at most h=2 along h, m=12 along h"):
        with_corrections(few, Corrections(None, "h"))


def _whole_fields(model: Any) -> dict[str, Expansion]:
    return {
        f"{place}: {name}": field
        for place, module in enumerate(model.modules())
        if isinstance(module, Correction)
        for name, field in module.fields.items()
    }


@pytest.mark.spec("B11")
def test_what_frozen_maps_are_refitted_to_is_kept_until_their_numbers_change() -> None:
    model = ct.elastic(gpt(), calibrate=data(3))
    made = with_corrections(model, Corrections(None, "h"))
    frozen(made)
    ids = words(seed=5)
    feed = made.block.parts[1].inner
    first = made.at(m=12, h=2)(ids)
    kept = len(feed.refit._done)
    assert kept > 0
    assert torch.equal(made.at(m=12, h=2)(ids), first)
    assert len(feed.refit._done) == kept
    with torch.no_grad():
        for name in ("w1", "b1", "w2"):  # taken in order, and refitted
            getattr(feed, name).coefficients.mul_(1.5)
            getattr(model.block.parts[1].inner, name).coefficients.copy_(getattr(feed, name).coefficients)
    assert gap(made.at(m=12, h=2)(ids), model.at(m=12, h=2)(ids)) <= EXACT
    made.requires_grad_(True)
    before = len(feed.refit._done)
    made.at(m=6, h=2)(ids).sum().backward()
    assert len(feed.refit._done) == before  # weights that learn are read anew
    assert bool(feed.w2.coefficients.grad.any())


@pytest.mark.spec("B11")
@pytest.mark.parametrize("make", [gpt, bert])
def test_joined_steps_start_as_if_layers_were_left_out(make) -> None:
    plain = make()
    model = with_corrections(ct.elastic(plain, calibrate=data(3)), Corrections(None, "hz"))
    size = ct.at(
        z=ct.Fixed(2, model.native.z.solver, lengths=(1, 2))
    )  # the first layer, and the second without the third
    short = ct.discretise(ct.lift(plain))
    with torch.no_grad():
        for module in short.modules():
            for name in ("o", "bo", "w2", "b2"):
                if isinstance(getattr(module, name, None), Expansion):
                    getattr(module, name).coefficients[2].zero_()
    ids = words(seed=5)
    _leave_out(model, size)
    view = model.at(size)
    if make is gpt:  # without its branches a layer is the identity; the norms of BERT are not
        assert gap(view(ids), short(ids)) <= EXACT
    assert torch.equal(model(ids), ct.lift(plain)(ids))
    _leave_out(model, ct.at())
    assert not any(bool(parameter.any()) for one in corrections_of(model) for parameter in one.parameters())
    start_joined(model, size, data(2))
    kept = loss(model.at(size), answers(model, data(2)))
    assert kept <= loss(ct.lift(plain).at(size), answers(plain, data(2))) + EXACT


@pytest.mark.spec("B11")
def test_whole_corrections_are_along_the_fewest_axes_that_tell_sizes_apart() -> None:
    model = ct.elastic(gpt(), calibrate=data(3))
    assert _axes_of(model, SIZES) == "dhmz"
    assert _axes_of(model, SIZES, fewest=True) == "dhz"
    assert _axes_of(model, [ct.at(m=6), ct.at(h=1), ct.at(m=6, h=1)], fewest=True) == "hm"


@pytest.mark.spec("B11")
def test_states_are_imitated_token_by_token() -> None:
    """Σ over texts of the share of the squared states that is wrong, and of ``means`` times 1 − cos of the means."""
    model = ct.elastic(bert(), calibrate=data(3))
    there = torch.ones(2, 5, dtype=torch.bool)
    there[1, 3:] = False
    example = Example(Batch(words(5)[:2], observed=there), torch.zeros(2))
    torch.manual_seed(0)
    teacher = torch.randn(2, 5, 16, dtype=torch.float64)
    answer = torch.randn(2, 5, 16, dtype=torch.float64)
    task = Sentences((example.batch,), (example.batch,))
    study = Study(model, task, example, Walk(teacher), model.native, lambda: answer)
    wanted = 0.0
    apart = 0.0
    for text, count in ((0, 5), (1, 3)):
        ours = answer[text, :count]
        theirs = teacher[text, :count]
        cosine = torch.nn.functional.cosine_similarity(ours.mean(0), theirs.mean(0), dim=0)
        wanted = wanted + (ours - theirs).square().sum() / theirs.square().sum()
        apart = apart + 1 - cosine
    assert gap(StateImitation().loss(study), wanted + apart) <= EXACT
    assert gap(StateImitation(means=10.0).loss(study), wanted + 10 * apart) <= EXACT


@pytest.mark.spec("B11")
@pytest.mark.parametrize("wish", [{"m": 12, "h": 2}, {"d": 8}, {"z": (2, 1)}])
def test_inner_states_are_compared_where_the_steps_of_both_sizes_meet(wish) -> None:
    """What ``inner`` adds is its product with the mean over depths of Σ over texts of |x − native x|² / |native x|²."""
    model = ct.elastic(bert(), calibrate=data(3))
    size = ct.at(z=ct.Fixed(2, model.native.z.solver, lengths=wish["z"])) if "z" in wish else ct.at(**wish)
    ids = words(5)
    there = torch.ones(4, 5, dtype=torch.bool)
    there[1, 3:] = False
    example = Example(Batch(ids, observed=there), torch.zeros(4))
    task = Sentences((example.batch,), (example.batch,), (size,))

    def taught(inner: float) -> torch.Tensor:
        objective = Objective(model, task)
        objective.elastic = Elastic(weight=1.0, imitation=StateImitation(inner))
        objective.lessons = [Lesson(size, 0, 1)]
        return objective(example, Whole.of(example))[1]["elastic"]

    theirs = model.states(example.batch)
    ours = model.at(size).states(example.batch)
    meeting = [z for z in ours.z[1:-1] if z in theirs.z]
    assert meeting == ([2.0] if "z" in wish else [1.0, 2.0])
    wanted = 0.0
    for z in meeting:
        own = ours.x[ours.z.index(z)]
        other = shared_coordinates(model, model.settle(size), theirs.x[theirs.z.index(z)])
        for text, count in enumerate(there.sum(1).tolist()):
            part = (own - other)[text, :count].square().sum() / other[text, :count].square().sum()
            wanted = wanted + part / (len(meeting) * 4)  # a mean over texts
    assert wanted > 1e-4
    assert gap(taught(3.0) - taught(0.0), 3.0 * wanted) <= EXACT


@pytest.mark.spec("B11")
def test_a_run_is_gone_on_with(tmp_path) -> None:
    """Two halves are the whole, to the bit."""
    plain = gpt()
    options: dict[str, Any] = {"sizes": SIZES[:2], "rank": 2, "watch": quiet}
    whole = ct.distil(plain, data(), steps=6, **options).model

    def stop(progress: Any) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    stopped = ct.distil(plain, data(), steps=6, run=tmp_path / "run", **{**options, "watch": stop})
    assert stopped.ended == "interrupted"
    again = ct.distil(plain, data(), run=Run.open(tmp_path / "run"), **options)
    assert again.ended == "done"
    for name, value in whole.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value), name


@pytest.mark.spec("B11")
def test_what_is_taught_follows_what_a_model_answers() -> None:
    words_ = distillation(gpt(), data(), sizes=SIZES[:1], rank=2)
    assert isinstance(words_.task, Unlabelled)
    assert words_.training.elastic.imitation is None
    states = distillation(bert(), data(), sizes=SIZES[:1], rank=2)
    assert isinstance(states.task, Sentences)
    assert states.training.elastic.imitation == StateImitation(INNER, MEANS)
    usual = distillation(gpt(), data(), rank=2).training.elastic.law.sizes
    assert [str(size) for size in usual[:4]] == ["at(m=12)", "at(h=2)", "at(h=2, m=12)", "at(d=8, h=2, m=12)"]
    assert usual[4].z.steps == 2
    few = states.in_minutes(1e-9)
    assert few.training.steps == 1
    assert all(parameter.grad is None for parameter in few.model.parameters())


@pytest.mark.spec("B11")
def test_embeddings_are_means_over_tokens_that_are_there() -> None:
    """An absent token changes no distance; of a smaller width the native coordinates are taken that it has."""
    model = ct.lift(bert())
    ids = words(6)
    observed = torch.ones(4, 6, dtype=torch.bool)
    observed[:, 4:] = False
    other = ids.masked_fill(~observed, 3)
    scores = [
        Sentences((batch,), (batch,), (ct.at(m=12), ct.at(d=8))).evaluate(model).values
        for batch in (Batch(ids, observed=observed), Batch(other, observed=observed), Batch(ids[:, :4]))
    ]
    for name, value in scores[0].items():
        assert value == pytest.approx(scores[1][name], abs=1e-12)
        assert value == pytest.approx(scores[2][name], abs=1e-12)
    native = model(ids[:, :4]).mean(1)
    small = model.at(d=8)(ids[:, :4]).mean(1)
    nodes = model.structure().grids.d.nodes[:, 0].tolist()
    places = [nodes.index(node) for node in model.structure(ct.at(d=8)).grids.d.nodes[:, 0].tolist()]
    wanted = 1 - torch.cosine_similarity(small, native[:, places]).mean().detach()
    assert scores[2]["at(d=8)"] == pytest.approx(float(wanted), abs=1e-12)


@pytest.mark.spec("B11")
def test_bad_lessons_are_refused(tmp_path) -> None:
    plain = gpt()
    with refused(ConfigError, "the native one alone", "sizes=["):
        distillation(plain, data(), sizes=[ct.at(m=24)])
    with refused(ConfigError, "0 held out", "more texts"):
        distillation(plain, [words(28)], sizes=SIZES)
    with refused(ConfigError, "'x'", '"hm"'):
        Corrections(2, "x")
    with refused(ConfigError, "none", "a few hundred texts"):
        ct.distil(plain, [])


@pytest.mark.spec("B11")
def test_lessons_in_half_precision_leave_the_native_size_as_it_is() -> None:
    plain = gpt().float()
    sizes = [ct.at(m=6, h=1)]
    before = distillation(plain, data(), sizes=sizes, rank=4, precision="bfloat16")
    start = before.task.evaluate(before.model.eval()).values["distance"]
    fitted = ct.distil(plain, data(), sizes=sizes, steps=20, rank=4, lr=1e-2, precision="bfloat16", watch=quiet)
    ids = words(seed=99)
    assert torch.equal(fitted.model.eval()(ids), before.model(ids))
    assert before.task.evaluate(fitted.model).values["distance"] < start
